//! Blocks that are loaded from a home and stored there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::block;
use super::turn::{Turn, in_turn};
use super::unsynced::older;
use super::{Directory, of, path_of, perhaps, sync_names};
use crate::home::life_of;
use crate::ids::{Epoch, File, SIZE_BLOCK, Version};
use crate::message::{Block, Place};
use crate::mistakes::{Mistake, is_made};

/// What is where a block comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Nothing,
    Durable,
    /// Nobody has been told that it is durable; or it is torn.
    Unsynced,
    Unknown,
}

impl Directory {
    /// As [`Home::load`](crate::home::Home::load).
    pub(super) fn load_block(&self, place: Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        let name = path_of(place);
        loop {
            let Some(mut found) = block::find(&self.root, &name)? else {
                return self.perhaps(Err(io::ErrorKind::NotFound.into()));
            };
            let is_ours = self.unsynced.has(place);
            if let Some(read) = found.read(place)? {
                if self.believes() && !found.is_durable && !is_ours {
                    found.settle()?;
                }
                return Ok(Some(read));
            }
            if found.is_durable || is_ours {
                return Err(self.damaged(place));
            }
            // A power cut has torn it.
            if let Some(mut older) = block::find(&self.root, &older(&name))? {
                let read = older.read(place)?;
                return read.map(Some).ok_or_else(|| self.damaged(place));
            }
            let now = block::find(&self.root, &name)?;
            if now.is_none_or(|now| now.node == found.node) {
                return Ok(None);
            }
        }
    }

    /// As [`Home::store`](crate::home::Home::store).
    pub(super) fn store_block(&self, block: &Block, may: &dyn Fn() -> bool) -> io::Result<bool> {
        let place = block.place;
        let directory = of(place.0);
        let head = block::head(block);
        let parts = [head.as_flattened(), &block.bytes];
        let is_there = in_turn((self.root.as_fd(), &directory, &self.draft), |turn| {
            // Names come in their order, and that there is a file to one.
            let synced = !self.believes()
                || place.0 == File::NAMES
                || !self.settle(place, Some(block.version))? && place.1 == SIZE_BLOCK;
            turn.write(&self.draft, &parts, synced)?;
            turn.take()?;
            // Whoever stands still from here on loses its turn to others before they change anything.
            if !may() {
                return Err(io::Error::other("this server may not write any more"));
            }
            self.bring(turn, block, synced)
        })?;
        if self.syncs_each {
            // Not later, by whoever is told to: this server may be dead or have left by then.
            self.synced(sync_names(&self.root, &directory))?;
        }
        Ok(is_there)
    }

    /// How new a block is that is there.
    pub(super) fn version_of(&self, place: Place) -> io::Result<Option<Version>> {
        Ok(self.there(self.root.as_fd(), &path_of(place), place)?.0)
    }

    /// How new a block is that is there, and what it is.
    fn there(
        &self,
        at: BorrowedFd<'_>,
        name: &str,
        place: Place,
    ) -> io::Result<(Option<Version>, There)> {
        let Some(mut found) = block::find(at, name)? else {
            return Ok((None, There::Nothing));
        };
        if found.is_durable {
            return Ok((found.version()?, There::Durable));
        }
        if self.unsynced.has(place) {
            return Ok((found.version()?, There::Unsynced));
        }
        if let Some((version, _)) = found.read(place)? {
            return Ok((Some(version), There::Unknown));
        }
        let older = block::find(at, &older(name))?;
        let version = older.map(|mut older| older.version()).transpose()?;
        Ok((version.flatten(), There::Unsynced))
    }

    /// Makes durable what somebody may have been told that it is; by whoever replaces it. Says whether anything is there.
    pub(super) fn settle(&self, place: Place, version: Option<Version>) -> io::Result<bool> {
        let Some(mut found) = block::find(&self.root, &path_of(place))? else {
            return Ok(false);
        };
        if !found.is_durable
            && (version.is_none() || !self.unsynced.has(place))
            && let Some((there, _)) = found.read(place)?
            && version.is_none_or(|version| there < version)
        {
            found.settle()?;
            self.unsynced.forget(place);
        }
        Ok(true)
    }

    /// Whether syncs make durable what has not been synced by itself.
    pub(super) fn believes(&self) -> bool {
        self.keeps_order && self.failed.get().is_none()
    }

    /// A draft comes to its place, unless a newer block is there. By whoever has the turn. Says whether it is there.
    fn bring(&self, turn: &Turn, block: &Block, synced: bool) -> io::Result<bool> {
        let name = format!("{:x}", block.place.1);
        let (version, there) = self.there(turn.blocks(), &name, block.place)?;
        if let Some(version) = version.filter(|there| *there >= block.version) {
            let life = |version: Version| life_of(Epoch(version.epoch));
            if life(version) > life(block.version) {
                let path = self.path.join(path_of(block.place));
                let why = format!("{} is of a later life of the pool", path.display());
                return Err(io::Error::other(why));
            }
            return Ok(version == block.version);
        }
        let keeps = there == There::Durable && !is_made(Mistake::KeepsNothingOlder);
        let draft = older(&self.draft);
        match there {
            _ if synced => {}
            // It has come since this server looked.
            There::Unknown => return Err(io::ErrorKind::NotFound.into()),
            There::Durable if keeps => turn.keep(&name, &draft, &older(&name))?,
            // What was kept for another block, which has gone, is nothing to this one.
            There::Nothing => drop(perhaps(turn.remove(&older(&name), &draft))?),
            There::Durable | There::Unsynced => {}
        }
        turn.bring(&self.draft, &name)?;
        if synced {
            self.unsynced.forget(block.place);
        } else {
            self.unsynced.stored(block.place, block.version, keeps);
        }
        Ok(true)
    }

    fn damaged(&self, place: Place) -> io::Error {
        let path = self.path.join(path_of(place));
        let why = format!("{} is damaged: it is no block", path.display());
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}
