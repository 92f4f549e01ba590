//! Making a store: everything but the mark first, then the mark.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::open::{clock, read_superblock};
use crate::errno::{OpenError, Result};
use crate::layout::inode::Inode;
use crate::layout::superblock::{COPIES, MARK, Superblock, TAILS, Tail};
use crate::layout::{BITS, BLOCK, BLOCKS_MIN, Geometry, INODES_PER_BLOCK, Kind};
use crate::log;
use crate::medium::{self, For, Mapped, Medium};
use crate::pages::{PageMap, Pages};
use crate::state::State;
use crate::types::{CreateOptions, ROOT};

/// Makes a store of `size` bytes (`None`: of as many as the file or device has).
pub fn create(path: &Path, size: Option<u64>) -> std::result::Result<(), OpenError> {
    create_with(
        path,
        &CreateOptions {
            size,
            ..CreateOptions::default()
        },
    )
}

/// Makes a store.
pub fn create_with(path: &Path, options: &CreateOptions) -> std::result::Result<(), OpenError> {
    let store = || OpenError::Occupied(format!("{} holds a store already", path.display()));
    if let Some(size) = options.size {
        // Said before a file is made.
        geometry(size, options)?;
    }
    let may_overwrite = |file: &File| match options.force {
        true => Ok(()),
        false if super::open::has_mark(file) => Err(store()),
        false => refuse_bytes(file, path),
    };
    let medium = Mapped::create(path, options.size, options.sparse, may_overwrite)?;
    // A device of DAX can only be read where it is mapped.
    if !options.force && has_mark(&medium) {
        return Err(store());
    }
    make(Arc::new(medium), options)
}

/// A file with other bytes than zeros is somebody's. What devices hold may be anything, and is not looked at.
fn refuse_bytes(file: &File, path: &Path) -> std::result::Result<(), OpenError> {
    let failed = |error| OpenError::system(&format!("{} cannot be read", path.display()), error);
    if !file.metadata().map_err(failed)?.is_file() {
        return Ok(());
    }
    match medium::holds_bytes(file).map_err(failed)? {
        true => {
            let what = format!("{} is a file with other content", path.display());
            Err(OpenError::Occupied(what))
        }
        false => Ok(()),
    }
}

/// Whether a store is there, of whatever layout.
fn has_mark(medium: &dyn Medium) -> bool {
    COPIES.iter().any(|block| {
        let mut mark = [0; MARK.len()];
        let at = block * BLOCK as u64;
        let there = at + mark.len() as u64 <= medium.length();
        if there {
            medium.read(at, &mut mark);
        }
        there && &mark == MARK
    })
}

fn geometry(size: u64, options: &CreateOptions) -> std::result::Result<Geometry, OpenError> {
    let blocks = size / BLOCK as u64;
    let least = BLOCKS_MIN * BLOCK as u64;
    let small = OpenError::TooSmall { size, least };
    let usual = Geometry::default_for(blocks).filter(|_| blocks >= BLOCKS_MIN);
    let Some(usual) = usual else {
        return Err(small);
    };
    let inodes = options.inodes.map_or(usual.inodes, |inodes| {
        inodes
            .max(INODES_PER_BLOCK)
            .next_multiple_of(INODES_PER_BLOCK)
    });
    let log_blocks = options.log_blocks.unwrap_or(usual.log_blocks);
    Geometry::new(blocks, log_blocks, inodes).ok_or(small)
}

/// Makes a store in a medium.
pub(crate) fn make(
    medium: Arc<dyn Medium>,
    options: &CreateOptions,
) -> std::result::Result<(), OpenError> {
    let geometry = geometry(medium.length(), options)?;
    let superblock = Superblock {
        id: identity(&*medium),
        geometry,
    };
    unmark(&*medium)?;
    let mut state = State::new(Arc::clone(&medium), superblock, PageMap::default(), clock);
    fill(&mut state)?;
    let batch = state
        .collect()
        .ok_or(OpenError::NotAStore("an empty store".to_string()))?;
    log::apply_pages(&*medium, superblock.id, &batch.pages);
    for block in TAILS {
        log::write_tail(&*medium, superblock.id, block, Tail(0))?;
    }
    medium.sync(For::Create)?;
    for block in COPIES {
        medium.stream(block * BLOCK as u64, &superblock.encode(), For::Mark);
    }
    medium.sync(For::Mark)?;
    Ok(())
}

/// A store that was here is none any more before anything of it is written over.
fn unmark(medium: &dyn Medium) -> Result<()> {
    for block in COPIES {
        medium.stream(block * BLOCK as u64, &[0; BLOCK], For::Unmark);
    }
    medium.sync(For::Unmark)
}

/// The bitmaps and the root.
fn fill(state: &mut State) -> Result<()> {
    let geometry = *state.geometry();
    let Geometry {
        bitmap,
        inode_bitmap,
        table,
        data,
        ..
    } = geometry;
    for block in bitmap..inode_bitmap {
        state.pages.make(block, Kind::Blocks);
    }
    for block in inode_bitmap..table {
        state.pages.make(block, Kind::Inodes);
    }
    set_first(&mut state.pages, bitmap, Kind::Blocks, data)?;
    set_first(&mut state.pages, inode_bitmap, Kind::Inodes, 1)?;
    state.load();
    state.take_inode_number(ROOT)?;
    let now = state.now();
    let root = Inode {
        mode: libc::S_IFDIR | 0o755,
        links: 2,
        parent: ROOT,
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        ..Inode::default()
    };
    state.put(ROOT, &root)?;
    state.keep_large(&[]);
    Ok(())
}

/// Sets the first bits of a bitmap: the store's own blocks, and the inode that is none.
fn set_first(pages: &mut Pages, first: u64, kind: Kind, count: u64) -> Result<()> {
    for page in 0..count.div_ceil(BITS) {
        let bits = (count - page * BITS).min(BITS) as usize;
        let mut bytes = vec![0xff; bits / 8];
        if !bits.is_multiple_of(8) {
            bytes.push((1 << (bits % 8)) - 1);
        }
        pages.write(first + page, kind, 0, &bytes)?;
    }
    Ok(())
}

/// A number that no other store has: time, process, an address, and what the store before had.
fn identity(medium: &dyn Medium) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos() as u64);
    let before = read_superblock(medium).map_or(0, |superblock| superblock.id);
    let place = std::ptr::from_ref(&now) as u64;
    let parts = [now, u64::from(std::process::id()), place, before];
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |id: u64, part| {
        (id ^ part)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(29)
    })
}
