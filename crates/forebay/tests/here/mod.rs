//! Where tests run, what they say when they cannot run there, and seeds that nobody has tried yet.
#![allow(dead_code)]

use std::path::PathBuf;

pub use forebay_model::skipped;

/// The directories that `FOREBAY_TEST_DIRS` names, separated by colons, or the build's own.
pub fn places() -> Vec<PathBuf> {
    let named = std::env::var("FOREBAY_TEST_DIRS").unwrap_or_default();
    let named = named.split(':').filter(|dir| !dir.is_empty());
    let dirs: Vec<PathBuf> = named.map(PathBuf::from).collect();
    if dirs.is_empty() {
        return vec![PathBuf::from(env!("CARGO_TARGET_TMPDIR"))];
    }
    dirs
}

/// Whether somebody has said where to run.
pub fn is_told_where() -> bool {
    std::env::var("FOREBAY_TEST_DIRS").is_ok_and(|dirs| !dirs.is_empty())
}

/// An empty directory in each of the places.
pub fn directories() -> Vec<tempfile::TempDir> {
    let made = places().into_iter().map(tempfile::tempdir_in);
    made.map(|dir| dir.expect("a test directory")).collect()
}

/// An empty directory in the first of the places.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(&places()[0]).expect("a test directory")
}

/// `usual`, or what this environment variable says.
pub fn number(variable: &str, usual: u64) -> u64 {
    let said = std::env::var(variable).ok();
    said.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// `count` seeds that nobody has tried yet, or the one that `FOREBAY_TEST_SEED` says. Whoever fails prints it.
pub fn fresh_seeds(count: u64) -> std::ops::Range<u64> {
    let told = std::env::var_os("FOREBAY_TEST_SEED").is_some();
    let first = number("FOREBAY_TEST_SEED", forebay_model::fresh_seed());
    first..first + if told { 1 } else { count }
}

/// The fixed seeds, then `fresh` new ones; with `FOREBAY_TEST_SEED` only that.
pub fn seeds(fixed: std::ops::Range<u64>, fresh: u64) -> impl Iterator<Item = u64> {
    let told = std::env::var_os("FOREBAY_TEST_SEED").is_some();
    let fixed = if told { 0..0 } else { fixed };
    fixed.chain(fresh_seeds(fresh))
}
