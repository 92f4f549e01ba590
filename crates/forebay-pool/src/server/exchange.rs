//! How servers move blocks when an epoch begins.
//!
//! Each server offers to each other server of the epoch what that one should have, with versions. The other wants what is newer than its own, gets
//! it in parts, and says that it has taken everything. A server is *ready* when all others have taken its offers, and it has taken
//! theirs; it then drops what it should not have. So an active epoch has each block in the newest version at all of its
//! owners, and nowhere else: no old copy comes back later. No client writes meanwhile, since the epoch before is closed.

use std::collections::{BTreeMap, BTreeSet};

use super::Server;
use crate::ids::{Node, Server as Id, Version};
use crate::message::{Message, Outbox, Place};

/// Blocks that one message offers at most, and blocks that one message brings at most. Few in tests, so that these have more than one message.
const OFFERED: usize = if cfg!(test) { 5 } else { 4096 };
const WANTED: usize = if cfg!(test) { 2 } else { 16 };

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
}

impl Server {
    pub(super) fn begin_exchange(&mut self, now: u64, out: &mut Outbox) {
        let all = self.view.servers.iter().chain(&self.view.leaving);
        let others: BTreeSet<Id> = all.filter(|server| **server != self.me).copied().collect();
        self.exchange = Exchange {
            given: others.clone(),
            taken: others.clone(),
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

    /// Offers `server` what it should have, unless it has taken that already.
    pub(super) fn offer(&self, server: Id, out: &mut Outbox) {
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
                let places: Vec<Place> = blocks
                    .into_iter()
                    .filter(|(place, version)| self.is_newer(*place, *version))
                    .map(|(place, _)| place)
                    .collect();
                for (places, ends) in parts(&places, WANTED) {
                    // Messages keep their order: when what was wanted last is here, so is all before it.
                    let last = last && ends;
                    if last || !places.is_empty() {
                        let want = Message::Want {
                            epoch,
                            places,
                            last,
                        };
                        out.push((Node::Server(peer), want));
                    }
                }
            }
            Message::Want { places, last, .. } => {
                // What has gone from memory since it was offered is in the home.
                let blocks = { places.into_iter() }
                    .filter_map(|place| self.blocks.get(place).ok().flatten())
                    .collect();
                let give = Message::Give {
                    epoch,
                    blocks,
                    last,
                };
                out.push((Node::Server(peer), give));
            }
            Message::Give { blocks, last, .. } => {
                for block in blocks {
                    if self.is_newer(block.place, block.version) {
                        self.blocks.take(block);
                    }
                }
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

    /// Whether a version is newer than what is here. What is on its way is not counted: its sender may die.
    fn is_newer(&self, place: Place, version: Version) -> bool {
        let held = self.blocks.version(place);
        held.is_none_or(|held| held < version)
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
            Message::Member { sent: 0, view },
            &mut out,
        );
        (out, began.elapsed())
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
