//! Finding a file again by what its entry remembers: the path that it was opened by, and what it is.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::device::file::Relocate;
use crate::device::{DeviceFile, RealFile};
use crate::member::census::members_of;
use crate::member::gone::{Place, is_another};
use crate::member::table;
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::sync::Ordering;
use crate::sync::time::{Instant, sleep};
use crate::sys::file;

const LEASE_PAUSE: Duration = Duration::from_millis(1);
/// How the kernel names what has no name.
const DELETED: &[u8] = b" (deleted)";

/// How long a lease on the file is waited for. `None`: as long as the kernel waits.
pub type Patience = Option<Duration>;

/// Why a file cannot be opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It is not there any more, or another file has its name: trying again will not help.
    Gone(String),
    /// Another file has its number, so that it is gone for good.
    Replaced(String),
    /// It may well be there, and cannot be reached now.
    Unreachable(String),
}

/// The path that the file was opened by last.
pub fn path_of(entry: &FileEntry) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(entry.path()))
}

/// Opens the file behind an entry, and proves that it is the same inode. The descriptors go where `relocate` puts them.
pub fn reopen(
    entry: &FileEntry,
    relocate: Relocate<'_>,
    patience: Patience,
) -> Result<RealFile, Absent> {
    reopen_at(&path_of(entry), entry, relocate, patience)
}

/// As [`reopen`], also where the file has got another name in its directory: so programs replace a file by a new one at once; or has none any
/// more, and a process of the session has it open. It is for sessions that live, whose programs may have done that.
pub fn reopen_renamed(
    arena: &Arena,
    entry: &FileEntry,
    relocate: Relocate<'_>,
    patience: Patience,
) -> Result<RealFile, Absent> {
    let path = path_of(entry);
    match reopen_at(&path, entry, relocate, patience) {
        Err(Absent::Gone(why)) => {
            let found = renamed(&path, entry.inode.load(Ordering::Acquire));
            match found.or_else(|| held(&members_of(arena).processes, entry)) {
                Some(path) => reopen_at(&path, entry, relocate, patience),
                None => Err(Absent::Gone(why)),
            }
        }
        outcome => outcome,
    }
}

/// The name of an inode in the directory of a path.
fn renamed(path: &Path, inode: u64) -> Option<PathBuf> {
    let names = std::fs::read_dir(path.parent()?).ok()?;
    let mut same = names.flatten().filter(|name| name.ino() == inode);
    same.next().map(|name| name.path())
}

fn numbers_of(meta: &std::fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// By which descriptor of some process of the session the kernel leads to a file that has no name.
fn held(processes: &[u32], entry: &FileEntry) -> Option<PathBuf> {
    // Once, however many descriptors there are: a simulation counts what is shared, and its histories are told by nothing else.
    let wanted = entry.numbers();
    let descriptors = processes.iter().flat_map(|process| {
        let names = std::fs::read_dir(format!("/proc/{process}/fd"));
        names.into_iter().flatten().flatten()
    });
    let mut paths = descriptors.map(|name| name.path()).filter(|path| {
        // First: what the kernel asks nobody for.
        std::fs::read_link(path).is_ok_and(|name| name.as_os_str().as_bytes().ends_with(DELETED))
            && path
                .metadata()
                .is_ok_and(|meta| numbers_of(&meta) == wanted)
    });
    paths.next()
}

/// Waits for a lease on the file to end: that of a keeper that has died may last as long as what it had submitted.
fn open(path: &Path, patience: Patience) -> io::Result<std::fs::File> {
    let open = |flags| file::open(path, libc::O_RDWR | flags, 0).map(std::fs::File::from);
    let Some(patience) = patience else {
        return open(0);
    };
    let begun = Instant::now();
    loop {
        match open(libc::O_NONBLOCK) {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < patience =>
            {
                sleep(LEASE_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

fn reopen_at(
    path: &Path,
    entry: &FileEntry,
    relocate: Relocate<'_>,
    patience: Patience,
) -> Result<RealFile, Absent> {
    let file = open(path, patience).map_err(|error| why_not(entry, path, &error))?;
    let meta = file
        .metadata()
        .map_err(|e| Absent::Unreachable(e.to_string()))?;
    if entry.numbers() != numbers_of(&meta) {
        return Err(Absent::Gone("another file has its name by now".into()));
    }
    let device = RealFile::reopen_managed(file.as_fd(), relocate)
        .map_err(|reason| Absent::Unreachable(reason.to_string()))?;
    let caps = device.caps();
    if caps.inode != meta.ino() || !table::is_same(entry, &device) {
        if table::is_elsewhere(entry, &device) {
            let why = "its file system is not there any more, and another one has its number";
            return Err(Absent::Gone(why.into()));
        }
        let why = String::from("another file has its name and number by now");
        return Err(if is_another(entry, Place::of(file.as_fd())) {
            Absent::Replaced(why)
        } else {
            Absent::Gone(why)
        });
    }
    Ok(device)
}

fn why_not(entry: &FileEntry, path: &Path, error: &io::Error) -> Absent {
    let gone = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EISDIR];
    if !error
        .raw_os_error()
        .is_some_and(|errno| gone.contains(&errno))
    {
        return Absent::Unreachable(format!("it cannot be opened: {error}"));
    }
    // A path that leads to another file system than before leads to a place where nothing is mounted.
    let there = path
        .ancestors()
        .skip(1)
        .find_map(|dir| Some((dir, dir.metadata().ok()?)));
    match there {
        Some((dir, meta)) if meta.dev() != entry.device.load(Ordering::Acquire) => {
            let dir = dir.display();
            Absent::Unreachable(format!("its file system is not mounted at {dir}; mount it"))
        }
        _ => Absent::Gone("the file is not where it was".into()),
    }
}
