//! Views: the bytes of a range of a file as they are now, without a copy.
//!
//! Source: FLAC, page attaching and page versions. A view pins the frames of its blocks (`memory::pins`): a writer of one of these blocks
//! gives it a new frame (`scrap::own`), and a thread that takes it out of memory leaves the frame to the view. So the bytes of a view never
//! change. Where frames lie side by side in the arena, the view is an address in it; elsewhere parts of the arena's file are mapped side by
//! side, read-only. Where neither can be, it is a copy, and says so.
//!
//! What is missing in memory is read first, by large requests ([`cold`]), several at once where much is missing (`spread`), into frames
//! side by side ([`run`]). A view of several blocks is taken block by block, as a read is. A view that may be written ([`private`]) is mapped
//! so that the system copies what is stored to.

pub mod attached;
#[doc(hidden)]
pub mod cold;
pub mod private;
#[doc(hidden)]
pub mod run;
mod side_by_side;
mod spread;

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::{File, Kind};
use crate::error::{Error, Result};
use crate::file::by_kernel::not_open_for;
use crate::file::core::{Core, Halt};
use crate::file::room;
use crate::file::view::cold::Cold;
use crate::file::view::run::Place;
use crate::file::view::side_by_side::map;
pub(super) use crate::file::view::side_by_side::{Counted, runs_of};
use crate::frame::header::Identity;
use crate::frame::slots;
use crate::ids::{BlockIndex, FrameId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::member::shared::Shared;
use crate::memory::files::VIEWED;
use crate::memory::pins::{self, Pin};
use crate::memory::threads::{Me, Operation};
use crate::scrap::absorb::move_into_frame;
use crate::scrap::split::{Segment, segments};
use crate::stats::Counter;
use crate::sync::{Ordering, planted};
use crate::sys::addresses::Access;
use crate::sys::forks::Owned;
use crate::sys::memory::AlignedBytes;

/// Steps for one block that may come to nothing, since what memory has of it goes each time: a copy is made, whose reads end. One time takes three
/// at most: frames are found, the device is read, the bytes are kept.
const STEPS_MAX: u32 = 24;

/// Room for a copy of what tells no length, bytes, at first.
const UNTOLD_BYTES: usize = 64 << 10;

/// The bytes of a range of a file, as they were when the view was taken. They stay so, whatever happens to the file.
///
/// ```
/// # fn main() -> forebay::error::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let session = forebay::Session::open(forebay::Config::tiny())?;
/// let file = session.open_file(&path, forebay::OpenOptions::new().read(true).write(true).create(true))?;
/// file.write_at(b"as it was", 0)?;
/// let view = file.view(3..100)?;
/// file.write_at(b"otherwise", 0)?;
/// assert_eq!(&view[..], b"it was");
/// # file.close()
/// # }
/// ```
pub struct View {
    bytes: *const u8,
    len: usize,
    memory: Memory,
}

/// What keeps the bytes of a view.
enum Memory {
    Nothing,
    Copy(#[expect(dead_code, reason = "keeps the bytes")] AlignedBytes),
    Frames(#[expect(dead_code, reason = "keeps the bytes")] Owned<Pins>),
    Mapped(#[expect(dead_code, reason = "keeps the bytes")] Mapped),
}

/// Frames that are mapped side by side. The mappings go first.
struct Mapped {
    _addresses: Counted,
    _pins: Owned<Pins>,
}

// SAFETY: nobody changes the bytes that a view keeps, in this process or another, and they stay where they are until it is dropped.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Whether it is a copy: the file is the kernel's, as much is pinned as may be, the frames cannot be mapped side by side, or memory
    /// has lost again and again what was read.
    pub fn is_copy(&self) -> bool {
        matches!(self.memory, Memory::Copy(_))
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the bytes are mapped and initialised until the view is dropped, and nobody changes them meanwhile: a copy is the view's
        // own, and frames with pins are changed by nobody (`memory::pins`).
        unsafe { std::slice::from_raw_parts(self.bytes, self.len) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("View");
        out.field("len", &self.len)
            .field("is_copy", &self.is_copy());
        out.finish_non_exhaustive()
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The pins of a view, in the order of its blocks.
struct Pins {
    shared: Arc<Shared>,
    pins: Vec<Pin>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        if self.pins.is_empty() || planted!(LeakedPins) {
            return;
        }
        // Without a slot they stay until the process ends.
        if let Ok(me) = self.shared.me() {
            pins::unpin(me, &self.pins);
        }
    }
}

impl File {
    /// The bytes of a range as they are now, without a copy where that can be; the range is cut at the file's end. A thread that
    /// writes meanwhile, cuts the file or gives it to the kernel does not change them. A process that was forked may read its parent's
    /// views for as long as the parent has them.
    ///
    /// The memory counts as the session's until the view is dropped; at most half of it may be so, and further views are copies
    /// ([`View::is_copy`]), which count as the program's.
    ///
    /// # Errors
    /// As for [`File::read_at`]; [`Error::InvalidInput`] for a range that ends before it begins; [`Error::NoMemory`] where it must be a copy, and there
    /// is not so much memory.
    pub fn view(&self, range: Range<u64>) -> Result<View> {
        self.view_with(range, Access::Read)
    }

    fn view_with(&self, range: Range<u64>, access: Access) -> Result<View> {
        if !self.readable {
            return Err(not_open_for("read"));
        }
        if range.end < range.start {
            return Err(Error::InvalidInput("a range ends before it begins"));
        }
        if let Kind::Managed(managed) = &self.kind {
            let core = &managed.core;
            let view = take(core, core.shared.me()?, &range, access);
            match view {
                Ok(Some(view)) => return Ok(view),
                Ok(None) | Err(Halt::Kernel) => {}
                Err(halt) => return Err(Core::ended(halt)),
            }
        }
        self.copy_of(&range)
    }

    fn copy_of(&self, range: &Range<u64>) -> Result<View> {
        // No length does not say that there are no bytes (`File::len`): room is made as they come.
        let (end, first) = match self.len()? {
            0 => (i64::MAX as u64, UNTOLD_BYTES),
            told => (told, usize::MAX),
        };
        let len = range.end.min(end).saturating_sub(range.start) as usize;
        let (mut copy, mut room) = (nothing(), len.min(first));
        while copy.len < room {
            copy = self.copied(range.start, room, &copy)?;
            if copy.len < room {
                break;
            }
            room = room.saturating_mul(2).min(len);
        }
        Ok(copy)
    }

    /// A copy of up to `room` bytes from `start` on, the first of which are known; fewer where the file ends.
    fn copied(&self, start: u64, room: usize, known: &[u8]) -> Result<View> {
        // At the place in a page that the bytes have in the file: what is aligned there is aligned here.
        let within = (start % PAGE_BYTES as u64) as usize;
        let memory = AlignedBytes::try_new(within + room, PAGE_BYTES).ok_or(Error::NoMemory {
            what: "a copy of the view's bytes",
        })?;
        let bytes = memory.part(within, room).ptr;
        // SAFETY: our own memory, initialised, of which nobody else knows yet.
        let target = unsafe { std::slice::from_raw_parts_mut(bytes, room) };
        let mut done = known.len();
        target[..done].copy_from_slice(known);
        while done < room {
            match self.read_at(&mut target[done..], start + done as u64)? {
                0 if done == 0 => return Ok(nothing()),
                0 => break,
                read => done += read,
            }
        }
        Ok(View {
            bytes,
            len: done,
            memory: Memory::Copy(memory),
        })
    }
}

fn nothing() -> View {
    View {
        bytes: std::ptr::null(),
        len: 0,
        memory: Memory::Nothing,
    }
}

/// A view by pins; `None`: that cannot be.
fn take(
    core: &Core,
    me: Me<'_>,
    range: &Range<u64>,
    access: Access,
) -> std::result::Result<Option<View>, Halt> {
    let mapping = core.shared.arena.mapping();
    if access != Access::Read && !private::can_be_shown(mapping) {
        return Ok(None);
    }
    loop {
        let end = core.size(me)?.min(range.end);
        let len = end.saturating_sub(range.start) as usize;
        if len == 0 {
            return Ok(Some(nothing()));
        }
        if !may_be_held(me, range.start, len) {
            return Ok(None);
        }
        let Some(holder) = core.shared.viewer(me) else {
            return Ok(None);
        };
        let (after, pins) = pin_all(core, me, holder, (range.start, len))?;
        match after {
            After::Done => {
                note_viewed(core);
                return lay_out(pins, range.start, len, access)
                    .map_err(|error| Halt::Failed(Error::device("watch for forks", &error)));
            }
            After::Full => return Ok(None),
            // The file has become shorter: as it is now.
            After::Cut => {}
        }
    }
}

/// Once for a file, so that those that take views of it share the word.
fn note_viewed(core: &Core) {
    let flags = &core.entry().flags;
    if flags.load(Ordering::Relaxed) & VIEWED == 0 {
        flags.fetch_or(VIEWED, Ordering::Relaxed);
    }
}

/// Whether so many frames may be held as a range of at least one byte lies in.
fn may_be_held(me: Me<'_>, start: u64, len: usize) -> bool {
    let last = BlockIndex::of(start + len as u64 - 1);
    last.0 - BlockIndex::of(start).0 < pins::frames_max(me.arena.superblock())
}

/// Pins the frames of a range of at least one byte in a holder's name, and counts it as read. What is missing is read, several pieces at once
/// where that pays.
fn pin_all(
    core: &Core,
    me: Me<'_>,
    holder: u32,
    (start, len): (u64, usize),
) -> std::result::Result<(After, Pins), Halt> {
    let mut pins = Pins {
        shared: Arc::clone(&core.shared),
        pins: Vec::with_capacity(len / BLOCK_BYTES + 2),
    };
    let place = Place::default();
    let after = if spread::is_worth_it(core, me, start, len) {
        spread::pin(core, me, holder, (start, len), (&place, &mut pins))?
    } else {
        let mut cold = Cold::up_to(BlockIndex::of(start + len as u64 - 1), &place);
        let memory = (&mut pins.pins, &mut cold);
        pin_range(core, me, holder, (start, len), memory)?
    };
    if after == After::Done {
        room::keep_clean_within(me);
        me.count(Counter::ReadBytes as usize, len as u64);
    }
    Ok((after, pins))
}

/// How many pages of a block memory holds, at a glance. `None`: somebody has the block in hand. The caller is in an operation.
fn pages_held(core: &Core, me: Me<'_>, block: BlockIndex) -> Option<usize> {
    let file = core.id;
    let header = slots::lookup(me.arena, core.entry(), block);
    let Some(header) = header.and_then(|id| me.arena.header(id)) else {
        return Some(0);
    };
    let peek = header.peek(Identity { file, block })?;
    Some(peek.valid.count_ones() as usize)
}

/// Pins the frames of all blocks of a range, from its first byte on, up to the first that cannot be.
fn pin_range<'a>(
    core: &Core,
    me: Me<'a>,
    holder: u32,
    (start, len): (u64, usize),
    (pins, cold): (&mut Vec<Pin>, &mut Cold<'a>),
) -> std::result::Result<After, Halt> {
    for segment in segments(start, len) {
        let after = pin_block(core, me, holder, &segment, (pins, cold))?;
        if after != After::Done {
            return Ok(after);
        }
    }
    Ok(After::Done)
}

/// How it stands with a block.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Its frame is pinned.
    Done,
    /// As much is pinned as may be, or what has been read of it has left memory again and again.
    Full,
    /// The file ends before.
    Cut,
}

/// Pins the frame of a block for the process with the number `holder`, once it has one in which all of the block is, or what is asked for where the
/// device cannot read more.
///
/// # Errors
/// As for [`Core::operate`].
#[doc(hidden)]
pub fn pin_block<'a>(
    core: &Core,
    me: Me<'a>,
    holder: u32,
    segment: &Segment,
    (pins, cold): (&mut Vec<Pin>, &mut Cold<'a>),
) -> std::result::Result<After, Halt> {
    for _ in 0..STEPS_MAX {
        let step = core.operate(me, |operation| {
            try_pin(core, operation, holder, segment, (pins, cold))
        });
        match step {
            Ok(Some(after)) => return Ok(after),
            Ok(None) => cold.find_frames(core, me),
            // It may be a page that was not asked for.
            Err(Halt::Failed(Error::Device { .. })) if cold.read_apart(segment.block) => {}
            Err(halt) => return Err(halt),
        }
    }
    Ok(After::Full)
}

/// `None`: something was missing, and has been read, or frames are to be found for it.
fn try_pin(
    core: &Core,
    operation: &Operation<'_>,
    holder: u32,
    segment: &Segment,
    (pins, cold): (&mut Vec<Pin>, &mut Cold<'_>),
) -> std::result::Result<Option<After>, Halt> {
    let guard = core.lock(operation.me, segment.block)?;
    let entry = core.entry();
    let end = segment.block.start() + segment.end() as u64;
    if entry.size.load(Ordering::Acquire) < end {
        return Ok(Some(After::Cut));
    }
    let mut absent = crate::flush::select::pages_within_size(&guard, entry) & !guard.valid();
    if cold.is_read_apart(segment.block) {
        absent &= segment.touched();
    }
    if absent != 0 {
        let missing = (segment.block, absent);
        return cold.bring(core, operation, guard, missing).map(|()| None);
    }
    if guard.frame().is_none() {
        if guard.inflight() != 0 {
            return Err(Halt::Busy);
        }
        move_into_frame(&guard).map_err(|_| Halt::NoMemory)?;
    }
    guard.touch();
    let pin = pins::pin(&guard, holder);
    drop(guard);
    Ok(Some(match pin {
        Some(pin) => {
            pins.push(pin);
            After::Done
        }
        None => After::Full,
    }))
}

/// Finds addresses at which the frames lie side by side. `None`: there are none.
fn lay_out(pins: Pins, start: u64, len: usize, access: Access) -> std::io::Result<Option<View>> {
    let within = (start - BlockIndex::of(start).start()) as usize;
    let frames: Vec<FrameId> = pins.pins.iter().map(|pin| pin.frame).collect();
    let arena = Arc::clone(&pins.shared.arena);
    let side_by_side = frames.windows(2).all(|two| two[1].0 == two[0].0 + 1);
    if let Some(bytes) = frames.first().and_then(|&first| arena.frame_bytes(first))
        && side_by_side
        && access == Access::Read
    {
        return Ok(Some(View {
            bytes: bytes.wrapping_add(within),
            len,
            memory: Memory::Frames(Owned::new(pins)?),
        }));
    }
    let Some(addresses) = map(&arena, &frames, access) else {
        return Ok(None);
    };
    Ok(Some(View {
        bytes: addresses.addresses.first().wrapping_add(within),
        len,
        memory: Memory::Mapped(Mapped {
            _addresses: addresses,
            _pins: Owned::new(pins)?,
        }),
    }))
}
