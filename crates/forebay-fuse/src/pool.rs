//! The file system: the files of a pool.
//!
//! A file's number is the pool's own. The kernel keeps no copies of bytes and believes nothing of names and attributes: other hosts change them.
//! What this host has read is in the memory of this process, under the pool's grants. What the kernel keeps where it is asked to, [`kept`] says.
//!
//! Written bytes are this host's until somebody else wants them, or they are synced. The time of a write is told to the pool at
//! `fsync` and at `close`; this mount shows it at once. A file whose last name goes while it is open here stays until it is
//! closed here. Other hosts that have it open find that it is gone (`ESTALE`).

mod ending;
mod kept;
mod known;
mod served;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_pool::client::{Changes as PoolChanges, Entry, Facts, Failure, Kind};
use forebay_pool::files::{Error, Files, Heard, Left};
use forebay_pool::ids::File;
use rustix::fs::FileType;

use crate::attributes::{FileAttr, NewTime, Time};
use crate::caller::Caller;
use crate::changes::Changes;
use crate::contents::{SET_GROUP, without_privileges};
use crate::failed::{Answer, Failed};
use crate::handles::Handles;
use ending::UNSYNCED_MAX;
use kept::{Kept, Looked};
use known::{Known, later};

const SECTOR: u64 = 512;

/// What a directory has.
type Names = Vec<(Vec<u8>, Entry)>;

/// An open file.
struct Opening {
    file: File,
    heard: Heard,
    /// Of one that the kernel reads by its own pages.
    looked: Option<Looked>,
}

/// An open directory: the names that it had when it was read from its beginning.
struct Listing {
    number: u64,
    heard: Heard,
    names: Mutex<Arc<Names>>,
}

/// A pool that is served.
pub(crate) struct Pooled {
    files: Files,
    believed: Duration,
    /// `None`: the kernel keeps nothing.
    kept: Option<Arc<Kept>>,
    known: Mutex<HashMap<File, Known>>,
    openings: Handles<Opening>,
    listings: Handles<Listing>,
    /// What could not be removed yet.
    left: Left,
    /// So many files may be unsynced and closed; then they are synced.
    most_unsynced: AtomicUsize,
}

impl Pooled {
    /// `cache`: the kernel keeps what it has of files.
    pub(crate) fn new(files: Files, believed: Duration, cache: bool) -> Self {
        let kept = cache.then(Arc::<Kept>::default);
        if let Some(kept) = kept.clone() {
            files.pool().watch(move |file| kept.goes(file));
        }
        Pooled {
            files,
            believed,
            kept,
            known: Mutex::default(),
            openings: Handles::new(),
            listings: Handles::new(),
            left: Left::default(),
            most_unsynced: AtomicUsize::new(UNSYNCED_MAX),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<File, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Openings of files.
    pub(crate) fn open_files(&self) -> usize {
        self.known().values().map(|known| known.openings).sum()
    }

    /// Syncs a file for an opening of it, or where nobody has asked for that.
    fn sync_file(&self, file: File, heard: Option<&Heard>) -> Answer<()> {
        self.publish(file)?;
        let before = self.known().get_mut(&file).map(|known| {
            // What is written from now on is not this sync's.
            std::mem::take(&mut known.is_dirty)
        });
        let synced = match heard {
            Some(heard) => self.files.sync_for(file, heard),
            None => self.files.sync_unasked(file),
        };
        if synced.is_err()
            && let (Some(true), Some(known)) = (before, self.known().get_mut(&file))
        {
            known.is_dirty = true;
        }
        self.tidy(file);
        Ok(synced?)
    }

    /// Its bytes may be others now: also where a write has failed, of which a part may be there.
    fn differs(&self, file: File) {
        if let Some(kept) = &self.kept {
            kept.changed(file);
        }
    }

    /// It was written.
    fn written(&self, file: File) {
        let mut all = self.known();
        let known = all.entry(file).or_default();
        known.modified = Some(now());
        known.is_dirty = true;
    }

    /// Tells the pool when a file was written last.
    fn publish(&self, file: File) -> Answer<()> {
        let taken = |known: &mut Known| Some((known.modified.take()?, known.hidden.take()));
        let Some((before, hidden)) = self.known().get_mut(&file).and_then(taken) else {
            return Ok(());
        };
        let published = match &self.kept {
            None => self.publish_as(file, before),
            Some(kept) => self.publish_to_readers(kept, file, (before, hidden)),
        };
        match published {
            // Its times do not matter any more.
            Ok(()) | Err(Error::Pool(Failure::Gone)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The same where kernels have pages of it, which they keep as long as its time is the same: another host's write is not to be hidden.
    fn publish_to_readers(
        &self,
        kept: &Kept,
        file: File,
        (before, hidden): (i64, Option<i64>),
    ) -> Result<(), Error> {
        let since = kept.now();
        let pools = self.files.attributes(file).map(|(_, facts)| facts.modified);
        let is_foreign = |pools: &i64| hidden.is_some_and(|hidden| hidden != *pools);
        let foreign = pools.ok().filter(is_foreign);
        let modified = foreign.map_or(before, |pools| later(before.max(pools)));
        let mut published = self.publish_as(file, modified);
        // It may have told of a write in between.
        let is_doubtful = published.is_ok() && kept.has_gone(file, since);
        if is_doubtful {
            published = self.publish_as(file, later(modified));
        }
        if is_doubtful || modified != before {
            kept.take_back(file);
        }
        published
    }

    fn publish_as(&self, file: File, modified: i64) -> Result<(), Error> {
        let changes = PoolChanges {
            modified: Some(modified),
            changed: Some(modified),
            ..PoolChanges::default()
        };
        if let Some(known) = self.known().get_mut(&file) {
            known.telling = Some(modified);
        }
        let told = self.files.change(file, changes);
        if let Some(known) = self.known().get_mut(&file) {
            let is_told = matches!(told, Ok(()) | Err(Error::Pool(Failure::Gone)));
            known.told(modified, is_told);
        }
        told
    }

    /// Forgets what there is nothing to know of.
    fn tidy(&self, file: File) {
        let mut all = self.known();
        if all
            .get(&file)
            .is_some_and(|known| known.openings == 0 && !known.is_dirty && !known.is_going)
        {
            all.remove(&file);
        }
    }

    /// Opens a file, unless it is no more or is about to be: then the kernel looks the name up again, which others may have given away meanwhile.
    fn opened(&self, file: File) -> Answer<()> {
        {
            let mut all = self.known();
            let known = all.entry(file).or_default();
            if known.is_going {
                return Err(Failed(libc::ESTALE));
            }
            // From now on it stays, unless another host removes it, or has.
            known.openings += 1;
        }
        match self.files.attributes(file) {
            Err(error) if error.errno() == libc::ESTALE => {
                self.closed(file);
                Err(error.into())
            }
            // What was lost with a server may be opened, and written anew.
            _ => Ok(()),
        }
    }

    fn closed(&self, file: File) {
        let is_last = self.known().get_mut(&file).is_some_and(|known| {
            known.openings = known.openings.saturating_sub(1);
            known.is_synced &= known.openings > 0;
            let is_last = known.openings == 0 && known.is_gone;
            if is_last {
                *known = Known::going();
            }
            is_last
        });
        if is_last {
            self.remove(file);
        } else {
            // Nobody hears of a failure; the next sync tries again.
            let _ = self.publish(file);
            self.tidy(file);
        }
        self.sync_if_many();
    }

    /// Its last name has gone.
    fn unnamed(&self, entry: Entry) {
        {
            let mut all = self.known();
            let known = all.entry(entry.file).or_default();
            if known.openings > 0 {
                known.is_gone = true;
                return;
            }
            *known = Known::going();
        }
        self.remove(entry.file);
        self.left.again(|file| self.remove_one(file));
    }

    /// Removes a file that is known to be going, now or later. Nobody hears of a failure: its name has gone.
    fn remove(&self, file: File) {
        if !self.remove_one(file) {
            self.left.add(file);
        }
    }

    /// Whether nothing is to be done for it any more.
    fn remove_one(&self, file: File) -> bool {
        let is_over = self.files.try_remove(file);
        if is_over {
            self.known().remove(&file);
        }
        is_over
    }

    fn told(&self, file: File) -> Answer<FileAttr> {
        // Before the pool is asked: it may be told meanwhile.
        let before = self.known().get(&file).and_then(Known::own_modified);
        let (size, facts) = self.files.attributes(file)?;
        let mut told = told(file, size, &facts);
        let mut all = self.known();
        let mut known = all.get_mut(&file);
        let now = { known.as_mut() }.and_then(|known| match &self.kept {
            None => known.own_modified(),
            Some(_) => known.modified(facts.modified),
        });
        if let Some(modified) = now.or(before) {
            told.modified = moment(modified);
            told.changed = told.modified;
        }
        told.links -= known.map_or(0, |known| u32::from(known.is_gone));
        Ok(told)
    }

    /// The same; the kernel may believe it if nothing of the file has been given back meanwhile. `asks`: by its number, so the kernel has it.
    fn told_in_term(&self, file: File, asks: bool) -> Answer<FileAttr> {
        let Some(kept) = &self.kept else {
            return self.told(file);
        };
        let since = kept.now();
        let told = self.told(file)?;
        // The other half of the term is for an answer that the kernel takes late.
        let in_term = self.files.pool().term_left() / 2;
        let believed = { kept.may_believe(file, since, asks) }.then(|| self.believed.max(in_term));
        Ok(FileAttr { believed, ..told })
    }

    fn changed(&self, number: u64, changes: &Changes) -> Answer<FileAttr> {
        let file = File(number);
        let now = now();
        let mut mode = changes.mode.map(|mode| (mode & 0o7777) as u16);
        if changes.kills {
            let facts = self.files.attributes(file)?.1;
            let kept = without_privileges(facts.mode.into()) as u16;
            if facts.kind == Kind::File && kept != facts.mode {
                mode = mode.or(Some(kept));
            }
        }
        if let Some(len) = changes.len {
            let truncated = self.files.truncate(file, len);
            self.differs(file);
            truncated?;
            self.written(file);
            self.publish(file)?;
        }
        if changes.modified.is_some() {
            // What a program says counts from now on.
            self.publish(file)?;
        }
        let changes = PoolChanges {
            mode,
            uid: changes.uid,
            gid: changes.gid,
            accessed: changes.accessed.map(|time| set_time(time, now)),
            modified: changes.modified.map(|time| set_time(time, now)),
            changed: Some(now),
        };
        self.files.change(file, changes)?;
        self.owes(file);
        self.told(file)
    }

    fn kill_privileges(&self, file: File) -> Answer<()> {
        let mode = self.files.attributes(file)?.1.mode;
        let kept = without_privileges(mode.into()) as u16;
        if mode != kept {
            let changes = PoolChanges {
                mode: Some(kept),
                ..PoolChanges::default()
            };
            self.files.change(file, changes)?;
            self.owes(file);
        }
        Ok(())
    }

    /// Of a new file. A directory that gives its group gives it to what is made in it.
    fn facts(&self, by: &Caller, parent: u64, kind: Kind, mode: u32) -> Answer<Facts> {
        let around = self.files.attributes(File(parent))?.1;
        let gives = u32::from(around.mode) & SET_GROUP != 0;
        let inherits = gives && kind == Kind::Directory;
        let now = now();
        Ok(Facts {
            kind,
            mode: (mode & 0o7777) as u16 | if inherits { SET_GROUP as u16 } else { 0 },
            uid: by.uid,
            gid: if gives { around.gid } else { by.gid },
            accessed: now,
            modified: now,
            changed: now,
        })
    }

    /// A directory has other names now. That its times could not be changed is no reason to say that the names were not.
    fn touched(&self, directory: u64) {
        let now = now();
        let changes = PoolChanges {
            modified: Some(now),
            changed: Some(now),
            ..PoolChanges::default()
        };
        if self.files.change(File(directory), changes).is_ok() {
            self.owes(File(directory));
        }
        if let Some(kept) = &self.kept {
            kept.take_back(File(directory));
        }
    }

    /// The servers do not have it as it is.
    fn owes(&self, file: File) {
        self.known().entry(file).or_default().is_dirty = true;
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as i64)
}

fn set_time(time: NewTime, now: i64) -> i64 {
    match time {
        NewTime::Now => now,
        NewTime::At(time) => time.ns().clamp(i64::MIN.into(), i64::MAX.into()) as i64,
    }
}

fn moment(ns: i64) -> Time {
    Time::from_ns(ns.into())
}

fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
    }
}

fn told(file: File, size: u64, facts: &Facts) -> FileAttr {
    FileAttr {
        number: file.0,
        size,
        blocks: size.div_ceil(SECTOR),
        accessed: moment(facts.accessed),
        modified: moment(facts.modified),
        changed: moment(facts.changed),
        born: None,
        mode: kind_of(facts.kind).as_raw_mode() | u32::from(facts.mode),
        links: if facts.kind == Kind::Directory { 2 } else { 1 },
        uid: facts.uid,
        gid: facts.gid,
        device: 0,
        block_size: 4096,
        believed: None,
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed(error.errno())
    }
}
