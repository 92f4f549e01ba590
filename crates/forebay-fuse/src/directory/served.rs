//! A directory, as requests need it.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, StatVfs};

use super::Directory;
use crate::attributes::FileAttr;
use crate::caller::Caller;
use crate::changes::Changes;
use crate::contents::{Manner, Part};
use crate::failed::Answer;
use crate::names::{Listed, Special};
use crate::served::{Place, Served};
use crate::transport::Unanswered;
use crate::wire::{init, opened};

impl Served for Directory {
    const ALONE: bool = false;
    const ALSO: u64 = init::DIRECT_IO_ALLOW_MMAP | init::POSIX_ACL;
    /// No copies of files in the kernel; several threads may write one file at once.
    const AS_OPENED: u32 = opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES;
    const FOLLOWS: bool = false;

    fn believed(&self) -> Duration {
        self.believed
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        Directory::look_up(self, parent, name)
    }

    fn forget(&self, number: u64, lookups: u64) {
        self.nodes.forget(number, lookups);
    }

    fn attributes(&self, number: u64) -> Answer<FileAttr> {
        Directory::attributes(self, number)
    }

    fn change(&self, number: u64, changes: &Changes) -> Answer<FileAttr> {
        Directory::change(self, number, changes)
    }

    fn make_directory(&self, by: &Caller, place: Place<'_>, mode: u32) -> Answer<FileAttr> {
        Directory::make_directory(self, by, place, mode)
    }

    fn make_special(&self, by: &Caller, place: Place<'_>, special: &Special) -> Answer<FileAttr> {
        Directory::make_special(self, by, place, special)
    }

    fn make_symlink(&self, by: &Caller, place: Place<'_>, target: &Path) -> Answer<FileAttr> {
        Directory::make_symlink(self, by, place, target)
    }

    fn read_link(&self, number: u64) -> Answer<Vec<u8>> {
        Directory::read_link(self, number)
    }

    fn link(&self, number: u64, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        Directory::link(self, number, parent, name)
    }

    fn unlink(&self, parent: u64, name: &OsStr, flags: AtFlags) -> Answer<()> {
        Directory::unlink(self, parent, name, flags)
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Answer<()> {
        Directory::rename(self, from, to, flags)
    }

    fn open_directory(&self, number: u64) -> Answer<u64> {
        Directory::open_directory(self, number)
    }

    fn list(&self, handle: u64, from: u64, take: impl FnMut(&Listed<'_>) -> bool) -> Answer<()> {
        Directory::list(self, handle, from, take)
    }

    fn sync_directory(&self, handle: u64) -> Answer<()> {
        Directory::sync_directory(self, handle)
    }

    fn close_directory(&self, handle: u64) {
        self.listings.take(handle);
    }

    fn open(&self, number: u64, flags: i32) -> Answer<u64> {
        Directory::open(self, number, flags)
    }

    fn create(
        &self,
        by: &Caller,
        place: Place<'_>,
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        Directory::create(self, by, place, mode, flags)
    }

    fn create_nameless(
        &self,
        by: &Caller,
        parent: u64,
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        Directory::create_nameless(self, by, parent, mode, flags)
    }

    fn read(&self, at: Part, len: usize, to: Unanswered) {
        to.fill(len, |memory| Directory::read(self, at, memory));
    }

    fn write(&self, at: Part, bytes: &[u8], how: Manner) -> Answer<u32> {
        Directory::write(self, at, bytes, how)
    }

    fn flush(&self, handle: u64) -> Answer<()> {
        Directory::flush(self, handle)
    }

    fn sync(&self, handle: u64, data_only: bool) -> Answer<()> {
        Directory::sync(self, handle, data_only)
    }

    fn release(&self, handle: u64) {
        Directory::release(self, handle);
    }

    fn allocate(&self, at: Part, len: u64, mode: i32) -> Answer<()> {
        Directory::allocate(self, at, len, mode)
    }

    fn seek(&self, at: Part, whence: i32) -> Answer<u64> {
        Directory::seek(self, at, whence)
    }

    fn copy(&self, from: Part, to: Part, len: u64) -> Answer<u32> {
        Directory::copy(self, from, to, len)
    }

    fn attribute(&self, number: u64, name: &OsStr, memory: &mut [u8]) -> Answer<usize> {
        Directory::attribute(self, number, name, memory)
    }

    fn attribute_names(&self, number: u64, memory: &mut [u8]) -> Answer<usize> {
        Directory::attribute_names(self, number, memory)
    }

    fn set_attribute(&self, number: u64, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        Directory::set_attribute(self, number, name, value, flags)
    }

    fn remove_attribute(&self, number: u64, name: &OsStr) -> Answer<()> {
        Directory::remove_attribute(self, number, name)
    }

    fn room(&self, number: u64) -> Answer<StatVfs> {
        Ok(rustix::fs::fstatvfs(&self.nodes.fd(number)?)?)
    }
}
