//! One-sided requests under way: which servers have not answered, and what is sent again after a break or in a new epoch.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Client;
use super::past::READ_BATCH;
use super::state::Cached;
use crate::ids::{File, Node, SIZE_BLOCK, Server, Version};
use crate::message::{Block, Message, Outbox, Part, Place};
use crate::mistakes::{Mistake, is_made};
use crate::placement::{key_of_block, owners};
use crate::range::Range;
use crate::rope::Rope;

/// Bytes of blocks on their way to servers that have not answered. No more are begun then, so that signs of life and others' requests do not come
/// after all that is dirty, and a break sends no more than this again. Small in tests, so that they reach it.
pub(super) const UNANSWERED_MAX: u64 = if cfg!(test) { 1 << 10 } else { 4 << 20 };

/// Bytes that one request writes, as long as that is one block at least: some are under way while others are answered.
pub(super) const WRITE_BATCH: u64 = UNANSWERED_MAX / 4;

/// Bytes of blocks that are asked for and have not come: a server keeps what a connection does not take at once, and ends one that has too much to take.
/// Small in tests, so that they reach it.
pub(super) const ASKED_MAX: u64 = if cfg!(test) { 1 << 10 } else { 64 << 20 };

/// What is asked of servers.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// Blocks of one file that lie together, for this client's memory.
    Read(Vec<Place>),
    /// Parts of such blocks, for a remote operation.
    Part(Vec<Part>),
    /// Blocks of one file that go together, with the changes that they hold.
    Write(Vec<(Place, u64, Bytes)>),
    /// Parts of such blocks, of a remote operation, with where in their blocks they begin.
    Patch(Vec<(Place, u64, u32, Bytes)>),
    /// The blocks of a file from the first of these on, of which servers have no others than these; its size block too, if the file is to be no more.
    Discard(File, Range, bool),
    /// Asked for by an operation of this file.
    Persist(File),
}

impl Request {
    /// Bytes of blocks that it reads, at most.
    fn read(&self, block_bytes: u64) -> u64 {
        match self {
            Request::Read(places) => places.len() as u64 * block_bytes,
            Request::Part(parts) => parts.iter().map(|part| u64::from(part.length)).sum(),
            _ => 0,
        }
    }

    /// Bytes of blocks that it writes.
    pub(super) fn written(&self) -> u64 {
        match self {
            Request::Write(blocks) => blocks.iter().map(|part| part.2.len() as u64).sum(),
            Request::Patch(parts) => parts.iter().map(|part| part.3.len() as u64).sum(),
            Request::Read(_) | Request::Part(_) | Request::Discard(..) | Request::Persist(_) => 0,
        }
    }
}

/// A request, and who has not answered.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub(super) request: Request,
    /// Under which grants its blocks are written, in their order: as of when it was begun in this epoch. Who is sent it later, after a break or because
    /// it let this client in later, gets the same version as the others, though the grants may be newer then.
    stamps: Vec<u64>,
    waits: BTreeSet<Server>,
}

impl Client {
    /// Begins a request, and says its number.
    pub(super) fn transfer(&mut self, request: Request, out: &mut Outbox) -> u64 {
        let number = self.count();
        let waits = self.servers_of(&request);
        self.unanswered += request.written();
        self.asked += request.read(self.config.block_bytes);
        let stamps = self.stamps_of(&request);
        let transfer = Transfer {
            request,
            stamps,
            waits,
        };
        self.transfers.insert(number, transfer);
        self.send_transfer(number, None, out);
        number
    }

    /// Counts what has not been answered anew: requests may have been forgotten.
    fn count_unanswered(&mut self) {
        let requests = || self.transfers.values().map(|transfer| &transfer.request);
        self.unanswered = requests().map(Request::written).sum();
        let unit = self.config.block_bytes;
        self.asked = requests().map(|request| request.read(unit)).sum();
    }

    /// A request is over.
    pub(super) fn end_transfer(&mut self, number: u64) -> Option<Request> {
        let request = self.transfers.remove(&number)?.request;
        self.unanswered -= request.written();
        self.asked -= request.read(self.config.block_bytes);
        Some(request)
    }

    /// How many blocks may be asked for now. None while half of the room is taken: many go with one request.
    pub(super) fn room_to_read(&mut self) -> usize {
        if self.asked > ASKED_MAX / 2 {
            self.waits_to_read = true;
            return 0;
        }
        ((ASKED_MAX - self.asked) / self.config.block_bytes).max(1) as usize
    }

    /// Whether what is to be written must wait, for now: it is begun when there is room again.
    pub(super) fn must_wait(&mut self, most: u64) -> bool {
        let is_full = self.unanswered >= most;
        self.waits_for_room |= is_full;
        is_full
    }

    /// Whether so much is under way that it is not worth while to look what else is to be written.
    pub(super) fn is_busy(&mut self) -> bool {
        self.must_wait(UNANSWERED_MAX / 2)
    }

    /// Goes on with what waited for room, once there is enough.
    pub(super) fn make_use_of_room(&mut self, now: u64, out: &mut Outbox) {
        let writes = self.waits_for_room && self.unanswered < UNANSWERED_MAX / 2;
        let reads = self.waits_to_read && self.asked <= ASKED_MAX / 2;
        self.waits_for_room &= !writes;
        self.waits_to_read &= !reads;
        if writes || reads {
            self.advance_all(now, out);
        }
    }

    pub(super) fn is_under_way(&self, number: u64) -> bool {
        self.transfers.contains_key(&number)
    }

    fn servers_of(&self, request: &Request) -> BTreeSet<Server> {
        let all = &self.view.servers;
        let of = |(file, block): Place, copies| owners(all, key_of_block(file, block), copies);
        let servers = match request {
            Request::Read(places) => of(places[0], self.config.copies),
            Request::Part(parts) => of(parts[0].place, self.config.copies),
            Request::Write(blocks) => of(blocks[0].0, self.config.copies),
            Request::Patch(parts) => of(parts[0].0, self.config.copies),
            Request::Discard(file, blocks, whole) => self.servers_of_blocks(*file, *blocks, *whole),
            Request::Persist(_) => all.clone(),
        };
        // Any copy is read.
        let is_read = matches!(request, Request::Read(_) | Request::Part(_));
        let count = if is_read { 1 } else { servers.len() };
        servers.into_iter().take(count).collect()
    }

    /// The servers that can have any of these blocks, or the size block besides if it is the `whole` file. There is always one: a home's blocks go whichever server
    /// is asked. An active epoch has each block at its owners alone, and what a request of an older one has brought there is moved to these before.
    fn servers_of_blocks(&self, file: File, blocks: Range, whole: bool) -> Vec<Server> {
        let all = &self.view.servers;
        if blocks.end - blocks.start >= all.len() as u64 {
            // Most have some of so many, and it would take long to look where each of them lies.
            return all.clone();
        }
        let of = |block| owners(all, key_of_block(file, block), self.config.copies);
        let end = if is_made(Mistake::DiscardsTheFirstAlone) {
            blocks.start + 1
        } else {
            blocks.end
        };
        let mut servers: BTreeSet<Server> = { blocks.start..end }.flat_map(of).collect();
        if whole {
            servers.extend(of(SIZE_BLOCK));
        }
        servers.into_iter().collect()
    }

    /// In a new epoch blocks that lay together may not do so any more: what moves their bytes is forgotten, and asked for again by whoever wants it
    /// still. Everything else is asked of the servers of this epoch.
    pub(super) fn renew_transfers(&mut self, out: &mut Outbox) {
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.retain(|_, transfer| match &transfer.request {
            // Names always lie together.
            Request::Write(blocks) => is_of_new_file(blocks) || blocks[0].0.0 == File::NAMES,
            Request::Discard(..) | Request::Persist(_) => true,
            Request::Read(_) | Request::Part(_) | Request::Patch(_) => false,
        });
        for transfer in transfers.values_mut() {
            transfer.waits = self.servers_of(&transfer.request);
            transfer.stamps = self.stamps_of(&transfer.request);
        }
        self.transfers = transfers;
        self.count_unanswered();
        for (file, state) in &mut self.files {
            state.reading.clear();
            if *file == File::NAMES {
                continue;
            }
            { state.cache.values_mut() }.for_each(|cached| cached.flushing = None);
        }
        self.renew_asides(out);
    }

    /// Sends a request to those that have not answered and whose key is known; to `only` one of them, if that is said.
    pub(super) fn send_transfer(&self, number: u64, only: Option<Server>, out: &mut Outbox) {
        let Some(transfer) = self.transfers.get(&number) else {
            return;
        };
        let number = self.number_now(number);
        for server in transfer
            .waits
            .iter()
            .filter(|server| only.is_none_or(|only| only == **server))
        {
            let Some(&key) = self.keys.get(server) else {
                continue;
            };
            let message = match &transfer.request {
                Request::Read(places) => Message::Read {
                    key,
                    number,
                    parts: places.iter().map(|place| whole(*place)).collect(),
                },
                Request::Part(parts) => Message::Read {
                    key,
                    number,
                    parts: parts.clone(),
                },
                Request::Patch(parts) => {
                    let parts = parts.iter().zip(&transfer.stamps);
                    let parts = parts.map(|((place, change, at, bytes), stamp)| {
                        (self.block(*place, (*stamp, *change), bytes), *at)
                    });
                    Message::Patch {
                        key,
                        number,
                        parts: parts.collect(),
                    }
                }
                Request::Discard(file, blocks, whole) => Message::Discard {
                    key,
                    number,
                    file: *file,
                    from: blocks.start,
                    whole: *whole,
                },
                Request::Persist(_) => Message::Persist { key, number },
                Request::Write(blocks) => {
                    let blocks = blocks.iter().zip(&transfer.stamps);
                    let blocks = blocks.map(|((place, change, bytes), stamp)| {
                        self.block(*place, (*stamp, *change), bytes)
                    });
                    Message::Write {
                        key,
                        number,
                        blocks: blocks.collect(),
                    }
                }
            };
            out.push((Node::Server(*server), message));
        }
    }

    /// A request's number as it is sent: an answer from an older epoch, which the exchange of blocks may have made untrue, has another. The
    /// epochs' own numbers do not do: those of each ruler begin with the same low bits.
    fn number_now(&self, number: u64) -> u64 {
        number << 16 | self.epochs & 0xffff
    }

    /// The request that an answer belongs to.
    pub(super) fn request_of(&self, number: u64) -> Option<u64> {
        (self.number_now(number >> 16) == number).then_some(number >> 16)
    }

    /// Under which grants this client has what a request writes now.
    fn stamps_of(&self, request: &Request) -> Vec<u64> {
        let stamp = |(file, block): Place| {
            let state = self.files.get(&file);
            let stamp = state.and_then(|state| state.locks.stamp((), block));
            stamp.unwrap_or(0)
        };
        match request {
            Request::Write(blocks) => blocks.iter().map(|part| stamp(part.0)).collect(),
            Request::Patch(parts) => parts.iter().map(|part| stamp(part.0)).collect(),
            Request::Read(_) | Request::Part(_) | Request::Discard(..) | Request::Persist(_) => {
                Vec::new()
            }
        }
    }

    fn block(&self, place: Place, (stamp, change): (u64, u64), bytes: &Bytes) -> Block {
        let version = Version {
            epoch: self.view.epoch.0,
            stamp,
            change,
        };
        Block {
            place,
            version,
            bytes: bytes.clone(),
        }
    }

    /// Bytes have come; says of which file. Those for this client's memory count only if their block has been wanted ever since they were asked for:
    /// else its grant may have gone meanwhile, or the block was written here.
    pub(super) fn arrived(
        &mut self,
        number: u64,
        found: Vec<Option<u32>>,
        bytes: &Rope,
    ) -> Option<File> {
        let number = self.request_of(number)?;
        let parts: Vec<Part> = match &self.transfers.get(&number)?.request {
            Request::Read(places) => places.iter().map(|place| whole(*place)).collect(),
            Request::Part(parts) => parts.clone(),
            _ => return None,
        };
        let is_asked = |(part, found): (&Part, &Option<u32>)| found.unwrap_or(0) <= part.length;
        if parts.len() != found.len() || !parts.iter().zip(&found).all(is_asked) {
            return None;
        }
        let request = self.end_transfer(number)?;
        let file = parts.first()?.place.0;
        if let Request::Part(_) = request {
            let mut asides = self.state(file).aside.iter_mut();
            let is_wanted = asides.any(|aside| aside.takes(number, &found, bytes));
            return is_wanted.then_some(file);
        }
        let mut at = 0;
        for (part, found) in parts.into_iter().zip(found) {
            let length = found.unwrap_or(0) as usize;
            let bytes = found.map(|_| bytes.part(at, length));
            at += length;
            self.block_came(number, part.place, bytes);
        }
        Some(file)
    }

    fn block_came(&mut self, number: u64, (file, at): Place, bytes: Option<Bytes>) {
        let reading = &mut self.state(file).reading;
        if reading.get(&at) == Some(&number) {
            reading.remove(&at);
        } else if !is_made(Mistake::TakesLateBytes) {
            return;
        }
        let used = self.count();
        let state = self.state(file);
        if at == SIZE_BLOCK {
            state.size_is(bytes.as_deref());
        }
        state.cache.insert(
            at,
            Cached {
                bytes,
                used,
                ..Cached::default()
            },
        );
        self.block_used(used, (file, at));
    }

    /// A server has done what was asked; says of which file, if all have.
    pub(super) fn done(&mut self, server: Server, number: u64) -> Option<File> {
        let number = self.request_of(number)?;
        let transfer = self.transfers.get_mut(&number)?;
        transfer.waits.remove(&server);
        if !transfer.waits.is_empty() {
            return None;
        }
        match self.end_transfer(number)? {
            Request::Discard(file, ..) | Request::Persist(file) => Some(file),
            Request::Read(places) => Some(places[0].0),
            Request::Part(parts) => Some(parts[0].place.0),
            Request::Patch(parts) => {
                let file = parts[0].0.0;
                let mut asides = self.state(file).aside.iter_mut();
                let none = Rope::default();
                let is_wanted = asides.any(|aside| aside.takes(number, &[], &none));
                is_wanted.then_some(file)
            }
            // The operation is one of names.
            Request::Write(blocks) if is_of_new_file(&blocks) => {
                for ((file, block), ..) in blocks {
                    self.remember(file, Range::one(block), self.view.epoch);
                }
                Some(File::NAMES)
            }
            Request::Write(blocks) => {
                let file = blocks[0].0.0;
                for (place, change, bytes) in blocks {
                    self.block_went(number, place, change, &bytes);
                }
                Some(file)
            }
        }
    }

    /// Writes blocks that lie on the same servers in one request, in this order.
    pub(super) fn flush_together(&mut self, file: File, blocks: &[u64], out: &mut Outbox) {
        if self.must_wait(UNANSWERED_MAX) {
            return;
        }
        let state = self.state(file);
        let ready = blocks
            .iter()
            .filter_map(|block| Some((*block, state.cache.get(block)?)));
        let ready = ready.filter(|(_, cached)| cached.is_dirty() && cached.flushing.is_none());
        let parts: Vec<_> = ready
            .filter_map(|(block, cached)| {
                Some(((file, block), cached.change, cached.bytes.clone()?))
            })
            .collect();
        if parts.is_empty() {
            return;
        }
        let flushed: Vec<u64> = parts.iter().map(|((_, block), ..)| *block).collect();
        let number = self.transfer(Request::Write(parts), out);
        for block in flushed {
            if let Some(cached) = self.state(file).cache.get_mut(&block) {
                cached.flushing = Some(number);
            }
        }
    }

    /// Whether a block is here; if not, it is asked for.
    pub(super) fn fetch(&mut self, file: File, block: u64, out: &mut Outbox) -> bool {
        self.fetch_all(file, std::iter::once(block), out)
    }

    /// Whether all these blocks are here; those that are not are asked for, in one request where they lie together, as far as there is room.
    pub(super) fn fetch_all(
        &mut self,
        file: File,
        blocks: impl Iterator<Item = u64>,
        out: &mut Outbox,
    ) -> bool {
        let state = self.state(file);
        let missing: Vec<u64> = blocks
            .filter(|block| !state.cache.contains_key(block))
            .collect();
        if missing.is_empty() {
            return true;
        }
        let asked = |block: &u64| state.reading.contains_key(block);
        let mut wanted: Vec<(u64, ())> = { missing.into_iter() }
            .filter(|block| !asked(block))
            .map(|block| (block, ()))
            .collect();
        if wanted.is_empty() {
            return false;
        }
        wanted.truncate(self.room_to_read());
        for group in self.groups(file, wanted, (1, READ_BATCH)) {
            let places = group.iter().map(|(block, ())| (file, *block)).collect();
            let number = self.transfer(Request::Read(places), out);
            let read = group.into_iter().map(|(block, ())| (block, number));
            self.state(file).reading.extend(read);
        }
        false
    }
}

/// Whether these are the size or first bytes of a file that is being made: no grant says how new it is, and nobody knows the file yet.
fn is_of_new_file(blocks: &[(Place, u64, Bytes)]) -> bool {
    blocks[0].1 == 0
}

/// All of a block.
fn whole(place: Place) -> Part {
    Part {
        place,
        from: 0,
        length: u32::MAX,
    }
}
