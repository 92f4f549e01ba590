//! What programs have seen, held against one order of events: that of the returns.
//!
//! A client's machine does an operation in the step in which it returns, so the pool must be what a single file would be if each
//! operation happened at its return. Files are seen as cells of 8 bytes, and each write puts a number of its own into its cells.
//! When a client dies, each cell that it wrote and has not synced, and that nobody else has seen since, may have any value that the client gave it since,
//! or the one before; so may those of operations that had not returned. The next read says which. A client that the register has given up may not
//! have any success any more.
//!
//! So it is with a file's size, and another client's operation of the file has seen it. A cell that a write has made the file longer by is never zero, as
//! long as it is there.

mod past;
mod sizes;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::names::Names;
use crate::client::{Answer, Facts, Failure, Mode, Operation};
use crate::ids::{Client, File};
use crate::rope::Rope;
use past::Past;
use sizes::Size;

pub const CELL: u64 = 8;

#[derive(Clone, Debug, Default)]
struct Cell {
    value: u64,
    /// Its writer, if that may still be lost, and in which operation.
    by: Option<(Client, u64)>,
    /// What it may be again if that client dies.
    olds: BTreeSet<u64>,
    /// What it may be besides `value`.
    perhaps: BTreeSet<u64>,
    past: Past,
}

/// The files as they should be.
#[derive(Default)]
pub struct Checker {
    /// As long as they may be at most.
    files: BTreeMap<File, Vec<Cell>>,
    sizes: BTreeMap<File, Size>,
    pub names: Names,
    facts: BTreeMap<File, Facts>,
    removed: BTreeSet<File>,
    /// Files whose size blocks were where servers have died, if they were anywhere.
    lost: BTreeSet<File>,
    over: BTreeSet<Client>,
    /// Counts begins and returns.
    step: u64,
    begun: BTreeMap<u64, u64>,
    /// When power was lost last.
    power_lost: u64,
    /// Whoever does something now has not heard of that yet.
    pub is_unheard: bool,
    /// Nothing is looked at.
    pub is_blind: bool,
    /// What was wrong.
    pub faults: Vec<String>,
    pub ended: u64,
}

impl Checker {
    /// Whether a removal of a file has returned.
    pub fn is_removed(&self, file: File) -> bool {
        self.removed.contains(&file)
    }

    /// In cells: what a file has at least.
    pub fn size(&self, file: File) -> usize {
        self.sizes.get(&file).map_or(0, Size::least)
    }

    /// What a cell has, or has had before the death of its writer.
    pub fn value(&self, file: File, cell: usize) -> u64 {
        let cells = self.files.get(&file);
        cells
            .and_then(|cells| cells.get(cell))
            .map_or(0, |cell| cell.value)
    }

    /// Nobody can say of a file that is not there whether it was removed or lost.
    pub fn may_be_lost(&mut self, file: File) {
        self.lost.insert(file);
    }

    pub fn begun(&mut self, number: u64) {
        self.step += 1;
        self.begun.insert(number, self.step);
    }

    /// The register has given a client up: nothing that it does may succeed now.
    pub fn over(&mut self, client: Client, open: &mut BTreeMap<u64, (Client, Operation)>) {
        if self.over.insert(client) {
            self.dead(client, open);
        }
    }

    /// A client is dead: what it has not synced may be lost, what it was doing may be done.
    pub fn dead(&mut self, client: Client, open: &mut BTreeMap<u64, (Client, Operation)>) {
        self.over.insert(client);
        for cell in self.files.values_mut().flatten() {
            if cell.by.is_some_and(|(by, _)| by == client) {
                let olds = std::mem::take(&mut cell.olds);
                cell.perhaps.extend(olds);
                cell.by = None;
            }
        }
        self.sizes.values_mut().for_each(|size| size.dead(client));
        let theirs: Vec<u64> = open
            .iter()
            .filter(|(_, (by, _))| *by == client)
            .map(|(number, _)| *number)
            .collect();
        for number in theirs {
            if let Some((_, operation)) = open.remove(&number) {
                self.undecided(&operation);
            }
        }
    }

    /// The host of the home loses power.
    pub fn power_lost(&mut self) {
        self.step += 1;
        self.power_lost = self.step;
        for cell in self.files.values_mut().flatten() {
            cell.perhaps.extend(cell.past.values());
        }
    }

    /// Its client has died before it returned.
    fn undecided(&mut self, operation: &Operation) {
        match operation {
            Operation::Write {
                file,
                offset,
                bytes,
                ..
            } => self.perhaps(*file, *offset, bytes),
            other => self.names.perhaps(other),
        }
    }

    /// A write may have been done, and have made the file longer.
    fn perhaps(&mut self, file: File, offset: u64, bytes: &Rope) {
        let cells = self.files.entry(file).or_default();
        let first = (offset / CELL) as usize;
        let numbers = numbers(bytes);
        let size = self.sizes.entry(file).or_default();
        zeros(cells, size, first);
        size.perhaps(first + numbers.len());
        if cells.len() < first {
            cells.resize(first, Cell::default());
        }
        for value in numbers.iter().skip(cells.len() - first) {
            cells.push(Cell {
                value: *value,
                ..Cell::default()
            });
        }
        self.overwrites(file, offset, bytes);
    }

    /// A write may have been done, as far as the file was there.
    fn overwrites(&mut self, file: File, offset: u64, bytes: &Rope) {
        let cells = self.files.entry(file).or_default();
        let there = cells.iter_mut().skip((offset / CELL) as usize);
        for (cell, value) in there.zip(numbers(bytes)) {
            cell.perhaps.insert(value);
        }
    }

    /// Somebody finds that a file's size is one of these.
    fn see(
        &mut self,
        client: Client,
        file: File,
        sizes: RangeInclusive<usize>,
    ) -> Result<(), String> {
        let size = self.sizes.entry(file).or_default();
        size.see(client, sizes)?;
        let most = size.most();
        self.files
            .entry(file)
            .or_default()
            .resize(most, Cell::default());
        Ok(())
    }

    pub fn ended(
        &mut self,
        now: u64,
        client: Client,
        number: u64,
        operation: &Operation,
        result: &Result<Answer, Failure>,
    ) {
        self.step += 1;
        self.ended += 1;
        let fault = match result {
            Ok(_) if self.over.contains(&client) => {
                Some("succeeds after its term is over".to_string())
            }
            Ok(answer) => self.success(client, number, operation, answer).err(),
            Err(Failure::GivenUp) => {
                self.undecided(operation);
                None
            }
            Err(Failure::Lost) => {
                // Something was not there any more. What a write has changed before it found that stays.
                if let Operation::Write {
                    file,
                    offset,
                    bytes,
                    ..
                } = operation
                {
                    self.overwrites(*file, *offset, bytes);
                }
                if let Operation::Sync { file, .. } = operation {
                    let cells = self.files.entry(*file).or_default();
                    cells.iter_mut().for_each(|cell| cell.past.told(client));
                }
                None
            }
            Err(failure) => self.failure(operation, *failure).err(),
        };
        if let Some(fault) = fault.filter(|_| !self.is_blind) {
            let fault = format!(
                "at {now}, {client:?}, operation {number}: {fault}; {operation:?} -> {result:?}"
            );
            self.faults.push(fault);
        }
    }

    fn failure(&mut self, operation: &Operation, failure: Failure) -> Result<(), String> {
        match (operation.file(), failure) {
            (File::NAMES, failure) => self.names.failure(operation, failure),
            (file, Failure::Gone) => same("is gone", self.removed.contains(&file), true),
            _ => Ok(()),
        }
    }

    fn success(
        &mut self,
        client: Client,
        number: u64,
        operation: &Operation,
        answer: &Answer,
    ) -> Result<(), String> {
        let begun = self.begun.get(&number).copied().unwrap_or(0);
        if self.removed.contains(&operation.file()) && !self.may_follow_removal(operation) {
            return Err("the file was removed".to_string());
        }
        match (operation, answer) {
            (
                Operation::Read {
                    file,
                    offset,
                    length,
                    ..
                },
                Answer::Bytes(bytes),
            ) => self.read(client, *file, *offset, *length, bytes),
            (
                Operation::Write {
                    file,
                    offset,
                    bytes,
                    mode,
                },
                Answer::Done,
            ) => {
                self.write(client, *file, *offset, bytes, *mode == Mode::Remote);
                if self.is_unheard || begun < self.power_lost {
                    // It may have been done before that, and have gone.
                    let cells = self.files.entry(*file).or_default().iter_mut();
                    for cell in cells.skip((*offset / CELL) as usize) {
                        cell.perhaps.extend(cell.past.values());
                    }
                }
                Ok(())
            }
            (Operation::Append { file, bytes }, Answer::At(at)) => {
                let at_cell = (*at / CELL) as usize;
                self.see(client, *file, at_cell..=at_cell)?;
                self.write(client, *file, *at, bytes, false);
                Ok(())
            }
            (Operation::Attributes { file }, Answer::Attributes(at, facts)) => {
                let at_cell = (*at / CELL) as usize;
                self.see(client, *file, at_cell..=at_cell)?;
                same("facts", Some(facts), self.facts.get(file))
            }
            (Operation::Change { file, changes }, Answer::Done) => {
                let facts = self.facts.entry(*file).or_default();
                facts.modified = changes.modified.unwrap_or(facts.modified);
                Ok(())
            }
            (Operation::Remove { file }, Answer::Done) => {
                self.removed.insert(*file);
                Ok(())
            }
            (Operation::Truncate { file, size }, Answer::Done) => {
                let cells = self.files.entry(*file).or_default();
                cells.resize((size / CELL) as usize, Cell::default());
                self.sizes.insert(*file, Size::of(cells.len()));
                Ok(())
            }
            (Operation::Sync { file, .. }, Answer::Done) => self.synced(client, *file, begun),
            _ => self.of_names(operation, answer),
        }
    }

    /// Whether an operation of a file may succeed after one that has removed it.
    fn may_follow_removal(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Sync { .. } => true,
            // What is left of a file whose size was lost can be given back, whoever has done that before.
            Operation::Remove { file } => self.lost.contains(file),
            _ => false,
        }
    }

    fn synced(&mut self, client: Client, file: File, begun: u64) -> Result<(), String> {
        for cell in self.files.entry(file).or_default() {
            for older in cell.past.synced(client, begun)? {
                if cell.past.values().all(|value| value != older) {
                    cell.perhaps.remove(&older);
                }
            }
            if cell.by.is_some_and(|(by, at)| by == client && at < begun) {
                cell.by = None;
                cell.olds.clear();
            }
        }
        self.sizes.entry(file).or_default().synced(client, begun);
        Ok(())
    }

    fn of_names(&mut self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        self.names.success(operation, answer)?;
        if let (Operation::Make { facts, .. }, Answer::Made(entry, true)) = (operation, answer) {
            self.facts.insert(entry.file, *facts);
            let old = self.files.insert(entry.file, Vec::new());
            return same("an old file", old.is_some(), false);
        }
        Ok(())
    }

    fn write(&mut self, client: Client, file: File, offset: u64, bytes: &Rope, synced: bool) {
        let cells = self.files.entry(file).or_default();
        let first = (offset / CELL) as usize;
        let numbers = numbers(bytes);
        let end = first + numbers.len();
        let size = self.sizes.entry(file).or_default();
        size.seen(client);
        zeros(cells, size, first);
        let by = (client, self.step);
        size.grow(end, by, synced);
        let before = cells.len();
        if before < end {
            cells.resize(end, Cell::default());
        }
        for (at, value) in (first..).zip(numbers) {
            let cell = &mut cells[at];
            let befores = cell.perhaps.iter().copied().chain([cell.value]);
            cell.past.wrote(befores, value, by);
            if at >= before {
                *cell = Cell {
                    value,
                    by: Some(by).filter(|_| !synced),
                    past: std::mem::take(&mut cell.past),
                    ..Cell::default()
                };
                continue;
            }
            if cell.by.is_none_or(|(by, _)| by != client) {
                cell.olds.clear();
            }
            let before = std::mem::take(&mut cell.perhaps);
            cell.olds.extend(before);
            cell.olds.insert(cell.value);
            cell.by = Some((client, self.step));
            cell.value = value;
            if synced {
                cell.by = None;
                cell.olds.clear();
            }
        }
    }

    fn read(
        &mut self,
        client: Client,
        file: File,
        offset: u64,
        length: u64,
        bytes: &Rope,
    ) -> Result<(), String> {
        let end = ((offset + bytes.len() as u64) / CELL) as usize;
        let is_cut = (bytes.len() as u64) < length;
        let least = if bytes.is_empty() { 0 } else { end };
        let most = if is_cut { end } else { usize::MAX };
        self.see(client, file, least..=most)?;
        let cells = self.files.entry(file).or_default();
        let first = (offset / CELL) as usize;
        for (at, value) in numbers(bytes).into_iter().enumerate() {
            let cell = &mut cells[first + at];
            if cell.value != value && !cell.perhaps.contains(&value) {
                return Err(format!(
                    "cell {} is {value}, should be {} or {:?}",
                    first + at,
                    cell.value,
                    cell.perhaps
                ));
            }
            if self.is_unheard {
                continue;
            }
            cell.value = value;
            cell.perhaps.clear();
            cell.past.seen(value);
            if cell.by.is_some_and(|(by, _)| by != client) {
                cell.by = None;
                cell.olds.clear();
            }
        }
        Ok(())
    }
}

/// Something is written there, or may be: before it there may be zeros where the file may have been shorter.
fn zeros(cells: &mut [Cell], size: &Size, first: usize) {
    for cell in cells.iter_mut().take(first).skip(size.least()) {
        cell.perhaps.insert(0);
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what} {found:?}, should be {expected:?}"))
}

fn numbers(bytes: &Rope) -> Vec<u64> {
    let bytes = bytes.clone().into_vec();
    let cells = bytes.chunks_exact(CELL as usize);
    cells
        .map(|cell| {
            cell.iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File = File(7);

    /// Whether a client that removes a file which was removed may be told that it is done, and who reads it that it is there.
    fn may_be(is_lost: bool) -> [bool; 2] {
        let remove = (Operation::Remove { file: FILE }, Answer::Done);
        let read = Operation::Read {
            file: FILE,
            offset: 0,
            length: CELL,
            mode: Mode::Local,
        };
        [remove.clone(), (read, Answer::Bytes(Rope::default()))].map(|(operation, answer)| {
            let mut checker = Checker::default();
            if is_lost {
                checker.may_be_lost(FILE);
            }
            for (operation, answer) in [remove.clone(), (operation, answer)] {
                checker.ended(0, Client(1), 1, &operation, &Ok(answer));
            }
            checker.faults.is_empty()
        })
    }

    #[test]
    fn what_was_removed_is_removed_again_only_if_it_may_have_been_lost() {
        assert_eq!(may_be(false), [false, false]);
        assert_eq!(may_be(true), [true, false]);
    }
}
