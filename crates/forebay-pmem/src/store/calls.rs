//! The calls of a store: each takes the lock, does its operation, and lets go.

use std::ops::Range;

use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::operations::files::{Allocation, CHUNK_PAGES};
use crate::operations::{attributes, files, names, orphans};
use crate::state::{Room, State};
use crate::types::{Attributes, Changes, Creator, Entry, NAME_MAX, OnExisting, Statistics, Whence};

use super::{Inner, Store};

const PAGE: u64 = BLOCK as u64;

/// What `statfs` tells.
pub(super) fn statistics(state: &State) -> Statistics {
    let geometry = state.geometry();
    Statistics {
        block_size: BLOCK as u32,
        blocks: geometry.blocks - geometry.data,
        blocks_free: state.blocks.free(),
        blocks_available: state.available(Room::New),
        inodes: geometry.inodes - 1,
        inodes_free: state.inodes.free(),
        name_length_max: NAME_MAX as u32,
    }
}

impl Inner {
    /// See [`Store::release`].
    pub(super) fn release(&self, inode: u64, count: u64) {
        let is_to_go = {
            let state = self.read();
            let has_no_name = || state.inode(inode).is_ok_and(|inode| inode.links == 0);
            state.held.release(inode, count) && has_no_name()
        };
        if is_to_go {
            // What cannot be freed stays in the list of those without a name.
            let _ = self.change(|state| match state.held.holds(inode) {
                true => Ok(()),
                false => orphans::released(state, inode),
            });
        }
    }
}

impl Store {
    /// Finds a name in a directory; "." and ".." are answered too.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        names::lookup(&self.inner.read(), parent, name)
    }

    /// Finds a name, and holds what it leads to: nobody can remove it in between.
    pub fn lookup_held(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        let state = self.inner.read();
        let found = names::lookup(&state, parent, name)?;
        state.held.hold(found.inode);
        Ok(found)
    }

    /// What a file is.
    pub fn getattr(&self, inode: u64) -> Result<Attributes> {
        Ok(names::attributes(inode, &self.inner.read().inode(inode)?))
    }

    /// Changes what a file is; a size cuts or extends it.
    pub fn setattr(&self, inode: u64, changes: &Changes) -> Result<Attributes> {
        // Bytes and sizes of a file are changed by one call at a time.
        let _turn = changes.size.map(|_| self.inner.turn(inode));
        self.inner
            .change(|state| files::change(state, inode, changes))
    }

    /// Keeps a file when its last name goes, until it is released as often as it was held.
    pub fn hold(&self, inode: u64) -> Result<()> {
        let state = self.inner.read();
        state.inode(inode)?;
        state.held.hold(inode);
        Ok(())
    }

    /// Lets go `count` times. A file without a name that nobody holds is freed; if that fails, the next open
    /// of the store does it.
    pub fn release(&self, inode: u64, count: u64) {
        self.inner.release(inode, count);
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: u64, name: &[u8], by: Creator) -> Result<Attributes> {
        self.mknod(parent, name, with_kind(by, libc::S_IFDIR), 0)
    }

    /// Makes a regular file; fails with `EEXIST` if the name is taken.
    pub fn create(&self, parent: u64, name: &[u8], by: Creator) -> Result<Attributes> {
        self.mknod(parent, name, with_kind(by, libc::S_IFREG), 0)
    }

    /// Makes a file of the type that the mode says.
    pub fn mknod(&self, parent: u64, name: &[u8], by: Creator, device: u32) -> Result<Attributes> {
        self.inner
            .change(|state| names::make(state, parent, name, by, device))
    }

    /// Makes a regular file without a name, held once; [`Store::link`] gives it one.
    pub fn tmpfile(&self, directory: u64, by: Creator) -> Result<Attributes> {
        let by = with_kind(by, libc::S_IFREG);
        self.inner.change(|state| {
            let made = names::make_nameless(state, directory, by)?;
            state.hold(made.inode);
            Ok(made)
        })
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        by: Creator,
    ) -> Result<Attributes> {
        self.inner.change_giving(target, |state| {
            names::make_link(state, parent, name, target, by)
        })
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, inode: u64) -> Result<Vec<u8>> {
        names::target(&self.inner.read(), inode)
    }

    /// Gives a file another name.
    pub fn link(&self, inode: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        self.inner
            .change(|state| names::link(state, inode, parent, name))
    }

    /// Removes a name of a file that is no directory.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.inner
            .change(|state| names::unlink(state, parent, name))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.inner.change(|state| names::rmdir(state, parent, name))
    }

    /// Renames.
    pub fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        existing: OnExisting,
    ) -> Result<()> {
        self.inner
            .change(|state| names::rename(state, (parent, name), (new_parent, new_name), existing))
    }

    /// Reads; less than asked for only at the end of the file.
    pub fn read(&self, inode: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        files::read(&self.inner.read(), inode, offset, into)
    }

    /// Writes. Up to 2 MiB that lie in one aligned 2 MiB of the file are written as a whole or not at all;
    /// more in such pieces, and less than all where the store becomes full. No other call changes the file's
    /// bytes or size between two pieces.
    pub fn write(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        let _turn = self.inner.turn(inode);
        self.write_pieces(inode, offset, bytes)
    }

    /// Writes at the end of a file; answers where, and how much.
    pub fn append(&self, inode: u64, bytes: &[u8]) -> Result<(u64, usize)> {
        let _turn = self.inner.turn(inode);
        let end = self.getattr(inode)?.size;
        let written = self.write_pieces(inode, end, bytes)?;
        Ok((end, written))
    }

    /// The caller has the file's turn.
    fn write_pieces(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        let mut pages = CHUNK_PAGES;
        if bytes.is_empty() {
            return self.getattr(inode).map(|_| 0);
        }
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            let piece = piece(at, bytes.len() - done, pages);
            let part = &bytes[done..done + piece];
            match self
                .inner
                .change_giving(part, |state| files::write(state, inode, at, piece))
            {
                Ok(()) => done += piece,
                // Smaller pieces may have room, where each frees what it replaces.
                Err(Errno::ENOSPC) if pages > 1 => pages /= 8,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// `fallocate`, of up to 2 MiB as a whole or not at all: allocates, keeps the size or not, punches holes, makes zeros; other modes are
    /// `EOPNOTSUPP`. Where a store has no room for all of a range, nothing is allocated and nothing becomes zeros.
    pub fn fallocate(&self, inode: u64, mode: i32, offset: u64, length: u64) -> Result<()> {
        let asked = Allocation::from_mode(mode)?;
        let _turn = self.inner.turn(inode);
        let end = files::check_range(&self.inner.read(), inode, offset, length)?;
        let pages = offset / PAGE..end.div_ceil(PAGE);
        if asked.allocate && pages.end - pages.start > CHUNK_PAGES {
            self.allocate(inode, pages)?;
            if asked.punch {
                self.zero(inode, offset..end)?;
            }
            return match asked.keep_size {
                true => Ok(()),
                false => self.inner.change(|state| files::extend(state, inode, end)),
            };
        }
        // What is punched only is one step, whatever its length.
        self.inner.change(|state| {
            match (asked.allocate, asked.punch) {
                (true, true) => {
                    files::allocate(state, inode, pages.clone())?;
                    files::zero(state, inode, offset..end)?;
                }
                (true, false) => files::allocate(state, inode, pages.clone())?,
                (false, _) => files::punch(state, inode, offset..end)?,
            }
            match asked.keep_size {
                true => Ok(()),
                false => files::extend(state, inode, end),
            }
        })
    }

    /// Allocates in steps, if there is room for all of it. The caller has the file's turn.
    fn allocate(&self, inode: u64, pages: Range<u64>) -> Result<()> {
        self.inner
            .change(|state| files::check_room(state, inode, pages.clone()))?;
        let mut page = pages.start;
        while page < pages.end {
            let next = (page + CHUNK_PAGES).min(pages.end);
            self.inner
                .change(|state| files::allocate(state, inode, page..next))?;
            page = next;
        }
        Ok(())
    }

    /// Makes zeros of what has space, in steps. The caller has the file's turn.
    fn zero(&self, inode: u64, range: Range<u64>) -> Result<()> {
        let (mut at, mut pages) = (range.start, CHUNK_PAGES);
        while at < range.end {
            let next = ((at / PAGE + pages) * PAGE).min(range.end);
            match self
                .inner
                .change(|state| files::zero(state, inode, at..next))
            {
                Ok(()) => at = next,
                // Smaller pieces may have room, where each frees what it replaces.
                Err(Errno::ENOSPC) if pages > 1 => pages /= 8,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How far all bytes from `offset` on have space, written or not; `end` at most.
    pub fn allocated_to(&self, inode: u64, offset: u64, end: u64) -> Result<u64> {
        files::allocated_to(&self.inner.read(), inode, offset, end)
    }

    /// The next byte that was written, or that was not, as `lseek`.
    pub fn seek(&self, inode: u64, offset: u64, whence: Whence) -> Result<u64> {
        files::seek(&self.inner.read(), inode, offset, whence)
    }

    /// Entries after `cookie` (0: from the start), until `each` answers false; that entry counts as not
    /// taken. `each` may call the store.
    pub fn readdir(
        &self,
        inode: u64,
        cookie: u64,
        each: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<()> {
        let mut cookie = Some(cookie);
        while let Some(from) = cookie {
            let (entries, next) = names::list(&self.inner.read(), inode, from)?;
            if !entries.iter().all(&mut *each) {
                return Ok(());
            }
            cookie = next;
        }
        Ok(())
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, inode: u64, name: &[u8]) -> Result<Vec<u8>> {
        let list = attributes::list(&self.inner.read(), inode)?;
        let found = list.into_iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or(Errno::ENODATA)
    }

    /// Sets an extended attribute; `flags` as `setxattr` has them.
    pub fn setxattr(&self, inode: u64, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.inner
            .change(|state| attributes::set(state, inode, name, value, flags))
    }

    /// The names of a file's extended attributes.
    pub fn listxattr(&self, inode: u64) -> Result<Vec<Vec<u8>>> {
        let list = attributes::list(&self.inner.read(), inode)?;
        Ok(list.into_iter().map(|(name, _)| name).collect())
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, inode: u64, name: &[u8]) -> Result<()> {
        self.inner
            .change(|state| attributes::remove(state, inode, name))
    }

    /// How much there is, and how much is free.
    pub fn statfs(&self) -> Statistics {
        statistics(&self.inner.read())
    }

    /// When this returns, the file is durable, and so is everything that was done in the store before.
    pub fn fsync(&self, inode: u64) -> Result<()> {
        if !self.inner.read().is_inode_marked(inode)? {
            return Err(Errno::ENOENT);
        }
        self.sync()
    }

    /// When this returns, everything that was done in the store before is durable.
    pub fn sync(&self) -> Result<()> {
        if self.inner.read().read_only == Some(Errno::EROFS) {
            return Ok(());
        }
        self.inner.commit(false)
    }
}

fn with_kind(by: Creator, kind: u32) -> Creator {
    Creator {
        mode: by.mode & 0o7777 | kind,
        ..by
    }
}

/// Bytes of the next piece of a write: to the end of the aligned part of so many pages that it begins in.
pub(super) fn piece(offset: u64, bytes: usize, pages: u64) -> usize {
    let size = pages * PAGE;
    bytes.min((size - offset % size) as usize)
}
