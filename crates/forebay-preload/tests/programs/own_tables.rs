//! Threads and children whose descriptors are none of the process's: a table of their own, or memory without the table.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::scene::Scene;
use crate::sys::*;

const RECORD: usize = 4096;
const RECORDS: usize = 600;
/// Records after which somebody gets a table of its own.
const AT: usize = 300;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "own-table" {
        return false;
    }
    let path = dir.join("file");
    let file = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
    // The forked child's parent has another thread, too.
    let goes_on = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on.load(Ordering::Acquire) == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        for number in 0..RECORDS {
            if number == AT {
                separate(argument, dir);
            }
            assert_eq!(write(file, &record(number)), Ok(RECORD), "{number}");
        }
        goes_on.store(1, Ordering::Release);
    });
    for number in 0..RECORDS {
        let found = pread(file, RECORD, (number * RECORD) as i64).expect("read");
        assert!(found == record(number), "{argument}: record {number}");
    }
    assert_eq!(size_of(file), (RECORDS * RECORD) as i64);
    close(file).expect("close");
    true
}

fn record(number: usize) -> Vec<u8> {
    vec![b'A' + (number % 26) as u8; RECORD]
}

fn separate(how: &str, dir: &Path) {
    match how {
        "thread" => in_a_thread(|| {
            close_all_of_its_own();
            write_other(dir);
        }),
        "marking-thread" => in_a_thread(|| {
            mark_all_of_its_own();
            for fd in 3..64 {
                let _ = close(fd);
            }
            write_other(dir);
        }),
        // SAFETY: the child makes no call but plain ones, and ends.
        "child" => unsafe {
            let child = libc::fork();
            if child == 0 {
                close_all_of_its_own();
                // They get the numbers of files that the parent has open.
                let mut ends = [0; 2];
                let mut heard = [0u8; 5];
                let passed = libc::pipe(ends.as_mut_ptr()) == 0
                    && libc::write(ends[1], b"hello".as_ptr().cast(), 5) == 5
                    && libc::read(ends[0], heard.as_mut_ptr().cast(), 5) == 5
                    && heard == *b"hello";
                libc::_exit(i32::from(!passed));
            }
            await_end(child);
        },
        flags => borrow_memory(flags.parse().expect("flags")),
    }
}

fn in_a_thread(what: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(what).join().expect("a thread"));
}

/// It has a table of its own then, and everything in it open.
fn mark_all_of_its_own() {
    let flags = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: takes no memory.
    let marked = unsafe { libc::close_range(3, u32::MAX, flags as i32) };
    assert_eq!(marked, 0);
}

fn close_all_of_its_own() {
    let flags = libc::CLOSE_RANGE_UNSHARE as i32;
    // SAFETY: takes no memory; nobody uses these numbers in this table any more.
    let closed = unsafe { libc::close_range(3, u32::MAX, flags) };
    assert_eq!(closed, 0);
}

/// Where the number is probably that of the file that the others have open.
fn write_other(dir: &Path) {
    let other = open(&dir.join("other"), libc::O_RDWR | libc::O_CREAT).expect("open");
    for _ in 0..200 {
        assert_eq!(write(other, &[b'x'; RECORD]), Ok(RECORD));
    }
    assert_eq!(size_of(other), 200 * RECORD as i64);
    close(other).expect("close");
}

/// A child by `clone` that closes everything, and ends.
fn borrow_memory(flags: i32) {
    extern "C" fn closes(_: *mut libc::c_void) -> libc::c_int {
        for fd in 3..64 {
            // SAFETY: takes no memory. They are this child's own.
            unsafe { libc::close(fd) };
        }
        // SAFETY: takes no memory.
        unsafe { libc::_exit(0) }
    }
    let mut stack = vec![0u8; 256 * 1024];
    // SAFETY: the end of the stack is aligned; the stack lives until the child has ended, which is waited for.
    unsafe {
        let end = stack.as_mut_ptr().add(stack.len());
        let end = end.sub(end.addr() % 16);
        let child = libc::clone(
            closes,
            end.cast(),
            flags | libc::SIGCHLD,
            std::ptr::null_mut(),
        );
        assert!(child > 0);
        await_end(child);
    }
}

fn await_end(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: a word of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn keeps_the_others_files(how: &str) {
    let scene = Scene::new("own-table", 0);
    scene.play("own-table", how);
    assert!(scene.bytes_to_memory() > 0);
    let bytes = std::fs::read(scene.path("file")).expect("the file");
    let wanted: Vec<u8> = (0..RECORDS).flat_map(record).collect();
    assert!(bytes == wanted);
}

#[test]
fn a_thread_that_unshares_its_descriptors_leaves_the_others_theirs() {
    keeps_the_others_files("thread");
}

#[test]
fn a_thread_that_unshares_and_marks_its_descriptors_leaves_the_others_theirs() {
    keeps_the_others_files("marking-thread");
}

#[test]
fn a_child_of_a_threaded_program_that_unshares_its_descriptors_leaves_the_parent_its() {
    keeps_the_others_files("child");
}

#[test]
fn a_child_that_borrows_memory_and_closes_everything_leaves_the_parent_its_files() {
    keeps_the_others_files(&(libc::CLONE_VM | libc::CLONE_VFORK).to_string());
}
