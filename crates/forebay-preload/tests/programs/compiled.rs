//! A program that has just been written can be executed at once.

use std::path::Path;

use crate::scene::{Scene, said};

/// Writes a program by `write`, makes it executable and runs it, as a compiler and a shell do. `cp` writes it in pieces.
#[test]
fn written_then_executed() {
    let program = Path::new("/bin/true");
    let size = std::fs::metadata(program).expect("a program").len();
    for small in [0, size / 2] {
        let scene = Scene::new("compiled", small);
        for turn in 0..10 {
            let script = format!(
                "dd if={} of=prog bs=3000 status=none && chmod +x prog && ./prog && ls -l prog >/dev/null && \
                 cat prog > copy{turn} && cmp prog copy{turn} && rm prog",
                program.display()
            );
            let mut shell = scene.command("/bin/sh");
            said(shell.arg("-c").arg(script).output().expect("a shell"));
        }
        assert!(scene.bytes_to_memory() > 0);
    }
}

/// A program that runs can be read, and is not kept from running by that.
#[test]
fn read_while_it_runs() {
    let scene = Scene::new("running", 0);
    let copy = scene.path("prog");
    // Not by this process: what another test forks meanwhile would have the file open for writing, until it executes something.
    let mut copies = std::process::Command::new("cp");
    said(
        copies
            .arg("/bin/sleep")
            .arg(&copy)
            .output()
            .expect("a copy"),
    );
    let mut shell = scene.command("/bin/sh");
    let script = r#"
        chmod +x prog || exit
        ./prog 1000 & runs=$!
        until [ "$(readlink /proc/$runs/exe)" = "$(realpath prog)" ]; do kill -0 $runs || exit; done
        cat prog | cmp - /bin/sleep && ./prog 0; ended=$?
        kill $runs; exit $ended"#;
    said(shell.arg("-c").arg(script).output().expect("a shell"));
}
