//! A process's managed file, for front ends that keep open descriptions of their own: one for each inode, however many
//! descriptors the program has of it.
//!
//! The caller keeps offsets, access modes and what each description has heard of errors, and answers by the program's own
//! descriptor where the answer is [`Halt::Kernel`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::closing::{self, Prepared};
use super::quick::Recent;
use super::read::advise::{Advise, advise};
use super::read::follow::Read;
use super::settle::{self, Durability};
use super::write::{self, Intent};
use super::{append, quick, read, resize, times};
use crate::error::Result;
use crate::evict;
use crate::file::core::{Core, Halt};
use crate::file::hasten;
use crate::flush::errors;
use crate::member::table;
use crate::member::watch::Watched;
use crate::memory::threads::Me;
use crate::route::Route;
use crate::sync::Ordering;

/// A managed file of this process.
pub struct Inode {
    core: Core,
    route: Arc<dyn Route>,
    /// The keeper (its epoch) that knows of it.
    handed: AtomicU32,
    /// Writes shorter than this may try the short way.
    quick_write_below: u64,
    recent: Recent,
}

impl Inode {
    pub(crate) fn new(core: Core, path: &Path) -> Self {
        let route = Arc::clone(core.shared.route_for(path));
        let quick_write_below = route.quick_scrap_below();
        let inode = Inode {
            core,
            route,
            handed: AtomicU32::new(0),
            quick_write_below,
            recent: Recent::default(),
        };
        if !inode.is_writable() {
            let Core { shared, id, .. } = &inode.core;
            shared.announce_reader(*id, &inode.handed);
        }
        inode
    }

    /// The file's place in the session's table.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Whether its device file may be written.
    pub fn is_writable(&self) -> bool {
        self.core.device.is_writable()
    }

    /// Whether the kernel serves the file by now.
    #[inline]
    pub fn is_with_kernel(&self) -> bool {
        self.core.entry().kernel_reason.load(Ordering::Acquire) != 0
    }

    /// The error sequence that a description begins with.
    pub fn error_sequence(&self) -> u32 {
        errors::sequence_to_begin_with(self.core.entry())
    }

    /// The calling thread in the file's session.
    ///
    /// # Errors
    /// [`crate::Error::Session`] when all slots are taken.
    #[inline]
    pub fn me(&self) -> Result<Me<'_>> {
        self.core.shared.me()
    }

    /// Writes at `offset` if that can be done at once, without a system call. `Err`: nothing was done; the value, whether
    /// the request follows others, is for [`Inode::write_at`].
    ///
    /// # Safety
    /// `source` is valid for `len` bytes for the whole call, or a fault in it is caught by the caller.
    #[inline(always)]
    pub unsafe fn write_at_once(
        &self,
        me: Me<'_>,
        source: *const u8,
        len: usize,
        offset: u64,
    ) -> std::result::Result<(), bool> {
        let core = &self.core;
        let stream = self.recent.stream(me);
        let sequential = stream.is_sequential(offset, len);
        let done = (len as u64) < self.quick_write_below
            && core.shared.is_handed(&self.handed)
            // SAFETY: the caller's promise.
            && unsafe { quick::write(core, me, stream, source, len, offset, sequential) };
        if done { Ok(()) } else { Err(sequential) }
    }

    /// Writes at `offset`. Returns how many bytes were written: all, unless an error came after some were.
    ///
    /// # Safety
    /// As for [`Inode::write_at_once`].
    ///
    /// # Errors
    /// As for [`crate::File::write_at`].
    #[inline(never)]
    pub unsafe fn write_at(
        &self,
        me: Me<'_>,
        source: *const u8,
        len: usize,
        offset: u64,
        sequential: bool,
    ) -> std::result::Result<usize, Halt> {
        let intent = self.begin_write(me, sequential);
        // SAFETY: the caller's promise.
        unsafe { write::write(&self.core, me, source, len, offset, intent) }
    }

    /// Before a byte is acknowledged, the keeper has what it needs to write it.
    fn begin_write(&self, me: Me<'_>, sequential: bool) -> Intent<'_> {
        settle::hand_over(&self.core, me, &self.handed);
        Intent::new(self.route.as_ref(), &self.recent, me, sequential)
    }

    /// Writes at the file's end if that can be done at once, without a system call. Returns where. `Err`: nothing was done; the value,
    /// whether the request follows others, is for [`Inode::append`].
    ///
    /// # Safety
    /// As for [`Inode::write_at_once`].
    #[inline(always)]
    pub unsafe fn append_at_once(
        &self,
        me: Me<'_>,
        source: *const u8,
        len: usize,
    ) -> std::result::Result<u64, bool> {
        let core = &self.core;
        let may = (len as u64) < self.quick_write_below && core.shared.is_handed(&self.handed);
        // SAFETY: the caller's promise.
        unsafe { quick::append(core, me, self.recent.stream(me), source, len, may) }
    }

    /// Writes at the file's end. Returns where, and how many bytes.
    ///
    /// # Safety
    /// As for [`Inode::write_at_once`].
    ///
    /// # Errors
    /// As for [`Inode::write_at`].
    #[inline(never)]
    pub unsafe fn append(
        &self,
        me: Me<'_>,
        source: *const u8,
        len: usize,
        sequential: bool,
    ) -> std::result::Result<(u64, usize), Halt> {
        let intent = self.begin_write(me, sequential);
        // SAFETY: the caller's promise.
        unsafe { append::append(&self.core, me, source, len, intent) }
    }

    /// Reads at `offset` what is whole in memory, without a system call. `Err`: nothing of use was read.
    ///
    /// # Safety
    /// `target` is valid for `len` bytes for the whole call, or a fault in it is caught by the caller.
    #[inline(always)]
    pub unsafe fn read_at_once(
        &self,
        me: Me<'_>,
        target: *mut u8,
        len: usize,
        offset: u64,
    ) -> std::result::Result<(), bool> {
        let stream = self.recent.stream(me);
        let sequential = stream.is_sequential(offset, len);
        // SAFETY: the caller's promise.
        let done = unsafe { quick::read(&self.core, me, stream, target, len, offset, sequential) };
        if done { Ok(()) } else { Err(sequential) }
    }

    /// Reads at `offset`. Returns how many bytes: fewer than asked for only at the file's end, and before bytes that cannot be read.
    ///
    /// # Safety
    /// As for [`Inode::read_at_once`].
    ///
    /// # Errors
    /// As for [`crate::File::read_at`].
    #[inline(never)]
    pub unsafe fn read_at(
        &self,
        me: Me<'_>,
        target: *mut u8,
        len: usize,
        offset: u64,
        sequential: bool,
    ) -> std::result::Result<usize, Halt> {
        let following = Read {
            recent: &self.recent,
            stream: self.recent.stream(me),
            handed: &self.handed,
        };
        let memory = (target, len);
        // SAFETY: the caller's promise.
        unsafe { read::followed(&self.core, me, &following, memory, offset, sequential) }
    }

    /// Heeds what the program says about its reads of `len` bytes from `offset` on. What it says of one of its descriptions
    /// holds for all that it has of the file.
    pub fn advise(&self, me: Me<'_>, offset: u64, len: u64, advice: Advise) {
        let range = (offset, len);
        advise(&self.core, me, &self.recent, &self.handed, range, advice);
    }

    /// The length.
    ///
    /// # Errors
    /// [`Halt::Kernel`], and the device's.
    pub fn size(&self, me: Me<'_>) -> std::result::Result<u64, Halt> {
        if self.is_with_kernel() {
            return Err(Halt::Kernel);
        }
        self.core.size(me)
    }

    /// Sets the length.
    ///
    /// # Errors
    /// As for [`crate::File::set_len`].
    pub fn set_len(&self, me: Me<'_>, len: u64) -> std::result::Result<(), Halt> {
        resize::set_len(&self.core, me, len)
    }

    /// Makes it at least so long.
    ///
    /// # Errors
    /// As for [`crate::File::set_len`].
    pub fn grow(&self, me: Me<'_>, len: u64) -> std::result::Result<(), Halt> {
        resize::grow(&self.core, me, len)
    }

    /// Makes a range zeros and gives its space back.
    ///
    /// # Errors
    /// As for [`crate::File::punch`].
    pub fn punch(&self, me: Me<'_>, offset: u64, len: u64) -> std::result::Result<(), Halt> {
        resize::punch(&self.core, me, offset, len)
    }

    /// Flushes, and makes it as durable as asked. `seen` is what the description has heard of errors.
    ///
    /// # Errors
    /// The first error since the description last heard of one.
    pub fn settle(&self, me: Me<'_>, durability: Durability, seen: &AtomicU32) -> Result<()> {
        self.hasten();
        settle::settle(&self.core, me, durability, seen)
    }

    /// Makes its times final before its close, where that is done at once. See [`times`].
    pub fn finish_times(&self, me: Me<'_>) {
        times::finish(&self.core, me);
    }

    /// Syncs in a row, by anybody in the session, that had little to write, and no large write before them.
    pub fn small_syncs(&self) -> u32 {
        self.core.entry().small_syncs()
    }

    /// Gives the file to the kernel, for the whole session, until its entry is another file's. `reason` is not 0.
    ///
    /// # Errors
    /// As for [`Inode::settle`]; the file stays managed then.
    pub fn to_kernel(&self, me: Me<'_>, reason: u32) -> Result<()> {
        if self.is_with_kernel() {
            return Ok(());
        }
        settle::to_kernel(&self.core, me, reason)
    }

    /// The process's last description of the file is closed: flushed, and no descriptor of it is left with the process, nor
    /// with the keeper if nobody else writes it.
    ///
    /// # Errors
    /// As for [`Inode::settle`]; it is closed all the same.
    pub fn close(self, me: Me<'_>, seen: &AtomicU32) -> Result<()> {
        self.end(me, seen)
    }

    /// As [`Inode::close`]; with what takes the guard's mark away afterwards, which has the descriptors until it is dropped. `None`: there
    /// is no mark, or it stays.
    pub fn close_watched(self, me: Me<'_>, seen: &AtomicU32) -> (Result<()>, Option<Watched>) {
        let closed = self.end(me, seen);
        // Only now: a process gives its descriptors back when nobody but the closer has them.
        let Core { shared, device, .. } = &self.core;
        let watched = Watched::of(shared, device).filter(|_| device.is_writable());
        (closed, watched)
    }

    fn end(&self, me: Me<'_>, seen: &AtomicU32) -> Result<()> {
        let Core { shared, id, device } = &self.core;
        if device.is_writable() {
            self.hasten();
            let closed = settle::close(&self.core, me, Durability::Kernel, seen);
            shared.closed(*id, device);
            shared.released(*id, &self.handed);
            table::forget_closed(shared, me, *id);
            return closed;
        }
        if table::close(shared, *id, false) {
            evict::give_stock_back(me, *id);
            closing::leave_again(&self.core, me);
        }
        shared.released_reader(*id, &self.handed);
        Ok(())
    }

    /// Whether a close of the process's last description may leave what is owed to the keeper; everything is ready then, and
    /// [`Inode::leave`] is to follow once the program's own descriptor is closed.
    pub fn prepare_to_leave(&self, me: Me<'_>, seen: &AtomicU32) -> Option<Prepared> {
        closing::prepare(&self.core, me, &self.handed, seen)
    }

    /// As [`Inode::close`], without waiting for what is owed, if nobody can notice. The program has no descriptor of it any more.
    ///
    /// # Errors
    /// As for [`Inode::settle`], where it had to be waited for.
    pub fn leave(self, me: Me<'_>, seen: &AtomicU32, prepared: &Prepared) -> Result<()> {
        closing::leave(&self.core, me, &self.handed, seen, prepared)
    }

    /// Much of a scattered sync is the keeper's work.
    fn hasten(&self) {
        // Without a slot there is nothing to hasten; the sync says so.
        let _ = hasten::begin(&self.core, &self.handed);
    }

    /// Whether the keeper of today knows of it; for reports.
    pub fn is_handed(&self) -> bool {
        self.handed.load(Relaxed) != 0
    }
}
