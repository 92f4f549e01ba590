//! Remote requests: their bytes go past this client's memory, straight between the caller and the servers.
//!
//! A remote operation takes its grants as every other does, and keeps them until it ends. So nobody else changes what it reads meanwhile, or has
//! what it writes. Once it has them it goes *aside*: others of its file go on, unless it is in their way. It waits for answers to
//! one-sided requests and for nothing else, so those that wait for it do not wait for ever.
//!
//! What this client has changed and the servers do not have is newer here: a remote read takes it from here. A remote write takes what it
//! overwrites out of this client's memory. It goes by this memory, and is then flushed, where it makes the file longer, where blocks are
//! dirty, and where bytes of a block may have been lost. What a remote write sends counts among what is not answered, and waits for room as what is dirty does.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::attributes::Inode;
use super::operate::blocks;
use super::state::Active;
use super::transfer::{Request, UNANSWERED_MAX, WRITE_BATCH};
use super::{Answer, Client, Failure, Operation};
use crate::ids::{Epoch, File, Server};
use crate::message::{Outbox, Part, Place};
use crate::mistakes::{Mistake, is_made};
use crate::placement::{key_of_block, owners};
use crate::range::Range;
use crate::rope::Rope;

/// Bytes that one request asks for, as long as that is one block at least.
pub(super) const READ_BATCH: u64 = 4 << 20;

/// A remote operation under way.
#[derive(Clone, Debug)]
pub(super) struct Aside {
    pub active: Active,
    /// Where it begins, and how long it is within its file.
    span: (u64, u64),
    /// Of a read: its blocks, in order.
    pieces: Vec<Piece>,
    /// What its requests have brought; nothing yet, or nothing at all for those that write.
    transfers: BTreeMap<u64, Option<Came>>,
    /// Of a read: blocks that are asked for when there is room, and which pieces they are.
    unasked: Vec<(u64, usize)>,
    /// Of a write: what is sent when there is room, by request, the last one first.
    rest: Vec<Vec<Patch>>,
    /// In which epoch it has asked.
    asked: Epoch,
    /// A server has found a block damaged.
    is_damaged: bool,
}

/// A part of a block that is written, as [`Request::Patch`] has it.
type Patch = (Place, u64, u32, Bytes);

/// Bytes of a block that is read.
#[derive(Clone, Debug)]
struct Piece {
    block: u64,
    from: u32,
    length: u32,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// This client's memory: what it has there.
    Here(Bytes),
    /// A request, and which part of it.
    There(u64, usize),
}

#[derive(Clone, Debug, Default)]
struct Came {
    found: Vec<Option<u32>>,
    bytes: Rope,
}

impl Aside {
    /// Whether it has changed nothing, whatever becomes of it.
    pub fn is_read(&self) -> bool {
        matches!(*self.active.operation, Operation::Read { .. })
    }

    /// Takes an answer, if it has waited for this one.
    pub fn takes(&mut self, number: u64, found: &[Option<u32>], bytes: &Rope) -> bool {
        let came = self.transfers.get_mut(&number);
        let is_own = came.is_some();
        if let Some(came) = came {
            *came = Some(Came {
                found: found.to_vec(),
                bytes: bytes.clone(),
            });
        }
        is_own
    }

    /// What this request asked for is damaged, if it is one of this operation. What was sent already is waited for, and nothing more is sent.
    pub fn meets_damage(&mut self, number: u64) -> bool {
        let came = self.transfers.get_mut(&number);
        let is_own = came.is_some();
        if let Some(came) = came {
            if matches!(*self.active.operation, Operation::Read { .. }) {
                *came = Some(Came::default());
            }
            self.is_damaged = true;
            self.rest.clear();
            self.unasked.clear();
        }
        is_own
    }
}

impl Client {
    /// Blocks in groups that lie on the same servers, and that one request may have.
    pub(super) fn groups<T>(
        &self,
        file: File,
        blocks: impl IntoIterator<Item = (u64, T)>,
        (copies, batch): (usize, u64),
    ) -> Vec<Vec<(u64, T)>> {
        let most = if cfg!(test) {
            2
        } else {
            (batch / self.config.block_bytes).max(1) as usize
        };
        let mut open: BTreeMap<Vec<Server>, Vec<(u64, T)>> = BTreeMap::new();
        let mut full = Vec::new();
        for (block, what) in blocks {
            let servers = owners(&self.view.servers, key_of_block(file, block), copies);
            let group = open.entry(servers).or_default();
            if group.len() == most {
                full.push(std::mem::take(group));
            }
            group.push((block, what));
        }
        full.extend(open.into_values());
        full
    }

    /// A remote read or write, which has its grants and the size, goes aside. `length` is what it has within the file.
    pub(super) fn go_aside(
        &mut self,
        now: u64,
        file: File,
        active: Active,
        (offset, length): (u64, u64),
        out: &mut Outbox,
    ) {
        let mut aside = Aside {
            active,
            span: (offset, length),
            pieces: Vec::new(),
            transfers: BTreeMap::new(),
            unasked: Vec::new(),
            rest: Vec::new(),
            asked: self.view.epoch,
            is_damaged: false,
        };
        self.ask_aside(file, &mut aside, out);
        self.state(file).aside.push(aside);
        // It may need nobody.
        self.end_asides(now, file);
    }

    /// The same for a read that has not begun, past an operation that is not in its way. Its grants and the size are here.
    pub(super) fn goes_aside(
        &mut self,
        now: u64,
        file: File,
        active: &Active,
        (offset, length): (u64, u64),
        out: &mut Outbox,
    ) -> bool {
        let Ok(inode) = self.inode(file) else {
            return false;
        };
        let length = length.min(inode.size.saturating_sub(offset));
        let active = Active {
            pinned: self.needs(active),
            ..active.clone()
        };
        self.go_aside(now, file, active, (offset, length), out);
        true
    }

    /// Sends what a remote operation asks of the servers: in the beginning, and again in each epoch.
    fn ask_aside(&mut self, file: File, aside: &mut Aside, out: &mut Outbox) {
        aside.transfers.clear();
        aside.is_damaged = false;
        let operation = std::sync::Arc::clone(&aside.active.operation);
        if let Operation::Write { offset, bytes, .. } = &*operation {
            aside.rest = self.write_past(file, *offset, bytes);
            self.send_rest(file, aside, out);
            return;
        }
        aside.pieces = self.pieces(file, aside.span);
        let wanted = { aside.pieces.iter().enumerate() }
            .filter(|(_, piece)| matches!(piece.source, Source::There(..)))
            .map(|(at, piece)| (piece.block, at));
        aside.unasked = wanted.collect();
        self.send_rest(file, aside, out);
    }

    /// Asks for what there is room for.
    fn ask_rest(&mut self, file: File, aside: &mut Aside, out: &mut Outbox) {
        if aside.unasked.is_empty() {
            return;
        }
        let most = self.room_to_read().min(aside.unasked.len());
        let wanted: Vec<(u64, usize)> = aside.unasked.drain(..most).collect();
        for group in self.groups(file, wanted, (1, READ_BATCH)) {
            let parts = group.iter().map(|(block, at)| Part {
                place: (file, *block),
                from: aside.pieces[*at].from,
                length: aside.pieces[*at].length,
            });
            let number = self.transfer(Request::Part(parts.collect()), out);
            aside.transfers.insert(number, None);
            for (index, (_, at)) in group.into_iter().enumerate() {
                aside.pieces[at].source = Source::There(number, index);
            }
        }
    }

    /// The blocks of a read. Those that are newer here than at the servers are read here.
    fn pieces(&self, file: File, (offset, length): (u64, u64)) -> Vec<Piece> {
        let unit = self.config.block_bytes;
        let range = blocks(offset, length, unit);
        let all = range.into_iter().flat_map(|range| range.start..range.end);
        let state = &self.files[&file];
        all.map(|block| {
            let from = offset.max(block * unit) - block * unit;
            let to = (offset + length).min((block + 1) * unit) - block * unit;
            let newer = { state.cache.get(&block) }
                .filter(|cached| cached.is_owed() && !is_made(Mistake::PassesByNewerBytes));
            let source = match newer {
                Some(cached) => Source::Here(cached.bytes.clone().unwrap_or_default()),
                None => Source::There(0, 0),
            };
            Piece {
                block,
                from: from as u32,
                length: (to - from) as u32,
                source,
            }
        })
        .collect()
    }

    /// Whether the bytes of a remote write may go straight to the servers.
    pub(super) fn may_pass(&self, file: File, inode: Inode, offset: u64, length: u64) -> bool {
        let (unit, end) = (self.config.block_bytes, offset + length);
        let Some(range) = blocks(offset, length, unit) else {
            return false;
        };
        let state = &self.files[&file];
        let mut cached = state.cache.range(range.start..range.end);
        let mut parts = parts_of_blocks(offset, length, unit);
        end <= inode.size.min(state.size_written)
            && !cached.any(|(_, cached)| cached.is_owed() || cached.is_damaged)
            && !parts.any(|block| self.is_lost(file, block, inode.born))
    }

    /// What requests a write becomes, the last one first. Memory has nothing of it any more.
    fn write_past(&mut self, file: File, offset: u64, bytes: &Rope) -> Vec<Vec<Patch>> {
        let (unit, end) = (self.config.block_bytes, offset + bytes.len() as u64);
        let range = blocks(offset, bytes.len() as u64, unit).unwrap_or(Range::one(0));
        if !is_made(Mistake::LeavesOldBytes) {
            self.drop_blocks(file, range);
        }
        let change = self.count();
        let parts = (range.start..range.end).map(|block| {
            let from = offset.max(block * unit);
            let to = end.min((block + 1) * unit);
            let part = bytes.part((from - offset) as usize, (to - from) as usize);
            (block, ((from - block * unit) as u32, part))
        });
        let parts: Vec<(u64, (u32, Bytes))> = parts.collect();
        let groups = self.groups(file, parts, (self.config.copies, WRITE_BATCH));
        { groups.into_iter().rev() }
            .map(|group| {
                let parts = group.into_iter();
                let parts = parts.map(|(block, (at, bytes))| ((file, block), change, at, bytes));
                parts.collect()
            })
            .collect()
    }

    /// Sends what there is room for.
    fn send_rest(&mut self, file: File, aside: &mut Aside, out: &mut Outbox) {
        self.ask_rest(file, aside, out);
        while !aside.rest.is_empty() && !self.must_wait(UNANSWERED_MAX) {
            if let Some(parts) = aside.rest.pop() {
                let number = self.transfer(Request::Patch(parts), out);
                aside.transfers.insert(number, None);
            }
        }
    }

    /// Goes on with remote operations for which there was no room.
    pub(super) fn go_on_aside(&mut self, file: File, out: &mut Outbox) {
        let mut asides = std::mem::take(&mut self.state(file).aside);
        for aside in &mut asides {
            self.send_rest(file, aside, out);
        }
        self.state(file).aside = asides;
    }

    /// In a new epoch all of them ask again, but writes to a part of a block whose rest has gone with a server: no zeros may take its place.
    pub(super) fn renew_asides(&mut self, out: &mut Outbox) {
        for file in self.files.keys().copied().collect::<Vec<_>>() {
            let mut asides = std::mem::take(&mut self.state(file).aside);
            for mut aside in asides.drain(..) {
                if self.has_lost_its_rest(file, &aside) && !is_made(Mistake::PatchesWhatIsLost) {
                    self.results.push((aside.active.id, Err(Failure::Lost)));
                    continue;
                }
                self.ask_aside(file, &mut aside, out);
                aside.asked = self.view.epoch;
                self.state(file).aside.push(aside);
            }
        }
    }

    /// Whether it writes a part of a block that may have been lost since it asked.
    fn has_lost_its_rest(&self, file: File, aside: &Aside) -> bool {
        let Operation::Write { offset, bytes, .. } = &*aside.active.operation else {
            return false;
        };
        let mut parts = parts_of_blocks(*offset, bytes.len() as u64, self.config.block_bytes);
        parts.any(|block| self.is_lost(file, block, aside.asked))
    }

    /// Ends those that have all their answers.
    pub(super) fn end_asides(&mut self, now: u64, file: File) {
        let state = self.state(file);
        if state.aside.is_empty() || !self.is_member(now) {
            return;
        }
        let is_over = |aside: &mut Aside| {
            aside.rest.is_empty()
                && aside.unasked.is_empty()
                && aside.transfers.values().all(Option::is_some)
        };
        let ended: Vec<Aside> = self.state(file).aside.extract_if(.., is_over).collect();
        for aside in ended {
            if aside.is_damaged && !aside.is_read() {
                // It goes by memory now, which knows the damage: whole blocks are mended, and parts of them are an error.
                self.state(file).queue.push_front(aside.active.again());
                continue;
            }
            let result = if aside.is_damaged {
                Err(Failure::Lost)
            } else if aside.is_read() {
                self.read_aside(file, &aside)
            } else {
                let (offset, length) = aside.span;
                if let Some(range) = blocks(offset, length, self.config.block_bytes) {
                    self.remember(file, range, aside.asked);
                }
                Ok(Answer::Done)
            };
            self.results.push((aside.active.id, result));
        }
    }

    fn read_aside(&mut self, file: File, aside: &Aside) -> Result<Answer, Failure> {
        let born = self.inode(file)?.born;
        let (_, length) = aside.span;
        // Mostly one server has all of it, and it came in one piece.
        if let Some(Some(only)) = aside.transfers.values().next()
            && only.bytes.len() as u64 == length
        {
            return Ok(Answer::Bytes(only.bytes.clone()));
        }
        let mut rope = Rope::default();
        for piece in &aside.pieces {
            let length = piece.length as usize;
            let before = rope.len();
            match &piece.source {
                Source::Here(bytes) => {
                    let from = bytes.len().min(piece.from as usize);
                    rope.push(bytes.slice(from..bytes.len().min(from + length)));
                }
                Source::There(number, index) => {
                    let came = aside.transfers.get(number).and_then(Option::as_ref);
                    let Some(Came { found, bytes }) = came else {
                        return Err(Failure::Lost);
                    };
                    match found[*index] {
                        Some(there) => {
                            let at: u32 = found[..*index].iter().flatten().sum();
                            rope.push_part(bytes, at as usize, there as usize);
                        }
                        None if self.is_lost(file, piece.block, born) => {
                            return Err(Failure::Lost);
                        }
                        None => {}
                    }
                }
            }
            rope.push_zeros(length - (rope.len() - before));
        }
        Ok(Answer::Bytes(rope))
    }
}

/// The blocks that a range has a part of, and not all.
fn parts_of_blocks(offset: u64, length: u64, unit: u64) -> impl Iterator<Item = u64> {
    let end = offset + length;
    let ends = blocks(offset, length, unit).map(|range| [range.start, range.end - 1]);
    let is_whole = move |block: u64| offset <= block * unit && (block + 1) * unit <= end;
    { ends.into_iter().flatten() }.filter(move |block| !is_whole(*block))
}
