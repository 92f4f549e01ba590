//! The log: a ring of lines that holds the batches which may not lie where they belong yet.
//!
//! A *record* is one batch: everything that the operations in it have changed in metadata, what the file
//! system has to say and where the files' new bytes lie alike (the slides' collaboration log). Head,
//! descriptors and lines are covered by one checksum: a record is there whole, or not at all.
//!
//! ```text
//! head        mark, store, number (its first line), lines, blocks, checksum
//! descriptors block, bit for each line that follows             16 bytes each
//! lines       64 bytes each, in the order of the descriptors
//! ```
//!
//! A record's number is the count of its first line. Reading begins at the tail and ends at the first line that does not
//! hold the next record. Where a *later* record lies behind, the log was damaged and not merely cut off.

mod sums;

use std::sync::Arc;

use sums::Sums;

use crate::errno::Result;
use crate::layout::superblock::{Superblock, TAILS, Tail};
use crate::layout::{self, BLOCK, LOG_START, get32, get64, put32, put64};
use crate::medium::machine::crc32c;
use crate::medium::{For, LINE, Medium};
use crate::pages::{Bytes, Page, PageMap};

const MARK: u64 = u64::from_le_bytes(*b"FPMRECRD");
/// Byte offset of the checksum in a head.
const SUM_AT: usize = 40;

/// The log of an open store.
pub struct Log {
    medium: Arc<dyn Medium>,
    id: u64,
    lines: u64,
    /// Where the log begins, as the medium has it.
    tail: Tail,
    /// Where the next record goes.
    head: Tail,
}

impl Log {
    /// A log that is empty: everything lies where it belongs.
    pub fn empty(medium: Arc<dyn Medium>, superblock: &Superblock, head: Tail) -> Self {
        Self {
            medium,
            id: superblock.id,
            lines: superblock.geometry.log_lines(),
            tail: head,
            head,
        }
    }

    /// Most lines of a record.
    pub fn record_lines_max(lines: u64) -> u64 {
        lines / 2
    }

    /// Whether the tail should move before the next record: less than the largest is free.
    pub fn is_half_full(&self) -> bool {
        self.head.0 - self.tail.0 > self.lines / 2
    }

    /// Whether the tail could move at all.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Makes a batch durable. When this returns, the batch outlives everything.
    pub fn append(&mut self, batch: &PageMap) -> Result<()> {
        let record = encode(self.id, self.head.0, batch);
        let lines = (record.len() / LINE) as u64;
        let used = self.head.0 - self.tail.0;
        assert!(
            used + lines <= self.lines,
            "a record of {lines} lines, {used} in use"
        );
        let first = self.head.0 % self.lines;
        let until_end = ((self.lines - first) as usize * LINE).min(record.len());
        let (before, after) = record.split_at(until_end);
        self.medium.stream(self.address(first), before, For::Log);
        self.medium.stream(self.address(0), after, For::Log);
        self.medium.sync(For::Log)?;
        self.head.0 += lines;
        Ok(())
    }

    fn address(&self, line: u64) -> u64 {
        LOG_START * BLOCK as u64 + line * LINE as u64
    }

    /// Everything that was appended is durable where it belongs: the log is empty again. The second place is
    /// for the case that the first is damaged one day; nothing waits for it.
    pub fn truncate(&mut self) -> Result<()> {
        write_tail(&*self.medium, self.id, TAILS[0], self.head);
        self.medium.sync(For::Tail)?;
        write_tail(&*self.medium, self.id, TAILS[1], self.head);
        self.tail = self.head;
        Ok(())
    }
}

/// Writes one of the two places that say where the log begins.
pub fn write_tail(medium: &dyn Medium, id: u64, block: u64, tail: Tail) {
    let at = block * BLOCK as u64;
    medium.write(at, &tail.encode(id));
    medium.flush(at, 8, For::Tail);
}

/// Writes the lines of a batch to where they belong, and writes them back. This thread waits for them, as far as the CPU has them
/// in its hands: the next commit, which lets go of the record, may be another thread's, whose fence says nothing of them.
pub fn apply(medium: &dyn Medium, id: u64, batch: &PageMap) {
    for (block, page) in batch {
        let start = block * BLOCK as u64;
        let bytes = sealed(id, page);
        let mut lines = page.lines;
        while lines != 0 {
            let first = lines.trailing_zeros() as usize;
            let count = (lines >> first).trailing_ones() as usize;
            let part = first * LINE..(first + count) * LINE;
            let at = start + part.start as u64;
            medium.write(at, &bytes[part]);
            medium.flush(at, (count * LINE) as u64, For::Home);
            // Without the lines of this run; a shift by 64 would be one too far.
            lines &= u64::MAX.checked_shl((first + count) as u32).unwrap_or(0);
        }
    }
    medium.fence(For::Home);
}

fn sealed(id: u64, page: &Page) -> Bytes {
    let mut bytes = *page.bytes;
    layout::seal(id, &mut bytes);
    bytes
}

fn encode(id: u64, sequence: u64, batch: &PageMap) -> Vec<u8> {
    let mut descriptors = Vec::with_capacity(batch.len() * 16);
    let mut lines = Vec::new();
    for (block, page) in batch {
        descriptors.extend_from_slice(&block.to_le_bytes());
        descriptors.extend_from_slice(&page.lines.to_le_bytes());
        let bytes = sealed(id, page);
        let (all, _) = bytes.as_chunks::<LINE>();
        let changed = all.iter().enumerate();
        let changed = changed.filter(|(line, _)| page.lines & (1 << line) != 0);
        changed.for_each(|(_, line)| lines.extend_from_slice(line));
    }
    descriptors.resize(descriptors.len().next_multiple_of(LINE), 0);
    let mut record = vec![0; LINE];
    record.extend_from_slice(&descriptors);
    record.extend_from_slice(&lines);
    put64(&mut record, 0, MARK);
    put64(&mut record, 8, id);
    put64(&mut record, 16, sequence);
    let count = record.len() / LINE;
    put64(&mut record, 24, count as u64);
    put64(&mut record, 32, batch.len() as u64);
    let sum = crc32c(0, &record);
    put32(&mut record, SUM_AT, sum);
    record
}

/// What a log holds that may not lie where it belongs.
pub struct Recovered {
    /// Blocks as the last record left them.
    pub pages: PageMap,
    /// Records that were read.
    pub records: u64,
    /// Where the next record goes.
    pub head: Tail,
    /// What is wrong with the log; then nothing of it was taken.
    pub damage: Vec<String>,
}

/// Reads the log of a store that nobody has open.
pub fn recover(medium: &dyn Medium, superblock: &Superblock) -> Recovered {
    let (tail, mut damage) = find_tail(medium, superblock.id);
    let Some(tail) = tail else {
        let head = Tail(0);
        return Recovered {
            pages: PageMap::default(),
            records: 0,
            head,
            damage,
        };
    };
    let mut reader = Reader {
        medium,
        superblock,
        pages: PageMap::default(),
        tail,
        head: tail,
    };
    let mut records = 0;
    while let Some(record) = reader.record(reader.head) {
        if !reader.replay(&record) {
            damage.push(format!(
                "record {} of the log makes no sense",
                reader.head.0
            ));
            break;
        }
        records += 1;
        reader.head.0 += (record.len() / LINE) as u64;
    }
    if let Some(later) = reader.later_record() {
        let first = reader.head.0;
        damage.push(format!(
            "the log is damaged: records {first} to {later} cannot be read"
        ));
    }
    for (block, page) in &reader.pages {
        if !layout::is_sealed(superblock.id, &page.bytes) {
            damage.push(format!(
                "block {block} is damaged below what the log has of it"
            ));
        }
    }
    let Reader {
        mut pages, head, ..
    } = reader;
    if !damage.is_empty() {
        pages.clear();
    }
    Recovered {
        pages,
        records,
        head,
        damage,
    }
}

/// Where the log begins: the later of two.
fn find_tail(medium: &dyn Medium, id: u64) -> (Option<Tail>, Vec<String>) {
    let read = |block: u64| {
        let mut word = [0; 8];
        medium.read(block * BLOCK as u64, &mut word);
        Tail::decode(id, word)
    };
    let tail = TAILS.into_iter().filter_map(read).max();
    let nothing = "both places that say where the log begins are damaged".to_string();
    let damage = if tail.is_none() {
        vec![nothing]
    } else {
        Vec::new()
    };
    (tail, damage)
}

struct Reader<'a> {
    medium: &'a dyn Medium,
    superblock: &'a Superblock,
    pages: PageMap,
    tail: Tail,
    head: Tail,
}

impl Reader<'_> {
    /// The head that lies at a line, with its checksum left out, and the lines of its record, if a record with
    /// that number may begin there.
    fn begins(&self, at: Tail) -> Option<(Vec<u8>, u64, u32)> {
        let lines = self.superblock.geometry.log_lines();
        let mut head = self.lines(at.0, 1);
        if get64(&head, 0) != MARK
            || get64(&head, 8) != self.superblock.id
            || get64(&head, 16) != at.0
        {
            return None;
        }
        let count = get64(&head, 24);
        let blocks = get64(&head, 32);
        if count > Log::record_lines_max(lines) || blocks > count || count < 1 + blocks.div_ceil(4)
        {
            return None;
        }
        let sum = get32(&head, SUM_AT);
        put32(&mut head, SUM_AT, 0);
        Some((head, count, sum))
    }

    /// The record that begins at a line, if one with that number does, and the log has room for it.
    fn record(&self, at: Tail) -> Option<Vec<u8>> {
        let (mut record, count, sum) = self.begins(at)?;
        let used = at.0 - self.tail.0;
        if used + count > self.superblock.geometry.log_lines() {
            return None;
        }
        record.extend(self.lines(at.0 + 1, count - 1));
        (crc32c(0, &record) == sum).then_some(record)
    }

    fn lines(&self, from: u64, count: u64) -> Vec<u8> {
        let lines = self.superblock.geometry.log_lines();
        let first = from % lines;
        let until_end = count.min(lines - first) as usize * LINE;
        let mut bytes = vec![0; count as usize * LINE];
        let (before, after) = bytes.split_at_mut(until_end);
        let start = LOG_START * BLOCK as u64;
        self.medium.read(start + first * LINE as u64, before);
        self.medium.read(start, after);
        bytes
    }

    /// Puts a record's lines over what is there.
    fn replay(&mut self, record: &[u8]) -> bool {
        let blocks = get64(record, 32) as usize;
        let (descriptors, rest) = record[LINE..].split_at(blocks.div_ceil(4) * LINE);
        let (mut lines, _) = rest.as_chunks::<LINE>();
        for descriptor in descriptors.chunks_exact(16).take(blocks) {
            let (block, mask) = (get64(descriptor, 0), get64(descriptor, 8));
            let count = mask.count_ones() as usize;
            if !self.superblock.geometry.is_logged(block) || lines.len() < count {
                return false;
            }
            let (ours, others) = lines.split_at(count);
            lines = others;
            let medium = self.medium;
            let page = self.pages.entry(block).or_insert_with(|| {
                let mut bytes = Box::new([0; BLOCK]);
                medium.read(block * BLOCK as u64, &mut *bytes);
                Page { bytes, lines: 0 }
            });
            let changed = (0..64).filter(|line| mask & (1 << line) != 0);
            for (line, new) in changed.zip(ours) {
                page.bytes[line * LINE..(line + 1) * LINE].copy_from_slice(new);
            }
            page.lines |= mask;
        }
        lines.is_empty()
    }

    /// The number of a whole record that is later than the end of the log: there should be none.
    fn later_record(&self) -> Option<u64> {
        let lines = self.superblock.geometry.log_lines();
        let candidates = (0..lines).filter_map(|line| {
            let number = get64(&self.lines(line, 1), 16);
            let later = number > self.head.0 && number % lines == line;
            let begun = later.then(|| self.begins(Tail(number)));
            let (head, count, sum) = begun.flatten()?;
            Some((number, crc32c(0, &head), count, sum))
        });
        let candidates: Vec<_> = candidates.collect();
        if candidates.is_empty() {
            return None;
        }
        let sums = Sums::of(lines, |line| self.lines(line, 1));
        let whole = candidates
            .into_iter()
            .filter(|(number, begun, count, sum)| {
                sums.go_on(*begun, number % lines + 1, count - 1) == *sum
            });
        whole.map(|(number, ..)| number).max()
    }
}
