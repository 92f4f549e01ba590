//! Asynchronous calls of the kernel's own (`io_submit`), which the C library has no functions for.

use std::ffi::c_long;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::from_mut;

use crate::here::skipped;
use crate::pools::Hosts;
use crate::scene::Scene;

const MIB: usize = 1 << 20;
/// The kernel makes a request of each MiB.
const PARTS: usize = 6;
const ROUNDS: usize = 6;
/// `IOCB_CMD_PWRITE`.
const PWRITE: u16 = 1;

/// `struct iocb`, where the lower half of a word comes first.
#[repr(C)]
#[derive(Default)]
struct Asked {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Ended {
    data: u64,
    asked: u64,
    result: i64,
    result_too: i64,
}

/// A queue of calls.
struct Queue(c_long);

fn checked(result: c_long) -> io::Result<c_long> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Queue {
    fn new() -> io::Result<Queue> {
        let mut queue = Queue(0);
        let calls: c_long = 8;
        // SAFETY: the kernel writes one word, the queue's number.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, calls, from_mut(&mut queue.0)) })?;
        Ok(queue)
    }

    /// Writes, and waits for the end. Says how much was written, or the error's number, negative.
    fn write(&self, file: &File, bytes: &[u8]) -> i64 {
        let mut asked = Asked {
            opcode: PWRITE,
            fd: file.as_raw_fd() as u32,
            buffer: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            ..Asked::default()
        };
        let mut all = [from_mut(&mut asked)];
        let one: c_long = 1;
        // SAFETY: one call, and its bytes, which live until it has ended.
        let begun = unsafe { libc::syscall(libc::SYS_io_submit, self.0, one, all.as_mut_ptr()) };
        assert_eq!(checked(begun).expect("begun"), 1);
        let mut ended = Ended::default();
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: the kernel writes one event.
        let got = unsafe {
            let to = from_mut(&mut ended);
            libc::syscall(libc::SYS_io_getevents, self.0, one, one, to, none)
        };
        assert_eq!(checked(got).expect("ended"), 1);
        ended.result
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Appends parts by one call, and says in which order they lie where they are not as they were.
fn append(queue: &Queue, path: &Path) -> Option<String> {
    let parts = (b'a'..).take(PARTS);
    let bytes: Vec<u8> = parts.flat_map(|part| vec![part; MIB]).collect();
    let mut options = File::options();
    options.create(true).append(true).read(true);
    let file = options.custom_flags(libc::O_DIRECT).open(path);
    let file = file.expect("opened");
    let written = queue.write(&file, &bytes);
    assert_eq!(written, bytes.len() as i64);
    drop(file);
    let read = fs::read(path).expect("read");
    fs::remove_file(path).expect("removed");
    let first = read.chunks(MIB).map(|part| char::from(part[0]));
    (read != bytes).then(|| first.collect())
}

/// None of several appends mixes its parts.
fn appends_are_in_order(point: &Path) {
    let queue = match Queue::new() {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            return skipped("this kernel has no asynchronous calls");
        }
        queue => queue.expect("a queue"),
    };
    for round in 0..ROUNDS {
        let mixed = append(&queue, &point.join("log"));
        assert_eq!(mixed, None, "round {round}");
    }
}

#[test]
fn an_asynchronous_append_is_in_order() {
    for scene in Scene::each("aio", &[]) {
        appends_are_in_order(&scene.point);
        scene.end();
    }
}

#[test]
fn an_asynchronous_append_is_in_order_in_a_pool() {
    let Some(mut hosts) = Hosts::begin("pool-aio", 7531) else {
        return;
    };
    appends_are_in_order(&hosts.points()[0]);
    hosts.umount(1);
    hosts.umount(0);
}
