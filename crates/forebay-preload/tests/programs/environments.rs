//! Programs that are executed with an environment of their own.

use crate::scene::{Scene, said};

/// Says by each way to execute a program what the new one has in its environment: the library, a session, something of the
/// program's.
const WAYS: &str = r#"
import os, subprocess
say = ["/bin/sh", "-c", "echo $0 ${LD_PRELOAD:+library} ${FOREBAY_SESSION:+session} ${OWN:-}"]
def forked(how):
    pid = os.fork()
    if pid == 0:
        how()
        os._exit(9)
    assert os.waitpid(pid, 0)[1] == 0
def spawned(pid):
    assert os.waitpid(pid, 0)[1] == 0
def cleared(how):
    os.environ.clear()
    how()
forked(lambda: os.execve(say[0], say + ["execve"], {}))
forked(lambda: os.execve(say[0], say + ["with-own"], {"OWN": "own"}))
forked(lambda: os.execve(os.open(say[0], os.O_RDONLY), say + ["fexecve"], {}))
forked(lambda: cleared(lambda: os.execv(say[0], say + ["execv"])))
spawned(os.posix_spawn(say[0], say + ["spawn"], {}))
spawned(os.posix_spawnp("sh", say + ["spawnp"], {}))
subprocess.run(say + ["vfork"], env={}, check=True)
subprocess.run(["/usr/bin/env", "-i", *say, "env"], check=True)
subprocess.run(["/usr/bin/env", "-u", "LD_PRELOAD", *say, "unset"], check=True)
forked(lambda: os.execve(say[0], say + ["named"], {"FOREBAY_SESSION": "mine"}))
forked(lambda: os.execve(say[0], say + ["many"], {f"N{n}": "" for n in range(500)}))
"#;

#[test]
fn a_stripped_environment_is_repaired_and_a_choice_respected() {
    let scene = Scene::new("environments", 0);
    let said = said(
        scene
            .command("python3")
            .args(["-c", WAYS])
            .output()
            .expect("python3"),
    );
    let lines: Vec<_> = said.lines().map(str::trim_end).collect();
    let expected = [
        "execve library session",
        "with-own library session own",
        "fexecve library session",
        "execv library session",
        "spawn library session",
        "spawnp library session",
        "vfork library session",
        "env library session",
        "unset  session",
        "named  session",
        "many",
    ];
    let tidy = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(lines, expected.map(tidy));
}

/// It does not only have the library: the session's memory takes what it writes, with the options that were given.
#[test]
fn a_program_with_a_bare_environment_is_in_the_session() {
    let scene = Scene::new("bare", 0);
    let mut bare = scene.command("/usr/bin/env");
    bare.args([
        "-i",
        "/bin/dd",
        "if=/dev/zero",
        "of=a",
        "bs=50000",
        "count=7",
        "status=none",
    ]);
    said(bare.output().expect("dd"));
    assert_eq!(scene.bytes_to_memory(), 350_000);
    assert_eq!(
        std::fs::read(scene.path("a")).expect("a file"),
        [0; 350_000]
    );
}

/// What is no environment is the kernel's to judge.
#[test]
fn an_environment_that_is_no_memory_is_refused() {
    const SCRIPT: &str = r#"
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
argv = (ctypes.c_char_p * 2)(b"true", None)
for environment in (1, 1 << 45):
    assert libc.execve(b"/bin/true", argv, ctypes.c_void_p(environment)) == -1
    assert ctypes.get_errno() == errno.EFAULT, ctypes.get_errno()
"#;
    let scene = Scene::new("no-memory", 0);
    said(
        scene
            .command("python3")
            .args(["-c", SCRIPT])
            .output()
            .expect("python3"),
    );
}
