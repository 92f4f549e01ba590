//! The blocks of a server: in memory, and in the pool's home if it has one.
//!
//! With a home, memory is a cache of it: a block is in the home before it is in memory, and goes from memory when there are
//! too many, those first that were used longest ago. Without a home nothing goes from memory: it may be full, and still takes what comes.
//!
//! A call that the home fails has done nothing, and is made again later.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::home::Home;
use crate::ids::{SIZE_BLOCK, Version};
use crate::message::{Block, Part, Place};
use crate::mistakes::{Mistake, is_any_made, is_made};

/// Beside its bytes each block takes about so much: its place in the tree, and what the allocator adds. None in tests, which count bytes.
const BESIDE: u64 = if cfg!(test) { 0 } else { 256 };

#[derive(Clone, Debug)]
struct Held {
    version: Version,
    bytes: Bytes,
    used: u64,
}

/// Blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    all: BTreeMap<Place, Held>,
    /// Which was used when; with a home only.
    order: BTreeMap<u64, Place>,
    uses: u64,
    bytes: u64,
    /// With a home so many bytes stay in memory. Without one it is full when it has so many.
    limit: u64,
    /// How often a block came that was older than what was in memory.
    passed_over: u64,
    home: Option<Arc<dyn Home>>,
    /// Nothing is written to the home from then on.
    pub until: u64,
    pub clock: Clock,
}

/// The time as it goes on while the server works, if somebody tells it.
#[derive(Clone, Default)]
pub(super) struct Clock(pub Option<Arc<dyn Fn() -> u64 + Send + Sync>>);

impl Clock {
    pub fn now(&self) -> u64 {
        self.0.as_ref().map_or(0, |clock| clock())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Clock")
    }
}

impl Blocks {
    /// Memory of `limit` bytes, and no home.
    pub fn within(limit: u64) -> Blocks {
        Blocks {
            limit,
            ..Blocks::default()
        }
    }

    /// Without a home: see [`Blocks::within`].
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether there is no room for new blocks. With a home there always is. Memory that was full has room when 1/64 of it is free: at its limit it would
    /// be full and not full with each block.
    pub fn is_full(&self, was_full: bool) -> bool {
        let free = if was_full { self.limit / 64 } else { 0 };
        let used = self.bytes + self.all.len() as u64 * BESIDE;
        self.home.is_none() && used >= self.limit - free
    }

    /// Memory of `limit` bytes over a home.
    pub fn over(home: Arc<dyn Home>, limit: u64) -> Blocks {
        Blocks {
            home: Some(home),
            limit,
            ..Blocks::default()
        }
    }

    pub fn home(&self) -> Option<&Arc<dyn Home>> {
        self.home.as_ref()
    }

    /// Blocks in memory.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A block, from the home if it is not in memory.
    pub fn get(&mut self, place: Place) -> io::Result<Option<Block>> {
        if !self.all.contains_key(&place)
            && let Some(home) = &self.home
            && let Some((version, bytes)) = home.load(place)?
        {
            self.hold(Block {
                place,
                version,
                bytes: bytes.into(),
            });
        }
        self.touch(place);
        let found = self.all.get(&place).map(|held| Block {
            place,
            version: held.version,
            bytes: held.bytes.clone(),
        });
        self.evict();
        Ok(found)
    }

    /// Bytes of a block, as many as there are; nothing if it is not there.
    pub fn part(&mut self, part: Part) -> io::Result<Option<Bytes>> {
        let block = self.get(part.place)?;
        Ok(block.map(|Block { bytes, .. }| {
            let from = bytes.len().min(part.from as usize);
            let end = from.saturating_add(part.length as usize);
            bytes.slice(from..end.min(bytes.len()))
        }))
    }

    /// Takes bytes for a part of a block from a client, from this byte on. What is not there is zero.
    pub fn patch(&mut self, what: &Block, at: usize) -> io::Result<()> {
        let place = what.place;
        let old = self.get(place)?;
        if self.passes_over(place, what.version) {
            return Ok(());
        }
        let old = old.map(|block| block.bytes).unwrap_or_default();
        if at == 0 && old.len() <= what.bytes.len() {
            return self.put(what.clone());
        }
        if self.home.is_none() {
            // Nobody else has the bytes then, and they are changed where they lie.
            self.forget(place);
        }
        let mut new = BytesMut::from(old);
        let end = at + what.bytes.len();
        if new.len() < end {
            new.resize(end, 0);
        }
        new[at..end].copy_from_slice(&what.bytes);
        self.put(Block {
            bytes: new.freeze(),
            ..*what
        })
    }

    /// The version of a block in memory.
    pub fn version(&self, place: Place) -> Option<Version> {
        Some(self.all.get(&place)?.version)
    }

    /// Whether a version is newer than what is in memory. What is on its way is not counted: its sender may die.
    pub fn lacks(&self, place: Place, version: Version) -> bool {
        self.version(place).is_none_or(|held| held < version)
    }

    /// What is in memory, in order.
    pub fn versions(&self) -> impl Iterator<Item = (Place, Version)> + '_ {
        self.all.iter().map(|(place, held)| (*place, held.version))
    }

    /// What is in memory.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = Block> + '_ {
        self.all.iter().map(|(place, held)| Block {
            place: *place,
            version: held.version,
            bytes: held.bytes.clone(),
        })
    }

    /// How often something came that was older than what was in memory. Nobody who keeps to the rules sends that.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Whether a newer version of a block is in memory than what has come: that stays.
    fn passes_over(&mut self, place: Place, version: Version) -> bool {
        // What tests plant would else be hidden by this.
        let is_older = self.version(place).is_some_and(|held| held > version) && !is_any_made();
        self.passed_over += u64::from(is_older);
        is_older
    }

    /// Takes a block from a client, unless a newer one is here or in the home.
    pub fn put(&mut self, block: Block) -> io::Result<()> {
        if self.passes_over(block.place, block.version) {
            return Ok(());
        }
        if let Some(home) = &self.home
            && !is_made(Mistake::SkipsHome)
            && !home.store(&block, &|| self.clock.now() < self.until)?
            && !is_any_made()
        {
            // Who wants it gets it from there.
            self.forget(block.place);
            return Ok(());
        }
        self.take(block);
        Ok(())
    }

    /// Takes a block from another server, which has put it into the home.
    pub fn take(&mut self, block: Block) {
        self.hold(block);
        self.evict();
    }

    fn hold(&mut self, block: Block) {
        self.forget(block.place);
        self.bytes += block.bytes.len() as u64;
        let held = Held {
            version: block.version,
            bytes: block.bytes,
            used: 0,
        };
        self.all.insert(block.place, held);
        self.touch(block.place);
    }

    fn touch(&mut self, place: Place) {
        if self.home.is_some()
            && let Some(held) = self.all.get_mut(&place)
        {
            self.uses += 1;
            self.order.remove(&held.used);
            held.used = self.uses;
            self.order.insert(self.uses, place);
        }
    }

    /// Takes a block out of memory: it is somebody else's now, or another one comes.
    pub fn forget(&mut self, place: Place) {
        if let Some(held) = self.all.remove(&place) {
            self.order.remove(&held.used);
            self.bytes -= held.bytes.len() as u64;
        }
    }

    /// With a home, takes all blocks out of memory.
    pub fn forget_what_the_home_has(&mut self) {
        if self.home.is_some() {
            self.all.clear();
            self.order.clear();
            self.bytes = 0;
        }
    }

    /// A file's blocks from this one on go, its size block too if it is `whole`. Says whether that is done; else it is to be gone on with.
    pub fn discard(&mut self, (file, from): Place, whole: bool, goes_on: bool) -> io::Result<bool> {
        let is_done = match &self.home {
            Some(home) => home.discard(file, from, whole, goes_on)?,
            None => true,
        };
        let end = SIZE_BLOCK + u64::from(whole);
        let places = self.all.range((file, from)..(file, end));
        let places: Vec<Place> = places.map(|(place, _)| *place).collect();
        places.into_iter().for_each(|place| self.forget(place));
        Ok(is_done)
    }

    fn evict(&mut self) {
        while self.home.is_some()
            && self.bytes > self.limit
            && let Some((_, place)) = self.order.pop_first()
        {
            self.forget(place);
        }
    }
}
