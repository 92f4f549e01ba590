//! Files: attributes, sizes, space, and writes with all that belongs to them.

use std::ops::Range;

use super::{bytes, names};
use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::layout::inode::Inode;
use crate::map::{self, UNWRITTEN};
use crate::space::Run;
use crate::state::{Filled, Room, State};
use crate::types::{Attributes, Changes, SIZE_MAX, SetTime, Time, Whence};

const PAGE: u64 = BLOCK as u64;

/// Most pages of one operation that writes or allocates: 2 MiB.
pub const CHUNK_PAGES: u64 = 512;

/// A regular file, for reading or writing its bytes.
fn regular(state: &State, number: u64) -> Result<Inode> {
    let inode = state.inode(number)?;
    match inode.kind() {
        libc::S_IFREG => Ok(inode),
        libc::S_IFDIR => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads as much as there is.
pub fn read(state: &State, number: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
    let inode = regular(state, number)?;
    let there = inode.size.saturating_sub(offset).min(into.len() as u64) as usize;
    bytes::read(state, &inode, offset, &mut into[..there])?;
    Ok(there)
}

/// Writes so many bytes at an offset, of those that the caller has given with the operation, from the first on.
pub fn write(state: &mut State, number: u64, offset: u64, length: usize) -> Result<()> {
    let mut inode = regular(state, number)?;
    let end = end_of(offset, length as u64)?;
    bytes::write(state, &mut inode, offset, length, Some(0))?;
    grow(state, number, inode, end)
}

/// Puts lent blocks, from `block` on, into a file's place: its bytes at `offset` are those.
pub fn attach(
    state: &mut State,
    number: u64,
    offset: u64,
    length: usize,
    block: u64,
    filled: Filled,
) -> Result<()> {
    let mut inode = regular(state, number)?;
    let end = end_of(offset, length as u64)?;
    bytes::attach(state, &mut inode, offset, length, block, filled)?;
    grow(state, number, inode, end)
}

/// Lends blocks for a window on up to `length` bytes of a file, behind those of the page before if that can be had.
pub fn lend(state: &mut State, number: u64, offset: u64, length: usize) -> Result<Run> {
    let inode = regular(state, number)?;
    let end = end_of(offset, length as u64)?;
    let first = offset / PAGE;
    let goal = block_before(state, &inode, first)?.map(|block| block + 1);
    state.lend(goal, end.div_ceil(PAGE) - first)
}

/// Whether pages may get other blocks: none has space that was allocated and not written yet.
pub fn may_move(state: &State, number: u64, offset: u64, length: usize) -> bool {
    let is_written = |inode: Inode| -> Result<bool> {
        let pages = offset / PAGE..end_of(offset, length as u64)?.div_ceil(PAGE);
        let mut all = true;
        map::runs(state, &inode, pages, |_, pointer, _| {
            all &= pointer & UNWRITTEN == 0;
            all
        })?;
        Ok(all)
    };
    regular(state, number).and_then(is_written) == Ok(true)
}

/// The block of the page before this one, if there is one.
fn block_before(state: &State, inode: &Inode, page: u64) -> Result<Option<u64>> {
    let before = match page {
        0 => 0,
        _ => map::get(state, inode, page - 1)?,
    };
    Ok((before != 0).then(|| map::block_of(before)))
}

/// A stretch of a file's pages: blocks that have them, or a hole.
pub type Stretch = (Option<u64>, u64);

/// Where the pages lie that have up to `length` bytes at `offset`, and how many bytes there are.
pub fn stretches(
    state: &State,
    number: u64,
    offset: u64,
    length: usize,
) -> Result<(Vec<Stretch>, usize)> {
    let inode = regular(state, number)?;
    let there = inode.size.saturating_sub(offset).min(length as u64);
    let mut stretches: Vec<Stretch> = Vec::new();
    if there == 0 {
        return Ok((stretches, 0));
    }
    let pages = offset / PAGE..(offset + there).div_ceil(PAGE);
    map::runs(state, &inode, pages, |_, first, length| {
        let is_hole = first == 0 || first & UNWRITTEN != 0;
        let block = (!is_hole).then_some(first);
        // A run ends with its node of the map.
        match stretches.last_mut() {
            Some((before, pages)) if before.map(|start| start + *pages) == block => {
                *pages += length;
            }
            _ => stretches.push((block, length)),
        }
        true
    })?;
    Ok((stretches, there as usize))
}

fn grow(state: &mut State, number: u64, mut inode: Inode, end: u64) -> Result<()> {
    inode.size = inode.size.max(end);
    stamp(state, &mut inode);
    state.put(number, &inode)
}

fn end_of(offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
    if end > SIZE_MAX {
        Err(Errno::EFBIG)
    } else {
        Ok(end)
    }
}

fn stamp(state: &State, inode: &mut Inode) {
    inode.modified = state.now();
    inode.changed = inode.modified;
}

/// Changes attributes, and cuts or extends a file.
pub fn change(state: &mut State, number: u64, changes: &Changes) -> Result<Attributes> {
    let mut inode = state.inode(number)?;
    let now = state.now();
    if let Some(size) = changes.size {
        regular(state, number)?;
        resize(state, &mut inode, size)?;
        inode.modified = now;
    }
    if let Some(mode) = changes.mode {
        inode.mode = inode.kind() | mode & 0o7777;
    }
    inode.uid = changes.uid.unwrap_or(inode.uid);
    inode.gid = changes.gid.unwrap_or(inode.gid);
    inode.accessed = time(changes.accessed, inode.accessed, now)?;
    inode.modified = time(changes.modified, inode.modified, now)?;
    inode.changed = now;
    state.put(number, &inode)?;
    Ok(names::attributes(number, &inode))
}

fn time(set: Option<SetTime>, old: Time, now: Time) -> Result<Time> {
    match set {
        None => Ok(old),
        Some(SetTime::Now) => Ok(now),
        Some(SetTime::To(time)) if time.nanoseconds < 1_000_000_000 => Ok(time),
        Some(SetTime::To(_)) => Err(Errno::EINVAL),
    }
}

fn resize(state: &mut State, inode: &mut Inode, size: u64) -> Result<()> {
    end_of(size, 0)?;
    if size < inode.size {
        let tail = (PAGE - size % PAGE) % PAGE;
        bytes::clear(state, inode, size, tail as usize)?;
    }
    if size <= inode.size {
        // What was allocated beyond the end goes too, also where the end stays, as on other file systems.
        map::free(state, inode, size.div_ceil(PAGE)..u64::MAX)?;
    }
    inode.size = size;
    Ok(())
}

/// What `fallocate` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Makes the range zeros first, without space.
    pub punch: bool,
    /// Allocates what has no space.
    pub allocate: bool,
    /// Leaves the size.
    pub keep_size: bool,
}

impl Allocation {
    /// From the flags of `fallocate`.
    pub fn from_mode(mode: i32) -> Result<Self> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let keep_size = mode & KEEP != 0;
        match mode & !KEEP {
            0 => Ok(Self {
                punch: false,
                allocate: true,
                keep_size,
            }),
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Self {
                punch: true,
                allocate: false,
                keep_size,
            }),
            libc::FALLOC_FL_ZERO_RANGE => Ok(Self {
                punch: true,
                allocate: true,
                keep_size,
            }),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// Whether a range may be allocated, and where it ends.
pub fn check_range(state: &State, number: u64, offset: u64, length: u64) -> Result<u64> {
    regular(state, number)?;
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    end_of(offset, length)
}

/// Makes a range zeros and gives its whole pages back.
pub fn punch(state: &mut State, number: u64, range: Range<u64>) -> Result<()> {
    let mut inode = regular(state, number)?;
    let pages = clear_edges(state, &mut inode, range)?;
    if !pages.is_empty() {
        map::free(state, &mut inode, pages)?;
    }
    stamp(state, &mut inode);
    state.put(number, &inode)
}

/// Makes a range zeros. Its whole pages keep their space: those that have bytes get blocks that count as zeros.
pub fn zero(state: &mut State, number: u64, range: Range<u64>) -> Result<()> {
    let mut inode = regular(state, number)?;
    let pages = clear_edges(state, &mut inode, range)?;
    let mut written = Vec::new();
    map::runs(state, &inode, pages, |page, start, length| {
        if start != 0 && start & UNWRITTEN == 0 {
            written.push((page, Run { start, length }));
        }
        true
    })?;
    for (page, run) in written {
        give_unwritten(state, &mut inode, (page, run.length), Room::Replacement)?;
        state.free_data(run)?;
    }
    stamp(state, &mut inode);
    state.put(number, &inode)
}

/// Makes zeros of those parts of a range that are no whole pages; answers the pages that are.
fn clear_edges(state: &mut State, inode: &mut Inode, range: Range<u64>) -> Result<Range<u64>> {
    let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
    if first > last {
        let length = (range.end - range.start) as usize;
        bytes::clear(state, inode, range.start, length)?;
        return Ok(0..0);
    }
    let (before, behind) = (first * PAGE - range.start, range.end - last * PAGE);
    bytes::clear(state, inode, range.start, before as usize)?;
    bytes::clear(state, inode, last * PAGE, behind as usize)?;
    Ok(first..last)
}

/// Pages of a range that have no block, as first page and count.
fn holes(state: &State, inode: &Inode, pages: Range<u64>) -> Result<Vec<(u64, u64)>> {
    let mut holes = Vec::new();
    map::runs(state, inode, pages, |page, first, length| {
        if first == 0 {
            holes.push((page, length));
        }
        true
    })?;
    Ok(holes)
}

/// Whether there is room for all pages of a range that have no block, nodes of the map left aside.
pub fn check_room(state: &State, number: u64, pages: Range<u64>) -> Result<()> {
    let holes = holes(state, &regular(state, number)?, pages)?;
    let wanted: u64 = holes.iter().map(|(_, length)| length).sum();
    match wanted <= state.available(Room::New) {
        true => Ok(()),
        false => Err(Errno::ENOSPC),
    }
}

/// Gives pages without a block one that counts as zeros.
pub fn allocate(state: &mut State, number: u64, pages: Range<u64>) -> Result<()> {
    let mut inode = regular(state, number)?;
    for hole in holes(state, &inode, pages)? {
        give_unwritten(state, &mut inode, hole, Room::New)?;
        inode.blocks += hole.1;
    }
    inode.changed = state.now();
    state.put(number, &inode)
}

/// Gives so many pages, from the first on, other blocks, which count as zeros.
fn give_unwritten(
    state: &mut State,
    inode: &mut Inode,
    (mut page, mut length): (u64, u64),
    room: Room,
) -> Result<()> {
    while length > 0 {
        let goal = block_before(state, inode, page)?.map(|block| block + 1);
        let run = state.take_run(goal, length, room)?;
        let pointers: Vec<u64> = (run.start..run.start + run.length)
            .map(|block| block | UNWRITTEN)
            .collect();
        map::set(state, inode, page, &pointers)?;
        page += run.length;
        length -= run.length;
    }
    Ok(())
}

/// Raises the size to `end` if it is less.
pub fn extend(state: &mut State, number: u64, end: u64) -> Result<()> {
    let mut inode = regular(state, number)?;
    if inode.size < end {
        inode.size = end;
        stamp(state, &mut inode);
        state.put(number, &inode)?;
    }
    Ok(())
}

/// How far all pages from `offset` on have space, written or not; `end` at most.
pub fn allocated_to(state: &State, number: u64, offset: u64, end: u64) -> Result<u64> {
    let inode = regular(state, number)?;
    // No file is longer, and no map has more pages.
    let end_page = end.min(i64::MAX as u64).div_ceil(PAGE);
    let mut covered = end;
    map::runs(state, &inode, offset / PAGE..end_page, |page, first, _| {
        if first == 0 {
            covered = (page * PAGE).max(offset);
        }
        first != 0
    })?;
    Ok(covered)
}

/// The next written byte, or the next one that is not, as `lseek`.
pub fn seek(state: &State, number: u64, offset: u64, whence: Whence) -> Result<u64> {
    let inode = regular(state, number)?;
    if offset >= inode.size {
        return Err(Errno::ENXIO);
    }
    let mut found = None;
    map::runs(
        state,
        &inode,
        offset / PAGE..inode.size.div_ceil(PAGE),
        |page, first, _| {
            let written = first != 0 && first & UNWRITTEN == 0;
            let here = written == (whence == Whence::Data);
            if here {
                found = Some((page * PAGE).max(offset));
            }
            !here
        },
    )?;
    match (found, whence) {
        (Some(at), _) => Ok(at),
        (None, Whence::Hole) => Ok(inode.size),
        (None, Whence::Data) => Err(Errno::ENXIO),
    }
}
