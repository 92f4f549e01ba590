//! Rule *words*: text that has no place in the tree.
//!
//! Notes of unfinished work get lost in code; paths of one machine and hosts of package registries
//! mean nothing to a reader elsewhere. The words are joined from parts here, so that this file
//! passes its own rule.

use super::Finding;
use super::tree::Tree;

/// Files that tools write and nobody edits.
const GENERATED: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// How a forbidden word is told from an innocent one that contains it.
#[derive(Clone, Copy)]
enum Kind {
    /// Neighbours must not be letters, digits or underscores.
    Word,
    /// Begins an absolute path: what stands before must not belong to a path.
    Path,
}

struct Forbidden {
    parts: &'static [&'static str],
    kind: Kind,
    what: &'static str,
    remedy: &'static str,
}

const UNFINISHED: &str = "do it, or record it where work is planned";
const MACHINE: &str = "use a path relative to the root of the tree, or a placeholder such as DIR";
const REGISTRY: &str = "name the package, not where it is fetched from";

const FORBIDDEN: [Forbidden; 12] = [
    word(&["TO", "DO"], "a note of unfinished work", UNFINISHED),
    word(&["FIX", "ME"], "a note of unfinished work", UNFINISHED),
    word(&["XX", "X"], "a note of unfinished work", UNFINISHED),
    path(&["/wo", "rk/"], "a path of one machine", MACHINE),
    path(&["/ro", "ot/"], "a path of one machine", MACHINE),
    word(&["crates", ".io"], "a registry's host", REGISTRY),
    word(&["pypi", ".org"], "a registry's host", REGISTRY),
    word(&["python", "hosted.org"], "a registry's host", REGISTRY),
    word(&["npm", "js.org"], "a registry's host", REGISTRY),
    word(&["proxy.go", "lang.org"], "a registry's host", REGISTRY),
    word(&["deb.", "debian.org"], "a registry's host", REGISTRY),
    word(&["repo1.", "maven.org"], "a registry's host", REGISTRY),
];

const fn word(
    parts: &'static [&'static str],
    what: &'static str,
    remedy: &'static str,
) -> Forbidden {
    Forbidden {
        parts,
        kind: Kind::Word,
        what,
        remedy,
    }
}

const fn path(
    parts: &'static [&'static str],
    what: &'static str,
    remedy: &'static str,
) -> Forbidden {
    Forbidden {
        parts,
        kind: Kind::Path,
        what,
        remedy,
    }
}

/// Reports every line with a forbidden word.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !GENERATED.contains(path)) {
        for entry in &FORBIDDEN {
            let wanted = entry.parts.concat();
            // One search over the whole file first: nearly all files have none.
            if !text.contains(&wanted) {
                continue;
            }
            for (index, _) in text
                .lines()
                .enumerate()
                .filter(|(_, l)| has(l, &wanted, entry.kind))
            {
                findings.push(Finding {
                    path: path.to_string(),
                    line: index + 1,
                    rule: "words",
                    message: format!("`{wanted}` is {}", entry.what),
                    remedy: entry.remedy.to_string(),
                });
            }
        }
    }
    findings
}

fn has(line: &str, wanted: &str, kind: Kind) -> bool {
    line.match_indices(wanted).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + wanted.len()..].chars().next();
        let is_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        match kind {
            Kind::Word => !is_name(before) && !is_name(after),
            Kind::Path => !is_name(before) && !matches!(before, Some('.' | '-' | '/' | '}' | '*')),
        }
    })
}
