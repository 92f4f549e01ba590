//! A pool, as requests need it.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_pool::client::{Entry, Facts, Failure, Kind};
use forebay_pool::files::Error;
use forebay_pool::ids::File;
use rustix::fs::{AtFlags, RenameFlags, StatVfs, StatVfsMountFlags};

use super::{Listing, Opening, Pooled, kind_of, told};
use crate::attributes::FileAttr;
use crate::caller::Caller;
use crate::changes::Changes;
use crate::contents::{Manner, Part, copy_pieces};
use crate::failed::{Answer, Failed, there_already};
use crate::names::{Listed, Special};
use crate::served::{Place, Served};
use crate::transport::Unanswered;
use crate::wire::{init, opened};

/// Bytes of a symbolic link at most.
const TARGET_MAX: u64 = 4095;
const NAME_MAX: u64 = 255;
const BLOCK: u64 = 4096;
/// How often a name is looked up while one file after the other goes that it stands for.
const LOOKS_MAX: usize = 16;

impl Pooled {
    fn make(
        &self,
        by: &Caller,
        (parent, name): Place<'_>,
        (kind, bytes): (Kind, &[u8]),
        mode: u32,
    ) -> Answer<(File, bool)> {
        let facts = self.facts(by, parent, kind, mode)?;
        let (entry, is_new) = self
            .files
            .make_with(File(parent), name.as_bytes(), facts, bytes)?;
        if is_new {
            self.touched(parent);
        }
        Ok((entry.file, is_new))
    }

    /// As [`Pooled::make`]; what is there already is an error.
    fn make_new(
        &self,
        by: &Caller,
        place: Place<'_>,
        what: (Kind, &[u8]),
        mode: u32,
    ) -> Answer<File> {
        match self.make(by, place, what, mode)? {
            (file, true) => Ok(file),
            (_, false) => Err(Failed(libc::EEXIST)),
        }
    }
}

impl Served for Pooled {
    const ALONE: bool = false;
    const ALSO: u64 = init::DIRECT_IO_ALLOW_MMAP;
    /// No copies of files in the kernel, but for those that only read and where it keeps any; several threads may write one file at once.
    const AS_OPENED: u32 = opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES;
    const FOLLOWS: bool = false;

    fn also(&self) -> u64 {
        match self.kept {
            Some(_) => Self::ALSO | init::AUTO_INVAL_DATA,
            None => Self::ALSO,
        }
    }

    fn begins(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(kept) = &self.kept {
            kept.tell_by(device.try_clone_to_owned()?);
        }
        Ok(())
    }

    fn ended(&self) {
        if let Some(kept) = &self.kept {
            kept.stop();
        }
    }

    fn believed(&self) -> Duration {
        self.believed
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        // What is left of a file of which only the name is known: that can be removed, and whoever asks for more is told what is the matter.
        let by_name = |entry: Entry| {
            let facts = Facts {
                kind: entry.kind,
                ..Facts::default()
            };
            told(entry.file, 0, &facts)
        };
        let mut gone = None;
        for _ in 0..LOOKS_MAX {
            let found = self.files.look_up(File(parent), name.as_bytes())?;
            let entry = found.ok_or(Failed(libc::ENOENT))?;
            return match self.told_in_term(entry.file, false) {
                // Its name has gone a moment ago, or is another file's, and so it has gone too. Else the name has outlived it.
                Err(Failed(libc::ESTALE)) if gone != Some(entry) => {
                    gone = Some(entry);
                    continue;
                }
                // Or what is known of it was at a server that died.
                Err(Failed(libc::ESTALE | libc::EIO)) => {
                    // So little that the kernel may keep nothing of it.
                    self.forget(entry.file.0, 0);
                    Ok(by_name(entry))
                }
                told => told,
            };
        }
        Err(Failed(libc::ENOENT))
    }

    fn forget(&self, number: u64, _lookups: u64) {
        if let Some(kept) = &self.kept {
            kept.forgotten(File(number));
        }
    }

    fn attributes(&self, number: u64) -> Answer<FileAttr> {
        self.told_in_term(File(number), true)
    }

    fn change(&self, number: u64, changes: &Changes) -> Answer<FileAttr> {
        self.changed(number, changes)
    }

    fn make_directory(&self, by: &Caller, place: Place<'_>, mode: u32) -> Answer<FileAttr> {
        self.told(self.make_new(by, place, (Kind::Directory, &[]), mode)?)
    }

    fn make_special(&self, by: &Caller, place: Place<'_>, special: &Special) -> Answer<FileAttr> {
        if special.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Failed(libc::EOPNOTSUPP));
        }
        self.told(self.make_new(by, place, (Kind::File, &[]), special.mode)?)
    }

    fn make_symlink(&self, by: &Caller, place: Place<'_>, target: &Path) -> Answer<FileAttr> {
        let target = target.as_os_str().as_bytes();
        let file = self.make_new(by, place, (Kind::Symlink, target), 0o777)?;
        // In the home as well, if there is one. What else is lost is told to who asks.
        match self.files.sync_unasked(file) {
            Ok(()) | Err(Error::Pool(Failure::Lost)) => self.told(file),
            Err(error) => Err(error.into()),
        }
    }

    fn read_link(&self, number: u64) -> Answer<Vec<u8>> {
        Ok(self.files.read(File(number), 0, TARGET_MAX)?)
    }

    fn link(&self, _number: u64, _parent: u64, _name: &OsStr) -> Answer<FileAttr> {
        Err(Failed(libc::EOPNOTSUPP))
    }

    fn unlink(&self, parent: u64, name: &OsStr, flags: AtFlags) -> Answer<()> {
        let directory = flags.contains(AtFlags::REMOVEDIR);
        let entry = self
            .files
            .unlink(File(parent), name.as_bytes(), directory)?;
        self.touched(parent);
        // The name has gone, whatever becomes of the rest.
        self.unnamed(entry);
        Ok(())
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Answer<()> {
        let replaces = match RenameFlags::from_bits_retain(flags) {
            flags if flags.is_empty() => true,
            RenameFlags::NOREPLACE => false,
            _ => return Err(Failed(libc::EINVAL)),
        };
        let old = (File(from.0), from.1.as_bytes());
        let new = (File(to.0), to.1.as_bytes());
        let replaced = self.files.rename(old, new, replaces)?;
        self.touched(from.0);
        if from.0 != to.0 {
            self.touched(to.0);
        }
        if let Some(entry) = replaced {
            self.unnamed(entry);
        }
        Ok(())
    }

    fn open_directory(&self, number: u64) -> Answer<u64> {
        Ok(self.listings.add(Listing {
            number,
            heard: self.files.heard(),
            names: Mutex::default(),
        }))
    }

    fn list(
        &self,
        handle: u64,
        from: u64,
        mut take: impl FnMut(&Listed<'_>) -> bool,
    ) -> Answer<()> {
        let listing = self.listings.get(handle)?;
        let names = {
            let mut held = listing.names.lock().unwrap_or_else(PoisonError::into_inner);
            if from == 0 {
                *held = Arc::new(match self.files.list(File(listing.number)) {
                    // Nothing is in it any more.
                    Err(Error::Pool(Failure::Gone)) => Vec::new(),
                    names => names?,
                });
            }
            Arc::clone(&held)
        };
        // Where the directory itself is the pool does not say, and programs take the number of `..` from elsewhere.
        let dots = [(".", listing.number), ("..", File::ROOT.0)];
        let dots =
            { dots.iter() }.map(|(name, number)| (name.as_bytes(), *number, Kind::Directory));
        let named = { names.iter() }.map(|(name, entry)| (&**name, entry.file.0, entry.kind));
        let all = dots.chain(named).zip(1..).skip(from as usize);
        for ((name, inode, kind), next) in all {
            let listed = Listed {
                name: OsStr::from_bytes(name),
                inode,
                kind: kind_of(kind),
                next,
            };
            if take(&listed) {
                break;
            }
        }
        Ok(())
    }

    fn sync_directory(&self, handle: u64) -> Answer<()> {
        // Names are at the servers when the calls that change them return; its times are not.
        let listing = self.listings.get(handle)?;
        self.sync_file(File(listing.number), Some(&listing.heard))
    }

    fn close_directory(&self, handle: u64) {
        self.listings.take(handle);
    }

    fn open(&self, number: u64, flags: i32) -> Answer<u64> {
        self.opened(File(number))?;
        if flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            self.known().entry(File(number)).or_default().is_synced = true;
        }
        // Whoever writes goes past the kernel's pages: it would append where it believes the end to be.
        let only_reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let kept = self.kept.as_ref().filter(|_| only_reads);
        Ok(self.openings.add(Opening {
            file: File(number),
            heard: self.files.heard(),
            looked: kept.and_then(|kept| kept.looked(File(number))),
        }))
    }

    fn as_opened(&self, handle: u64) -> u32 {
        let looked = self.openings.get(handle).map(|opening| opening.looked);
        match looked {
            Ok(Some(looked)) if looked.keeps => opened::KEEP_CACHE,
            Ok(Some(_)) => 0,
            _ => Self::AS_OPENED,
        }
    }

    fn create(
        &self,
        by: &Caller,
        place: Place<'_>,
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        let (file, is_new) = self.make(by, place, (Kind::File, &[]), mode)?;
        if !is_new {
            return Err(there_already(flags));
        }
        let told = self.told(file)?;
        Ok((told, self.open(file.0, flags)?))
    }

    fn read(&self, at: Part, len: usize, to: Unanswered) {
        let read = self.openings.get(at.handle).and_then(|opening| {
            if let (Some(kept), Some(looked)) = (&self.kept, opening.looked) {
                kept.reads(opening.file, looked);
            }
            Ok(self.files.read(opening.file, at.offset, len as u64)?)
        });
        match read {
            Ok(bytes) => to.send(&[IoSlice::new(&bytes)]),
            Err(failed) => to.fail(failed),
        }
    }

    fn write(&self, at: Part, bytes: &[u8], how: Manner) -> Answer<u32> {
        let opening = self.openings.get(at.handle)?;
        let file = opening.file;
        if how.kills {
            self.kill_privileges(file)?;
        }
        let written = match how.flags & libc::O_APPEND != 0 && !how.mapped {
            true => self.files.append(file, bytes).map(drop),
            false => self.files.write(file, at.offset, bytes),
        };
        self.differs(file);
        written?;
        self.written(file);
        if how.flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            self.sync_file(file, Some(&opening.heard))?;
        }
        Ok(bytes.len() as u32)
    }

    fn flush(&self, handle: u64) -> Answer<()> {
        self.publish(self.openings.get(handle)?.file)
    }

    fn sync(&self, handle: u64, _data_only: bool) -> Answer<()> {
        let opening = self.openings.get(handle)?;
        self.sync_file(opening.file, Some(&opening.heard))
    }

    fn release(&self, handle: u64) {
        if let Some(opening) = self.openings.take(handle) {
            self.closed(opening.file);
        }
    }

    fn allocate(&self, _at: Part, _len: u64, _mode: i32) -> Answer<()> {
        // Room cannot be promised. The C library writes zeros instead.
        Err(Failed(libc::EOPNOTSUPP))
    }

    fn seek(&self, _at: Part, _whence: i32) -> Answer<u64> {
        // The kernel then takes each file for one without holes.
        Err(Failed(libc::ENOSYS))
    }

    fn copy(&self, from: Part, to: Part, len: u64) -> Answer<u32> {
        let (source, opening) = (
            self.openings.get(from.handle)?.file,
            self.openings.get(to.handle)?,
        );
        let target = opening.file;
        self.kill_privileges(target)?;
        let copied = copy_pieces(len, |buffer, done| {
            let (offset, most) = (from.offset + done, buffer.len() as u64);
            let bytes = self.files.read(source, offset, most)?;
            self.files.write(target, to.offset + done, &bytes)?;
            Ok(bytes.len())
        });
        self.differs(target);
        self.written(target);
        // Which of its openings this goes by the kernel does not say.
        if self
            .known()
            .get(&target)
            .is_some_and(|known| known.is_synced)
        {
            self.sync_file(target, Some(&opening.heard))?;
        }
        copied
    }

    fn attribute(&self, _number: u64, _name: &OsStr, _memory: &mut [u8]) -> Answer<usize> {
        Err(Failed(libc::EOPNOTSUPP))
    }

    fn attribute_names(&self, _number: u64, _memory: &mut [u8]) -> Answer<usize> {
        Ok(0)
    }

    fn set_attribute(&self, _number: u64, _name: &OsStr, _value: &[u8], _flags: i32) -> Answer<()> {
        Err(Failed(libc::EOPNOTSUPP))
    }

    fn remove_attribute(&self, _number: u64, _name: &OsStr) -> Answer<()> {
        Err(Failed(libc::EOPNOTSUPP))
    }

    fn room(&self, _number: u64) -> Answer<StatVfs> {
        // How much the servers have room for nobody counts.
        Ok(StatVfs {
            f_bsize: BLOCK,
            f_frsize: BLOCK,
            f_blocks: 0,
            f_bfree: 0,
            f_bavail: 0,
            f_files: 0,
            f_ffree: 0,
            f_favail: 0,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: NAME_MAX,
        })
    }
}
