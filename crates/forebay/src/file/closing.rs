//! Closing with what is owed left to the keeper, so that nobody can tell (`docs/decisions/0012-closing-under-a-lease.md`).
//!
//! ```text
//!     closer                                              keeper
//!     prepare: one description of two, the file's         one description of two
//!       length and time as they shall be
//!     (the program's own descriptor is closed)
//!     leave: lease; CLOSING, LEASED; no more open here -> writes what is owed, others first that somebody waits for
//!                                                         restores the time, clears CLOSING
//!                                                         gives the lease up, closes; clears LEASED
//! ```
//!
//! A program of the session that opens the file to read it meanwhile takes it back ([`take_back`]): where a guard holds outsiders up, the keeper
//! gives the lease up and goes on as with any file that owes bytes. With its last reader the file is left to the keeper again
//! ([`leave_again`]).
//!
//! Wherever this cannot be had the closer flushes, as if there were no such thing. A death at any point leaves a file that owes
//! bytes and that nobody has open, which a keeper or a recovery finishes; CLOSING says what time it shall have then.
//!
//! A file that has been unlinked is closed in the same steps, up to the lease: with it, it is known that nobody has the file open
//! any more, and what is owed goes into the kernel's cache, where it ends with the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::device::DeviceFile;
use crate::error::Result;
use crate::evict;
use crate::file::core::Core;
use crate::file::resize;
use crate::file::settle::{self, Durability};
use crate::file::vanished;
use crate::flush::{busy, errors};
use crate::ids::FileId;
use crate::limits::PAGE_BYTES;
use crate::member::closed::SET;
use crate::member::closed::end_lease;
use crate::member::closed::forget_time;
use crate::member::guard;
use crate::member::presence::{has_keeper, keeper_process};
use crate::member::shared::Shared;
use crate::member::table;
use crate::member::table::follow_name;
use crate::memory::arena::Arena;
use crate::memory::files::{BACK, CLOSING, EXCEEDING, FileEntry, HURRY, LEASED, TRUNCATING};
use crate::memory::superblock::one_fewer;
use crate::memory::threads::Me;
use crate::stats::Counter;
use crate::sync::time::{Instant, sleep};
use crate::sync::{Ordering, planted};
use crate::sys::{limits, liveness};

/// A keeper that needs longer for what the session owes is not left with it: the kernel takes leases back after a time, 45 s
/// where nobody has changed that.
const LATEST: Duration = Duration::from_secs(5);
/// A lease is refused while anybody is in the middle of a call on another description that is about to be closed: on a busy machine for
/// milliseconds. Between tries a pause, each twice the one before, 5 ms in all.
const LEASE_TRIES: u32 = 8;
const LEASE_PAUSE: Duration = Duration::from_micros(20);
/// Files that wait for the keeper at most: each has descriptors of the keeper's.
const LEASED_MAX: u32 = 256;
/// A keeper that is stopped and writes nothing for so long is not waited for, nor any that writes nothing for so long as the next says: on a
/// busy machine it may get no time for seconds. And how often it is looked after.
const PATIENCE: Duration = Duration::from_secs(1);
const LONG_PATIENCE: Duration = Duration::from_secs(10);
const CLOSE_LOOK: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// A file that may be left to the keeper once the program's own descriptor is closed.
pub struct Prepared {
    mtime_ns: u64,
    epoch: u32,
}

/// Makes a file ready to be left to the keeper by its only opener. `None`: it is to be flushed.
pub fn prepare(core: &Core, me: Me<'_>, handed: &AtomicU32, seen: &AtomicU32) -> Option<Prepared> {
    let Core { shared, id, device } = core;
    let entry = core.entry();
    let owes_enough =
        owed_bytes(entry) >= shared.config.close_behind_bytes.max(1) && is_written_soon(core);
    let is_sound = entry.kernel_reason.load(Ordering::Acquire) == 0
        // One that the keeper is not done with would be taken for the lease that it is giving up.
        && entry.flags.load(Ordering::Acquire) & (EXCEEDING | TRUNCATING | LEASED) == 0
        && entry.failures.load(Ordering::Relaxed) == 0
        && !settle::is_left_changing(core, me)
        && errors::sequence(entry) == seen.load(Relaxed)
        && entry.size.load(Ordering::Acquire) <= limits::file_bytes();
    let keeper_has_it = shared.reaches_keepers()
        && !shared.keeps.load(Relaxed)
        && has_keeper(&shared.arena)
        && shared.arena.superblock().leased.load(Ordering::Relaxed) < LEASED_MAX;
    let wanted = owes_enough || (owed_bytes(entry) > 0 && has_no_name(core));
    if !wanted || !is_sound || !keeper_has_it || !shared.is_open_once(*id) {
        return None;
    }
    // A keeper may have come since the last write.
    if !shared.hand_over(*id, device.as_ref(), handed) {
        return None;
    }
    let epoch = handed.load(Relaxed);
    if !shared.is_handed(handed) {
        return None;
    }
    device.unite().ok()?;
    if !shared.ask_to_unite(*id, epoch) {
        return None;
    }
    if has_no_name(core) {
        return Some(Prepared { mtime_ns: 0, epoch });
    }
    resize::reach(core, me).ok()?;
    core.change(me, |device| device.set_modified(None)).ok()?;
    let mtime_ns = device.stat().ok()?.mtime_ns;
    Some(Prepared { mtime_ns, epoch })
}

/// Whether the file has been unlinked.
fn has_no_name(core: &Core) -> bool {
    matches!(core.device.stat(), Ok(stat) if stat.links == 0)
}

/// A file that nobody has open, as the lease says, and that has no name: hardly anybody can read a byte of it again, so none is written
/// to the device. Whether it was one.
fn forget_nameless(core: &Core, me: Me<'_>) -> bool {
    let nameless = has_no_name(core);
    if nameless {
        // Where that fails the bytes are written.
        vanished::put_into_cache(core, me);
        core.device.give_lease_up();
    }
    nameless
}

fn owed_bytes(entry: &FileEntry) -> u64 {
    entry.owed_pages.load(Ordering::Acquire) * PAGE_BYTES as u64
}

/// Whether the keeper can write everything that the session owes in good time, as far as is known of the device.
fn is_written_soon(core: &Core) -> bool {
    let superblock = core.shared.arena.superblock();
    let speeds = busy::speeds(superblock, core.device.caps().device);
    let owed = superblock.owed_about() * PAGE_BYTES as u64;
    u128::from(owed >> 20) * u128::from(speeds.write_ns_per_mib) <= LATEST.as_nanos()
}

/// Leaves a file to the keeper whose last descriptor of the program's has been closed. Where no lease is to be had it is flushed.
///
/// # Errors
/// As for [`settle::close`], of the flush.
pub fn leave(
    core: &Core,
    me: Me<'_>,
    handed: &AtomicU32,
    seen: &AtomicU32,
    prepared: &Prepared,
) -> Result<()> {
    let Core { shared, id, device } = core;
    // It may have been renamed while it was open: by its name it is found should the keeper die. Before the lease: a thread that
    // may not wait looks whether the entry tells of one.
    follow_name(me, *id, device.as_ref());
    let is_leased = is_leased(core) || planted!(NoLease);
    if !is_leased || forget_nameless(core, me) {
        return close_now(core, me, (handed, seen), is_leased);
    }
    let entry = core.entry();
    evict::give_stock_back(me, *id);
    // One step: it may owe nothing any more, and an entry that nobody has open and that owes nothing is dropped.
    let is_left = table::under_lock(me, || {
        table::close(shared, *id, device.is_writable());
        entry.closed_ns.store(prepared.mtime_ns, Ordering::Release);
        mark_left(core, CLOSING | LEASED);
    });
    if !is_left {
        device.give_lease_up();
        return close_now(core, me, (handed, seen), true);
    }
    entry.assert_entry();
    if shared.say_left(*id, prepared.epoch) {
        shared.wake_keeper();
        me.count(Counter::ClosedBehind as usize, 1);
        shared.drop_device(*id);
        return Ok(());
    }
    // There is no keeper any more that would write it, or it is stopped.
    device.give_lease_up();
    end_lease(&shared.arena, *id);
    let outcome = shared.flush(me, *id, device, crate::flush::Scope::SYNC);
    if outcome.errno.is_none() {
        let _ = settle::finish(core, me);
    }
    shared.closed(*id, device);
    shared.released(*id, handed);
    match errors::unreported(entry, seen).or(outcome.errno) {
        None => Ok(()),
        Some(errno) => {
            let error = std::io::Error::from_raw_os_error(errno);
            Err(crate::error::Error::device("flush", &error))
        }
    }
}

/// Marks a file as the keeper's to write. Under the table's lock.
fn mark_left(core: &Core, marks: u32) {
    let leased = &core.shared.arena.superblock().leased;
    // Counted first: a thread that looks whether there is any must not miss one.
    leased.fetch_add(1, Ordering::AcqRel);
    if core.entry().flags.fetch_or(marks, Ordering::AcqRel) & LEASED != 0 {
        one_fewer(leased);
    }
}

/// Closes a file that is not left to the keeper: with what it owes written into the kernel's cache.
fn close_now(
    core: &Core,
    me: Me<'_>,
    (handed, seen): (&AtomicU32, &AtomicU32),
    is_leased: bool,
) -> Result<()> {
    let Core { shared, id, device } = core;
    let guard = shared.arena.superblock().guard.load(Ordering::Acquire);
    let closed = match is_leased || guard != guard::HOLDS {
        true => settle::close(core, me, Durability::Kernel, seen),
        // Somebody has it open, an outsider perhaps that has come while there was no mark any more.
        false => settle::close_to_kernel(core, me, seen),
    };
    shared.closed(*id, device);
    shared.released(*id, handed);
    table::forget_closed(shared, me, *id);
    closed
}

fn is_leased(core: &Core) -> bool {
    for round in 0..LEASE_TRIES {
        match core.device.lease() {
            Ok(()) => return true,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                sleep(LEASE_PAUSE * (1 << round));
            }
            Err(_) => return false,
        }
    }
    false
}

/// The last reader of a file that it has taken back closes it: the keeper writes it as soon as if it still had its lease. The guard's mark holds
/// outsiders up in the lease's place, and the time is still the one of the writer's close.
pub fn leave_again(core: &Core, me: Me<'_>) {
    let Core { shared, id, .. } = core;
    let (entry, superblock) = (core.entry(), shared.arena.superblock());
    let is_left = || {
        entry.flags.load(Ordering::Acquire) & (CLOSING | LEASED) == CLOSING
            && entry.owed_pages.load(Ordering::Acquire) != 0
            && superblock.guard.load(Ordering::Acquire) == guard::HOLDS
            && has_keeper(&shared.arena)
            && !shared.is_open(*id)
    };
    // Looked at again under the lock: the keeper may write the last of it meanwhile, and the entry be dropped. Without the lock it is written as
    // any file that owes bytes and that nobody has open.
    let again = || {
        if is_left() {
            mark_left(core, LEASED);
        }
    };
    if is_left() && table::under_lock(me, again) {
        entry.assert_entry();
        superblock.wake_keeper();
    }
}

/// Waits until the keeper has finished with a file that was left to it, for as long as it gets on with it; it begins at once.
/// Whether there was anything to wait for.
pub fn await_end(arena: &Arena, file: FileId) -> bool {
    await_keeper(arena, file, HURRY)
}

/// The keeper comes to this file first, as far as it has been left to it.
pub fn hurry(arena: &Arena, file: FileId) {
    let flags = &arena.file_unchecked(file).flags;
    if flags.load(Ordering::Acquire) & LEASED != 0 {
        flags.fetch_or(HURRY, Ordering::AcqRel);
    }
}

/// As [`await_end`], for a program of the session that will only read the file: bytes that memory has need not be written first.
pub fn take_back(arena: &Arena, file: FileId) -> bool {
    await_keeper(arena, file, BACK)
}

fn await_keeper(arena: &Arena, file: FileId, wish: u32) -> bool {
    let entry = arena.file_unchecked(file);
    let superblock = arena.superblock();
    let leased = || entry.flags.load(Ordering::Acquire) & LEASED != 0;
    if !leased() {
        return false;
    }
    let (mut owed, mut progress) = (u64::MAX, Instant::now());
    while leased() && has_keeper(arena) && is_worth_waiting(arena, progress) {
        entry.flags.fetch_or(wish, Ordering::AcqRel);
        superblock.wake_keeper();
        let now = entry.owed_pages.load(Ordering::Acquire);
        if now < owed {
            (owed, progress) = (now, Instant::now());
        }
        sleep(LOOK_EVERY);
    }
    true
}

/// Whether a keeper that has last got on with something then may be expected to do so again.
fn is_worth_waiting(arena: &Arena, progress: Instant) -> bool {
    let since = progress.elapsed();
    if since < PATIENCE {
        return true;
    }
    sleep(CLOSE_LOOK);
    since < LONG_PATIENCE && !liveness::is_stopped(keeper_process(arena))
}

/// Finishes a file whose keeper has died at it: nobody else will.
pub fn finish_orphan(core: &Core, me: Me<'_>) {
    if !has_keeper(&core.shared.arena) {
        end_lease(&core.shared.arena, core.id);
        // What is in the way now is for a recovery.
        let _ = settle::finish(core, me);
    }
}

/// Gives a file that owes nothing any more the time of its close, which writing it has moved, unless somebody has it open to write again. Where a
/// program of the session has it open and the guard holds somebody up, the guard's worker does it before it lets that one in.
pub fn restore_time(core: &Core, me: Me<'_>) {
    let is_held = core.shared.is_alone(core.id);
    if !is_held && is_left_to_worker(core) {
        return;
    }
    give_time_back(&core.shared, me, core.id, &core.device, is_held);
}

fn is_left_to_worker(core: &Core) -> bool {
    let Core { shared, id, .. } = core;
    let entry = core.entry();
    let is_readers = entry.kernel_reason.load(Ordering::Acquire) == 0
        && entry.writers() == 0
        && shared.is_open(*id);
    is_readers && shared.holds_up(*id)
}

/// A file that a close has left to this keeper, and that a reader has taken back, may owe nothing any more: it gets the time of its close. Only while
/// the guard has seen nobody come: this is a change of ours, and what an outsider has made of the file before it would be taken for ours.
pub fn finish_taken_back(shared: &Shared, me: Me<'_>, file: FileId, device: &Arc<dyn DeviceFile>) {
    let entry = shared.arena.file_unchecked(file);
    let is_back = entry.flags.load(Ordering::Acquire) & (CLOSING | LEASED) == CLOSING;
    if is_back && shared.is_alone(file) && entry.owed_pages.load(Ordering::Acquire) == 0 {
        give_time_back(shared, me, file, device, true);
    }
}

/// As [`restore_time`]. `is_held`: nobody from outside has changed the file meanwhile, since a guard holds them up, so that it gets its time also where
/// programs of the session have it open to read.
pub fn give_time_back(
    shared: &Shared,
    me: Me<'_>,
    file: FileId,
    device: &Arc<dyn DeviceFile>,
    is_held: bool,
) {
    let entry = shared.arena.file_unchecked(file);
    if entry.flags.load(Ordering::Acquire) & CLOSING == 0 {
        return;
    }
    loop {
        let closed = entry.closed_ns.load(Ordering::SeqCst);
        if closed != 0 && (!shared.is_open(file) || is_held && entry.writers() == 0) {
            // Best effort: a time costs no bytes.
            let _ = shared.change(me, file, device, || {
                me.at_device(file, || device.set_modified(Some(closed & !SET)))
            });
        }
        entry.flags.fetch_and(!CLOSING, Ordering::SeqCst);
        entry.assert_entry();
        // A program may have set another one meanwhile.
        if entry.closed_ns.load(Ordering::SeqCst) != closed {
            continue;
        }
        if closed & SET != 0 {
            // It is no time of a close.
            forget_time(entry, closed);
        }
        return;
    }
}
