//! Writes that are not one request like others: a file's last page, and what could not be written as one.

use super::ends::{self, finish_write, skip, write_rest};
use super::{FAILURES_MAX, Flusher, Work, WriteJob};
use crate::device::{Piece, is_not_written_back};
use crate::error::errno_of;
use crate::flush::errors;
use crate::frame::header::Identity;
use crate::ids::HeaderId;
use crate::limits::PAGE_BYTES;
use crate::scrap::absorb::pages_of;
use crate::sync::planted;

impl Flusher {
    /// The last page of a file goes through the kernel's cache, up to the file's end only, and is waited for: only then
    /// can it be called clean.
    pub(super) fn write_tail(
        &mut self,
        work: &mut Work<'_, '_>,
        id: HeaderId,
        identity: Identity,
        page: usize,
        piece: Piece,
    ) {
        let offset = identity.block.start() + (page * PAGE_BYTES) as u64;
        let entry = work.me.arena.file_unchecked(work.file);
        entry.show_change();
        let device = work.device.as_ref();
        let written = || ends::write_through_all(device, piece, offset);
        let failed = work.me.at_device(work.file, written).err();
        let errno = failed.as_ref().map(errno_of);
        if let Some(errno) = errno.filter(|_| failed.as_ref().is_some_and(is_not_written_back)) {
            // The kernel has told it, and will tell no sync: it may be of bytes that nobody here will write again.
            errors::record_sync(entry, errno);
        }
        finish_write(work, &part(id, 1 << page), offset + piece.len as u64, errno);
    }
}

fn part(id: HeaderId, pages: u64) -> WriteJob {
    WriteJob {
        parts: vec![(id, pages)],
        ..WriteJob::default()
    }
}

/// Whether a request that has failed is made again in parts.
pub(super) fn is_worth_it(work: &Work<'_, '_>, job: &WriteJob) -> bool {
    job.bytes > PAGE_BYTES && work.failures < FAILURES_MAX && !planted!(SwallowFlushError)
}

/// Writes a request that has failed run by run, and a run that fails page by page: what lies beside a place that cannot be written
/// is written all the same.
pub(super) fn write_parts(work: &mut Work<'_, '_>, job: &WriteJob, errno: i32) {
    let mut at = 0;
    for &(id, pages) in &job.parts {
        let bytes = pages.count_ones() as usize * PAGE_BYTES;
        let end = job.offset + (at + bytes) as u64;
        let is_tried = job.parts.len() == 1 || work.failures >= FAILURES_MAX;
        let whole = match is_tried {
            true => Err(errno),
            false => write_again(work, job, at, bytes),
        };
        match whole {
            Err(errno) if bytes > PAGE_BYTES => write_pages(work, job, (id, pages), at, errno),
            whole => finish_write(work, &part(id, pages), end, whole.err()),
        }
        at += bytes;
    }
}

/// One run of pages, which lies at `at` in the request.
fn write_pages(
    work: &mut Work<'_, '_>,
    job: &WriteJob,
    (id, pages): (HeaderId, u64),
    at: usize,
    mut errno: i32,
) {
    for (index, page) in pages_of(pages).enumerate() {
        let at = at + index * PAGE_BYTES;
        let written = match work.failures < FAILURES_MAX {
            true => write_again(work, job, at, PAGE_BYTES),
            false => Err(errno),
        };
        errno = written.err().unwrap_or(errno);
        let end = job.offset + (at + PAGE_BYTES) as u64;
        finish_write(work, &part(id, 1 << page), end, written.err());
    }
}

/// Bytes of a request once more, by hand.
fn write_again(work: &Work<'_, '_>, job: &WriteJob, at: usize, bytes: usize) -> Result<(), i32> {
    let mut pieces = skip(&job.pieces, at);
    let mut left = bytes;
    for piece in &mut pieces {
        piece.len = piece.len.min(left);
        left -= piece.len;
    }
    pieces.retain(|piece| piece.len > 0);
    let again = WriteJob {
        pieces,
        offset: job.offset + at as u64,
        bytes,
        ..WriteJob::default()
    };
    work.me.arena.file_unchecked(work.file).show_change();
    let write = || write_rest(work.device.as_ref(), &again, 0);
    work.me.at_device(work.file, write)
}
