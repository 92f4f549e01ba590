//! Names of files: each directory's are one block of the file [`File::NAMES`]. All of these lie on the same servers and are written through, those of
//! one operation in one request: so an operation on names is done for all or not at all, and outlives its client. A home gets block by block, in the
//! request's order: where its host loses power in the middle there is a name too many, and never one too few. What a server that is killed has begun the others end.
//!
//! A block holds records: the directory that a name is in, what the name stands for, and the name. Two directories may
//! share a block, by chance. A record with an empty name says that the directory is there; the root always is.
//!
//! An operation says what it believes that names stand for, and fails with [`Failure::Changed`] where that is not so: the blocks that it needs
//! are known before it begins.

use super::attributes::{Facts, Inode};
use super::operate::Step;
use super::state::{Active, Phase};
use super::transfer::Request;
use super::{Answer, Client, Entry, Failure, Kind, Operation};
use crate::ids::{Epoch, File, SIZE_BLOCK};
use crate::message::Outbox;
use crate::random::mix;
use crate::range::{Range, Right};
use crate::wire::BLOCK_MAX;

#[cfg(test)]
mod tests;

/// Blocks that directories are spread over. Few in tests, so that directories share them.
const BLOCKS: u64 = if cfg!(test) { 3 } else { 1 << 48 };
/// Bytes of a record before its name: the directory, the file, its kind, the name's length.
const HEAD: usize = 8 + 8 + 1 + 2;

/// The block that holds a directory's names.
fn block_of(directory: File) -> u64 {
    mix(directory.0) % BLOCKS
}

/// The directories whose names an operation reads or changes, in the order in which they are written. `made` is the directory that it may make.
///
/// When power goes in the middle those before may be written alone: then a file that is moved has both names, and not none, and no name
/// stands for a directory that is not there.
fn directories(operation: &Operation, made: File) -> Vec<File> {
    let is_directory = |entry: &Entry| entry.kind == Kind::Directory;
    match operation {
        Operation::LookUp { parent, .. } | Operation::List { parent } => vec![*parent],
        Operation::Make { parent, facts, .. } => {
            let made = Some(made).filter(|_| facts.kind == Kind::Directory);
            made.into_iter().chain([*parent]).collect()
        }
        Operation::Unlink { parent, entry, .. } => {
            let gone = Some(entry.file).filter(|_| is_directory(entry));
            [*parent].into_iter().chain(gone).collect()
        }
        Operation::Rename {
            from, to, replaced, ..
        } => {
            let gone = replaced.filter(is_directory).map(|entry| entry.file);
            [to.0, from.0].into_iter().chain(gone).collect()
        }
        _ => Vec::new(),
    }
}

/// Blocks that an operation on names needs, in order.
pub(super) fn needs(operation: &Operation, made: File) -> Vec<(Range, Right)> {
    let right = match operation {
        Operation::Make { .. } | Operation::Unlink { .. } | Operation::Rename { .. } => {
            Right::Exclusive
        }
        _ => Right::Shared,
    };
    let directories = directories(operation, made);
    let mut blocks: Vec<u64> = directories.into_iter().map(block_of).collect();
    blocks.sort_unstable();
    blocks.dedup();
    { blocks.into_iter() }
        .map(|block| (Range::one(block), right))
        .collect()
}

/// A record, with where it begins and ends in its block.
struct Record<'a> {
    directory: File,
    entry: Entry,
    name: &'a [u8],
    begin: usize,
    end: usize,
}

/// Whether a file may have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=255).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// The records of a block that make sense, up to the first that is none. A damaged home or a member that means harm may have put others there:
/// they stand for the names themselves, or lead out of their directory.
fn records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    all_records(bytes).filter(|record| {
        let is_file = record.entry.file != File::NAMES;
        is_file && (record.name.is_empty() || is_name(record.name))
    })
}

fn all_records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(begin..begin + HEAD)?;
        let word = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        let length = usize::from(u16::from_le_bytes([head[17], head[18]]));
        let end = begin + HEAD + length;
        let kind = match head[16] {
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Symlink,
            _ => return None,
        };
        let record = Record {
            directory: File(word(0)?),
            entry: Entry {
                file: File(word(8)?),
                kind,
            },
            name: bytes.get(begin + HEAD..end)?,
            begin,
            end,
        };
        begin = end;
        Some(record)
    })
}

fn add(held: &mut Vec<u8>, directory: File, name: &[u8], entry: Entry) {
    held.extend(directory.0.to_le_bytes());
    held.extend(entry.file.0.to_le_bytes());
    held.push(entry.kind as u8);
    held.extend((name.len() as u16).to_le_bytes());
    held.extend(name);
}

/// What says of a directory that it is there.
fn itself(directory: File) -> Entry {
    Entry {
        file: directory,
        kind: Kind::Directory,
    }
}

impl Operation {
    /// Whether its names can be names.
    pub(super) fn is_named(&self) -> bool {
        match self {
            Operation::LookUp { name, .. }
            | Operation::Make { name, .. }
            | Operation::Unlink { name, .. } => is_name(name),
            Operation::Rename { from, to, .. } => is_name(&from.1) && is_name(&to.1),
            _ => true,
        }
    }
}

impl Client {
    /// The number of the file that an operation makes, should it make one; `None` if all of this client's have been given: no file gets the number of
    /// another one.
    pub(super) fn next_file(&mut self, operation: &Operation) -> Option<File> {
        if matches!(operation, Operation::Make { .. } | Operation::MakeNameless) {
            self.files_made = self.files_made.checked_add(1)?;
        }
        let client = u64::from(self.me.0) + 1;
        Some(File(client << 32 | u64::from(self.files_made)))
    }

    pub(super) fn execute_names(&mut self, active: &Active, out: &mut Outbox) -> Step {
        let needed = needs(&active.operation, active.made);
        let blocks: Vec<u64> = needed.iter().map(|(range, _)| range.start).collect();
        let here: Vec<bool> = { blocks.iter() }
            .map(|block| self.fetch(File::NAMES, *block, out))
            .collect();
        if here.contains(&false) {
            return Step::Wait;
        }
        if blocks.iter().any(|block| self.are_names_lost(*block)) {
            return Step::End(Err(Failure::Lost));
        }
        match &*active.operation {
            Operation::LookUp { .. } | Operation::List { .. } => {
                Step::End(self.look(&active.operation))
            }
            Operation::Make {
                parent,
                name,
                facts,
                bytes,
            } => self.make(*parent, name, (facts, bytes), active.made, out),
            Operation::MakeNameless => {
                self.make_nameless((&Facts::default(), &[]), active.made, out)
            }
            Operation::Unlink {
                parent,
                name,
                entry,
            } => match self.unlink(*parent, name, *entry) {
                Ok(()) => self.write_names(active, Answer::Done),
                Err(failure) => Step::End(Err(failure)),
            },
            Operation::Rename {
                from,
                entry,
                to,
                replaced,
            } => match self.rename((from.0, &from.1), *entry, (to.0, &to.1), *replaced) {
                Ok(()) => self.write_names(active, Answer::Done),
                Err(failure) => Step::End(Err(failure)),
            },
            _ => Step::Wait,
        }
    }

    /// What changes nothing. The block is here.
    pub(super) fn look(&self, operation: &Operation) -> Result<Answer, Failure> {
        let (Operation::LookUp { parent, .. } | Operation::List { parent }) = operation else {
            return Err(Failure::Gone);
        };
        if self.are_names_lost(block_of(*parent)) {
            return Err(Failure::Lost);
        }
        match operation {
            Operation::LookUp { parent, name } => Ok(Answer::Entry(self.entry(*parent, name))),
            Operation::List { parent } if self.is_there(*parent) => {
                let of = records(self.names(*parent));
                let all =
                    of.filter(|record| record.directory == *parent && !record.name.is_empty());
                Ok(Answer::Names(
                    all.map(|record| (record.name.to_vec(), record.entry))
                        .collect(),
                ))
            }
            _ => Err(Failure::Gone),
        }
    }

    fn make(
        &mut self,
        parent: File,
        name: &[u8],
        (facts, bytes): (&Facts, &[u8]),
        made: File,
        out: &mut Outbox,
    ) -> Step {
        if !self.is_there(parent) {
            return Step::End(Err(Failure::Gone));
        }
        if let Some(found) = self.entry(parent, name) {
            return Step::End(Ok(Answer::Made(found, false)));
        }
        if self.names(parent).len() + HEAD + name.len() > BLOCK_MAX {
            return Step::End(Err(Failure::Full));
        }
        if self.is_for_the_full(File::NAMES, block_of(parent)) {
            return Step::End(Err(Failure::NoRoom));
        }
        self.make_nameless((facts, bytes), made, out)
    }

    fn make_nameless(
        &mut self,
        (facts, bytes): (&Facts, &[u8]),
        made: File,
        out: &mut Outbox,
    ) -> Step {
        let size = bytes.len() as u64;
        let count = size.div_ceil(self.config.block_bytes);
        if { (0..count).chain([SIZE_BLOCK]) }.any(|block| self.is_for_the_full(made, block)) {
            return Step::End(Err(Failure::NoRoom));
        }
        let inode = Inode {
            size,
            high: size,
            ..Inode::new(self.view.epoch, *facts)
        };
        // Nobody knows the file yet: its blocks need no grants, and may be written in any order. Each has a request of its own, since they may lie apart.
        let blocks = { bytes.chunks(self.config.block_bytes as usize) }
            .zip(0..)
            .map(|(part, block)| (block, part.to_vec()));
        let all: Vec<(u64, Vec<u8>)> = { blocks }.chain([(SIZE_BLOCK, inode.bytes())]).collect();
        // The answers to the transfers come back to the names.
        let transfers = { all.into_iter() }
            .map(|(block, part)| {
                let parts = vec![((made, block), 0, part.into())];
                self.transfer(Request::Write(parts), out)
            })
            .collect();
        self.enter_phase(File::NAMES, Phase::Create { transfers })
    }

    pub(super) fn name_made(
        &mut self,
        transfers: &[u64],
        active: &Active,
        out: &mut Outbox,
    ) -> Step {
        let is_owed = { transfers.iter() }.any(|transfer| self.is_under_way(*transfer));
        let (parent, name, facts) = match &*active.operation {
            Operation::Make {
                parent,
                name,
                facts,
                ..
            } => (parent, name, facts),
            Operation::MakeNameless if !is_owed => {
                let (file, kind) = (active.made, Kind::File);
                return Step::End(Ok(Answer::Made(Entry { file, kind }, true)));
            }
            _ => return Step::Wait,
        };
        let needed = needs(&active.operation, active.made);
        let blocks: Vec<u64> = needed.iter().map(|(range, _)| range.start).collect();
        let here: Vec<bool> = { blocks.iter() }
            .map(|block| self.fetch(File::NAMES, *block, out))
            .collect();
        if is_owed || here.contains(&false) {
            return Step::Wait;
        }
        let entry = Entry {
            file: active.made,
            kind: facts.kind,
        };
        self.set_name(*parent, name, Some(entry));
        if facts.kind == Kind::Directory {
            self.set_name(entry.file, b"", Some(itself(entry.file)));
        }
        self.write_names(active, Answer::Made(entry, true))
    }

    fn unlink(&mut self, parent: File, name: &[u8], entry: Entry) -> Result<(), Failure> {
        match self.entry(parent, name) {
            None => return Err(Failure::NoSuchName),
            Some(found) if found != entry => return Err(Failure::Changed),
            Some(_) => {}
        }
        self.end_directory(entry)?;
        self.set_name(parent, name, None);
        Ok(())
    }

    fn rename(
        &mut self,
        from: (File, &[u8]),
        entry: Entry,
        to: (File, &[u8]),
        replaced: Option<Entry>,
    ) -> Result<(), Failure> {
        match self.entry(from.0, from.1) {
            None => return Err(Failure::NoSuchName),
            Some(found) if found != entry => return Err(Failure::Changed),
            Some(_) => {}
        }
        if !self.is_there(to.0) {
            return Err(Failure::Gone);
        }
        if self.entry(to.0, to.1) != replaced {
            return Err(Failure::Changed);
        }
        if from == to {
            return Ok(());
        }
        // What goes makes room for what comes.
        let goes = [
            Some(from),
            replaced.map(|_| to),
            { replaced.filter(|entry| entry.kind == Kind::Directory) }
                .map(|entry| (entry.file, &b""[..])),
        ];
        let goes = { goes.into_iter().flatten() }
            .filter(|(directory, _)| block_of(*directory) == block_of(to.0))
            .map(|(_, name)| HEAD + name.len());
        let held = self.names(to.0).len().saturating_sub(goes.sum());
        if held + HEAD + to.1.len() > BLOCK_MAX {
            return Err(Failure::Full);
        }
        if let Some(replaced) = replaced {
            self.end_directory(replaced)?;
        }
        self.set_name(from.0, from.1, None);
        self.set_name(to.0, to.1, Some(entry));
        Ok(())
    }

    /// A directory that is to go must be empty, and takes no names any more.
    fn end_directory(&mut self, entry: Entry) -> Result<(), Failure> {
        if entry.kind != Kind::Directory {
            return Ok(());
        }
        let is_name = |record: Record| record.directory == entry.file && !record.name.is_empty();
        if records(self.names(entry.file)).any(is_name) {
            return Err(Failure::NotEmpty);
        }
        self.set_name(entry.file, b"", None);
        Ok(())
    }

    /// The block of a directory's names, which is here.
    fn names(&self, directory: File) -> &[u8] {
        let state = self.files.get(&File::NAMES);
        let cached = state.and_then(|state| state.cache.get(&block_of(directory)));
        { cached }
            .and_then(|cached| cached.bytes.as_deref())
            .unwrap_or_default()
    }

    /// Whether a block of names, which was asked for, was on servers that died.
    fn are_names_lost(&self, block: u64) -> bool {
        let state = self.files.get(&File::NAMES);
        let cached = state.and_then(|state| state.cache.get(&block));
        cached.is_none_or(|cached| cached.bytes.is_none())
            && self.is_lost(File::NAMES, block, Epoch(0))
    }

    fn entry(&self, directory: File, name: &[u8]) -> Option<Entry> {
        let mut all = records(self.names(directory));
        let found = all.find(|record| record.directory == directory && record.name == name)?;
        Some(found.entry)
    }

    fn is_there(&self, directory: File) -> bool {
        directory == File::ROOT || self.entry(directory, b"").is_some()
    }

    fn set_name(&mut self, directory: File, name: &[u8], entry: Option<Entry>) {
        self.modify(File::NAMES, block_of(directory), |held| {
            let old = { records(held) }
                .find(|record| record.directory == directory && record.name == name)
                .map(|record| record.begin..record.end);
            if let Some(old) = old {
                held.drain(old);
            }
            if let Some(entry) = entry {
                add(held, directory, name, entry);
            }
        });
    }

    /// Begins to write what an operation has changed, block by block in the order of its [`directories`].
    fn write_names(&mut self, active: &Active, answer: Answer) -> Step {
        let state = &self.files[&File::NAMES];
        let mut targets: Vec<(u64, u64)> = Vec::new();
        for block in { directories(&active.operation, active.made).into_iter() }.map(block_of) {
            let is_new = targets.iter().all(|(before, _)| *before != block);
            let cached = state.cache.get(&block).filter(|cached| cached.is_dirty());
            if let Some(cached) = cached.filter(|_| is_new) {
                targets.push((block, cached.change));
            }
        }
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
