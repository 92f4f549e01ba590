//! The library as it is installed, and C programs that are built against it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use forebay_model::skipped;

/// What a session of these tests is opened with, beside its name.
pub const OPTIONS: [&str; 6] = [
    "memory=32MiB",
    "dirty_bytes_max=16MiB",
    "dirty_background=4MiB",
    "flush_after=5ms",
    "flush_interval=20ms",
    "coherence=close",
];

/// A name that no other session has.
pub fn session_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Relaxed);
    format!("test-capi-{}-{next}", std::process::id())
}

/// An empty directory.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the library is installed, by the script that users have: `include`, `lib` and `share` are below it.
pub fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let test = std::env::current_exe().expect("this program has a name");
        let mut install = Command::new(package().join("../../scripts/install-c.sh"));
        install
            .arg("--built")
            .arg(test.parent().expect("cargo builds both in one folder"))
            .env("DESTDIR", &place)
            .env("PREFIX", "/usr")
            .env_remove("LIBDIR");
        good(&mut install);
        place.join("usr")
    })
}

/// Runs a command that has to succeed.
pub fn good(command: &mut Command) -> Output {
    let output = command.output();
    let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    let also = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}\n{also}",
        output.status
    );
    output
}

/// The C compilers that are here, gcc at least. The calling test says which are missing.
pub fn compilers() -> Vec<&'static str> {
    let is_here = |name| Command::new(name).arg("--version").output().is_ok();
    assert!(
        is_here("gcc"),
        "gcc is missing (scripts/install-test-deps.sh installs it)"
    );
    let mut here = vec!["gcc"];
    if is_here("clang") {
        here.push("clang");
    } else {
        skipped("clang is missing (scripts/install-test-deps.sh installs it); done with gcc");
    }
    here
}

/// A C program of this package, built with warnings as errors, and what it takes to run it.
pub fn program(compiler: &str, source: &str, arguments: &[&str], into: &Path) -> Command {
    let name = Path::new(source).file_stem().expect("a name");
    let made = into.join(format!("{}-{compiler}", name.display()));
    let mut build = Command::new(compiler);
    build
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-o"])
        .arg(&made)
        .arg(package().join(source))
        .arg("-I")
        .arg(installed().join("include"));
    // After the sources: libraries are searched in the order of the command line.
    build.args(arguments);
    good(&mut build);
    ready(Command::new(made))
}

/// Finds the library, and nothing that the user has configured.
pub fn ready(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command
        .env("LD_LIBRARY_PATH", installed().join("lib"))
        .env("FOREBAY_CONFIG", "/dev/null");
    command
}

/// What links a program with the shared library.
pub fn shared() -> Vec<String> {
    let lib = installed().join("lib");
    vec![format!("-L{}", lib.display()), "-lforebay".into()]
}
