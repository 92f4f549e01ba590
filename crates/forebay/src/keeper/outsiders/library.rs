//! Which of a process's descriptors its preload library knows, read from the process's memory.
//!
//! The library's file has a note that leads to a table with a word for each descriptor (`table/note.rs` there): 0 where the library knows
//! nothing of it. What cannot be read counts as known, as what a process of another user's has.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::sys::notes;

/// The owner of the note, and its kind.
const NAME: &[u8] = b"Forebay\0";
const KIND: u32 = 1;
/// Of an ELF file: its own header, and one for each part of the program.
const ELF_BYTES: usize = 64;
const PART_BYTES: usize = 56;
/// More than there are, and longer than they are.
const PARTS_MAX: u64 = 32;
const NOTES_BYTES_MAX: usize = 4096;

/// The table of a process.
pub struct Known {
    memory: File,
    first: u64,
    len: u64,
}

impl Known {
    /// That of the process whose library begins at an address.
    pub fn of(pid: u32, library: u64) -> Option<Self> {
        let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
        let words = words_at(&memory, library)?;
        let mut table = [0; 16];
        memory.read_exact_at(&mut table, words).ok()?;
        let (first, len) = (number(&table, 0, 8)?, number(&table, 8, 8)?);
        Some(Known { memory, first, len })
    }

    /// Whether the library knows a descriptor. Those beyond its table it announces in another way.
    pub fn has(&self, fd: u32) -> bool {
        let mut word = [0; 8];
        let at = self.first.wrapping_add(u64::from(fd) * 8);
        u64::from(fd) >= self.len
            || self.memory.read_exact_at(&mut word, at).is_err()
            || word != [0; 8]
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let digits = bytes.get(at..at + len)?.iter().rev();
    Some(digits.fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

/// Where the note of a library that is loaded at an address leads to.
fn words_at(memory: &File, library: u64) -> Option<u64> {
    const NOTES: u64 = 4;
    let mut head = [0; ELF_BYTES];
    memory.read_exact_at(&mut head, library).ok()?;
    let (parts, count) = (number(&head, 32, 8)?, number(&head, 56, 2)?);
    for index in 0..count.min(PARTS_MAX) {
        let mut part = [0; PART_BYTES];
        let at = library
            .checked_add(parts)?
            .checked_add(index * PART_BYTES as u64)?;
        memory.read_exact_at(&mut part, at).ok()?;
        if number(&part, 0, 4)? != NOTES {
            continue;
        }
        let at = library.checked_add(number(&part, 16, 8)?)?;
        let mut bytes = vec![0; (number(&part, 40, 8)? as usize).min(NOTES_BYTES_MAX)];
        memory.read_exact_at(&mut bytes, at).ok()?;
        let mut ours = notes::each(&bytes).filter(|note| note.is(NAME, KIND));
        if let Some(note) = ours.next() {
            let from = at + note.at as u64;
            return Some(from.wrapping_add(number(note.bytes, 0, 8)?));
        }
    }
    None
}
