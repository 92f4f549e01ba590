//! The tree against a naive list of intervals, and the examples of StreamCache 4.1.

use std::collections::BTreeSet;

use super::lists::{self, Which};
use super::*;
use crate::memory::arena::Arena;
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
use crate::memory::regions::Allocator;
use crate::memory::threads;
use crate::random::Random;

fn arena(frames: u32) -> Arena {
    let counts = Counts {
        threads: 4,
        files: 4,
        nodes: 64,
        headers: 64,
        frames,
    };
    let mapping = Mapping::heap(Layout::new(counts).len);
    Arena::create(mapping, counts, 0, true, (Allocator::default(), 2)).expect("an arena")
}

fn me(arena: &Arena) -> Me<'_> {
    let id = threads::take(arena, false).expect("a slot");
    Me { arena, id }
}

fn span(start: u32, end: u32) -> Span {
    Span::new(start, end).expect("not empty")
}

fn extent(blocks: (u32, u32), dirty: Option<(u32, u32)>) -> Extent {
    Extent {
        span: span(blocks.0, blocks.1),
        dirty: dirty.map(|(start, end)| span(start, end)),
    }
}

fn streams(me: Me<'_>, file: FileId) -> Vec<(StreamId, Extent, u32)> {
    let mut found = Vec::new();
    let tree = try_lock(me, file).expect("nobody has it");
    tree.each(|id, stream| {
        let limit = stream.upper_limit.load(Relaxed);
        found.push((id, extent_of(stream), limit));
    })
    .expect("sound links");
    found
}

fn extents(me: Me<'_>, file: FileId) -> Vec<Extent> {
    streams(me, file).into_iter().map(|(_, e, _)| e).collect()
}

fn track(me: Me<'_>, file: FileId, blocks: (u32, u32), dirty: bool) {
    let tree = try_lock(me, file).expect("nobody has it");
    tree.track(span(blocks.0, blocks.1), dirty);
}

/// Hottest first.
fn listed(me: Me<'_>, which: Which) -> Vec<(StreamId, FileId)> {
    let mut found = Vec::new();
    let lists = lists::try_hold(me).expect("nobody has them");
    lists.from_coldest(which, |id, stream| {
        found.push((id, FileId(stream.file.load(Relaxed) - 1)));
        true
    });
    found.reverse();
    found
}

const FILE: FileId = FileId(1);

#[test]
fn touching_ranges_become_one() {
    let a = extent((0, 10), Some((2, 6)));
    let b = extent((10, 20), Some((6, 12)).filter(|_| false));
    assert_eq!(a.merge(b), Merged::One(extent((0, 20), Some((2, 6)))));
    let c = extent((5, 9), Some((6, 9)));
    assert_eq!(a.merge(c), Merged::One(extent((0, 10), Some((2, 9)))));
}

#[test]
fn paper_4_1_dirty_ranges_apart_split_the_merged_range() {
    let read = extent((0, 100), Some((50, 60)));
    let written = extent((10, 20), Some((10, 20)));
    let apart = Merged::Two(
        extent((0, 50), Some((10, 20))),
        extent((50, 100), Some((50, 60))),
    );
    assert_eq!(read.merge(written), apart);
    assert_eq!(written.merge(read), apart);
}

/// The example of figure 7 as its text has it: streams that do not intersect, the cached one with the start of the one that
/// follows as its limit, infinite for the last.
#[test]
fn paper_figure_7_limits() {
    let arena = arena(8);
    let me = me(&arena);
    track(me, FILE, (30, 40), false);
    track(me, FILE, (0, 8), true);
    let limits: Vec<_> = streams(me, FILE).iter().map(|s| s.2).collect();
    assert_eq!(limits, [30, u32::MAX]);
    // A stream hit below the limit; the key stays.
    track(me, FILE, (8, 12), true);
    let (id, first, limit) = streams(me, FILE)[0];
    assert_eq!((first, limit), (extent((0, 12), Some((0, 12))), 30));
    let tree = try_lock(me, FILE).expect("nobody has it");
    assert_eq!(tree.current().map(|(current, _)| current), Some(id));
    assert!(try_lock(me, FILE).is_none(), "it is held");
    assert!(try_lock(me, FILE).is_none(), "and stays so");
}

#[test]
fn paper_4_1_reaching_the_limit_merges_recursively() {
    let arena = arena(8);
    let me = me(&arena);
    for start in [10, 20, 30] {
        track(me, FILE, (start, start + 5), false);
    }
    track(me, FILE, (0, 10), true);
    assert_eq!(streams(me, FILE).len(), 3);
    track(me, FILE, (10, 31), true);
    assert_eq!(extents(me, FILE), [extent((0, 35), Some((0, 31)))]);
    assert_eq!(listed(me, Which::All).len(), 1);
    assert_eq!(listed(me, Which::Dirty).len(), 1);
}

#[test]
fn a_read_over_dirty_streams_keeps_their_dirty_ranges_apart() {
    let arena = arena(8);
    let me = me(&arena);
    for start in [10, 20, 30] {
        track(me, FILE, (start, start + 2), true);
    }
    track(me, FILE, (0, 40), false);
    let expected = [
        extent((0, 20), Some((10, 12))),
        extent((20, 30), Some((20, 22))),
        extent((30, 40), Some((30, 32))),
    ];
    assert_eq!(extents(me, FILE), expected);
}

#[test]
fn a_lower_limit_after_eviction_costs_a_search_and_no_more() {
    let arena = arena(8);
    let me = me(&arena);
    track(me, FILE, (10, 20), false);
    track(me, FILE, (0, 5), false);
    let tree = try_lock(me, FILE).expect("nobody has it");
    (10..20).for_each(|block| tree.drop_block(block, |next| next > block));
    drop(tree);
    assert_eq!(streams(me, FILE)[0].2, 10, "too low, which does no harm");
    track(me, FILE, (5, 15), false);
    let (_, only, limit) = streams(me, FILE)[0];
    assert_eq!((only, limit), (extent((0, 15), None), u32::MAX));
}

#[test]
fn streams_move_only_when_another_becomes_current() {
    let arena = arena(8);
    let me = me(&arena);
    let other = FileId(2);
    track(me, FILE, (0, 1), true);
    track(me, other, (0, 1), false);
    let order = |which| -> Vec<_> {
        listed(me, which)
            .into_iter()
            .map(|(_, file)| file)
            .collect()
    };
    assert_eq!(order(Which::All), [other, FILE]);
    track(me, FILE, (1, 2), true);
    assert_eq!(order(Which::All), [other, FILE], "a hit moves nothing");
    track(me, FILE, (50, 51), false);
    assert_eq!(order(Which::All), [FILE, FILE, other]);
    assert_eq!(order(Which::Dirty), [FILE]);
    let coldest: Vec<_> = lists::coldest(me, Which::All, 0).collect();
    assert_eq!(coldest.len(), 3);
    assert_eq!(coldest[0].1, other);
}

/// The naive list.
#[derive(Default)]
struct Naive {
    streams: Vec<Extent>,
    linked: BTreeSet<u32>,
    owed: BTreeSet<u32>,
}

impl Naive {
    /// `current`: what the current stream covers. A request within it looks at no other.
    fn track(&mut self, request: Span, dirty: bool, current: Option<Extent>) {
        let blocks = request.start..request.end;
        self.linked.extend(blocks.clone());
        if dirty {
            self.owed.extend(blocks);
        }
        if let Some(current) = current.filter(|current| current.span.covers(request)) {
            let apart = current.dirty.is_some_and(|was| !was.touches(request));
            if !(dirty && apart) {
                let stream = self.streams.iter_mut().find(|e| **e == current);
                let stream = stream.expect("the tree's current stream is in the list");
                let was = stream.dirty;
                let hull = was.map_or(request, |was| was.hull(request));
                stream.dirty = if dirty { Some(hull) } else { was };
                return;
            }
        }
        let mut now = Extent {
            span: request,
            dirty: dirty.then_some(request),
        };
        if self.streams.iter().any(|stream| stream.has(now)) {
            return;
        }
        let mut is_closed = false;
        let mut rest = std::mem::take(&mut self.streams).into_iter().peekable();
        while let Some(below) = rest.next_if(|e| e.span.start <= request.start) {
            let is_last = rest.peek().is_none_or(|e| e.span.start > request.start);
            if !is_last || !below.span.touches(now.span) {
                self.streams.push(below);
                continue;
            }
            match below.merge(now) {
                Merged::One(one) => now = one,
                Merged::Two(low, high) => {
                    // What was above the request before is left as it is.
                    is_closed = low.dirty == now.dirty;
                    self.streams.push(low);
                    now = high;
                }
            }
        }
        for above in rest {
            if is_closed || above.span.start > now.span.end {
                is_closed = true;
                self.streams.push(std::mem::replace(&mut now, above));
                continue;
            }
            match now.merge(above) {
                Merged::One(one) => now = one,
                Merged::Two(low, high) => {
                    is_closed = high.span.end == above.span.end;
                    self.streams.push(low);
                    now = high;
                }
            }
        }
        self.streams.push(now);
        self.streams.sort_by_key(|e| e.span.start);
    }

    fn next_owed(&self, from: u32) -> Option<u32> {
        self.owed.range(from..).next().copied()
    }

    fn of(&mut self, block: u32) -> Option<&mut Extent> {
        self.streams.iter_mut().find(|e| e.span.contains(block))
    }

    fn clean(&mut self, block: u32) {
        self.owed.remove(&block);
        let next = self.next_owed(block);
        let Some(stream) = self.of(block) else { return };
        let Some(dirty) = stream.dirty.filter(|d| d.contains(block)) else {
            return;
        };
        if block == dirty.start {
            stream.dirty = next.and_then(|next| Span::new(next, dirty.end));
        } else if block == dirty.end - 1 {
            stream.dirty = Span::new(dirty.start, block);
        }
    }

    fn drop_block(&mut self, block: u32) {
        self.clean(block);
        self.linked.remove(&block);
        let linked = self.linked.range(block..).next().copied();
        let Some(stream) = self.of(block) else { return };
        let was = stream.span;
        if block == was.start {
            let near = was.end.min(block + LOOK_AHEAD);
            stream.span.start = linked.unwrap_or(near).min(near);
        } else if block == was.end - 1 {
            stream.span.end -= 1;
        }
        let hull = Span::new(stream.span.start, stream.span.end);
        let kept = match (hull, stream.dirty) {
            (Some(hull), Some(dirty)) => Some(hull.hull(dirty)),
            (hull, dirty) => hull.or(dirty),
        };
        match kept {
            Some(kept) => stream.span = kept,
            None => self
                .streams
                .retain(|e| e.span != was && e.span.start < e.span.end),
        }
    }
}

/// What must be true of every tree, whatever it has been through.
fn assert_sound(me: Me<'_>, file: FileId, truth: &Naive) {
    let found = streams(me, file);
    for pair in found.windows(2) {
        let (lower, upper) = (pair[0], pair[1]);
        assert!(lower.1.span.end <= upper.1.span.start, "{pair:?} intersect");
        assert!(
            lower.2 <= upper.1.span.start,
            "limit above the truth: {pair:?}"
        );
    }
    for (_, extent, _) in &found {
        assert!(extent.span.start < extent.span.end, "{extent:?}");
        let within = extent.dirty.is_none_or(|dirty| extent.span.covers(dirty));
        assert!(within, "dirty beyond the range: {extent:?}");
    }
    for &block in &truth.linked {
        let having = found.iter().filter(|s| s.1.span.contains(block)).count();
        assert_eq!(having, 1, "block {block} in {found:?}");
    }
    for &block in &truth.owed {
        let owing = |s: &&(StreamId, Extent, u32)| s.1.dirty.is_some_and(|d| d.contains(block));
        let having = found.iter().filter(owing).count();
        assert_eq!(having, 1, "owed block {block} in {found:?}");
    }
    let tree = try_lock(me, file).expect("nobody has it");
    assert!(!tree.is_in_doubt());
    for &block in &truth.owed {
        assert_eq!(tree.next_dirty(block).map(|d| d.start), Some(block));
    }
}

/// Each list has exactly the streams that it should have, once.
fn assert_lists(me: Me<'_>, files: u32) {
    let mut all = BTreeSet::new();
    let mut dirty = BTreeSet::new();
    for file in (0..files).map(FileId) {
        for (id, extent, _) in streams(me, file) {
            all.insert(id);
            if extent.dirty.is_some() {
                dirty.insert(id);
            }
        }
    }
    for (which, expected) in [(Which::All, all), (Which::Dirty, dirty)] {
        let found = listed(me, which);
        assert_eq!(found.len(), expected.len(), "{which:?}");
        let found: BTreeSet<_> = found.into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, expected, "{which:?}");
    }
}

/// What an operation does not touch keeps its order, and the stream of a miss is first.
fn assert_order(before: &[StreamId], after: &[StreamId], moved: &[StreamId]) {
    let stays = |id: &&StreamId| after.contains(id) && !moved.contains(id);
    let was: Vec<_> = before.iter().filter(stays).collect();
    let is: Vec<_> = after
        .iter()
        .filter(|id| before.contains(id) && !moved.contains(id))
        .collect();
    assert_eq!(was, is, "an order that nothing has changed");
}

fn run(seed: u64, frames: u32, blocks: u32, exact: bool) {
    const FILES: u32 = 3;
    let arena = arena(frames);
    let me = me(&arena);
    let mut random = Random::new(seed);
    let mut naive: Vec<Naive> = (0..FILES).map(|_| Naive::default()).collect();
    for step in 0..3000u32 {
        let file = FileId(random.below(FILES as usize) as u32);
        let model = &mut naive[file.index()];
        let block = random.below(blocks as usize) as u32;
        let order = |which| -> Vec<_> { listed(me, which).into_iter().map(|(id, _)| id).collect() };
        let before = order(Which::All);
        let was = model.streams.clone();
        let mut did = String::new();
        let tree = try_lock(me, file).expect("nobody has it");
        let was_current = tree.current().map(|(id, _)| id);
        match random.below(8) {
            0..4 => {
                let longest = if random.below(4) == 0 { 12 } else { 2 };
                let request = span(block, block + 1 + random.below(longest) as u32);
                let dirty = random.below(2) == 0;
                let current = tree.current().map(|(_, stream)| extent_of(stream));
                did = format!("{request:?} {dirty} {current:?}");
                tree.track(request, dirty);
                model.track(request, dirty, current.filter(|_| exact));
                let now_current = tree.current().map(|(id, _)| id);
                assert!(now_current.is_some(), "a request has a stream");
                drop(tree);
                if now_current != was_current {
                    assert_eq!(order(Which::All).first().copied(), now_current);
                }
            }
            4..6 => {
                let next = model.next_owed(0).unwrap_or(block);
                let block = if random.below(2) == 0 { next } else { block };
                model.clean(block);
                tree.clean(block, |from| model.next_owed(from));
                drop(tree);
            }
            _ => {
                let first = model.linked.first().copied().unwrap_or(block);
                let block = if random.below(2) == 0 { first } else { block };
                model.drop_block(block);
                tree.clean(block, |from| model.next_owed(from));
                tree.drop_block(block, |next| model.linked.contains(&next));
                drop(tree);
            }
        }
        let after = order(Which::All);
        let new_current = try_lock(me, file).and_then(|tree| tree.current().map(|(id, _)| id));
        let moved: Vec<_> = was_current.into_iter().chain(new_current).collect();
        assert_order(&before, &after, &moved);
        if exact {
            let model = &naive[file.index()];
            assert_eq!(
                extents(me, file),
                model.streams,
                "seed {seed}, step {step}: {did} on {was:?}"
            );
        }
        assert_sound(me, file, &naive[file.index()]);
        assert_lists(me, FILES);
    }
    let squeezed = arena.stream_lists().squeezed.load(Relaxed);
    assert_eq!(
        squeezed == 0,
        exact,
        "{squeezed} streams were not to be had"
    );
}

#[test]
fn random_operations_agree_with_a_naive_list() {
    for seed in 0..8 {
        run(seed, 64, 120, true);
    }
}

#[test]
fn without_free_streams_nothing_owed_is_missed() {
    for seed in 0..8 {
        run(seed, 8, 400, false);
    }
}

/// Many streams side by side, each with a dirty range of its own: a request into one of them looks at its neighbours and no further.
#[test]
#[cfg(feature = "sim")]
fn a_request_costs_no_more_with_many_neighbours() {
    let arena = arena(1024);
    let me = me(&arena);
    track(me, FILE, (0, 4000), false);
    let cost = |block: u32| {
        let before = crate::sim::count();
        track(me, FILE, (block, block + 1), true);
        crate::sim::count() - before
    };
    let mut costs: Vec<_> = (0..1000)
        .map(|index| cost(index * 577 % 1000 * 4))
        .collect();
    assert_eq!(extents(me, FILE).len(), records::CROWD as usize);
    costs.sort_unstable();
    assert!(costs[990] < 500, "{} accesses", costs[990]);
    let tree = try_lock(me, FILE).expect("nobody has it");
    for block in (0..4000).step_by(4) {
        let dirty = tree.next_dirty(block).expect("owed");
        assert!(dirty.contains(block), "{block} is in {dirty:?}");
    }
    drop(tree);
    assert_lists(me, 4);
}

#[test]
fn damaged_links_make_a_doubt_and_no_harm() {
    let arena = arena(8);
    let me = me(&arena);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        for _ in 0..30 {
            let block = random.below(200) as u32;
            track(me, FILE, (block, block + 1), random.below(2) == 0);
        }
        for _ in 0..4 {
            let bits = random.next_u64() as u32;
            let bits = if random.below(2) == 0 {
                bits % 70
            } else {
                bits
            };
            let stream = arena.stream(StreamId(random.below(64) as u32));
            let stream = stream.expect("in bounds");
            let words = [
                &stream.file,
                &stream.start,
                &stream.end,
                &stream.left,
                &stream.right,
                &stream.all.hotter,
                &stream.all.colder,
                &stream.dirty.hotter,
                &stream.dirty.colder,
                &stream.upper_limit,
                &stream.dirty_start,
                &stream.dirty_end,
            ];
            words[random.below(words.len())].store(bits, Relaxed);
        }
        for _ in 0..30 {
            let block = random.below(200) as u32;
            let tree = try_lock(me, FILE).expect("nobody has it");
            tree.track(span(block, block + 1), random.below(2) == 0);
            tree.clean(block, |_| None);
            let block = random.below(200) as u32;
            tree.drop_block(block, |next| next % 3 == 0);
            let _ = tree.next_dirty(0);
            let _ = tree.each(|_, _| ());
        }
        crate::stream::tracking::rebuild(me, Vec::new());
        assert_eq!(extents(me, FILE), []);
        assert_lists(me, 4);
    }
}
