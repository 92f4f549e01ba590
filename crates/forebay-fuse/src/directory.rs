//! The file system: a directory, whose files are the session's.
//!
//! Names, modes, owners and times are the directory's own, asked for at each request. Bytes and lengths of regular files are the engine's: each
//! opening of the kernel's is one of the session's, and so the programs of a session and those on its mounts see one file. What the
//! engine does not manage it leaves to the kernel, and answers all the same.

mod served;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay::Session;
use rustix::fs::{Mode, OFlags, Stat};

use crate::attributes::{FileAttr, Time};
use crate::caller::Creators;
use crate::failed::{Answer, Failed};
use crate::handles::{Handles, Listing, Opened};
use crate::nodes::{Found, Nodes, ROOT};

/// Blocks of `st_blocks`.
const SECTOR: u64 = 512;
const NS: u64 = 1_000_000_000;
/// Times that the keeper sets while they are asked for are asked for again.
const ASKED_AT_MOST: u32 = 3;

/// A directory that is served.
pub(crate) struct Directory {
    pub(crate) session: Session,
    pub(crate) nodes: Nodes,
    pub(crate) files: Handles<Opened>,
    pub(crate) listings: Handles<Listing>,
    pub(crate) creators: Creators,
    /// How long the kernel may believe what it was told of names and attributes.
    pub(crate) believed: Duration,
    /// How many the process may have.
    descriptors: usize,
}

/// Descriptors for each file that may be open. It takes up to five, and one of those that hold names. As names have a fourth of all
/// (`nodes`), an eighth is left for what else the process has open.
const FOR_EACH_FILE: usize = 8;
/// The same of directories that may be open. One takes one.
const FOR_EACH_LISTING: usize = 16;

impl Directory {
    /// Serves what is below `root`. `descriptors`: how many the process may have.
    pub(crate) fn new(
        session: Session,
        root: OwnedFd,
        believed: Duration,
        descriptors: usize,
    ) -> Answer<Self> {
        Ok(Directory {
            session,
            nodes: Nodes::new(root, descriptors)?,
            files: Handles::new(),
            listings: Handles::new(),
            creators: Creators::new(),
            believed,
            descriptors,
        })
    }

    /// Whether one more file may be open. Without this the descriptors would run out while programs open files, and nobody could use any name
    /// of the mount until they close some.
    pub(crate) fn has_room_for_file(&self) -> Answer<()> {
        has_room(self.files.count(), self.descriptors / FOR_EACH_FILE)
    }

    /// Whether one more directory may be open.
    pub(crate) fn has_room_for_listing(&self) -> Answer<()> {
        has_room(self.listings.count(), self.descriptors / FOR_EACH_LISTING)
    }

    /// What programs are told of a file.
    pub(crate) fn attributes(&self, number: u64) -> Answer<FileAttr> {
        let fd = self.nodes.fd(number)?;
        let stat = rustix::fs::fstat(&fd)?;
        let mut told = self.attributes_of(&Found { number, fd, stat })?;
        if number == ROOT {
            // The kernel's number for it is fixed, what programs see is not.
            told.number = stat.st_ino;
        }
        Ok(told)
    }

    /// As [`Directory::attributes`], of a file that was asked just now.
    pub(crate) fn attributes_of(&self, found: &Found) -> Answer<FileAttr> {
        let mut stat = found.stat;
        for _ in 1..ASKED_AT_MOST {
            let (attributes, is_right) = self.told(found.number, found.fd.as_fd(), &stat);
            if is_right {
                return Ok(attributes);
            }
            stat = rustix::fs::fstat(&found.fd)?;
        }
        Ok(self.told(found.number, found.fd.as_fd(), &stat).0)
    }

    /// Lengths are the engine's where it has bytes that the file system does not have yet, and times where it writes them later than the
    /// program did. Also whether the times are right.
    fn told(&self, number: u64, fd: BorrowedFd<'_>, stat: &Stat) -> (FileAttr, bool) {
        let mut told = plain(number, stat);
        if !told.is_regular() {
            return (told, true);
        }
        let Some(known) = self.session.known_of((stat.st_dev, stat.st_ino), fd) else {
            return (told, true);
        };
        if known.in_use {
            told.size = known.size;
            // Programs take a file with fewer blocks than bytes for one with holes.
            told.blocks = told.blocks.max(known.size.div_ceil(SECTOR));
        }
        let ns = |seconds: i64, ns: u64| {
            (seconds.max(0) as u64)
                .saturating_mul(NS)
                .saturating_add(ns)
        };
        let modified = ns(stat.st_mtime, stat.st_mtime_nsec);
        let changed = ns(stat.st_ctime, stat.st_ctime_nsec);
        match known.changed_ns(modified, changed) {
            Some(ns) => {
                told.modified = Time::from_ns(ns.into());
                told.changed = told.modified;
                (told, true)
            }
            None => (told, !known.was_closed_behind()),
        }
    }

    /// Opens a file that the kernel knows in earnest.
    pub(crate) fn reopen(&self, number: u64, flags: OFlags) -> Answer<OwnedFd> {
        let fd = self.nodes.fd(number)?;
        let flags = flags.bits() as i32;
        Ok(forebay::sys::file::open(path_of(&fd).as_ref(), flags, 0)?)
    }

    /// Everything that is open is handed to the devices. How many files could not be.
    pub(crate) fn flush_all(&self) -> usize {
        let opened = self.files.every();
        let failed = opened
            .iter()
            .filter(|opened| opened.writes && opened.file.flush().is_err());
        failed.count()
    }
}

/// `EMFILE` would tell a program that it has too many open itself.
fn has_room(open: usize, max: usize) -> Answer<()> {
    match open < max {
        true => Ok(()),
        false => Err(Failed(libc::ENFILE)),
    }
}

/// A path that leads to what a descriptor names, for calls that take no such descriptor.
pub(crate) fn path_of(fd: &Arc<OwnedFd>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens a directory by its path, to name what is below.
pub(crate) fn open_root(path: &std::path::Path) -> Answer<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// When a file was modified last.
pub(crate) fn modified(stat: &Stat) -> Time {
    time(stat.st_mtime, stat.st_mtime_nsec)
}

fn time(seconds: i64, ns: u64) -> Time {
    Time {
        seconds,
        nanoseconds: ns as u32,
    }
}

fn plain(number: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        number,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        accessed: time(stat.st_atime, stat.st_atime_nsec),
        modified: modified(stat),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        born: None,
        mode: stat.st_mode,
        links: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        device: device_number(stat.st_rdev),
        block_size: stat.st_blksize as u32,
        believed: None,
    }
}

/// As the kernel packs it into 32 bits.
fn device_number(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The other way.
pub(crate) fn unpacked_device(device: u32) -> u64 {
    rustix::fs::makedev(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00)
}
