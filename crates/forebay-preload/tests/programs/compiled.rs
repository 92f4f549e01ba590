//! A program that has just been written can be executed at once.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::deaths::keeper_process;
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

/// Writes a program, and once it is told so closes it and executes it in two ways.
const WRITES_AND_EXECUTES: &str = "\
import os, subprocess, sys
data = open('/bin/true', 'rb').read()
fd = os.open('prog', os.O_CREAT | os.O_WRONLY, 0o755)
for at in range(0, len(data), 3000): os.write(fd, data[at:at + 3000])
print('written', flush=True)
sys.stdin.readline()
os.close(fd)
print('run', subprocess.run(['./prog']).returncode, flush=True)
pid = os.posix_spawn('./prog', ['./prog'], os.environ)
print('spawned', os.waitpid(pid, 0)[1])
";

/// A keeper that is stopped has the program open for writing, though everybody else has closed it.
#[test]
fn written_then_executed_while_the_keeper_is_stopped() {
    let mut scene = Scene::new("compiled-stopped", 0);
    drop(scene.session.take());
    let mut keeper = keeper_process(&scene.name);
    let signal = |signal| {
        // SAFETY: takes no memory; a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(keeper.id() as i32, signal) }, 0);
    };
    let mut python = scene.command("python3");
    python.args(["-c", WRITES_AND_EXECUTES]);
    python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().expect("a program");
    let mut lines = BufReader::new(python.stdout.take().expect("output")).lines();
    let mut said = || lines.next().expect("a line").expect("text");
    assert_eq!(said(), "written");
    // What waits in a lane the program takes back itself.
    std::thread::sleep(Duration::from_millis(200));
    signal(libc::SIGSTOP);
    let mut input = python.stdin.take().expect("input");
    writeln!(input, "go").expect("a line");
    std::thread::sleep(Duration::from_secs(1));
    signal(libc::SIGCONT);
    assert_eq!([said(), said()], ["run 0", "spawned 0"]);
    assert!(python.wait().expect("its end").success());
    keeper.kill().expect("a keeper");
    keeper.wait().expect("its end");
}

/// Compiles and runs programs, and writes one in two pieces, the second of which comes when the keeper has the file.
const COMPILES_AND_RUNS: &str = r#"
    cp /bin/true whole
    for turn in $(seq 12); do
        echo "int main(void) { return $turn; }" >prog.c
        cc -o prog prog.c || exit
        ./prog; [ $? = $turn ] || exit 1
        { head -c 9000 /bin/true; sleep 0.05; tail -c +9001 /bin/true; } >whole
        ./whole || exit 1
    done"#;

/// The keeper gets on for 30 ms at a time.
#[test]
fn compiled_and_run_while_the_keeper_is_stopped_again_and_again() {
    let mut scene = Scene::new("compiled-often", 0);
    drop(scene.session.take());
    let mut keeper = keeper_process(&scene.name);
    let mut shell = scene.command("/bin/sh");
    let shell = shell.args(["-c", COMPILES_AND_RUNS]);
    let shell = shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut runs = shell.spawn().expect("a shell");
    let mut stops = 0;
    while runs.try_wait().expect("a state").is_none() {
        for (signal, ms) in [(libc::SIGSTOP, 120), (libc::SIGCONT, 30)] {
            // SAFETY: takes no memory; a child that has not been waited for.
            assert_eq!(unsafe { libc::kill(keeper.id() as i32, signal) }, 0);
            std::thread::sleep(Duration::from_millis(ms));
        }
        stops += 1;
    }
    said(runs.wait_with_output().expect("an end"));
    assert!(stops > 5, "{stops} stops");
    keeper.kill().expect("a keeper");
    keeper.wait().expect("its end");
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
