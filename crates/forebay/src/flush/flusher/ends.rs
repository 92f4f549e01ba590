//! The small steps of a flush: what of a header is ready, and what the end of a request means for the headers it covered.

use std::ops::Range;

use super::fills::FillJob;
use super::{Scope, Work, WriteJob};
use crate::device::{DeviceFile, Piece};
use crate::error::errno_of;
use crate::flush::select;
use crate::flush::{busy, limit};
use crate::frame::header::{AGE_MAX, Guard, Header};
use crate::limits::{BLOCK_PAGES, PAGE_BYTES};
use crate::scrap::absorb::pages_of;
use crate::scrap::give::fill_page;
use crate::scrap::split::runs_of;
use crate::sync::planted;

/// Whether a header's time has come, as far as a glance tells.
pub(in crate::flush) fn is_eligible(header: &Header, tick: u32, scope: &Scope) -> bool {
    if scope.all || scope.dirty_ticks == 0 {
        return true;
    }
    // However often it is used meanwhile.
    let is_due =
        scope.dirty_ticks != u32::MAX && header.dirty_ticks(tick) >= scope.dirty_ticks.min(AGE_MAX);
    is_due || header.is_whole() && header.idle_ticks(tick) >= scope.full_idle_ticks
}

/// The memory of a block's runs of pages. It has room for the most that there can be, so that nothing is allocated while a
/// header is locked.
pub(super) struct Gathered {
    /// Mask, offset in the block, pieces.
    pub(super) runs: Vec<(u64, usize, Range<usize>)>,
    pub(super) pieces: Vec<Piece>,
}

impl Default for Gathered {
    fn default() -> Self {
        Gathered {
            runs: Vec::with_capacity(BLOCK_PAGES / 2),
            pieces: Vec::with_capacity(BLOCK_PAGES),
        }
    }
}

impl Gathered {
    /// Without room.
    pub(super) const fn none() -> Self {
        Gathered {
            runs: Vec::new(),
            pieces: Vec::new(),
        }
    }
}

/// The memory of each run of pages.
pub(super) fn gather(guard: &Guard<'_>, pages: u64, into: &mut Gathered) {
    into.runs.clear();
    into.pieces.clear();
    for run in runs_of(pages) {
        let start = run.start as usize * PAGE_BYTES;
        let mask = crate::scrap::split::mask(run.clone());
        let first = into.pieces.len();
        match guard.page_bytes(run.start as usize) {
            Some(ptr) if guard.frame().is_some() => into.pieces.push(Piece {
                ptr,
                len: run.len() * PAGE_BYTES,
            }),
            _ => into.pieces.extend(
                pages_of(mask)
                    .filter_map(|page| guard.page_bytes(page))
                    .map(|ptr| Piece {
                        ptr,
                        len: PAGE_BYTES,
                    }),
            ),
        }
        into.runs.push((mask, start, first..into.pieces.len()));
    }
}

/// Puts the device's bytes into the holes of the pages that were read, unless bytes have left the header since.
pub(super) fn merge_fill(work: &mut Work<'_, '_>, job: &FillJob) {
    let me = work.me;
    let Ok(_operation) = me.enter(work.file) else {
        return;
    };
    let entry = me.arena.file_unchecked(work.file);
    if !entry.is_still_of(work.device.caps()) {
        return;
    }
    let Some(header) = me.arena.header(job.fill.header) else {
        return;
    };
    let Some(guard) = header.lock(me, job.fill.header) else {
        return;
    };
    let superseded = matches!(guard.state(), crate::frame::header::State::Superseded(_));
    if !guard.is_for(job.fill.identity) || superseded || guard.epoch() != job.fill.epoch {
        return;
    }
    let base = job.offset - job.fill.identity.block.start();
    for page in pages_of(job.pages & !guard.valid()) {
        let within = page * PAGE_BYTES - base as usize;
        let source = job.bytes.piece().ptr;
        // SAFETY: the buffer holds the run's pages from its start; it is ours.
        let _ = unsafe { fill_page(&guard, entry, page, source.add(within)) };
    }
}

pub(super) fn end_write(
    work: &mut Work<'_, '_>,
    job: &WriteJob,
    result: std::io::Result<usize>,
    by_keeper: bool,
) {
    let device = work.device.caps().device;
    busy::end(work.me.arena.superblock(), device, job.flight);
    if let (Some(begun), Ok(written)) = (job.begun, &result)
        && *written == job.bytes
    {
        let ns = begun.elapsed().as_nanos() as u64;
        busy::observe_write(work.me.arena.superblock(), device, job.bytes as u64, ns);
    }
    let errno = match result {
        Ok(written) if written >= job.bytes => None,
        Ok(written) => {
            let rest = || write_rest(work.device.as_ref(), job, written);
            work.me.at_device(work.file, rest).err()
        }
        Err(error) => Some(errno_of(&error)),
    };
    finish_write(work, job, job.offset + job.bytes as u64, errno);
    if errno.is_none() {
        limit::make_room(work.me.arena.superblock(), by_keeper);
    }
}

/// A request that was cut short is finished by hand: the device says why, or takes the rest.
pub(super) fn write_rest(
    device: &dyn DeviceFile,
    job: &WriteJob,
    written: usize,
) -> Result<(), i32> {
    // The kernel's cache takes parts of pages, too.
    let unit = if device.reaches_device() {
        PAGE_BYTES
    } else {
        1
    };
    let mut at = written / unit * unit;
    while at < job.bytes {
        let pieces = skip(&job.pieces, at);
        match device.write_direct(&pieces, job.offset + at as u64) {
            Ok(n) if n >= unit || at + n >= job.bytes => at += n / unit * unit,
            Ok(_) => return Err(libc::EIO),
            Err(error) => return Err(errno_of(&error)),
        }
    }
    Ok(())
}

/// Writes a piece through the kernel's cache, going on after short writes.
pub(super) fn write_through_all(
    device: &dyn DeviceFile,
    piece: Piece,
    offset: u64,
) -> std::io::Result<()> {
    let mut done = 0;
    while done < piece.len {
        let rest = Piece {
            // SAFETY: `done` is less than the piece's length.
            ptr: unsafe { piece.ptr.add(done) },
            len: piece.len - done,
        };
        match device.write_through(rest, offset + done as u64) {
            Ok(0) => return Err(std::io::Error::from_raw_os_error(libc::EIO)),
            Ok(written) => done += written,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The pieces without their first `bytes` bytes.
pub(super) fn skip(pieces: &[Piece], mut bytes: usize) -> Vec<Piece> {
    let mut rest = Vec::new();
    for piece in pieces {
        let cut = bytes.min(piece.len);
        bytes -= cut;
        if cut < piece.len {
            // SAFETY: `cut` is less than the piece's length.
            rest.push(Piece {
                // SAFETY: `cut` is less than the piece's length.
                ptr: unsafe { piece.ptr.add(cut) },
                len: piece.len - cut,
            });
        }
    }
    rest
}

/// Ends the flights of a write, in whatever headers it covered. A closed file gate does not keep it out: the thread that
/// stopped the file may be waiting for just this.
pub(super) fn finish_write(work: &mut Work<'_, '_>, job: &WriteJob, end: u64, errno: Option<i32>) {
    let me = work.me;
    let errno = errno.filter(|_| !planted!(SwallowFlushError));
    let entry = me.arena.file_unchecked(work.file);
    for &(id, pages) in &job.parts {
        let operation = me.enter_past_gate(work.file);
        let Some(header) = me.arena.header(id) else {
            continue;
        };
        let mut round = 0;
        let guard = loop {
            if let Some(guard) = header.lock(me, id) {
                break guard;
            }
            round += 1;
            operation.wait(round);
        };
        select::finish(&guard, entry, pages, end, errno.is_none());
        if errno.is_none() {
            work.outcome.pages_written += u64::from(pages.count_ones());
        }
    }
    if let Some(errno) = errno {
        work.outcome.errno.get_or_insert(errno);
        work.is_refused = true;
    }
}
