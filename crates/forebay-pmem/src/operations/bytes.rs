//! Bytes of a file: reading them, and writing them to blocks that nothing committed has.
//!
//! A page that is committed is never written over: it gets a new block, with what stays of the old one, and
//! the old one is freed in the same operation. A page of the running batch is written in place, unless a view shows it, and so is
//! one that counts as zeros (allocated, never written). Bytes between the end of a file and the end of its last
//! page are zeros, always.

use crate::errno::Result;
use crate::layout::BLOCK;
use crate::layout::inode::Inode;
use crate::map::{self, UNWRITTEN, block_of};
use crate::space::Run;
use crate::state::{Room, Source, State};

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

/// Memory for lists of a write's pages, which the next one takes.
#[derive(Default)]
pub struct Scratch {
    pointers: Vec<u64>,
    bases: Vec<Base>,
}

/// Writes what the caller of the operation has given, from its byte `from` on, or zeros where that is `None`; `inode` is changed (not
/// its size and times), and for the caller to store.
pub fn write(
    state: &mut State,
    inode: &mut Inode,
    offset: u64,
    length: usize,
    from: Option<usize>,
) -> Result<()> {
    let mut scratch = std::mem::take(&mut state.scratch);
    let Scratch { pointers, bases } = &mut scratch;
    let (first, count) = pages_of(offset, length);
    pointers_of(state, inode, first, count, pointers)?;
    place(state, inode, first, pointers, bases)?;
    map::set(state, inode, first, pointers)?;
    free_all(state, bases.iter().filter_map(|base| base.replaced()))?;
    let mut at = (offset % BLOCK as u64) as usize;
    let mut done = 0;
    for (block, base) in pointers.drain(..).zip(bases.drain(..)) {
        let part = (BLOCK - at).min(length - done);
        let source = from.map_or(Source::Zeros, |from| Source::Given(from + done));
        store_around(state, block, base, 0..at);
        state.store_data(block, at, part, source);
        store_around(state, block, base, at + part..BLOCK);
        done += part;
        at = 0;
    }
    state.scratch = scratch;
    Ok(())
}

/// Gives pages the blocks of a window, from `block` on, which have the bytes already; around these goes what the pages had.
pub fn attach(
    state: &mut State,
    inode: &mut Inode,
    offset: u64,
    length: usize,
    block: u64,
) -> Result<()> {
    let (first, count) = pages_of(offset, length);
    let last = count - 1;
    // What the pages had: runs of blocks, holes, and the pointers of the first and the last page.
    let (mut replaced, mut holes, mut ends) = (Vec::new(), 0, [0; 2]);
    map::runs(
        state,
        inode,
        first..first + count,
        |page, pointer, length| {
            if page == first {
                ends[0] = pointer;
            }
            if pointer != 0 {
                let start = block_of(pointer);
                replaced.push(Run { start, length });
                ends[1] = pointer + length - 1;
            } else {
                holes += length;
                ends[1] = 0;
            }
            true
        },
    )?;
    let run = Run {
        start: block,
        length: count,
    };
    state.adopt(run)?;
    let new: Vec<u64> = (block..block + count).collect();
    map::set(state, inode, first, &new)?;
    inode.blocks += holes;
    replaced
        .into_iter()
        .try_for_each(|run| state.free_data(run))?;
    let base = |pointer: u64| match pointer & UNWRITTEN != 0 || pointer == 0 {
        true => Base::Zeros,
        false => Base::Old(pointer),
    };
    let begin = (offset % BLOCK as u64) as usize;
    let end = (begin + length - 1) % BLOCK + 1;
    store_around(state, block, base(ends[0]), 0..begin);
    store_around(state, block + last, base(ends[1]), end..BLOCK);
    Ok(())
}

/// First page of a range, and how many it touches.
fn pages_of(offset: u64, length: usize) -> (u64, u64) {
    let size = BLOCK as u64;
    let first = offset / size;
    (first, (offset + length as u64).div_ceil(size) - first)
}

impl Base {
    fn replaced(&self) -> Option<u64> {
        match self {
            Base::Old(block) => Some(*block),
            _ => None,
        }
    }
}

/// Puts what a page has beside its new bytes into its block.
fn store_around(state: &mut State, block: u64, base: Base, part: std::ops::Range<usize>) {
    if part.is_empty() {
        return;
    }
    let source = match base {
        Base::Same => return,
        Base::Zeros => Source::Zeros,
        Base::Old(old) => Source::Medium(old * BLOCK as u64 + part.start as u64),
    };
    state.store_data(block, part.start, part.len(), source);
}

/// Makes a part of a page zeros, unless it is already.
pub fn clear(state: &mut State, inode: &mut Inode, offset: u64, length: usize) -> Result<()> {
    let pointer = map::get(state, inode, offset / BLOCK as u64)?;
    if length == 0 || pointer == 0 || pointer & UNWRITTEN != 0 {
        return Ok(());
    }
    write(state, inode, offset, length, None)
}

fn pointers_of(
    state: &State,
    inode: &Inode,
    first: u64,
    count: u64,
    pointers: &mut Vec<u64>,
) -> Result<()> {
    pointers.reserve(count as usize);
    map::runs(state, inode, first..first + count, |_, pointer, length| {
        let step = u64::from(pointer != 0);
        pointers.extend((0..length).map(|index| pointer + index * step));
        true
    })
}

/// Gives each page a block that may be written. `pointers` become the new ones, and `bases` what the pages hold.
fn place(
    state: &mut State,
    inode: &mut Inode,
    first: u64,
    pointers: &mut [u64],
    bases: &mut Vec<Base>,
) -> Result<()> {
    bases.reserve(pointers.len());
    for pointer in pointers.iter_mut() {
        let block = block_of(*pointer);
        bases.push(if *pointer == 0 {
            Base::Zeros
        } else if *pointer & UNWRITTEN != 0 {
            state.freshen(block);
            *pointer = block;
            Base::Zeros
        } else if state.is_writable(block) {
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
    Ok(())
}

/// Frees blocks, consecutive ones by one call.
fn free_all(state: &mut State, blocks: impl Iterator<Item = u64>) -> Result<()> {
    let mut run: Option<Run> = None;
    for block in blocks {
        match &mut run {
            Some(run) if run.start + run.length == block => run.length += 1,
            _ => {
                let next = Run {
                    start: block,
                    length: 1,
                };
                if let Some(run) = run.replace(next) {
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
