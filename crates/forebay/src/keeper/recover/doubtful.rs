//! Files that were being changed by the session when it ended, and that have been changed since the change was last seen to be under
//! way: by what the dead had given to the kernel, or by somebody else. No time tells. What the file holds does, where nothing that
//! anybody else could have written would be overwritten.

use super::aside::each_owed;
use crate::device::{DeviceFile, read_rest};
use crate::ids::FileId;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::member::shared::Shared;
use crate::memory::files::TRUNCATING;
use crate::memory::threads::Me;
use crate::sync::Ordering;
use crate::sys::memory::AlignedBytes;

/// Whether writing all that a file owes, and cutting it where it ends, changes no byte that somebody else may have written: each is there
/// already, or lies beyond where the file ended when it was last seen, and is zero. After the rebuild.
pub(super) fn harms_nobody(
    shared: &Shared,
    me: Me<'_>,
    id: FileId,
    device: &dyn DeviceFile,
) -> bool {
    let entry = shared.arena.file_unchecked(id);
    let size = entry.size.load(Ordering::Acquire);
    // A change of the length is there, or it is not. Then somebody else has changed the file.
    let cut = (entry.flags.load(Ordering::Acquire) & TRUNCATING != 0)
        .then(|| entry.truncating.load(Ordering::Acquire).saturating_sub(1));
    let known_end = cut.unwrap_or_else(|| entry.witness[0].load(Ordering::Acquire));
    let Ok(end) = device.stat().map(|stat| stat.len) else {
        return false;
    };
    let longest = size.max(known_end);
    // A flush writes the last page whole. Words may be anything.
    let whole = longest.checked_next_multiple_of(PAGE_BYTES as u64);
    let in_bounds = match cut {
        Some(to) => end == to,
        None => (known_end..=longest).contains(&end) || whole == Some(end),
    };
    if !in_bounds || cut.is_none() && !is_zero(device, size, end) {
        return false;
    }
    let compared = each_owed(shared, me, id, |offset, owed| {
        let found = read(device, end, offset, owed.len())?;
        let harmless = (offset..)
            .zip(&found)
            .zip(owed)
            .all(|((at, found), owed)| found == owed || at >= known_end && *found == 0);
        if harmless {
            Ok(())
        } else {
            Err(std::io::ErrorKind::InvalidData.into())
        }
    });
    compared.is_ok()
}

/// More than this is not looked at: what the dead have left behind the end of a file is much less.
const LEFT_MAX: u64 = 64 << 20;

/// Whether all that a file holds from `start` to its end is zero.
fn is_zero(device: &dyn DeviceFile, start: u64, end: u64) -> bool {
    if end.saturating_sub(start) > LEFT_MAX {
        return false;
    }
    let pieces = (start..end).step_by(BLOCK_BYTES);
    pieces.into_iter().all(|at| {
        let len = (end - at).min(BLOCK_BYTES as u64) as usize;
        read(device, end, at, len).is_ok_and(|found| found.iter().all(|&byte| byte == 0))
    })
}

/// What the file holds, and zeros beyond `end`, which is its end.
fn read(device: &dyn DeviceFile, end: u64, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let before = offset as usize % PAGE_BYTES;
    let whole = (before + len.max(1)).next_multiple_of(PAGE_BYTES);
    let memory = AlignedBytes::new(whole, PAGE_BYTES);
    let (piece, at) = (memory.piece(), offset - before as u64);
    let got = device.read_direct(piece, at)?;
    read_rest(device, piece, at, got, end)?;
    Ok(memory.to_vec()[before..before + len].to_vec())
}
