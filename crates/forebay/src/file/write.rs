//! Writing: route, then memory, the device, or the kernel (WSBuffer 3.3, Algorithm 1).

use crate::error::{Error, Result};
use crate::file::core::{Core, Halt};
use crate::file::quick::Recent;
use crate::file::room::Wait;
use crate::file::throttle::throttle;
use crate::file::{direct, reserve, settle};
use crate::flush::{busy, ring};
use crate::frame::header::Identity;
use crate::frame::slots;
use crate::limits::{BLOCK_BYTES, DIRECT_BYTES_MIN, FILE_BYTES_MAX, PAGE_BYTES};
use crate::member::{given, provision};
use crate::memory::copy;
use crate::memory::files::{FileEntry, HOLEY, STABLE};
use crate::memory::threads::{Me, Operation};
use crate::route::{Plan, Pressure, Route, Situation, Way, WriteRequest};
use crate::scrap::absorb::{Home, Refusal, absorb};
use crate::scrap::own::is_shared;
use crate::scrap::split::{Segment, segments};
use crate::stats::Counter;
use crate::sync::time::Instant;
use crate::sync::{Ordering, planted};
use crate::sys::limits;

/// Requests from this length on put their bytes in frames at once.
const FRAME_BYTES_MIN: usize = 64 * 1024;

/// A sync that has no more to write than this is small, if there was no longer write before it.
pub(crate) const SMALL_SYNC_PAGES: u64 = 16;

/// What a write knows beyond its bytes.
#[derive(Clone, Copy)]
pub struct Intent<'r> {
    /// The file's route.
    pub route: &'r dyn Route,
    /// The request follows others without a gap, and they have passed a frame's worth of small ones.
    pub sequential: bool,
    /// They are longer than the processor's caches.
    pub long: bool,
    /// The caller will sync at once.
    pub sync: bool,
    /// The offset is the file's end: should it not be where a step begins, the step ends with [`Halt::Outgrown`].
    pub at_end: bool,
}

impl<'r> Intent<'r> {
    /// Of a plain write. `sequential` is what the description's sequence said of this request.
    pub fn new(route: &'r dyn Route, recent: &Recent, me: Me<'_>, sequential: bool) -> Self {
        Intent {
            route,
            sequential,
            long: recent.stream(me).is_long(),
            sync: false,
            at_end: false,
        }
    }
}

/// Writes `len` bytes from `source` at `offset`. Returns the bytes written: fewer than asked for only if an error came
/// after some had been. [`Halt::Kernel`] also comes after some: the caller has the kernel write all of them again.
///
/// # Safety
/// `source` is valid for `len` bytes for the whole call.
pub unsafe fn write(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
    intent: Intent<'_>,
) -> std::result::Result<usize, Halt> {
    let end = offset
        .checked_add(len as u64)
        .filter(|&end| end <= FILE_BYTES_MAX)
        .ok_or_else(too_long)?;
    if len == 0 {
        return Ok(0);
    }
    if end > limits::file_bytes() {
        let allowed = within_limit(offset, len)?;
        if allowed < len {
            // SAFETY: the caller's promise, of less.
            return unsafe { write(core, me, source, allowed, offset, intent) };
        }
    }
    throttle(core, me)?;
    let manner = Manner {
        sequential: intent.sequential,
        long: intent.long,
        eager: false,
        holes: core.entry().holes.load(Ordering::Acquire),
        at_end: intent.at_end,
    };
    let hole = reserve::ahead(core, me, offset, end, intent.sequential)?;
    // A thread that appends has the lock that a file needs to go to the kernel.
    let leaves = hole && !intent.at_end && reserve::too_many_holes(core);
    if leaves && !settle::try_to_kernel(core, me, given::HOLES) {
        // Somebody has it in hand, or the device has refused something: again after as many more.
        core.entry().vain_looks.store(0, Ordering::Relaxed);
    }
    if (len as u64) < intent.route.quick_scrap_below() && !hole {
        // SAFETY: the caller's promise.
        return unsafe { scrap(core, me, source, len, offset, manner) };
    }
    let plan = plan(core, me, source, len, offset, hole, intent);
    // SAFETY: the caller's promise.
    unsafe { carry_out(core, me, source, offset, &plan, manner) }
}

fn too_long() -> Error {
    Error::Device {
        errno: libc::EFBIG,
        operation: "write",
    }
}

/// How many of `len` bytes at `offset` the process may write (`RLIMIT_FSIZE`): at least one, or `EFBIG`. The signal that the
/// kernel sends with it is the front end's.
#[cold]
fn within_limit(offset: u64, len: usize) -> std::result::Result<usize, Error> {
    let room = limits::look_at_file_bytes().saturating_sub(offset);
    match room {
        0 => Err(too_long()),
        room => Ok(len.min(usize::try_from(room).unwrap_or(usize::MAX))),
    }
}

fn plan(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
    hole: bool,
    intent: Intent<'_>,
) -> Plan {
    let superblock = me.arena.superblock();
    let entry = core.entry();
    let caps = core.device.caps();
    let middle = offset.next_multiple_of(crate::limits::BLOCK_BYTES as u64) - offset;
    let at_middle = source.wrapping_add(middle as usize);
    let request = WriteRequest {
        offset,
        len: len as u64,
        memory_aligned: direct::goes_as_it_is(core, at_middle),
    };
    if len > SMALL_SYNC_PAGES as usize * PAGE_BYTES {
        entry.count_sync(false);
    }
    if hole {
        return Plan::whole(&request, Way::Kernel);
    }
    let speeds = busy::speeds(superblock, caps.device);
    let (cached_bytes, provide_ns) = in_memory(core, me, offset, len);
    let is_large = len >= DIRECT_BYTES_MIN;
    let turn = is_large.then(|| busy::count_choice(superblock, caps.device));
    let situation = Situation {
        memory_pressure: pressure(core, me, 0),
        pressure_after: pressure(core, me, len as u64 - cached_bytes),
        device_busy: busy::inflight_bytes(superblock, caps.device) > core.shared.config.busy_bytes,
        cached_bytes,
        provide_ns,
        turn: turn.unwrap_or(1),
        device: speeds.device(),
        copy: speeds.copy(),
        extends: offset + len as u64 > entry.size.load(Ordering::Relaxed),
        hole,
        sync: intent.sync || entry.take_sync(),
        flush_syncs: core.device.has_sync_and_stat(),
    };
    // The route may be the caller's own ([`crate::File::routed_by`]), and wrong.
    intent.route.plan(&request, &situation).or_memory(&request)
}

/// The session's or the file's, whichever is nearer to its limit, with `more` bytes.
fn pressure(core: &Core, me: Me<'_>, more: u64) -> Pressure {
    let (superblock, entry) = (me.arena.superblock(), core.entry());
    let of = |pages: u64, limit: u64| {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES as u64);
        Pressure::of(bytes(pages).saturating_add(more), bytes(limit))
    };
    let max = superblock.owed_pages_max.load(Ordering::Relaxed);
    let owed = match superblock.owed_about() {
        few if few < max / 2 => few,
        most if core.shared.is_refused(entry) => most,
        _ => core.shared.owed_in_reach(),
    };
    let session = of(owed, max);
    let owed = entry.owed_pages.load(Ordering::Relaxed);
    session.max(of(owed, core.shared.file_owed_pages_max))
}

/// Bytes of a range that lie dirty in memory, about: as the headers say without their locks; and what it takes to give memory to
/// those blocks that have none, nanoseconds.
fn in_memory(core: &Core, me: Me<'_>, offset: u64, len: usize) -> (u64, u64) {
    let superblock = me.arena.superblock();
    let provide_ns = |bytes| provision::expected_ns(superblock, bytes);
    let owes = core.entry().owed_pages.load(Ordering::Relaxed) != 0;
    let most_ns = provide_ns(len as u64);
    if !owes && most_ns == 0 {
        return (0, 0);
    }
    let Ok(_operation) = me.enter(core.id) else {
        return (0, most_ns);
    };
    let (mut owed, mut homed) = (0, 0);
    for segment in segments(offset, len) {
        let header = slots::lookup(me.arena, core.entry(), segment.block);
        if let Some(header) = header.and_then(|id| me.arena.header(id)) {
            let pages = header.owed() & segment.touched();
            owed += u64::from(pages.count_ones()) * PAGE_BYTES as u64;
            if header.has_frame() {
                homed += segment.len as u64;
            }
        }
    }
    (owed.min(len as u64), provide_ns(len as u64 - homed))
}

/// # Safety
/// As for [`write`].
unsafe fn carry_out(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    offset: u64,
    plan: &Plan,
    manner: Manner,
) -> std::result::Result<usize, Halt> {
    let mut done = 0usize;
    for part in plan.parts() {
        let at = (part.offset - offset) as usize;
        let len = part.len as usize;
        // SAFETY: parts lie within the request.
        let from = unsafe { source.add(at) };
        let written = match part.way {
            // SAFETY: parts lie within the caller's memory; the same for the other two ways.
            Way::Scrap { eager } => unsafe {
                scrap(core, me, from, len, part.offset, Manner { eager, ..manner })
            },
            // SAFETY: as above.
            Way::Direct => unsafe {
                copy::fault_in(from, len);
                direct::write(core, me, from, len, part.offset, manner.at_end)
            },
            // SAFETY: as above.
            Way::Kernel => unsafe {
                direct::through_kernel(core, me, from, len, part.offset, manner.at_end)
            },
        };
        match written {
            Ok(n) if n == len => done += n,
            Ok(n) => return Ok(done + n),
            Err(Halt::Kernel) => return Err(Halt::Kernel),
            Err(_) if done > 0 => return Ok(done),
            Err(halt) => return Err(halt),
        }
    }
    Ok(done)
}

/// How bytes go into memory.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// The request goes on where one before has ended.
    pub sequential: bool,
    /// As [`Intent::long`].
    pub long: bool,
    /// Blocks that become whole are written soon.
    pub eager: bool,
    /// `FileEntry::holes` before it was asked whether there is space.
    pub holes: u32,
    /// As [`Intent::at_end`].
    pub at_end: bool,
}

/// Writes into memory. Returns the bytes written: fewer than `len` only where the source ends before, or an error came after some.
///
/// # Safety
/// As for [`write`].
pub(crate) unsafe fn scrap(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
    manner: Manner,
) -> std::result::Result<usize, Halt> {
    let home = if manner.sequential || len >= FRAME_BYTES_MIN {
        Home::Frame
    } else {
        Home::Small
    };
    for segment in segments(offset, len) {
        if segment.done > 0 {
            // One request must not pass the limits by all its length.
            throttle(core, me)?;
        }
        // SAFETY: a segment lies within the request.
        let from = unsafe { source.add(segment.done) };
        // SAFETY: as above.
        let taken = match unsafe { scrap_reserved(core, me, &segment, from, home, manner) } {
            Err(Halt::Fault) => {
                // SAFETY: as above.
                match unsafe { scrap_what_is_there(core, me, &segment, from, home, manner)? } {
                    0 if segment.done == 0 => return Err(Halt::Fault),
                    bytes => Taken { bytes, full: false },
                }
            }
            Err(Halt::Kernel) => return Err(Halt::Kernel),
            Err(_) if segment.done > 0 => Taken::default(),
            taken => taken?,
        };
        if manner.eager && taken.full {
            ring::push(
                &me.arena.superblock().eager,
                Identity {
                    file: core.id,
                    block: segment.block,
                },
            );
            core.shared.wake_keeper();
        }
        if taken.bytes < segment.len {
            let done = segment.done + taken.bytes;
            me.count(Counter::ScrapBytes as usize, done as u64);
            return Ok(done);
        }
    }
    me.count(Counter::ScrapBytes as usize, len as u64);
    Ok(len)
}

/// What has come of a segment.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// Bytes written.
    bytes: usize,
    /// Its block is whole in memory now.
    full: bool,
}

/// Writes a segment whose source is not all there, page of the source by page, up to the first that is missing.
///
/// # Safety
/// As for [`write`].
#[cold]
unsafe fn scrap_what_is_there(
    core: &Core,
    me: Me<'_>,
    segment: &Segment,
    source: *const u8,
    home: Home,
    manner: Manner,
) -> std::result::Result<usize, Halt> {
    for (done, part) in segment.by_pages_of(source.addr()) {
        // SAFETY: a part lies within its segment.
        let from = unsafe { source.add(done) };
        // SAFETY: as above.
        match unsafe { scrap_reserved(core, me, &part, from, home, manner) } {
            Err(Halt::Kernel) => return Err(Halt::Kernel),
            Err(Halt::Fault) => return Ok(done),
            Err(_) if done > 0 => return Ok(done),
            Ok(taken) if taken.bytes < part.len => return Ok(done + taken.bytes),
            taken => _ = taken?,
        }
    }
    Ok(segment.len)
}

/// One segment whose space was there a moment ago, when `manner.holes` had been punched, and may have been given to another file, cut off
/// or punched since.
///
/// # Safety
/// `source` is valid for the segment.
#[inline]
unsafe fn scrap_reserved(
    core: &Core,
    me: Me<'_>,
    segment: &Segment,
    source: *const u8,
    home: Home,
    mut manner: Manner,
) -> std::result::Result<Taken, Halt> {
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in(source, segment.len) };
    let mut wait = Wait::new(core);
    loop {
        let step = core.operate(me, |operation| {
            // SAFETY: the caller's promise.
            match unsafe { scrap_segment(core, operation, segment, source, home, manner) } {
                Err(Halt::NoMemory) if wait.is_in_vain() => Err(Halt::Unreserved),
                step => step,
            }
        });
        match step {
            Err(Halt::Unreserved) => {}
            full => {
                let (bytes, full) = (segment.len, full?);
                wait.ends();
                return Ok(Taken { bytes, full });
            }
        }
        let start = segment.offset();
        let end = start + segment.len as u64;
        manner.holes = core.entry().holes.load(Ordering::Acquire);
        if reserve::ahead(core, me, start, end, manner.sequential)? || wait.was_in_vain() {
            let (at_end, mut bytes) = (manner.at_end, 0);
            // A write may be cut short for no reason at all; where there is no space the next one says so.
            while bytes < segment.len {
                let (rest, at) = (segment.len - bytes, start + bytes as u64);
                // SAFETY: the caller's promise.
                match unsafe {
                    direct::through_kernel(core, me, source.add(bytes), rest, at, at_end)
                } {
                    Err(Halt::Kernel) => return Err(Halt::Kernel),
                    Err(_) if bytes > 0 => break,
                    written => bytes += written?,
                }
            }
            let full = false;
            return Ok(Taken { bytes, full });
        }
    }
}

/// One segment; whether its block is whole now.
///
/// # Safety
/// `source` is valid for the segment.
#[inline]
unsafe fn scrap_segment(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    source: *const u8,
    home: Home,
    manner: Manner,
) -> std::result::Result<bool, Halt> {
    // A copy of a whole block tells how fast memory is, and takes so long that looking at the clock does not count. Only the
    // try that succeeds is looked at: waits are not copies. On the heap, in tests, no decision shall hang on the clock.
    let tells = segment.len == BLOCK_BYTES && !core.shared.config.heap_backed;
    let begun = tells.then(Instant::now);
    let guard = core.lock(operation.me, segment.block)?;
    let entry = core.entry();
    let size_end = segment.block.start() + segment.end() as u64;
    // In this order: a thread that raises the end over a gap has counted the gap before.
    if size_end > entry.reserved_end.load(Ordering::Acquire)
        || entry.holes.load(Ordering::Acquire) != manner.holes && !planted!(BlindToHoles)
    {
        return Err(Halt::Unreserved);
    }
    if manner.at_end && is_outgrown(entry, segment.offset()) {
        return Err(Halt::Outgrown);
    }
    let stable = entry.flags.load(Ordering::Relaxed) & STABLE != 0;
    if stable && !planted!(UnstablePages) && guard.inflight() & segment.touched() != 0 {
        return Err(Halt::Busy);
    }
    if guard.inflight() != 0 && is_shared(&guard) {
        // The block gets a new frame, once the device has the old one.
        return Err(Halt::Busy);
    }
    // SAFETY: the caller's promise.
    let copied = unsafe { absorb(&guard, entry, segment, source, home, size_end, manner.long) };
    copied.map_err(|refusal| match refusal {
        Refusal::NoMemory => Halt::NoMemory,
        Refusal::Fault => Halt::Fault,
    })?;
    if let Some(begun) = begun {
        let (superblock, ns) = (guard.arena().superblock(), begun.elapsed().as_nanos());
        let device = core.device.caps().device;
        busy::observe_copy(superblock, device, segment.len as u64, ns as u64);
    }
    Ok(guard.valid() == u64::MAX)
}

/// Whether the file no longer ends at `end`, where an append was to go on. Asked by the thread that has the block to itself: a thread that writes
/// there from here on comes after the append.
pub(crate) fn is_outgrown(entry: &FileEntry, end: u64) -> bool {
    entry.size.load(Ordering::Acquire) != end && !planted!(EarlyEnd)
}

/// Notes that the file has holes from now on, and one more than before: a thread that has found space looks again.
pub(crate) fn mark_holey(core: &Core) {
    let entry = core.entry();
    // First: what is known to have space may be the hole.
    if !planted!(SolidHoles) {
        entry.solid.store(0, Ordering::Release);
    }
    entry.flags.fetch_or(HOLEY, Ordering::AcqRel);
    entry.assert_entry();
    entry.holes.fetch_add(1, Ordering::AcqRel);
}

/// The result of a whole write as callers see it.
pub fn finish(result: std::result::Result<usize, Halt>) -> Result<usize> {
    result.map_err(Core::ended)
}
