//! Truncating and punching: alone on the file (`docs/locking.md`, file gate), device and memory in an order in which a
//! death at any point leaves one of the two outcomes.
//!
//! Truncation notes its target in the entry first (`truncating`), so that a repair carries it out; the store of the size
//! commits it. Punching frees the device's space first: should memory's newer bytes outlive a death, the punch has not happened.

use std::time::Duration;

use crate::device::DeviceStat;
use crate::error::Error;
use crate::file::append::AppendLock;
use crate::file::core::{Core, Halt};
use crate::file::room;
use crate::file::write::mark_holey;
use crate::frame::header::Guard;
use crate::frame::slots;
use crate::ids::BlockIndex;
use crate::limits::{FILE_BYTES_MAX, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::files::{ASKED, EXCEEDING, TRUNCATING};
use crate::memory::threads::{FileStop, Me, Operation, stop_file};
use crate::scrap::absorb::{announce, drop_pages, pages_of};
use crate::scrap::cut::{cut, drop_beyond, lock_found};
use crate::scrap::give::part_of;
use crate::scrap::own::{is_shared, own_frame};
use crate::scrap::split::{Segment, mask, segments};
use crate::sync::time::Instant;
use crate::sync::{Ordering, planted};
use crate::sys::limits;

/// Stops the file, however long it takes, and enters an operation on it.
fn alone<'a>(core: &'a Core, me: Me<'a>) -> Result<(FileStop<'a>, Operation<'a>), Halt> {
    let mut round = 0;
    loop {
        if let Some(stop) = stop_file(me, core.id)
            && let Ok(operation) = me.enter_stopped(core.id)
        {
            if core.entry().kernel_reason.load(Ordering::Acquire) != 0 {
                return Err(Halt::Kernel);
            }
            return Ok((stop, operation));
        }
        round += 1;
        me.wait(round);
    }
}

/// As [`alone`]; blocks that have their beginning or end within one of these bytes' pages are held by no view, so that they can be cut there.
fn alone_with<'a>(
    core: &'a Core,
    me: Me<'a>,
    edges: &[u64],
) -> Result<(FileStop<'a>, Operation<'a>), Halt> {
    let mut round = 0;
    loop {
        let (stop, operation) = alone(core, me)?;
        if edges.iter().all(|&at| own_at(core, &operation, at)) {
            return Ok((stop, operation));
        }
        drop(operation);
        drop(stop);
        round += 1;
        room::make(core, me, round)?;
    }
}

/// Sees to it that no view holds what is about to be cut at a byte. `false`: there is no memory for a new version.
fn own_at(core: &Core, operation: &Operation<'_>, at: u64) -> bool {
    if at.is_multiple_of(PAGE_BYTES as u64) {
        return true;
    }
    let block = BlockIndex::of(at);
    let found = slots::lookup(operation.me.arena, core.entry(), block);
    let guard = found.and_then(|id| lock_found(core.id, operation, block, id));
    let Some(guard) = guard.filter(is_shared) else {
        return true;
    };
    if guard.inflight() == 0 {
        return own_frame(&guard).is_ok();
    }
    // Nothing new is begun while the file is stopped.
    drop(guard);
    land_flights(core, operation, block);
    own_at(core, operation, at)
}

/// Sets the file's length, bytes. An append that has found the end is to write there, so it is waited for.
pub fn set_len(core: &Core, me: Me<'_>, len: u64) -> Result<(), Halt> {
    if len > FILE_BYTES_MAX {
        return Err(too_long().into());
    }
    let _no_append = (!planted!(CutAppends)).then(|| AppendLock::take(core, me));
    let (_stop, operation) = alone_with(core, me, &[len])?;
    let grows = len > core.entry().size.load(Ordering::Acquire);
    if grows && len > limits::look_at_file_bytes() {
        return Err(too_long().into());
    }
    set_len_alone(core, &operation, len)
}

/// Makes the file at least so long, bytes: never shorter, also where another thread makes it longer meanwhile.
pub fn grow(core: &Core, me: Me<'_>, len: u64) -> Result<(), Halt> {
    if len > FILE_BYTES_MAX {
        return Err(too_long().into());
    }
    let (_stop, operation) = alone(core, me)?;
    if len <= core.entry().size.load(Ordering::Acquire) {
        return Ok(());
    }
    if len > limits::look_at_file_bytes() {
        return Err(too_long().into());
    }
    set_len_alone(core, &operation, len)
}

fn too_long() -> Error {
    Error::Device {
        errno: libc::EFBIG,
        operation: "truncate",
    }
}

/// As [`set_len`], for a caller that is alone on the file.
pub fn set_len_alone(core: &Core, operation: &Operation<'_>, len: u64) -> Result<(), Halt> {
    let entry = core.entry();
    let old = entry.size.load(Ordering::Acquire);
    // Where this makes the device file longer, nothing at all of it may be in flight: XFS looks where the file ends before it
    // waits for direct writes under way, and zeroes everything from there on, also what those have written by then.
    let extends = len > entry.disk_end.load(Ordering::Acquire)
        || entry.flags.load(Ordering::Acquire) & EXCEEDING != 0;
    let extends = extends && !planted!(ShortLanding);
    let first = if extends { 0 } else { old.min(len) };
    land_flights(core, operation, BlockIndex::of(first));
    let unfinished = entry.flags.load(Ordering::Acquire) & TRUNCATING != 0;
    if len > old && entry.flags.load(Ordering::Acquire) & EXCEEDING != 0 {
        // What the dead have left beyond the end must not come into the file. With it goes the space that was reserved there.
        let reserved = entry.reserved_end.load(Ordering::Acquire);
        entry
            .reserved_end
            .store(reserved.min(old), Ordering::Release);
        // Nor by a reader that has read it already and is about to keep it. First, so that a death right after the cut leaves nobody with it.
        drop_beyond(core.id, operation, old);
        parked(operation, || {
            core.change(operation.me, |device| device.set_len(old))
        })?;
    }
    entry.truncating.store(len + 1, Ordering::Release);
    entry.flags.fetch_or(TRUNCATING, Ordering::AcqRel);
    entry.assert_entry();
    // The device frees what was reserved beyond the new end, so it must be asked for again.
    let reserved = entry.reserved_end.load(Ordering::Acquire);
    if len > reserved {
        mark_holey(core);
    }
    entry
        .reserved_end
        .store(reserved.min(len), Ordering::Release);
    if let Err(error) = parked(operation, || {
        core.change(operation.me, |device| device.set_len(len))
    }) {
        // One that the dead have begun may have happened, so it stays to be finished.
        if !unfinished {
            entry.flags.fetch_and(!TRUNCATING, Ordering::AcqRel);
        }
        return Err(error.into());
    }
    // Others may be changing the file and look at it later: that it is shorter now is our own doing.
    if entry.witness[0].load(Ordering::Acquire) > len {
        entry.witness[0].store(len, Ordering::Release);
    }
    entry.size.store(len, Ordering::Release);
    drop_beyond(core.id, operation, len);
    entry.disk_end.store(len, Ordering::Release);
    // With what lies beyond the new end goes the space that was asked for there.
    let done = TRUNCATING | EXCEEDING | if len <= old { ASKED } else { 0 };
    entry.flags.fetch_and(!done, Ordering::AcqRel);
    entry.assert_entry();
    Ok(())
}

/// Changes the length of the device file, parked.
fn parked(
    operation: &Operation<'_>,
    change: impl FnOnce() -> std::io::Result<()>,
) -> Result<(), Error> {
    operation.park();
    let done = change();
    operation.unpark();
    done.map_err(|e| Error::device("truncate", &e))
}

/// Waits, parked, until no header from `first` on is in flight.
fn land_flights(core: &Core, operation: &Operation<'_>, first: BlockIndex) {
    let arena = operation.me.arena;
    let mut at = u64::from(first.0);
    while let Some((block, id)) = slots::next_linked(arena, core.entry(), at) {
        let mut round = 0;
        while arena.header(id).is_some_and(|h| h.inflight() != 0) {
            round += 1;
            operation.wait(round);
        }
        at = u64::from(block.0) + 1;
    }
}

/// Takes everything from byte `end` of a block on out of memory.
pub fn cut_block(core: &Core, guard: &Guard<'_>, end: usize) {
    cut(guard, core.entry(), end);
}

/// Punches a hole; the part beyond the file's end is ignored. The size does not change.
pub fn punch(core: &Core, me: Me<'_>, offset: u64, len: u64) -> Result<(), Halt> {
    let (_stop, operation) = alone_with(core, me, &[offset, offset.saturating_add(len)])?;
    let entry = core.entry();
    let size = entry.size.load(Ordering::Acquire);
    let end = offset.saturating_add(len).min(size);
    if offset >= end {
        return Ok(());
    }
    mark_holey(core);
    if end == size && entry.disk_end.load(Ordering::Acquire) < size {
        // What would have made the device file so long is punched before it is written.
        reach_alone(core, &operation)?;
    }
    land_flights(core, &operation, BlockIndex::of(offset));
    // The file's last page as a whole, so that nothing of it stays owed beyond need.
    let memory_end = if end == size {
        end.next_multiple_of(PAGE_BYTES as u64)
    } else {
        end
    };
    let range = (offset, (memory_end - offset) as usize);
    // Clean bytes go first: should this thread die after the device's are gone, they would be what only memory knows.
    each_block(core, &operation, range, |guard, segment| {
        let clean = guard.valid() & !guard.dirty() & !guard.inflight();
        drop_pages(guard, entry, clean & segment.touched());
    });
    operation.park();
    let done = core.change(operation.me, |device| device.punch(offset, end - offset));
    operation.unpark();
    // A thread that has asked the device meanwhile has to ask again.
    mark_holey(core);
    done.map_err(|e| Error::device("punch a hole", &e))?;
    each_block(core, &operation, range, |guard, segment| {
        punch_block(core, guard, segment)
    });
    Ok(())
}

/// Calls `f` with the locked header of each block of a range that has one, while alone on the file.
fn each_block(
    core: &Core,
    operation: &Operation<'_>,
    (offset, len): (u64, usize),
    f: impl Fn(&Guard<'_>, &Segment),
) {
    for segment in segments(offset, len) {
        let found = slots::lookup(operation.me.arena, core.entry(), segment.block);
        let Some(id) = found else { continue };
        if let Some(guard) = lock_found(core.id, operation, segment.block, id) {
            f(&guard, &segment);
        }
    }
}

fn punch_block(core: &Core, guard: &Guard<'_>, segment: &Segment) {
    let span = segment.pages();
    drop_pages(guard, core.entry(), mask(span.whole.clone()));
    let present = guard.valid() | guard.ragged();
    for page in pages_of(segment.touched() & present & !mask(span.whole)) {
        zero_part(core, guard, page, part_of(segment, page));
    }
}

/// Makes a part of a page that has bytes in memory zeros. The device's bytes of the part are zeros already, so of a
/// ragged page only what its runs hold needs to change.
fn zero_part(core: &Core, guard: &Guard<'_>, page: usize, (start, end): (usize, usize)) {
    announce(guard, core.entry(), 1 << page);
    let Some(bytes) = guard.page_bytes(page) else {
        return;
    };
    // Bytes of the part that no run holds are not looked at by anyone, so all may be zeroed.
    // SAFETY: within the page, under the header's lock.
    unsafe { copy::zero(bytes.add(start), end - start) };
}

/// Makes the device file as long as the file: one that the dead, or a write that failed, have left longer is cut; one that
/// does not reach `size`, since the bytes at the end were punched before they were flushed, grows.
pub fn fit_length(core: &Core, me: Me<'_>, size: u64) -> Result<(), Halt> {
    let entry = core.entry();
    let exceeds = entry.flags.load(Ordering::Acquire) & EXCEEDING != 0;
    let fits = entry.disk_end.load(Ordering::Acquire) >= size;
    if !exceeds && fits {
        return Ok(());
    }
    let (_stop, operation) = alone(core, me)?;
    let size = entry.size.load(Ordering::Acquire);
    let threads = core.shared.arena.counts().threads;
    let known = entry.witness(threads);
    let stat = core.device.stat().map_err(|e| Error::device("stat", &e))?;
    // Both are of one moment, or nothing is known: a flush may have ended in between.
    let known = known.filter(|_| entry.witness(threads) == known);
    if is_of_others(core, &stat, size, known) {
        entry.flags.fetch_and(!EXCEEDING, Ordering::AcqRel);
        return Ok(());
    }
    if stat.len > size {
        return set_len_alone(core, &operation, size);
    }
    // After a death it is not known how far the device file reaches.
    if stat.len < size && (exceeds || !fits) {
        parked(&operation, || {
            core.change(operation.me, |device| device.set_len(size))
        })?;
        entry.reserved_end.store(
            entry.reserved_end.load(Ordering::Acquire).min(size),
            Ordering::Release,
        );
        mark_holey(core);
        entry.disk_end.store(size, Ordering::Release);
    }
    entry.flags.fetch_and(!EXCEEDING, Ordering::AcqRel);
    Ok(())
}

/// Whether somebody from outside has given the device file its length since our last change, or may have made it longer: then that is how long it
/// is, and the program that opens it next finds so. A member that dies while it only reads leaves the same mark as one that dies while it writes
/// past the end, and until it is found dead nobody holds outsiders up. `known`: what the device file was like after our last change.
fn is_of_others(core: &Core, stat: &DeviceStat, size: u64, known: Option<[u64; 3]>) -> bool {
    // What the session's programs see goes while any of them has the file open.
    let unused = || !core.shared.is_open(core.id);
    match known {
        Some([len, mtime_ns, _]) if stat.len > size => {
            len <= size || stat.len != len || stat.mtime_ns != mtime_ns && unused()
        }
        Some([len, ..]) => stat.len < size && len >= size,
        // Somebody has died at a change. What that has left beyond the end is a part of what a program was writing: it harms less than a cut.
        None => stat.len > size && unused(),
    }
}

/// Makes the device file as long as the file while bytes are owed: a program that looks from outside sees the length that it will have.
pub fn reach(core: &Core, me: Me<'_>) -> Result<(), Halt> {
    let (_stop, operation) = alone(core, me)?;
    reach_alone(core, &operation)
}

/// As [`reach`], for a caller that is alone on the file.
fn reach_alone(core: &Core, operation: &Operation<'_>) -> Result<(), Halt> {
    let entry = core.entry();
    let size = entry.size.load(Ordering::Acquire);
    let reaches = || {
        let stat = core.device.stat().map_err(|e| Error::device("stat", &e))?;
        Ok::<_, Halt>(stat.len >= size)
    };
    if reaches()? {
        return Ok(());
    }
    // As in `set_len_alone`: nothing may be in flight where the device file grows.
    land_flights(core, operation, BlockIndex::of(0));
    if reaches()? {
        return Ok(());
    }
    if size > entry.reserved_end.load(Ordering::Acquire) {
        mark_holey(core);
    }
    parked(operation, || {
        core.change(operation.me, |device| device.set_len(size))
    })?;
    let reserved = entry.reserved_end.load(Ordering::Acquire);
    entry
        .reserved_end
        .store(reserved.min(size), Ordering::Release);
    entry.disk_end.store(size, Ordering::Release);
    Ok(())
}

/// How long a truncation that somebody has left in the middle is waited for by a process that cannot carry it out.
const TRUNCATION_PATIENCE: Duration = Duration::from_secs(1);

/// Carries out a truncation whose thread died in the middle.
///
/// # Errors
/// `EIO`, where this process may not write the file, and no process that may does it.
pub fn finish_truncation(core: &Core, me: Me<'_>) -> Result<(), Halt> {
    if core.device.is_writable() {
        return finish_alone(core, me);
    }
    let is_left = || core.entry().flags.load(Ordering::Acquire) & TRUNCATING != 0;
    let mut begun = Instant::now();
    while is_left() {
        // The thread that writes what the file owes finishes this first.
        if core.shared.ask_to_flush(core.id) {
            continue;
        }
        match core.opened_to_write() {
            Some(by) => return finish_alone(&by, me),
            _ if begun.elapsed() < TRUNCATION_PATIENCE => me.wait(64),
            // A living thread is at it.
            _ if stop_file(me, core.id).is_none() => begun = Instant::now(),
            _ => {
                let error = std::io::Error::from_raw_os_error(libc::EIO);
                return Err(Error::device("finish a truncation", &error).into());
            }
        }
    }
    Ok(())
}

/// As [`finish_truncation`], by a device file that can be written.
fn finish_alone(core: &Core, me: Me<'_>) -> Result<(), Halt> {
    let (_stop, operation) = alone(core, me)?;
    let entry = core.entry();
    // Somebody else may have finished it meanwhile.
    if entry.flags.load(Ordering::Acquire) & TRUNCATING == 0 {
        return Ok(());
    }
    // The thread that began it has seen to what views hold.
    let target = entry.truncating.load(Ordering::Acquire);
    let len = target.checked_sub(1).filter(|&len| len <= FILE_BYTES_MAX);
    let len = len.unwrap_or_else(|| entry.size.load(Ordering::Acquire));
    set_len_alone(core, &operation, len)
}
