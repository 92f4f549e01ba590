//! Rule *dead*: every Rust file is reached from a target of some package.
//!
//! Targets are those cargo finds by itself (`src/lib.rs`, `tests/*.rs`, ...) and those that a
//! `Cargo.toml` names by `path`. From each, `mod` declarations, `#[path]` and `include!` are
//! followed.

use std::collections::BTreeSet;

use super::Finding;
use super::source::Source;
use super::tree::{Tree, resolve};

/// Reports files that no target reaches.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<(String, bool)> =
        targets(tree).into_iter().map(|path| (path, true)).collect();
    while let Some((path, is_root)) = open.pop() {
        let Some(text) = tree.text(&path) else {
            continue;
        };
        if reached.insert(path.clone()) {
            let next = children(tree, &Source::new(&path, text), is_root);
            open.extend(next.into_iter().map(|path| (path, false)));
        }
    }
    let dead = tree.texts().map(|(path, _)| path);
    let dead = dead.filter(|path| path.ends_with(".rs") && !reached.contains(*path));
    dead.map(|path| Finding {
        path: path.to_string(),
        line: 1,
        rule: "dead",
        message: "no `mod` declaration or target reaches this file".to_string(),
        remedy: "declare it with `mod` in its parent, or delete it".to_string(),
    })
    .collect()
}

/// Files that cargo compiles as roots.
fn targets(tree: &Tree) -> Vec<String> {
    let mut roots = Vec::new();
    for (manifest, text) in tree.texts() {
        let Some(package) = manifest.strip_suffix("Cargo.toml") else {
            continue;
        };
        if !package.is_empty() && !package.ends_with('/') {
            continue;
        }
        roots.extend(
            named_paths(text)
                .into_iter()
                .map(|path| resolve(package, &path)),
        );
        let inside = tree
            .texts()
            .filter_map(|(path, _)| path.strip_prefix(package));
        roots.extend(
            inside
                .filter(|path| is_found(path))
                .map(|path| format!("{package}{path}")),
        );
    }
    roots
}

/// Whether cargo finds a target at this path of a package by itself.
fn is_found(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", file] | ["tests" | "benches" | "examples", file] => file.ends_with(".rs"),
        ["src", "bin", _, "main.rs"] | ["tests" | "benches" | "examples", _, "main.rs"] => true,
        _ => false,
    }
}

/// Every `path` of a target that a manifest names.
fn named_paths(manifest: &str) -> Vec<String> {
    let Ok(table) = manifest.parse::<toml::Table>() else {
        return Vec::new();
    };
    let path_of = |value: &toml::Value| Some(value.get("path")?.as_str()?.to_string());
    let mut paths: Vec<String> = table.get("lib").and_then(path_of).into_iter().collect();
    for kind in ["bin", "test", "bench", "example"] {
        let listed = table
            .get(kind)
            .and_then(|value| value.as_array())
            .into_iter()
            .flatten();
        paths.extend(listed.filter_map(path_of));
    }
    let build = table
        .get("package")
        .and_then(|package| package.get("build"));
    paths.extend(build.and_then(|value| value.as_str()).map(str::to_string));
    paths
}

/// Files that a file declares as modules or includes.
fn children(tree: &Tree, source: &Source<'_>, is_root: bool) -> Vec<String> {
    let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", source.path));
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    let own = if is_root || stem == "mod" {
        String::new()
    } else {
        format!("{stem}/")
    };
    let base = if folder.is_empty() {
        own
    } else {
        format!("{folder}/{own}")
    };
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let mut found = Vec::new();
    for at in 0..source.tokens.len() {
        inline.retain(|(_, end)| at < *end);
        match (source.word(at), source.word(at + 2)) {
            ("mod", "{") => inline.push((source.word(at + 1), source.closing(at + 2))),
            ("mod", ";") => {
                let around: String = inline.iter().map(|(name, _)| format!("{name}/")).collect();
                let module = format!("{base}{around}{}", source.word(at + 1));
                found.extend([format!("{module}.rs"), format!("{module}/mod.rs")]);
            }
            ("path", literal) | ("include", literal) if literal.starts_with('"') => {
                found.push(resolve(&format!("{folder}/"), literal.trim_matches('"')));
            }
            ("include", "(") => {
                found.push(resolve(
                    &format!("{folder}/"),
                    source.word(at + 3).trim_matches('"'),
                ));
            }
            _ => {}
        }
    }
    found.retain(|path| tree.text(path).is_some());
    found
}
