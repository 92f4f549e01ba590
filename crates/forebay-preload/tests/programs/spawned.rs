//! Programs that `posix_spawn` starts on a file that it opens for them.

use std::ffi::CString;
use std::path::Path;

use crate::scene::Scene;
use crate::sys::*;

const ROUNDS: usize = 20;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    if role == "spawn-log" {
        spawn_log(dir);
        return true;
    }
    false
}

/// Starts `echo`, without the library, with its output at the end of a file; waits for it.
fn echo(path: &CString) {
    let environment = std::env::vars_os().filter(|(name, _)| name != "LD_PRELOAD");
    let environment: Vec<CString> = environment
        .filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            CString::new(format!("{name}={value}")).ok()
        })
        .collect();
    let mut pointers: Vec<_> = environment
        .iter()
        .map(|one| one.as_ptr().cast_mut())
        .collect();
    pointers.push(std::ptr::null_mut());
    let words = [
        c"/bin/echo".as_ptr().cast_mut(),
        c"a line".as_ptr().cast_mut(),
        std::ptr::null_mut(),
    ];
    // SAFETY: actions of ours, strings that end, and lists of them that end with null.
    unsafe {
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        let flags = libc::O_WRONLY | libc::O_APPEND;
        let added =
            libc::posix_spawn_file_actions_addopen(&raw mut actions, 1, path.as_ptr(), flags, 0);
        assert_eq!(added, 0);
        let mut pid = 0;
        let spawned = libc::posix_spawn(
            &raw mut pid,
            words[0],
            &raw const actions,
            std::ptr::null(),
            words.as_ptr(),
            pointers.as_ptr(),
        );
        assert_eq!(spawned, 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert_eq!(status, 0);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
}

/// A log that the program appends to, and its children in between.
fn spawn_log(dir: &Path) {
    let path = dir.join("log");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let log = open(&path, flags).expect("open");
    write(log, &[b'.'; 300_000]).expect("write");
    let mut wanted = vec![b'.'; 300_000];
    for _ in 0..ROUNDS {
        echo(&c(&path));
        write(log, b"and ours\n").expect("write");
        wanted.extend_from_slice(b"a line\nand ours\n");
    }
    assert_eq!(size_of(log), wanted.len() as i64);
    let found = pread(log, wanted.len(), 0).expect("read");
    assert_eq!(
        String::from_utf8_lossy(&found[300_000..]),
        String::from_utf8_lossy(&wanted[300_000..])
    );
    assert_eq!(found, wanted);
    close(log).expect("close");
}

#[test]
fn a_file_that_posix_spawn_opens_is_the_kernels() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("spawn", small);
        scene.play("spawn-log", "");
        assert!(scene.bytes_to_memory() > 0);
    }
}
