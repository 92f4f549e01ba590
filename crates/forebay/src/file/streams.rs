//! Writeback by streams (StreamCache 4.2): while more is owed than the background limit, the coldest dirty stream goes first,
//! whichever file it is of, and what lies side by side in it goes in one request.
//!
//! A stream that could not be written, or was used again by requests that no tree hears of, goes to the front of the list, so
//! that others get their turn.

use std::sync::Arc;
use std::time::Duration;

use crate::device::DeviceFile;
use crate::file::streams;
use crate::flush::{Flusher, Outcome, Scope, busy, errors};
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, StreamId};
use crate::limits::PAGE_BYTES;
use crate::member::shared::Shared;
use crate::memory::threads::Me;
use crate::stream::tracking;
use crate::stream::tree::lists::{self, Which};
use crate::stream::tree::{Span, extent_of, try_lock};
use crate::sync::Ordering;

/// Pages that one background pass over a file writes at most, so that other files get their turn.
pub const PASS_PAGES: u64 = 4096;

/// Dirty bytes above which everything is written. Under pressure the limit on them falls, and half of it is little enough.
pub fn background_limit(shared: &Shared) -> u64 {
    let max = shared
        .arena
        .superblock()
        .owed_pages_max
        .load(Ordering::Relaxed)
        * PAGE_BYTES as u64;
    let config = &shared.config;
    if max < config.dirty_bytes_max / PAGE_BYTES as u64 * PAGE_BYTES as u64 {
        config.dirty_background.min(max / 2)
    } else {
        config.dirty_background
    }
}

/// Whether more is owed than the background limit.
pub fn owes_too_much(shared: &Shared) -> bool {
    let background = background_limit(shared) / PAGE_BYTES as u64;
    shared.arena.superblock().owed_about() > background && shared.owed_in_reach() > background
}

/// Whether what is owed is nearer to the limit at which writers wait than to the one from which on it is written.
pub fn owes_nearly_all(shared: &Shared) -> bool {
    let superblock = shared.arena.superblock();
    let max = superblock.owed_pages_max.load(Ordering::Relaxed);
    let background = background_limit(shared) / PAGE_BYTES as u64;
    let most = background.midpoint(max);
    superblock.owed_about() > most && shared.owed_in_reach() > most
}

/// Writes the coldest dirty streams while too much is owed, up to a pass's worth. Pages written.
pub fn write_coldest(shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher) -> u64 {
    if !tracking::orders_flushes(me.arena) {
        return 0;
    }
    mend_all(shared, me);
    let mut written = 0;
    while owes_too_much(shared) && written < PASS_PAGES {
        // What is in use as well, where there is nothing else.
        let round = match write_round(shared, me, flusher, true) {
            0 => write_round(shared, me, flusher, false),
            pages => pages,
        };
        if round == 0 {
            break;
        }
        written += round;
    }
    written
}

/// Goes once over the coldest dirty streams.
fn write_round(shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher, spare_used: bool) -> u64 {
    let mut written = 0;
    for (id, file) in lists::coldest(me, Which::Dirty, 0) {
        let Some((dirty, in_use)) = look(me, id, file) else {
            continue;
        };
        if in_use && spare_used {
            finish(me, id, file, dirty, true);
            continue;
        }
        written += write_stream(shared, me, flusher, (id, file, dirty), PASS_PAGES);
        if written >= PASS_PAGES || !owes_too_much(shared) {
            break;
        }
    }
    written
}

/// Trees that missed a change are made anew.
fn mend_all(shared: &Shared, me: Me<'_>) {
    for file in shared.open_files() {
        if let Some(entry) = me.arena.file(file)
            && let Ok(_operation) = me.enter(file)
        {
            tracking::mend(me, file, entry);
        }
    }
}

/// Writes about `pages` pages of the coldest dirty stream of a file that this process has open, however busy its device is: for
/// a thread that has to wait otherwise. Pages written, and what went wrong.
pub fn write_some(shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher, pages: u64) -> Outcome {
    let mut last = Outcome::default();
    if !tracking::orders_flushes(me.arena) {
        return last;
    }
    for (id, file) in lists::coldest(me, Which::Dirty, 0) {
        let entry = me.arena.file_unchecked(file);
        let Some(device) = shared.device(file).filter(|_| !shared.is_refused(entry)) else {
            continue;
        };
        let Some((dirty, _)) = look(me, id, file) else {
            continue;
        };
        let scope = within(&dirty, pages);
        last = shared.flush_with(flusher, me, file, &device, scope);
        finish(me, id, file, dirty, last.pages_written == 0);
        if last.pages_written > 0 {
            break;
        }
    }
    last
}

fn within(dirty: &Span, pages: u64) -> Scope {
    Scope {
        from: dirty.start.into(),
        until: dirty.end.into(),
        ..Scope::some(pages)
    }
}

fn write_stream(
    shared: &Arc<Shared>,
    me: Me<'_>,
    flusher: &mut Flusher,
    (id, file, dirty): (StreamId, FileId, Span),
    pages: u64,
) -> u64 {
    let entry = me.arena.file_unchecked(file);
    let tick = me.arena.superblock().tick.load(Ordering::Relaxed);
    let device = shared
        .device(file)
        .filter(|_| errors::may_retry(entry, tick));
    let scope = device
        .as_ref()
        .and_then(|device| unless_busy(shared, device, within(&dirty, pages)));
    let outcome = device
        .zip(scope)
        .map(|(device, scope)| shared.flush_with(flusher, me, file, &device, scope));
    let written = outcome.map_or(0, |outcome| outcome.pages_written);
    finish(me, id, file, dirty, written == 0);
    written
}

/// The dirty range of a stream, and whether its first block has been used since the stream got its place: then it has been hit, and
/// is not as cold as its place says.
fn look(me: Me<'_>, id: StreamId, file: FileId) -> Option<(Span, bool)> {
    let entry = me.arena.file(file)?;
    let _operation = me.enter(file).ok()?;
    let tree = try_lock(me, file)?;
    let stream = tree.get(id)?;
    let dirty = extent_of(stream).dirty?;
    let tick = me.arena.superblock().tick.load(Ordering::Relaxed);
    let placed_for = tick.wrapping_sub(stream.tick.load(Ordering::Relaxed));
    let first = slots::lookup(me.arena, entry, BlockIndex(dirty.start));
    let header = first.and_then(|first| me.arena.header(first));
    let in_use = header.is_some_and(|header| header.idle_ticks(tick) < placed_for);
    Some((dirty, in_use))
}

/// What has been written is dirty no more; a stream of which nothing was lets others go before it.
fn finish(me: Me<'_>, id: StreamId, file: FileId, dirty: Span, nothing: bool) {
    let (Some(entry), Ok(_operation)) = (me.arena.file(file), me.enter(file)) else {
        return;
    };
    tracking::settle(me, file, entry, dirty.start);
    if nothing
        && let Some(tree) = try_lock(me, file)
        && let Some(stream) = tree.get(id)
    {
        tree.put_first([(id, stream)]);
    }
}

/// A device that others keep busy gets the rest later, but for what has been dirty for long enough, and but
/// where writers are about to wait for it.
pub fn unless_busy(shared: &Shared, device: &Arc<dyn DeviceFile>, scope: Scope) -> Option<Scope> {
    let inflight = busy::inflight_bytes(shared.arena.superblock(), device.caps().device);
    if inflight <= shared.config.busy_bytes || streams::owes_nearly_all(shared) {
        return Some(scope);
    }
    let dirty_ticks = ticks(shared.config.flush_interval);
    (dirty_ticks != u32::MAX).then_some(Scope {
        dirty_ticks,
        full_idle_ticks: u32::MAX,
        ..scope
    })
}

/// Milliseconds of the session's clock, at least one; never where there is no duration.
pub fn ticks(duration: Option<Duration>) -> u32 {
    duration.map_or(u32::MAX, |d| {
        u32::try_from(d.as_millis()).unwrap_or(u32::MAX).max(1)
    })
}
