//! Files by paths, for a process that has the store open itself.
//!
//! A path begins at the store's root, with or without a `/`, and so does a symbolic link's target that begins with one. Each directory on the way
//! is held until the next one is, so that no number comes to mean another file meanwhile; an open file is held until it is closed. Permissions are
//! kept, and not looked at: whoever may open the store may do everything.

use std::sync::Arc;

use crate::errno::{Errno, Result};
use crate::store::{Store, View, Window};
use crate::types::{Attributes, Changes, Creator, Entry, OnExisting, ROOT};

/// Symbolic links that one path may go through.
const LINKS_MAX: usize = 40;

/// A store and who makes files in it.
pub struct Files {
    store: Store,
    uid: u32,
    gid: u32,
}

/// How a file is to be opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Bytes may be read.
    pub read: bool,
    /// Bytes may be written.
    pub write: bool,
    /// What is written goes to the end, wherever it is to go; counts as `write`.
    pub append: bool,
    /// Emptied.
    pub truncate: bool,
    /// Made if it is not there.
    pub create: bool,
    /// Made, and an error if it is there.
    pub create_new: bool,
    /// The mode of a file that is made; the umask is the caller's.
    pub mode: u32,
}

/// A file or directory that stays what it is while this is there.
struct Held<'a> {
    store: &'a Store,
    is: Attributes,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.store.release(self.is.inode, 1);
    }
}

impl Held<'_> {
    fn kind(&self) -> u32 {
        self.is.mode & libc::S_IFMT
    }
}

/// Where a path ends: in which directory, by what name, and what has that name. The root, and what `..` leads to, have none.
struct End<'a> {
    parent: Held<'a>,
    name: Vec<u8>,
    found: Option<Held<'a>>,
}

impl Files {
    /// Of an open store. Files that are made are this user's and this group's.
    pub fn new(store: Store, uid: u32, gid: u32) -> Arc<Self> {
        Arc::new(Self { store, uid, gid })
    }

    /// What is done by numbers.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Syncs, and closes the store if no file has it any more; whoever is last closes it.
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(self: Arc<Self>) -> Result<()> {
        let synced = self.store.sync();
        match Arc::into_inner(self) {
            Some(files) => files.store.close(),
            None => synced,
        }
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// `EISDIR` and `ENXIO` for what is none, those of finding a path, and those of making one.
    pub fn open(self: &Arc<Self>, path: &[u8], options: FileOptions) -> Result<Open> {
        let held = self.held(path, &options)?;
        match held.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno::EISDIR),
            libc::S_IFLNK => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        let inode = held.is.inode;
        if options.truncate {
            self.store.setattr(inode, &length(0))?;
        }
        self.store.hold(inode)?;
        Ok(Open {
            files: Arc::clone(self),
            inode,
            options,
        })
    }

    fn held(&self, path: &[u8], options: &FileOptions) -> Result<Held<'_>> {
        loop {
            let end = self.walk(path, !options.create_new)?;
            match end.found {
                Some(_) if options.create_new => return Err(Errno::EEXIST),
                Some(found) => return Ok(found),
                None if !options.create && !options.create_new => return Err(Errno::ENOENT),
                None => {}
            }
            // It is held before it has a name: nobody removes it in between.
            let made = self
                .store
                .tmpfile(end.parent.is.inode, self.by(options.mode))?;
            let made = Held {
                store: &self.store,
                is: made,
            };
            match self
                .store
                .link(made.is.inode, end.parent.is.inode, &end.name)
            {
                Ok(_) => return Ok(made),
                Err(Errno::EEXIST) if !options.create_new => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What a path stands for. A symbolic link at its end is followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ELOOP`, `ENAMETOOLONG`; nothing else is one of finding a path.
    pub fn find(&self, path: &[u8]) -> Result<Attributes> {
        let found = self.walk(path, true)?.found;
        Ok(found.ok_or(Errno::ENOENT)?.is)
    }

    /// The entries of a directory, in no order.
    ///
    /// # Errors
    /// `ENOTDIR`, and those of finding a path.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Entry>> {
        let found = self.walk(path, true)?.found.ok_or(Errno::ENOENT)?;
        let mut entries = Vec::new();
        self.store.readdir(found.is.inode, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(entry.clone());
            }
            true
        })?;
        Ok(entries)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST`, and those of finding a path.
    pub fn make_directory(&self, path: &[u8], mode: u32) -> Result<()> {
        let end = self.walk(path, false)?;
        if end.found.is_some() {
            return Err(Errno::EEXIST);
        }
        let made = self
            .store
            .mkdir(end.parent.is.inode, &end.name, self.by(mode));
        made.map(drop)
    }

    /// Removes a file, a symbolic link or an empty directory. A file that is open stays until it is closed.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `EBUSY` for the root, and those of finding a path.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let end = self.named(path)?;
        let (parent, name) = (end.parent.is.inode, &*end.name);
        match self.store.unlink(parent, name) {
            Err(Errno::EISDIR) => self.store.rmdir(parent, name),
            other => other,
        }
    }

    /// Renames. What has the new name is replaced.
    ///
    /// # Errors
    /// Those of [`Store::rename`], and of finding a path.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (self.named(from)?, self.named(to)?);
        let (parent, new_parent) = (from.parent.is.inode, to.parent.is.inode);
        self.store.rename(
            parent,
            &from.name,
            new_parent,
            &to.name,
            OnExisting::Replace,
        )
    }

    fn by(&self, mode: u32) -> Creator {
        let (uid, gid) = (self.uid, self.gid);
        Creator { uid, gid, mode }
    }

    /// For what is done to a name.
    fn named(&self, path: &[u8]) -> Result<End<'_>> {
        let end = self.walk(path, false)?;
        match end.name.is_empty() {
            true => Err(Errno::EBUSY),
            false => Ok(end),
        }
    }

    fn hold(&self, inode: u64) -> Result<Held<'_>> {
        self.store.hold(inode)?;
        let store = &self.store;
        // Held from here on, whatever becomes of its names.
        match store.getattr(inode) {
            Ok(is) => Ok(Held { store, is }),
            Err(error) => {
                store.release(inode, 1);
                Err(error)
            }
        }
    }

    fn walk(&self, path: &[u8], follows: bool) -> Result<End<'_>> {
        let mut rest: Vec<Vec<u8>> = parts(path).rev().collect();
        let mut here = self.hold(ROOT)?;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let found = match self.store.lookup_held(here.is.inode, &name) {
                Ok(is) => Some(Held {
                    store: &self.store,
                    is,
                }),
                Err(Errno::ENOENT) => None,
                Err(error) => return Err(error),
            };
            let is_last = rest.is_empty();
            match found {
                Some(found) if found.kind() == libc::S_IFLNK && (follows || !is_last) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::ELOOP);
                    }
                    let target = self.store.readlink(found.is.inode)?;
                    if target.first() == Some(&b'/') {
                        here = self.hold(ROOT)?;
                    }
                    rest.extend(parts(&target).rev());
                }
                found if is_last && name != b".." => {
                    let parent = here;
                    return Ok(End {
                        parent,
                        name,
                        found,
                    });
                }
                Some(found) => here = found,
                None => return Err(Errno::ENOENT),
            }
        }
        Ok(End {
            parent: self.hold(ROOT)?,
            name: Vec::new(),
            found: Some(here),
        })
    }
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
}

fn length(size: u64) -> Changes {
    let size = Some(size);
    Changes {
        size,
        ..Changes::default()
    }
}

/// An open file. It keeps its store open.
pub struct Open {
    files: Arc<Files>,
    inode: u64,
    options: FileOptions,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.store().release(self.inode, 1);
    }
}

impl Open {
    fn store(&self) -> &Store {
        &self.files.store
    }

    /// Whose it is.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Closes, and syncs nothing unless nobody has the store any more.
    ///
    /// # Errors
    /// Those of [`Store::close`], where that is done.
    pub fn close(self) -> Result<()> {
        let files = Arc::clone(&self.files);
        drop(self);
        Arc::into_inner(files).map_or(Ok(()), |files| files.store.close())
    }

    fn must(&self, may: bool, or: Errno) -> Result<()> {
        may.then_some(()).ok_or(or)
    }

    fn must_read(&self) -> Result<()> {
        self.must(self.options.read, Errno::EBADF)
    }

    fn must_write(&self) -> Result<()> {
        self.must(self.options.write || self.options.append, Errno::EBADF)
    }

    /// Reads; less than there is room for only at the end of the file.
    ///
    /// # Errors
    /// `EBADF`, and those of [`Store::read`].
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.must_read()?;
        self.store().read(self.inode, offset, into)
    }

    /// Writes, at the end where it was opened for appending. Less than all where the store becomes full.
    ///
    /// # Errors
    /// `EBADF`, and those of [`Store::write`].
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        if self.options.append {
            return self.append_some(bytes).map(|(_, written)| written);
        }
        self.must_write()?;
        self.store().write(self.inode, offset, bytes)
    }

    /// Writes at the end, in one piece, and says where that was, and how many bytes. Less than all where the store becomes full.
    ///
    /// # Errors
    /// `EBADF`, and those of [`Store::append`].
    pub fn append_some(&self, bytes: &[u8]) -> Result<(u64, usize)> {
        self.must_write()?;
        self.store().append(self.inode, bytes)
    }

    /// Writes at the end, in one piece, and says where that was.
    ///
    /// # Errors
    /// `EBADF`, those of [`Store::append`], and `ENOSPC` also after some bytes, which stay.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let (at, written) = self.append_some(bytes)?;
        self.must(written == bytes.len(), Errno::ENOSPC)?;
        Ok(at)
    }

    /// Everything that was done in the store before is durable when this returns.
    ///
    /// # Errors
    /// Those of [`Store::fsync`].
    pub fn sync(&self) -> Result<()> {
        self.store().fsync(self.inode)
    }

    /// How long it is, in bytes.
    pub fn size(&self) -> Result<u64> {
        Ok(self.store().getattr(self.inode)?.size)
    }

    /// Gives it another length.
    ///
    /// # Errors
    /// `EINVAL` where it may not be written, as of `ftruncate`, and those of [`Store::setattr`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.must(self.must_write().is_ok(), Errno::EINVAL)?;
        self.store().setattr(self.inode, &length(size)).map(drop)
    }

    /// Makes a range zeros, and gives its space back. The length stays.
    ///
    /// # Errors
    /// `EBADF`, and those of [`Store::fallocate`].
    pub fn punch(&self, offset: u64, length: u64) -> Result<()> {
        self.must_write()?;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.store().fallocate(self.inode, mode, offset, length)
    }

    /// See [`Store::view`].
    ///
    /// # Errors
    /// `EBADF`, and those of [`Store::view`].
    pub fn view(&self, offset: u64, length: usize) -> Result<View> {
        self.must_read()?;
        self.store().view(self.inode, offset, length)
    }

    /// See [`Store::window`].
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` where it was opened for appending, and those of [`Store::window`].
    pub fn window(&self, offset: u64, length: usize) -> Result<Window> {
        self.must_write()?;
        self.must(!self.options.append, Errno::EINVAL)?;
        self.store().window(self.inode, offset, length)
    }
}
