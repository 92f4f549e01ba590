//! Every I/O function of libc's that one of many programs imports is in one of the lists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::headers;
use crate::lists::{self, listed, words};
use crate::symbols::{self, exported, stem};

/// Where libraries lie that programs need.
const LIBRARIES: [&str; 5] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];
/// Parts of the C library itself, which may use each other past all hooks.
const OF_LIBC: [&str; 8] = [
    "libc.so",
    "ld-linux",
    "libpthread.so",
    "libm.so",
    "libdl.so",
    "librt.so",
    "libresolv.so",
    "libnss",
];

/// Those that a pattern of the corpus names.
fn found(pattern: &str) -> Vec<PathBuf> {
    if pattern.contains('/') {
        return below(Path::new("/"), pattern.trim_start_matches('/'));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut places = path.split(':').map(|dir| Path::new(dir).join(pattern));
    places.find(|file| file.is_file()).into_iter().collect()
}

fn below(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let (part, rest) = pattern.split_once('/').unwrap_or((pattern, ""));
    let here: Vec<PathBuf> = match part.split_once('*') {
        None => vec![dir.join(part)],
        Some((before, after)) => {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let fits = |name: &str| {
                name.len() >= part.len() - 1 && name.starts_with(before) && ends(name, after)
            };
            let paths = entries.filter(|entry| fits(&entry.file_name().to_string_lossy()));
            paths.map(|entry| entry.path()).collect()
        }
    };
    if rest.is_empty() {
        return here.into_iter().filter(|path| path.is_file()).collect();
    }
    here.iter().flat_map(|dir| below(dir, rest)).collect()
}

/// Whether a name ends so; a `*` in it stands for anything.
fn ends(name: &str, end: &str) -> bool {
    match end.split_once('*') {
        None => name.ends_with(end),
        Some((middle, end)) => name.contains(middle) && name.ends_with(end),
    }
}

/// Each name that is imported, with one of those that do; and how many files have been looked at.
fn imports() -> (BTreeMap<String, PathBuf>, usize) {
    let mut to_see: Vec<PathBuf> = words("corpus.txt").iter().flat_map(|p| found(p)).collect();
    let (mut seen, mut imports) = (BTreeSet::new(), BTreeMap::new());
    while let Some(file) = to_see.pop() {
        let Ok(file) = file.canonicalize() else {
            continue;
        };
        if !seen.insert(file.clone()) {
            continue;
        }
        let Some(dynamic) = symbols::of(&file) else {
            continue;
        };
        for name in dynamic.imported {
            imports.entry(name).or_insert_with(|| file.clone());
        }
        let needed = dynamic.needed.iter();
        let needed = needed.filter(|name| !OF_LIBC.iter().any(|of| name.starts_with(of)));
        to_see.extend(needed.filter_map(|name| {
            let mut places = LIBRARIES.iter().map(|dir| Path::new(dir).join(name));
            places.find(|path| path.is_file())
        }));
    }
    (imports, seen.len())
}

/// Which of some names are I/O functions that no list has.
fn unlisted<'a>(
    names: impl Iterator<Item = &'a String>,
    declared: &BTreeSet<String>,
    listed: &BTreeSet<String>,
) -> Vec<&'a String> {
    let is_io = |name: &str| declared.contains(name) || declared.contains(stem(name));
    names
        .filter(|name| is_io(name) && !listed.contains(*name))
        .collect()
}

#[test]
fn what_programs_import_is_listed() {
    let (imports, files) = imports();
    assert!(files > 100, "only {files} programs and libraries are found");
    let libc = exported(Path::new(&symbols::libc()));
    let declared = headers::declared();
    assert!(declared.len() > 500, "only {} are declared", declared.len());
    let all: BTreeSet<String> = lists::ALL.iter().flat_map(|file| listed(file)).collect();
    let of_libc = || imports.keys().filter(|name| libc.contains(*name));
    let missing = unlisted(of_libc(), &declared, &all);
    let missing: Vec<_> = missing
        .iter()
        .map(|name| (*name, &imports[*name]))
        .collect();
    assert!(missing.is_empty(), "in no list: {missing:#?}");
    // Whatever a list lacks is missed.
    let without: BTreeSet<String> = listed("unrelated.txt");
    let canary = unlisted(of_libc(), &declared, &without);
    for name in ["read", "fopen64", "rename", "__open64_2"] {
        assert!(
            canary.iter().any(|missed| *missed == name),
            "{name} is not missed"
        );
    }
}

/// Whatever is imported elsewhere: what the headers declare and libc has.
#[test]
fn what_headers_declare_is_listed() {
    let libc = exported(Path::new(&symbols::libc()));
    let declared = headers::declared();
    let all: BTreeSet<String> = lists::ALL.iter().flat_map(|file| listed(file)).collect();
    let missing = unlisted(libc.iter(), &declared, &all);
    assert!(missing.is_empty(), "in no list: {missing:?}");
}
