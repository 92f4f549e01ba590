//! A view of much that memory lacks, by several threads: as many requests are under way at the device at once.
//!
//! Each thread takes the next piece of 2 MiB and pins its blocks, as one thread does with all ([`pin_range`]). A device wants more than one
//! request to be as fast as it is, and memory can be given to the arena while it works. Threads, and not a queue of one thread's: a holder
//! of frames that a device writes to must not end before the device does, and a thread does not end before its system call (`run`).
//!
//! The threads live for one view. A process that hosts no keeper has none: it was promised that the engine starts none there.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use super::{After, Pins, pages_held, pin_range};
use crate::file::core::{Core, Halt};
use crate::file::view::cold::Cold;
use crate::file::view::run::Place;
use crate::ids::BlockIndex;
use crate::limits::HUGE_BYTES;
use crate::memory::pins::{self, Pin};
use crate::memory::threads::Me;
use crate::scrap::split::segments;

/// Requests under way at once.
const THREADS: usize = 4;
/// What memory must lack for it, bytes: less is read before threads have begun.
const BYTES_MIN: usize = 4 * HUGE_BYTES;
/// Frames that may be pinned at least where several threads hold some: a small part of them.
const FRAMES_MIN: u32 = 256;
/// Where memory is short a thread flushes and evicts, as any does.
const STACK_BYTES: usize = 1024 * 1024;

/// Whether so much of a range is missing that several requests pay.
pub fn is_worth_it(core: &Core, me: Me<'_>, start: u64, len: usize) -> bool {
    len >= BYTES_MIN
        && core.shared.hosts.load(Relaxed)
        && pins::frames_max(me.arena.superblock()) >= FRAMES_MIN
        && lacks(core, me, start, len)
}

/// Whether memory lacks [`BYTES_MIN`] of a range, as far as a glance tells.
fn lacks(core: &Core, me: Me<'_>, start: u64, len: usize) -> bool {
    let Ok(_operation) = me.enter(core.id) else {
        return false;
    };
    let mut missing = 0;
    segments(start, len).any(|segment| {
        if pages_held(core, me, segment.block) == Some(0) {
            missing += segment.len;
        }
        missing >= BYTES_MIN
    })
}

/// What the threads share.
struct Work<'a> {
    core: &'a Core,
    holder: u32,
    /// Pieces of the file that are 2 MiB of it, the first and the last perhaps less.
    pieces: Vec<(u64, usize)>,
    next: AtomicUsize,
    place: &'a Place,
}

/// What one thread has pinned, by piece.
type Pinned = Vec<(usize, Vec<Pin>)>;

/// As [`pin_range`], by several threads.
///
/// # Errors
/// Those of [`pin_range`]: of the first piece that has one.
pub fn pin(
    core: &Core,
    me: Me<'_>,
    holder: u32,
    (start, len): (u64, usize),
    (place, pins): (&Place, &mut Pins),
) -> Result<After, Halt> {
    place.choose(core, me, BlockIndex::of(start));
    let work = Work {
        core,
        holder,
        pieces: pieces(start, len),
        next: AtomicUsize::new(0),
        place,
    };
    let mut ends = std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map_while(|_| help(scope, &work)).collect();
        let mut ends = vec![work.go_on(me)];
        let end_of = |other: ScopedJoinHandle<'_, Ended>| match other.join() {
            Ok(end) => end,
            Err(panic) => resume_unwind(panic),
        };
        ends.extend(others.into_iter().map(end_of));
        ends
    });
    let mut pinned: Pinned = Vec::new();
    for (pins_of, _) in &mut ends {
        pinned.append(pins_of);
    }
    pinned.sort_unstable_by_key(|(piece, _)| *piece);
    pins.pins
        .extend(pinned.into_iter().flat_map(|(_, pins)| pins));
    let ended = ends.into_iter().filter_map(|(_, end)| end);
    match ended.min_by_key(|(piece, _)| *piece) {
        None => Ok(After::Done),
        Some((_, end)) => end,
    }
}

fn help<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: &'scope Work<'_>,
) -> Option<ScopedJoinHandle<'scope, Ended>> {
    let thread = Builder::new()
        .name("forebay-view".into())
        .stack_size(STACK_BYTES);
    let run = || match work.core.shared.me() {
        Ok(me) => work.go_on(me),
        // No slot is free: the others do it.
        Err(_) => (Vec::new(), None),
    };
    thread.spawn_scoped(scope, run).ok()
}

/// What a thread has pinned, and at which piece it ended otherwise than by having done all.
type Ended = (Pinned, Option<(usize, Result<After, Halt>)>);

impl Work<'_> {
    /// Pins piece after piece until none is left, or one cannot be.
    fn go_on(&self, me: Me<'_>) -> Ended {
        let mut pinned = Vec::new();
        loop {
            let at = self.next.fetch_add(1, Relaxed);
            let Some(&piece) = self.pieces.get(at) else {
                return (pinned, None);
            };
            let last = BlockIndex::of(piece.0 + piece.1 as u64 - 1);
            let (mut pins, mut cold) = (Vec::new(), Cold::up_to(last, self.place));
            let end = pin_range(self.core, me, self.holder, piece, (&mut pins, &mut cold));
            pinned.push((at, pins));
            if !matches!(end, Ok(After::Done)) {
                self.next.store(self.pieces.len(), Relaxed);
                return (pinned, Some((at, end)));
            }
        }
    }
}

/// Parts of a range, each within 2 MiB of the file that begin at a multiple.
fn pieces(start: u64, len: usize) -> Vec<(u64, usize)> {
    let (mut at, end) = (start, start + len as u64);
    let mut pieces = Vec::with_capacity(len / HUGE_BYTES + 2);
    while at < end {
        let next = (at + 1).next_multiple_of(HUGE_BYTES as u64).min(end);
        pieces.push((at, (next - at) as usize));
        at = next;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_multiples_of_a_huge_page() {
        let huge = HUGE_BYTES as u64;
        assert_eq!(pieces(0, HUGE_BYTES), [(0, HUGE_BYTES)]);
        assert_eq!(
            pieces(huge - 10, HUGE_BYTES + 20),
            [(huge - 10, 10), (huge, HUGE_BYTES), (2 * huge, 10)]
        );
        assert_eq!(pieces(5, 0), []);
    }
}
