//! Descriptors that are sent to other processes, or taken from them, and memory that is sent as it is.

use libc::{c_int, cmsghdr, mmsghdr, msghdr};

use super::{Args, give, joined, peek};
use crate::files::{Given, Why};
use crate::inside::Inside;
use crate::mapped::{self, views};
use crate::raw::KeepErrno;
use crate::table::{self, FOREIGN, State, holders};
use crate::{foreign, kernel, raw};

/// Messages of one call that are looked at: the kernel takes no more.
const MESSAGES_MAX: u64 = 1024;
/// Descriptors in one message: the kernel takes 253.
const DESCRIPTORS_MAX: u64 = 256;

/// `sendmsg(socket, message, flags)`.
pub fn one(args: &Args) -> Given {
    if Inside::is() {
        return Ok(());
    }
    keep_sent(args[2]);
    message(args[1])
}

/// `sendmmsg(socket, messages, count, flags)`.
pub fn many(args: &Args) -> Given {
    if Inside::is() {
        return Ok(());
    }
    keep_sent(args[3]);
    for index in 0..u64::from(args[2] as u32).min(MESSAGES_MAX) {
        message(args[1] + index * size_of::<mmsghdr>() as u64)?;
    }
    Ok(())
}

/// `send(socket, from, len, flags)`, `sendto(socket, from, len, flags, ...)`.
pub fn bytes(args: &Args) {
    keep_sent(args[3]);
}

/// By the flags of a call that sends: with `MSG_ZEROCOPY` packets are made of the program's own memory. Whether the socket does that another
/// process may have said.
fn keep_sent(flags: u64) {
    if flags as c_int & libc::MSG_ZEROCOPY != 0 && mapped::any() && joined() {
        views::outlive();
    }
}

/// `pidfd_getfd(process, fd, flags)`: another process's descriptor.
pub fn steal(_args: &Args) -> usize {
    if joined() {
        stolen as *const () as usize
    } else {
        0
    }
}

/// The call, and what is to be known of its result.
///
/// # Safety
/// As for `pidfd_getfd`.
pub unsafe extern "C-unwind" fn stolen(process: c_int, fd: c_int, flags: libc::c_uint) -> c_int {
    let arguments = [process as usize, fd as usize, flags as usize, 0, 0, 0];
    // SAFETY: what the caller asks of the kernel.
    let fd = unsafe { raw::call_errno(libc::SYS_pidfd_getfd, arguments) } as c_int;
    if fd < 0 {
        return fd;
    }
    let fd = foreign::received(fd, Why::Sent);
    if fd >= 0
        && let Some(process) = number_of(process)
    {
        put_offset_back(process, fd);
    }
    fd
}

/// A descriptor has been taken from a relative, whose file the kernel has by now: so is its offset. The relative puts it there with its next call,
/// where it has several descriptions of the file, and nobody can tell which it is.
fn put_offset_back(process: u32, fd: c_int) {
    let _errno = KeepErrno::new();
    let Some(file) = foreign::regular(fd) else {
        return;
    };
    let mut known = holders::of_process(process)
        .map(table::description)
        .filter(|description| kernel::numbers_of(description) == file)
        // To the session both descriptors were one: nothing of it is managed any more.
        .inspect(|description| description.set_flag(FOREIGN, true))
        .filter(|description| description.state() == State::Ours);
    let first = known.next();
    if let (Some(description), 0) = (first, known.count()) {
        kernel::return_offset(fd, description);
    }
}

/// The number of the process that a descriptor stands for.
fn number_of(process: c_int) -> Option<u32> {
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{process}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok()
}

fn message(at: u64) -> Given {
    let Some(message) = peek::<msghdr>(at) else {
        return Ok(());
    };
    let mut rest = message.msg_controllen as u64;
    let mut at = message.msg_control.expose_provenance() as u64;
    let head = size_of::<cmsghdr>() as u64;
    while rest >= head
        && let Some(part) = peek::<cmsghdr>(at)
    {
        let len = part.cmsg_len as u64;
        if len < head || len > rest {
            return Ok(());
        }
        if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
            for index in 0..((len - head) / 4).min(DESCRIPTORS_MAX) {
                if let Some(fd) = peek::<c_int>(at + head + index * 4) {
                    give(fd, Why::Sent)?;
                }
            }
        }
        let step = len.next_multiple_of(8).min(rest);
        at += step;
        rest -= step;
    }
    Ok(())
}
