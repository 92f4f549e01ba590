//! Eviction by streams, from the coldest on, a run of clean blocks at a time (StreamCache 4.2).
//!
//! The list says in which order streams were last left for others; that a stream has been read since, by hits that no
//! tree hears of, is said by the stamps of its headers. So a stream that was used after it got its place is put first instead:
//! the order is corrected where it is asked for, and hits pay nothing. Dirty streams are gone over as well, since they have clean
//! parts.

use super::free_if_clean;
use crate::frame::header::{Header, Identity, State};
use crate::frame::slots;
use crate::ids::{FileId, StreamId};
use crate::memory::files::FileEntry;
use crate::memory::threads::Me;
use crate::stream::tracking;
use crate::stream::tree::lists::{self, Which};
use crate::stream::tree::{Span, extent_of, try_lock};
use crate::sync::Ordering;

/// Blocks that are gone over in one operation: a thread that stops the session waits for it.
const BATCH: u32 = 32;
/// Headers and streams that one pass looks at. Where the coldest have nothing to give, all of it in use or owed, the clock comes
/// next: which of many small streams is the coldest is not worth more.
const LOOK_MAX: u32 = 256;

/// What a pass may still do.
struct Pass<'p> {
    is_enough: &'p dyn Fn() -> bool,
    may_go: &'p dyn Fn(&Header) -> bool,
    /// Headers that may be looked at.
    looks: u32,
    freed: u32,
}

impl Pass<'_> {
    fn is_over(&self) -> bool {
        self.looks == 0 || self.freed > 0 && (self.is_enough)()
    }
}

/// Evicts what `may_go` until it is enough. How many headers were freed.
pub(super) fn evict(
    me: Me<'_>,
    is_enough: &dyn Fn() -> bool,
    may_go: &dyn Fn(&Header) -> bool,
) -> u32 {
    let mut pass = Pass {
        is_enough,
        may_go,
        looks: LOOK_MAX,
        freed: 0,
    };
    if !tracking::orders_flushes(me.arena) {
        return 0;
    }
    // Streams that have been gone over and are still where they were.
    let mut passed_over = 0;
    while !pass.is_over() {
        let mut met = 0;
        for (id, file) in lists::coldest(me, Which::All, passed_over) {
            met += 1;
            let mut after = After::More;
            while after == After::More && !pass.is_over() {
                after = evict_some(me, id, file, &mut pass);
            }
            if pass.is_over() {
                return pass.freed;
            }
            passed_over += usize::from(after == After::Stays);
        }
        if met == 0 {
            break;
        }
    }
    pass.freed
}

/// Where a stream is after a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// Where it was, with more to go over.
    More,
    /// Where it was.
    Stays,
    /// First, or nowhere.
    Moved,
}

/// Goes over the next blocks of a stream.
fn evict_some(me: Me<'_>, id: StreamId, file: FileId, pass: &mut Pass<'_>) -> After {
    pass.looks -= 1;
    let (Some(entry), Ok(_operation)) = (me.arena.file(file), me.enter(file)) else {
        return After::Stays;
    };
    let visit = match Visit::begin(me, entry, id, file) {
        Ok(visit) => visit,
        Err(after) => return after,
    };
    let freed_before = pass.freed;
    let mut at = u64::from(visit.first);
    for _ in 0..BATCH {
        let next = slots::next_linked(me.arena, entry, at);
        let Some((block, header_id)) = next.filter(|(block, _)| block.0 < visit.span.end) else {
            at = u64::from(visit.span.end);
            break;
        };
        if pass.is_over() {
            break;
        }
        at = u64::from(block.0) + 1;
        pass.looks -= 1;
        let Some(header) = me.arena.header(header_id) else {
            continue;
        };
        let clean = header.state() == State::Linked && header.owed() == 0;
        if clean && (pass.may_go)(header) {
            let identity = Identity { file, block };
            pass.freed += u32::from(free_if_clean(me, header_id, header, identity, entry));
        }
    }
    let ended = at >= u64::from(visit.span.end);
    let spared = pass.freed == freed_before;
    visit.end(me, entry, (!ended).then_some(at as u32), spared)
}

/// What a stream was when a batch of its blocks was begun.
struct Visit {
    id: StreamId,
    file: FileId,
    span: Span,
    /// Where the batch begins.
    first: u32,
}

impl Visit {
    /// A stream whose next block has been used since it got its place is put first instead.
    fn begin(me: Me<'_>, entry: &FileEntry, id: StreamId, file: FileId) -> Result<Self, After> {
        let tree = try_lock(me, file).ok_or(After::Stays)?;
        let stream = tree.get(id).ok_or(After::Moved)?;
        let span = extent_of(stream).span;
        let first = stream.evict_at.load(Ordering::Relaxed);
        let first = if span.contains(first) {
            first
        } else {
            span.start
        };
        let now = me.arena.superblock().tick.load(Ordering::Relaxed);
        let placed_for = now.wrapping_sub(stream.tick.load(Ordering::Relaxed));
        let next = slots::next_linked(me.arena, entry, u64::from(first));
        let next = next.and_then(|(_, header)| me.arena.header(header));
        if next.is_some_and(|header| header.idle_ticks(now) < placed_for) {
            tree.put_first([(id, stream)]);
            return Err(After::Moved);
        }
        Ok(Visit {
            id,
            file,
            span,
            first,
        })
    }

    /// Notes where to go on. At its end, a stream without any header goes, and a clean one that was spared goes first: it is
    /// visited again and again.
    fn end(&self, me: Me<'_>, entry: &FileEntry, go_on: Option<u32>, spared: bool) -> After {
        let Some(tree) = try_lock(me, self.file) else {
            return After::Stays;
        };
        let Some(stream) = tree.get(self.id) else {
            return After::Moved;
        };
        stream.evict_at.store(go_on.unwrap_or(0), Ordering::Relaxed);
        if go_on.is_some() {
            return After::More;
        }
        let span = extent_of(stream).span;
        let first = slots::next_linked(me.arena, entry, u64::from(span.start));
        let first = first.map_or(span.end, |(block, _)| block.0.min(span.end));
        if first > span.start {
            tree.cut_to(span.start, first, span.end);
        }
        match tree.get(self.id) {
            Some(stream) if spared && extent_of(stream).dirty.is_none() => {
                tree.put_first([(self.id, stream)]);
                After::Moved
            }
            Some(_) => After::Stays,
            None => After::Moved,
        }
    }
}
