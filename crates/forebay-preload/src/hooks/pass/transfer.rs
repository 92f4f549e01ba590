//! Calls in which the kernel moves a file's bytes by itself, lets others at them, or locks them.

use libc::c_int;

use super::{Args, Onward, fd, give, joined, peek};
use crate::files::{Given, Why};
use crate::inside::Inside;
use crate::mapped::views::{self, Request};
use crate::raw::{self, KeepErrno};
use crate::{foreign, mapped, real, serve};

/// Parts of one call: the kernel takes no more.
const PARTS_MAX: u64 = 1024;

/// `mmap(address, len, access, flags, fd, offset)`: what is mapped is the kernel's, until it is unmapped, unless it is a view.
pub fn map(args: &Args) -> usize {
    let (flags, fd) = (args[3] as c_int, fd(args[4]));
    let of_file = flags & libc::MAP_ANONYMOUS == 0 && fd >= 0;
    if !of_file {
        let replaces = flags & libc::MAP_FIXED != 0 && mapped::any() && joined();
        return if replaces {
            map_over as *const () as usize
        } else {
            0
        };
    }
    if views::may_be_view(args[2] as c_int, flags, fd) && joined() {
        return map_view as *const () as usize;
    }
    let given = give(fd, Why::Mapped);
    if given.is_err() {
        given.address()
    } else if joined() {
        map_file as *const () as usize
    } else {
        0
    }
}

/// `munmap(address, len)`.
pub fn unmap(_args: &Args) -> usize {
    if mapped::any() && joined() {
        unmap_known as *const () as usize
    } else {
        0
    }
}

/// `mremap(address, len, new len, flags, new address)`.
pub fn remap(_args: &Args) -> usize {
    if mapped::any() && joined() {
        remap_known as *const () as usize
    } else {
        0
    }
}

/// The calls, as libc makes them: libraries that start before ours, allocators among them, map memory.
pub mod plain {
    use super::{c_int, raw};

    /// `mmap`.
    pub extern "C" fn map(
        at: usize,
        len: usize,
        access: c_int,
        flags: c_int,
        fd: c_int,
        offset: usize,
    ) -> isize {
        let fd = fd as isize as usize;
        let arguments = [at, len, access as usize, flags as usize, fd, offset];
        // SAFETY: what the caller asks of the kernel.
        unsafe { raw::call_errno(libc::SYS_mmap, arguments) }
    }

    /// `munmap`.
    pub extern "C" fn unmap(at: usize, len: usize) -> isize {
        // SAFETY: as above.
        unsafe { raw::call_errno(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) }
    }

    /// `mremap`.
    pub extern "C" fn remap(
        at: usize,
        len: usize,
        new_len: usize,
        flags: c_int,
        new_at: usize,
    ) -> isize {
        // SAFETY: as above.
        unsafe {
            raw::call_errno(
                libc::SYS_mremap,
                [at, len, new_len, flags as usize, new_at, 0],
            )
        }
    }
}

/// `mmap` of a file of which the session may have the bytes, and that is private.
extern "C-unwind" fn map_view(
    at: usize,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> isize {
    let request = Request {
        at,
        len,
        access,
        flags,
        fd,
        offset,
    };
    match views::map(&request) {
        Some(Ok(begin)) => return begin as isize,
        Some(Err(errno)) => return serve::fail(errno),
        None => {}
    }
    match give(fd, Why::Mapped) {
        Ok(()) => map_file(at, len, access, flags, fd, offset),
        Err(errno) => serve::fail(errno),
    }
}

/// `mmap` of a file. One that is shared shows what the kernel has, and so does one that is private, where nobody has written to it: by
/// calls that pass no hook.
extern "C-unwind" fn map_file(
    at: usize,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> isize {
    let file = {
        let _errno = KeepErrno::new();
        foreign::begin(fd, Why::Mapped)
    };
    let file = match file {
        Ok(file) => file,
        Err(errno) => return serve::fail(errno),
    };
    let forks = views::forks();
    let begin = plain::map(at, len, access, flags, fd, offset);
    let _errno = KeepErrno::new();
    match file {
        Some(file) if begin == -1 => foreign::end_of(file, true),
        Some(file) => mapped::begun(begin as usize, len, file, forks),
        None if begin != -1 && flags & libc::MAP_FIXED != 0 => mapped::ended(begin as usize, len),
        None => {}
    }
    begin
}

/// `mmap` of memory, over what may be a file.
extern "C-unwind" fn map_over(
    at: usize,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> isize {
    let begin = plain::map(at, len, access, flags, fd, offset);
    if begin != -1 {
        let _errno = KeepErrno::new();
        mapped::ended(begin as usize, len);
    }
    begin
}

extern "C-unwind" fn unmap_known(at: usize, len: usize) -> isize {
    mapped::unmap(at, len, || plain::unmap(at, len))
}

extern "C-unwind" fn remap_known(
    at: usize,
    len: usize,
    new_len: usize,
    flags: c_int,
    new_at: usize,
) -> isize {
    // Without a length the old one stays, and is mapped twice.
    let stays = len == 0 || flags & libc::MREMAP_DONTUNMAP != 0;
    let call = || plain::remap(at, len, new_len, flags, new_at);
    mapped::remap((at, len), new_len, stays, call)
}

/// `vmsplice(pipe, parts, count, flags)`: a pipe that is given a view's pages keeps them, and not what pins their frames. It gets a copy.
pub fn give_to_pipe(args: &Args) -> usize {
    if Inside::is() || !mapped::any() {
        return 0;
    }
    let mut parts = (0..args[2].min(PARTS_MAX)).map_while(|part| {
        let at = args[1] + part * size_of::<libc::iovec>() as u64;
        peek::<[usize; 2]>(at)
    });
    if parts.any(|[at, len]| mapped::shows_frames(at, len)) {
        copy_to_pipe as *const () as usize
    } else {
        0
    }
}

extern "C-unwind" fn copy_to_pipe(pipe: c_int, parts: usize, count: usize, flags: c_int) -> isize {
    let call = |number, [a, b, c]: [usize; 3]| {
        // SAFETY: what the caller asks of the kernel, or a copy of that.
        unsafe { raw::call_errno(number, [pipe as usize, parts, count, a, b, c]) }
    };
    // SAFETY: takes no memory.
    let status = unsafe { real::fcntl64(pipe, libc::F_GETFL, 0) };
    if status != -1 && status & libc::O_ACCMODE == libc::O_RDONLY {
        // What comes out of a pipe is a copy.
        return call(libc::SYS_vmsplice, [flags as usize, 0, 0]);
    }
    if flags as u32 & libc::SPLICE_F_NONBLOCK == 0 {
        return call(libc::SYS_writev, [0; 3]);
    }
    let nowhere = -1isize as usize;
    call(
        libc::SYS_pwritev2,
        [nowhere, nowhere, libc::RWF_NOWAIT as usize],
    )
}

/// `flock(fd, operation)`, `lockf(fd, operation, len)`: a program that locks a file shares it with somebody.
pub fn lock(args: &Args) -> Given {
    give(fd(args[0]), Why::Locked)
}
