//! What the library exports is what `calls/*.txt` say, and what programs import is in one of the lists.

#[path = "../library/mod.rs"]
mod library;

mod corpus;
mod headers;
mod lists;
mod symbols;

use std::collections::BTreeSet;
use std::path::Path;

use lists::{listed, section};
use symbols::{exported, stem};

#[test]
fn what_is_exported_is_listed() {
    let wrapped = listed("wrapped.txt");
    let exported = exported(&library::built());
    let missing: Vec<_> = wrapped.difference(&exported).collect();
    assert!(missing.is_empty(), "listed and not exported: {missing:?}");
    let unlisted: Vec<_> = exported.difference(&wrapped).collect();
    assert!(unlisted.is_empty(), "exported and not listed: {unlisted:?}");
}

#[test]
fn every_name_is_in_one_list() {
    let mut seen = BTreeSet::new();
    for file in lists::ALL {
        for name in listed(file) {
            assert!(seen.insert(name.clone()), "{name} is listed twice");
        }
    }
}

/// stdio has many names for one function: whichever a program calls, it is one of ours.
#[test]
fn all_names_of_stdio_are_listed() {
    let wrapped = listed("wrapped.txt");
    let of_stdio = ["fopen", "freopen", "fdopen", "fclose", "popen"].map(str::to_owned);
    let standard = section("wrapped.txt", "# stdio on a standard stream");
    let names = standard.iter().chain(&of_stdio);
    let stems: BTreeSet<_> = names.map(|name| stem(name)).collect();
    let all = exported(Path::new(&symbols::libc()));
    assert!(all.contains("printf"), "libc's names are not found");
    let missing: Vec<_> = all
        .iter()
        .filter(|name| stems.contains(stem(name)) && !wrapped.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
}
