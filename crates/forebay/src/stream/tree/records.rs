//! The tree's records: taking and freeing them, storing what they say, and keeping the session's lists in step.

use super::index::Damaged;
use super::lists::{self, Held, Which};
use super::{Extent, Locked, Span, extent_of};
use crate::ids::{FileId, StreamId};
use crate::memory::arena::Arena;
use crate::memory::streams::{Neighbours, Stream};
use crate::memory::threads::Me;
use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Streams of a file above which none is added, and a request that touches none is joined with the nearest. So many scanners of one
/// file are told apart; where requests are scattered more than that, streams mean nothing, and a search in a small tree
/// is cheaper than one more stream.
pub(crate) const CROWD: u32 = 64;

/// Makes a free record a file's.
pub(crate) fn claim(me: Me<'_>, file: FileId) -> Option<(StreamId, &Stream)> {
    let claim = |index: u32| {
        me.arena.stream(StreamId(index)).is_some_and(|stream| {
            let free = stream.file.load(Relaxed) == 0;
            free && stream
                .file
                .compare_exchange(0, file.0 + 1, Acquire, Relaxed)
                .is_ok()
        })
    };
    let id = StreamId(me.arena.stream_hints().take(me.id.index(), claim)?);
    Some((id, me.arena.stream(id)?))
}

/// Frees a record that is in no tree and no list.
pub(crate) fn release(arena: &Arena, id: StreamId, stream: &Stream) {
    stream.file.store(0, Release);
    arena.stream_hints().set(id.0);
}

/// Records and lists.
impl<'a> Locked<'a> {
    /// Stores what a stream covers, and puts it where it belongs.
    pub(super) fn save(&self, id: StreamId, stream: &Stream, extent: Extent) {
        let store = |word: &AtomicU32, value| {
            if word.load(Relaxed) != value {
                word.store(value, Relaxed);
            }
        };
        let dirty = extent.dirty.unwrap_or(Span { start: 0, end: 0 });
        store(&stream.start, extent.span.start);
        store(&stream.end, extent.span.end);
        store(&stream.dirty_start, dirty.start);
        store(&stream.dirty_end, dirty.end);
        let listed = |neighbours: &Neighbours| neighbours.hotter.load(Relaxed) != 0;
        let (is_dirty, was_dirty) = (extent.dirty.is_some(), listed(&stream.dirty));
        let is_new = !listed(&stream.all);
        if !is_new && is_dirty == was_dirty {
            return;
        }
        self.with_lists(|lists| {
            if is_new {
                lists.put_first(Which::All, id);
            }
            match (is_dirty, was_dirty) {
                (true, false) => lists.put_first(Which::Dirty, id),
                (false, true) => lists.take_out(Which::Dirty, id),
                _ => {}
            }
        });
    }

    fn with_lists(&self, change: impl FnOnce(&Held<'a>)) {
        match lists::try_hold(self.me) {
            Some(held) => change(&held),
            None => self.doubt(),
        }
    }

    /// A free record that is this file's now. It is in no tree. `None`: there is none, or the file has a crowd of streams.
    pub(super) fn take(&self, start: u32) -> Option<(StreamId, &'a Stream)> {
        let count = self.tree.count.load(Relaxed);
        let taken = (count < CROWD).then(|| claim(self.me, self.file)).flatten();
        let Some((id, stream)) = taken else {
            self.me.arena.stream_lists().squeezed.fetch_add(1, Relaxed);
            return None;
        };
        self.tree.count.store(count + 1, Relaxed);
        for word in [
            &stream.visits,
            &stream.evict_at,
            &stream.left,
            &stream.right,
        ] {
            word.store(0, Relaxed);
        }
        stream.start.store(start, Relaxed);
        stream.upper_limit.store(u32::MAX, Relaxed);
        Some((id, stream))
    }

    pub(super) fn put_in(
        &self,
        (id, stream): (StreamId, &'a Stream),
        extent: Extent,
    ) -> Result<(), Damaged> {
        self.save(id, stream, extent);
        self.index().insert(id, stream)
    }

    /// Takes a stream out of the tree and frees its record.
    pub(super) fn give_up(&self, id: StreamId, stream: &Stream) -> Result<(), Damaged> {
        self.index().remove(id, stream)?;
        self.set_free(id, stream);
        Ok(())
    }

    pub(super) fn set_free(&self, id: StreamId, stream: &Stream) {
        let pointer = &self.tree.pointer;
        if pointer.load(Relaxed) == id.0 + 1 {
            pointer.store(0, Relaxed);
        }
        match lists::try_hold(self.me) {
            Some(lists) => {
                lists.take_out(Which::All, id);
                lists.take_out(Which::Dirty, id);
            }
            // It cannot be given to another file while it is in the lists: it stays this one's, in no tree.
            None => return self.doubt(),
        }
        let count = self.tree.count.load(Relaxed);
        self.tree.count.store(count.saturating_sub(1), Relaxed);
        release(self.me.arena, id, stream);
    }

    /// A stream that was used last: first in the lists, after the one that was (StreamCache 4.2).
    pub(super) fn become_current(&self, id: StreamId) {
        let before = self.current();
        if before.is_some_and(|(before, _)| before == id) {
            return;
        }
        self.tree.pointer.store(id.0 + 1, Relaxed);
        self.put_first(before.into_iter().chain(self.both(Some(id))));
        if let Some(stream) = self.get(id) {
            let visits = stream.visits.load(Relaxed);
            stream.visits.store(visits.saturating_add(1), Relaxed);
        }
    }

    /// Puts streams first in the lists, one after the other: they are in use.
    pub fn put_first(&self, streams: impl IntoIterator<Item = (StreamId, &'a Stream)>) {
        let tick = self.me.arena.superblock().tick.load(Relaxed);
        self.with_lists(|lists| {
            for (id, stream) in streams {
                stream.tick.store(tick, Relaxed);
                stream.evict_at.store(0, Relaxed);
                lists.put_first(Which::All, id);
                if extent_of(stream).dirty.is_some() {
                    lists.put_first(Which::Dirty, id);
                }
            }
        });
    }
}
