//! A home in memory. Now and then it fails. What is stored there and has not been synced may go when its host loses power.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::home::Home;
use crate::ids::{File, SIZE_BLOCK, Version};
use crate::message::{Block, Place};

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
    /// What was there before each change since the last sync, in their order.
    undo: Vec<(Place, Option<Kept>)>,
}

impl Held {
    fn set(&mut self, place: Place, block: Option<Kept>) {
        let before = match block {
            Some(block) => self.blocks.insert(place, block),
            None => self.blocks.remove(&place),
        };
        self.undo.push((place, before));
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

    /// Its host loses power: of the changes since the last sync the first ones are there, as many of a thousand as are said.
    pub fn lose_power(&self, stay: u64) {
        let mut held = self.lock();
        let stay = held.undo.len() as u64 * stay / 1000;
        for (place, before) in held.undo.split_off(stay as usize).into_iter().rev() {
            held.set(place, before);
        }
        held.undo.clear();
        held.losses += 1;
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
