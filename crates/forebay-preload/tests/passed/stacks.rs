//! Programs that come with more than themselves: sanitizers, other preloaded libraries. By themselves and with the library, before and after
//! theirs, they say and leave the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::here;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/passed");

/// Compiles one source. `None`: the compiler cannot do that here.
fn compiled(dir: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
    let to = dir.join(source).with_extension("built");
    let mut command = Command::new("cc");
    command.args(["-O1", "-g", "-w", "-pthread"]).args(options);
    command.arg("-o").arg(&to);
    command.arg(Path::new(SOURCES).join(source));
    let output = command.output().expect("cc runs");
    output.status.success().then_some(to)
}

/// What a program says, and the file that it leaves.
fn run(program: &Path, dir: &Path, preloads: &[&Path], session: &str) -> (String, Vec<u8>) {
    std::fs::create_dir_all(dir).expect("a directory");
    let paths: Vec<_> = preloads
        .iter()
        .map(|path| path.to_str().expect("text"))
        .collect();
    let output = Command::new(program)
        .args([Path::new("case"), dir])
        .env_remove("FOREBAY_TEST_DIRS")
        .env("LD_PRELOAD", paths.join(":"))
        .env("FOREBAY_SMALL_FILE_BYTES", "64KiB")
        .env("FOREBAY_LARGE_FILE_BYTES", "0")
        .env("FOREBAY_SESSION", session)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .expect("a program");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{errors}", output.status);
    (said, std::fs::read(dir.join("file")).expect("a file"))
}

/// Runs a program by itself and with the library in each of these places among others.
fn same(name: &str, program: &Path, dir: &Path, others: &[&Path], places: &[usize]) {
    let name = format!("test-stacks-{name}-{}", std::process::id());
    let session = forebay::Session::open(super::config(&name)).expect("a session");
    let plain = run(program, &dir.join("plain"), others, "none");
    for &place in places {
        let mut preloads = others.to_vec();
        preloads.insert(place, &super::LIBRARY);
        let before = session.stats().scrap_bytes;
        let ours = run(
            program,
            &dir.join(format!("ours-{place}")),
            &preloads,
            &name,
        );
        assert_eq!(ours.0, plain.0);
        assert!(ours.1 == plain.1, "other bytes");
        let in_memory = session.stats().scrap_bytes - before;
        assert!(in_memory > 100_000, "the engine has had {in_memory} bytes");
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// That of the compiler, which wants to be first in every program. It is none of its own that it looks for where it is linked statically.
#[test]
fn programs_with_sanitizers() {
    let kinds: [(&str, &[&str]); 3] = [
        ("address", &["-fsanitize=address"]),
        ("static", &["-fsanitize=address", "-static-libasan"]),
        ("undefined", &["-fsanitize=undefined"]),
    ];
    for (name, options) in kinds {
        let dir = place();
        match compiled(dir.path(), "sanitized.c", options) {
            Some(program) => same(name, &program, dir.path(), &[], &[0]),
            None => here::skipped(format!("the compiler has no sanitizer: {options:?}")),
        }
    }
}

/// An allocator, with calls on files of its own.
#[test]
fn other_libraries_are_preloaded() {
    let dir = place();
    let program = compiled(dir.path(), "sanitized.c", &[]).expect("a program");
    let other = compiled(
        dir.path(),
        "stacked.c",
        &["-shared", "-fPIC", "-fno-builtin"],
    );
    let other = other.expect("a library");
    same("others", &program, dir.path(), &[&other], &[0, 1]);
}
