//! A home that is a directory of a file system: the servers' own, or one that several hosts see.
//!
//! ```text
//! life             the number of the pool's life, the size of its blocks, and the mark of the life of its members
//! lock             locked by the pool's first server as long as it lives
//! FILE/BLOCK       a block: its version, 24 bytes, and what it holds
//! together/        names that come to several blocks (`together`)
//! FILE/turn/       of whoever changes anything in FILE (`turn`)
//! ```
//!
//! A block is written to another name, synced, and renamed: it is the old one or the new one, also after a power cut. A file system may give a file
//! its new name before it has the bytes. A file that is no block is an error and not a hole: something has damaged it, and whoever needs it is told.
//!
//! What is not there is a hole. So a server asks whether a directory is its pool's home before it believes that ([`Directory::open`]), and keeps it open: what
//! is mounted or unmounted over its path later is nothing to it. Only whoever begins a life makes the directory itself.

mod discards;
mod together;
mod turn;

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatvfs, openat};
use rustix::io::retry_on_intr;

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
    root: fs::File,
    /// `syncfs` does not make names durable here, as far as is known: each directory is synced when it has a new one.
    syncs_each: bool,
    /// Where this server writes what it renames then.
    draft: String,
    discards: Mutex<Discards>,
    /// As [`Home::boot`] has it as long as no sync has failed, and afterwards.
    boots: [u64; 2],
    /// What a sync has failed by: the kernel says so once, and the next one would say that all is well.
    failed: OnceLock<String>,
}

/// Whose a home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Bytes of a block, for all time.
    pub block_bytes: u64,
    /// The mark of the life of the pool's members.
    pub birth: u64,
}

/// Why a directory is not a pool's home.
#[derive(Debug, thiserror::Error)]
pub enum Foreign {
    /// It cannot be used.
    #[error("{0}: {1}{hint}", hint = hint(.1))]
    Failed(PathBuf, io::Error),
    /// Its blocks have another size.
    #[error("{0} is the home of a pool with block_bytes = {1}")]
    Blocks(PathBuf, u64),
    /// Another pool's first server, or another life of this one's, has it.
    #[error("{0} is the home of a pool that runs")]
    Taken(PathBuf),
    /// Another pool's, or none, where this pool has one already.
    #[error(
        "{0} is not the home that this pool has: all servers must see the same directory there, so mount its file system on this host, and begin this server again"
    )]
    Another(PathBuf),
    /// Something else lies there.
    #[error(
        "{0} is neither empty nor a pool's home: name a directory that is empty, or not there yet"
    )]
    Other(PathBuf),
}

/// What to do about an error of a home's, where something is known.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; all servers of a pool run as one user, whose its home is"
        }
        _ => "",
    }
}

impl Directory {
    /// The home of a server with this number, which is a member of that pool.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn open(path: &Path, owner: Owner, server: u32) -> Result<Directory, Foreign> {
        let failed = |error| Foreign::Failed(path.to_owned(), error);
        let opened = Directory::of_anybody(path, server).map_err(failed)?;
        check(&opened.root, path, owner)?;
        check_writable(&opened.root).map_err(failed)?;
        Ok(opened)
    }

    /// The same where nobody asks whose it is.
    ///
    /// # Errors
    /// Those of the directory.
    pub fn of_anybody(path: &Path, server: u32) -> io::Result<Directory> {
        let root = fs::File::open(path)?;
        // A server of an earlier life may be suspended, and go on with its own draft whenever it wakes: it finds nobody else's.
        let life = RandomState::new().build_hasher().finish();
        let syncs_each = !syncs_names(&root)?;
        Ok(Directory {
            path: path.to_owned(),
            syncs_each,
            boots: [if syncs_each { 0 } else { boot_of_host()? }, life.max(1)],
            root,
            draft: format!("draft-{server}-{life:016x}"),
            discards: Mutex::default(),
            failed: OnceLock::new(),
        })
    }

    /// Says whether a directory is a pool's home.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn check(path: &Path, owner: Owner) -> Result<(), Foreign> {
        let failed = |error| Foreign::Failed(path.to_owned(), error);
        check(&fs::File::open(path).map_err(failed)?, path, owner)
    }

    /// Takes a home for one pool as long as the answer lives, and makes it if it is not there. By the first server.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn take(path: &Path, block_bytes: u64) -> Result<Taken, Foreign> {
        let failed = |error| Foreign::Failed(path.to_owned(), error);
        make_directory(path).map_err(failed)?;
        // Nothing is put into a directory that is something else's.
        let root = fs::File::open(path).map_err(failed)?;
        life_before(&root, path, block_bytes)?;
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
    pub fn begin_life(path: &Path, owner: Owner) -> Result<u64, Foreign> {
        Directory::begin_life_after(path, owner, 0)
    }

    /// The same, where lives up to this one are known from elsewhere.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn begin_life_after(path: &Path, owner: Owner, known: u64) -> Result<u64, Foreign> {
        let failed = |error| Foreign::Failed(path.to_owned(), error);
        let root = fs::File::open(path).map_err(failed)?;
        let Owner { block_bytes, birth } = owner;
        let life = life_before(&root, path, block_bytes)?.0.max(known) + 1;
        let text = format!("{life} {block_bytes} {birth}\n");
        replace(&path.join(LIFE_DRAFT), &path.join(LIFE), &[text.as_bytes()])
            .and_then(|()| sync(&root))
            .and_then(|()| root.sync_all())
            .map_err(failed)?;
        Ok(life)
    }

    /// What has come of a sync. Once one has failed all fail: what that has lost no later one brings back.
    fn synced(&self, result: io::Result<()>) -> io::Result<()> {
        if let Err(why) = result {
            // Another one may have failed meanwhile.
            let _ = self.failed.set(why.to_string());
        }
        match self.failed.get() {
            Some(why) => Err(io::Error::other(format!(
                "a sync of {} has failed ({why}), and none is believed after that: see to its file system, and begin this server again",
                self.path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Where a request's blocks are written down.
    fn together(&self, (client, number): (u32, u64)) -> String {
        format!("{}-{client:x}-{number:x}", self.draft)
    }

    /// How new a block is that is there.
    fn version_of(&self, (file, block): Place) -> io::Result<Option<Version>> {
        there(&self.root, &format!("{}/{block:x}", of(file)))
    }

    /// What is not there is a hole, as long as the home is there.
    fn perhaps<T>(&self, found: io::Result<T>) -> io::Result<Option<T>> {
        let found = perhaps(found)?;
        if found.is_none() && self.root.metadata()?.nlink() == 0 {
            let why = format!("{} has been removed", self.path.display());
            return Err(io::Error::other(why));
        }
        Ok(found)
    }
}

/// A file's directory in the home.
fn of(file: File) -> String {
    format!("{:016x}", file.0)
}

/// Opens what lies below a directory.
fn open_at(at: impl AsFd, path: &str) -> io::Result<fs::File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?.into())
}

/// Whether a directory is a pool's home. Whoever began the pool has written its birth there: one that says none is another one's, of an earlier version.
fn check(root: &fs::File, path: &Path, owner: Owner) -> Result<(), Foreign> {
    let (life, birth) = life_before(root, path, owner.block_bytes)?;
    if life == 0 || birth != Some(owner.birth) {
        return Err(Foreign::Another(path.to_owned()));
    }
    Ok(())
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// The number of a home's last life, 0 if it is empty; and by which birth it goes, if it says so.
fn life_before(
    root: &fs::File,
    path: &Path,
    block_bytes: u64,
) -> Result<(u64, Option<u64>), Foreign> {
    let failed = |error| Foreign::Failed(path.to_owned(), error);
    let text = open_at(root, LIFE).and_then(io::read_to_string);
    if let Some(text) = perhaps(text).map_err(failed)? {
        let words: Vec<u64> = { text.split_whitespace() }
            .map_while(|word| word.parse().ok())
            .collect();
        return match words[..] {
            [life, bytes] if bytes == block_bytes => Ok((life, None)),
            [life, bytes, birth] if bytes == block_bytes => Ok((life, Some(birth))),
            [_, bytes] | [_, bytes, _] => Err(Foreign::Blocks(path.to_owned(), bytes)),
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
    Ok((0, None))
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

fn sync(root: &fs::File) -> io::Result<()> {
    retry_on_intr(|| rustix::fs::syncfs(root))?;
    check_writable(root)
}

/// A file system that has failed may be made read-only by its own kernel: what it has not written by then is lost, and a sync says nothing of that.
fn check_writable(root: &fs::File) -> io::Result<()> {
    if fstatvfs(root)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(io::ErrorKind::ReadOnlyFilesystem.into());
    }
    Ok(())
}

/// Whether `syncfs` makes names durable on this file system, as far as is known. It does not reach one in user space, and one that lies over others
/// passes it on to who knows which.
fn syncs_names(root: &fs::File) -> io::Result<bool> {
    const KNOWN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    Ok(KNOWN.contains(&(rustix::fs::fstatfs(root)?.f_type as u64)))
}

/// The names in a directory are durable, or have gone with it.
fn sync_names(home: &fs::File, directory: &str) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(directory.to_owned()));
    match perhaps(open_at(home, directory))? {
        Some(directory) => directory.sync_all(),
        None => Ok(()),
    }
}

/// This boot of the host, as a number that is not 0.
fn boot_of_host() -> io::Result<u64> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits = id.trim().replace('-', "");
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(((number >> 64) as u64 ^ number as u64).max(1))
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
fn there(at: impl AsFd, name: &str) -> io::Result<Option<Version>> {
    let Some(there) = perhaps(open_at(at, name))? else {
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
        let name = format!("{}/{block:x}", of(file));
        let Some(mut found) = self.perhaps(open_at(&self.root, &name))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        found.read_to_end(&mut bytes)?;
        let version = version(&bytes).filter(|_| bytes.len() <= HEAD + BLOCK_MAX);
        let version = version.ok_or_else(|| {
            let why = format!("{}/{name} is damaged: it is no block", self.path.display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        Ok(Some((version, bytes[HEAD..].to_vec())))
    }

    fn store(&self, block: &Block, may: &dyn Fn() -> bool) -> io::Result<bool> {
        let directory = of(block.place.0);
        let name = format!("{:x}", block.place.1);
        let head = head(block.version);
        let parts = [head.as_flattened(), &block.bytes];
        let is_there = in_turn((self.root.as_fd(), &directory, &self.draft), |turn| {
            turn.write(&self.draft, &parts)?;
            turn.take()?;
            // Whoever stands still from here on loses its turn to others before they change anything.
            if !may() {
                return Err(io::Error::other("this server may not write any more"));
            }
            match there(turn.blocks(), &name)? {
                Some(there) if there >= block.version => {
                    let life = |version: Version| life_of(Epoch(version.epoch));
                    if life(there) > life(block.version) {
                        let home = self.path.display();
                        let why =
                            format!("{home}/{directory}/{name} is of a later life of the pool");
                        return Err(io::Error::other(why));
                    }
                    Ok(there == block.version)
                }
                _ => turn.bring(&self.draft, &name).map(|()| true),
            }
        })?;
        if self.syncs_each {
            // Not later, by whoever is told to: this server may be dead or have left by then.
            self.synced(sync_names(&self.root, &directory))?;
        }
        Ok(is_there)
    }

    fn discard(&self, file: File, from: u64, whole: bool, goes_on: bool) -> io::Result<bool> {
        let directory = of(file);
        let Some(blocks) = self.perhaps(open_at(&self.root, &directory))? else {
            return Ok(true);
        };
        let mut discards = { self.discards.lock() }.unwrap_or_else(PoisonError::into_inner);
        let at = (self.root.as_fd(), &*directory, &*self.draft);
        discards.discard(at, &blocks, (file, from, whole), goes_on)
    }

    fn begin_together(&self, request: (u32, u64), blocks: &[Block]) -> io::Result<()> {
        together::begin(&self.root, &self.together(request), blocks)
    }

    fn end_together(&self, request: (u32, u64)) -> io::Result<()> {
        together::end(&self.root, &self.together(request))
    }

    fn go_on_together(&self, may: &dyn Fn() -> bool) -> io::Result<Vec<Place>> {
        let mut places = Vec::new();
        for (name, blocks) in together::left(&self.root)? {
            let mut there = Vec::new();
            for block in &blocks {
                there.push(self.version_of(block.place)?);
            }
            let mut pairs = blocks.iter().zip(&there);
            if pairs.any(|(block, there)| *there == Some(block.version)) {
                for (block, there) in blocks.iter().zip(there) {
                    if there.is_none_or(|there| there < block.version) {
                        self.store(block, may)?;
                    }
                    places.push(block.place);
                }
            }
            together::end(&self.root, &name)?;
        }
        Ok(places)
    }

    fn boot(&self) -> u64 {
        self.boots[usize::from(self.failed.get().is_some())]
    }

    fn sync(&self) -> io::Result<()> {
        self.synced(sync(&self.root).and_then(|()| {
            // Files have come.
            if self.syncs_each {
                self.root.sync_all()
            } else {
                Ok(())
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ids::SIZE_BLOCK;

    std::thread_local! {
        /// Directories whose names this thread has synced.
        pub(super) static SYNCED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    const OWNER: Owner = Owner {
        block_bytes: 4096,
        birth: 7,
    };

    fn home_at(path: &Path, server: u32) -> Directory {
        Directory::of_anybody(path, server).unwrap()
    }

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
        let [one, two] = [1, 2].map(|server| home_at(around.path(), server));
        for number in [0, 1, 0xd, SIZE_BLOCK] {
            one.store(&block(7, number, 5), &|| true).unwrap();
        }
        assert!(!two.store(&block(7, 1, 4), &|| true).unwrap());
        assert!(two.store(&block(7, 1, 5), &|| true).unwrap());
        let load = |number| two.load((File(7), number)).unwrap();
        assert_eq!(load(1).unwrap().1, [5; 100]);
        two.store(&block(7, 1, 6), &|| true).unwrap();
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
        let [old, new] = [2, 2].map(|server| home_at(around.path(), server));
        assert_ne!(old.draft, new.draft);
    }

    #[test]
    fn a_home_that_is_gone_has_no_holes_and_has_discarded_nothing() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("home");
        fs::create_dir(&path).unwrap();
        let home = home_at(&path, 1);
        assert!(home.load((File(7), 1)).unwrap().is_none());
        assert!(
            home.discard(File(7), 0, true, false).unwrap(),
            "nothing is there"
        );
        fs::remove_dir(&path).unwrap();
        home.load((File(7), 1)).unwrap_err();
        home.store(&block(7, 1, 5), &|| true).unwrap_err();
        home.discard(File(7), 0, true, false).unwrap_err();
        assert!(!path.exists(), "a server has made a home");
    }

    #[test]
    fn a_server_serves_from_its_pools_home_only_and_stays_there() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("home");
        let open = |owner| Directory::open(&path, owner, 2);
        assert!(matches!(open(OWNER), Err(Foreign::Failed(..))));
        // As a mount point is of which nothing is mounted.
        fs::create_dir(&path).unwrap();
        assert!(matches!(open(OWNER), Err(Foreign::Another(_))));
        Directory::begin_life(&path, OWNER).unwrap();
        let home = open(OWNER).unwrap();
        let other = Owner { birth: 8, ..OWNER };
        assert!(matches!(open(other), Err(Foreign::Another(_))));
        let block_bytes = 512;
        let other = Owner {
            block_bytes,
            ..OWNER
        };
        assert!(matches!(open(other), Err(Foreign::Blocks(_, 4096))));
        // Something else is there now.
        let real = around.path().join("real");
        fs::rename(&path, &real).unwrap();
        fs::create_dir(&path).unwrap();
        home.store(&block(7, 1, 5), &|| true).unwrap();
        assert_eq!(home.load((File(7), 1)).unwrap().unwrap().1, [5; 100]);
        assert!(real.join(of(File(7))).join("1").exists());
        assert!(fs::read_dir(&path).unwrap().next().is_none());
        // What a version before this one has left does not say by which birth it goes.
        fs::write(path.join(LIFE), "3 4096\n").unwrap();
        assert!(matches!(open(OWNER), Err(Foreign::Another(_))));
        assert_eq!(Directory::begin_life(&path, OWNER).unwrap(), 4);
        open(OWNER).unwrap();
    }

    #[test]
    fn names_are_durable_when_a_block_is_stored_where_no_sync_of_others_makes_them_so() {
        let around = tempfile::tempdir().unwrap();
        let mut home = home_at(around.path(), 1);
        home.syncs_each = false;
        home.store(&block(7, 1, 5), &|| true).unwrap();
        assert!(SYNCED.take().is_empty());
        home.syncs_each = true;
        home.store(&block(8, 1, 5), &|| true).unwrap();
        // Another server may have brought this one, and died then.
        home.store(&block(7, 1, 5), &|| true).unwrap();
        assert_eq!(SYNCED.take(), [8, 7].map(|file| of(File(file))));
    }

    #[test]
    fn no_sync_is_believed_after_one_that_has_failed() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        home.sync().unwrap();
        let boot = home.boot();
        let lost = home.synced(Err(io::Error::from_raw_os_error(libc::EIO)));
        assert!(lost.unwrap_err().to_string().contains("begin this server"));
        home.sync().unwrap_err();
        // The register hears of that, so that what another process has synced is not believed to be all.
        assert_ne!(home.boot(), boot);
        let other = home_at(around.path(), 1);
        other.sync().unwrap();
        assert_eq!(other.boot(), boot);
    }

    /// `tests/run.d/73-pool-power-cut.sh` makes a home's file system read-only and runs this. Elsewhere it does nothing.
    #[test]
    fn nothing_is_durable_in_a_home_that_is_read_only() {
        let Some(path) = std::env::var_os("TEST_POOL_READ_ONLY") else {
            return;
        };
        let path = Path::new(&path);
        let read_only = |why: &io::Error| why.to_string().contains("read-only");
        assert!(read_only(&home_at(path, 1).sync().unwrap_err()));
        let opened = Directory::open(path, OWNER, 1);
        assert!(matches!(&opened, Err(Foreign::Failed(_, why)) if read_only(why)));
    }

    #[test]
    fn who_was_given_up_in_its_turn_brings_nothing_back() {
        let around = tempfile::tempdir().unwrap();
        let [one, two] = [1, 2].map(|server| home_at(around.path(), server));
        let asked = AtomicUsize::new(0);
        let stored = one.store(&block(7, 1, 5), &|| {
            if asked.fetch_add(1, Ordering::Relaxed) > 0 {
                return false;
            }
            // It stands still here, with its turn, and its term ends. Whoever has its blocks then removes them.
            two.store(&block(7, 1, 6), &|| true).unwrap();
            while !two.discard(File(7), 0, false, true).unwrap() {}
            true
        });
        assert!(stored.is_err(), "it has brought the block");
        assert_eq!(asked.into_inner(), 2);
        assert_eq!(two.load((File(7), 1)).unwrap(), None);
    }

    #[test]
    fn who_was_given_up_in_its_turn_brings_nothing_where_nothing_was_to_be_removed() {
        let around = tempfile::tempdir().unwrap();
        let [one, two] = [1, 2].map(|server| home_at(around.path(), server));
        let asked = AtomicUsize::new(0);
        let stored = one.store(&block(7, 1, 5), &|| {
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                while !two.discard(File(7), 0, false, true).unwrap() {}
                return true;
            }
            false
        });
        assert!(stored.is_err(), "it has brought the block");
        assert_eq!(two.load((File(7), 1)).unwrap(), None);
    }

    #[test]
    fn what_is_no_block_is_an_error_and_no_hole() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        home.store(&block(7, 1, 5), &|| true).unwrap();
        let path = around.path().join(of(File(7))).join("1");
        for length in [0, HEAD as u64 - 1, (HEAD + BLOCK_MAX) as u64 + 1] {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            let why = home.load((File(7), 1)).unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::InvalidData, "{length}");
        }
        // Whoever writes the whole block mends it.
        home.store(&block(7, 1, 6), &|| true).unwrap();
        assert_eq!(home.load((File(7), 1)).unwrap().unwrap().1, [6; 100]);
    }

    #[test]
    fn nobody_else_reads_a_home() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("deep/home");
        let _taken = Directory::take(&path, 4096).unwrap();
        Directory::begin_life(&path, OWNER).unwrap();
        let home = home_at(&path, 1);
        home.store(&block(7, 1, 5), &|| true).unwrap();
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
        let life = Directory::begin_life(path, OWNER).unwrap();
        let home = home_at(path, 1);
        let synced = |life| 2 * life;
        let store = |change| {
            (0..64).try_for_each(|number| home.store(&block(7, number, change), &|| true).map(drop))
        };
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
            let block_bytes = bytes;
            Directory::begin_life(
                &home,
                Owner {
                    block_bytes,
                    birth: 7,
                },
            )
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
        let home = home_at(around.path(), 1);
        let of_life = |life: u64, change| {
            let mut block = block(7, 1, change);
            block.version.epoch = (life << 32) + 5;
            block
        };
        home.store(&of_life(2, 3), &|| true).unwrap();
        assert!(home.store(&of_life(1, 4), &|| true).is_err());
        // Within a life another server may have been quicker.
        home.store(&of_life(2, 2), &|| true).unwrap();
        assert_eq!(home.load((File(7), 1)).unwrap().unwrap().1, [3; 100]);
    }
}
