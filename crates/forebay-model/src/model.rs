//! The model: what every operation must answer, and what every file must hold.
//!
//! A file is its bytes now, its bytes as of the last completed sync, and the history of changes
//! since. The history serves two ends: it says which values a byte may have after power loss, and
//! it names the operation that wrote a byte when a test fails.
//!
//! One thread of control: operations apply one after the other. Tests with several writers give each
//! of them bytes of its own ([`PartitionPlan`](crate::PartitionPlan)), so that the result is the same
//! in any order.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::bytes::filled;
use crate::{Access, BLOCK_BYTES, Content, ErrorClass, Expected, Op, Outcome};

/// Files up to this long are looked at byte by byte; of longer ones only the blocks that an
/// operation touched, and their neighbours.
const WHOLE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// One change of a range of a file.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Index of the operation in the list.
    pub op: usize,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Seed of a write; `None` where the range became zeros.
    pub seed: Option<u32>,
}

/// What a permitted operation would do.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    /// The bytes, possibly none.
    pub change: Change,
    /// The file's length afterwards.
    pub len: u64,
}

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct FileState {
    /// What a read sees.
    pub now: Content,
    /// What a read saw when the last sync completed.
    pub synced: Content,
    /// Every change, in order.
    pub history: Vec<Change>,
    /// Changes from this one on have not been synced.
    pub synced_at: usize,
    /// Lengths that may be found after power loss.
    pub lengths: Vec<RangeInclusive<u64>>,
    /// How each handle is open.
    pub access: Vec<Access>,
}

impl FileState {
    fn new(handles: usize) -> Self {
        FileState {
            now: Content::default(),
            synced: Content::default(),
            history: Vec::new(),
            synced_at: 0,
            lengths: vec![0..=0],
            access: vec![Access::ReadWrite; handles],
        }
    }

    /// Everything up to here survives power loss.
    pub fn sync(&mut self) {
        self.synced = self.now.clone();
        self.synced_at = self.history.len();
        self.lengths = vec![self.now.len()..=self.now.len()];
    }

    /// Lengths that the disk may show because of a change to `len` that is not synced: a file
    /// grows piece by piece, but is cut at once.
    pub fn lengths_on_the_way(&self, len: u64) -> RangeInclusive<u64> {
        if len > self.now.len() {
            self.now.len()..=len
        } else {
            len..=len
        }
    }

    fn commit(&mut self, effect: Effect) {
        let Effect { change, len } = effect;
        let lengths = self.lengths_on_the_way(len);
        if !self
            .lengths
            .iter()
            .any(|l| l.contains(lengths.start()) && l.contains(lengths.end()))
        {
            self.lengths.push(lengths);
        }
        match change.seed {
            Some(seed) => {
                let n = (change.end - change.start) as usize;
                self.now.write(change.start, &filled(seed, change.start, n));
            }
            None => self.now.zero(change.start, change.end),
        }
        self.now.set_len(len);
        if change.start < change.end {
            self.history.push(change);
        }
    }
}

/// What files must hold and operations must answer.
#[derive(Clone, Debug)]
pub struct Model {
    files: Vec<FileState>,
    applied: Vec<Op>,
}

impl Model {
    /// Empty files, with that many handles open on each.
    pub fn new(files: usize, handles: usize) -> Self {
        let files = (0..files).map(|_| FileState::new(handles)).collect();
        Model {
            files,
            applied: Vec::new(),
        }
    }

    /// As many empty files and handles as the list needs.
    pub fn for_ops(ops: &[Op]) -> Self {
        let (files, handles) = Op::extent(ops);
        Model::new(files, handles)
    }

    /// The number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// What the file holds.
    pub fn content(&self, file: u8) -> &Content {
        &self.file(file).now
    }

    /// What fsync has promised of the file.
    pub fn synced(&self, file: u8) -> &Content {
        &self.file(file).synced
    }

    /// The operations so far. Indices in reports are indices into this.
    pub fn applied(&self) -> &[Op] {
        &self.applied
    }

    pub(crate) fn file(&self, file: u8) -> &FileState {
        &self.files[file as usize]
    }

    pub(crate) fn file_mut(&mut self, file: u8) -> &mut FileState {
        &mut self.files[file as usize]
    }

    /// Remembers an operation that had no effect, because it failed where it might.
    pub fn note(&mut self, op: &Op) {
        self.applied.push(op.clone());
    }

    /// Carries out an operation, and says what the answer must be.
    pub fn apply(&mut self, op: &Op) -> Expected {
        if let Some(class) = self.refusal(op) {
            self.note(op);
            return Outcome::Failed(class);
        }
        let effect = self.effect(op);
        let expected = self.answer(op, effect.as_ref());
        self.note(op);
        if let (Some(file), Some(effect)) = (op.file(), effect) {
            self.file_mut(file).commit(effect);
        }
        match *op {
            Op::SyncData { file, .. } | Op::SyncAll { file, .. } => self.file_mut(file).sync(),
            _ => self.set_access(op),
        }
        expected
    }

    /// What the operation changes of how handles are open.
    pub(crate) fn set_access(&mut self, op: &Op) {
        match *op {
            Op::Reopen {
                file,
                handle,
                access,
                ..
            } => {
                self.file_mut(file).access[handle as usize] = access;
            }
            Op::CloseAll { file } => self.reopen_all(file),
            _ => {}
        }
    }

    /// Every handle of the file is open read-write again, as after a death.
    pub(crate) fn reopen_all(&mut self, file: u8) {
        self.file_mut(file).access.fill(Access::ReadWrite);
    }

    fn answer(&self, op: &Op, effect: Option<&Effect>) -> Expected {
        match *op {
            Op::Write { .. } | Op::WriteVectored { .. } => Outcome::Wrote(op.payload_len()),
            Op::Append { .. } => {
                Outcome::AppendedAt(effect.expect("an append has an effect").change.start)
            }
            Op::Read {
                file, offset, len, ..
            } => Outcome::Bytes(self.content(file).read(offset, u64::from(len))),
            Op::Len { file, .. } => Outcome::Length(self.content(file).len()),
            _ => Outcome::Done,
        }
    }

    /// The error that Linux answers before it looks at the file's contents.
    fn refusal(&self, op: &Op) -> Option<ErrorClass> {
        let file = self.file(op.file()?);
        let access = file.access[op.handle()? as usize];
        let may_write = access != Access::ReadOnly;
        match op {
            Op::Punch { len: 0, .. } => Some(ErrorClass::Invalid),
            Op::SetLen { .. } if !may_write => Some(ErrorClass::Invalid),
            Op::Write { .. } | Op::WriteVectored { .. } | Op::Append { .. } | Op::Punch { .. }
                if !may_write =>
            {
                Some(ErrorClass::NotAllowed)
            }
            Op::Read { .. } if access == Access::WriteOnly => Some(ErrorClass::NotAllowed),
            _ => None,
        }
    }

    /// What the operation would change, if it is one that changes contents and is permitted.
    pub(crate) fn effect(&self, op: &Op) -> Option<Effect> {
        let file = self.file(op.file()?);
        let size = file.now.len();
        let (start, end, seed) = match *op {
            Op::Write {
                handle,
                offset,
                seed,
                ..
            }
            | Op::WriteVectored {
                handle,
                offset,
                seed,
                ..
            } => {
                let appends = file.access[handle as usize] == Access::Append;
                let start = if appends { size } else { offset };
                (start, start + op.payload_len(), Some(seed))
            }
            Op::Append { len, seed, .. } => (size, size + u64::from(len), Some(seed)),
            Op::SetLen { len, .. } => (size.min(len), size.max(len), None),
            Op::Punch { offset, len, .. } => {
                (offset.min(size), offset.saturating_add(len).min(size), None)
            }
            Op::Reopen { truncate: true, .. } => (0, size, None),
            _ => return None,
        };
        let len = match *op {
            Op::SetLen { len, .. } => len,
            Op::Reopen { .. } => 0,
            _ if start < end => size.max(end),
            _ => size,
        };
        let change = Change {
            op: self.applied.len(),
            start,
            end,
            seed,
        };
        Some(Effect { change, len })
    }

    /// The blocks of a file of length `len` that are worth looking at, ascending.
    /// `under_way` are changes that are not in its history.
    pub(crate) fn blocks_to_check(&self, file: u8, len: u64, under_way: &[Change]) -> Vec<u64> {
        let blocks = len.div_ceil(BLOCK_BYTES);
        if len <= WHOLE_BYTES_MAX {
            return (0..blocks).collect();
        }
        let file = self.file(file);
        let changes = file.history.iter().chain(under_way);
        let ends = changes
            .flat_map(|c| [c.start, c.end])
            .chain([0, file.now.len(), len]);
        let touched = ends.map(|offset| offset / BLOCK_BYTES);
        let touched = touched
            .chain(file.now.present())
            .chain(file.synced.present());
        let near: BTreeSet<u64> = touched
            .flat_map(|block| block.saturating_sub(1)..=block + 1)
            .collect();
        near.into_iter().filter(|&block| block < blocks).collect()
    }
}
