//! `ioctl`: requests that read or change a file's contents, length or extents, or that are about all of a file system.
//!
//! Others stay what they are: programs ask of every descriptor whether it is a terminal.

use libc::c_int;

use super::{Args, Onward, fd, give, peek};
use crate::files::{self, Given, Why};
use crate::hooks::seek::lseek64;
use crate::hooks::size::size_of;
use crate::hooks::sync;
use crate::inside::Inside;
use crate::serve::{self, Turn};
use crate::{program, raw};

const FIBMAP: u64 = 1;
const FIONREAD: u64 = 0x541b;
const FIOQSIZE: u64 = 0x5460;
const FICLONE: u64 = 0x4004_9409;
const FICLONERANGE: u64 = 0x4020_940d;
const FIDEDUPERANGE: u64 = 0xc018_9436;
const LOOP_SET_FD: u64 = 0x4c00;
const LOOP_CHANGE_FD: u64 = 0x4c06;
const LOOP_CONFIGURE: u64 = 0x4c0a;

/// Requests after which a file system, or a copy of it, has what was written before: it is frozen for a snapshot, say. Whichever file they
/// are made with, all that the session owes to the file system is written first.
const WHOLE: [u64; 5] = [
    0xc004_5877, // FIFREEZE
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x0000_9408, // BTRFS_IOC_SYNC
    0x8008_9418, // BTRFS_IOC_START_SYNC
];

/// Requests of file systems that only look at flags and names.
const HARMLESS: [u64; 6] = [
    0x8008_6601, // FS_IOC_GETFLAGS
    0x8004_6601, // FS_IOC32_GETFLAGS
    0x801c_581f, // FS_IOC_FSGETXATTR
    0x8100_9431, // FS_IOC_GETFSLABEL
    0x8008_7601, // FS_IOC_GETVERSION
    0x8011_1500, // FS_IOC_GETFSUUID
];

/// `ioctl(fd, request, argument)`.
pub fn ioctl(args: &Args) -> usize {
    let (fd, request, argument) = (fd(args[0]), args[1] & 0xffff_ffff, args[2]);
    if request == FIONREAD && files::is_known(fd) && !Inside::is() {
        return available as *const () as usize;
    }
    if !Inside::is() && source(request, argument).is_some_and(files::is_known) {
        return clone as *const () as usize;
    }
    if request == FIDEDUPERANGE {
        let given = others(argument);
        if given.is_err() {
            return given.address();
        }
    }
    if !Inside::is()
        && let Some(file) = below_device(request, argument)
        && files::is_known(file)
    {
        return give(file, Why::Sent).address();
    }
    if WHOLE.contains(&request)
        && let Some(errno) = sync::write_file_system(fd)
    {
        return Given::Err(errno).address();
    }
    if files::is_known(fd) && touches_contents(request) {
        return give(fd, Why::Ioctl).address();
    }
    0
}

/// How many bytes there are to be read from here on.
extern "C-unwind" fn available(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    if !matches!(serve::turn(fd), Turn::Managed(_)) {
        let arguments = [fd as usize, request as usize, argument, 0, 0, 0];
        // SAFETY: what the caller asks of the kernel.
        return unsafe { raw::call_errno(libc::SYS_ioctl, arguments) } as c_int;
    }
    // SAFETY: takes no memory.
    let at = unsafe { lseek64(fd, 0, libc::SEEK_CUR) };
    if program::poke(argument, (size_of(fd) - at) as c_int) {
        0
    } else {
        serve::fail(libc::EFAULT) as c_int
    }
}

fn touches_contents(request: u64) -> bool {
    if [FIBMAP, FIOQSIZE].contains(&request) {
        return true;
    }
    // The letters of ext4 and file systems in general, XFS, btrfs, f2fs, and of the clones above.
    let letter = request >> 8 & 0xff;
    matches!(letter, 0x66 | 0x58 | 0x94 | 0xf5) && !HARMLESS.contains(&request)
}

/// The file that a request puts below a loop device: the kernel reads and writes it from then on.
fn below_device(request: u64, argument: u64) -> Option<c_int> {
    match request {
        LOOP_SET_FD | LOOP_CHANGE_FD => Some(argument as c_int),
        // struct loop_config begins with it.
        LOOP_CONFIGURE => peek::<u32>(argument).map(|file| file as c_int),
        _ => None,
    }
}

/// Where a request clones from.
fn source(request: u64, argument: u64) -> Option<c_int> {
    match request {
        FICLONE => Some(argument as c_int),
        // struct file_clone_range begins with it.
        FICLONERANGE => peek::<i64>(argument).map(|source| source as c_int),
        _ => None,
    }
}

/// A file is cloned: what it owes is written first. Only if that is done does it share its space, and belongs to the kernel: programs ask
/// for clones where there are none.
extern "C-unwind" fn clone(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    if let Err(errno) = give(fd, Why::Ioctl) {
        return serve::fail(errno) as c_int;
    }
    let source = source(request & 0xffff_ffff, argument as u64).unwrap_or(-1);
    if let Some(errno) = sync::write_out(source) {
        return serve::fail(errno) as c_int;
    }
    let arguments = [fd as usize, request as usize, argument, 0, 0, 0];
    // SAFETY: what the caller asks of the kernel.
    let done = unsafe { raw::call_errno(libc::SYS_ioctl, arguments) } as c_int;
    if done == 0 {
        // It has been flushed; where it stays managed, what is written to it goes where it belongs.
        let _ = give(source, Why::Ioctl);
    }
    done
}

/// The other files of a request that makes files share extents. struct file_dedupe_range: offset, length, count; then for each the
/// descriptor and three more words.
fn others(argument: u64) -> Given {
    let [_, _, count] = peek::<[u64; 3]>(argument).unwrap_or_default();
    // The kernel refuses more of them than a page holds.
    let count = Some(count & 0xffff).filter(|&count| 24 + count * 32 <= 4096);
    for index in 0..count.unwrap_or(0) {
        if let Some(target) = peek::<i64>(argument + 24 + index * 32) {
            give(target as c_int, Why::Ioctl)?;
        }
    }
    Ok(())
}
