//! What a client knows of one file: grants, cached blocks, and the operations that wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::ageing::Rising;
use super::attributes::Inode;
use super::past::Aside;
use super::{Answer, Operation};
use crate::ids::{Epoch, File, SIZE_BLOCK};
use crate::locks::Locks;
use crate::message::Message;
use crate::range::{Range, Right};

/// A block in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Cached {
    /// Its bytes; `None` if no server has it.
    pub bytes: Option<Bytes>,
    /// Its last change; changes count up over all blocks.
    pub change: u64,
    /// The last change that the servers have.
    pub written: u64,
    /// The transfer that writes it now.
    pub flushing: Option<u64>,
    /// If it is dirty: its place among those that are, in the order of since when.
    pub since: u64,
    /// Its place in the order of uses.
    pub used: u64,
    /// It has no bytes, since it is damaged in the home.
    pub is_damaged: bool,
}

impl Cached {
    pub fn is_dirty(&self) -> bool {
        self.written < self.change
    }

    /// Whether the servers do not have it as it is here, as far as this client knows.
    pub fn is_owed(&self) -> bool {
        self.is_dirty() || self.flushing.is_some()
    }
}

/// A grant that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub number: u64,
    pub need: Range,
    pub wish: Range,
    pub right: Right,
    pub urgent: bool,
}

impl Asked {
    pub fn message(self, epoch: Epoch, file: File) -> Message {
        let Asked {
            number,
            need,
            wish,
            right,
            urgent,
        } = self;
        Message::Ask {
            epoch,
            number,
            file,
            need,
            wish,
            right,
            urgent,
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It takes its grants and blocks.
    Gather,
    /// It ends when the servers have these changes of blocks; then nothing of them stays, if `drop`.
    Flush {
        targets: Vec<(u64, u64)>,
        answer: Answer,
        drop: bool,
    },
    /// The file is cut to this size: first the size is made durable, then what is beyond it goes, then the size says so.
    Cut {
        size: u64,
        step: u8,
        discard: Option<u64>,
    },
    /// A new file's size and first bytes are written; then its name is.
    Create { transfers: Vec<u64> },
    /// The servers have what was to be synced, and make it durable.
    Persist { transfer: u64 },
    /// The servers discard all that a file has; then its grants go back.
    Remove { discard: u64 },
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub id: u64,
    pub operation: Arc<Operation>,
    pub phase: Phase,
    /// Grants that it keeps until it is done.
    pub pinned: Vec<(Range, Right)>,
    /// It changes the size.
    pub extends: bool,
    /// It needs everything from this block on.
    pub wide: Option<u64>,
    /// The file that it makes, should there be none.
    pub made: File,
}

impl Active {
    pub fn new(id: u64, operation: Operation, made: File) -> Self {
        Active {
            id,
            operation: Arc::new(operation),
            phase: Phase::Gather,
            pinned: Vec::new(),
            extends: false,
            wide: None,
            made,
        }
    }

    /// The same from the beginning.
    pub fn again(self) -> Self {
        Active {
            phase: Phase::Gather,
            pinned: Vec::new(),
            ..self
        }
    }

    /// Whether what it keeps is in the way of an operation with these needs.
    pub fn is_in_the_way(&self, needs: &[(Range, Right)]) -> bool {
        self.pinned.iter().any(|(held, right)| {
            needs.iter().any(|(range, other)| {
                let writes = [*right, *other].contains(&Right::Exclusive);
                writes && range.overlaps(*held)
            })
        })
    }
}

/// The file.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub locks: Locks<()>,
    pub cache: BTreeMap<u64, Cached>,
    /// Blocks that are not here and were asked for, with the transfers that bring them. What another transfer brings is too old.
    pub reading: BTreeMap<u64, u64>,
    pub recalls: Vec<(Range, bool)>,
    pub asked: Option<Asked>,
    pub queue: VecDeque<Active>,
    pub active: Option<Active>,
    /// Remote operations under way, beside the active one. None is in the way of another.
    pub aside: Vec<Aside>,
    /// Its place in the order of uses; 0 as long as it has none.
    pub used: u64,
    /// The size that the servers have.
    pub size_written: u64,
    /// Beyond this, or beyond the size, the servers have nothing, as far as they know.
    pub high_written: u64,
    /// The transfer that writes a draft of the size block.
    pub draft: Option<u64>,
    /// Blocks that have made the file longer, and as of which change. As long as the servers do not have these, they do not hear how long it is.
    pub unborn: BTreeMap<u64, u64>,
    /// A length that the servers are to hear of though the file goes on growing.
    pub rising: Option<Rising>,
}

impl State {
    pub fn inode(&self) -> Option<Inode> {
        Inode::of(self.cache.get(&SIZE_BLOCK)?.bytes.as_ref()?)
    }

    /// What the servers have as the size block.
    pub fn size_is(&mut self, bytes: Option<&[u8]>) {
        let inode = bytes.and_then(Inode::of);
        self.size_written = inode.map_or(0, |inode| inode.size);
        self.high_written = inode.map_or(0, |inode| inode.high.max(inode.size));
    }

    /// Whether there is anything to go on with.
    pub fn has_work(&self) -> bool {
        let is_done = self.active.is_none() && self.queue.is_empty() && self.aside.is_empty();
        !is_done || !self.recalls.is_empty()
    }

    /// Whether nobody would miss it, since the servers have all that is here, and nothing is under way.
    pub fn is_idle(&self) -> bool {
        let is_asked = self.asked.is_some() || !self.reading.is_empty();
        !self.has_work()
            && !is_asked
            && self.unborn.is_empty()
            && !self.cache.values().any(Cached::is_owed)
    }

    /// Whether nothing is known of it.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.cache.is_empty() && self.is_idle()
    }

    /// Whether an operation under way needs what a recall would take.
    pub fn is_pinned(&self, range: Range, keep: bool) -> bool {
        let aside = self.aside.iter().map(|aside| &aside.active);
        let mut pinned = { self.active.iter().chain(aside) }.flat_map(|active| &active.pinned);
        pinned.any(|(held, right)| held.overlaps(range) && !(keep && *right == Right::Shared))
    }

    /// Whether a remote operation under way is in the way of one with these needs.
    pub fn is_beside(&self, needs: &[(Range, Right)]) -> bool {
        let aside = self.aside.iter().map(|aside| &aside.active);
        aside.into_iter().any(|active| active.is_in_the_way(needs))
    }

    /// Whether any of these grants is about to go.
    pub fn is_any_recalled(&self, needs: &[(Range, Right)]) -> bool {
        let goes = |(recalled, keep): &(Range, bool)| {
            needs.iter().any(|(range, right)| {
                recalled.overlaps(*range) && !(*keep && *right == Right::Shared)
            })
        };
        self.recalls.iter().any(goes)
    }

    /// Blocks that the servers do not have yet as they are here.
    pub fn owed(&self, range: Range) -> Vec<u64> {
        let blocks = self.cache.range(range.start..range.end);
        let owed = blocks.filter(|(_, cached)| cached.is_owed());
        owed.map(|(block, _)| *block).collect()
    }

    /// Drops blocks, and says which. Bytes that are on their way to them are not theirs any more.
    pub fn drop_cached(&mut self, range: Range) -> Vec<Cached> {
        self.reading
            .retain(|block, _| !range.contains(Range::one(*block)));
        self.rising.take_if(|rising| rising.ends_with(range));
        let blocks: Vec<u64> = self
            .cache
            .range(range.start..range.end)
            .map(|(block, _)| *block)
            .collect();
        self.unborn
            .retain(|block, _| !range.contains(Range::one(*block)));
        { blocks.iter() }
            .filter_map(|block| self.cache.remove(block))
            .collect()
    }

    /// Grants go on under new stamps; what was recalled will be recalled again.
    pub fn new_epoch(&mut self) {
        let held = self.locks.held(());
        self.locks = Locks::default();
        for piece in held {
            self.locks.grant((), piece.range, piece.right, 0);
        }
        self.recalls.clear();
    }

    /// Ends operations that have changed nothing, and says which. A sync has not: what it has begun to write is written if the servers are there again, and a
    /// program that syncs in the end is not kept for ever by servers that are gone.
    pub fn cut_off(&mut self) -> Vec<u64> {
        let mut ended: Vec<u64> = Vec::new();
        let changes_nothing = |active: &mut Active| {
            let is_sync = matches!(*active.operation, Operation::Sync { .. });
            is_sync || matches!(active.phase, Phase::Gather)
        };
        if let Some(active) = self.active.take_if(changes_nothing) {
            ended.push(active.id);
        }
        let reads = self.aside.extract_if(.., |aside| aside.is_read());
        ended.extend(reads.map(|aside| aside.active.id));
        ended.extend(self.queue.drain(..).map(|active| active.id));
        ended
    }
}
