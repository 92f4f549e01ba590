//! One-sided requests under way: which servers have not answered, and what is sent again after a break or in a new epoch.

use std::collections::BTreeSet;

use super::Client;
use super::attributes::Inode;
use super::state::Cached;
use crate::ids::{File, Node, SIZE_BLOCK, Server, Version};
use crate::message::{Block, Message, Outbox, Place};
use crate::mistakes::{Mistake, is_made};
use crate::placement::{key_of_block, owners};

/// What is asked of servers.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Read(Place),
    /// Blocks of one file that go together, with the changes that they hold.
    Write(Vec<(Place, u64, Vec<u8>)>),
    /// The blocks of a file from this one on; its size block too, if the file is to be no more.
    Discard(File, u64, bool),
    /// Asked for by an operation of this file.
    Persist(File),
}

/// A request, and who has not answered.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    request: Request,
    waits: BTreeSet<Server>,
}

impl Client {
    /// Begins a request, and says its number.
    pub(super) fn transfer(&mut self, request: Request, out: &mut Outbox) -> u64 {
        let number = self.count();
        let waits = self.servers_of(&request);
        self.transfers.insert(number, Transfer { request, waits });
        self.send_transfer(number, None, out);
        number
    }

    pub(super) fn is_under_way(&self, number: u64) -> bool {
        self.transfers.contains_key(&number)
    }

    fn servers_of(&self, request: &Request) -> BTreeSet<Server> {
        let all = &self.view.servers;
        let of = |(file, block): Place, copies| owners(all, key_of_block(file, block), copies);
        let servers = match request {
            Request::Read(place) => of(*place, self.config.copies).into_iter().take(1).collect(),
            Request::Write(blocks) => of(blocks[0].0, self.config.copies),
            Request::Discard(..) | Request::Persist(_) => all.clone(),
        };
        servers.into_iter().collect()
    }

    /// In a new epoch everything is asked of the servers that have the blocks now.
    pub(super) fn renew_transfers(&mut self) {
        let mut transfers = std::mem::take(&mut self.transfers);
        for transfer in transfers.values_mut() {
            transfer.waits = self.servers_of(&transfer.request);
        }
        self.transfers = transfers;
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
                Request::Read(place) => Message::Read {
                    key,
                    number,
                    place: *place,
                },
                Request::Discard(file, from, whole) => Message::Discard {
                    key,
                    number,
                    file: *file,
                    from: *from,
                    whole: *whole,
                },
                Request::Persist(_) => Message::Persist { key, number },
                Request::Write(blocks) => {
                    let blocks = blocks.iter().map(|(place, change, bytes)| Block {
                        place: *place,
                        version: self.version(*place, *change),
                        bytes: bytes.clone(),
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

    /// A request's number as it is sent: an answer from an older epoch, which the exchange of blocks may have made untrue, has another.
    fn number_now(&self, number: u64) -> u64 {
        number << 16 | self.view.epoch.0 & 0xffff
    }

    /// The request that an answer belongs to.
    fn request_of(&self, number: u64) -> Option<u64> {
        (self.number_now(number >> 16) == number).then_some(number >> 16)
    }

    fn version(&self, (file, block): Place, change: u64) -> Version {
        let stamp = self
            .files
            .get(&file)
            .and_then(|state| state.locks.stamp((), block));
        Version {
            epoch: self.view.epoch.0,
            stamp: stamp.unwrap_or(0),
            change,
        }
    }

    /// The bytes of a block have come. They count only if the block has been wanted ever since they were asked for: else its grant may have gone
    /// meanwhile, or the block was written here.
    pub(super) fn arrived(&mut self, number: u64, block: Option<Block>) -> Option<File> {
        let number = self.request_of(number)?;
        let transfer = self.transfers.remove(&number)?;
        let Request::Read((file, at)) = transfer.request else {
            self.transfers.insert(number, transfer);
            return None;
        };
        let reading = &mut self.state(file).reading;
        if reading.get(&at) == Some(&number) {
            reading.remove(&at);
        } else if !is_made(Mistake::TakesLateBytes) {
            return None;
        }
        let used = self.count();
        let mut bytes = block.map(|block| block.bytes);
        if let Some(held) = bytes
            .as_mut()
            .filter(|_| at != SIZE_BLOCK && file != File::NAMES)
        {
            held.resize(self.config.block_bytes as usize, 0);
        }
        let size = bytes
            .as_deref()
            .and_then(Inode::of)
            .map_or(0, |inode| inode.size);
        let state = self.state(file);
        if at == SIZE_BLOCK {
            state.size_written = size;
        }
        state.cache.insert(
            at,
            Cached {
                bytes,
                used,
                ..Cached::default()
            },
        );
        self.cached.insert(used, (file, at));
        Some(file)
    }

    /// A server has done what was asked; says of which file, if all have.
    pub(super) fn done(&mut self, server: Server, number: u64) -> Option<File> {
        let number = self.request_of(number)?;
        let transfer = self.transfers.get_mut(&number)?;
        transfer.waits.remove(&server);
        if !transfer.waits.is_empty() {
            return None;
        }
        match self.transfers.remove(&number)?.request {
            Request::Read((file, _)) | Request::Discard(file, ..) | Request::Persist(file) => {
                Some(file)
            }
            // A new file's size or first bytes: the operation is one of names.
            Request::Write(blocks) if blocks[0].1 == 0 => Some(File::NAMES),
            Request::Write(blocks) => {
                let file = blocks[0].0.0;
                for ((file, block), change, bytes) in blocks {
                    let state = self.state(file);
                    if let Some(cached) = state.cache.get_mut(&block)
                        && cached.flushing == Some(number)
                    {
                        cached.flushing = None;
                        cached.written = change;
                        if block == SIZE_BLOCK {
                            state.size_written = Inode::of(&bytes).map_or(0, |inode| inode.size);
                        }
                    }
                }
                Some(file)
            }
        }
    }

    /// Begins to write a dirty block, unless that is under way. Bytes beyond the size that the servers have are written after it, so that
    /// nothing lies beyond a file's end if this client dies.
    pub(super) fn flush(&mut self, file: File, block: u64, out: &mut Outbox) {
        let end = (block + 1).saturating_mul(self.config.block_bytes);
        let state = self.state(file);
        let size_owed = state.cache.get(&SIZE_BLOCK).is_some_and(Cached::is_dirty);
        if block != SIZE_BLOCK && file != File::NAMES && size_owed && end > state.size_written {
            self.flush_together(file, &[SIZE_BLOCK], out);
        } else {
            self.flush_together(file, &[block], out);
        }
    }

    /// Writes blocks that lie on the same servers in one request.
    pub(super) fn flush_together(&mut self, file: File, blocks: &[u64], out: &mut Outbox) {
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
        if self.state(file).cache.contains_key(&block) {
            return true;
        }
        if !self.state(file).reading.contains_key(&block) {
            let number = self.transfer(Request::Read((file, block)), out);
            self.state(file).reading.insert(block, number);
        }
        false
    }

    /// Drops blocks that were used longest ago, and begins to write those that are dirty, in one go.
    pub(super) fn evict(&mut self, out: &mut Outbox) {
        let over = self.cached.len().saturating_sub(self.config.cache_blocks);
        let oldest: Vec<(u64, Place)> = self
            .cached
            .iter()
            .take(over)
            .map(|(used, place)| (*used, *place))
            .collect();
        for (used, (file, block)) in oldest {
            let state = self.state(file);
            let clean = state
                .cache
                .get(&block)
                .is_none_or(|cached| !cached.is_dirty() && cached.flushing.is_none());
            if !clean {
                self.flush(file, block, out);
            } else if state.active.is_none() && block != SIZE_BLOCK {
                state.cache.remove(&block);
                self.cached.remove(&used);
            }
        }
    }
}
