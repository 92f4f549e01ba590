//! The functions that the headers of `calls/headers.txt` declare, as the compiler reads them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use crate::lists::words;

/// Their names, and those that the linker is told instead.
pub fn declared() -> BTreeSet<String> {
    let headers = words("headers.txt");
    let mut source = "#define _GNU_SOURCE\n#define _FORTIFY_SOURCE 2\n".to_owned();
    for header in &headers {
        writeln!(source, "#include <{header}>").expect("text");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("headers.c");
    std::fs::write(&file, source).expect("a file");
    let read = Command::new("cc").args(["-O2", "-E"]).arg(&file).output();
    let read = read.expect("cc runs");
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    names(&String::from_utf8_lossy(&read.stdout), &headers)
}

/// The names in preprocessed text that come from the headers, or from parts of theirs (`bits/...`).
fn names(text: &str, headers: &[String]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut files: Vec<String> = Vec::new();
    let mut statement = String::new();
    for line in text.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            follow(marker, &mut files);
            continue;
        }
        statement.push_str(line);
        statement.push(' ');
        if !line.contains([';', '}']) {
            continue;
        }
        let owner = files.iter().rev().find(|file| !file.starts_with("bits/"));
        if owner.is_some_and(|owner| headers.contains(owner)) {
            for part in statement.split(';') {
                names.extend(name(part).map(str::to_owned));
                names.extend(linked_as(part).map(str::to_owned));
            }
        }
        statement.clear();
    }
    names
}

/// A line that says where the text is from: `number "file" flags`; 1 enters it, 2 comes back to it.
fn follow(marker: &str, files: &mut Vec<String>) {
    let mut parts = marker.splitn(3, '"').skip(1);
    let (file, flags) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let short = file
        .rsplit_once("include/")
        .map_or(file, |(_, short)| short);
    let short = short.strip_prefix("x86_64-linux-gnu/").unwrap_or(short);
    let has = |flag| flags.split_whitespace().any(|word| word == flag);
    if has("2") {
        files.pop();
    } else if has("1") {
        files.push(short.to_owned());
    }
}

/// The name before a declaration's first bracket.
fn name(declaration: &str) -> Option<&str> {
    let (before, _) = declaration.split_once('(')?;
    let name = before.trim_end().rsplit([' ', '*']).next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (before.contains("extern") && is_name && !name.starts_with("__attribute")).then_some(name)
}

/// The name that `__asm__ ("" "name")` gives it.
fn linked_as(declaration: &str) -> Option<&str> {
    let (_, after) = declaration.split_once("__asm__")?;
    let (_, after) = after.split_once("\"\" \"")?;
    after.split_once('"').map(|(name, _)| name)
}

#[test]
fn names_come_from_the_headers_that_are_asked_for() {
    let text = "# 1 \"/usr/include/unistd.h\" 1 3 4\n\
                extern int\n fsync (int fd) __attribute__ ((x));\n\
                extern int *a (int); extern int b (int) __asm__ (\"\" \"b_64\");\n\
                # 1 \"/usr/include/x86_64-linux-gnu/bits/more.h\" 1 3 4\nextern int more (void);\n\
                # 9 \"/usr/include/unistd.h\" 2 3 4\n\
                # 1 \"/usr/include/time.h\" 1 3 4\nextern int time (int);\n";
    let found = names(text, &["unistd.h".to_owned()]);
    let found: Vec<_> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["a", "b", "b_64", "fsync", "more"]);
}
