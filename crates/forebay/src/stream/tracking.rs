//! What the trees of streams are told, by whom, and how they are made anew.
//!
//! Three events change a tree, and all of them are rare: a block gets its header or loses it, a block that owed nothing
//! owes something, a block owes nothing any more. A request into blocks that owe something already, and any read of what is in
//! memory, is none of them and costs nothing. Every caller is in an operation on the file; the second and third
//! happen under the block's header lock, so they come in the order in which they happened.
//!
//! The slot tree says first what the stream tree is told afterwards: a thread that shrinks a stream looks there, under
//! the tree's lock. So a change that is on its way is either seen or comes after.

use crate::config::DirtyTracking;
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId};
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::memory::threads::Me;
use crate::stream::tree::{Locked, Span, lists, try_lock};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::planted;

/// How the session tracks what is owed (`dirty_tracking`), by its maker's configuration.
#[inline]
pub fn kind(arena: &Arena) -> DirtyTracking {
    match arena.stream_lists().tracking.load(Relaxed) {
        1 => DirtyTracking::Stream,
        _ => DirtyTracking::Page,
    }
}

/// Whether the session has trees of streams.
#[inline]
pub fn is_on(arena: &Arena) -> bool {
    kind(arena) == DirtyTracking::Stream
}

/// Whether what is owed is written in the order of streams (`flush_order`).
pub fn orders_flushes(arena: &Arena) -> bool {
    is_on(arena) && arena.stream_lists().ordering.load(Relaxed) != 0
}

fn tell(me: Me<'_>, file: FileId, change: impl FnOnce(&Locked<'_>)) {
    if !is_on(me.arena) {
        return;
    }
    match try_lock(me, file) {
        Some(tree) => change(&tree),
        None => me.arena.stream_tree(file).doubt.store(1, Release),
    }
}

/// A block has got its header, unless it has lost it again by now.
pub fn linked(me: Me<'_>, file: FileId, entry: &FileEntry, block: BlockIndex) {
    tell(me, file, |tree| {
        if slots::lookup(me.arena, entry, block).is_some() {
            tree.track(Span::block(block.0), false);
        }
    });
}

/// A block owes something and did not. Its mark is set.
pub fn owed(me: Me<'_>, file: FileId, block: BlockIndex) {
    if planted!(UntoldDirt) {
        return;
    }
    tell(me, file, |tree| tree.track(Span::block(block.0), true));
}

/// A block owes nothing any more. Its mark is cleared.
pub fn paid(me: Me<'_>, file: FileId, entry: &FileEntry, block: BlockIndex) {
    tell(me, file, |tree| {
        tree.clean(block.0, |from| next_owed(me.arena, entry, from));
    });
}

/// A block has lost its header. Its slot is empty, unless it has got another by now.
pub fn dropped(me: Me<'_>, file: FileId, entry: &FileEntry, block: BlockIndex) {
    tell(me, file, |tree| {
        let is_linked = |block| slots::lookup(me.arena, entry, BlockIndex(block)).is_some();
        if !is_linked(block.0) {
            tree.drop_block(block.0, is_linked);
        }
    });
}

/// No block from `first` on has a header: the file has been cut, and nobody else is in it.
pub fn cut(me: Me<'_>, file: FileId, first: BlockIndex) {
    tell(me, file, |tree| tree.truncate(first.0));
}

/// A dirty range has been written, or tried: it ends where nothing is owed.
pub fn settle(me: Me<'_>, file: FileId, entry: &FileEntry, block: u32) {
    tell(me, file, |tree| {
        tree.settle(block, |from| next_owed(me.arena, entry, from));
    });
}

/// The file's entry goes: no block has a header.
pub fn forget(me: Me<'_>, file: FileId) {
    if is_on(me.arena)
        && let Some(tree) = try_lock(me, file)
    {
        tree.clear();
        return;
    }
    tell(me, file, |tree| tree.doubt());
}

/// The first dirty range of a file that ends after `from`. `None` as well where the tree cannot be asked.
pub fn next_dirty(me: Me<'_>, file: FileId, from: u32) -> Option<Span> {
    try_lock(me, file)?.next_dirty(from)
}

/// Whether the tree should have a block among what is owed, and has not. The caller has the header's lock, and the block owes
/// something.
pub fn is_surprise(me: Me<'_>, file: FileId, block: BlockIndex) -> bool {
    let doubt = &me.arena.stream_tree(file).doubt;
    if !is_on(me.arena) {
        return false;
    }
    let Some(tree) = try_lock(me, file) else {
        return false;
    };
    let found = tree.next_dirty(block.0);
    drop(tree);
    let missed = found.is_none_or(|dirty| !dirty.contains(block.0)) && doubt.load(Acquire) == 0;
    if missed {
        me.arena.stream_lists().surprises.fetch_add(1, Relaxed);
        doubt.store(1, Release);
    }
    missed
}

fn next_owed(arena: &Arena, entry: &FileEntry, from: u32) -> Option<u32> {
    slots::next_owed(arena, entry, u64::from(from)).map(|(block, _)| block.0)
}

/// Whether what is known of a file lacks something.
pub fn is_in_doubt(arena: &Arena, file: FileId) -> bool {
    arena.stream_tree(file).doubt.load(Acquire) != 0
}

/// Makes the tree of a file anew from its slots, if it is in doubt. In an operation on the file.
pub fn mend(me: Me<'_>, file: FileId, entry: &FileEntry) {
    if me.arena.stream_tree(file).doubt.load(Relaxed) == 0 {
        return;
    }
    if !is_on(me.arena) {
        return;
    }
    let Some(tree) = try_lock(me, file) else {
        return;
    };
    tree.begin_anew();
    me.arena.stream_lists().mended.fetch_add(1, Relaxed);
    let linked = |from| slots::next_linked(me.arena, entry, from).map(|(block, _)| block.0);
    runs(linked, |span| tree.track(span, false));
    let owed = |from| slots::next_owed(me.arena, entry, from).map(|(block, _)| block.0);
    runs(owed, |span| tree.track(span, true));
}

/// The runs of blocks that `next` finds.
fn runs(next: impl Fn(u64) -> Option<u32>, mut f: impl FnMut(Span)) {
    let mut run: Option<Span> = None;
    let mut at = 0;
    while let Some(block) = next(at) {
        let one = Span::block(block);
        at = u64::from(block) + 1;
        run = match run {
            Some(span) if span.end == one.start => Some(span.hull(one)),
            before => {
                before.into_iter().for_each(&mut f);
                Some(one)
            }
        };
    }
    run.into_iter().for_each(f);
}

/// A block for `rebuild`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block {
    /// Whose.
    pub file: FileId,
    /// Which.
    pub block: BlockIndex,
    /// Whether it owes anything.
    pub owed: bool,
    /// Ticks since its last use.
    pub idle: u32,
}

/// Makes all trees and lists anew. Part of a rebuild: the session is stopped, and `blocks` are all that have headers.
pub(crate) fn rebuild(me: Me<'_>, mut blocks: Vec<Block>) {
    wipe(me.arena);
    if !is_on(me.arena) {
        return;
    }
    blocks.sort_unstable();
    let mut runs: Vec<&[Block]> = blocks.chunk_by(follows).collect();
    // The coldest first, so that the hottest end up first in the lists.
    let idle = |run: &&[Block]| run.iter().map(|block| block.idle).min();
    runs.sort_by_key(|run| std::cmp::Reverse(idle(run)));
    for run in runs {
        let Some(tree) = run.first().and_then(|block| try_lock(me, block.file)) else {
            continue;
        };
        track(&tree, run, false);
        for owed in run.chunk_by(|a, b| a.owed == b.owed) {
            if owed.iter().all(|block| block.owed) {
                track(&tree, owed, true);
            }
        }
    }
}

fn follows(a: &Block, b: &Block) -> bool {
    a.file == b.file && a.block.0 + 1 == b.block.0
}

fn track(tree: &Locked<'_>, run: &[Block], dirty: bool) {
    if let (Some(first), Some(last)) = (run.first(), run.last()) {
        tree.track(
            Span::block(first.block.0).hull(Span::block(last.block.0)),
            dirty,
        );
    }
}

/// No streams, no locks, no doubts.
fn wipe(arena: &Arena) {
    let clear = |word: &crate::sync::AtomicU32| {
        if word.load(Relaxed) != 0 {
            word.store(0, Relaxed);
        }
    };
    lists::clear(arena);
    for file in (0..arena.counts().files).map(FileId) {
        let tree = arena.stream_tree(file);
        [
            &tree.lock,
            &tree.root,
            &tree.pointer,
            &tree.doubt,
            &tree.count,
        ]
        .into_iter()
        .for_each(clear);
    }
    for id in (0..arena.counts().streams()).map(crate::ids::StreamId) {
        if let Some(stream) = arena.stream(id) {
            [&stream.file, &stream.all.hotter, &stream.dirty.hotter]
                .into_iter()
                .for_each(clear);
            arena.stream_hints().set(id.0);
        }
    }
}
