//! Fills: reads of what ragged pages lack, before their block is written.
//!
//! More is read than is needed, where that is faster. What nobody needs may be what cannot be read; then the ragged pages are read one by
//! one. A page that is ragged itself and cannot be read keeps nothing but its own bytes from the device.

use std::sync::Arc;

use super::ends::merge_fill;
use super::{Flusher, Job, Scope, Work};
use crate::device::{Request, RequestKind, read_rest};
use crate::frame::header::Identity;
use crate::ids::HeaderId;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::scrap::absorb::pages_of;
use crate::scrap::split::{mask, runs_of};
use crate::sync::Ordering;
use crate::sys::memory::AlignedBytes;

/// Pages that cannot be read, where no other can, after which no more is read: the device may be dead. It is if it takes no write either.
const UNREADABLE_MAX: usize = 16;

/// What is to be filled of a header.
#[derive(Clone, Copy)]
pub(super) struct Fill {
    pub(super) header: HeaderId,
    pub(super) identity: Identity,
    /// Before the reads.
    pub(super) epoch: u32,
    /// Pages that are not to be written without.
    pub(super) ragged: u64,
}

/// One read for it.
pub(super) struct FillJob {
    pub(super) fill: Fill,
    /// The run of pages that is read.
    pub(super) pages: u64,
    pub(super) offset: u64,
    pub(super) bytes: AlignedBytes,
}

impl Flusher {
    /// Reads what is missing, a request for each run of pages.
    pub(super) fn submit_fills(&mut self, work: &mut Work<'_, '_>, fill: Fill, pages: u64) {
        for run in runs_of(pages) {
            self.submit_fill(work, fill, mask(run));
        }
    }

    /// Reads the ragged pages one by one.
    pub(super) fn submit_apart(&mut self, work: &mut Work<'_, '_>, fill: Fill) {
        for page in pages_of(fill.ragged) {
            self.submit_fill(work, fill, 1 << page);
        }
    }

    /// Reads a run of pages.
    fn submit_fill(&mut self, work: &mut Work<'_, '_>, fill: Fill, pages: u64) {
        let start = u64::from(pages.trailing_zeros()) * PAGE_BYTES as u64;
        let offset = fill.identity.block.start() + start;
        let bytes = self
            .spare
            .pop()
            .unwrap_or_else(|| AlignedBytes::new(BLOCK_BYTES, 4096));
        let len = pages.count_ones() as usize * PAGE_BYTES;
        let request = Request {
            file: Arc::clone(work.device),
            kind: RequestKind::Read,
            pieces: vec![bytes.part(0, len)],
            offset,
            token: 0,
        };
        let job = FillJob {
            fill,
            pages,
            offset,
            bytes,
        };
        self.submit(work, request, Job::Fill(job));
    }

    pub(super) fn end_fill(
        &mut self,
        work: &mut Work<'_, '_>,
        job: FillJob,
        result: std::io::Result<usize>,
    ) {
        let entry = work.me.arena.file_unchecked(work.file);
        let sure_end = entry.disk_end.load(Ordering::Acquire);
        let piece = job
            .bytes
            .part(0, job.pages.count_ones() as usize * PAGE_BYTES);
        let device = work.device.as_ref();
        // Asked once more by hand: the device file knows of errors that pass.
        let result = result.or_else(|error| match error.raw_os_error() {
            Some(libc::EIO) if device.descriptors().is_some() => {
                device.read_direct(piece, job.offset)
            }
            _ => Err(error),
        });
        let place = (job.fill.identity.block, job.fill.header);
        match result.and_then(|read| read_rest(device, piece, job.offset, read, sure_end)) {
            Ok(read) => {
                work.outcome.bytes_read += read as u64;
                let piece = job.bytes.piece();
                let asked = job.pages.count_ones() as usize * PAGE_BYTES;
                // SAFETY: the buffer is ours and as long as was asked for; what the device did not reach is zeros.
                unsafe {
                    crate::memory::copy::zero(piece.ptr.add(read), asked.saturating_sub(read));
                }
                merge_fill(work, &job);
                // Written in this same flush, once every run of the header has arrived.
                work.later.push(place);
            }
            Err(_) if job.pages.count_ones() > 1 => {
                let ragged = job.fill.ragged & job.pages;
                work.apart.push(Fill { ragged, ..job.fill });
            }
            // Nobody needs it. What is whole without it is written in the end.
            Err(_) if job.pages & job.fill.ragged == 0 => work.unfilled.push(place),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                work.outcome.errno.get_or_insert(errno);
                work.unfilled.push(place);
                let reads_nothing = work.outcome.bytes_read == 0;
                work.reads_nothing |= reads_nothing && work.unfilled.len() >= UNREADABLE_MAX;
            }
        }
        self.spare.push(job.bytes);
    }

    /// Writes what is whole of blocks with a page that cannot be read.
    pub(super) fn write_unfilled(&mut self, work: &mut Work<'_, '_>) {
        // That it is still owed is known.
        work.verifies = false;
        let mut unfilled = std::mem::take(&mut work.unfilled);
        unfilled.sort_unstable_by_key(|(block, _)| block.0);
        unfilled.dedup();
        let scope = Scope {
            fill: false,
            ..Scope::SYNC
        };
        for (block, header) in unfilled {
            self.visit(work, &scope, block, header);
            self.reap(work, false);
        }
        self.submit_batch(work);
        self.drain(work);
    }
}
