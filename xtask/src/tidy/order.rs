//! Rule *order*: inside the engine, imports point down only.
//!
//! Every path that starts with `crate::` or `super::` names a top-level module; the importing
//! file's own module must be allowed to import it (`Order::allows`). Test code is free: a test may
//! build the whole engine to look at one part of it.
//!
//! `sim` is compiled only with the feature of that name, so a path to it must stand under
//! `#[cfg(feature = "sim")]` (or `shuttle`, which includes it).

use super::Finding;
use super::config::{Config, Order};
use super::source::{Source, is_cfg_with, within};
use super::tree::Tree;

const ENGINE: &str = "crates/forebay/src/";
const RULE: &str = "order";
/// The module of test machinery.
const SIM: &str = "sim";

/// One path into the crate, as found in the text.
struct Import<'a> {
    /// First name of the path below the crate's root.
    target: &'a str,
    token: usize,
    line: usize,
}

/// Applies the rule to the engine's files.
pub fn check(tree: &Tree, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree
        .sources()
        .filter(|source| source.path.starts_with(ENGINE))
    {
        let module = module_path(&source);
        // The crate's root declares and re-exports; it has no rank.
        let Some(own) = module.first().copied() else {
            continue;
        };
        let tests = source.tests();
        let gated = source.under_attribute(is_sim_gate);
        for import in imports(&source, &module) {
            if source.is_test_file() || within(&tests, import.token) {
                continue;
            }
            let is_gated = own == SIM || within(&gated, import.token);
            if let Some((message, remedy)) =
                judge(tree, &config.order, own, import.target, is_gated)
            {
                let path = source.path.to_string();
                findings.push(Finding {
                    path,
                    line: import.line,
                    rule: RULE,
                    message,
                    remedy,
                });
            }
        }
    }
    findings
}

/// What is wrong with `own` importing `target`, and the remedy.
fn judge(
    tree: &Tree,
    order: &Order,
    own: &str,
    target: &str,
    is_gated: bool,
) -> Option<(String, String)> {
    let is_module =
        tree.has(&format!("{ENGINE}{target}.rs")) || tree.has(&format!("{ENGINE}{target}/mod.rs"));
    let known = |module: &str| order.is_common(module) || order.height(module).is_some();
    if !is_module && !known(target) {
        let message = format!("`crate::{target}` is no module");
        let remedy = "import the name from the module that defines it, so that its rank shows";
        return Some((message, remedy.to_string()));
    }
    if let Some(unknown) = [own, target].into_iter().find(|module| !known(module)) {
        let message = format!("module `{unknown}` has no rank");
        return Some((
            message,
            format!("give it one under [order] in {}", super::CONFIG_PATH),
        ));
    }
    if target == SIM && is_gated {
        return None;
    }
    if target == SIM {
        let message = format!("`{own}` uses `sim` in every build");
        let remedy = "put it under #[cfg(feature = \"sim\")], or go through `sync`";
        return Some((message, remedy.to_string()));
    }
    if order.allows(own, target) {
        return None;
    }
    let message = format!("`{own}` must not import `{target}`: imports point down only");
    let remedy = format!(
        "move what is needed to a lower module, or pass it in from above; a true exception goes \
         under [order] in {} with its reason",
        super::CONFIG_PATH
    );
    Some((message, remedy))
}

fn is_sim_gate(attribute: &[super::source::Token<'_>]) -> bool {
    is_cfg_with(attribute, |word| word == "\"sim\"" || word == "\"shuttle\"")
}

/// Module path of a file below the crate's root; empty for the root itself.
fn module_path<'a>(source: &Source<'a>) -> Vec<&'a str> {
    let below = source.path.strip_prefix(ENGINE).unwrap_or(source.path);
    let stem = below.strip_suffix(".rs").unwrap_or(below);
    let mut parts: Vec<&str> = stem.split('/').collect();
    if parts
        .last()
        .is_some_and(|last| ["mod", "lib", "main"].contains(last))
    {
        parts.pop();
    }
    parts
}

/// Every path in the file that leaves its module through `crate::` or `super::`.
fn imports<'a>(source: &Source<'a>, file: &[&'a str]) -> Vec<Import<'a>> {
    let mut found = Vec::new();
    // Inline modules around the token at hand: name, and the index where the module ends.
    let mut inline: Vec<(&'a str, usize)> = Vec::new();
    for token in 0..source.tokens.len() {
        inline.retain(|(_, end)| token < *end);
        if source.word(token) == "mod" && source.word(token + 2) == "{" {
            inline.push((source.word(token + 1), source.closing(token + 2)));
        }
        let follows_path = token > 0 && matches!(source.word(token - 1), "::" | "in");
        if follows_path || source.word(token + 1) != "::" {
            continue;
        }
        let mut here: Vec<&str> = file.to_vec();
        here.extend(inline.iter().map(|(name, _)| *name));
        let mut at = token;
        match source.word(token) {
            "crate" => here.clear(),
            "super" | "self" => {
                at += if source.word(token) == "self" { 2 } else { 0 };
                while source.word(at) == "super" && source.word(at + 1) == "::" {
                    here.pop();
                    at += 2;
                }
                at -= 2;
            }
            _ => continue,
        }
        let line = source.tokens[token].line;
        match here.first() {
            Some(target) => found.push(Import {
                target,
                token,
                line,
            }),
            None => found.extend(heads(source, at + 2).into_iter().map(|target| Import {
                target,
                token,
                line,
            })),
        }
    }
    found
}

/// First names of what stands at `at`: a name, or the names in a `{...}` list.
fn heads<'a>(source: &Source<'a>, at: usize) -> Vec<&'a str> {
    if source.word(at) != "{" {
        // An exported macro lives at the root wherever it is defined.
        let is_macro = source.word(at + 1) == "!";
        return if is_macro {
            Vec::new()
        } else {
            vec![source.word(at)]
        };
    }
    let close = source.closing(at);
    let mut names = Vec::new();
    let mut index = at + 1;
    while index < close {
        names.push(source.word(index));
        // On to the comma that ends this element, over nested lists.
        while index < close && source.word(index) != "," {
            index = if source.word(index) == "{" {
                source.closing(index)
            } else {
                index
            } + 1;
        }
        index += 1;
    }
    names
}
