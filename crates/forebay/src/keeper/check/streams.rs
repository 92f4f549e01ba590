//! The trees of streams against headers, and the lists against the trees.

use std::collections::{HashMap, HashSet};

use super::Check;
use crate::ids::{FileId, StreamId};
use crate::memory::streams::{Ends, Neighbours, Stream};
use crate::stream::tracking;
use crate::stream::tree::{Extent, extent_of};
use crate::sync::Ordering;

/// What a file's tree has: extents, by first block.
type Found = HashMap<FileId, Vec<(StreamId, Extent, u32)>>;

impl Check<'_> {
    /// Every header is in one stream of its file, every one that owes something in its dirty range; streams do not intersect.
    /// A tree in doubt says so, and is not asked.
    pub(super) fn streams(&mut self) {
        if !tracking::is_on(self.arena) {
            return;
        }
        let mut found = Found::new();
        let mut dirty = HashSet::new();
        for id in (0..self.arena.counts().streams()).map(StreamId) {
            let Some(stream) = self.arena.stream(id) else {
                continue;
            };
            let Some(file) = stream.file.load(Ordering::Acquire).checked_sub(1) else {
                let hinted = self.arena.stream_hints().is_set(id.0);
                self.must(hinted, || {
                    format!("stream {} is free and cannot be found", id.0)
                });
                continue;
            };
            let (file, extent) = (FileId(file), extent_of(stream));
            if extent.dirty.is_some() {
                dirty.insert(id);
            }
            let limit = stream.upper_limit.load(Ordering::Acquire);
            found.entry(file).or_default().push((id, extent, limit));
        }
        let doubted = (0..self.arena.counts().files)
            .map(FileId)
            .any(|file| self.is_doubted(file));
        for (file, streams) in &mut found {
            streams.sort_by_key(|(_, extent, _)| extent.span.start);
            self.one_tree(*file, streams);
        }
        self.headers_in(&found);
        if !doubted {
            let all = found.values().flatten().map(|(id, ..)| *id).collect();
            let lists = self.arena.stream_lists();
            self.list("all", &lists.all, &all, |stream| &stream.all);
            self.list("dirty", &lists.dirty, &dirty, |stream| &stream.dirty);
        }
    }

    fn is_doubted(&self, file: FileId) -> bool {
        self.arena.stream_tree(file).doubt.load(Ordering::Acquire) != 0
    }

    fn one_tree(&mut self, file: FileId, streams: &[(StreamId, Extent, u32)]) {
        let holder = self.arena.stream_tree(file).lock.load(Ordering::Acquire);
        self.must(holder == 0, || {
            format!("the streams of entry {} are locked", file.0)
        });
        if self.is_doubted(file) {
            return;
        }
        for (id, extent, _) in streams {
            let within = extent.dirty.is_none_or(|dirty| extent.span.covers(dirty));
            let fine = extent.span.start < extent.span.end && within;
            self.must(fine, || format!("stream {} is {extent:?}", id.0));
        }
        for pair in streams.windows(2) {
            let ((low, lower, limit), (high, upper, _)) = (pair[0], pair[1]);
            let apart = lower.span.end <= upper.span.start;
            self.must(apart, || {
                format!("streams {} and {} intersect", low.0, high.0)
            });
            self.must(limit <= upper.span.start, || {
                format!("stream {} may grow into stream {}", low.0, high.0)
            });
        }
        let linked = self.in_tree(file);
        let known: HashSet<_> = streams.iter().map(|(id, ..)| *id).collect();
        self.must(linked == known, || {
            format!(
                "entry {}: the tree has {linked:?} of the streams {known:?}",
                file.0
            )
        });
    }

    /// The streams that a file's root leads to.
    fn in_tree(&self, file: FileId) -> HashSet<StreamId> {
        let mut found = HashSet::new();
        let mut open = vec![self.arena.stream_tree(file).root.load(Ordering::Acquire)];
        while let Some(word) = open.pop() {
            let id = word.checked_sub(1).map(StreamId);
            if let Some((id, stream)) = id.and_then(|id| Some((id, self.arena.stream(id)?)))
                && found.insert(id)
            {
                open.push(stream.left.load(Ordering::Acquire));
                open.push(stream.right.load(Ordering::Acquire));
            }
        }
        found
    }

    fn headers_in(&mut self, found: &Found) {
        let mut missing = Vec::new();
        for (id, look) in self.linked() {
            let Some(identity) = look.identity.filter(|i| !self.is_doubted(i.file)) else {
                continue;
            };
            let block = identity.block.0;
            let streams = found.get(&identity.file).map_or(&[][..], Vec::as_slice);
            let has = |(_, extent, _): &&(StreamId, Extent, u32)| extent.span.contains(block);
            let stream = streams.iter().find(has);
            let owed = stream
                .and_then(|(_, extent, _)| extent.dirty)
                .is_some_and(|dirty| dirty.contains(block));
            if stream.is_none() {
                missing.push(format!("header {} (block {block}) is in no stream", id.0));
            } else if look.charged != 0 && !owed {
                missing.push(format!(
                    "header {} (block {block}) owes pages and is in no dirty range",
                    id.0
                ));
            }
        }
        missing.into_iter().for_each(|text| self.problem(text));
    }

    fn list(
        &mut self,
        name: &str,
        ends: &Ends,
        expected: &HashSet<StreamId>,
        place: impl Fn(&Stream) -> &Neighbours,
    ) {
        let mut met = HashSet::new();
        let mut word = ends.first.load(Ordering::Acquire);
        let mut last = 0;
        while let Some(id) = word.checked_sub(1).map(StreamId) {
            let Some(stream) = self.arena.stream(id).filter(|_| met.insert(id)) else {
                return self.problem(format!(
                    "the list of {name} streams goes astray at {}",
                    id.0
                ));
            };
            last = word;
            word = place(stream).colder.load(Ordering::Acquire);
        }
        let end = ends.last.load(Ordering::Acquire);
        self.must(end == last, || {
            format!("the list of {name} streams ends at {end}, not {last}")
        });
        self.must(met == *expected, || {
            format!("the list of {name} streams has {met:?} of {expected:?}")
        });
    }
}
