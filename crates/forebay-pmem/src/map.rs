//! A file's map: which block holds which page.
//!
//! A radix tree whose root is the inode's own 12 pointers; nodes of 510 pointers are added above as the file
//! grows ([`Inode::height`] levels). A pointer is a block's number, 0 for a hole, and has [`UNWRITTEN`] where
//! the block was allocated and counts as zeros. Consecutive pages are given consecutive blocks where there
//! are any ([`State::take_run`]), so that a file is *flat* as far as can be had: [`runs`] finds the stretches.
//!
//! Directories use the same tree for their table of buckets.

use crate::errno::{Errno, Result};
use crate::layout::inode::{Inode, ROOTS};
use crate::layout::{Kind, POINTERS, get64};
use crate::space::Run;
use crate::state::{HEIGHT_MAX, State};

/// The block counts as zeros.
pub const UNWRITTEN: u64 = 1 << 63;

/// The block that a pointer names.
pub fn block_of(pointer: u64) -> u64 {
    pointer & !UNWRITTEN
}

/// Pages that one pointer stands for, so many levels above the pages.
fn span(level: u32) -> u64 {
    POINTERS.pow(level)
}

/// Pages that a map of this height can have.
pub fn capacity(height: u32) -> u64 {
    ROOTS as u64 * span(height)
}

/// Pointers of pages next to each other, and where they lie.
struct Leaf {
    /// Node of level 1, or 0 for the inode itself.
    block: u64,
    /// Page of its first pointer.
    first: u64,
    /// Pointers that it has.
    length: u64,
}

/// Finds the leaf of a page; `Err(pages)` is a hole that reaches to that page.
fn find(state: &State, inode: &Inode, page: u64) -> Result<std::result::Result<Leaf, u64>> {
    if page >= capacity(inode.height) {
        return Ok(Err(u64::MAX));
    }
    if inode.height == 0 {
        return Ok(Ok(Leaf {
            block: 0,
            first: 0,
            length: ROOTS as u64,
        }));
    }
    let mut level = inode.height;
    let mut pointer = inode.root[(page / span(level)) as usize];
    loop {
        let first = page / span(level) * span(level);
        if pointer == 0 {
            return Ok(Err(first + span(level)));
        }
        if !state.geometry().is_data(pointer) {
            return Err(Errno::EIO);
        }
        if level == 1 {
            return Ok(Ok(Leaf {
                block: pointer,
                first,
                length: POINTERS,
            }));
        }
        let index = (page - first) / span(level - 1);
        pointer = node_pointer(state, pointer, level, index)?;
        level -= 1;
    }
}

fn node_pointer(state: &State, node: u64, level: u32, index: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    let kind = Kind::Node(level as u8);
    state
        .pages
        .read(node, kind, index as usize * 8, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Pointers that are copied at once, without asking for memory.
const SOME: usize = 32;

/// The pointers of up to `count` pages from `page` on, as many as lie in one leaf and fit into `into`, or none for a hole; with the
/// number of pages that they are for.
fn stretch<'a>(
    state: &State,
    inode: &Inode,
    page: u64,
    count: u64,
    into: &'a mut [u64],
) -> Result<(&'a [u64], u64)> {
    let leaf = match find(state, inode, page)? {
        Err(until) => return Ok((&[], count.min(until - page))),
        Ok(leaf) => leaf,
    };
    let index = (page - leaf.first) as usize;
    let count = count.min(leaf.length - index as u64).min(into.len() as u64);
    let pointers = &mut into[..count as usize];
    if leaf.block == 0 {
        pointers.copy_from_slice(&inode.root[index..index + count as usize]);
    } else {
        let mut bytes = [0; SOME * 8];
        for (number, some) in pointers.chunks_mut(SOME).enumerate() {
            let bytes = &mut bytes[..some.len() * 8];
            let at = (index + number * SOME) * 8;
            state.pages.read(leaf.block, Kind::Node(1), at, bytes)?;
            let (words, _) = bytes.as_chunks();
            for (pointer, word) in some.iter_mut().zip(words) {
                *pointer = u64::from_le_bytes(*word);
            }
        }
    }
    let mut blocks = pointers.iter().filter(|pointer| **pointer != 0);
    match blocks.all(|pointer| state.geometry().is_data(block_of(*pointer))) {
        true => Ok((pointers, count)),
        false => Err(Errno::EIO),
    }
}

/// The pointer of one page.
pub fn get(state: &State, inode: &Inode, page: u64) -> Result<u64> {
    let Ok(leaf) = find(state, inode, page)? else {
        return Ok(0);
    };
    let index = page - leaf.first;
    let pointer = match leaf.block {
        0 => inode.root[index as usize],
        block => node_pointer(state, block, 1, index)?,
    };
    match pointer == 0 || state.geometry().is_data(block_of(pointer)) {
        true => Ok(pointer),
        false => Err(Errno::EIO),
    }
}

/// Calls `see` with each stretch of consecutive blocks, of unwritten ones, or of holes, in order: the first
/// page, the first pointer (0 for a hole), and how many pages.
pub fn runs(
    state: &State,
    inode: &Inode,
    pages: std::ops::Range<u64>,
    mut see: impl FnMut(u64, u64, u64) -> bool,
) -> Result<()> {
    let mut page = pages.start;
    let (mut some, mut many) = ([0; SOME], Vec::new());
    let into = match pages.end.saturating_sub(page) <= SOME as u64 {
        true => &mut some[..],
        false => {
            many.resize(POINTERS as usize, 0);
            &mut many[..]
        }
    };
    while page < pages.end {
        let (pointers, count) = stretch(state, inode, page, pages.end - page, into)?;
        if pointers.is_empty() && !see(page, 0, count) {
            return Ok(());
        }
        let mut index = 0;
        while index < pointers.len() {
            let first = pointers[index];
            let same = |step: usize| {
                pointers[index + step] == if first == 0 { 0 } else { first + step as u64 }
            };
            let length = (1..pointers.len() - index).find(|step| !same(*step));
            let length = length.unwrap_or(pointers.len() - index);
            if !see(page + index as u64, first, length as u64) {
                return Ok(());
            }
            index += length;
        }
        page += count;
    }
    Ok(())
}

/// Sets the pointers of consecutive pages; nodes that are missing are made, and counted in `inode.blocks`.
pub fn set(state: &mut State, inode: &mut Inode, page: u64, pointers: &[u64]) -> Result<()> {
    let mut page = page;
    let mut rest = pointers;
    while !rest.is_empty() {
        let leaf = reach(state, inode, page)?;
        let index = (page - leaf.first) as usize;
        let count = rest.len().min(leaf.length as usize - index).min(SOME);
        let (now, later) = rest.split_at(count);
        if leaf.block == 0 {
            inode.root[index..index + count].copy_from_slice(now);
        } else {
            let mut bytes = [0; SOME * 8];
            let bytes = bytes_of(now, &mut bytes);
            let kind = Kind::Node(1);
            state.pages.write(leaf.block, kind, index * 8, bytes)?;
        }
        rest = later;
        page += count as u64;
    }
    Ok(())
}

/// Some pointers as a node has them.
fn bytes_of<'a>(pointers: &[u64], into: &'a mut [u8; SOME * 8]) -> &'a [u8] {
    let bytes = &mut into[..pointers.len() * 8];
    let (places, _) = bytes.as_chunks_mut();
    for (place, pointer) in places.iter_mut().zip(pointers) {
        *place = pointer.to_le_bytes();
    }
    bytes
}

/// The leaf of a page, made where it is missing.
fn reach(state: &mut State, inode: &mut Inode, page: u64) -> Result<Leaf> {
    while page >= capacity(inode.height) {
        raise(state, inode)?;
    }
    if inode.height == 0 {
        return Ok(Leaf {
            block: 0,
            first: 0,
            length: ROOTS as u64,
        });
    }
    let mut level = inode.height;
    let top = (page / span(level)) as usize;
    if inode.root[top] == 0 {
        inode.root[top] = make_node(state, inode, level)?;
    }
    let mut node = inode.root[top];
    loop {
        if !state.geometry().is_data(node) {
            return Err(Errno::EIO);
        }
        let first = page / span(level) * span(level);
        if level == 1 {
            return Ok(Leaf {
                block: node,
                first,
                length: POINTERS,
            });
        }
        let index = (page - first) / span(level - 1);
        let mut below = node_pointer(state, node, level, index)?;
        if below == 0 {
            below = make_node(state, inode, level - 1)?;
            let kind = Kind::Node(level as u8);
            state
                .pages
                .write(node, kind, index as usize * 8, &below.to_le_bytes())?;
        }
        node = below;
        level -= 1;
    }
}

fn make_node(state: &mut State, inode: &mut Inode, level: u32) -> Result<u64> {
    let node = state.take_metadata(Kind::Node(level as u8))?;
    inode.blocks += 1;
    Ok(node)
}

/// Puts a level of nodes between the inode and what it points to.
fn raise(state: &mut State, inode: &mut Inode) -> Result<()> {
    if inode.height == HEIGHT_MAX {
        return Err(Errno::EFBIG);
    }
    let level = inode.height + 1;
    if inode.root.iter().any(|pointer| *pointer != 0) {
        let node = make_node(state, inode, level)?;
        let mut bytes = [0; SOME * 8];
        let bytes = bytes_of(&inode.root, &mut bytes);
        let kind = Kind::Node(level as u8);
        state.pages.write(node, kind, 0, bytes)?;
        inode.root = [0; ROOTS];
        inode.root[0] = node;
    }
    inode.height = level;
    Ok(())
}

/// Frees the blocks of pages in a range, and the nodes that are wholly in it. An empty map is low again.
pub fn free(state: &mut State, inode: &mut Inode, pages: std::ops::Range<u64>) -> Result<()> {
    let height = inode.height;
    let mut freeing = Freeing {
        pages: pages.clone(),
        freed: 0,
        run: None,
    };
    for index in 0..ROOTS {
        let first = index as u64 * span(height);
        if inode.root[index] != 0 && freeing.touches(first, height) {
            inode.root[index] = freeing.below(state, inode.root[index], height, first)?;
        }
    }
    freeing.end_run(state)?;
    inode.blocks = inode.blocks.checked_sub(freeing.freed).ok_or(Errno::EIO)?;
    if inode.root.iter().all(|pointer| *pointer == 0) {
        inode.height = 0;
    }
    Ok(())
}

/// Frees the nodes of a directory's table; the pages that it names are not touched.
pub fn forget(state: &mut State, inode: &mut Inode) -> Result<()> {
    for index in 0..ROOTS {
        let pointer = std::mem::take(&mut inode.root[index]);
        if pointer != 0 && inode.height > 0 {
            forget_node(state, inode, pointer, inode.height)?;
        }
    }
    inode.height = 0;
    Ok(())
}

fn forget_node(state: &mut State, inode: &mut Inode, node: u64, level: u32) -> Result<()> {
    if level > 1 {
        for index in 0..POINTERS {
            let below = node_pointer(state, node, level, index)?;
            if below != 0 {
                forget_node(state, inode, below, level - 1)?;
            }
        }
    }
    inode.blocks = inode.blocks.checked_sub(1).ok_or(Errno::EIO)?;
    state.free_metadata(node)
}

struct Freeing {
    pages: std::ops::Range<u64>,
    /// Blocks so far.
    freed: u64,
    /// Blocks of bytes that follow each other and are not freed yet.
    run: Option<Run>,
}

impl Freeing {
    fn touches(&self, first: u64, level: u32) -> bool {
        first < self.pages.end && first + span(level) > self.pages.start
    }

    fn covers(&self, first: u64, level: u32) -> bool {
        self.pages.start <= first && first + span(level) <= self.pages.end
    }

    /// Frees what a pointer has in the range, and answers what the pointer is now.
    fn below(&mut self, state: &mut State, pointer: u64, level: u32, first: u64) -> Result<u64> {
        if level == 0 {
            self.data(state, block_of(pointer))?;
            return Ok(0);
        }
        if !state.geometry().is_data(pointer) {
            return Err(Errno::EIO);
        }
        let kind = Kind::Node(level as u8);
        let bytes = state.pages.with(pointer, kind, |bytes| Box::new(*bytes))?;
        let whole = self.covers(first, level);
        for index in 0..POINTERS {
            let below = get64(&*bytes, index as usize * 8);
            let start = first + index * span(level - 1);
            if below == 0 || !self.touches(start, level - 1) {
                continue;
            }
            let now = self.below(state, below, level - 1, start)?;
            if !whole && now != below {
                state
                    .pages
                    .write(pointer, kind, index as usize * 8, &now.to_le_bytes())?;
            }
        }
        if !whole {
            return Ok(pointer);
        }
        state.free_metadata(pointer)?;
        self.freed += 1;
        Ok(0)
    }

    fn data(&mut self, state: &mut State, block: u64) -> Result<()> {
        self.freed += 1;
        if let Some(run) = &mut self.run
            && run.start + run.length == block
        {
            run.length += 1;
            return Ok(());
        }
        self.end_run(state)?;
        self.run = Some(Run {
            start: block,
            length: 1,
        });
        Ok(())
    }

    fn end_run(&mut self, state: &mut State) -> Result<()> {
        match self.run.take() {
            Some(run) => state.free_data(run),
            None => Ok(()),
        }
    }
}
