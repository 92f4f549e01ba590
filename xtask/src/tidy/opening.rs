//! Rule *opening*: every Rust file begins by saying what it is for.

use super::Finding;
use super::tree::Tree;

/// Reports files whose first line is not a `//!` with words in it.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs")) {
        let first = text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("");
        let words = first.strip_prefix("//!").map(str::trim).unwrap_or("");
        if words.is_empty() {
            findings.push(Finding {
                path: path.to_string(),
                line: 1,
                rule: "opening",
                message: "the file does not open with a `//!` line".to_string(),
                remedy: "say what the file is for, its invariants, and what it does not do"
                    .to_string(),
            });
        }
    }
    findings
}
