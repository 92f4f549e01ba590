//! Handing the bulk of a sync to the keeper: it has many requests under way at once, the caller one.
//!
//! Worth it where what is owed lies in many places: a thousand single pages are a thousand requests. What is in a row is few
//! requests for the caller, too, but between two of them its device has nothing to do. Nothing depends on the keeper: the
//! caller flushes what is left by itself.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::error::Result;
use crate::file::core::Core;
use crate::frame::slots;
use crate::ids::FileId;
use crate::member::hurry::{PAGES_IN_A_ROW_MIN, PATIENCE, hurry};
use crate::member::presence::has_keeper;
use crate::memory::files::HURRY;
use crate::memory::threads::Me;
use crate::sync::Ordering;
use crate::sync::time::Instant;

/// Requests below which waking the keeper costs more than it saves.
pub const REQUESTS_MIN: u32 = 32;
/// Blocks that are looked at to estimate the requests.
const SAMPLE_BLOCKS: u32 = 64;

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
        || owed < PAGES_IN_A_ROW_MIN && !is_scattered(me, core.id)
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

/// Whether flushing takes [`REQUESTS_MIN`] requests: by the runs of dirty pages in the first blocks that owe something. The caller is in no
/// operation.
pub fn is_scattered(me: Me<'_>, file: FileId) -> bool {
    let Ok(_operation) = me.enter(file) else {
        return false;
    };
    let entry = me.arena.file_unchecked(file);
    let (mut at, mut requests) = (0, 0);
    for _ in 0..SAMPLE_BLOCKS {
        let Some((block, id)) = slots::next_owed(me.arena, entry, at) else {
            break;
        };
        let owed = me.arena.header(id).map_or(0, |header| header.owed());
        requests += (owed & !(owed << 1)).count_ones();
        at = u64::from(block.0) + 1;
    }
    requests >= REQUESTS_MIN
}
