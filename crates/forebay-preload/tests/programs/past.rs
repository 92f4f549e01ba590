//! Calls that reach a managed file past what the engine serves: those of libc's that write by themselves.

use std::ffi::c_void;
use std::path::Path;

use crate::scene::Scene;
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
/// Lines of a log, and bytes of each.
const LINES: usize = 2000;
const LINE: usize = 100;
/// Frames of a stack that are written.
const FRAMES: usize = 8;

unsafe extern "C" {
    fn backtrace(frames: *mut *mut c_void, room: i32) -> i32;
    fn backtrace_symbols_fd(frames: *const *mut c_void, count: i32, fd: i32);
    fn __backtrace_symbols_fd(frames: *const *mut c_void, count: i32, fd: i32);
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "past-trace" => println!("@{}", trace(&dir.join("log"), argument)),
        _ => return false,
    }
    true
}

fn lines() -> Vec<u8> {
    let line = |number| format!("{number:0width$}\n", width = LINE - 1);
    (0..LINES).map(line).collect::<String>().into_bytes()
}

/// A log into which a program writes its stack, as handlers of faults do. How many frames that were.
fn trace(log: &Path, function: &str) -> i32 {
    let fd = open(log, RDWR).expect("open");
    for line in lines().chunks(LINE) {
        assert_eq!(write(fd, line), Ok(LINE));
    }
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: as many frames as there is room for, and as were found.
    let count = unsafe {
        let count = backtrace(frames.as_mut_ptr(), FRAMES as i32);
        match function {
            "__backtrace_symbols_fd" => __backtrace_symbols_fd(frames.as_ptr(), count, fd),
            _ => backtrace_symbols_fd(frames.as_ptr(), count, fd),
        }
        count
    };
    let at = seek(fd, 0, libc::SEEK_CUR).expect("seek");
    assert!(at > (LINES * LINE) as i64, "{at}: nothing was written");
    assert_eq!(write(fd, b"end\n"), Ok(4));
    assert_eq!(size_of(fd), at + 4);
    close(fd).expect("close");
    count
}

#[test]
fn a_stack_is_written_into_a_managed_log() {
    for function in ["backtrace_symbols_fd", "__backtrace_symbols_fd"] {
        let scene = Scene::new("past-trace", 0);
        let said = scene.play("past-trace", function);
        assert!(scene.bytes_to_memory() > 0);
        let (_, count) = said.split_once('@').expect("an answer");
        let count: usize = count.lines().next().unwrap_or("").parse().expect("frames");
        assert!(count > 0, "there is no stack");
        let log = std::fs::read(scene.path("log")).expect("a file");
        let stack = log.strip_prefix(&lines()[..]).expect("all lines");
        let stack = stack.strip_suffix(b"end\n").expect("the end");
        let stack = String::from_utf8_lossy(stack);
        assert_eq!(stack.lines().count(), count, "{stack}");
        assert!(stack.lines().all(|line| line.contains("[0x")), "{stack}");
    }
}
