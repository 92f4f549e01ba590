//! Which session manages a file: one, and who comes second leaves the file to the kernel.
//!
//! Every process that has a managed file open for the engine puts a mark where others look for it: a read lock on one byte,
//! on two lists. One is a file of the user's that all the user's sessions find, the other the directory that the file lies in,
//! which whoever sees the file by that directory finds too, other users and containers included. A list's bytes
//! are divided among files, and a file's share among sessions, so that processes of one session mark the same byte
//! and others' marks are elsewhere in the share. Whoever comes marks first and looks then: of two who come at once at least
//! one sees the other.
//!
//! The kernel walks all marks on a list for each call on one, so lists are kept short. The user has many lists, and a file's share says which is
//! its own. A directory is one: a process that has marked [`EXACT_MAX`] of its files makes one mark more, for all others that it may have
//! there. That mark says whose lists these others are on. To those who have the same lists it says nothing, and all others leave the
//! directory's files to the kernel meanwhile.
//!
//! The kernel takes marks back when a process ends, in whatever way. What this covers and what not is in
//! `docs/decisions/0011-claims.md`, and why lists are short in `docs/decisions/0090-locks-in-short-lists.md`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, Metadata, OpenOptions};
use std::ops::Range;
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
/// Bits that tell files apart, and bits that tell sessions apart in a file's share. The last byte has an offset.
const FILE_BITS: u32 = 31;
const SESSION_BITS: u32 = 31;
/// From here on a directory's bytes are for marks that stand for several files, divided among users' lists, and then among sessions.
const WIDE: u64 = 1 << (FILE_BITS + SESSION_BITS);

/// The marks of one process in one session.
#[derive(Default)]
pub struct Claims {
    lists: OnceLock<Option<Lists>>,
    /// Never held over anything but marking.
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
    file: OwnedFd,
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
        let dir = UserDir::make(Path::new(LIST_PARENT), user_id()).ok()?.path;
        let is = std::fs::metadata(&dir).ok()?;
        Some(Lists {
            hash: mixed([is.dev(), is.ino(), 0]) >> (64 - FILE_BITS),
            dir,
        })
    }

    fn open(&self, number: u64) -> Option<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let path = self.dir.join(format!("claims.{number:02}"));
        options.custom_flags(libc::O_NOFOLLOW).open(path).ok()
    }
}

impl Directory {
    /// Marks one file more: by itself, unless that would be too many and others need it for nothing. Whether it has a mark of its own.
    fn mark(&mut self, byte: u64, wide: Option<u64>) -> bool {
        match wide {
            Some(wide) if self.exact >= EXACT_MAX => {
                if self.wide == 0 {
                    let _ = lock::share(self.file.as_fd(), wide);
                }
                self.wide += 1;
                false
            }
            _ => {
                let _ = lock::share(self.file.as_fd(), byte);
                self.exact += 1;
                true
            }
        }
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
    ) -> Option<((u64, u64), &mut Directory)> {
        let key_of = |is: Metadata| (is.dev(), is.ino());
        let path = path.parent()?;
        let mut key = key_of(std::fs::metadata(path).ok()?);
        if !self.directories.contains_key(&key) {
            let file = File::open(path).ok()?;
            // Another one may have the name by now.
            key = key_of(file.metadata().ok()?);
            self.directories.entry(key).or_insert_with(|| Directory {
                file: place(file),
                exact: 0,
                wide: 0,
            });
        }
        Some((key, self.directories.get_mut(&key)?))
    }

    /// The user's list on which a file is, if it can be had and this process has marked anything there.
    fn list_of(&self, share: u64) -> Option<&OwnedFd> {
        let list = self.lists.get(&(share % LISTS))?;
        Some(&list.file)
    }

    /// Marks a file on the user's list. `false`: that cannot be.
    fn mark_on_list(
        &mut self,
        (share, byte): (u64, u64),
        open: impl FnOnce(u64) -> Option<OwnedFd>,
    ) -> bool {
        let number = share % LISTS;
        let list = match self.lists.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let Some(file) = open(number) else {
                    return false;
                };
                vacant.insert(List { file, count: 0 })
            }
        };
        let is_marked = lock::share(list.file.as_fd(), byte).is_ok();
        list.count += u32::from(is_marked);
        if list.count == 0 {
            self.lists.remove(&number);
        }
        is_marked
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

    fn directory_of(&self, held: &Held) -> Option<&OwnedFd> {
        let (key, _) = held.directory?;
        Some(&self.directories.get(&key)?.file)
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
    /// [`KernelReason::Claimed`] when another session has it.
    pub fn take(
        self: &Arc<Self>,
        session: u64,
        caps: &Caps,
        path: &Path,
    ) -> Result<Claim, KernelReason> {
        let claim = self.hold(session, caps, path);
        // The own mark is there by now, so that who comes at the same time sees it.
        match self.is_others(claim.share) {
            true => Err(KernelReason::Claimed),
            false => Ok(claim),
        }
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
                let open = |number| Some(self.placed(self.lists()?.open(number)?));
                let is_listed = marks.mark_on_list((share, byte), open);
                let wide = self.wide(session).filter(|_| is_listed);
                let directory = marks.directory(path, |file| self.placed(file));
                let directory = directory.map(|(key, dir)| (key, dir.mark(byte, wide)));
                let held = Held {
                    count: 1,
                    byte,
                    is_listed,
                    directory,
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
        let list = marked.and_then(|_| marks.list_of(share));
        let all: Vec<_> = directory.into_iter().chain(list).map(AsFd::as_fd).collect();
        f(&all)
    }

    fn is_others(&self, share: u64) -> bool {
        let marks = self.marks();
        let Some(held) = marks.held.get(&share) else {
            return false;
        };
        let (start, end) = (share << SESSION_BITS, (share + 1) << SESSION_BITS);
        let around = [
            (start, held.byte - start),
            (held.byte + 1, end - held.byte - 1),
        ];
        let directory = marks.directory_of(held);
        let list = marks.list_of(share);
        let mut lists = list.into_iter().chain(directory);
        lists.any(|list| {
            let is_held =
                |start, len| lock::is_any_held_elsewhere(list.as_fd(), start, len).unwrap_or(false);
            // Mostly nobody has any of it, and one question says so.
            is_held(start, end - start) && around.iter().any(|&(start, len)| is_held(start, len))
        }) || directory.is_some_and(|directory| {
            // Who cannot look at the list learns nothing from its being the same.
            let lists = list.and_then(|_| self.lists());
            let mine = (held.byte - start, lists.map(|lists| lists.hash));
            is_wide_elsewhere(directory, mine, WIDE..2 * WIDE)
        })
    }
}

/// Whether another session that has other lists may have any file of a directory. `mine`: the own session's bits, and its lists' hash.
fn is_wide_elsewhere(directory: &OwnedFd, mine: (u64, Option<u64>), bytes: Range<u64>) -> bool {
    let found = lock::any_held_elsewhere(directory.as_fd(), bytes.start, bytes.end - bytes.start);
    let Ok(Some(byte)) = found else { return false };
    if !bytes.contains(&byte) {
        // A lock of more than that is none of ours.
        return true;
    }
    let hash = (byte - WIDE) >> SESSION_BITS;
    let session = byte & ((1 << SESSION_BITS) - 1);
    // The kernel tells of one mark. What it has not told of lies on either side.
    (session != mine.0 && Some(hash) != mine.1)
        || is_wide_elsewhere(directory, mine, bytes.start..byte)
        || is_wide_elsewhere(directory, mine, byte + 1..bytes.end)
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
