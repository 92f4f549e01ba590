//! The session's two lists: all streams and dirty streams, hottest first (StreamCache 4.2, figure 8).
//!
//! A stream moves when another becomes current in its file, not with every request. A thread that wants the coldest asks
//! the headers as well whether it is in use (`evict`, `flush`), and moves it to the front if it is: so that hits cost
//! nothing and the order is right where it matters.
//!
//! A lock of their own, taken after a tree's, held for a few stores. Damaged links are found by their neighbours, and counted
//! walks end.

use crate::ids::{FileId, StreamId};
use crate::memory::arena::Arena;
use crate::memory::streams::{Ends, Lists, Neighbours, Stream};
use crate::memory::threads::Me;
use crate::stream::tree::{LOCK_ROUNDS, try_word};
use crate::sync::Ordering::{Relaxed, Release};

/// The first of a list has no hotter neighbour, but is in the list.
const FIRST: u32 = u32::MAX;
/// Streams that one look at a list names.
pub const LOOK: usize = 16;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All streams.
    All,
    /// Those that may owe something.
    Dirty,
}

/// The lists, locked.
pub struct Held<'a> {
    arena: &'a Arena,
    lists: &'a Lists,
}

/// Locks the lists. `None`: somebody else has them, for longer than a moment.
pub fn try_hold(me: Me<'_>) -> Option<Held<'_>> {
    let lists = me.arena.stream_lists();
    // Made only with the lock in hand: its end opens it.
    try_word(me, &lists.lock, LOCK_ROUNDS).then(|| Held {
        arena: me.arena,
        lists,
    })
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.lists.lock.store(0, Release);
    }
}

fn ends(lists: &Lists, which: Which) -> &Ends {
    match which {
        Which::All => &lists.all,
        Which::Dirty => &lists.dirty,
    }
}

fn place(stream: &Stream, which: Which) -> &Neighbours {
    match which {
        Which::All => &stream.all,
        Which::Dirty => &stream.dirty,
    }
}

impl Held<'_> {
    fn at(&self, word: u32) -> Option<&Stream> {
        self.arena.stream(StreamId(word.checked_sub(1)?))
    }

    /// Puts a stream first, wherever it was.
    pub fn put_first(&self, which: Which, id: StreamId) {
        let ends = ends(self.lists, which);
        if ends.first.load(Relaxed) == id.0 + 1 {
            return;
        }
        self.take_out(which, id);
        let Some(stream) = self.at(id.0 + 1) else {
            return;
        };
        let place_of = place(stream, which);
        let second = ends.first.load(Relaxed);
        place_of.colder.store(second, Relaxed);
        place_of.hotter.store(FIRST, Relaxed);
        match self.at(second) {
            Some(second) => place(second, which).hotter.store(id.0 + 1, Relaxed),
            None => ends.last.store(id.0 + 1, Relaxed),
        }
        ends.first.store(id.0 + 1, Relaxed);
    }

    /// Takes a stream out, if it is in.
    pub fn take_out(&self, which: Which, id: StreamId) {
        let ends = ends(self.lists, which);
        let Some(stream) = self.at(id.0 + 1) else {
            return;
        };
        let place_of = place(stream, which);
        let (hotter, colder) = (place_of.hotter.load(Relaxed), place_of.colder.load(Relaxed));
        if hotter == 0 {
            return;
        }
        match self.at(hotter).filter(|_| hotter != FIRST) {
            Some(hotter) => place(hotter, which).colder.store(colder, Relaxed),
            None => ends.first.store(colder, Relaxed),
        }
        match self.at(colder) {
            Some(colder) => place(colder, which).hotter.store(hotter, Relaxed),
            None => ends
                .last
                .store(if hotter == FIRST { 0 } else { hotter }, Relaxed),
        }
        place_of.hotter.store(0, Relaxed);
        place_of.colder.store(0, Relaxed);
    }

    /// Calls `f` with the streams from the coldest on until it says `false`, or all have been met.
    pub fn from_coldest(&self, which: Which, mut f: impl FnMut(StreamId, &Stream) -> bool) {
        let mut word = ends(self.lists, which).last.load(Relaxed);
        for _ in 0..self.arena.counts().streams() {
            let Some(stream) = self.at(word) else { return };
            if !f(StreamId(word - 1), stream) {
                return;
            }
            word = place(stream, which).hotter.load(Relaxed);
        }
    }
}

/// The coldest streams of a list and their files, coldest first, without the first `skipped`, as they are at this moment. The caller is in
/// no operation.
pub fn coldest(
    me: Me<'_>,
    which: Which,
    skipped: usize,
) -> impl Iterator<Item = (StreamId, FileId)> + use<> {
    let mut found = [None; LOOK];
    // A rebuild opens the lock and makes the lists anew: not while somebody alive walks along them.
    let _alone = me.enter_arena();
    if let Some(lists) = try_hold(me) {
        let (mut met, mut count) = (0, 0);
        lists.from_coldest(which, |id, stream| {
            met += 1;
            if met <= skipped {
                return true;
            }
            if let Some(file) = stream.file.load(Relaxed).checked_sub(1) {
                found[count] = Some((id, FileId(file)));
                count += 1;
            }
            count < LOOK
        });
    }
    found.into_iter().flatten()
}

/// Forgets all members. Part of a rebuild.
pub(crate) fn clear(arena: &Arena) {
    let lists = arena.stream_lists();
    if lists.lock.load(Relaxed) != 0 {
        lists.lock.store(0, Release);
    }
    for ends in [&lists.all, &lists.dirty] {
        ends.first.store(0, Relaxed);
        ends.last.store(0, Relaxed);
    }
}
