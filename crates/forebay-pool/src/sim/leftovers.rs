//! What servers and the home have of files when all is quiet: nothing of a file that was removed, and nothing beyond what a file's size block says; and what may have been lost.

use std::collections::{BTreeMap, BTreeSet};

use super::World;
use crate::ids::{File, SIZE_BLOCK, Version};
use crate::message::Place;
use crate::placement::{key_of_block, owners};

/// Bytes of a block.
pub const BLOCK: u64 = 32;

impl World {
    /// A file's size block may have been where servers have died, if it was anywhere.
    pub fn note_losses(&mut self, file: File) {
        if self.home.is_some() {
            return;
        }
        let key = key_of_block(file, SIZE_BLOCK);
        let mut losses = self.register().view().losses.iter();
        if losses.any(|loss| {
            let had = owners(&loss.before, key, self.copies);
            had.iter().all(|server| loss.dead.contains(server))
        }) {
            self.checker.may_be_lost(file);
        }
    }

    /// What is there that should not be, if anything is.
    pub fn leftover(&self) -> Option<String> {
        let mut places: BTreeSet<Place> = BTreeSet::new();
        // The newest size block of each file: how far it is believed to reach.
        let mut ends: BTreeMap<File, (Version, u64)> = BTreeMap::new();
        let mut is_there = |place: Place, version: Version, bytes: &[u8]| {
            places.insert(place);
            let known = ends.get(&place.0).is_some_and(|known| known.0 >= version);
            if place.1 == SIZE_BLOCK && !known {
                let word = |at: usize| bytes[at..at + 8].iter().rev();
                let word = |at| word(at).fold(0, |word, byte| word << 8 | u64::from(*byte));
                let end = word(0).max(word(8));
                ends.insert(place.0, (version, end));
            }
        };
        for server in self.servers.values().filter(|server| !server.is_gone()) {
            for block in server.held() {
                is_there(block.place, block.version, &block.bytes);
            }
        }
        for (place, (version, bytes)) in { self.home.iter() }.flat_map(|home| home.held()) {
            is_there(place, version, &bytes);
        }
        let is_left = |(file, block): &Place| {
            let is_beyond = |(_, end): &(Version, u64)| *block >= end.div_ceil(BLOCK);
            *file != File::NAMES
                && (self.checker.is_removed(*file)
                    || *block != SIZE_BLOCK && ends.get(file).is_some_and(is_beyond))
        };
        let left = places.into_iter().find(is_left)?;
        Some(format!("{left:?} is left, of {:?}", ends.get(&left.0)))
    }
}
