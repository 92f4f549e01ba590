//! Directories: looking names up, giving and taking them, listing.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay::session::marks::Mark;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom};

use crate::attributes::FileAttr;
use crate::caller::Caller;
use crate::directory::{Directory, path_of, unpacked_device};
use crate::failed::Answer;
use crate::handles::Listing;
use crate::nodes::{BY_NAME, Found};

/// Bytes of names that are asked for at once.
const LISTED_BYTES: usize = 32 << 10;

/// What a program makes beside files, directories and links.
pub(crate) struct Special {
    pub(crate) mode: u32,
    pub(crate) device: u32,
}

/// One entry of a directory.
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) inode: u64,
    pub(crate) kind: FileType,
    /// Where the next one begins.
    pub(crate) next: u64,
}

impl Directory {
    pub(crate) fn look_up(&self, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        let found = self.nodes.look_up(parent, name)?;
        self.told_or_forgotten(&found)
    }

    /// What the kernel is told counts as a lookup only if it is told.
    pub(crate) fn told_or_forgotten(&self, found: &Found) -> Answer<FileAttr> {
        let told = self.attributes_of(found);
        if told.is_err() {
            self.nodes.forget(found.number, 1);
        }
        told
    }

    pub(crate) fn make_directory(
        &self,
        by: &Caller,
        (parent, name): (u64, &OsStr),
        mode: u32,
    ) -> Answer<FileAttr> {
        let directory = self.nodes.fd(parent)?;
        let mode = Mode::from_raw_mode(mode);
        self.creators
            .make(by, || Ok(rustix::fs::mkdirat(&directory, name, mode)?))?;
        self.look_up(parent, name)
    }

    pub(crate) fn make_special(
        &self,
        by: &Caller,
        (parent, name): (u64, &OsStr),
        special: &Special,
    ) -> Answer<FileAttr> {
        let directory = self.nodes.fd(parent)?;
        let kind = FileType::from_raw_mode(special.mode);
        let mode = Mode::from_raw_mode(special.mode);
        let device = unpacked_device(special.device);
        self.creators.make(by, || {
            Ok(rustix::fs::mknodat(&directory, name, kind, mode, device)?)
        })?;
        self.look_up(parent, name)
    }

    pub(crate) fn make_symlink(
        &self,
        by: &Caller,
        (parent, name): (u64, &OsStr),
        target: &Path,
    ) -> Answer<FileAttr> {
        let directory = self.nodes.fd(parent)?;
        self.creators
            .make(by, || Ok(rustix::fs::symlinkat(target, &directory, name)?))?;
        self.look_up(parent, name)
    }

    pub(crate) fn link(&self, number: u64, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        let (fd, directory) = (self.nodes.fd(number)?, self.nodes.fd(parent)?);
        // A descriptor can be linked by root alone; what leads to it by everybody.
        let from = path_of(&fd);
        let _mark = self.session.mark(fd.as_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            from,
            &directory,
            name,
            AtFlags::SYMLINK_FOLLOW,
        )?;
        if let Some(linked) = hold(&directory, name) {
            self.session.follow_linked(linked.as_fd());
        }
        self.look_up(parent, name)
    }

    pub(crate) fn unlink(&self, parent: u64, name: &OsStr, flags: AtFlags) -> Answer<()> {
        let directory = self.nodes.fd(parent)?;
        // It may have other names.
        let held = hold(&directory, name);
        let _mark = self.mark(&held);
        rustix::fs::unlinkat(&directory, name, flags)?;
        if let Some(held) = &held {
            self.session.follow_unlinked(held.as_fd());
        }
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: u32,
    ) -> Answer<()> {
        let flags = RenameFlags::from_bits_retain(flags);
        let (from, to) = (self.nodes.fd(parent)?, self.nodes.fd(new_parent)?);
        {
            let (held, replaced) = (hold(&from, name), hold(&to, new_name));
            let _marks = (self.mark(&held), self.mark(&replaced));
            rustix::fs::renameat_with(&from, name, &to, new_name, flags)?;
            for fd in [&held, &replaced].into_iter().flatten() {
                self.session.follow_renamed(fd.as_fd());
            }
            // It may have other names.
            if let Some(replaced) = &replaced {
                self.session.follow_unlinked(replaced.as_fd());
            }
        }
        self.nodes.named(new_parent, new_name);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.nodes.named(parent, name);
        }
        Ok(())
    }

    fn mark<'a>(&'a self, held: &'a Option<OwnedFd>) -> Option<Mark<'a>> {
        self.session.mark(held.as_ref()?.as_fd())
    }

    pub(crate) fn read_link(&self, number: u64) -> Answer<Vec<u8>> {
        let target = rustix::fs::readlinkat(&self.nodes.fd(number)?, "", Vec::new())?;
        Ok(target.into_bytes())
    }

    pub(crate) fn open_directory(&self, number: u64) -> Answer<u64> {
        self.has_room_for_listing()?;
        let fd = self.reopen(number, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(self.listings.add(Listing { fd: fd.into() }))
    }

    /// Gives the entries from a place on, in the directory's order, until `take` says that it has enough.
    pub(crate) fn list(
        &self,
        handle: u64,
        from: u64,
        mut take: impl FnMut(&Listed<'_>) -> bool,
    ) -> Answer<()> {
        let listing = self.listings.get(handle)?;
        let fd = listing
            .fd
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        rustix::fs::seek(&*fd, SeekFrom::Start(from))?;
        let mut memory = vec![MaybeUninit::uninit(); LISTED_BYTES];
        let mut entries = RawDir::new(fd.as_fd(), &mut memory);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let listed = Listed {
                name: OsStr::from_bytes(entry.file_name().to_bytes()),
                inode: entry.ino(),
                kind: entry.file_type(),
                next: entry.next_entry_cookie(),
            };
            if take(&listed) {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn sync_directory(&self, handle: u64) -> Answer<()> {
        let listing = self.listings.get(handle)?;
        let fd = listing
            .fd
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        Ok(rustix::fs::fsync(&*fd)?)
    }

    /// Makes a file that was not there.
    pub(crate) fn create_plain(
        &self,
        by: &Caller,
        (parent, name): (u64, &OsStr),
        access: OFlags,
        mode: u32,
    ) -> Answer<(OwnedFd, Found)> {
        let directory = self.nodes.fd(parent)?;
        let mode = Mode::from_raw_mode(mode);
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.creators.make(by, || {
            Ok(rustix::fs::openat(&directory, name, flags, mode)?)
        })?;
        self.enter_made(file, parent, name)
    }

    /// Makes a file without a name.
    pub(crate) fn create_plain_nameless(
        &self,
        by: &Caller,
        parent: u64,
        access: OFlags,
        mode: u32,
    ) -> Answer<(OwnedFd, Found)> {
        let directory = self.nodes.fd(parent)?;
        let mode = Mode::from_raw_mode(mode);
        // Without O_EXCL, whatever the program says: whether it may get a name the kernel decides before it asks for one.
        let flags = access | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = self
            .creators
            .make(by, || Ok(rustix::fs::openat(&directory, ".", flags, mode)?))?;
        // It is open, so that it keeps its descriptor and needs no name to be found by.
        self.enter_made(file, parent, OsStr::new(""))
    }

    fn enter_made(&self, file: OwnedFd, parent: u64, name: &OsStr) -> Answer<(OwnedFd, Found)> {
        // By the descriptor: the name may be another file's by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let named = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = self.nodes.enter(parent, name, named)?;
        Ok((file, found))
    }
}

/// What a name leads to, held since the name may not lead there afterwards.
fn hold(directory: &OwnedFd, name: &OsStr) -> Option<OwnedFd> {
    rustix::fs::openat(directory, name, BY_NAME, Mode::empty()).ok()
}

/// Whether a name is the directory's own or its parent's.
pub(crate) fn is_dots(name: &OsStr) -> bool {
    name == "." || name == ".."
}
