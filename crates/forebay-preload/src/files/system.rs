//! What of the file system a file is on matters to the process that has just opened it.
//!
//! A mount shows one file system for as long as it is there, and its number is never given again: so it is asked once. On a mounted store each
//! question is a request to the mount's process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay::sys::stat;
use libc::c_int;

use super::{Look, borrow};

/// What a file system is to us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// `/proc`, `/sys` and their like: it is no file in earnest. A read of one may wait for ever, and handlers of the program's have to run meanwhile.
    Kernel,
    Store,
    Other,
}

impl Of {
    fn bits(self) -> u64 {
        match self {
            Of::Kernel => 0,
            Of::Store => 1,
            Of::Other => 2,
        }
    }

    fn of_bits(bits: u64) -> Self {
        match bits {
            0 => Of::Kernel,
            1 => Of::Store,
            _ => Of::Other,
        }
    }
}

/// Mounts that are remembered: programs go to and fro between a few.
const MOUNTS: usize = 16;
/// Bits of a word that say what a mount shows; above them is its number.
const KIND_BITS: u32 = 2;

/// What mounts show, each at the place that its number gives it; 0: none.
static KNOWN: [AtomicU64; MOUNTS] = [const { AtomicU64::new(0) }; MOUNTS];

/// Of an open file's file system. What cannot be asked is none that matters.
pub(super) fn file_system_of(fd: c_int, look: &Look) -> Of {
    if libc::major(look.device) != 0 {
        return Of::Other;
    }
    let (number, is_told) = match look.mount {
        Some(mount) => (mount, true),
        // Device numbers are given again: right for what costs time alone. So is whether it is a store, and a file of the kernel's has no space.
        None => (look.device, look.has_blocks),
    };
    let word = &KNOWN[number as usize % MOUNTS];
    let known = word.load(Relaxed);
    if is_told && known >> KIND_BITS == number {
        return Of::of_bits(known % (1 << KIND_BITS));
    }
    let Some(of) = ask(fd) else {
        return Of::Other;
    };
    if is_told {
        word.store(number << KIND_BITS | of.bits(), Relaxed);
    }
    of
}

/// `None`: it cannot be asked.
fn ask(fd: c_int) -> Option<Of> {
    const KINDS: [libc::c_long; 6] = [
        libc::PROC_SUPER_MAGIC,
        libc::SYSFS_MAGIC,
        libc::DEBUGFS_MAGIC,
        libc::TRACEFS_MAGIC,
        libc::CGROUP_SUPER_MAGIC,
        libc::CGROUP2_SUPER_MAGIC,
    ];
    // SAFETY: the program's descriptor, which it has just been given and no other thread knows of.
    let magic = stat::file_system_magic(unsafe { borrow(fd) }).ok()?;
    Some(match magic {
        stat::STORE_MAGIC => Of::Store,
        magic if KINDS.contains(&libc::c_long::from(magic)) => Of::Kernel,
        _ => Of::Other,
    })
}
