//! Writes that are not one request like others: a file's last page.

use super::ends::{self, finish_write};
use super::{Flusher, Work, WriteJob};
use crate::device::{Piece, is_not_written_back};
use crate::error::errno_of;
use crate::flush::errors;
use crate::frame::header::Identity;
use crate::ids::HeaderId;
use crate::limits::PAGE_BYTES;

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
        let failed = work.me.at_sync(work.file, || {
            let failed = work.me.at_device(work.file, written).err();
            if let Some(error) = failed.as_ref().filter(|error| is_not_written_back(error)) {
                // The kernel has told it, and will tell no sync: it may be of bytes that nobody here will write again.
                errors::record_sync(entry, errno_of(error));
            }
            failed
        });
        let errno = failed.as_ref().map(errno_of);
        finish_write(work, &part(id, 1 << page), offset + piece.len as u64, errno);
    }
}

fn part(id: HeaderId, pages: u64) -> WriteJob {
    WriteJob {
        parts: vec![(id, pages)],
        ..WriteJob::default()
    }
}
