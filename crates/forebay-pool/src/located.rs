//! What a client knows of blocks that servers lend, and which of its requests can go past them.
//!
//! This stands beside the client's machine, which knows nothing of it: a request to read is done in another way, and its answer is the same. All
//! that goes to servers is looked at here first. What this client writes, discards or gives back is forgotten before that goes, and so is
//! what has been asked about it: the answer tells of a block that is another one by then.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{File, Key, Node, SIZE_BLOCK, Server};
use crate::loans::{Endpoint, Lent};
use crate::message::{Message, Part, Place};
use crate::mistakes::{Mistake, is_made};

/// Blocks that are known. Then all are forgotten: each costs one message to find again.
const PLACES_MAX: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// What becomes of a message that goes to a server.
#[derive(Debug)]
pub(crate) enum Goes {
    /// It is sent.
    Itself,
    /// It is sent, and this behind it.
    With(Message),
    /// It is not sent: its bytes are read past the server. If they cannot be, it is sent then.
    Past(Wanted),
}

/// A request whose bytes can be read past their server.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub server: Server,
    pub endpoint: Endpoint,
    /// Keys, where to begin, and how many bytes.
    pub parts: Vec<(Lent, u64, usize)>,
    /// The request, and its number.
    pub read: Message,
    number: u64,
}

impl Wanted {
    /// What the server would have said.
    pub fn answer(&self, bytes: Vec<u8>) -> Message {
        let found = self.parts.iter().map(|part| Some(part.2 as u32));
        Message::Bytes {
            number: self.number,
            found: found.collect(),
            bytes: bytes.into(),
        }
    }
}

/// Whom somebody has been asked about: which server, by which key, and which blocks are still what they were.
#[derive(Debug)]
struct Asked {
    server: Server,
    key: Key,
    places: Vec<Option<Place>>,
}

/// What a client knows of lent blocks.
#[derive(Debug, Default)]
pub(crate) struct Located {
    /// Where servers lend, and with which keys for their messages: one of another epoch has ended all loans.
    endpoints: BTreeMap<Server, (Key, Endpoint)>,
    places: BTreeMap<Place, (Server, Key, Lent)>,
    /// Blocks that were read once: who reads one again asks where it lies.
    seen: BTreeSet<Place>,
    asked: BTreeMap<u64, Asked>,
    count: u64,
    /// Asks when a block is read for the first time, as tests do.
    asks_at_once: bool,
}

impl Located {
    /// One that asks at once.
    #[cfg(test)]
    pub fn eager() -> Located {
        Located {
            asks_at_once: true,
            ..Located::default()
        }
    }

    /// A message is about to go. `may_pass`: whoever sends it can read past servers.
    pub fn goes(&mut self, to: Node, message: &Message, may_pass: bool) -> Goes {
        match message {
            Message::Read { key, number, parts } => {
                let Node::Server(server) = to else {
                    return Goes::Itself;
                };
                let found = self.endpoints.get(&server).filter(|found| found.0 == *key);
                let Some((_, endpoint)) = found.cloned() else {
                    return Goes::Itself;
                };
                let lent = { parts.iter() }.map(|part| self.lent(server, *key, part));
                if may_pass && let Some(parts) = lent.collect() {
                    let (read, number) = (message.clone(), *number);
                    return Goes::Past(Wanted {
                        server,
                        endpoint,
                        parts,
                        read,
                        number,
                    });
                }
                self.ask((server, *key), parts)
            }
            Message::Write { blocks, .. } => {
                { blocks.iter() }.for_each(|block| self.forget(block.place, block.place.1 + 1));
                Goes::Itself
            }
            Message::Patch { parts, .. } => {
                { parts.iter() }.for_each(|(block, _)| self.forget(block.place, block.place.1 + 1));
                Goes::Itself
            }
            Message::Discard { file, from, .. } => {
                self.forget((*file, *from), u64::MAX);
                Goes::Itself
            }
            Message::Release { parts, .. } => {
                // Who goes on reading knows that nobody writes.
                let parts = parts.iter().filter(|part| !part.2);
                parts.for_each(|(file, range, _)| self.forget((*file, range.start), range.end));
                Goes::Itself
            }
            _ => Goes::Itself,
        }
    }

    /// What is read of a lent block: as much as there is.
    fn lent(&self, server: Server, key: Key, part: &Part) -> Option<(Lent, u64, usize)> {
        let (at, of, lent) = self.places.get(&part.place)?;
        let is_there = *at == server && *of == key;
        let from = u64::from(part.from).min(lent.len());
        let length = u64::from(part.length).min(lent.len() - from);
        is_there.then_some((*lent, from, length as usize))
    }

    /// Asks where those blocks lie that were read before. Blocks of names and sizes are read into memory, and change with each write.
    fn ask(&mut self, (server, key): (Server, Key), parts: &[Part]) -> Goes {
        if self.seen.len().max(self.places.len()) >= PLACES_MAX {
            self.seen.clear();
            self.places.clear();
        }
        if self.asked.len() >= PLACES_MAX {
            // Answers that were lost with a connection.
            self.asked.clear();
        }
        let places = parts.iter().map(|part| part.place);
        let places = places.filter(|place| place.0 != File::NAMES && place.1 != SIZE_BLOCK);
        let places: Vec<Place> = places
            .filter(|place| !self.seen.insert(*place) || self.asks_at_once)
            .collect();
        if places.is_empty() {
            return Goes::Itself;
        }
        self.count += 1;
        let number = self.count;
        let asked = Asked {
            server,
            key,
            places: places.iter().copied().map(Some).collect(),
        };
        self.asked.insert(number, asked);
        Goes::With(Message::Locate {
            key,
            number,
            places,
        })
    }

    /// These blocks are others from now on, or somebody else may change them: from this one on, before `end`.
    fn forget(&mut self, (file, from): Place, end: u64) {
        if is_made(Mistake::LoansOutliveBlocks) {
            return;
        }
        let range = (file, from)..(file, end.max(from));
        let gone: Vec<Place> = { self.places.range(range.clone()) }
            .map(|(place, _)| *place)
            .collect();
        gone.iter().for_each(|place| _ = self.places.remove(place));
        let places = { self.asked.values_mut() }.flat_map(|asked| &mut asked.places);
        for place in places {
            place.take_if(|place| range.contains(place));
        }
    }

    /// It could not be read past its server: what has gone from there is not known, and all that is lent there is asked for again.
    pub fn failed(&mut self, wanted: &Wanted) {
        self.places.retain(|_, (at, ..)| *at != wanted.server);
    }

    /// A server says something. Whether it is of this, and nothing for the machine.
    pub fn came(&mut self, from: Node, message: &Message) -> bool {
        let Node::Server(server) = from else {
            return false;
        };
        match message {
            Message::Lends { key, endpoint } => {
                self.places
                    .retain(|_, (at, of, _)| *at != server || of == key);
                self.endpoints.insert(server, (*key, endpoint.clone()));
            }
            Message::Located { number, lent } => {
                let is_own =
                    |asked: &mut Asked| asked.server == server && asked.places.len() == lent.len();
                let asked = self.asked.get_mut(number).is_some_and(is_own);
                let Some(asked) = { asked.then(|| self.asked.remove(number)) }.flatten() else {
                    return true;
                };
                for (place, lent) in asked.places.into_iter().zip(lent) {
                    if let (Some(place), Some(lent)) = (place, lent) {
                        self.places.insert(place, (server, asked.key, *lent));
                    }
                }
            }
            _ => return false,
        }
        true
    }
}
