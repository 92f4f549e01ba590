//! Bringing a file to its device: sync, close, and giving a file to the kernel.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::device::{Cached, DeviceFile};
use crate::error::{Error, Result, errno_of};
use crate::evict;
use crate::file::append::AppendLock;
use crate::file::core::{Core, Halt};
use crate::file::{closing, resize, synced, write};
use crate::flush::{Outcome, Scope, errors};
use crate::ids::{FileId, ThreadId};
use crate::limits::{PAGE_BYTES, PASSED_BYTES_MAX};
use crate::member::guard;
use crate::member::left;
use crate::member::{given, table};
use crate::memory::files::{ASKED, FileEntry, VIEWED};
use crate::memory::threads::{self, Me, stop_file};
use crate::stats::Counter;
use crate::sync::time::Instant;
use crate::sync::{Ordering, planted};

/// Pages that are passed on into the kernel's cache at most.
const PASSED_PAGES_MAX: u64 = PASSED_BYTES_MAX / PAGE_BYTES as u64;

/// How long a close waits for a repair.
const REPAIR_PATIENCE: Duration = Duration::from_secs(1);

/// How much a sync promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The bytes are with the kernel, in its cache or on the device: what close and outsiders need.
    Kernel,
    /// The bytes are with the device.
    Written,
    /// `fdatasync`.
    Data,
    /// `fsync`.
    All,
}

impl Durability {
    /// Whether the device is asked to make the bytes durable.
    pub fn syncs(self) -> bool {
        matches!(self, Durability::Data | Durability::All)
    }
}

/// Flushes everything that is owed, and makes it as durable as asked. `seen` is the description's error sequence: an
/// error that it has not reported is reported now, even if this flush succeeds, unless everything has been written since.
pub fn settle(core: &Core, me: Me<'_>, durability: Durability, seen: &AtomicU32) -> Result<()> {
    let syncs = durability.syncs();
    if syncs {
        core.entry().note_sync();
    }
    let size = core.size(me).map_err(Core::ended)?;
    let (outcome, early) = match durability {
        Durability::Kernel => (pass_on(core, me), None),
        _ if !core.device.is_writable() => (flush_by_others(core, me, size), None),
        _ if syncs && core.device.has_sync_and_stat() => synced::flush(core, me),
        _ => (flush(core, me, Scope::SYNC), None),
    };
    if syncs && outcome.pages_written > 0 {
        let is_small = outcome.pages_written <= write::SMALL_SYNC_PAGES;
        core.entry().count_sync(is_small);
    }
    if outcome.errno.is_none() && core.device.is_writable() {
        match resize::fit_length(core, me, size) {
            // How long such a file is, the kernel knows.
            Err(Halt::Kernel) => {}
            fitted => fitted.map_err(Core::ended)?,
        }
    }
    let early = early.and_then(|early| early.counts(core.entry().changes.load(Ordering::Acquire)));
    let (synced, before) = match early {
        Some((synced, before)) => (synced.map(|()| me.await_syncs(core.id)), before),
        None => {
            let before = errors::sequence(core.entry());
            let synced = match syncs {
                true => sync(core, me, durability),
                false => Ok(()),
            };
            (synced, before)
        }
    };
    me.count(Counter::Syncs as usize, 1);
    let all_well = synced.is_ok() && outcome.errno.is_none();
    if syncs && all_well && errors::sequence(core.entry()) == before {
        errors::synced(core.entry());
    }
    // Asked after the flush: this call's own failure is in the sequence as well.
    let errno = errors::unreported(core.entry(), seen).or(outcome.errno);
    if let Some(errno) = errno {
        return Err(Error::device(
            "flush",
            &std::io::Error::from_raw_os_error(errno),
        ));
    }
    synced.map_err(|e| Error::device("sync", &e))
}

/// Has the device make durable what it was given.
fn sync(core: &Core, me: Me<'_>, durability: Durability) -> std::io::Result<()> {
    me.at_sync(core.id, || {
        let synced = match durability {
            _ if planted!(SkipDeviceSync) => Ok(()),
            Durability::Data => core.device.sync_data(),
            _ => core.device.sync_all(),
        };
        if planted!(SwallowSyncError) {
            return Ok(());
        }
        // The device has one description for all of ours, and tells it once.
        synced.inspect_err(|error| errors::record_sync(core.entry(), errno_of(error)))
    })?;
    me.await_syncs(core.id);
    Ok(())
}

/// Flushes within a scope, noting for recovery that the changes to the device file are ours.
pub fn flush(core: &Core, me: Me<'_>, scope: Scope) -> Outcome {
    let entry = core.entry();
    if entry.owed_pages.load(Ordering::Acquire) == 0 {
        return Outcome::default();
    }
    core.shared.flush(me, core.id, &core.device, scope)
}

/// What a description that may not write owes to a sync: the keeper writes, and gives the device file its length. Without a keeper that answers this
/// process opens the file as a recovery would. Where it may not either, the sync fails if bytes are owed.
fn flush_by_others(core: &Core, me: Me<'_>, size: u64) -> Outcome {
    if !core.entry().owes() || core.shared.ask_to_flush(core.id) {
        return Outcome::default();
    }
    if let Some(by) = core.opened_to_write() {
        let mut outcome = flush(&by, me, Scope::SYNC);
        if outcome.errno.is_none()
            && let Err(Halt::Failed(error)) = resize::fit_length(&by, me, size)
        {
            outcome.errno = Some(error.errno());
        }
        return outcome;
    }
    let owes = core.entry().owed_pages.load(Ordering::Acquire) != 0;
    Outcome {
        errno: owes.then_some(libc::EIO),
        ..Outcome::default()
    }
}

/// Gives the kernel what is owed. A little goes into its cache, as if nobody had managed the file; much to the device, past a second
/// copy. What the device has refused stays here until it takes it: the kernel would drop it.
fn pass_on(core: &Core, me: Me<'_>) -> Outcome {
    let owed = core.entry().owed_pages.load(Ordering::Acquire);
    let refused = core.entry().failures.load(Ordering::Relaxed) != 0;
    if owed != 0 && owed <= PASSED_PAGES_MAX && !refused {
        let device: Arc<dyn DeviceFile> = Arc::new(Cached::new(&core.device));
        core.shared.flush(me, core.id, &device, Scope::SYNC);
    }
    // All of it, or what could not be passed on.
    flush(core, me, Scope::SYNC)
}

/// Whether somebody has died changing the file, and nobody has repaired that yet.
pub fn is_left_changing(core: &Core, me: Me<'_>) -> bool {
    let is_dead = |thread| thread != ThreadId::NOBODY && threads::is_gone(me.arena, thread);
    let threads = me.arena.counts().threads;
    core.entry().is_changed_by(threads, is_dead)
}

/// Once a file is closed outsiders change it. A repair that comes after that could not tell their doing from that of the dead, so a close waits
/// for it, though not for a program that is stopped.
fn await_repair(core: &Core, me: Me<'_>) {
    if !is_left_changing(core, me) {
        return;
    }
    let begun = Instant::now();
    // The first wait asks for a repair.
    for round in 8.. {
        me.wait(round);
        if !is_left_changing(core, me) || begun.elapsed() > REPAIR_PATIENCE {
            return;
        }
    }
}

/// The last close of a description: flush, and with the file's last one, give reserved space back.
pub fn close(core: &Core, me: Me<'_>, durability: Durability, seen: &AtomicU32) -> Result<()> {
    await_repair(core, me);
    let settled = settle(core, me, durability, seen);
    close_settled(core, me);
    settled
}

/// As [`close`], of a file to which somebody from outside may just have come: it is the kernel's, and what is reserved beyond its end stays, since an
/// outsider that appends there would lose by the cut.
pub fn close_to_kernel(core: &Core, me: Me<'_>, seen: &AtomicU32) -> Result<()> {
    await_repair(core, me);
    let settled = settle(core, me, Durability::Kernel, seen);
    to_kernel_if_flushed(me, core.id, given::OUTSIDER);
    close_settled(core, me);
    settled
}

fn close_settled(core: &Core, me: Me<'_>) {
    if table::close(&core.shared, core.id, core.device.is_writable()) {
        let size = core.entry().size.load(Ordering::Acquire);
        core.shared.likely.note(size);
        trim(core, me, |_| !core.shared.is_open(core.id));
        evict::give_stock_back(me, core.id);
        // Nobody can open a file without a name again, and what the kernel has is read from there: this memory is of no more use. Views
        // need it here: the next one would read all of it again.
        let nameless = || matches!(core.device.stat(), Ok(stat) if stat.links == 0);
        if !is_kept_for_views(core) && core.device.is_cached() || nameless() {
            evict::evict_file(me, core.id);
        }
    }
}

/// Whether views have shown bytes of the file since it was opened. Without a guard nobody would hear of an outsider that has the file mapped.
fn is_kept_for_views(core: &Core) -> bool {
    let was = core.entry().flags.fetch_and(!VIEWED, Ordering::Relaxed);
    let guard = core.shared.arena.superblock().guard.load(Ordering::Acquire);
    was & VIEWED != 0 && guard != guard::NONE
}

/// Makes the device file of a file that owes nothing, and that nobody writes any more, what it should be: as long as the file,
/// and without space beyond it. What those that died have left.
pub fn finish(core: &Core, me: Me<'_>) -> std::result::Result<(), Halt> {
    let size = core.size(me)?;
    resize::fit_length(core, me, size)?;
    trim(core, me, |entry| entry.writers() == 0);
    closing::restore_time(core, me);
    Ok(())
}

/// Gives back what was reserved beyond the end, unless a program has asked for any, if the file owes nothing and, once it is stopped, `may` agrees. Whether it
/// did. Best effort: a failure costs space, not bytes.
pub fn trim(core: &Core, me: Me<'_>, may: impl Fn(&FileEntry) -> bool) -> bool {
    let entry = core.entry();
    let owes = || entry.owed_pages.load(Ordering::Acquire) != 0;
    let nothing_there = entry.reserve_step.load(Ordering::Relaxed) == 0;
    if nothing_there || owes() || !core.device.is_writable() {
        return false;
    }
    let Some(_stop) = stop_file(me, core.id) else {
        return false;
    };
    // A program that appends by the kernel would lose what it has appended.
    let is_kernels = entry.kernel_reason.load(Ordering::Acquire) != 0;
    if is_kernels || !may(entry) || owes() {
        return false;
    }
    if entry.flags.load(Ordering::Acquire) & ASKED != 0 {
        entry.reserve_step.store(0, Ordering::Release);
        return true;
    }
    let size = entry.size.load(Ordering::Acquire);
    core.change(me, |device| {
        // First: a thread that writes there from here on asks again. And not before the change has begun: outsiders come in once the file lacks
        // nothing, and nobody changes it; what they append would be cut.
        entry.reserved_end.store(
            size.min(entry.reserved_end.load(Ordering::Acquire)),
            Ordering::Release,
        );
        entry.reserve_step.store(0, Ordering::Release);
        device.trim()
    })
    .is_ok()
}

/// Before a byte is acknowledged: the keeper has what it needs to write it (`Shared::hand_over`). A file whose descriptors a keeper cannot have
/// is the kernel's from now on; where it owes what cannot be written, it stays what it is.
pub fn hand_over(core: &Core, me: Me<'_>, handed: &AtomicU32) {
    let Core { shared, id, device } = core;
    if !shared.hand_over(*id, device.as_ref(), handed) {
        let _ = to_kernel(core, me, given::NO_ROOM);
    }
}

/// Flushes beside writers, after which they are made to wait for one.
const FLUSHES_BESIDE_WRITERS: u32 = 3;

/// Gives the file to the kernel from now on: everything is flushed and dropped from memory first. `reason` is a code that
/// is not 0.
pub fn to_kernel(core: &Core, me: Me<'_>, reason: u32) -> Result<()> {
    let seen = AtomicU32::new(errors::sequence(core.entry()));
    let mut flushes = 0;
    loop {
        let given = flush_to_kernel(core, me, reason, &seen)?;
        flushes += 1;
        // A program that writes without a pause has written again before anybody can look.
        if given
            || flushes > FLUSHES_BESIDE_WRITERS
                && to_kernel_while_written(core, me, reason, Scope::SYNC)
        {
            return Ok(());
        }
        me.wait(64);
    }
}

/// As [`to_kernel`], by one try: nobody waits for a thread that has the file in hand and does not go on. Whether it is the kernel's now.
pub fn try_to_kernel(core: &Core, me: Me<'_>, reason: u32) -> bool {
    let seen = AtomicU32::new(errors::sequence(core.entry()));
    is_at_rest(me, core.id) && flush_to_kernel(core, me, reason, &seen).unwrap_or(false)
}

/// Flushes the file, and gives it to the kernel if it owes nothing then. Whether it is the kernel's now.
fn flush_to_kernel(core: &Core, me: Me<'_>, reason: u32, seen: &AtomicU32) -> Result<bool> {
    settle(core, me, Durability::Kernel, seen)?;
    // While the file is not the kernel's: the device gives space back by cutting the file where it ends, and a program that appends by
    // the kernel meanwhile would lose what it has appended. Where somebody may do so already, the space stays.
    if !given::comes_too_late(reason) {
        trim(core, me, |_| true);
    }
    Ok(to_kernel_if_flushed(me, core.id, reason))
}

/// As [`to_kernel`], of a file that is written all the time, so that it never owes nothing by itself: its writers wait while it is
/// flushed, as far as `scope` goes. Whether it is the kernel's now.
pub fn to_kernel_while_written(core: &Core, me: Me<'_>, reason: u32, scope: Scope) -> bool {
    let no_append = AppendLock::take_soon(me, core.id);
    if no_append.is_none() && !planted!(SwitchedAppends) {
        return false;
    }
    let Some(_stop) = stop_file(me, core.id) else {
        return false;
    };
    flush(core, me, scope);
    if core.entry().lacks_length() {
        return false;
    }
    evict::evict_file(me, core.id);
    note_kernels(me, core.id, reason)
}

/// Whether no thread that does not go on has a file in hand.
pub fn is_at_rest(me: Me<'_>, file: FileId) -> bool {
    AppendLock::take_soon(me, file).is_some() && stop_file(me, file).is_some()
}

/// Gives a file that owes nothing to the kernel. `false`: it owes something, be it its length, could not be stopped, or somebody is
/// in the middle of an append.
pub fn to_kernel_if_flushed(me: Me<'_>, file: FileId, reason: u32) -> bool {
    let entry = me.arena.file_unchecked(file);
    if entry.owes() {
        return false;
    }
    evict::evict_file(me, file);
    // An append that is under way would have some of it here, and give the kernel all of it.
    let no_append = AppendLock::take_soon(me, file);
    if no_append.is_none() && !planted!(SwitchedAppends) {
        return false;
    }
    let Some(_stop) = stop_file(me, file) else {
        return false;
    };
    // Somebody may have written between the flush and the stop.
    note_kernels(me, file, reason)
}

/// Gives a file that is stopped to the kernel, if it owes nothing.
fn note_kernels(me: Me<'_>, file: FileId, reason: u32) -> bool {
    let entry = me.arena.file_unchecked(file);
    let flushed = !entry.owes();
    if flushed && entry.kernel_reason.swap(reason, Ordering::AcqRel) == 0 {
        left::note(me.arena, entry.numbers(), reason, &entry.path());
    }
    entry.assert_entry();
    flushed
}
