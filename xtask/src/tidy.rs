//! The source rules, and the one function that applies them all.
//!
//! A rule is a function from a [`Tree`] to findings. It reads nothing but the tree, so a test can
//! plant a violation in a tree of its own and see that it is found: each rule has such a *canary*
//! in `tests.rs`, because a rule that finds nothing looks just like a rule that is broken.
//!
//! What is data (ranks of modules, files that may hold `unsafe`) lies in `xtask/tidy.toml`; sizes
//! that exceed the limits lie in `xtask/ratchet.txt`.

pub mod config;
pub mod dead;
pub mod links;
pub mod opening;
pub mod order;
pub mod ratchet;
pub mod size;
pub mod source;
pub mod strays;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod unsafety;
pub mod words;

use std::fmt;
use std::path::Path;

use config::Config;
use ratchet::Ratchet;
use tree::Tree;

/// Where the rules' data lies, relative to the root.
pub const CONFIG_PATH: &str = "xtask/tidy.toml";
/// Where the sizes above the limits lie, relative to the root.
pub const RATCHET_PATH: &str = "xtask/ratchet.txt";

/// One violation: where, of which rule, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// File, relative to the root.
    pub path: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Name of the rule.
    pub rule: &'static str,
    /// What is wrong.
    pub message: String,
    /// What would make it right.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            path,
            line,
            rule,
            message,
            remedy,
        } = self;
        writeln!(f, "{path}:{line}: {rule}: {message}\n    remedy: {remedy}")
    }
}

/// What a run of the rules has found.
#[derive(Debug, Default)]
pub struct Report {
    /// Violations, in order of path and line.
    pub findings: Vec<Finding>,
    /// What could be improved and is no violation: ratchet entries that are too generous.
    pub notes: Vec<String>,
    /// Files looked at.
    pub files: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            write!(f, "{finding}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        writeln!(
            f,
            "tidy: {} files, {} findings",
            self.files,
            self.findings.len()
        )
    }
}

/// Loads the tree at `root` and applies every rule. With `bless`, lowers the ratchet first.
pub fn run(root: &Path, bless: bool) -> Result<Report, String> {
    let mut tree = Tree::load(root)?;
    let config = Config::parse(tree.text(CONFIG_PATH).unwrap_or(""))
        .map_err(|error| format!("{CONFIG_PATH}: {error}"))?;
    if bless {
        let lowered = Ratchet::parse(tree.text(RATCHET_PATH).unwrap_or(""))?
            .lowered(&size::measure(&tree))
            .to_string();
        std::fs::write(root.join(RATCHET_PATH), &lowered)
            .map_err(|error| format!("{RATCHET_PATH} cannot be written: {error}"))?;
        tree.insert(RATCHET_PATH, lowered);
    }
    check(&tree, &config)
}

/// Applies every rule to a tree.
pub fn check(tree: &Tree, config: &Config) -> Result<Report, String> {
    let ratchet = Ratchet::parse(tree.text(RATCHET_PATH).unwrap_or(""))?;
    let sizes = size::measure(tree);
    let mut findings = Vec::new();
    findings.extend(order::check(tree, config));
    findings.extend(size::check(&sizes, &ratchet));
    findings.extend(unsafety::check(tree, config));
    findings.extend(opening::check(tree));
    findings.extend(dead::check(tree));
    findings.extend(words::check(tree));
    findings.extend(links::check(tree));
    findings.extend(strays::check(tree, config));
    findings.sort();
    Ok(Report {
        findings,
        notes: ratchet.notes(&sizes),
        files: tree.len(),
    })
}
