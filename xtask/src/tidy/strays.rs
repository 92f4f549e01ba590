//! Rule *strays*: what a benchmark or a typing error has left in the tree is not committed with the rest.
//!
//! In the root lie only the files and folders that `xtask/tidy.toml` names; anywhere a file that is not text and no picture of a
//! document's, or is larger than [`BYTES_MAX`], is one that nobody will read.

use std::collections::BTreeSet;

use super::Finding;
use super::config::Config;
use super::tree::Tree;

/// Largest text file, bytes. Generated lock files are the largest that a source tree needs.
pub const BYTES_MAX: usize = 512 << 10;

/// Reports strays. Nothing is said of the root where no name is listed.
pub fn check(tree: &Tree, config: &Config) -> Vec<Finding> {
    let finding = |path: &str, message: String, remedy: &str| Finding {
        path: path.to_string(),
        line: 1,
        rule: "strays",
        message,
        remedy: remedy.to_string(),
    };
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        if text.len() > BYTES_MAX {
            let message = format!("{} KiB of text", text.len() >> 10);
            findings.push(finding(
                path,
                message,
                "remove it, or generate it where it is used",
            ));
        }
    }
    // Documents may have pictures.
    for path in tree.others().filter(|path| !path.starts_with("docs/")) {
        findings.push(finding(path, "not a text file".to_string(), "remove it"));
    }
    if config.root.is_empty() {
        return findings;
    }
    let all = tree.texts().map(|(path, _)| path).chain(tree.others());
    let names: BTreeSet<&str> = all
        .map(|path| path.split('/').next().unwrap_or(path))
        .collect();
    for name in names {
        if !config.root.iter().any(|known| known == name) {
            let message = "not one of the root's names".to_string();
            findings.push(finding(
                name,
                message,
                "remove it, or name it in `root` of xtask/tidy.toml",
            ));
        }
    }
    findings
}
