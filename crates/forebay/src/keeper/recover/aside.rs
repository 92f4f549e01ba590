//! Keeping bytes aside that cannot be written where they belong: a sparse file that holds them at their offsets, and a note.

use super::Saved;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::frame::header::Identity;
use crate::frame::slots;
use crate::ids::FileId;
use crate::limits::{BLOCK_PAGES, PAGE_BYTES};
use crate::member::shared::Shared;
use crate::memory::place::state::StateDir;
use crate::memory::threads::Me;
use crate::scrap::give::part_of;
use crate::scrap::map::ByteMap;
use crate::scrap::page::{Ragged, runs};
use crate::scrap::split::Segment;
use crate::sync::Ordering;
use crate::text::as_text;

/// Bytes of a name in a directory (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// What names of files end in that are being written.
const UNFINISHED: &str = ".part";

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
    // A user who might not read the file must not read it here.
    let dir = StateDir::make(dir).map_err(std::io::Error::other)?;
    let entry = shared.arena.file_unchecked(id);
    let inode = entry.inode.load(Ordering::Acquire);
    let device = entry.device.load(Ordering::Acquire);
    let numbers = format!(".{:x}.{device:x}-{inode}", shared.session_name_word());
    let stem = stem_of(path, &numbers);
    // Under other names until all is there: what is cut short looks like a whole file, and may not take the place of an earlier one.
    let names = ["json", "bytes"].map(|ending| format!("{stem}.{ending}"));
    let parts = names.each_ref().map(|name| format!("{name}{UNFINISHED}"));
    let done = dir.create(parts[1].as_ref()).and_then(|file| {
        let (runs, bytes) = write_aside(shared, me, id, &file)?;
        let size = entry.size.load(Ordering::Acquire);
        let note = Note {
            path,
            reason,
            size,
            runs,
        };
        let mut beside = dir.create(parts[0].as_ref())?;
        beside.write_all(serde_json::to_string_pretty(&note)?.as_bytes())?;
        beside.sync_all()?;
        for (part, name) in parts.iter().zip(&names) {
            dir.rename(part.as_ref(), name.as_ref())?;
        }
        // A directory that may only be written to cannot be synced.
        let _ = File::open(&dir.path).map(|dir| dir.sync_all());
        Ok(bytes)
    });
    if done.is_err() {
        parts.iter().for_each(|part| dir.remove(part.as_ref()));
    }
    Ok((dir.path.join(&names[1]), done?))
}

/// What names of files begin with that are kept of a path: its last part as text, as much of it as there is room for. The note has all of it.
fn stem_of(path: &Path, numbers: &str) -> String {
    let name = path.file_name();
    let name = name.map_or("unnamed".into(), |name| name.to_string_lossy());
    let room = NAME_BYTES_MAX - ".bytes".len() - UNFINISHED.len() - numbers.len();
    format!("{}{numbers}", &name[..name.floor_char_boundary(room)])
}

/// Writes the owed bytes where they belong in a file of the same length: runs, and how many bytes they are together.
fn write_aside(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    file: &File,
) -> std::io::Result<(Vec<(u64, u64)>, u64)> {
    let entry = shared.arena.file_unchecked(id);
    file.set_len(entry.size.load(Ordering::Acquire))?;
    let mut all_runs = Vec::new();
    let mut bytes = 0;
    each_owed(shared, me, id, |offset, data| {
        bytes += data.len() as u64;
        all_runs.push((offset, data.len() as u64));
        file.write_all_at(data, offset)
    })?;
    file.sync_all()?;
    Ok((all_runs, bytes))
}

/// Calls for each run of bytes that a file owes: offset in the file, and bytes.
pub(super) fn each_owed(
    shared: &Shared,
    me: Me<'_>,
    id: FileId,
    mut each: impl FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let entry = shared.arena.file_unchecked(id);
    let size = entry.size.load(Ordering::Acquire);
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
            each(offset, &data)?;
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::{NAME_BYTES_MAX, UNFINISHED, stem_of};

    #[test]
    fn names_of_any_length_have_room_for_what_follows() {
        let numbers = format!(".{:x}.{:x}-{}", u64::MAX, u64::MAX, u64::MAX);
        let umlauts = "\u{e4}".repeat(127);
        let names: [&[u8]; 5] = [
            b"short",
            &[b'n'; 255],
            &[0xff; 255],
            umlauts.as_bytes(),
            b"/",
        ];
        for name in names {
            let path = Path::new("/somewhere").join(OsStr::from_bytes(name));
            let stem = stem_of(&path, &numbers);
            assert!(stem.ends_with(&numbers), "{stem}");
            let longest = format!("{stem}.bytes{UNFINISHED}");
            assert!(longest.len() <= NAME_BYTES_MAX, "{longest}");
        }
        let stem = stem_of(Path::new("/somewhere/short"), ".1.2-3");
        assert_eq!(stem, "short.1.2-3");
    }
}
