//! How servers move blocks when an epoch begins.
//!
//! Each server offers to each other server of the epoch what that one should have, with versions. The other wants what is newer than its own, gets
//! it in parts, and says that it has taken everything. A server is *ready* when all others have taken its offers, and it has taken
//! theirs; it then drops what it should not have. So an active epoch has each block in the newest version at all of its
//! owners, and nowhere else: no old copy comes back later. No client writes meanwhile, since the epoch before is closed.
//!
//! Of each other server a few parts are asked for at once, and the next one when one has come: what is under way between two servers is little,
//! however much one hands on. Their connection would else end when its queue is full, and everything begin again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Server;
use crate::ids::{File, Node, Server as Id, Version};
use crate::message::{Block, Message, Outbox, Place};

/// Blocks that one message offers at most, and blocks that one message asks for at most. Few in tests, so that these have more than one message.
const OFFERED: usize = if cfg!(test) { 5 } else { 4096 };
const WANTED: usize = if cfg!(test) { 2 } else { 16 };

/// Of these, blocks of names: each may have four times as many bytes as any other.
const NAMES_WANTED: usize = if cfg!(test) { 1 } else { 4 };

/// Messages that ask one server for blocks and have no answer yet.
const ASKED: usize = 4;

/// Bytes that one message brings at most, unless one block has more. Members ask for fewer.
const GIVEN_BYTES: usize = 32 << 20;

/// Splits a list into parts, and says which is the last; there is always one.
fn parts<T: Clone>(all: &[T], most: usize) -> impl Iterator<Item = (Vec<T>, bool)> {
    let count = all.len().div_ceil(most).max(1);
    let of = move |at: usize| &all[at * most..all.len().min((at + 1) * most)];
    (0..count).map(move |at| (of(at).to_vec(), at + 1 == count))
}

/// How far the exchange has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchange {
    /// Servers that have not taken what they were offered.
    given: BTreeSet<Id>,
    /// Servers whose offers have not been taken.
    taken: BTreeSet<Id>,
    /// What is wanted of each.
    wants: BTreeMap<Id, Wants>,
}

/// What is wanted of one server.
#[derive(Clone, Debug, Default)]
struct Wants {
    /// What it has not been asked for yet.
    due: VecDeque<(Place, Version)>,
    /// It offers nothing more.
    is_all: bool,
    /// How often it has been asked and has not answered.
    asked: usize,
}

impl Wants {
    /// What to ask for next, and whether that is the last of it.
    fn next(&mut self, is_wanted: impl Fn(Place, Version) -> bool) -> Option<(Vec<Place>, bool)> {
        if self.asked == ASKED {
            return None;
        }
        let (mut places, mut names) = (Vec::new(), 0);
        while let Some((place, version)) = self.due.front().copied() {
            // Another one may have given it meanwhile.
            if is_wanted(place, version) {
                let is_names = place.0 == File::NAMES;
                if places.len() == WANTED || is_names && names == NAMES_WANTED {
                    break;
                }
                names += usize::from(is_names);
                places.push(place);
            }
            self.due.pop_front();
        }
        // Messages keep their order: when what was wanted last is here, so is all before it.
        let is_last = self.due.is_empty() && std::mem::take(&mut self.is_all);
        if places.is_empty() && !is_last {
            return None;
        }
        self.asked += 1;
        Some((places, is_last))
    }
}

/// Splits blocks into what one message brings each, and says which is the last; there is always one.
fn loads(blocks: Vec<Block>) -> Vec<(Vec<Block>, bool)> {
    let mut all = vec![(Vec::new(), true)];
    let mut bytes = 0;
    for block in blocks {
        bytes += block.bytes.len();
        if let Some((load, is_last)) = all.last_mut() {
            if bytes <= GIVEN_BYTES || load.is_empty() {
                load.push(block);
                continue;
            }
            *is_last = false;
        }
        bytes = block.bytes.len();
        all.push((vec![block], true));
    }
    all
}

impl Server {
    pub(super) fn begin_exchange(&mut self, now: u64, out: &mut Outbox) {
        let all = self.view.servers.iter().chain(&self.view.leaving);
        let others: BTreeSet<Id> = all.filter(|server| **server != self.me).copied().collect();
        self.exchange = Exchange {
            given: others.clone(),
            taken: others.clone(),
            wants: BTreeMap::new(),
        };
        self.offer_all(others, out);
        self.perhaps_ready(now, out);
    }

    /// Offers each of these what it should have. Each block is looked at once for all of them: a server of many blocks would else say nothing for
    /// longer than a term, where there are many servers.
    fn offer_all(&self, others: BTreeSet<Id>, out: &mut Outbox) {
        let mut all: BTreeMap<Id, Vec<(Place, Version)>> = { others.into_iter() }
            .map(|server| (server, Vec::new()))
            .collect();
        for (place, version) in self.blocks.versions() {
            for owner in self.owners_of(place) {
                if let Some(blocks) = all.get_mut(&owner) {
                    blocks.push((place, version));
                }
            }
        }
        for (server, blocks) in all {
            self.offer_these(server, &blocks, out);
        }
    }

    /// There is a new connection to this one: what it was asked for may be lost, and it offers it again.
    pub(super) fn met(&mut self, server: Id, out: &mut Outbox) {
        self.exchange.wants.remove(&server);
        self.offer(server, out);
    }

    /// Offers `server` what it should have, unless it has taken that already.
    fn offer(&self, server: Id, out: &mut Outbox) {
        if self.exchange.given.contains(&server) {
            let blocks: Vec<_> = { self.blocks.versions() }
                .filter(|(place, _)| self.owns(server, *place))
                .collect();
            self.offer_these(server, &blocks, out);
        }
    }

    fn offer_these(&self, server: Id, blocks: &[(Place, Version)], out: &mut Outbox) {
        let epoch = self.view.epoch;
        for (blocks, last) in parts(blocks, OFFERED) {
            let offer = Message::Offer {
                epoch,
                blocks,
                last,
            };
            out.push((Node::Server(server), offer));
        }
    }

    pub(super) fn of_server(&mut self, now: u64, peer: Id, message: Message, out: &mut Outbox) {
        let epoch = self.view.epoch;
        match message {
            Message::Offer { blocks, last, .. } => {
                let newer: Vec<_> = { blocks.into_iter() }
                    .filter(|(place, version)| self.blocks.lacks(*place, *version))
                    .collect();
                let wants = self.exchange.wants.entry(peer).or_default();
                wants.due.extend(newer);
                wants.is_all |= last;
                self.want(peer, out);
            }
            Message::Want { places, last, .. } => {
                // What has gone from memory since it was offered is in the home.
                let blocks = { places.into_iter() }
                    .filter_map(|place| self.blocks.get(place).ok().flatten())
                    .collect();
                for (blocks, ends) in loads(blocks) {
                    let last = last && ends;
                    let give = Message::Give {
                        epoch,
                        blocks,
                        last,
                    };
                    out.push((Node::Server(peer), give));
                }
            }
            Message::Give { blocks, last, .. } => {
                for block in blocks {
                    if self.blocks.lacks(block.place, block.version) {
                        self.blocks.take(block);
                    }
                }
                if let Some(wants) = self.exchange.wants.get_mut(&peer) {
                    wants.asked = wants.asked.saturating_sub(1);
                }
                self.want(peer, out);
                if last {
                    self.took(now, peer, out);
                }
            }
            Message::Taken { .. } => {
                self.exchange.given.remove(&peer);
                self.perhaps_ready(now, out);
            }
            _ => {}
        }
    }

    /// Asks a server for more of what it has offered, if it has answered most of what it was asked.
    fn want(&mut self, peer: Id, out: &mut Outbox) {
        let epoch = self.view.epoch;
        let (blocks, wants) = (&self.blocks, &mut self.exchange.wants);
        let Some(wants) = wants.get_mut(&peer) else {
            return;
        };
        while let Some((places, last)) = wants.next(|place, version| blocks.lacks(place, version)) {
            let want = Message::Want {
                epoch,
                places,
                last,
            };
            out.push((Node::Server(peer), want));
        }
    }

    fn took(&mut self, now: u64, peer: Id, out: &mut Outbox) {
        self.exchange.taken.remove(&peer);
        let epoch = self.view.epoch;
        out.push((Node::Server(peer), Message::Taken { epoch }));
        self.perhaps_ready(now, out);
    }

    fn perhaps_ready(&mut self, now: u64, out: &mut Outbox) {
        let exchange = &self.exchange;
        if exchange.given.is_empty() && exchange.taken.is_empty() && self.ready < self.view.epoch {
            self.ready = self.view.epoch;
            // Where all servers have been told to go nobody owns anything, and whoever comes yet is handed all of it.
            if !self.view.servers.is_empty() {
                let others: Vec<Place> = { self.blocks.versions() }
                    .map(|(place, _)| place)
                    .filter(|place| !self.owns(self.me, *place))
                    .collect();
                others
                    .into_iter()
                    .for_each(|place| self.blocks.forget(place));
            }
            self.tell(now, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::Config;
    use super::*;
    use crate::ids::{Epoch, File};
    use crate::message::{Block, View};

    const SERVERS: u32 = 48;

    /// A server that has so many blocks of its own.
    fn server(blocks: u64) -> Server {
        let config = Config {
            copies: 2,
            alive_every: 50,
            term: 400,
            patience: 800,
            secret: 11,
        };
        let mut server = Server::new(Id(1), config);
        for block in 0..blocks {
            server.blocks.take(Block {
                place: (File(7), block),
                version: Version::default(),
                bytes: b"few"[..].into(),
            });
        }
        server
    }

    /// What it says when it hears of an epoch of many servers, and how long it looks for that.
    fn begin(server: &mut Server) -> (Outbox, Duration) {
        let view = View {
            epoch: Epoch(1),
            servers: (1..=SERVERS).map(Id).collect(),
            ..View::default()
        };
        let mut out = Outbox::new();
        let began = Instant::now();
        server.handle(
            0,
            Node::Register,
            Message::Member {
                sent: 0,
                view: Some(view),
            },
            &mut out,
        );
        (out, began.elapsed())
    }

    #[test]
    fn of_many_blocks_a_few_are_asked_for_at_once() {
        let mut server = server(0);
        begin(&mut server);
        let epoch = Epoch(1);
        let places = |file, count| (0..count).map(move |block| (file, block));
        // Names come first, and are asked for in smaller parts.
        let offered: Vec<Place> = places(File::NAMES, 5).chain(places(File(7), 95)).collect();
        let mut out = Outbox::new();
        let count = offered.len().div_ceil(OFFERED);
        for (number, blocks) in offered.chunks(OFFERED).enumerate() {
            let version = Version::default();
            let offer = Message::Offer {
                epoch,
                blocks: blocks.iter().map(|place| (*place, version)).collect(),
                last: number + 1 == count,
            };
            server.handle(0, Node::Server(Id(2)), offer, &mut out);
        }
        let (mut open, mut wanted, mut is_taken) = (VecDeque::new(), Vec::new(), false);
        loop {
            for (_, message) in out.drain(..) {
                match message {
                    Message::Want { places, last, .. } => open.push_back((places, last)),
                    Message::Taken { .. } => is_taken = true,
                    other => panic!("{other:?}"),
                }
            }
            assert!(open.len() <= ASKED, "{open:?}");
            let Some((places, last)) = open.pop_front() else {
                break;
            };
            let names = { places.iter() }.filter(|place| place.0 == File::NAMES);
            assert!(names.count() <= NAMES_WANTED && places.len() <= WANTED);
            assert_eq!(last, wanted.len() + places.len() == offered.len());
            let block = |place: &Place| Block {
                place: *place,
                version: Version::default(),
                bytes: b"few"[..].into(),
            };
            let give = Message::Give {
                epoch,
                blocks: places.iter().map(block).collect(),
                last,
            };
            wanted.extend(places);
            server.handle(0, Node::Server(Id(2)), give, &mut out);
        }
        assert!(is_taken);
        assert_eq!(wanted, offered);
    }

    #[test]
    fn what_one_message_brings_fits_into_a_frame() {
        let bytes = bytes::Bytes::from(vec![0; crate::wire::BLOCK_MAX]);
        let block = |number| Block {
            place: (File::NAMES, number),
            version: Version::default(),
            bytes: bytes.clone(),
        };
        let all: Vec<Block> = (0..16).map(block).collect();
        let loads = loads(all.clone());
        let last: Vec<bool> = loads.iter().map(|(_, last)| *last).collect();
        assert_eq!(last, [false, true]);
        for (blocks, last) in &loads {
            let (epoch, blocks, last) = (Epoch(1), blocks.clone(), *last);
            let give = Message::Give {
                epoch,
                blocks,
                last,
            };
            assert!(crate::wire::Parcel::of(&give, 0).is_ok());
        }
        let brought: Vec<Block> = loads.into_iter().flat_map(|(blocks, _)| blocks).collect();
        assert_eq!(brought, all);
    }

    #[test]
    fn each_server_is_offered_what_it_should_have() {
        let mut server = server(300);
        let (out, _) = begin(&mut server);
        for other in (2..=SERVERS).map(Id) {
            let mut again = Outbox::new();
            // As after a new connection.
            server.offer(other, &mut again);
            let first: Outbox = { out.iter() }
                .filter(|(to, _)| *to == Node::Server(other))
                .cloned()
                .collect();
            assert_eq!(first, again, "{other:?}");
            let offered = again.iter().flat_map(|(_, message)| match message {
                Message::Offer { blocks, .. } => &blocks[..],
                _ => &[],
            });
            let places: Vec<Place> = offered.map(|(place, _)| *place).collect();
            let all = (0..300).map(|block| (File(7), block));
            let due: Vec<Place> = all.filter(|place| server.owns(other, *place)).collect();
            assert!(!due.is_empty());
            assert_eq!(places, due, "{other:?}");
        }
    }

    #[test]
    fn a_server_looks_once_where_each_of_its_blocks_belongs() {
        let mut server = server(4_000);
        let took = begin(&mut server).1;
        let began = Instant::now();
        let places: Vec<Place> = server.blocks.versions().map(|held| held.0).collect();
        let all: usize = places
            .iter()
            .map(|place| server.owners_of(*place).len())
            .sum();
        let once = began.elapsed();
        assert_eq!(all, 8_000);
        // Who looks once for each other server takes 47 times as long, and something else may be at work on this host.
        assert!(took < once * 15, "{took:?}, and once is {once:?}");
    }
}
