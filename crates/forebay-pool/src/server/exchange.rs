//! How servers move blocks when an epoch begins.
//!
//! Each server offers to each other server of the epoch what that one should have, with versions. The other wants what is newer than its own, gets
//! it in parts, and says that it has taken everything. A server is *ready* when all others have taken its offers, and it has taken
//! theirs; it then drops what it should not have. So an active epoch has each block in the newest version at all of its
//! owners, and nowhere else: no old copy comes back later. No client writes meanwhile, since the epoch before is closed.

use std::collections::BTreeSet;

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
        for server in others {
            self.offer(server, out);
        }
        self.perhaps_ready(now, out);
    }

    /// Offers `server` what it should have, unless it has taken that already.
    pub(super) fn offer(&self, server: Id, out: &mut Outbox) {
        if self.exchange.given.contains(&server) {
            let epoch = self.view.epoch;
            let blocks: Vec<_> = { self.blocks.versions() }
                .filter(|(place, _)| self.owns(server, *place))
                .collect();
            for (blocks, last) in parts(&blocks, OFFERED) {
                let offer = Message::Offer {
                    epoch,
                    blocks,
                    last,
                };
                out.push((Node::Server(server), offer));
            }
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
            let others: Vec<Place> = { self.blocks.versions() }
                .map(|(place, _)| place)
                .filter(|place| !self.owns(self.me, *place))
                .collect();
            others
                .into_iter()
                .for_each(|place| self.blocks.forget(place));
            self.tell(now, out);
        }
    }
}
