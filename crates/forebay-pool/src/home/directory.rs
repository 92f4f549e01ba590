//! A home that is a directory of a file system: the servers' own, or one that several hosts see.
//!
//! ```text
//! life             the number of the pool's life, and the size of its blocks
//! lock             locked by the pool's first server as long as it lives
//! FILE/BLOCK       a block: its version, 24 bytes, and what it holds
//! FILE/turn/       of whoever changes anything in FILE (`turn`)
//! ```
//!
//! A block is written to another name, synced, and renamed: it is the old one or the new one, also after a power cut. A file system may give a file
//! its new name before it has the bytes. A file that is no block is an error and not a hole: something has damaged it, and whoever needs it is told.

mod discards;
mod turn;

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Home, life_of};
use crate::ids::{Epoch, File, Version};
use crate::message::{Block, Place};
use crate::wire::BLOCK_MAX;
use discards::Discards;
use turn::in_turn;

const HEAD: usize = 24;
const LIFE: &str = "life";
const LIFE_DRAFT: &str = "life-draft";
const LOCK: &str = "lock";

/// A pool's files have modes of their own, which only its mounts know: on the home's file system nobody else reads any of them.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// A directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Where this server writes what it renames then.
    draft: String,
    discards: Mutex<Discards>,
    /// Files with names that are not durable yet.
    renamed: Mutex<BTreeSet<File>>,
}

/// Why a directory is not a pool's home.
#[derive(Debug, thiserror::Error)]
pub enum Foreign {
    /// It cannot be used.
    #[error("{0}: {1}")]
    Failed(PathBuf, io::Error),
    /// Its blocks have another size.
    #[error("{0} is the home of a pool with block_bytes = {1}")]
    Blocks(PathBuf, u64),
    /// Another pool's first server, or another life of this one's, has it.
    #[error("{0} is the home of a pool that runs")]
    Taken(PathBuf),
    /// Something else lies there.
    #[error("{0} is neither empty nor a pool's home")]
    Other(PathBuf),
}

impl Directory {
    /// The home of a server with this number.
    pub fn new(path: &Path, server: u32) -> Directory {
        // A server of an earlier life may be suspended, and go on with its own draft whenever it wakes: it finds nobody else's.
        let life = RandomState::new().build_hasher().finish();
        Directory {
            path: path.to_owned(),
            draft: format!("draft-{server}-{life:016x}"),
            discards: Mutex::default(),
            renamed: Mutex::default(),
        }
    }

    /// Takes a home for one pool as long as the answer lives, and makes it if it is not there. By the first server.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn take(path: &Path, block_bytes: u64) -> Result<Taken, Foreign> {
        let failed = |error| Foreign::Failed(path.to_owned(), error);
        make_directory(path).map_err(failed)?;
        // Nothing is put into a directory that is something else's.
        life_before(path, block_bytes)?;
        let lock = lock_file(path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Taken(lock)),
            Err(fs::TryLockError::WouldBlock) => Err(Foreign::Taken(path.to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Begins another life of the pool, and says its number; the first is 1. Once a life, by its first server, which has taken the home.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn begin_life(path: &Path, block_bytes: u64) -> Result<u64, Foreign> {
        Directory::begin_life_after(path, block_bytes, 0)
    }

    /// The same, where lives up to this one are known from elsewhere.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn begin_life_after(path: &Path, block_bytes: u64, known: u64) -> Result<u64, Foreign> {
        let life = life_before(path, block_bytes)?.max(known) + 1;
        let text = format!("{life} {block_bytes}\n");
        replace(&path.join(LIFE_DRAFT), &path.join(LIFE), &[text.as_bytes()])
            .and_then(|()| sync(path))
            .and_then(|()| sync_names(path))
            .map_err(|error| Foreign::Failed(path.to_owned(), error))?;
        Ok(life)
    }

    fn renamed(&self) -> MutexGuard<'_, BTreeSet<File>> {
        self.renamed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, file: File) -> PathBuf {
        self.path.join(format!("{:016x}", file.0))
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// The number of a home's last life; 0 if it is empty.
fn life_before(path: &Path, block_bytes: u64) -> Result<u64, Foreign> {
    let failed = |error| Foreign::Failed(path.to_owned(), error);
    if let Some(text) = perhaps(fs::read_to_string(path.join(LIFE))).map_err(failed)? {
        let words: Vec<u64> = { text.split_whitespace() }
            .map_while(|word| word.parse().ok())
            .collect();
        return match words[..] {
            [life, bytes] if bytes == block_bytes => Ok(life),
            [_, bytes] => Err(Foreign::Blocks(path.to_owned(), bytes)),
            _ => Err(Foreign::Other(path.to_owned())),
        };
    }
    for entry in fs::read_dir(path).map_err(failed)? {
        // Whoever began the first life may have been killed before it had begun.
        let name = entry.map_err(failed)?.file_name();
        if name != LOCK && name != LIFE_DRAFT {
            return Err(Foreign::Other(path.to_owned()));
        }
    }
    Ok(0)
}

/// A home that is this process's pool's.
#[derive(Debug)]
pub struct Taken(fs::File);

impl Drop for Taken {
    /// Gives it back at once: a child that is about to execute something may have the descriptor too.
    fn drop(&mut self) {
        // It goes with the descriptor at the latest.
        let _ = self.0.unlock();
    }
}

/// Whether others than its owner may enter a directory, and see a pool's files by their numbers; `false` if it cannot be told.
pub fn is_open(home: &Path) -> bool {
    fs::metadata(home).is_ok_and(|home| home.mode() & 0o077 != 0)
}

/// Writes a file in one step. Its bytes are durable before they take the place of others, which may have been synced; the new name is not.
fn replace(draft: &Path, to: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut out = options.mode(FILE_MODE).open(draft)?;
    parts.iter().try_for_each(|part| out.write_all(part))?;
    out.sync_data()?;
    fs::rename(draft, to)
}

fn sync(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(path)?)?)
}

/// Whether `syncfs` makes names durable on this file system, as far as is known. It does not reach one in user space, and one that lies over others
/// passes it on to who knows which: there each directory is synced, which costs more.
fn syncs_names(path: &Path) -> io::Result<bool> {
    const KNOWN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    Ok(KNOWN.contains(&(rustix::fs::statfs(path)?.f_type as u64)))
}

/// The names in a directory are durable, or have gone with it.
fn sync_names(path: &Path) -> io::Result<()> {
    match perhaps(fs::File::open(path))? {
        Some(directory) => directory.sync_all(),
        None => Ok(()),
    }
}

fn lock_file(directory: &Path) -> io::Result<fs::File> {
    let path = directory.join(LOCK);
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true).mode(FILE_MODE).open(path)
}

fn head(version: Version) -> [[u8; 8]; 3] {
    [version.epoch, version.stamp, version.change].map(u64::to_le_bytes)
}

fn version(head: &[u8]) -> Option<Version> {
    let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    Some(Version {
        epoch: word(0)?,
        stamp: word(8)?,
        change: word(16)?,
    })
}

/// The version of a block in a file, if it is there.
fn there(path: &Path) -> io::Result<Option<Version>> {
    let Some(there) = perhaps(fs::File::open(path))? else {
        return Ok(None);
    };
    let mut head = Vec::with_capacity(HEAD);
    there.take(HEAD as u64).read_to_end(&mut head)?;
    Ok(version(&head))
}

/// What is not there is nothing, and no error.
fn perhaps<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Home for Directory {
    fn load(&self, (file, block): Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        let path = self.of(file).join(format!("{block:x}"));
        let Some(bytes) = perhaps(fs::read(&path))? else {
            return Ok(None);
        };
        let version = version(&bytes).filter(|_| bytes.len() <= HEAD + BLOCK_MAX);
        let version = version.ok_or_else(|| {
            let why = format!("{} is damaged: it is no block", path.display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        Ok(Some((version, bytes[HEAD..].to_vec())))
    }

    fn store(&self, block: &Block) -> io::Result<bool> {
        let directory = self.of(block.place.0);
        let name = format!("{:x}", block.place.1);
        let head = head(block.version);
        let parts = [head.as_flattened(), &block.bytes];
        in_turn((&directory, &self.draft), |turn| {
            turn.write(&self.draft, &parts)?;
            turn.take()?;
            match there(&directory.join(&name))? {
                Some(there) if there >= block.version => {
                    let life = |version: Version| life_of(Epoch(version.epoch));
                    if life(there) > life(block.version) {
                        let path = directory.join(&name);
                        let why = format!("{} is of a later life of the pool", path.display());
                        return Err(io::Error::other(why));
                    }
                    Ok(there == block.version)
                }
                _ => turn.bring(&self.draft, &name).map(|()| true),
            }
        })
        .inspect(|_| {
            self.renamed().insert(block.place.0);
        })
    }

    fn discard(&self, file: File, from: u64, whole: bool, goes_on: bool) -> io::Result<bool> {
        let directory = self.of(file);
        let mut discards = { self.discards.lock() }.unwrap_or_else(PoisonError::into_inner);
        discards.discard((&directory, &self.draft), (file, from, whole), goes_on)
    }

    fn sync(&self) -> io::Result<()> {
        let files = std::mem::take(&mut *self.renamed());
        let synced = sync(&self.path).and_then(|()| {
            if syncs_names(&self.path)? {
                return Ok(());
            }
            let directories = files.iter().map(|file| self.of(*file));
            { directories.chain([self.path.clone()]) }.try_for_each(|path| sync_names(&path))
        });
        if synced.is_err() {
            self.renamed().extend(files);
        }
        synced
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ids::SIZE_BLOCK;

    fn block(file: u64, number: u64, change: u64) -> Block {
        Block {
            place: (File(file), number),
            version: Version {
                epoch: 1,
                stamp: 2,
                change,
            },
            bytes: vec![change as u8; 100].into(),
        }
    }

    #[test]
    fn newer_blocks_stay_and_what_is_discarded_goes() {
        let around = tempfile::tempdir().unwrap();
        let [one, two] = [1, 2].map(|server| Directory::new(around.path(), server));
        for number in [0, 1, 0xd, SIZE_BLOCK] {
            one.store(&block(7, number, 5)).unwrap();
        }
        assert!(!two.store(&block(7, 1, 4)).unwrap());
        assert!(two.store(&block(7, 1, 5)).unwrap());
        let load = |number| two.load((File(7), number)).unwrap();
        assert_eq!(load(1).unwrap().1, [5; 100]);
        two.store(&block(7, 1, 6)).unwrap();
        let newest = block(7, 1, 6);
        assert_eq!(load(1), Some((newest.version, newest.bytes.to_vec())));
        while !one.discard(File(7), 1, false, true).unwrap() {}
        assert!(load(0).is_some() && load(SIZE_BLOCK).is_some());
        assert!(load(1).is_none() && load(0xd).is_none());
        while !one.discard(File(7), 0, true, true).unwrap() {}
        assert!(load(0).is_none() && load(SIZE_BLOCK).is_none());
        two.sync().unwrap();
    }

    #[test]
    fn no_two_servers_have_one_draft() {
        let around = tempfile::tempdir().unwrap();
        let [old, new] = [2, 2].map(|server| Directory::new(around.path(), server));
        assert_ne!(old.draft, new.draft);
    }

    #[test]
    fn names_are_synced_once_where_that_is_to_be_done() {
        let around = tempfile::tempdir().unwrap();
        let home = Directory::new(around.path(), 1);
        home.store(&block(7, 1, 5)).unwrap();
        home.store(&block(8, 1, 5)).unwrap();
        assert_eq!(home.renamed().len(), 2);
        while !home.discard(File(8), 0, true, true).unwrap() {}
        home.sync().unwrap();
        assert!(home.renamed().is_empty());
        for file in [7, 8] {
            sync_names(&home.of(File(file))).unwrap();
        }
    }

    #[test]
    fn a_home_that_cannot_be_looked_at_has_discarded_nothing() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("home");
        let home = Directory::new(&path, 1);
        assert!(
            home.discard(File(7), 0, true, false).unwrap(),
            "nothing is there"
        );
        fs::write(&path, "").unwrap();
        home.discard(File(7), 0, true, false).unwrap_err();
    }

    #[test]
    fn what_is_no_block_is_an_error_and_no_hole() {
        let around = tempfile::tempdir().unwrap();
        let home = Directory::new(around.path(), 1);
        home.store(&block(7, 1, 5)).unwrap();
        let path = home.of(File(7)).join("1");
        for length in [0, HEAD as u64 - 1, (HEAD + BLOCK_MAX) as u64 + 1] {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            let why = home.load((File(7), 1)).unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::InvalidData, "{length}");
        }
        // Whoever writes the whole block mends it.
        home.store(&block(7, 1, 6)).unwrap();
        assert_eq!(home.load((File(7), 1)).unwrap().unwrap().1, [6; 100]);
    }

    #[test]
    fn nobody_else_reads_a_home() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("deep/home");
        let _taken = Directory::take(&path, 4096).unwrap();
        Directory::begin_life(&path, 4096).unwrap();
        let home = Directory::new(&path, 1);
        home.store(&block(7, 1, 5)).unwrap();
        assert!(!is_open(&path));
        let mut all = vec![around.path().join("deep")];
        let mut count = 0;
        while let Some(path) = all.pop() {
            let found = fs::metadata(&path).unwrap();
            assert_eq!(found.mode() & 0o077, 0, "{}", path.display());
            count += 1;
            if found.is_dir() {
                all.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
        }
        // Two directories, the life and its lock, and a file's directory with a block, and with its turn and the lock of that.
        assert_eq!(count, 8);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o710)).unwrap();
        assert!(is_open(&path));
    }

    /// `tests/run.d/73-pool-power-cut.sh` runs this, cuts the power, and runs it again. Elsewhere it does nothing.
    #[test]
    fn what_was_synced_is_there_after_a_power_cut() {
        let Some(path) = std::env::var_os("TEST_POOL_HOME") else {
            return;
        };
        let path = Path::new(&path);
        let _taken = Directory::take(path, 4096).unwrap();
        let life = Directory::begin_life(path, 4096).unwrap();
        let home = Directory::new(path, 1);
        let synced = |life| 2 * life;
        let store =
            |change| (0..64).try_for_each(|number| home.store(&block(7, number, change)).map(drop));
        for number in (0..64).filter(|_| life > 1) {
            let (version, bytes) = home.load((File(7), number)).unwrap().unwrap();
            // Or what was written over it afterwards.
            let of_last = synced(life - 1)..=synced(life - 1) + 1;
            assert!(of_last.contains(&version.change), "{version:?}");
            assert_eq!(bytes, [version.change as u8; 100]);
        }
        store(synced(life)).unwrap();
        home.sync().unwrap();
        store(synced(life) + 1).unwrap();
    }

    #[test]
    fn lives_are_counted_and_other_directories_refused() {
        let around = tempfile::tempdir().unwrap();
        let home = around.path().join("home");
        let begin = |bytes| {
            let _taken = Directory::take(&home, bytes)?;
            Directory::begin_life(&home, bytes)
        };
        assert_eq!((begin(4096).unwrap(), begin(4096).unwrap()), (1, 2));
        assert!(matches!(begin(512), Err(Foreign::Blocks(_, 4096))));
        let other = Directory::take(around.path(), 4096);
        assert!(matches!(other, Err(Foreign::Other(_))));
        assert!(!around.path().join(LOCK).exists());
        let taken = Directory::take(&home, 4096).unwrap();
        assert!(matches!(begin(4096), Err(Foreign::Taken(_))));
        drop(taken);
        assert_eq!(begin(4096).unwrap(), 3);
        // Whoever was killed before the first life had begun left this.
        fs::remove_file(home.join(LIFE)).unwrap();
        fs::write(home.join(LIFE_DRAFT), "").unwrap();
        assert_eq!(begin(4096).unwrap(), 1);
    }

    #[test]
    fn what_a_later_life_has_written_is_no_success_of_an_earlier_one() {
        let around = tempfile::tempdir().unwrap();
        let home = Directory::new(around.path(), 1);
        let of_life = |life: u64, change| {
            let mut block = block(7, 1, change);
            block.version.epoch = (life << 32) + 5;
            block
        };
        home.store(&of_life(2, 3)).unwrap();
        assert!(home.store(&of_life(1, 4)).is_err());
        // Within a life another server may have been quicker.
        home.store(&of_life(2, 2)).unwrap();
        assert_eq!(home.load((File(7), 1)).unwrap().unwrap().1, [3; 100]);
    }
}
