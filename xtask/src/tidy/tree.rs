//! The files that the rules look at: the tracked text files of a working tree, held in memory.
//!
//! In a git checkout these are the files git tracks or would track; elsewhere (a source archive, a
//! test's temporary tree) everything but build output. Files that are not text
//! are left out, but links may still point at them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::source::Source;

/// A working tree. Paths are relative to its root and use `/`.
#[derive(Debug, Default)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    others: BTreeSet<String>,
}

impl Tree {
    /// Reads the tree at `root`.
    pub fn load(root: &Path) -> Result<Tree, String> {
        let paths = match tracked(root) {
            Some(paths) => paths,
            None => walk(root)?,
        };
        let mut tree = Tree::default();
        for path in paths {
            // Deleted but not yet committed: git lists it, the tree no longer has it.
            let Ok(bytes) = fs::read(root.join(&path)) else {
                continue;
            };
            match String::from_utf8(bytes) {
                Ok(text) if !text.contains('\0') => tree.insert(&path, text),
                _ => {
                    tree.others.insert(path);
                }
            }
        }
        Ok(tree)
    }

    /// Adds or replaces a text file.
    pub fn insert(&mut self, path: &str, text: String) {
        self.texts.insert(path.to_string(), text);
    }

    /// Text of one file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// All text files, in order of path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// All files that are not text, in order of path.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str)
    }

    /// All Rust files, taken apart.
    pub fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.texts()
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| Source::new(path, text))
    }

    /// Whether a file or folder of this name is there.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        let names = || self.texts.keys().chain(&self.others);
        path.is_empty() || names().any(|name| name == path || name.starts_with(&folder))
    }

    /// Number of text files.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is no text file at all.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

/// Joins a path to a folder (with its slash), taking `.` and `..` out.
pub fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// What git tracks or would track; `None` where `root` is not the top of a checkout.
fn tracked(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(
        names
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(str::to_string)
            .collect(),
    )
}

fn walk(root: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let at = root.join(&folder);
        let entries = fs::read_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "target" || name == ".git" {
                continue;
            }
            let path = folder.join(name);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if kind.is_file() => paths.push(path.to_string_lossy().into_owned()),
                _ => {}
            }
        }
    }
    paths.sort();
    Ok(paths)
}
