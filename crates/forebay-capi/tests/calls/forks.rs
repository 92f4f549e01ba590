//! A C program that forks: what a child may do with what its parent had, and by itself.

use crate::built::{OPTIONS, directory, good, program, session_name, shared};

#[test]
fn children_are_refused_their_parents_handles_and_have_their_own() {
    let dir = directory();
    let arguments = shared();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.push("-pthread");
    let mut forks = program("gcc", "tests/forks.c", &arguments, dir.path());
    forks.arg(dir.path().join("data"));
    forks.arg(session_name()).args(OPTIONS);
    good(&mut forks);
    let bytes = std::fs::read(dir.path().join("data")).expect("there");
    assert_eq!(&bytes[..12], b"parent child");
}
