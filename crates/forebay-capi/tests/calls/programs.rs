//! Programs in C and C++ that are built against what is installed, and run.

use std::path::Path;
use std::process::Command;

use forebay_capi::session::forebay_session_close;

use crate::built::{
    OPTIONS, compilers, directory, good, installed, program, ready, session_name, shared,
};
use crate::model::{Calls, Function, Request};
use crate::own::open_session;
use crate::remote::Remote;

/// The example copies a file, which an outsider then compares.
fn copies(mut copy: Command) {
    let dir = directory();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let mut bytes: Vec<u8> = (0..700_001u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(&from, &bytes).expect("written");
    copy.arg(&from).arg(&to).args(OPTIONS);
    copy.arg(format!("session={}", session_name()));
    let output = good(&mut copy);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("copied by forebay\n"), "{said}");
    bytes.extend(b"copied by forebay\n");
    let copied = std::fs::read(&to).expect("there");
    assert!(
        copied == bytes,
        "{} bytes, {} wanted",
        copied.len(),
        bytes.len()
    );
}

fn as_strs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

const EXAMPLE: &str = "examples/copy.c";

#[test]
fn the_example_with_every_compiler() {
    for compiler in compilers() {
        let dir = directory();
        let mut arguments = vec!["-std=c99".to_owned(), "-pedantic".to_owned()];
        arguments.extend(shared());
        copies(program(compiler, EXAMPLE, &as_strs(&arguments), dir.path()));
    }
}

#[test]
fn the_example_under_a_sanitizer() {
    let dir = directory();
    let mut arguments = vec!["-fsanitize=address,undefined".to_owned()];
    arguments.extend(shared());
    let mut copy = program("gcc", EXAMPLE, &as_strs(&arguments), dir.path());
    copy.env(
        "ASAN_OPTIONS",
        "detect_stack_use_after_return=1:strict_string_checks=1",
    );
    copies(copy);
}

/// Numbers that are saved from a window, in whole blocks and a rest.
fn saves(compiler: &str, options: &[&str]) {
    let dir = directory();
    let libraries = shared();
    let arguments = [options, &as_strs(&libraries)].concat();
    let mut save = program(compiler, "examples/save.c", &arguments, dir.path());
    let to = dir.path().join("to");
    save.arg(&to).arg("300000").args(OPTIONS);
    save.arg(format!("session={}", session_name()));
    let output = good(&mut save);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "2097152 bytes without a copy\n");
    let saved = std::fs::read(&to).expect("there");
    let numbers = saved
        .chunks(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
    assert!(numbers.eq(0..300_000));
}

#[test]
fn the_example_of_windows() {
    for compiler in compilers() {
        saves(compiler, &["-std=c99", "-pedantic"]);
    }
    saves("gcc", &["-fsanitize=address,undefined"]);
}

/// What `pkg-config` would say is read by hand: it need not be here.
#[test]
fn the_example_linked_statically() {
    let pc = std::fs::read_to_string(installed().join("lib/pkgconfig/forebay.pc")).expect("there");
    assert!(pc.contains("prefix=/usr\nlibdir=/usr/lib\n"), "{pc}");
    let private = pc
        .lines()
        .find_map(|line| line.strip_prefix("Libs.private: "));
    let archive = installed().join("lib/libforebay.a").display().to_string();
    let mut arguments = vec![archive.as_str()];
    arguments.extend(private.expect("a line").split(' '));
    let dir = directory();
    copies(program("gcc", EXAMPLE, &arguments, dir.path()));
}

#[test]
fn cplusplus_includes_the_header() {
    let dir = directory();
    let source = dir.path().join("version.cc");
    let text = "#include <forebay.h>\n#include <cstdio>\n\
        int main() { forebay_stats s{}; s.size = sizeof s;\n\
        bool is_none = forebay_session_stats(nullptr, &s) == -1;\n\
        std::puts(forebay_version()); return is_none ? 0 : 1; }\n";
    std::fs::write(&source, text).expect("written");
    let made = dir.path().join("version");
    let mut build = Command::new("c++");
    build
        .args([
            "-std=c++11",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ])
        .arg(&made)
        .arg(&source)
        .arg("-I")
        .arg(installed().join("include"))
        .args(shared());
    good(&mut build);
    let output = good(&mut ready(Command::new(&made)));
    let version = format!("{}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
}

/// What programs look for at run time is there by that name.
#[test]
fn names_of_the_library_lead_to_it() {
    let lib = installed().join("lib");
    let real = std::fs::canonicalize(lib.join("libforebay.so")).expect("a link");
    assert_eq!(
        std::fs::canonicalize(lib.join("libforebay.so.0")).expect("a link"),
        real
    );
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        real.ends_with(format!("libforebay.so.{version}")),
        "{}",
        real.display()
    );
    assert!(Path::new(&installed().join("share/man/man3/forebay.3")).exists());
}

/// What a program has written and not closed outlives it: the next session of that name writes it out.
#[test]
fn what_a_killed_program_has_written_is_saved() {
    let dir = directory();
    let mut driver = Remote::new(dir.path());
    let mut request = Request::new(Function::Open, 0, 0);
    request.flags = libc::O_RDWR | libc::O_CREAT;
    assert_eq!(driver.call(&request).result, 0);
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 241) as u8).collect();
    for (i, part) in bytes.chunks(1999).enumerate() {
        let mut request = Request::new(Function::Pwrite, 0, 0);
        (request.offset, request.bytes) = (i as i64 * 1999, part.to_vec());
        assert_eq!(driver.call(&request).result, part.len() as i64);
    }
    let session = driver.session.clone();
    driver.kill();
    let session = open_session(&session);
    // SAFETY: an open session.
    assert_eq!(unsafe { forebay_session_close(session) }, 0);
    let saved = std::fs::read(dir.path().join("file-0")).expect("there");
    assert!(
        saved == bytes,
        "{} bytes, {} wanted",
        saved.len(),
        bytes.len()
    );
}
