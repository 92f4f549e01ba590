//! The tree's records: taking and freeing them, storing what they say, and keeping the session's lists in step.

use super::index::Damaged;
use super::lists::{self, Held, Which};
use super::{Extent, Locked, Span, extent_of};
use crate::ids::StreamId;
use crate::memory::streams::{Neighbours, Stream};
use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

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

    /// A free record that is this file's now. It is in no tree.
    pub(super) fn take(&self, start: u32) -> Option<(StreamId, &'a Stream)> {
        let arena = self.me.arena;
        let claim = |index: u32| {
            arena.stream(StreamId(index)).is_some_and(|stream| {
                let file = self.file.0 + 1;
                let free = stream.file.load(Relaxed) == 0;
                free && stream
                    .file
                    .compare_exchange(0, file, Acquire, Relaxed)
                    .is_ok()
            })
        };
        let Some(id) = arena.stream_hints().take(self.me.id.index(), claim) else {
            arena.stream_lists().squeezed.fetch_add(1, Relaxed);
            return None;
        };
        let stream = arena.stream(StreamId(id))?;
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
        Some((StreamId(id), stream))
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
        stream.file.store(0, Release);
        self.me.arena.stream_hints().set(id.0);
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
