//! How servers move blocks when an epoch begins.
//!
//! Each server offers to each other server of the epoch what that one should have, with versions. The other wants what is newer than its own, gets
//! it, and says that it has taken everything. A server is *ready* when all others have taken its offers, and it has taken
//! theirs; it then drops what it should not have. So an active epoch has each block in the newest version at all of its
//! owners, and nowhere else: no old copy comes back later. No client writes meanwhile, since the epoch before is closed.

use std::collections::BTreeSet;

use super::Server;
use crate::ids::{Node, Server as Id, Version};
use crate::message::{Block, Message, Outbox, Place};

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
            let blocks = self
                .blocks
                .iter()
                .filter(|(place, _)| self.owns(server, **place));
            let blocks = blocks
                .map(|(place, (version, _))| (*place, *version))
                .collect();
            out.push((Node::Server(server), Message::Offer { epoch, blocks }));
        }
    }

    pub(super) fn of_server(&mut self, now: u64, peer: Id, message: Message, out: &mut Outbox) {
        let epoch = self.view.epoch;
        match message {
            Message::Offer { blocks, .. } => {
                let places: Vec<Place> = blocks
                    .into_iter()
                    .filter(|(place, version)| self.is_newer(*place, *version))
                    .map(|(place, _)| place)
                    .collect();
                if places.is_empty() {
                    self.took(now, peer, out);
                } else {
                    out.push((Node::Server(peer), Message::Want { epoch, places }));
                }
            }
            Message::Want { places, .. } => {
                let blocks = places.into_iter().filter_map(|place| {
                    let (version, bytes) = self.blocks.get(&place)?;
                    Some(Block {
                        place,
                        version: *version,
                        bytes: bytes.clone(),
                    })
                });
                let blocks = blocks.collect();
                out.push((Node::Server(peer), Message::Give { epoch, blocks }));
            }
            Message::Give { blocks, .. } => {
                for block in blocks {
                    let held = self.blocks.get(&block.place);
                    if held.is_none_or(|(version, _)| *version < block.version) {
                        self.blocks
                            .insert(block.place, (block.version, block.bytes));
                    }
                }
                self.took(now, peer, out);
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
        let held = self.blocks.get(&place);
        held.is_none_or(|(held, _)| *held < version)
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
            let places: Vec<Place> = self.blocks.keys().copied().collect();
            for place in places {
                if !self.owns(self.me, place) {
                    self.blocks.remove(&place);
                }
            }
            self.tell(now, out);
        }
    }
}
