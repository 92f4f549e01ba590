//! The log: a ring of lines that holds the batches which may not lie where they belong yet.
//!
//! A *record* is one batch: everything that the operations in it have changed in metadata, what the file
//! system has to say and where the files' new bytes lie alike (the slides' collaboration log). Head,
//! descriptors and lines are covered by one checksum: a record is there whole, or not at all.
//!
//! ```text
//! head        mark, store, number (its first line), lines, blocks, checksum
//! descriptors block and mask, bit for each line that follows    16 bytes each
//! lines       64 bytes each, in the order of the descriptors, first words masked
//! ```
//!
//! No line but a head begins with the mark: a program chooses what is in its attributes, and lines of them would be taken for records.
//! So the first word of each line of a block is combined with a mask that leaves none of them the mark ([`mask_for`]). Which mask it is, the
//! block's descriptor says in the bits that no block's number needs.
//!
//! A record's number is the count of its first line. Reading begins at the tail and ends at the first line that does not
//! hold the next record. Where a *later* record lies behind, the log was damaged and not merely cut off.

mod sums;

use std::ops::Range;
use std::sync::Arc;

use sums::Sums;

use crate::errno::{Errno, Result};
use crate::layout::superblock::{Superblock, TAILS, Tail};
use crate::layout::{self, BLOCK, LOG_START, get32, get64, put32, put64};
use crate::medium::machine::crc32c;
use crate::medium::{For, LINE, Medium};
use crate::pages::{Page, PageMap, TRAILER_LINE};

const MARK: u64 = u64::from_le_bytes(*b"FPMRECRD");
/// Byte offset of the checksum in a head.
const SUM_AT: usize = 40;
/// Numbers of blocks are smaller than 2 to this, and masks' numbers lie above.
const BLOCK_BITS: u32 = 56;

/// The log of an open store.
pub struct Log {
    medium: Arc<dyn Medium>,
    id: u64,
    lines: u64,
    /// Where the log begins, as the medium has it.
    tail: Tail,
    /// Where the next record goes.
    head: Tail,
    /// The last record, whose memory the next one takes.
    record: Vec<u8>,
}

/// Memory for a record that is kept; a larger one is freed with the next.
const KEPT_MAX: usize = 64 << 10;

impl Log {
    /// A log that is empty: everything lies where it belongs.
    pub fn empty(medium: Arc<dyn Medium>, superblock: &Superblock, head: Tail) -> Self {
        Self {
            medium,
            id: superblock.id,
            lines: superblock.geometry.log_lines(),
            tail: head,
            head,
            record: Vec::new(),
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

    /// Makes a batch durable. When this returns, the batch outlives everything. Answers its record, for [`apply`].
    pub fn append(&mut self, batch: &PageMap) -> Result<&[u8]> {
        if self.record.capacity() > KEPT_MAX {
            self.record = Vec::new();
        }
        encode(&mut self.record, self.id, self.head.0, batch);
        let record = &self.record;
        let lines = (record.len() / LINE) as u64;
        let used = self.head.0 - self.tail.0;
        assert!(
            used + lines <= self.lines,
            "a record of {lines} lines, {used} in use"
        );
        // The log could not begin behind it.
        if !Tail(self.head.0 + lines).has_room() {
            return Err(Errno::EIO);
        }
        let first = self.head.0 % self.lines;
        let until_end = ((self.lines - first) as usize * LINE).min(record.len());
        let (before, after) = record.split_at(until_end);
        self.medium.stream(self.address(first), before, For::Log);
        self.medium.stream(self.address(0), after, For::Log);
        self.medium.sync(For::Log)?;
        self.head.0 += lines;
        Ok(record)
    }

    fn address(&self, line: u64) -> u64 {
        LOG_START * BLOCK as u64 + line * LINE as u64
    }

    /// Everything that was appended is durable where it belongs: the log is empty again. The second place is
    /// for the case that the first is damaged one day; nothing waits for it.
    pub fn truncate(&mut self) -> Result<()> {
        write_tail(&*self.medium, self.id, TAILS[0], self.head)?;
        self.medium.sync(For::Tail)?;
        write_tail(&*self.medium, self.id, TAILS[1], self.head)?;
        self.tail = self.head;
        Ok(())
    }
}

/// Writes one of the two places that say where the log begins.
pub fn write_tail(medium: &dyn Medium, id: u64, block: u64, tail: Tail) -> Result<()> {
    let at = block * BLOCK as u64;
    medium.write(at, &tail.encode(id).ok_or(Errno::EIO)?);
    medium.flush(at, 8, For::Tail);
    Ok(())
}

/// The mask of a number: all 65 differ, and 0 is that of 0.
const fn mask_of(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The number of a mask with which none of these lines begins as a head does: each of up to 64 lines rules out one mask at most. A descriptor
/// with any of them is no head either, since the mark's highest byte is more.
fn mask_for(lines: &[u8]) -> u64 {
    let marked = |mask: u64| {
        lines
            .chunks_exact(LINE)
            .any(|line| get64(line, 0) ^ mask == MARK)
    };
    (0..=64)
        .find(|&number| !marked(mask_of(number)))
        .unwrap_or(0)
}

/// A descriptor's block, and the mask of its lines.
fn block_and_mask(descriptor: &[u8]) -> (u64, u64) {
    let word = get64(descriptor, 0);
    (word & ((1 << BLOCK_BITS) - 1), mask_of(word >> BLOCK_BITS))
}

/// Masks the first word of each line, or takes the mask off.
fn mask_lines(lines: &mut [u8], mask: u64) {
    if mask != 0 {
        for line in lines.chunks_exact_mut(LINE) {
            put64(line, 0, get64(line, 0) ^ mask);
        }
    }
}

/// Writes the lines of a record to where they belong, and writes them back. This thread waits for them, as far as the CPU has them
/// in its hands: the next commit, which lets go of the record, may be another thread's, whose fence says nothing of them.
pub fn apply(medium: &dyn Medium, record: &[u8]) {
    let blocks = get64(record, 32) as usize;
    let (descriptors, mut rest) = record[LINE..].split_at(blocks.div_ceil(4) * LINE);
    for descriptor in descriptors.chunks_exact(16).take(blocks) {
        let (block, mask) = block_and_mask(descriptor);
        for run in line_runs(get64(descriptor, 8)) {
            let (bytes, others) = rest.split_at(run.len() * LINE);
            let at = block * BLOCK as u64 + (run.start * LINE) as u64;
            if mask == 0 {
                medium.write(at, bytes);
            } else {
                let mut plain = bytes.to_vec();
                mask_lines(&mut plain, mask);
                medium.write(at, &plain);
            }
            medium.flush(at, bytes.len() as u64, For::Home);
            rest = others;
        }
    }
    medium.fence(For::Home);
}

/// The same of pages that go through no log.
pub fn apply_pages(medium: &dyn Medium, id: u64, pages: &PageMap) {
    let mut record = Vec::new();
    encode(&mut record, id, 0, pages);
    apply(medium, &record);
}

/// Lines whose bits are set, consecutive ones together.
fn line_runs(mut lines: u64) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        if lines == 0 {
            return None;
        }
        let first = lines.trailing_zeros();
        let end = first + (lines >> first).trailing_ones();
        // Without the lines of this run; a shift by 64 would be one too far.
        lines &= u64::MAX.checked_shl(end).unwrap_or(0);
        Some(first as usize..end as usize)
    })
}

/// Makes the record of a batch. Blocks get their checksums in it, and no copy besides: what is written to where they belong comes from here too.
fn encode(record: &mut Vec<u8>, id: u64, sequence: u64, batch: &PageMap) {
    let descriptors = batch.len().div_ceil(4) * LINE;
    let counts = batch.values().map(|page| page.lines.count_ones() as usize);
    let length = LINE + descriptors + counts.sum::<usize>() * LINE;
    record.clear();
    record.reserve(length);
    record.resize(LINE + descriptors, 0);
    for (index, (block, page)) in batch.iter().enumerate() {
        let (at, first) = (LINE + index * 16, record.len());
        for run in line_runs(page.lines) {
            record.extend_from_slice(&page.bytes[run.start * LINE..run.end * LINE]);
        }
        if page.lines & TRAILER_LINE != 0 {
            // The checksum is the last line's end.
            let sum = page
                .sum
                .unwrap_or_else(|| layout::checksum(id, &page.bytes));
            #[cfg(test)]
            assert_eq!(sum, layout::checksum(id, &page.bytes), "block {block}");
            let at = record.len() - size_of_val(&sum);
            put32(record, at, sum);
        }
        let number = mask_for(&record[first..]);
        mask_lines(&mut record[first..], mask_of(number));
        put64(record, at, *block | number << BLOCK_BITS);
        put64(record, at + 8, page.lines);
    }
    put64(record, 0, MARK);
    put64(record, 8, id);
    put64(record, 16, sequence);
    put64(record, 24, (length / LINE) as u64);
    put64(record, 32, batch.len() as u64);
    let sum = crc32c(0, record);
    put32(record, SUM_AT, sum);
}

/// The record of a batch.
#[cfg(test)]
pub fn encoded(id: u64, sequence: u64, batch: &PageMap) -> Vec<u8> {
    let mut record = Vec::new();
    encode(&mut record, id, sequence, batch);
    record
}

/// What a log holds that may not lie where it belongs.
pub struct Recovered {
    /// Blocks as the last record left them.
    pub pages: PageMap,
    /// Records that were read.
    pub records: u64,
    /// Where the first of them is.
    pub tail: Tail,
    /// Where the next record goes.
    pub head: Tail,
    /// What is wrong with the log; then nothing of it was taken.
    pub damage: Vec<String>,
}

/// Reads the log of a store that nobody has open.
pub fn recover(medium: &dyn Medium, superblock: &Superblock) -> Recovered {
    let (tail, mut damage) = find_tail(medium, superblock.id);
    let Some(tail) = tail else {
        return Recovered {
            pages: PageMap::default(),
            records: 0,
            tail: Tail(0),
            head: Tail(0),
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
        tail,
        head,
        damage,
    }
}

/// Makes the records that were read durable, before anything of them is written to where it belongs: whoever wrote them may have been
/// killed, or have failed, before they were. They are stored again, since the kernel takes pages for clean that it could not write.
pub fn secure(medium: &dyn Medium, superblock: &Superblock, tail: Tail, head: Tail) -> Result<()> {
    let lines = superblock.geometry.log_lines();
    let mut bytes = vec![0; KEPT_MAX];
    let mut at = tail.0;
    while at < head.0 {
        let first = at % lines;
        let count = (head.0 - at)
            .min(lines - first)
            .min((KEPT_MAX / LINE) as u64);
        let bytes = &mut bytes[..count as usize * LINE];
        let place = LOG_START * BLOCK as u64 + first * LINE as u64;
        medium.read(place, bytes);
        medium.stream(place, bytes, For::Log);
        at += count;
    }
    medium.sync(For::Log)
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
            let (block, mask) = block_and_mask(descriptor);
            let bits = get64(descriptor, 8);
            let count = bits.count_ones() as usize;
            if !self.superblock.geometry.is_logged(block) || lines.len() < count {
                return false;
            }
            let (ours, others) = lines.split_at(count);
            lines = others;
            let medium = self.medium;
            let page = self.pages.entry(block).or_insert_with(|| {
                let mut bytes = Box::new([0; BLOCK]);
                medium.read(block * BLOCK as u64, &mut *bytes);
                Page {
                    bytes,
                    sum: None,
                    lines: 0,
                }
            });
            let changed = (0..64).filter(|line| bits & (1 << line) != 0);
            for (line, new) in changed.zip(ours) {
                let line = &mut page.bytes[line * LINE..(line + 1) * LINE];
                line.copy_from_slice(new);
                mask_lines(line, mask);
            }
            page.lines |= bits;
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
