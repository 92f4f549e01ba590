//! What a mount shows: a file system, as the kernel's requests need it. There are three: a directory through the engine
//! ([`crate::directory`]), a store in persistent memory ([`crate::store`]), and a pool ([`crate::pool`]).
//!
//! Files have the kernel's numbers, what is open has handles; each answers what a call of the system's would. Who may do what
//! the kernel has checked before.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, StatVfs};

use crate::attributes::FileAttr;
use crate::caller::Caller;
use crate::changes::Changes;
use crate::contents::{Manner, Part};
use crate::failed::{Answer, Failed};
use crate::names::{Listed, Special};
use crate::transport::Unanswered;

/// A name in a directory.
pub(crate) type Place<'a> = (u64, &'a OsStr);

/// A file system.
pub(crate) trait Served: Send + Sync + 'static {
    /// Whether nobody but the kernel changes it, and it does not care what is open. Then a handle is a file's number, the kernel tells of
    /// no opening and no close, and believes that a name is absent for as long as that it is there.
    const ALONE: bool;
    /// What it takes of the kernel's, besides what every mount does.
    const ALSO: u64;
    /// What the kernel may do with files that are made and open.
    const AS_OPENED: u32;
    /// Whether the threads that answer stay where the last requests came from. They must start no lasting threads, which would be kept there.
    const FOLLOWS: bool;

    /// What it takes of the kernel's in this mount, besides what every mount does.
    fn also(&self) -> u64 {
        Self::ALSO
    }

    /// The kernel is going to ask by this device.
    fn begins(&self, _device: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    /// The kernel asks no more.
    fn ended(&self) {}

    /// How long the kernel may believe what it was told of names and attributes, unless what is told of a file says something else.
    fn believed(&self) -> Duration;

    /// Finds a name. The kernel knows the file from then on, once more, until it is forgotten as often; so it does after whatever
    /// makes a file.
    fn look_up(&self, parent: u64, name: &OsStr) -> Answer<FileAttr>;
    fn forget(&self, number: u64, lookups: u64);
    fn attributes(&self, number: u64) -> Answer<FileAttr>;
    fn change(&self, number: u64, changes: &Changes) -> Answer<FileAttr>;

    fn make_directory(&self, by: &Caller, place: Place<'_>, mode: u32) -> Answer<FileAttr>;
    fn make_special(&self, by: &Caller, place: Place<'_>, special: &Special) -> Answer<FileAttr>;
    fn make_symlink(&self, by: &Caller, place: Place<'_>, target: &Path) -> Answer<FileAttr>;
    fn read_link(&self, number: u64) -> Answer<Vec<u8>>;
    fn link(&self, number: u64, parent: u64, name: &OsStr) -> Answer<FileAttr>;
    fn unlink(&self, parent: u64, name: &OsStr, flags: AtFlags) -> Answer<()>;
    fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Answer<()>;

    fn open_directory(&self, number: u64) -> Answer<u64>;
    /// Gives the entries from a place on, until `take` says that it has enough.
    fn list(&self, handle: u64, from: u64, take: impl FnMut(&Listed<'_>) -> bool) -> Answer<()>;
    fn sync_directory(&self, handle: u64) -> Answer<()>;
    fn close_directory(&self, handle: u64);

    fn open(&self, number: u64, flags: i32) -> Answer<u64>;
    /// What the kernel may do with an opening.
    fn as_opened(&self, _handle: u64) -> u32 {
        Self::AS_OPENED
    }
    /// Makes a file, or opens the one that is there, unless `flags` has `O_EXCL`. Where this is not served, the kernel asks once: from then on it makes files
    /// with [`Served::make_special`], and opens them.
    fn create(
        &self,
        _by: &Caller,
        _place: Place<'_>,
        _mode: u32,
        _flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        Err(Failed(libc::ENOSYS))
    }
    /// Makes a file without a name in a directory (`O_TMPFILE`): [`Served::link`] may give it one. Where there are none, the kernel asks once.
    fn create_nameless(
        &self,
        _by: &Caller,
        _parent: u64,
        _mode: u32,
        _flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        Err(Failed(libc::ENOSYS))
    }
    /// Answers with what there is of so many bytes, by [`Unanswered::fill`] or by [`Unanswered::send`], whichever takes the fewer copies.
    fn read(&self, at: Part, len: usize, to: Unanswered);
    fn write(&self, at: Part, bytes: &[u8], how: Manner) -> Answer<u32>;
    /// A descriptor has been closed.
    fn flush(&self, handle: u64) -> Answer<()>;
    fn sync(&self, handle: u64, data_only: bool) -> Answer<()>;
    /// The last descriptor of an opening has been closed.
    fn release(&self, handle: u64);
    fn allocate(&self, at: Part, len: u64, mode: i32) -> Answer<()>;
    fn seek(&self, at: Part, whence: i32) -> Answer<u64>;
    /// How far all bytes from a place on have space; `end` at most. Only a store answers (`forebay::sys::extents::space_in_store`).
    fn allocated_to(&self, _at: Part, _end: u64) -> Answer<u64> {
        Err(Failed(libc::ENOTTY))
    }
    /// Which store it is: a number that no other store has.
    fn store(&self) -> u64 {
        0
    }
    /// Copies from file to file. Fewer bytes than asked for are no error.
    fn copy(&self, from: Part, to: Part, len: u64) -> Answer<u32>;

    /// The value's length; the value itself where there is memory for it.
    fn attribute(&self, number: u64, name: &OsStr, memory: &mut [u8]) -> Answer<usize>;
    fn attribute_names(&self, number: u64, memory: &mut [u8]) -> Answer<usize>;
    fn set_attribute(&self, number: u64, name: &OsStr, value: &[u8], flags: i32) -> Answer<()>;
    fn remove_attribute(&self, number: u64, name: &OsStr) -> Answer<()>;
    /// How much there is, and how much of it is free.
    fn room(&self, number: u64) -> Answer<StatVfs>;
}
