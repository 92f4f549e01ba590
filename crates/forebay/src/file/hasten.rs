//! Handing the bulk of a sync to the keeper: it has many requests under way at once, the caller one.
//!
//! Worth it where what is owed lies in many places: a thousand single pages are a thousand requests. What is in a row is few
//! requests for the caller, too, but between two of them its device has nothing to do. Nothing depends on the keeper: whoever
//! asked flushes what is left by itself.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::error::Result;
use crate::file::core::Core;
use crate::frame::slots;
use crate::ids::{FileId, ThreadId};
use crate::keeper::run::{has_keeper, keeper_process};
use crate::memory::arena::Arena;
use crate::memory::files::HURRY;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sync::time::{Instant, sleep};
use crate::sys::liveness;

/// Requests below which waking the keeper costs more than it saves.
const REQUESTS_MIN: u32 = 32;
/// Pages from which on it is worth it even in a row: several of the longest requests.
const PAGES_IN_A_ROW_MIN: u64 = 4096;
/// Blocks that are looked at to estimate the requests.
const SAMPLE_BLOCKS: u32 = 64;
/// A keeper that writes nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same for who has no other way but to wait, once the keeper has begun, unless it is stopped. And how often it is looked after.
const ASKED_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Before everything that is owed is flushed: the keeper does its part, if it has the file's descriptors. `handed` is the
/// keeper that the description was handed to last.
pub fn begin<'a>(core: &'a Core, handed: &AtomicU32) -> Result<Me<'a>> {
    let me = core.shared.me()?;
    if core.shared.keeps.load(Relaxed) || core.shared.is_handed(handed) {
        hasten(core, me);
    }
    Ok(me)
}

/// Has the keeper write what the file owes, if that is scattered, and waits until it has done what it can.
fn hasten(core: &Core, me: Me<'_>) {
    let entry = core.entry();
    let owed = entry.owed_pages.load(Ordering::Acquire);
    if owed < u64::from(REQUESTS_MIN)
        || !has_keeper(&core.shared.arena)
        || owed < PAGES_IN_A_ROW_MIN && !is_scattered(core, me)
    {
        return;
    }
    hurry(&core.shared, core.id);
    let mut owed = u64::MAX;
    let mut progress = Instant::now();
    let mut round = 0;
    while entry.flags.load(Ordering::Acquire) & HURRY != 0 {
        let now = entry.owed_pages.load(Ordering::Acquire);
        if now < owed {
            (owed, progress) = (now, Instant::now());
        } else if progress.elapsed() > PATIENCE {
            break;
        }
        round += 1;
        me.wait(round);
    }
}

/// Has the keeper begin to write a file whose descriptors it has, or finds.
fn hurry(shared: &Shared, file: FileId) {
    let flags = &shared.arena.file_unchecked(file).flags;
    flags.fetch_or(HURRY, Ordering::AcqRel);
    shared.have_taken(file);
    shared.wake_keeper();
}

/// Before the keeper is asked to write all of a file and to answer then: whoever answers does nothing else meanwhile, and everybody who asks
/// something would wait for him. So those who write in the background do most of it first, where it is much. Best effort: they do not begin
/// with a file whose descriptors the keeper does not have.
pub fn have_most_written(shared: &Shared, file: FileId) {
    let entry = shared.arena.file_unchecked(file);
    let owed = || entry.owed_pages.load(Ordering::Acquire);
    if owed() < PAGES_IN_A_ROW_MIN || !has_keeper(&shared.arena) {
        return;
    }
    hurry(shared, file);
    let (mut least, mut progress) = (owed(), Instant::now());
    let mut has_begun = false;
    while entry.flags.load(Ordering::Acquire) & HURRY != 0 {
        let now = owed();
        let since = progress.elapsed();
        if now < least {
            (least, progress, has_begun) = (now, Instant::now(), true);
        } else if since > PATIENCE {
            has_begun |= is_being_flushed(&shared.arena, file);
            let is_late = !has_begun || since > ASKED_PATIENCE;
            if is_late || liveness::is_stopped(keeper_process(&shared.arena)) {
                break;
            }
        }
        sleep(LOOK_EVERY);
    }
}

/// Whether a living thread is at writing the file, though none of it may be written yet.
fn is_being_flushed(arena: &Arena, file: FileId) -> bool {
    let mut threads = (1..arena.counts().threads).map(ThreadId);
    threads.any(|id| threads::flushes(arena, id) == Some(file) && !threads::is_dead(arena, id))
}

/// Whether flushing takes many requests: by the runs of dirty pages in the first blocks that owe something.
fn is_scattered(core: &Core, me: Me<'_>) -> bool {
    let Ok(_operation) = me.enter(core.id) else {
        return false;
    };
    let (mut at, mut requests) = (0, 0);
    for _ in 0..SAMPLE_BLOCKS {
        let Some((block, id)) = slots::next_owed(me.arena, core.entry(), at) else {
            break;
        };
        let owed = me.arena.header(id).map_or(0, |header| header.owed());
        requests += (owed & !(owed << 1)).count_ones();
        at = u64::from(block.0) + 1;
    }
    requests >= REQUESTS_MIN
}
