//! A home in memory. Now and then it fails. What is stored there and has not been synced may go when its host loses power: the last changes of names, and of
//! blocks that are not durable by themselves any.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::home::Home;
use crate::ids::{File, SIZE_BLOCK, Version};
use crate::message::{Block, Place};
use crate::random::mix2;

/// A block that is there.
type Kept = (Version, Vec<u8>);
type Blocks = BTreeMap<Place, Kept>;

#[derive(Debug, Default)]
struct Held {
    blocks: Blocks,
    calls: u64,
    /// What servers are about to store, by requests.
    together: BTreeMap<(u32, u64), Vec<Block>>,
    /// How often power has gone.
    losses: u64,
    /// What was there before each change since the last sync, in their order; and whether the change is durable as soon as its name is.
    undo: Vec<(Place, Option<Kept>, bool)>,
}

impl Held {
    fn set(&mut self, place: Place, block: Option<Kept>) {
        let is_new = !self.blocks.contains_key(&place);
        let is_durable =
            block.is_none() || place.0 == File::NAMES || place.1 == SIZE_BLOCK && is_new;
        let before = match block {
            Some(block) => self.blocks.insert(place, block),
            None => self.blocks.remove(&place),
        };
        self.undo.push((place, before, is_durable));
    }

    /// A block is durable when what comes next is.
    fn settle(&mut self, place: Place) {
        let there = self.blocks.get(&place).cloned();
        self.undo.push((place, there, true));
    }
}

#[derive(Debug, Default)]
pub struct Memory(Mutex<Held>, AtomicBool);

impl Memory {
    /// From now on all calls fail, or no more of them than usually.
    pub fn fail(&self, fails: bool) {
        self.1.store(fails, Ordering::Relaxed);
    }

    /// All blocks.
    pub fn held(&self) -> Blocks {
        self.lock().blocks.clone()
    }

    /// Its host loses power: of the changes since the last sync the first ones are there, as many of a thousand as are said. Of these some blocks are torn, and
    /// as they were when they were durable.
    pub fn lose_power(&self, stay: u64) {
        let mut held = self.lock();
        let stay = held.undo.len() as u64 * stay / 1000;
        for (place, before, _) in held.undo.split_off(stay as usize).into_iter().rev() {
            held.set(place, before);
        }
        held.undo.truncate(stay as usize);
        let mut older = BTreeMap::new();
        for (place, before, is_durable) in std::mem::take(&mut held.undo) {
            if is_durable {
                older.remove(&place);
            } else {
                older.entry(place).or_insert(before);
            }
        }
        held.losses += 1;
        let losses = held.losses;
        let is_torn = |(file, number): Place| mix2(mix2(losses, file.0), number).is_multiple_of(2);
        older.retain(|place, _| is_torn(*place));
        for (place, before) in older {
            held.set(place, before);
        }
        held.undo.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every so often a call fails, and has done nothing.
    fn call(&self) -> io::Result<MutexGuard<'_, Held>> {
        let mut held = self.lock();
        held.calls += 1;
        if held.calls.is_multiple_of(97) || self.1.load(Ordering::Relaxed) {
            return Err(io::Error::other("no room"));
        }
        Ok(held)
    }
}

impl Home for Memory {
    fn load(&self, place: Place) -> io::Result<Option<Kept>> {
        Ok(self.call()?.blocks.get(&place).cloned())
    }

    fn store(&self, block: &Block, _: &dyn Fn() -> bool) -> io::Result<bool> {
        let mut held = self.call()?;
        let there = held.blocks.get(&block.place);
        if there.is_some_and(|(version, _)| *version > block.version) {
            return Ok(false);
        }
        held.set(block.place, Some((block.version, block.bytes.to_vec())));
        Ok(true)
    }

    fn discard(&self, file: File, from: u64, whole: bool, _: bool) -> io::Result<bool> {
        let end = SIZE_BLOCK + u64::from(whole);
        let goes = |place: &Place| place.0 == file && (from..end).contains(&place.1);
        let mut held = self.call()?;
        if !whole {
            held.settle((file, SIZE_BLOCK));
        }
        // Now and then it does one thing at a time.
        let most = if held.calls.is_multiple_of(3) {
            1
        } else {
            usize::MAX
        };
        let all = held.blocks.keys().copied().filter(goes);
        let going: Vec<Place> = all.take(most).collect();
        going.iter().for_each(|place| held.set(*place, None));
        Ok(going.len() < most)
    }

    fn begin_together(&self, request: (u32, u64), blocks: &[Block]) -> io::Result<()> {
        self.call()?.together.insert(request, blocks.to_vec());
        Ok(())
    }

    fn end_together(&self, request: (u32, u64)) -> io::Result<()> {
        self.call()?.together.remove(&request);
        Ok(())
    }

    fn go_on_together(&self, _: &dyn Fn() -> bool) -> io::Result<Vec<Place>> {
        let mut held = self.call()?;
        let mut places = Vec::new();
        for blocks in std::mem::take(&mut held.together).into_values() {
            let there =
                |held: &Held, block: &Block| held.blocks.get(&block.place).map(|there| there.0);
            if { blocks.iter() }.any(|block| there(&held, block) == Some(block.version)) {
                for block in blocks {
                    places.push(block.place);
                    if there(&held, &block) < Some(block.version) {
                        held.set(block.place, Some((block.version, block.bytes.to_vec())));
                    }
                }
            }
        }
        Ok(places)
    }

    fn boot(&self) -> u64 {
        1 + self.lock().losses
    }

    fn sync(&self) -> io::Result<()> {
        self.call()?.undo.clear();
        Ok(())
    }
}
