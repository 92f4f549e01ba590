//! Making durable.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay::Error;
use forebay::file::core::Halt;
use forebay::file::settle::Durability;
use libc::{c_int, c_uint, off_t};

use crate::attach;
use crate::files;
use crate::inodes::Use;
use crate::inside::{Inside, NotCancelled};
use crate::kernel::{self, Why};
use crate::rare::{Apart, Rare};
use crate::raw::KeepErrno;
use crate::real;
use crate::serve::{self, Answer, Turn};
use crate::table::{self, Description, Word};

export! {
    /// `fsync`.
    fn fsync(fd: c_int) -> c_int {
        // SAFETY: takes no memory.
        sync_with(fd, Durability::All, || unsafe { real::fsync(fd) })
    }

    /// `fdatasync`.
    fn fdatasync(fd: c_int) -> c_int {
        // SAFETY: takes no memory.
        sync_with(fd, Durability::Data, || unsafe { real::fdatasync(fd) })
    }

    /// `sync_file_range`: with a managed file, whatever the range, all of it is written.
    fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int {
        // SAFETY: takes no memory.
        let real = || unsafe { real::sync_file_range(fd, offset, len, flags) };
        if !is_range(offset, len, flags) && !files::is_ours(fd) {
            // It does nothing, and says why.
            return real();
        }
        sync_with(fd, Durability::Written, real)
    }

    /// `syncfs`: what the session has of the file system is written first.
    fn syncfs(fd: c_int) -> c_int {
        if files::is_ours(fd) {
            return serve::refused() as c_int;
        }
        let failed = write_file_system(fd);
        // SAFETY: takes no memory.
        let result = unsafe { real::syncfs(fd) };
        match failed {
            Some(errno) if result == 0 => serve::fail(errno) as c_int,
            _ => result,
        }
    }

    /// `sync`: all that it has. It tells of no error.
    fn sync() -> () {
        write_all(None);
        // SAFETY: takes nothing.
        unsafe { crate::raw::call(libc::SYS_sync, [0; 6]) };
    }
}

/// Whether a range, and what is to be done with it, are ones that the kernel takes.
fn is_range(offset: off_t, len: off_t, flags: c_uint) -> bool {
    const FLAGS: c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    offset >= 0 && len >= 0 && offset.checked_add(len).is_some() && flags & !FLAGS == 0
}

/// What a write owes that was made with these flags: `RWF_SYNC` is `fsync`, `RWF_DSYNC` is `fdatasync`. Whether it is done.
pub fn written_with(fd: c_int, flags: c_int) -> bool {
    // SAFETY: these take no memory.
    let synced = unsafe {
        match flags {
            flags if flags & libc::RWF_SYNC != 0 => fsync(fd),
            flags if flags & libc::RWF_DSYNC != 0 => fdatasync(fd),
            _ => 0,
        }
    };
    synced == 0
}

/// Syncs by what the descriptor is.
fn sync_with(fd: c_int, durability: Durability, real: impl Fn() -> c_int) -> c_int {
    if table::word(fd) == Word::NONE {
        return real();
    }
    loop {
        match serve::turn(fd) {
            Turn::Candidate(word) => {
                word.description().note_sync();
                return real();
            }
            Turn::Real => return real(),
            Turn::Failed(errno) => return serve::fail(errno) as c_int,
            Turn::Managed(word) => {
                let settled = serve::with(fd, word, |using, description| {
                    let _cancel = NotCancelled::new();
                    if using.inode.is_with_kernel() {
                        return Err(Halt::Kernel);
                    }
                    let settled = using.inode.settle(using.me, durability, &description.seen);
                    // Asked in any case: most of what the engine says the kernel would say once more.
                    let told = durability.syncs().then(|| all_told(fd)).transpose();
                    settled?;
                    told?;
                    Ok(using.inode.small_syncs())
                });
                match settled {
                    Answer::Done(syncs) => {
                        let in_store = word.description().has(table::OF_STORE);
                        if syncs != 0 && !in_store && attach::is_synced_often(syncs) {
                            // It is synced, whether the engine or the kernel has it from here on.
                            let _ = kernel::give_to_kernel(fd, Why::Synced);
                        }
                        return 0;
                    }
                    Answer::Failed(errno) => return serve::fail(errno) as c_int,
                    Answer::Again => {}
                }
            }
        }
    }
}

/// What the kernel could not write back since the program opened its descriptor, before the file was managed or beside that, and has not told it yet.
/// Once it has told others, no description that is opened later hears of it, and the engine's may be. Nothing is waited for: no page is so far out.
fn all_told(fd: c_int) -> Result<(), Error> {
    const FROM: usize = off_t::MAX as usize;
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE as usize;
    // SAFETY: takes no memory.
    let told = unsafe {
        crate::raw::call(
            libc::SYS_sync_file_range,
            [fd as usize, FROM, 0, flags, 0, 0],
        )
    };
    match -told as c_int {
        // The program has closed it meanwhile, or a sandbox answers.
        0 | libc::EBADF | libc::ESPIPE | libc::EPERM | libc::ENOSYS => Ok(()),
        errno => Err(Error::device("sync", &io::Error::from_raw_os_error(errno))),
    }
}

/// Writes what a descriptor's file owes. An error number if that fails; what the description has heard of errors stays as it is.
pub fn write_out(fd: c_int) -> Option<c_int> {
    loop {
        let word = match serve::turn(fd) {
            Turn::Managed(word) => word,
            Turn::Failed(errno) => return Some(errno),
            Turn::Real | Turn::Candidate(_) => return None,
        };
        match serve::with(fd, word, |using, description| {
            write_for(using, description, Durability::Written)
        }) {
            Answer::Done(()) => return None,
            Answer::Failed(errno) => return Some(errno),
            Answer::Again => {}
        }
    }
}

/// Settles a file for one that tells nobody of its errors.
fn write_for(
    using: &Use<'_>,
    description: &Description,
    durability: Durability,
) -> Result<(), Halt> {
    let _cancel = NotCancelled::new();
    let seen = AtomicU32::new(description.seen.load(Ordering::Relaxed));
    Ok(using.inode.settle(using.me, durability, &seen)?)
}

/// Writes what all programs of the session have written to the file system that a descriptor is of. As [`write_all`].
pub fn write_file_system(fd: c_int) -> Option<c_int> {
    let look = {
        let _errno = KeepErrno::new();
        files::Look::at(fd)?
    };
    // Each subvolume of btrfs has a device's number of its own.
    write_all((!is_btrfs(fd)).then_some(look.device))
}

fn is_btrfs(fd: c_int) -> bool {
    let _errno = KeepErrno::new();
    let mut of = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the target is ours; zeros are good for it.
    let (asked, of) = unsafe { (libc::fstatfs64(fd, of.as_mut_ptr()), of.assume_init()) };
    asked == 0 && of.f_type == libc::BTRFS_SUPER_MAGIC
}

/// Writes what all programs of the session have written, to one device or all. An error number if something cannot be written;
/// what descriptions have heard of errors stays as it is.
fn write_all(device: Option<u64>) -> Option<c_int> {
    if Inside::is() || !attach::is_on() {
        return None;
    }
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    attach::notice_fork();
    if !attach::fresh_glance()?.owes_anything(device) {
        return None;
    }
    let rare = Rare::lock();
    let session = attach::session()?;
    let _apart = Apart::begin(rare);
    let written = session.write_all(device);
    written.err().map(|error| error.errno())
}
