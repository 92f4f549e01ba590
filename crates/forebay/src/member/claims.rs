//! Which session manages a file: one, and the session that comes second leaves the file to the kernel.
//!
//! Every process that has a managed file open for the engine puts a mark where others look for it: a read lock on one byte,
//! on two lists. One is a file of the user's that all the user's sessions find, the other the directory that the file lies in,
//! which everybody who sees the file by that directory finds too, other users and containers included. A list's bytes
//! are divided among files, and a file's share among sessions, so that processes of one session mark the same byte
//! and others' marks are elsewhere in the share. A process that comes marks first and looks then: of two that come at once at least
//! one sees the other.
//!
//! The kernel walks all marks on a list for each call on one, so lists are kept short. The user has many lists, and a file's share says which is
//! its own. A directory is one: a process that has marked `EXACT_MAX` of its files makes one mark more, for all others that it may have
//! there. That mark says whose lists these others are on. To processes that have the same lists it says nothing, and all others leave the
//! directory's files to the kernel meanwhile.
//!
//! The kernel takes marks back when a process ends, in whatever way. What this covers and what not is in
//! `docs/decisions/0011-claims.md`, and why lists are short in `docs/decisions/0090-locks-in-short-lists.md`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::device::{Caps, KernelReason};
use crate::memory::place::dir::{UserDir, user_id};
use crate::sys::lock;

/// Where the user's lists are: where shared memory is by convention, whatever place an arena has.
const LIST_PARENT: &str = "/dev/shm";
/// The user's lists. Each takes a descriptor of a process for as long as that has files on it.
const LISTS: u64 = 64;
/// Files of a directory that a process marks each by itself.
const EXACT_MAX: u32 = 64;
/// Questions to the kernel that one look at a directory takes at most.
const LOOKS_MAX: u32 = 256;
/// Bits that tell files apart, and bits that tell sessions apart in a file's share. The last byte has an offset.
const FILE_BITS: u32 = 31;
const SESSION_BITS: u32 = 31;
/// From here on a directory's bytes are for marks that stand for several files, divided among users' lists, and then among sessions.
const WIDE: u64 = 1 << (FILE_BITS + SESSION_BITS);

/// The marks of one process in one session.
#[derive(Default)]
pub struct Claims {
    lists: OnceLock<Option<Lists>>,
    /// Held while lists and directories are opened, marked and asked, and while descriptors of marks are sent: over calls of the system's,
    /// which wait for a file system at most, and never for anybody of the session.
    marks: Mutex<Marks>,
    relocate: OnceLock<fn(OwnedFd) -> OwnedFd>,
}

/// Where the user's lists are.
struct Lists {
    dir: PathBuf,
    /// What tells them from others' lists.
    hash: u64,
}

/// One of the user's lists.
struct List {
    file: File,
    /// This process's files on it.
    count: u32,
}

/// What this process has marked.
#[derive(Default)]
struct Marks {
    /// By the file's share.
    held: HashMap<u64, Held>,
    /// By number.
    lists: HashMap<u64, List>,
    /// By device and inode.
    directories: HashMap<(u64, u64), Directory>,
}

struct Held {
    /// Claims on the same file in this process.
    count: u32,
    /// The byte that this session marks.
    byte: u64,
    /// Whether it has done so on the user's list.
    is_listed: bool,
    /// No descriptor was left for any mark.
    lacks: Option<i32>,
    /// The directory's key, and whether the file has a mark of its own there.
    directory: Option<((u64, u64), bool)>,
}

/// One description for all marks in a directory.
struct Directory {
    file: OwnedFd,
    /// Files with marks of their own, and those that have one together.
    exact: u32,
    wide: u32,
}

/// A mark, for as long as this lives.
pub struct Claim {
    claims: Arc<Claims>,
    share: u64,
}

/// Numbers that others have too.
fn mixed(words: [u64; 3]) -> u64 {
    // splitmix64, once for each word.
    words.iter().fold(0, |state: u64, word| {
        let mut z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A file's share of a list.
fn share_of(caps: &Caps) -> u64 {
    mixed([caps.device, caps.inode, caps.birth]) >> (64 - FILE_BITS)
}

/// A session's bits in a share.
fn session_bits(session: u64) -> u64 {
    mixed([session, 0, 0]) >> (64 - SESSION_BITS)
}

impl Lists {
    fn find() -> Option<Self> {
        Self::at(UserDir::make(Path::new(LIST_PARENT), user_id()).ok()?.path)
    }

    fn at(dir: PathBuf) -> Option<Self> {
        let hash = Self::hash_of(&dir).ok()?;
        Some(Lists { dir, hash })
    }

    fn hash_of(dir: &Path) -> io::Result<u64> {
        let is = std::fs::metadata(dir)?;
        Ok(mixed([is.dev(), is.ino(), 0]) >> (64 - FILE_BITS))
    }

    fn open(&self, number: u64) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let path = self.dir.join(format!("claims.{number:02}"));
        let list = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        // Another directory may have got the name: others look for its lists by another hash.
        match Self::hash_of(&self.dir)? == self.hash {
            true => Ok(list),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Directory {
    /// Marks one file more: by itself, unless that would be too many and others need it for nothing. Whether it has a mark of its own.
    fn mark(&mut self, byte: u64, wide: Option<u64>) -> bool {
        if let Some(wide) = wide.filter(|_| self.exact >= EXACT_MAX)
            && (self.wide > 0 || lock::share(self.file.as_fd(), wide).is_ok())
        {
            self.wide += 1;
            return false;
        }
        let _ = lock::share(self.file.as_fd(), byte);
        self.exact += 1;
        true
    }

    /// Takes a file's mark away. Whether any are left.
    fn unmark(&mut self, byte: u64, wide: Option<u64>, is_exact: bool) -> bool {
        let count = match is_exact {
            true => &mut self.exact,
            false => &mut self.wide,
        };
        *count = count.saturating_sub(1);
        let last = if is_exact { Some(byte) } else { wide };
        if let Some(byte) = last.filter(|_| is_exact || *count == 0) {
            // As on a list.
            let _ = lock::let_go(self.file.as_fd(), byte);
        }
        self.exact + self.wide > 0
    }
}

impl Marks {
    /// The directory that a file lies in. Best effort: one that cannot be had covers nobody.
    fn directory(
        &mut self,
        path: &Path,
        place: impl FnOnce(File) -> OwnedFd,
    ) -> io::Result<((u64, u64), &mut Directory)> {
        let key_of = |is: Metadata| (is.dev(), is.ino());
        let path = path.parent().ok_or(io::ErrorKind::NotFound)?;
        let mut key = key_of(std::fs::metadata(path)?);
        let mut opened = None;
        if !self.directories.contains_key(&key) {
            let file = File::open(path)?;
            // Another one may have the name by now.
            key = key_of(file.metadata()?);
            opened = Some(file);
        }
        let directory = match (self.directories.entry(key), opened) {
            (Entry::Occupied(known), _) => known.into_mut(),
            (Entry::Vacant(vacant), Some(file)) => vacant.insert(Directory {
                file: place(file),
                exact: 0,
                wide: 0,
            }),
            (Entry::Vacant(_), None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok((key, directory))
    }

    /// The user's list on which this process has marked a file.
    fn list_of(&self, share: u64, held: &Held) -> Option<BorrowedFd<'_>> {
        let list = self
            .lists
            .get(&(share % LISTS))
            .filter(|_| held.is_listed)?;
        Some(list.file.as_fd())
    }

    /// Marks a file on the user's list.
    fn mark_on_list(
        &mut self,
        (share, byte): (u64, u64),
        open: impl FnOnce(u64) -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        let number = share % LISTS;
        let list = match self.lists.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(List {
                file: open(number)?.into(),
                count: 0,
            }),
        };
        let marked = match list.file.metadata() {
            Ok(is) if is.nlink() > 0 => lock::share(list.file.as_fd(), byte),
            // It has been removed: no process that comes from here on finds it.
            Ok(_) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(error),
        };
        list.count += u32::from(marked.is_ok());
        if list.count == 0 {
            self.lists.remove(&number);
        }
        marked
    }

    /// Takes a file's mark on the user's list away.
    fn unmark_on_list(&mut self, share: u64, byte: u64) {
        let number = share % LISTS;
        let Some(list) = self.lists.get_mut(&number) else {
            return;
        };
        // Said, not left to the closing: a child of a fork may have a copy of the descriptor.
        let _ = lock::let_go(list.file.as_fd(), byte);
        list.count = list.count.saturating_sub(1);
        if list.count == 0 {
            self.lists.remove(&number);
        }
    }

    fn directory_of(&self, held: &Held) -> Option<BorrowedFd<'_>> {
        let (key, _) = held.directory?;
        Some(self.directories.get(&key)?.file.as_fd())
    }
}

impl Claims {
    /// Where descriptors are put from now on.
    pub fn relocate(&self, relocate: fn(OwnedFd) -> OwnedFd) {
        let _ = self.relocate.set(relocate);
    }

    fn placed(&self, file: File) -> OwnedFd {
        match self.relocate.get() {
            Some(relocate) => relocate(file.into()),
            None => file.into(),
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lists(&self) -> Option<&Lists> {
        self.lists.get_or_init(Lists::find).as_ref()
    }

    /// The byte of a directory that says that a session has files there which are on the user's lists alone.
    fn wide(&self, session: u64) -> Option<u64> {
        let lists = self.lists()?;
        Some(WIDE | lists.hash << SESSION_BITS | session)
    }

    /// Claims a file for a session.
    ///
    /// # Errors
    /// [`KernelReason::Claimed`] when another session has it, or may have; [`KernelReason::OpenFailed`] when no descriptor is left for a mark, so
    /// that nobody would see who has it.
    pub fn take(
        self: &Arc<Self>,
        session: u64,
        caps: &Caps,
        path: &Path,
    ) -> Result<Claim, KernelReason> {
        let claim = self.hold(session, caps, path);
        // The own mark is there by now, so that a process that comes at the same time sees it.
        self.look(claim.share)?;
        Ok(claim)
    }

    /// Marks a file that the session has claimed already.
    pub fn hold(self: &Arc<Self>, session: u64, caps: &Caps, path: &Path) -> Claim {
        let share = share_of(caps);
        let session = session_bits(session);
        let byte = (share << SESSION_BITS) | session;
        let mut marks = self.marks();
        match marks.held.get_mut(&share) {
            Some(held) => held.count += 1,
            None => {
                // Best effort: a list that cannot be had covers nobody.
                let open = |number| {
                    let lists = self.lists().ok_or(io::ErrorKind::NotFound)?;
                    Ok(self.placed(lists.open(number)?))
                };
                let listed = marks.mark_on_list((share, byte), open);
                let wide = self.wide(session).filter(|_| listed.is_ok());
                let directory = marks.directory(path, |file| self.placed(file));
                let directory = directory.map(|(key, dir)| (key, dir.mark(byte, wide)));
                let held = Held {
                    count: 1,
                    byte,
                    is_listed: listed.is_ok(),
                    lacks: lacking(listed.as_ref().err(), directory.as_ref().err()),
                    directory: directory.ok(),
                };
                marks.held.insert(share, held);
            }
        }
        Claim {
            claims: Arc::clone(self),
            share,
        }
    }

    /// Runs `f` with the descriptors by which this process has marked a file: the marks last for as long as anybody has these.
    pub fn with_marks<T>(&self, caps: &Caps, f: impl FnOnce(&[BorrowedFd<'_>]) -> T) -> T {
        let marks = self.marks();
        let share = share_of(caps);
        let marked = marks.held.get(&share);
        let directory = marked.and_then(|held| marks.directory_of(held));
        let list = marked.and_then(|held| marks.list_of(share, held));
        let all: Vec<_> = directory.into_iter().chain(list).collect();
        f(&all)
    }

    /// Whether a file that this process has marked is its session's.
    fn look(&self, share: u64) -> Result<(), KernelReason> {
        let marks = self.marks();
        let Some(held) = marks.held.get(&share) else {
            return Ok(());
        };
        if let Some(errno) = held.lacks {
            return Err(KernelReason::OpenFailed { errno });
        }
        let (start, end) = (share << SESSION_BITS, (share + 1) << SESSION_BITS);
        let around = [
            (start, held.byte - start),
            (held.byte + 1, end - held.byte - 1),
        ];
        let directory = marks.directory_of(held);
        let list = marks.list_of(share, held);
        let is_others = list.into_iter().chain(directory).any(|list| {
            let is_held =
                |start, len| lock::is_any_held_elsewhere(list, start, len).unwrap_or(false);
            // Mostly nobody has any of it, and one question says so.
            is_held(start, end - start) && around.iter().any(|&(start, len)| is_held(start, len))
        }) || directory.is_some_and(|directory| {
            // A process that is not on the list learns nothing from its being the same.
            let lists = list.and_then(|_| self.lists());
            is_wide_elsewhere(directory, held.byte - start, lists.map(|lists| lists.hash))
        });
        match is_others {
            true => Err(KernelReason::Claimed),
            false => Ok(()),
        }
    }
}

/// The error that says that there are no descriptors, where a file could be marked neither on the user's list nor in its directory.
fn lacking(list: Option<&io::Error>, directory: Option<&io::Error>) -> Option<i32> {
    let mut both = [list?, directory?]
        .into_iter()
        .filter_map(io::Error::raw_os_error);
    both.find(|errno| matches!(*errno, libc::EMFILE | libc::ENFILE))
}

/// Whether another session that has other lists may have any file of a directory, as far as that takes [`LOOKS_MAX`] questions: if it takes more, some may.
/// `session`: the own one's bits. `hash`: its lists'.
fn is_wide_elsewhere(directory: BorrowedFd<'_>, session: u64, hash: Option<u64>) -> bool {
    let mut unseen = vec![(WIDE, 2 * WIDE)];
    for _ in 0..LOOKS_MAX {
        let Some((start, end)) = unseen.pop() else {
            return false;
        };
        let found = lock::any_held_elsewhere(directory, start, end - start);
        let Ok(Some(byte)) = found else { continue };
        if !(start..end).contains(&byte) {
            // A lock of more than that is none of ours.
            return true;
        }
        let is_own_session = byte & ((1 << SESSION_BITS) - 1) == session;
        if !is_own_session && Some((byte - WIDE) >> SESSION_BITS) != hash {
            return true;
        }
        // The kernel tells of one mark. What it has not told of lies on either side.
        unseen.extend([(start, byte), (byte + 1, end)]);
    }
    true
}

impl Drop for Claim {
    fn drop(&mut self) {
        let claims = &self.claims;
        let mut marks = claims.marks();
        let Some(mine) = marks.held.get_mut(&self.share) else {
            return;
        };
        mine.count -= 1;
        if mine.count > 0 {
            return;
        }
        let (byte, directory, is_listed) = (mine.byte, mine.directory, mine.is_listed);
        marks.held.remove(&self.share);
        if is_listed {
            marks.unmark_on_list(self.share, byte);
        }
        if let Some((key, is_exact)) = directory
            && let Some(dir) = marks.directories.get_mut(&key)
            && !dir.unmark(
                byte,
                claims.wide(byte & ((1 << SESSION_BITS) - 1)),
                is_exact,
            )
        {
            marks.directories.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a mark for several files says of lists is true of those that a process marks.
    #[test]
    fn a_list_is_none_of_the_users_once_their_directory_is_another() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join("lists");
        std::fs::create_dir(&dir).expect("a directory");
        let lists = Lists::at(dir.clone()).expect("lists");
        lists.open(1).expect("a list");
        std::fs::rename(&dir, place.path().join("away")).expect("renamed");
        std::fs::create_dir(&dir).expect("a directory");
        let opened = lists.open(2);
        assert!(opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn nobody_is_on_a_list_that_has_been_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("list");
        let open = |_| File::create_new(&path).map(OwnedFd::from);
        let mut marks = Marks::default();
        marks.mark_on_list((0, 1), open).expect("a mark");
        std::fs::remove_file(&path).expect("removed");
        assert!(marks.mark_on_list((0, 2), open).is_err());
    }

    #[test]
    fn a_file_has_a_mark_of_its_own_where_the_one_for_several_cannot_be() {
        let place = tempfile::tempfile().expect("a file");
        let mut directory = Directory {
            file: place.into(),
            exact: EXACT_MAX,
            wide: 0,
        };
        assert!(directory.mark(1, Some(u64::MAX)), "not marked at all");
        assert_eq!((directory.exact, directory.wide), (EXACT_MAX + 1, 0));
    }
}
