//! Names of files: blocks of the file [`File::NAMES`], by hash. They are written through, two of a rename in one request.

use super::operate::Step;
use super::state::{Active, Phase, Size};
use super::transfer::Request;
use super::{Answer, Client, Failure, Operation};
use crate::ids::{Epoch, File, SIZE_BLOCK};
use crate::message::Outbox;
use crate::random::mix2;

/// Blocks that names are spread over.
const BLOCKS: u64 = 1 << 16;

/// The block that holds a name.
pub(super) fn block_of(name: &[u8]) -> u64 {
    name.iter()
        .fold(name.len() as u64, |hash, byte| mix2(hash, u64::from(*byte)))
        % BLOCKS
}

type Entry = (Vec<u8>, File);

fn entries(mut bytes: &[u8]) -> Vec<Entry> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(12) {
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let Some((name, rest)) = rest.split_at_checked(word(0) as usize) else {
            break;
        };
        found.push((
            name.to_vec(),
            File(u64::from(word(4)) | u64::from(word(8)) << 32),
        ));
        bytes = rest;
    }
    found
}

fn bytes_of(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, file) in entries {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(file.0.to_le_bytes());
        bytes.extend(name);
    }
    bytes
}

impl Client {
    pub(super) fn execute_names(&mut self, active: &Active, out: &mut Outbox) -> Step {
        let (blocks, wanted) = match &active.operation {
            Operation::Open { name, .. } => (vec![block_of(name)], name),
            Operation::Rename { from, to } => (vec![block_of(from), block_of(to)], from),
            _ => return Step::Wait,
        };
        let here: Vec<bool> = blocks
            .iter()
            .map(|block| self.fetch(File::NAMES, *block, out))
            .collect();
        if here.contains(&false) {
            return Step::Wait;
        }
        let born = Size {
            size: 0,
            high: 0,
            born: Epoch(0),
        };
        let is_hole = |block: &u64| self.files[&File::NAMES].cache[block].bytes.is_none();
        if blocks
            .iter()
            .any(|block| is_hole(block) && self.is_lost(File::NAMES, *block, born))
        {
            return Step::End(Err(Failure::Lost));
        }
        let found = self
            .names_in(blocks[0])
            .into_iter()
            .find(|(name, _)| name == wanted);
        match (&active.operation, found) {
            (Operation::Open { create: true, .. }, None) => self.make_file(out),
            (Operation::Open { .. }, found) => {
                Step::End(Ok(Answer::File(found.map(|(_, file)| file))))
            }
            (Operation::Rename { from, to }, Some((_, file))) => {
                if from != to {
                    self.set_name(from, None);
                    self.set_name(to, Some(file));
                }
                self.write_names(&blocks, Answer::Done)
            }
            _ => Step::End(Err(Failure::NoSuchName)),
        }
    }

    fn make_file(&mut self, out: &mut Outbox) -> Step {
        self.files_made += 1;
        let file = File(u64::from(self.me.0 + 1) << 32 | u64::from(self.files_made));
        let size = Size {
            size: 0,
            high: 0,
            born: self.view.epoch,
        };
        // Nobody knows the file yet: its size needs no grant.
        let parts = vec![((file, SIZE_BLOCK), 0, size.bytes())];
        let transfer = self.transfer(Request::Write(parts), out);
        // The answer to the transfer must come back to the names.
        self.enter_phase(File::NAMES, Phase::Create { file, transfer })
    }

    pub(super) fn name_made(
        &mut self,
        file: File,
        transfer: u64,
        active: &Active,
        out: &mut Outbox,
    ) -> Step {
        let Operation::Open { name, .. } = &active.operation else {
            return Step::Wait;
        };
        if self.is_under_way(transfer) {
            return Step::Wait;
        }
        let block = block_of(name);
        if !self.fetch(File::NAMES, block, out) {
            return Step::Wait;
        }
        self.set_name(name, Some(file));
        self.write_names(&[block], Answer::File(Some(file)))
    }

    fn names_in(&self, block: u64) -> Vec<Entry> {
        let cached = self
            .files
            .get(&File::NAMES)
            .and_then(|state| state.cache.get(&block));
        cached
            .and_then(|cached| cached.bytes.as_deref())
            .map(entries)
            .unwrap_or_default()
    }

    fn set_name(&mut self, name: &[u8], file: Option<File>) {
        let block = block_of(name);
        let mut names = self.names_in(block);
        names.retain(|(other, _)| other != name);
        names.extend(file.map(|file| (name.to_vec(), file)));
        self.modify(File::NAMES, block, |held| *held = bytes_of(&names));
    }

    fn write_names(&mut self, blocks: &[u64], answer: Answer) -> Step {
        let state = &self.files[&File::NAMES];
        let changes = blocks
            .iter()
            .filter_map(|block| Some((*block, state.cache.get(block)?.change)));
        let targets = changes.collect();
        self.enter_phase(
            File::NAMES,
            Phase::Flush {
                targets,
                answer,
                drop: false,
            },
        )
    }
}
