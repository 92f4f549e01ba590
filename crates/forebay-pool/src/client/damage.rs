//! Blocks that are damaged in the pool's home: a server says so, and whoever needs their bytes is told that they are lost.
//!
//! A block that is known to be damaged is in memory without bytes, until an operation has been told, or writes the whole block, which mends it. So
//! whoever asks afterwards finds what the home has then.

use super::Client;
use super::state::Cached;
use super::transfer::Request;
use crate::ids::{File, Server};
use crate::message::Place;

impl Client {
    /// A server says that these blocks, of what it was asked for, are damaged; says of which file, if that lets anything go on.
    pub(super) fn damaged(
        &mut self,
        server: Server,
        number: u64,
        places: &[Place],
    ) -> Option<File> {
        let own = self.request_of(number)?;
        match self.transfers.get(&own)?.request.clone() {
            Request::Read(all) => {
                self.end_transfer(own);
                for place in &all {
                    let reading = &mut self.state(place.0).reading;
                    if reading.get(&place.1) == Some(&own) {
                        // The others are asked for again, without these.
                        reading.remove(&place.1);
                        self.mark_damaged(*place, places);
                    }
                }
                Some(all.first()?.0)
            }
            Request::Part(parts) => {
                self.end_transfer(own);
                let file = parts.first()?.place.0;
                let mut asides = self.state(file).aside.iter_mut();
                let is_wanted = asides.any(|aside| aside.meets_damage(own));
                is_wanted.then_some(file)
            }
            Request::Patch(parts) => {
                let file = parts.first()?.0.0;
                let mut asides = self.state(file).aside.iter_mut();
                if asides.any(|aside| aside.meets_damage(own)) {
                    for (place, ..) in &parts {
                        self.mark_damaged(*place, places);
                    }
                }
                // Others that have copies may not have answered yet.
                self.done(server, number)
            }
            Request::Write(_) | Request::Discard(..) | Request::Persist(_) => None,
        }
    }

    /// A block is damaged if it is one of `places`.
    fn mark_damaged(&mut self, place: Place, places: &[Place]) {
        let (file, block) = place;
        if !places.contains(&place) || self.state(file).cache.contains_key(&block) {
            return;
        }
        let used = self.count();
        let cached = Cached {
            used,
            is_damaged: true,
            ..Cached::default()
        };
        self.state(file).cache.insert(block, cached);
        self.block_used(used, place);
    }

    /// Whether a block is known to be damaged.
    pub(super) fn is_damaged(&self, file: File, block: u64) -> bool {
        let state = self.files.get(&file);
        let cached = state.and_then(|state| state.cache.get(&block));
        cached.is_some_and(|cached| cached.is_damaged)
    }

    /// An operation of this file has been told of what was lost: who asks for it again asks the servers.
    pub(super) fn forget_damage(&mut self, file: File) {
        let all = self.state(file).cache.iter();
        let damaged = all.filter(|(_, cached)| cached.is_damaged);
        for block in damaged.map(|(block, _)| *block).collect::<Vec<_>>() {
            self.forget(file, block);
        }
    }
}
