//! Files on the standard descriptors of a program that goes on: written and read by calls, and by stdio.

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::scene::{Scene, said};
use crate::sys::*;

const LEN: usize = 100_000;
/// Files that are the standard output, one after the other.
const FILES: usize = 200;

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stdin: *mut libc::FILE;
    fn putchar_unlocked(byte: i32) -> i32;
    fn fwrite_unlocked(
        bytes: *const libc::c_void,
        size: usize,
        count: usize,
        stream: *mut libc::FILE,
    ) -> usize;
}

/// Moves a file onto a standard descriptor, for as long as `act` runs.
fn on_standard<T>(path: &Path, standard: i32, flags: i32, act: impl FnOnce() -> T) -> T {
    let fd = open(path, flags).expect("open");
    // SAFETY: take no memory.
    unsafe {
        let saved = libc::fcntl(standard, libc::F_DUPFD_CLOEXEC, 50);
        assert_eq!(libc::dup2(fd, standard), standard);
        close(fd).expect("close");
        let done = act();
        assert_eq!(libc::dup2(saved, standard), standard);
        done
    }
}

fn write_parts(fd: i32) {
    for part in 0..3 {
        assert_eq!(write(fd, &pattern(part, LEN)), Ok(LEN));
    }
}

/// Says a line by stdio, by way of one function or another.
fn say(how: &str) {
    // SAFETY: libc's own stream, strings and bytes of ours.
    unsafe {
        match how {
            "puts" => assert!(libc::puts(c"stdio".as_ptr()) >= 0),
            "fwrite" => {
                assert_eq!(libc::fwrite(c"stdio\n".as_ptr().cast(), 1, 6, stdout), 6);
            }
            "putchar" => {
                for byte in b"stdio\n" {
                    assert_eq!(putchar_unlocked(i32::from(*byte)), i32::from(*byte));
                }
            }
            _ => {
                let (format, word) = (c"%s%.0f".as_ptr(), c"stdio".as_ptr());
                assert_eq!(libc::printf(format, word, 0.0), 6);
                assert_eq!(libc::fseek(stdout, -1, libc::SEEK_CUR), 0);
                assert_eq!(libc::fputc(i32::from(b'\n'), stdout), i32::from(b'\n'));
            }
        }
        assert_eq!(libc::fflush(std::ptr::null_mut()), 0);
    }
}

/// Says a line by a stream that is not libc's own one of the standard output, but of its descriptor.
fn say_by_another_stream() {
    // SAFETY: a stream of ours, which is left open as its descriptor is; strings.
    unsafe {
        let stream = libc::fdopen(1, c"w".as_ptr());
        assert!(!stream.is_null());
        assert!(libc::fputs(c"stdio\n".as_ptr(), stream) >= 0);
        assert_eq!(libc::fflush(stream), 0);
    }
}

/// Does `act` while another thread uses a stream that is none of the standard ones, again and again.
fn while_another_uses_stdio(act: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // SAFETY: strings of ours; the stream is this thread's alone.
            unsafe {
                let other = libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr());
                assert!(!other.is_null());
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(fwrite_unlocked(c"1".as_ptr().cast(), 1, 1, other), 1);
                }
                libc::fclose(other);
            }
        });
        act();
        done.store(true, Ordering::Relaxed);
    });
}

/// Reads a line by stdio.
fn line() -> String {
    let mut line = [0u8; 20];
    // SAFETY: libc's own stream, bytes of ours.
    unsafe {
        assert!(!libc::fgets(line.as_mut_ptr().cast(), 20, stdin).is_null());
    }
    let line = CStr::from_bytes_until_nul(&line).expect("text");
    line.to_string_lossy().into_owned()
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let path = dir.join("a");
    let flags = libc::O_RDWR | libc::O_CREAT;
    match role {
        "standard-calls" => {
            let fd = open(&path, flags).expect("open");
            write_parts(fd);
            on_standard(&path, 1, flags, || write_parts(1));
            on_standard(&path, 0, libc::O_RDONLY, || {
                assert_eq!(read(0, LEN), Ok(pattern(0, LEN)));
                assert_eq!(read(0, LEN), Ok(pattern(1, LEN)));
            });
            assert_eq!(write(fd, b"managed"), Ok(7));
            close(fd).expect("close");
        }
        "standard-mixed" => on_standard(&path, 1, flags, || {
            write_parts(1);
            say(argument);
            assert_eq!(write(1, b"after"), Ok(5));
        }),
        "standard-beside" => while_another_uses_stdio(|| {
            for file in 0..FILES {
                on_standard(&dir.join(file.to_string()), 1, flags, || {
                    assert_eq!(write(1, &pattern(1, LEN)), Ok(LEN));
                    say("puts");
                });
            }
        }),
        "standard-apart" => {
            let fd = open(&path, flags).expect("open");
            write_parts(fd);
            on_standard(&path, 0, libc::O_RDWR, || {
                let other = dir.join("b");
                on_standard(&other, 1, flags, || {
                    write_parts(1);
                    say_by_another_stream();
                    assert_eq!(write(1, b"after"), Ok(5));
                });
                ["fwrite", "puts", "putchar"]
                    .iter()
                    .for_each(|how| say(how));
                assert_eq!(write(0, &pattern(3, LEN)), Ok(LEN));
            });
        }
        "standard-input" => {
            let fd = open(&path, flags).expect("open");
            write_parts(fd);
            on_standard(&path, 0, libc::O_RDWR, || {
                assert_eq!(read(0, 10), Ok(pattern(0, 10)));
                assert_eq!(write(0, b"stdio\nrest"), Ok(10));
                assert_eq!(seek(0, 10, libc::SEEK_SET), Ok(10));
                assert_eq!(line(), "stdio\n");
            });
        }
        _ => return false,
    }
    true
}

/// What programs do that write to their standard output by calls: the file stays managed.
#[test]
fn calls_on_standard_descriptors() {
    let scene = Scene::new("standard-calls", 0);
    scene.play("standard-calls", "");
    assert!(scene.bytes_to_memory() >= 6 * LEN as u64 + 7);
    let bytes = std::fs::read(scene.path("a")).expect("a file");
    assert!(bytes[..3 * LEN] == [0, 1, 2].map(|part| pattern(part, LEN)).concat());
    assert_eq!(&bytes[3 * LEN..], b"managed");
}

/// With the first use of the stream, whatever call that is, it is the kernel's.
#[test]
fn calls_and_stdio_on_the_standard_output() {
    for how in ["puts", "fwrite", "putchar", "printf"] {
        for small in [0, 64 * 1024] {
            let scene = Scene::new("standard-mixed", small);
            scene.play("standard-mixed", how);
            assert!(scene.bytes_to_memory() > 0, "{how}");
            let bytes = std::fs::read(scene.path("a")).expect("a file");
            assert!(bytes[..3 * LEN] == [0, 1, 2].map(|part| pattern(part, LEN)).concat());
            let end = String::from_utf8_lossy(&bytes[3 * LEN..]);
            assert_eq!(end, "stdio\nafter", "{how}");
        }
    }
}

/// Whether a standard descriptor has a managed file is asked by every thread that uses any stream: none may hide it from another.
#[test]
fn stdio_on_the_standard_output_beside_other_streams() {
    let scene = Scene::new("standard-beside", 0);
    scene.play("standard-beside", "");
    let all = [pattern(1, LEN), b"stdio\n".to_vec()].concat();
    for file in 0..FILES {
        let bytes = std::fs::read(scene.path(&file.to_string())).expect("a file");
        assert!(bytes == all, "file {file}: {} bytes", bytes.len());
    }
}

/// The standard input is a managed file's, which is read and written by calls: it stays managed while the stream of the standard output
/// is used, which is another file's, or nobody's.
#[test]
fn a_stream_of_the_other_standard_descriptor() {
    let scene = Scene::new("standard-apart", 0);
    scene.play("standard-apart", "");
    assert_eq!(scene.bytes_to_memory() / LEN as u64, 7);
    let bytes = std::fs::read(scene.path("a")).expect("a file");
    assert!(bytes == [3, 1, 2].map(|part| pattern(part, LEN)).concat());
    let bytes = std::fs::read(scene.path("b")).expect("a file");
    assert!(bytes[..3 * LEN] == [0, 1, 2].map(|part| pattern(part, LEN)).concat());
    assert_eq!(String::from_utf8_lossy(&bytes[3 * LEN..]), "stdio\nafter");
}

#[test]
fn calls_and_stdio_on_the_standard_input() {
    let scene = Scene::new("standard-input", 0);
    scene.play("standard-input", "");
    assert!(scene.bytes_to_memory() >= 3 * LEN as u64 + 10);
}

/// dd opens its files and moves them onto the standard descriptors; the second time the session knows the file.
#[test]
fn dd_writes_again_to_what_the_session_knows() {
    let scene = Scene::new("standard-dd", 0);
    for turn in 1..4 {
        let mut dd = scene.command("dd");
        dd.args(["if=/dev/zero", "of=a", "bs=64k", "count=10", "conv=notrunc"]);
        said(dd.output().expect("dd"));
        assert!(scene.bytes_to_memory() >= turn * 655_360, "turn {turn}");
        let mut dd = scene.command("dd");
        dd.args(["if=a", "of=b", "bs=64k"]);
        said(dd.output().expect("dd"));
    }
    assert!(std::fs::read(scene.path("b")).expect("a file") == vec![0; 655_360]);
}
