//! Bytes of a file: reading them, and writing them to blocks that nothing committed has.
//!
//! A page that is committed is never written over: it gets a new block, with what stays of the old one, and
//! the old one is freed in the same operation. A page of the running batch is written in place, and so is one
//! that counts as zeros (allocated, never written). Bytes between the end of a file and the end of its last
//! page are zeros, always.

use crate::errno::Result;
use crate::layout::BLOCK;
use crate::layout::inode::Inode;
use crate::map::{self, UNWRITTEN, block_of};
use crate::space::Run;
use crate::state::{Room, State};

/// Copies bytes out; what was never written is zeros. The caller keeps to the file's size.
pub fn read(state: &State, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let end = offset + into.len() as u64;
    let size = BLOCK as u64;
    map::runs(
        state,
        inode,
        offset / size..end.div_ceil(size),
        |page, first, length| {
            let from = (page * size).max(offset);
            let until = ((page + length) * size).min(end);
            let part = &mut into[(from - offset) as usize..(until - offset) as usize];
            if first == 0 || first & UNWRITTEN != 0 {
                part.fill(0);
            } else {
                state.medium.read(first * size + (from - page * size), part);
            }
            true
        },
    )
}

/// What a page holds besides the new bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    /// What its block has.
    Same,
    /// Zeros.
    Zeros,
    /// What another block has.
    Old(u64),
}

/// Writes bytes; `inode` is changed (not its size and times), and for the caller to store.
pub fn write(state: &mut State, inode: &mut Inode, offset: u64, bytes: &[u8]) -> Result<()> {
    let size = BLOCK as u64;
    let first = offset / size;
    let count = (offset + bytes.len() as u64).div_ceil(size) - first;
    let mut pointers = pointers_of(state, inode, first, count)?;
    let bases = place(state, inode, first, &mut pointers)?;
    map::set(state, inode, first, &pointers)?;
    free_old(state, &bases)?;
    let mut page = 0;
    let mut done = 0;
    while done < bytes.len() {
        let at = if page == 0 {
            (offset % size) as usize
        } else {
            0
        };
        let whole = whole_pages(&pointers[page..], &bases[page..], at, bytes.len() - done);
        if whole > 0 {
            let part = &bytes[done..done + whole * BLOCK];
            match bases[page] {
                Base::Same => state.overwrite_data(pointers[page], 0, part),
                _ => state.store_data(pointers[page], 0, part),
            }
            page += whole;
            done += part.len();
            continue;
        }
        let part = &bytes[done..bytes.len().min(done + BLOCK - at)];
        store_part(state, pointers[page], bases[page], at, part);
        page += 1;
        done += part.len();
    }
    Ok(())
}

/// Makes a part of a page zeros, unless it is already.
pub fn clear(state: &mut State, inode: &mut Inode, offset: u64, length: usize) -> Result<()> {
    let pointer = map::get(state, inode, offset / BLOCK as u64)?;
    if length == 0 || pointer == 0 || pointer & UNWRITTEN != 0 {
        return Ok(());
    }
    write(state, inode, offset, &vec![0; length])
}

fn pointers_of(state: &State, inode: &Inode, first: u64, count: u64) -> Result<Vec<u64>> {
    let mut pointers = Vec::with_capacity(count as usize);
    map::runs(state, inode, first..first + count, |_, pointer, length| {
        let step = u64::from(pointer != 0);
        pointers.extend((0..length).map(|index| pointer + index * step));
        true
    })?;
    Ok(pointers)
}

/// Gives each page a block that may be written. `pointers` become the new ones.
fn place(
    state: &mut State,
    inode: &mut Inode,
    first: u64,
    pointers: &mut [u64],
) -> Result<Vec<Base>> {
    let mut bases = Vec::with_capacity(pointers.len());
    for pointer in pointers.iter_mut() {
        let block = block_of(*pointer);
        bases.push(if *pointer == 0 {
            Base::Zeros
        } else if *pointer & UNWRITTEN != 0 {
            state.freshen(block);
            *pointer = block;
            Base::Zeros
        } else if state.is_fresh(block) {
            Base::Same
        } else {
            *pointer = 0;
            Base::Old(block)
        });
    }
    let mut goal = match first {
        0 => None,
        _ => Some(block_of(map::get(state, inode, first - 1)?)).filter(|block| *block != 0),
    };
    let mut index = 0;
    while index < pointers.len() {
        if pointers[index] != 0 {
            goal = Some(pointers[index]);
            index += 1;
            continue;
        }
        let is_new = |index: usize| bases[index] == Base::Zeros;
        let alike = |other: &usize| pointers[*other] == 0 && is_new(*other) == is_new(index);
        let wanted = (index..pointers.len()).take_while(alike).count();
        let room = if is_new(index) {
            Room::New
        } else {
            Room::Replacement
        };
        let run = state.take_run(goal.map(|block| block + 1), wanted as u64, room)?;
        if room == Room::New {
            inode.blocks += run.length;
        }
        for step in 0..run.length {
            pointers[index + step as usize] = run.start + step;
        }
        index += run.length as usize;
        goal = Some(run.start + run.length - 1);
    }
    Ok(bases)
}

fn free_old(state: &mut State, bases: &[Base]) -> Result<()> {
    let mut run: Option<Run> = None;
    for base in bases {
        let Base::Old(block) = *base else { continue };
        match &mut run {
            Some(run) if run.start + run.length == block => run.length += 1,
            _ => {
                if let Some(run) = run.replace(Run {
                    start: block,
                    length: 1,
                }) {
                    state.free_data(run)?;
                }
            }
        }
    }
    match run {
        Some(run) => state.free_data(run),
        None => Ok(()),
    }
}

/// How many of the pages are written whole, in the same way, and lie at consecutive blocks.
fn whole_pages(pointers: &[u64], bases: &[Base], at: usize, bytes: usize) -> usize {
    if at != 0 || bytes < BLOCK {
        return 0;
    }
    let pages = &pointers[..bytes / BLOCK];
    let in_place = |index: usize| bases[index] == Base::Same;
    let follows = |index: &usize| {
        pages[*index] == pages[0] + *index as u64 && in_place(*index) == in_place(0)
    };
    (0..pages.len()).take_while(follows).count()
}

fn store_part(state: &mut State, block: u64, base: Base, at: usize, part: &[u8]) {
    if base == Base::Same {
        state.overwrite_data(block, at, part);
        return;
    }
    let mut page = [0; BLOCK];
    if let Base::Old(old) = base {
        state.medium.read(old * BLOCK as u64, &mut page);
    }
    page[at..at + part.len()].copy_from_slice(part);
    state.store_data(block, 0, &page);
}
