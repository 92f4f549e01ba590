//! The library under test, for tests that load it or look at it.

use std::path::PathBuf;
use std::process::Command;

/// The library, which cargo does not build for a test by itself.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a name");
    let built_in = test.ancestors().nth(2).expect("target/debug/deps/...");
    let mut build = Command::new(env!("CARGO"));
    build
        .args([
            "build",
            "--quiet",
            "--package",
            "forebay-preload",
            "--target-dir",
        ])
        .arg(built_in.parent().expect("target/debug"))
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if built_in.ends_with("release") {
        build.arg("--release");
    }
    assert!(
        build.status().expect("cargo runs").success(),
        "the library does not build"
    );
    built_in.join("libforebay_preload.so")
}
