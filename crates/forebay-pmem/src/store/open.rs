//! Opening a store: its superblock, what the log has, free space, files without a name.
//!
//! What is read: two blocks, the log from its tail on, and the bitmaps. Nothing grows with the number of files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::flusher::Flusher;
use super::{Inner, Store};
use crate::errno::{Errno, OpenError};
use crate::layout::BLOCK;
use crate::layout::superblock::{COPIES, MARK, NoSuperblock, Superblock};
use crate::log::{self, Log, Recovered};
use crate::medium::machine::flush_by;
use crate::medium::{Durability, For, Mapped, Medium};
use crate::state::State;
use crate::types::{FLUSH_INTERVAL_MIN, OpenOptions, Statistics, Time};

impl Store {
    /// Opens the store in a file or device, after a crash too.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        let medium = Mapped::open(path, !options.read_only)?;
        Self::open_medium(Arc::new(medium), options, clock)
    }

    /// Opens the store in a medium.
    pub(crate) fn open_medium(
        medium: Arc<dyn Medium>,
        options: OpenOptions,
        clock: fn() -> Time,
    ) -> Result<Self, OpenError> {
        let superblock = read_superblock(&*medium)?;
        let Recovered {
            pages,
            tail,
            head,
            damage,
            ..
        } = log::recover(&*medium, &superblock);
        if !damage.is_empty() {
            return Err(OpenError::Damaged(damage.join("; ")));
        }
        let mut log = Log::empty(Arc::clone(&medium), &superblock, head);
        let pages = if options.read_only {
            pages
        } else {
            if !pages.is_empty() {
                log::secure(&*medium, &superblock, tail, head)?;
            }
            log::apply_pages(&*medium, superblock.id, &pages);
            medium.sync(For::Home)?;
            log.truncate()?;
            Default::default()
        };
        let mut state = State::new(medium, superblock, pages, clock);
        let damaged = state.load();
        if options.read_only {
            state.read_only = Some(Errno::EROFS);
        } else if let Some(block) = damaged.first() {
            let what = format!(
                "block {block}, which says what is free, is damaged; it can be opened for reading only"
            );
            return Err(OpenError::Damaged(what));
        }
        let writable = !options.read_only;
        let inner = Arc::new(Inner::new(state, log));
        if writable {
            // What is damaged stays: whoever comes to it gets an error, and `check` tells of it.
            let _ = inner.free_orphans();
        }
        let interval = options.flush_interval.filter(|_| writable);
        let interval = interval.map(|interval| interval.max(FLUSH_INTERVAL_MIN));
        let flusher = Some(Flusher::start(&inner, interval)?);
        Ok(Self { inner, flusher })
    }

    /// How what is done becomes durable here.
    pub fn durability(&self) -> Durability {
        self.inner.read().medium.durability()
    }
}

/// The state of a store that nobody changes, and what is wrong with its log and bitmaps.
pub(crate) fn load_state(medium: Arc<dyn Medium>) -> Result<(State, Vec<String>), OpenError> {
    let superblock = read_superblock(&*medium)?;
    let Recovered {
        pages, mut damage, ..
    } = log::recover(&*medium, &superblock);
    let mut state = State::new(medium, superblock, pages, clock);
    state.read_only = Some(Errno::EROFS);
    let bitmaps = state.load();
    damage.extend(
        bitmaps
            .iter()
            .map(|block| format!("block {block}, which says what is free, is damaged")),
    );
    Ok((state, damage))
}

/// The superblock, from either place.
pub(crate) fn read_superblock(medium: &dyn Medium) -> Result<Superblock, OpenError> {
    let mut why = NoSuperblock::NoMark;
    for block in COPIES {
        let at = block * BLOCK as u64;
        if at + BLOCK as u64 > medium.length() {
            break;
        }
        let mut bytes = [0; BLOCK];
        medium.read(at, &mut bytes);
        match Superblock::decode(&bytes) {
            Ok(found) if found.geometry.blocks * BLOCK as u64 <= medium.length() => {
                return Ok(found);
            }
            Ok(found) => {
                let (has, wants) = (medium.length(), found.geometry.blocks * BLOCK as u64);
                let what = format!("it has {wants} bytes, and what it lies in has {has}");
                return Err(OpenError::Damaged(what));
            }
            Err(NoSuperblock::NoMark) => {}
            Err(other) => why = other,
        }
    }
    Err(match why {
        NoSuperblock::NoMark => OpenError::NotAStore("there is no store here".to_string()),
        NoSuperblock::OtherLayout(version) => OpenError::NotAStore(format!(
            "the store has the layout of another build (version {version}); open it with that one"
        )),
        NoSuperblock::Damaged => OpenError::Damaged("both superblocks".to_string()),
    })
}

/// Whether a store is there, by its first bytes.
pub fn is_store(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| has_mark(&file))
}

/// Whether a file or block device holds a store.
pub(super) fn has_mark(file: &File) -> bool {
    let mut marks = [0; BLOCK + MARK.len()];
    let read = file.read_exact_at(&mut marks, 0);
    read.is_ok() && (marks.starts_with(MARK) || marks.ends_with(MARK))
}

/// What `forebay pmem info` tells.
#[derive(Clone, Debug)]
pub struct Information {
    /// The store's own number.
    pub id: u64,
    /// Where things lie.
    pub superblock: Superblock,
    /// How it becomes durable where it lies now.
    pub durability: Durability,
    /// What lines are written back with on this machine.
    pub flush: &'static str,
    /// What is in use.
    pub statistics: Statistics,
    /// Records of the log that a mount would replay.
    pub records: u64,
    /// What is wrong with the log.
    pub damage: Vec<String>,
}

/// Looks at a store without changing it.
pub fn information(path: &Path) -> Result<Information, OpenError> {
    let medium: Arc<dyn Medium> = Arc::new(Mapped::open(path, false)?);
    let superblock = read_superblock(&*medium)?;
    let records = log::recover(&*medium, &superblock).records;
    let durability = medium.durability();
    let (state, damage) = load_state(medium)?;
    Ok(Information {
        id: superblock.id,
        superblock,
        durability,
        flush: flush_by().name(),
        statistics: super::calls::statistics(&state),
        records,
        damage,
    })
}

/// The system's clock.
pub(crate) fn clock() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            seconds: since.as_secs() as i64,
            nanoseconds: since.subsec_nanos(),
        },
        Err(_) => Time::default(),
    }
}
