//! The program's own asynchronous I/O: POSIX's, libaio's, io_uring. The kernel, or a thread of libc's, goes on by itself.

use libc::c_int;

use super::{Args, give, joined, negative, or, peek};
use crate::files::{self, Given, Why};
use crate::inside::Inside;
use crate::mapped::views;

/// Requests of one call that are looked at.
const REQUESTS_MAX: u64 = 1 << 16;

/// `aio_read(request)` and `aio_write(request)`: the structure begins with the descriptor.
pub fn one(args: &Args) -> Given {
    request(args[0])
}

/// `aio_fsync(operation, request)`.
pub fn sync(args: &Args) -> Given {
    request(args[1])
}

/// `lio_listio(mode, requests, count, event)`.
pub fn list(args: &Args) -> Given {
    for index in 0..u64::from(args[2] as u32).min(REQUESTS_MAX) {
        if let Some(at) = peek::<u64>(args[1] + index * 8) {
            request(at)?;
        }
    }
    Ok(())
}

fn request(at: u64) -> Given {
    match peek::<c_int>(at) {
        Some(fd) if at != 0 => give(fd, Why::Asynchronous),
        _ => Ok(()),
    }
}

/// Of libaio, and the kernel's: `io_submit(context, count, requests)`.
pub fn submit(args: &Args) -> Given {
    /// Bytes before the descriptor in a `struct iocb`.
    const BEFORE_DESCRIPTOR: u64 = 20;
    if joined() {
        views::outlive();
    }
    for index in 0..args[1].min(REQUESTS_MAX) {
        if let Some(at) = peek::<u64>(args[2] + index * 8)
            && let Some(fd) = peek::<c_int>(at + BEFORE_DESCRIPTOR)
        {
            give(fd, Why::Asynchronous)?;
        }
    }
    Ok(())
}

/// As libaio has it.
pub fn submit_by_library(args: &Args) -> usize {
    or(submit(args), negative)
}

/// A ring is set up. What will go through it passes nothing of ours.
pub fn ring(_args: &Args) -> Given {
    if Inside::is() {
        return Ok(());
    }
    views::outlive();
    files::give_all_and_watch(Why::Asynchronous)
}

/// As liburing has it.
pub fn ring_by_library(args: &Args) -> usize {
    or(ring(args), negative)
}
