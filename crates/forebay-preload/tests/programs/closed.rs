//! Descriptors that are closed while other threads use them: a write is in the file, or hears that there is no such descriptor.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::scene::Scene;
use crate::sys::*;

const RECORD: usize = 4000;
const FILES: usize = 40;

type Way = (&'static str, fn(i32));

/// Ways to close a descriptor.
const WAYS: [Way; 3] = [
    ("close", |fd| close(fd).expect("close")),
    ("close_range", |fd| {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::close_range(fd as u32, fd as u32, 0) }, 0);
    }),
    ("closefrom", |fd| {
        // SAFETY: takes no memory.
        unsafe { closefrom(fd) }
    }),
];

unsafe extern "C" {
    fn closefrom(first: i32);
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "close-beside" => {
            let (way, flags) = argument.split_once(' ').expect("a way and flags");
            let (_, end) = WAYS.iter().find(|it| it.0 == way).expect("a way");
            close_beside(dir, *end, flags.parse().expect("flags"));
        }
        _ => return false,
    }
    true
}

/// A record that nobody takes for another one.
fn record(number: usize) -> Vec<u8> {
    let mut bytes = vec![b'.'; RECORD];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A thread writes records until it hears that the descriptor is closed, which another one does to it.
fn close_beside(dir: &Path, end: fn(i32), flags: i32) {
    for number in 0..FILES {
        let path = dir.join(number.to_string());
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT | flags).expect("a file");
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match write(fd, &record(written.load(Relaxed))) {
                        Ok(len) => assert_eq!(len, RECORD),
                        Err(errno) => break assert_eq!(errno, libc::EBADF),
                    }
                    written.fetch_add(1, Relaxed);
                }
            });
            std::thread::sleep(Duration::from_micros(1500 + number as u64 * 37));
            end(fd);
        });
        let bytes = std::fs::read(&path).expect("the file");
        let written = written.into_inner();
        assert_eq!(bytes.len(), written * RECORD, "bytes of file {number}");
        for (at, one) in bytes.chunks(RECORD).enumerate() {
            assert!(
                one == record(at),
                "record {at} of {written} in file {number} is another one"
            );
        }
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_close_beside_a_writer_loses_no_record() {
    for (way, _) in WAYS {
        for flags in [0, libc::O_APPEND] {
            for small in [0, 64 * 1024] {
                let scene = Scene::new("close-beside", small);
                scene.play("close-beside", &format!("{way} {flags}"));
                assert!(scene.bytes_to_memory() > 0);
            }
        }
    }
}

/// Writes to a descriptor when it ends, after the program.
const LIBRARY: &str = r#"
#include <unistd.h>
int late = -1;
__attribute__((destructor)) static void end(void) {
    if (late >= 0 && write(late, "trailer\n", 8) != 8) _exit(7);
}
"#;

/// Leaves a file of 40 MB open.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <unistd.h>
extern int late;
int main(void) {
    static char bytes[4000];
    late = open("late", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 10000; i++)
        if (write(late, bytes, sizeof bytes) != sizeof bytes) return 1;
    return 0;
}
"#;

#[test]
fn what_a_librarys_destructor_writes_is_there() {
    let scene = Scene::new("late", 0);
    for (name, text) in [("library.c", LIBRARY), ("program.c", PROGRAM)] {
        std::fs::write(scene.path(name), text).expect("a source");
    }
    let build = "cc -shared -fPIC -o liblate.so library.c && cc -o program program.c ./liblate.so";
    let mut shell = std::process::Command::new("sh");
    let built = shell.args(["-c", build]).current_dir(scene.dir.path());
    assert!(built.status().expect("a C compiler").success());
    let mut program = scene.command(scene.path("program").to_str().expect("text"));
    let ended = program.status().expect("a program");
    assert!(ended.success(), "{ended:?}");
    let bytes = std::fs::read(scene.path("late")).expect("a file");
    assert_eq!(bytes.len(), 40_000_008);
    assert!(bytes.ends_with(b"trailer\n"));
    assert!(scene.bytes_to_memory() > 0);
}
