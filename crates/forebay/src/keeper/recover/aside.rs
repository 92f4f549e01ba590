//! Keeping bytes aside that cannot be written where they belong: a sparse file that holds them at their offsets, and a note.

use super::{Saved, as_text};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::frame::header::Identity;
use crate::frame::slots;
use crate::ids::FileId;
use crate::limits::{BLOCK_PAGES, PAGE_BYTES};
use crate::memory::place::state::StateDir;
use crate::memory::threads::Me;
use crate::scrap::give::part_of;
use crate::scrap::map::ByteMap;
use crate::scrap::page::{Ragged, runs};
use crate::scrap::split::Segment;
use crate::session::shared::Shared;
use crate::sync::Ordering;

#[derive(Serialize)]
struct Note<'n> {
    #[serde(serialize_with = "as_text")]
    path: &'n Path,
    reason: &'n str,
    size: u64,
    /// Offset and length of each run that is in the kept file; everything else in it is a hole.
    runs: Vec<(u64, u64)>,
}

/// Writes the owed bytes of a file into a sparse file of their own, with a note beside it.
pub(super) fn keep_aside(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    path: PathBuf,
    reason: String,
) -> Saved {
    match try_keep(shared, me, id, &path, &reason) {
        Ok((kept, bytes)) => Saved::Kept {
            path,
            kept,
            reason,
            bytes,
        },
        Err(error) => {
            let dir = shared.config.kept_dir.display();
            let reason = format!("{reason}; and its bytes cannot be kept in {dir}: {error}");
            Saved::Failed { path, reason }
        }
    }
}

fn try_keep(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    path: &Path,
    reason: &str,
) -> std::io::Result<(PathBuf, u64)> {
    let dir = &shared.config.kept_dir;
    // Whoever might not read the file must not read it here.
    let dir = StateDir::make(dir).map_err(std::io::Error::other)?;
    let entry = shared.arena.file_unchecked(id);
    let name = path
        .file_name()
        .map_or_else(|| "unnamed".into(), |n| n.to_string_lossy().into_owned());
    let inode = entry.inode.load(Ordering::Acquire);
    let device = entry.device.load(Ordering::Acquire);
    let stem = format!("{name}.{:x}.{device:x}-{inode}", shared.session_name_word());
    let name = format!("{stem}.bytes");
    let file = dir.create(name.as_ref())?;
    let kept = dir.path.join(name);
    let size = entry.size.load(Ordering::Acquire);
    file.set_len(size)?;
    let mut all_runs = Vec::new();
    let mut bytes = 0;
    let mut at = 0;
    while let Some((block, header)) = slots::next_owed(&shared.arena, entry, at) {
        at = u64::from(block.0) + 1;
        let Some(header_ref) = shared.arena.header(header) else {
            continue;
        };
        let Some(guard) = header_ref.try_lock(me, header) else {
            continue;
        };
        if !guard.is_for(Identity { file: id, block }) {
            continue;
        }
        let parts = owed_bytes(&guard, size);
        drop(guard);
        for (offset, data) in parts {
            file.write_all_at(&data, offset)?;
            bytes += data.len() as u64;
            all_runs.push((offset, data.len() as u64));
        }
    }
    file.sync_all()?;
    let note = Note {
        path,
        reason,
        size,
        runs: all_runs,
    };
    let mut beside = dir.create(format!("{stem}.json").as_ref())?;
    beside.write_all(serde_json::to_string_pretty(&note)?.as_bytes())?;
    beside.sync_all()?;
    Ok((kept, bytes))
}

/// The bytes that a header owes: offset in the file, and bytes.
fn owed_bytes(guard: &crate::frame::header::Guard<'_>, size: u64) -> Vec<(u64, Vec<u8>)> {
    let Some(identity) = guard.identity() else {
        return Vec::new();
    };
    let whole = Segment {
        block: identity.block,
        start: 0,
        len: BLOCK_PAGES * PAGE_BYTES,
        done: 0,
    };
    let mut parts = Vec::new();
    for page in crate::scrap::absorb::pages_of(guard.dirty() | guard.inflight()) {
        let mut take = |start: usize, end: usize| {
            let offset = identity.block.start() + (page * PAGE_BYTES + start) as u64;
            let len = size.saturating_sub(offset).min((end - start) as u64) as usize;
            if len > 0
                && let Some(from) = guard.page_bytes(page)
            {
                let mut bytes = vec![0; len];
                // SAFETY: within the page; nobody else is in this session any more; the target is ours.
                unsafe { crate::memory::copy::copy(from.add(start), bytes.as_mut_ptr(), len) };
                parts.push((offset, bytes));
            }
        };
        if guard.valid() & (1 << page) != 0 {
            let (start, end) = part_of(&whole, page);
            take(start, end);
        } else {
            let ragged = guard.page(page).ragged();
            runs(&ragged, map_of(guard, ragged).as_ref(), take);
        }
    }
    parts
}

fn map_of(guard: &crate::frame::header::Guard<'_>, ragged: Ragged) -> Option<ByteMap> {
    match ragged {
        Ragged::Map(small) => crate::scrap::absorb::map_at(guard.arena(), small),
        _ => None,
    }
}
