//! A home in memory. What is stored there is durable at once, and now and then it fails.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::home::Home;
use crate::ids::{File, SIZE_BLOCK, Version};
use crate::message::{Block, Place};

/// The blocks, and a count of calls.
type Held = (BTreeMap<Place, (Version, Vec<u8>)>, u64);

#[derive(Debug, Default)]
pub struct Memory(Mutex<Held>, AtomicBool);

impl Memory {
    /// From now on all calls fail, or no more of them than usually.
    pub fn fail(&self, fails: bool) {
        self.1.store(fails, Ordering::Relaxed);
    }

    /// All blocks.
    pub fn held(&self) -> BTreeMap<Place, (Version, Vec<u8>)> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.0.clone()
    }

    /// Every so often a call fails, and has done nothing.
    fn call(&self) -> io::Result<MutexGuard<'_, Held>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.1 += 1;
        if held.1.is_multiple_of(97) || self.1.load(Ordering::Relaxed) {
            return Err(io::Error::other("no room"));
        }
        Ok(held)
    }
}

impl Home for Memory {
    fn load(&self, place: Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        Ok(self.call()?.0.get(&place).cloned())
    }

    fn store(&self, block: &Block, _: &dyn Fn() -> bool) -> io::Result<bool> {
        let blocks = &mut self.call()?.0;
        let there = blocks.get(&block.place);
        if there.is_some_and(|(version, _)| *version > block.version) {
            return Ok(false);
        }
        blocks.insert(block.place, (block.version, block.bytes.to_vec()));
        Ok(true)
    }

    fn discard(&self, file: File, from: u64, whole: bool, _: bool) -> io::Result<bool> {
        let end = SIZE_BLOCK + u64::from(whole);
        let goes = |place: &Place| place.0 == file && (from..end).contains(&place.1);
        let mut held = self.call()?;
        let (blocks, calls) = &mut *held;
        let all = blocks.keys().copied().filter(goes);
        // Now and then it does one thing at a time.
        let most = if calls.is_multiple_of(3) {
            1
        } else {
            usize::MAX
        };
        let going: Vec<Place> = all.take(most).collect();
        going.iter().for_each(|place| drop(blocks.remove(place)));
        Ok(going.len() < most)
    }

    fn sync(&self) -> io::Result<()> {
        self.call().map(drop)
    }
}
