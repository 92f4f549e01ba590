//! Memory that the device takes, for sources that it does not: large buffers of `malloc` begin 16 bytes after a page, and where pages
//! must not change under way no program's will do.
//!
//! Two free frames of the arena, held for the one write and given back after it. They are no frames of the file: no header, no
//! charge, nobody else sees them, and a death leaves them as something held by the dead. They are worth it because the same
//! two are taken every time, so that they stay in the processor's cache, and because frames lie on huge pages, which the
//! kernel pins at a tenth of the cost of small ones. A piece is copied and written, then the next: `docs/performance.md` says
//! why not both at once.

use std::time::Duration;

use crate::device::Piece;
use crate::file::core::Core;
use crate::file::direct::{observe_write, write_all};
use crate::flush::busy;
use crate::ids::FrameId;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::copy;
use crate::memory::regions;
use crate::memory::threads::Me;
use crate::sync::time::Instant;
use crate::sys::memory::{AlignedBytes, Spare};

/// Frames that are written with one call: few enough for the cache, enough that the call does not count.
const FRAMES: usize = 2;

/// Where not even one frame is free.
static SPARE: Spare = Spare::new();

/// Memory of a block each, all of it aligned to pages.
pub struct Bounce<'a> {
    me: Me<'a>,
    frames: [Option<FrameId>; FRAMES],
    own: Option<AlignedBytes>,
}

impl<'a> Bounce<'a> {
    /// Takes what is free, without waiting; for a single block, one frame. In an operation that is not parked.
    pub fn take(me: Me<'a>, blocks: u32) -> Self {
        let mut frames = [None; FRAMES];
        for frame in frames.iter_mut().take(blocks as usize) {
            *frame = regions::take_frame(me);
        }
        let own = frames[0]
            .is_none()
            .then(|| SPARE.take(BLOCK_BYTES, PAGE_BYTES));
        Bounce { me, frames, own }
    }

    /// Writes `len` bytes by way of this memory. An error after some bytes gives those bytes; so does a source that ends early.
    /// `was_busy`: others' writes were under way.
    ///
    /// # Safety
    /// `source` is valid for `len` bytes for the whole call, or a handler stands by (`copy::try_copy`).
    pub unsafe fn write(
        &self,
        core: &Core,
        source: *const u8,
        len: usize,
        offset: u64,
        was_busy: bool,
    ) -> std::io::Result<usize> {
        let places = self.places();
        let mut done = 0;
        while done < len {
            let begun = Instant::now();
            // SAFETY: within the caller's memory.
            let (pieces, count) = unsafe { self.fill(&places, source.add(done), len - done) };
            let copied = Instant::now();
            let step: usize = pieces[..count].iter().map(|piece| piece.len).sum();
            let result = match step {
                0 => Err(std::io::Error::from_raw_os_error(libc::EFAULT)),
                _ => write_all(core, &pieces[..count], offset + done as u64),
            };
            match result {
                Ok(n) if n == step => done += n,
                Ok(n) => return Ok(done + n),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            observe(
                core,
                self.me.arena,
                step as u64,
                copied - begun,
                copied.elapsed(),
                was_busy,
            );
        }
        Ok(done)
    }

    /// Copies as many bytes as there is memory for, by whole blocks: up to one that is not all there.
    ///
    /// # Safety
    /// As for [`Bounce::write`].
    unsafe fn fill(
        &self,
        places: &[Option<*mut u8>; FRAMES],
        source: *const u8,
        len: usize,
    ) -> ([Piece; FRAMES], usize) {
        let none = Piece {
            ptr: std::ptr::null_mut(),
            len: 0,
        };
        let (mut pieces, mut count, mut done) = ([none; FRAMES], 0, 0);
        for &place in places.iter().flatten() {
            let step = (len - done).min(BLOCK_BYTES);
            // SAFETY: within the caller's memory; the place is a block long, and held by this thread or its own.
            if step == 0 || !unsafe { copy::try_copy(source.add(done), place, step) } {
                break;
            }
            pieces[count] = Piece {
                ptr: place,
                len: step,
            };
            count += 1;
            done += step;
        }
        (pieces, count)
    }

    fn places(&self) -> [Option<*mut u8>; FRAMES] {
        let mut places = self
            .frames
            .map(|frame| frame.and_then(|frame| self.me.arena.frame_bytes(frame)));
        if let Some(own) = &self.own {
            places[0] = Some(own.piece().ptr);
        }
        places
    }
}

impl Drop for Bounce<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        for frame in self.frames.into_iter().flatten() {
            regions::free_frame(self.me, frame);
        }
        if let Some(own) = self.own.take() {
            SPARE.put(own);
        }
    }
}

/// Notes how long a piece took to copy and to write. On the heap, in tests, no decision shall hang on the clock.
fn observe(
    core: &Core,
    arena: &Arena,
    bytes: u64,
    copy: Duration,
    write: Duration,
    was_busy: bool,
) {
    if core.shared.config.heap_backed {
        return;
    }
    let superblock = arena.superblock();
    let copy_ns = copy.as_nanos() as u64;
    busy::observe_bounce(superblock, core.device.caps().device, bytes, copy_ns);
    observe_write(core, superblock, bytes, write, was_busy);
}
