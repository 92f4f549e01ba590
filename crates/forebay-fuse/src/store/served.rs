//! A store, as requests need it.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use forebay::sys::extents::STORE_SPACE_MAX;
use forebay_pmem::{OnExisting, ROOT, Whence};
use rustix::fs::{AtFlags, FileType, RenameFlags, StatVfs, StatVfsMountFlags};

use super::{Stored, creator, told};
use crate::attributes::FileAttr;
use crate::caller::Caller;
use crate::changes::Changes;
use crate::contents::{Manner, Part};
use crate::failed::{Answer, Failed};
use crate::names::{Listed, Special};
use crate::served::{Place, Served};
use crate::transport::Unanswered;
use crate::wire::{init, opened};

/// Nobody else changes anything, and what the kernel changes it knows.
const BELIEVED: Duration = Duration::from_secs(24 * 60 * 60);
/// Extended attributes whose names begin otherwise mean something to the system that stores do not have.
const KEPT: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

impl Served for Stored {
    const ALONE: bool = true;
    const ALSO: u64 = init::CACHE_SYMLINKS;
    const AS_OPENED: u32 = opened::KEEP_CACHE | opened::NOFLUSH;
    const FOLLOWS: bool = true;

    fn believed(&self) -> Duration {
        BELIEVED
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        Ok(told(&self.store.lookup_held(parent, name.as_bytes())?))
    }

    fn forget(&self, number: u64, lookups: u64) {
        self.store.release(number, lookups);
    }

    fn attributes(&self, number: u64) -> Answer<FileAttr> {
        Ok(told(&self.store.getattr(number)?))
    }

    fn change(&self, number: u64, changes: &Changes) -> Answer<FileAttr> {
        self.changed(number, changes)
    }

    fn make_directory(
        &self,
        by: &Caller,
        (parent, name): Place<'_>,
        mode: u32,
    ) -> Answer<FileAttr> {
        self.store
            .mkdir(parent, name.as_bytes(), creator(by, mode))?;
        self.look_up(parent, name)
    }

    fn make_special(
        &self,
        by: &Caller,
        (parent, name): Place<'_>,
        special: &Special,
    ) -> Answer<FileAttr> {
        let by = creator(by, special.mode);
        self.store
            .mknod(parent, name.as_bytes(), by, special.device)?;
        self.look_up(parent, name)
    }

    fn make_symlink(
        &self,
        by: &Caller,
        (parent, name): Place<'_>,
        target: &Path,
    ) -> Answer<FileAttr> {
        let target = target.as_os_str().as_bytes();
        self.store
            .symlink(parent, name.as_bytes(), target, creator(by, 0o777))?;
        self.look_up(parent, name)
    }

    fn read_link(&self, number: u64) -> Answer<Vec<u8>> {
        Ok(self.store.readlink(number)?)
    }

    fn link(&self, number: u64, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        self.store.link(number, parent, name.as_bytes())?;
        self.look_up(parent, name)
    }

    fn unlink(&self, parent: u64, name: &OsStr, flags: AtFlags) -> Answer<()> {
        Ok(match flags.contains(AtFlags::REMOVEDIR) {
            true => self.store.rmdir(parent, name.as_bytes()),
            false => self.store.unlink(parent, name.as_bytes()),
        }?)
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Answer<()> {
        let existing = match RenameFlags::from_bits_retain(flags) {
            flags if flags.is_empty() => OnExisting::Replace,
            RenameFlags::NOREPLACE => OnExisting::Fail,
            RenameFlags::EXCHANGE => OnExisting::Exchange,
            _ => return Err(Failed(libc::EINVAL)),
        };
        let (name, new_name) = (from.1.as_bytes(), to.1.as_bytes());
        Ok(self.store.rename(from.0, name, to.0, new_name, existing)?)
    }

    fn open_directory(&self, number: u64) -> Answer<u64> {
        Ok(number)
    }

    fn list(
        &self,
        handle: u64,
        from: u64,
        mut take: impl FnMut(&Listed<'_>) -> bool,
    ) -> Answer<()> {
        Ok(self.store.readdir(handle, from, &mut |entry| {
            !take(&Listed {
                name: OsStr::from_bytes(&entry.name),
                inode: entry.inode,
                kind: FileType::from_raw_mode(entry.kind),
                next: entry.cookie,
            })
        })?)
    }

    fn sync_directory(&self, handle: u64) -> Answer<()> {
        Ok(self.store.fsync(handle)?)
    }

    fn close_directory(&self, _handle: u64) {}

    fn open(&self, number: u64, _flags: i32) -> Answer<u64> {
        Ok(number)
    }

    fn create_nameless(
        &self,
        by: &Caller,
        parent: u64,
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        // Held once, as after a lookup.
        let made = told(&self.store.tmpfile(parent, creator(by, mode))?);
        let handle = self.open(made.number, flags)?;
        Ok((made, handle))
    }

    fn read(&self, at: Part, len: usize, to: Unanswered) {
        // From where the bytes lie straight to the kernel.
        match self.store.view(at.handle, at.offset, len) {
            Ok(view) => to.send(&[IoSlice::new(&view.to_slice())]),
            Err(error) => to.fail(error.into()),
        }
    }

    fn write(&self, at: Part, bytes: &[u8], how: Manner) -> Answer<u32> {
        match how.kills {
            true => self.kill_privileges(at.handle)?,
            false => self.drop_capabilities(at.handle)?,
        }
        // The kernel has said where, also to those who append: nobody else has changed the length.
        let written = self.store.write(at.handle, at.offset, bytes)?;
        if how.flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            self.store.fsync(at.handle)?;
        }
        Ok(written as u32)
    }

    fn flush(&self, _handle: u64) -> Answer<()> {
        Ok(())
    }

    fn sync(&self, handle: u64, _data_only: bool) -> Answer<()> {
        Ok(self.store.fsync(handle)?)
    }

    fn release(&self, _handle: u64) {}

    fn allocate(&self, at: Part, len: u64, mode: i32) -> Answer<()> {
        // The kernel does not say whose this request is to take them away from: root's are taken too.
        self.kill_privileges(at.handle)?;
        self.store.fallocate(at.handle, mode, at.offset, len)?;
        // Nor how the file was opened, which may be with O_SYNC.
        Ok(self.store.fsync(at.handle)?)
    }

    fn seek(&self, at: Part, whence: i32) -> Answer<u64> {
        let whence = match whence {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return Err(Failed(libc::EINVAL)),
        };
        Ok(self.store.seek(at.handle, at.offset, whence)?)
    }

    fn allocated_to(&self, at: Part, end: u64) -> Answer<u64> {
        if end <= at.offset {
            // Whether this is a store, by any file of it.
            return Ok(at.offset);
        }
        let end = end.min(at.offset.saturating_add(STORE_SPACE_MAX));
        Ok(self.store.allocated_to(at.handle, at.offset, end)?)
    }

    fn store(&self) -> u64 {
        self.store.id()
    }

    fn copy(&self, _from: Part, to: Part, _len: u64) -> Answer<u32> {
        // As for `allocate`. To sync each copy would cost those too much who have not asked for it: the kernel copies, by writes that say how the file
        // was opened.
        self.kill_privileges(to.handle)?;
        Err(Failed(libc::EOPNOTSUPP))
    }

    fn attribute(&self, number: u64, name: &OsStr, memory: &mut [u8]) -> Answer<usize> {
        let name = kept(name)?;
        given(&self.store.getxattr(number, name)?, memory)
    }

    fn attribute_names(&self, number: u64, memory: &mut [u8]) -> Answer<usize> {
        let names = self.store.listxattr(number)?;
        let names = names.into_iter().flat_map(|mut name| {
            name.push(0);
            name
        });
        given(&names.collect::<Vec<_>>(), memory)
    }

    fn set_attribute(&self, number: u64, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        let name = kept(name)?;
        Ok(self.store.setxattr(number, name, value, flags)?)
    }

    fn remove_attribute(&self, number: u64, name: &OsStr) -> Answer<()> {
        Ok(self.store.removexattr(number, kept(name)?)?)
    }

    fn room(&self, _number: u64) -> Answer<StatVfs> {
        let room = self.store.statfs();
        let size = u64::from(room.block_size);
        Ok(StatVfs {
            f_bsize: size,
            f_frsize: size,
            f_blocks: room.blocks,
            f_bfree: room.blocks_free,
            f_bavail: room.blocks_available,
            f_files: room.inodes,
            f_ffree: room.inodes_free,
            f_favail: room.inodes_free,
            f_fsid: ROOT,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: room.name_length_max.into(),
        })
    }
}

/// The name of an extended attribute that a store keeps.
fn kept(name: &OsStr) -> Answer<&[u8]> {
    let name = name.as_bytes();
    match KEPT.iter().any(|prefix| name.starts_with(prefix)) {
        true => Ok(name),
        false => Err(Failed(libc::EOPNOTSUPP)),
    }
}

/// Gives bytes where there is memory, and says how many there are.
fn given(bytes: &[u8], memory: &mut [u8]) -> Answer<usize> {
    if !memory.is_empty() {
        let place = memory.get_mut(..bytes.len()).ok_or(Failed(libc::ERANGE))?;
        place.copy_from_slice(bytes);
    }
    Ok(bytes.len())
}
