//! The arena: one mapping, and typed access to what lies in it.
//!
//! Each accessor checks its index against the layout's counts, which were checked against the mapping's
//! length when the arena was opened; so nothing read from shared memory can lead outside (arena rule 7). The
//! `_unchecked` forms take indices that this process has checked before and clamp instead of failing.
//!
//! All tables are made of atomics, so references to them may be shared with other processes; the frames'
//! bytes are reached by address only (`copy`).

use crate::error::Error;
use crate::frame::header::Header;
use crate::frame::slots::Node;
use crate::ids::{FileId, FrameId, HeaderId, NodeId, SmallId, StreamId, ThreadId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::files::FileEntry;
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
use crate::memory::regions::{self, Allocator, FrameHints, Hints, Shares};
use crate::memory::streams::{Lists, Stream, Tree};
use crate::memory::superblock::{MAGIC, MARK, Superblock};
use crate::memory::threads::{Me, ThreadSlot};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::ops::Range;
use std::sync::OnceLock;

/// What is said of an arena that another build has made.
pub const OTHER_BUILD: &str = "an arena of another build, whose layout may differ; end its programs, or recover it, with that build, \
     or choose another session (--session NAME)";

/// A mapped arena.
pub struct Arena {
    mapping: Mapping,
    layout: Layout,
    fences: bool,
    allocator: Allocator,
    shares: Shares,
    rescue: OnceLock<Rescue>,
}

/// Repairs after a death if there has been one; see [`Arena::set_rescue`].
type Rescue = Box<dyn Fn(Me<'_>, bool) + Send + Sync>;

impl Arena {
    /// Makes a new arena in a zeroed mapping of at least `Layout::new(counts).len` bytes. Backs the fixed
    /// tables. `session` is the arena's random name; `fences` says that `membarrier` cannot be relied on; frames are shared out
    /// among regions for `cores` cores, if the allocator has regions.
    pub fn create(
        mapping: Mapping,
        counts: Counts,
        session: u64,
        fences: bool,
        (allocator, cores): (Allocator, usize),
    ) -> Result<Self, Error> {
        let layout = Layout::new(counts);
        if mapping.len() < layout.len {
            return Err(Error::Arena(format!(
                "the mapping has {} bytes and the arena needs {}",
                mapping.len(),
                layout.len
            )));
        }
        mapping.back(0, layout.nodes)?;
        let regions = regions::regions_for(counts.frames, cores);
        let arena = Arena {
            mapping,
            layout,
            fences,
            allocator,
            shares: Shares::new(counts.frames, regions),
            rescue: OnceLock::new(),
        };
        let superblock = arena.superblock();
        let values = [
            counts.threads,
            counts.files,
            counts.nodes,
            counts.headers,
            counts.frames,
        ];
        for (word, value) in superblock.counts.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        superblock.session.store(session, Ordering::Relaxed);
        superblock
            .fences
            .store(u32::from(fences), Ordering::Relaxed);
        superblock
            .frames_max
            .store(counts.frames, Ordering::Relaxed);
        let frames_free = &superblock.frames_free;
        frames_free.regions.store(regions, Ordering::Relaxed);
        superblock
            .allocator
            .store(allocator as u32, Ordering::Relaxed);
        superblock.owed_pages_max.store(u64::MAX, Ordering::Relaxed);
        let free = arena.words(arena.layout.stream_hints, counts.streams() as usize);
        free.iter()
            .for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        (0..counts.frames).for_each(|record| arena.pin_hints().set(record));
        superblock.magic.store(MAGIC, Ordering::Release);
        Ok(arena)
    }

    /// Whether a mapping has an arena that another build has made, which only that build can read.
    pub fn is_of_another_build(mapping: &Mapping) -> bool {
        if mapping.len() < size_of::<Superblock>() {
            return false;
        }
        // SAFETY: as in `open`.
        let superblock = unsafe { &*mapping.base().cast::<Superblock>() };
        let magic = superblock.magic.load(Ordering::Acquire);
        magic != MAGIC && magic as u32 == MARK
    }

    /// Opens an arena that exists. Refuses one of another layout, or with counts that do not fit its length.
    pub fn open(mapping: Mapping) -> Result<Self, Error> {
        if mapping.len() < size_of::<Superblock>() {
            return Err(Error::Arena("shorter than a superblock".into()));
        }
        if Self::is_of_another_build(&mapping) {
            return Err(Error::Arena(OTHER_BUILD.into()));
        }
        // SAFETY: the mapping is at least a superblock long and page-aligned; the type is all atomics,
        // valid for any bytes, and others may write them; the borrow ends before the mapping can.
        let superblock = unsafe { &*mapping.base().cast::<Superblock>() };
        if superblock.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::Arena("not an arena, or not finished".into()));
        }
        let counts = superblock.counts();
        let plausible = counts.threads > 1 && counts.files > 0 && counts.frames > 0;
        let layout = Layout::new(counts);
        if !plausible || layout.len > mapping.len() {
            return Err(Error::Arena("its counts do not fit its length".into()));
        }
        let fences = superblock.fences.load(Ordering::Relaxed) != 0;
        let allocator = Allocator::of(superblock.allocator.load(Ordering::Relaxed));
        let shares = Shares::of(counts.frames, &superblock.frames_free);
        Ok(Arena {
            mapping,
            layout,
            fences,
            allocator,
            shares,
            rescue: OnceLock::new(),
        })
    }

    /// Says how to repair after a death: what waits anywhere below the keeper calls it now and then.
    pub fn set_rescue(&self, rescue: Rescue) {
        let _ = self.rescue.set(rescue);
    }

    /// Called by a thread that waits for another one, idle or parked: it may have died.
    pub fn rescue(&self, me: Me<'_>) {
        self.rescue_from(me, false);
    }

    /// The same; `long`: the wait has been one for long, so that words may be wrong.
    pub fn rescue_from(&self, me: Me<'_>, long: bool) {
        if let Some(rescue) = self.rescue.get() {
            rescue(me, long);
        }
    }

    /// The mapping under the arena.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// As [`Mapping::give_up`]: the process has nothing to do with the session any more. Its threads' slots stay readable, since the lists of
    /// their robust futexes lead through them.
    ///
    /// # Errors
    /// As there.
    pub fn give_up(&self, before: impl FnOnce()) -> std::io::Result<()> {
        let slots = self.layout.threads..self.layout.files;
        self.mapping.give_up(slots, self.layout.nodes, before)
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The counts.
    #[inline]
    pub fn counts(&self) -> &Counts {
        &self.layout.counts
    }

    /// Whether entering an operation needs a full fence.
    #[inline(always)]
    pub fn fences(&self) -> bool {
        self.fences
    }

    /// How frames are allotted.
    #[inline(always)]
    pub fn allocator(&self) -> Allocator {
        self.allocator
    }

    /// How frames are shared out among regions.
    #[inline(always)]
    pub fn shares(&self) -> Shares {
        self.shares
    }

    /// # Safety
    /// `offset + (index + 1) * size_of::<T>()` lies within the mapping, and `T` is made of atomics.
    #[inline(always)]
    unsafe fn at<T>(&self, offset: usize, index: usize) -> &T {
        // SAFETY: in bounds and aligned by the layout; all bit patterns are valid; other processes
        // change the bytes only as atomics do; the mapping lives as long as `self`.
        unsafe {
            &*self
                .mapping
                .base()
                .add(offset + index * size_of::<T>())
                .cast::<T>()
        }
    }

    /// The superblock.
    #[inline(always)]
    pub fn superblock(&self) -> &Superblock {
        // SAFETY: every arena is longer than its superblock.
        unsafe { self.at(0, 0) }
    }

    /// A thread slot.
    #[inline]
    pub fn thread(&self, id: ThreadId) -> Option<&ThreadSlot> {
        // SAFETY: checked against the count, which the layout was made from.
        (id.0 < self.counts().threads).then(|| unsafe { self.at(self.layout.threads, id.index()) })
    }

    /// A thread slot whose index this process got from `threads::take`.
    #[inline(always)]
    pub fn thread_unchecked(&self, id: ThreadId) -> &ThreadSlot {
        let index = id.index().min(self.layout.counts.threads as usize - 1);
        // SAFETY: clamped to the count.
        unsafe { self.at(self.layout.threads, index) }
    }

    /// A file-table entry.
    #[inline]
    pub fn file(&self, id: FileId) -> Option<&FileEntry> {
        // SAFETY: checked against the count.
        (id.0 < self.counts().files).then(|| unsafe { self.at(self.layout.files, id.index()) })
    }

    /// A file-table entry whose index this process has checked.
    #[inline(always)]
    pub fn file_unchecked(&self, id: FileId) -> &FileEntry {
        let index = id.index().min(self.layout.counts.files as usize - 1);
        // SAFETY: clamped to the count.
        unsafe { self.at(self.layout.files, index) }
    }

    /// A node that has memory.
    #[inline]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        let backed = self.superblock().nodes_backed.load(Ordering::Acquire);
        // SAFETY: checked against the count; memory below `nodes_backed` has been allocated.
        (id.0 < backed.min(self.counts().nodes))
            .then(|| unsafe { self.at(self.layout.nodes, id.index()) })
    }

    /// A header that has memory.
    #[inline(always)]
    pub fn header(&self, id: HeaderId) -> Option<&Header> {
        let backed = self.superblock().headers_backed.load(Ordering::Acquire);
        // SAFETY: checked against the count; memory below `headers_backed` has been allocated.
        (id.0 < backed.min(self.layout.counts.headers))
            .then(|| unsafe { self.at(self.layout.headers, id.index()) })
    }

    /// The session's lists of streams.
    #[inline]
    pub fn stream_lists(&self) -> &Lists {
        // SAFETY: the layout has one.
        unsafe { self.at(self.layout.stream_lists, 0) }
    }

    /// A file's tree of streams, for an index that this process has checked.
    #[inline]
    pub fn stream_tree(&self, id: FileId) -> &Tree {
        let index = id.index().min(self.layout.counts.files as usize - 1);
        // SAFETY: clamped to the count; there is one for each file.
        unsafe { self.at(self.layout.stream_trees, index) }
    }

    /// A stream.
    #[inline]
    pub fn stream(&self, id: StreamId) -> Option<&Stream> {
        // SAFETY: checked against the count.
        (id.0 < self.counts().streams())
            .then(|| unsafe { self.at(self.layout.streams, id.index()) })
    }

    /// A frame's owner word.
    #[inline]
    pub fn frame_owner(&self, id: FrameId) -> Option<&AtomicU32> {
        // SAFETY: checked against the count.
        (id.0 < self.counts().frames)
            .then(|| unsafe { self.at(self.layout.frame_owners, id.index()) })
    }

    /// A small frame's owner word.
    #[inline]
    pub fn small_owner(&self, id: SmallId) -> Option<&AtomicU32> {
        let count = self.counts().frames as usize * 64;
        // SAFETY: checked against the count.
        (id.index() < count).then(|| unsafe { self.at(self.layout.small_owners, id.index()) })
    }

    /// The bitmap of free parts of a carved frame.
    #[inline]
    pub fn carve(&self, id: FrameId) -> Option<&AtomicU64> {
        // SAFETY: checked against the count.
        (id.0 < self.counts().frames).then(|| unsafe { self.at(self.layout.carves, id.index()) })
    }

    /// How many pins a frame has; see `memory::pins`.
    #[inline]
    pub fn pins(&self, id: FrameId) -> Option<&AtomicU32> {
        // SAFETY: checked against the count.
        (id.0 < self.counts().frames).then(|| unsafe { self.at(self.layout.pins, id.index()) })
    }

    /// The record of a pin, of which there are as many as frames.
    #[inline]
    pub fn pin_record(&self, record: u32) -> Option<&AtomicU64> {
        // SAFETY: checked against the count.
        (record < self.counts().frames)
            .then(|| unsafe { self.at(self.layout.pin_records, record as usize) })
    }

    /// Records of pins that are probably free.
    pub fn pin_hints(&self) -> Hints<'_> {
        Hints::new(self.words(self.layout.pin_hints, self.counts().frames as usize))
    }

    /// Changes four bytes anywhere before the frames: damage, for tests.
    #[cfg(feature = "sim")]
    pub fn overwrite(&self, offset: usize, change: impl FnOnce(u32) -> u32) {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.layout.frames,
            "{offset}"
        );
        // SAFETY: aligned, and within the mapping, whose tables end where frames begin.
        let word: &AtomicU32 = unsafe { self.at(offset, 0) };
        word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Makes bytes of tables zeros that have memory and that nobody knows of yet.
    pub(crate) fn blank(&self, bytes: Range<usize>) {
        assert!(
            bytes.start <= bytes.end && bytes.end <= self.layout.frames,
            "{bytes:?}"
        );
        assert!(
            bytes.start.is_multiple_of(size_of::<AtomicU64>())
                && bytes.end.is_multiple_of(size_of::<AtomicU64>())
        );
        // SAFETY: within the mapping, before the frames, whole words; the caller has given them memory; the mapping lives as long as
        // `self`. Threads that look at them meanwhile do so by atomic accesses as well.
        let words = unsafe {
            let first = self
                .mapping
                .base()
                .add(bytes.start)
                .cast::<std::sync::atomic::AtomicU64>();
            std::slice::from_raw_parts(first, bytes.len() / size_of::<AtomicU64>())
        };
        // Not through `sync`: nobody comes between these, and there are many.
        for word in words {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    fn words(&self, offset: usize, bits: usize) -> &[AtomicU64] {
        // SAFETY: the layout set aside one bit for each thing, in whole words; see `at`.
        unsafe {
            std::slice::from_raw_parts(self.mapping.base().add(offset).cast(), bits.div_ceil(64))
        }
    }

    fn frame_map(&self, offset: usize) -> FrameHints<'_> {
        let words = Shares::words_max(self.counts().frames as usize);
        FrameHints::new(self.words(offset, words * 64), self.shares)
    }

    /// Frames that are probably free.
    pub fn frame_hints(&self) -> FrameHints<'_> {
        self.frame_map(self.layout.frame_hints)
    }

    /// Carved frames that probably have free parts.
    pub fn carve_hints(&self) -> FrameHints<'_> {
        self.frame_map(self.layout.carve_hints)
    }

    /// Headers that are probably free.
    pub fn header_hints(&self) -> Hints<'_> {
        Hints::new(self.words(self.layout.header_hints, self.counts().headers as usize))
    }

    /// Nodes that are probably free.
    pub fn node_hints(&self) -> Hints<'_> {
        Hints::new(self.words(self.layout.node_hints, self.counts().nodes as usize))
    }

    /// Streams that are probably free.
    pub fn stream_hints(&self) -> Hints<'_> {
        Hints::new(self.words(self.layout.stream_hints, self.counts().streams() as usize))
    }

    /// Bytes of headers and nodes that have memory.
    pub fn tables_backed_bytes(&self) -> u64 {
        let superblock = self.superblock();
        let headers = u64::from(superblock.headers_backed.load(Ordering::Relaxed));
        let nodes = u64::from(superblock.nodes_backed.load(Ordering::Relaxed));
        headers * size_of::<Header>() as u64 + nodes * size_of::<Node>() as u64
    }

    /// Bytes of all tables that have memory.
    pub fn tables_bytes(&self) -> u64 {
        self.layout.nodes as u64 + self.tables_backed_bytes()
    }

    /// Address of a frame's first byte.
    #[inline]
    pub fn frame_bytes(&self, id: FrameId) -> Option<*mut u8> {
        // SAFETY: checked against the count; within the mapping.
        (id.0 < self.layout.counts.frames)
            .then(|| unsafe { self.mapping.base().add(self.frame_offset(id)) })
    }

    /// Offset of a frame in the arena file.
    #[inline]
    pub fn frame_offset(&self, id: FrameId) -> usize {
        self.layout.frames + id.index() * BLOCK_BYTES
    }

    /// Address of a small frame's first byte.
    #[inline]
    pub fn small_bytes(&self, id: SmallId) -> Option<*mut u8> {
        let within = id.index() < self.layout.counts.frames as usize * 64;
        // SAFETY: checked against the count; within the mapping.
        within.then(|| unsafe {
            self.mapping
                .base()
                .add(self.layout.frames + id.index() * PAGE_BYTES)
        })
    }
}
