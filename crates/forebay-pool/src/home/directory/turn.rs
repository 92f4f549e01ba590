//! Changes of a file's blocks, one after the other: by whoever has the *turn*, a lock that can be taken away from its holder.
//!
//! ```text
//! FILE/BLOCK        a block
//! FILE/turn/lock    locked (`flock`) by whoever has the turn
//! FILE/turn/DRAFT   what comes to FILE, and what goes from there
//! FILE/turn-DRAFT   what becomes the next `FILE/turn`
//! ```
//!
//! A server may stop for any time while it has the lock: it is suspended, or its host is. Others wait for [`PATIENCE`] and then *end* the turn: they
//! remove its directory. Each change is a rename from that directory or into it, by its descriptor. So whoever goes on after its turn was ended
//! changes nothing more; it fails, and begins again in the next turn.
//!
//! Invariants:
//! - A directory has one lock, with which it comes. Whoever ends the turn removes the lock first, so nobody takes it any more.
//! - There is one directory at a time: the next one comes when the last one is removed.
//! - What takes long, the sync of a draft, comes before the lock.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::{DIRECTORY_MODE, FILE_MODE, LOCK};

/// Nobody who runs has the lock for so long, and nobody's term ends meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// How often the lock is tried.
const PAUSE: Duration = Duration::from_millis(1);
/// How often a change is begun again before it fails, and the end of a turn.
const TRIES: usize = 8;

const TURN: &str = "turn";

/// A turn that somebody has, or may take.
#[derive(Debug)]
pub(super) struct Turn {
    blocks: OwnedFd,
    drafts: OwnedFd,
    lock: fs::File,
}

/// A home, a file's directory in it, and the name of a draft: no two who run at once have the same.
pub(super) type At<'a> = (BorrowedFd<'a>, &'a str, &'a str);

/// Makes a change of a file's blocks, again if somebody has ended its turn meanwhile. The file's directory is made if it is not there.
pub(super) fn in_turn<T>(
    at: At<'_>,
    mut change: impl FnMut(&Turn) -> io::Result<T>,
) -> io::Result<T> {
    let mut tries = 1..TRIES;
    loop {
        let result = Turn::open(at).and_then(|turn| change(&turn));
        match result {
            Err(error) if is_over(&error) && tries.next().is_some() => {}
            result => return result,
        }
    }
}

/// Whether something failed because its directory was removed.
fn is_over(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, StaleNetworkFileHandle};
    matches!(error.kind(), NotFound | StaleNetworkFileHandle)
}

/// What was found; `None` if it is not there.
fn perhaps<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_over(&error) => Ok(None),
        found => found.map(Some),
    }
}

fn directory_at(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn file_at(at: impl AsFd, name: &str, flags: OFlags) -> io::Result<fs::File> {
    let mode = Mode::from_raw_mode(FILE_MODE);
    Ok(openat(at, name, flags | OFlags::CLOEXEC, mode)?.into())
}

impl Turn {
    /// Finds the turn of a file, or makes it.
    fn open((home, directory, draft): At<'_>) -> io::Result<Turn> {
        let blocks = match perhaps(directory_at(home, directory))? {
            Some(blocks) => blocks,
            None => {
                match mkdirat(home, directory, Mode::from_raw_mode(DIRECTORY_MODE)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(why) => return Err(why.into()),
                }
                directory_at(home, directory)?
            }
        };
        if let Some(drafts) = perhaps(directory_at(&blocks, TURN))? {
            if let Some(lock) = perhaps(file_at(&drafts, LOCK, OFlags::RDWR))? {
                return Ok(Turn {
                    blocks,
                    drafts,
                    lock,
                });
            }
            // Whoever ended it has not come to its end.
            end(&blocks, &drafts)?;
        }
        let next = format!("{TURN}-{draft}");
        match mkdirat(&blocks, &next, Mode::from_raw_mode(DIRECTORY_MODE)) {
            // From an earlier try.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(why) => return Err(why.into()),
        }
        let drafts = directory_at(&blocks, &next)?;
        let lock = file_at(&drafts, LOCK, OFlags::CREATE | OFlags::RDWR)?;
        match renameat(&blocks, &next, &blocks, TURN) {
            Ok(()) => Ok(Turn {
                blocks,
                drafts,
                lock,
            }),
            // Another one was quicker.
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(io::ErrorKind::NotFound.into()),
            Err(why) => Err(why.into()),
        }
    }

    /// The file's directory.
    pub fn blocks(&self) -> BorrowedFd<'_> {
        self.blocks.as_fd()
    }

    /// Writes a draft, whose bytes are durable then. It needs no lock. It is a new file: what somebody writes who has another one open must not come
    /// into the block that this becomes.
    pub fn write(&self, draft: &str, parts: &[&[u8]]) -> io::Result<()> {
        let remove = || unlinkat(&self.drafts, draft, AtFlags::empty()).map_err(io::Error::from);
        perhaps(remove())?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mut out = file_at(&self.drafts, draft, flags)?;
        let written = { parts.iter() }
            .try_for_each(|part| out.write_all(part))
            .and_then(|()| out.sync_data());
        if written.is_err() {
            // Where there is no room it takes none.
            let _ = remove();
        }
        written
    }

    /// Takes the lock. Whoever has it for too long loses it.
    pub fn take(&self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lock.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(PAUSE),
                Err(fs::TryLockError::WouldBlock) => {
                    end(&self.blocks, &self.drafts)?;
                    break;
                }
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        // Whoever has the lock of a turn that is over has nothing.
        if fstat(&self.lock)?.st_nlink == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    }

    /// A draft becomes a block. By whoever has the lock.
    pub fn bring(&self, draft: &str, block: &str) -> io::Result<()> {
        Ok(renameat(&self.drafts, draft, &self.blocks, block)?)
    }

    /// A block goes. By whoever has the lock.
    pub fn remove(&self, block: &str, draft: &str) -> io::Result<()> {
        // Not by `unlink`, which does not ask whether the turn is over.
        renameat(&self.blocks, block, &self.drafts, draft)?;
        Ok(unlinkat(&self.drafts, draft, AtFlags::empty())?)
    }
}

/// Removes a file's directory with all that there is in it.
pub(super) fn remove_all(at: impl AsFd, name: &std::ffi::CStr) -> io::Result<()> {
    match unlinkat(&at, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(gone(removed)?),
    }
    for entry in Dir::read_from(directory_at(&at, name)?)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            remove_all(directory_at(&at, name)?, entry.file_name())?;
        }
    }
    Ok(gone(unlinkat(&at, name, AtFlags::REMOVEDIR))?)
}

/// Ends a turn, whoever has it.
fn end(blocks: &OwnedFd, drafts: &OwnedFd) -> io::Result<()> {
    gone(unlinkat(drafts, LOCK, AtFlags::empty()))?;
    for _ in 0..TRIES {
        if fstat(drafts)?.st_nlink == 0 {
            return Ok(());
        }
        for entry in Dir::read_from(drafts)? {
            let entry = entry?;
            if ![c".", c".."].contains(&entry.file_name()) {
                gone(unlinkat(drafts, entry.file_name(), AtFlags::empty()))?;
            }
        }
        // Somebody may put something there meanwhile. The next turn's directory is never empty.
        match unlinkat(blocks, TURN, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            removed => return Ok(gone(removed)?),
        }
    }
    Err(io::Error::other(
        "another server changes the file again and again",
    ))
}

/// What is not there any more, somebody else has removed.
fn gone(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::CWD;

    use super::*;

    /// A path that begins at the root goes by no directory's descriptor.
    fn at<'a>(directory: &'a Path, draft: &'a str) -> At<'a> {
        (CWD, directory.to_str().expect("text"), draft)
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        { entries.map(name) }
            .map(|name| name.into_string().unwrap())
            .collect()
    }

    #[test]
    fn who_is_stopped_in_its_turn_holds_nobody_up_and_changes_nothing_more() {
        let around = tempfile::tempdir().unwrap();
        let file = around.path().join("file");
        let of_file = |name: &str| fs::read_to_string(file.join(name)).unwrap();
        let bring = |draft: &str, text: &str| {
            in_turn(at(&file, draft), |turn| {
                turn.write(draft, &[text.as_bytes()])?;
                turn.take()?;
                turn.bring(draft, "5")
            })
        };
        // It stops with the lock, once before it makes its draft and once behind that.
        for has_draft in [false, true] {
            let stopped = Turn::open(at(&file, "one")).unwrap();
            if has_draft {
                stopped.write("one", &[b"old"]).unwrap();
            }
            stopped.take().unwrap();
            let begun = Instant::now();
            bring("two", "new").unwrap();
            let waited = begun.elapsed();
            assert!(waited >= PATIENCE, "{waited:?}: the lock was not there");
            assert_eq!(of_file("5"), "new");
            if !has_draft {
                assert!(is_over(&stopped.write("one", &[b"old"]).unwrap_err()));
            }
            assert!(is_over(&stopped.bring("one", "5").unwrap_err()));
            assert!(is_over(&stopped.remove("5", "one").unwrap_err()));
            assert_eq!(of_file("5"), "new");
            // It goes on in a turn of its own.
            bring("one", "newest").unwrap();
            assert_eq!(of_file("5"), "newest");
        }
        assert_eq!(names(&file.join(TURN)), [LOCK]);
        let mut all = names(&file);
        all.sort();
        assert_eq!(all, ["5", TURN]);
    }

    #[test]
    fn the_end_of_a_turn_is_brought_to_its_end_by_others() {
        let around = tempfile::tempdir().unwrap();
        let turn = Turn::open(at(around.path(), "one")).unwrap();
        turn.write("one", &[b"old"]).unwrap();
        // Whoever ended it was killed after this.
        unlinkat(&turn.drafts, LOCK, AtFlags::empty()).unwrap();
        let next = Turn::open(at(around.path(), "two")).unwrap();
        next.take().unwrap();
        assert!(is_over(&turn.take().unwrap_err()));
        assert!(is_over(&turn.bring("one", "5").unwrap_err()));
    }

    #[test]
    fn what_is_written_to_another_draft_comes_into_no_block() {
        let around = tempfile::tempdir().unwrap();
        let turn = Turn::open(at(around.path(), "one")).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let mut suspended = file_at(&turn.drafts, "one", flags).unwrap();
        suspended.write_all(b"old").unwrap();
        turn.write("one", &[b"new, and longer"]).unwrap();
        turn.take().unwrap();
        turn.bring("one", "5").unwrap();
        suspended.write_all(b"er").unwrap();
        let brought = fs::read(around.path().join("5")).unwrap();
        assert_eq!(brought, b"new, and longer");
    }

    #[test]
    fn turns_that_end_at_any_moment_lose_no_change() {
        let around = tempfile::tempdir().unwrap();
        let file = around.path();
        fs::write(file.join("count"), "0").unwrap();
        let count = || -> u32 {
            let text = fs::read_to_string(file.join("count")).unwrap();
            text.parse().unwrap()
        };
        let add = |draft: &str| {
            let turn = Turn::open(at(file, draft))?;
            turn.take()?;
            let next = (count() + 1).to_string();
            turn.write(draft, &[next.as_bytes()])?;
            turn.bring(draft, "count")
        };
        let ends = |draft: &str| {
            let turn = Turn::open(at(file, draft))?;
            end(&turn.blocks, &turn.drafts)
        };
        let (mut made, mut failed) = (0, 0);
        thread::scope(|scope| {
            let run = |who: u32| {
                let draft = format!("draft-{who}");
                let (mut made, mut failed) = (0, 0);
                for round in 0..400 {
                    match add(&draft) {
                        Ok(()) => made += 1,
                        Err(why) if is_over(&why) => failed += 1,
                        Err(why) => panic!("{why}"),
                    }
                    if round % 4 == who {
                        // Others may be so quick that it has no end.
                        let _ = ends(&draft);
                    }
                }
                (made, failed)
            };
            let all: Vec<_> = { 0..4 }.map(|who| scope.spawn(move || run(who))).collect();
            for thread in all {
                let (more, fewer) = thread.join().unwrap();
                made += more;
                failed += fewer;
            }
        });
        println!("{made} changes made, {failed} ended before");
        assert_eq!(count(), made);
        assert!(made > 0 && failed > 0);
    }
}
