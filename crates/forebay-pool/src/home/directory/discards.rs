//! Blocks that go from a home: a moment of it at a time, since the server is there for nobody meanwhile.
//!
//! What goes is found in one walk through a file's blocks, most of which may stay, and the walk is gone on with as well. Nothing comes meanwhile that
//! is to stay: whoever has something discarded keeps the grants of it until all servers have done it, and a server that may have been given up does
//! nothing more. Whoever asks anew may have written since he asked before: that is another walk.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, statat};
use rustix::io::Errno;

use super::turn::{At, PATIENCE, in_turn, remove_all};
use crate::ids::{File, SIZE_BLOCK};

/// A home discards blocks for so long, of each so long: its server is there for others the rest of the time. Short in tests, so that they reach it.
const DISCARDS: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
const OF_EACH: Duration = DISCARDS.saturating_mul(2);

/// So many blocks are noted at once: they take half a megabyte. Few in tests, so that they reach it.
const NOTED: usize = if cfg!(test) { 1000 } else { 1 << 16 };

/// What nobody has gone on with for so long is forgotten: whoever asked for it is gone.
const KEPT: Duration = Duration::from_secs(60);

/// What goes: blocks of a file, from one on, and whether it is all that there is of it.
type What = (File, u64, bool);

/// What a home discards.
#[derive(Debug)]
pub(super) struct Discards {
    /// When it began to last, and how long it has been at it since.
    since: Instant,
    worked: Duration,
    unfinished: BTreeMap<What, Walk>,
}

impl Default for Discards {
    fn default() -> Discards {
        Discards {
            since: Instant::now(),
            worked: Duration::ZERO,
            unfinished: BTreeMap::new(),
        }
    }
}

/// A walk through a file's blocks.
#[derive(Debug)]
struct Walk {
    /// Those that it has not come to; nothing if it is at its end.
    entries: Option<Dir>,
    /// What goes of the others.
    numbers: Vec<u64>,
    /// There may be more than it has noted.
    is_full: bool,
    /// It has had the turn: who was suspended in an earlier one, before it brought a block, brings it no more.
    has_taken: bool,
    used: Instant,
}

impl Discards {
    /// Discards blocks for a moment, of a file that has this directory; says whether no more are there.
    pub fn discard(
        &mut self,
        at: At<'_>,
        blocks: &fs::File,
        what: What,
        goes_on: bool,
    ) -> io::Result<bool> {
        let begun = Instant::now();
        self.unfinished
            .retain(|_, walk| begun.duration_since(walk.used) < KEPT);
        let before = self.unfinished.remove(&what).filter(|_| goes_on);
        if begun.duration_since(self.since) >= OF_EACH {
            (self.since, self.worked) = (begun, Duration::ZERO);
        }
        let most = DISCARDS.saturating_sub(self.worked);
        if most.is_zero() {
            self.unfinished.extend(before.map(|walk| (what, walk)));
            return Ok(false);
        }
        let result = before.map_or_else(|| Walk::begin(blocks), Ok);
        let result = result.and_then(|mut walk| {
            let is_done = walk.go_on(begun + most, (at, blocks), what)?;
            Ok((is_done, walk))
        });
        self.worked += begun.elapsed();
        let (is_done, mut walk) = result?;
        if !is_done {
            walk.used = Instant::now();
            self.unfinished.insert(what, walk);
        } else if what.2 {
            // Another server may be at it; what it leaves is empty.
            let _ = CString::new(at.1).map(|directory| remove_all(at.0, &directory));
        }
        Ok(is_done)
    }
}

impl Walk {
    fn begin(blocks: &fs::File) -> io::Result<Walk> {
        Ok(Walk {
            entries: Some(Dir::read_from(blocks)?),
            numbers: Vec::new(),
            is_full: false,
            has_taken: false,
            used: Instant::now(),
        })
    }

    /// Goes on until then; says whether all is done.
    fn go_on(
        &mut self,
        until: Instant,
        (at, blocks): (At<'_>, &fs::File),
        what: What,
    ) -> io::Result<bool> {
        loop {
            if !self.look(until, what)? || !self.remove(until, (at, blocks))? {
                return Ok(false);
            }
            if !self.is_full {
                return Ok(true);
            }
            *self = Walk::begin(blocks)?;
        }
    }

    /// Notes what goes; says whether it is at its end.
    fn look(&mut self, until: Instant, (_, from, whole): What) -> io::Result<bool> {
        while let Some(entries) = &mut self.entries {
            let Some(entry) = entries.next() else {
                self.entries = None;
                break;
            };
            let entry = entry?;
            let number = { entry.file_name().to_str().ok() }
                .and_then(|name| u64::from_str_radix(name, 16).ok());
            let goes = |number: &u64| *number >= from && (whole || *number < SIZE_BLOCK);
            self.numbers.extend(number.filter(goes));
            self.is_full = self.numbers.len() >= NOTED;
            if self.is_full {
                self.entries = None;
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes what is noted; says whether all of it has gone.
    fn remove(&mut self, until: Instant, (at, blocks): (At<'_>, &fs::File)) -> io::Result<bool> {
        if self.numbers.is_empty() && self.has_taken {
            return Ok(true);
        }
        in_turn(at, |turn| {
            turn.take()?;
            self.has_taken = true;
            while let Some(number) = self.numbers.last() {
                // A turn that was ended is begun anew: by one who has stood still meanwhile, and may have been given up.
                if Instant::now() >= until + PATIENCE {
                    break;
                }
                let name = format!("{number:x}");
                match turn.remove(&name, at.2) {
                    // Another server has removed it, or has ended this turn.
                    Err(_) if !is_there(blocks, &name)? => {}
                    result => result?,
                }
                self.numbers.pop();
                if Instant::now() >= until {
                    break;
                }
            }
            Ok(self.numbers.is_empty())
        })
    }
}

fn is_there(at: impl AsFd, name: &str) -> io::Result<bool> {
    match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        found => Ok(found.map(|_| true)?),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Directory;
    use super::*;
    use crate::home::Home;

    /// A home with a file of so many blocks.
    fn home(around: &Path, blocks: u64) -> (Directory, std::path::PathBuf) {
        let home = Directory::of_anybody(around, 1).unwrap();
        let file = around.join(super::super::of(File(7)));
        fs::create_dir(&file).unwrap();
        for number in 0..blocks {
            fs::write(file.join(format!("{number:x}")), "").unwrap();
        }
        (home, file)
    }

    fn count(file: &Path) -> usize {
        let entries = fs::read_dir(file).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        names.filter(|name| !name.starts_with("turn")).count()
    }

    /// Discards a file from a block on, and says in how many pieces.
    fn pieces((home, file): &(Directory, std::path::PathBuf), from: u64, whole: bool) -> usize {
        let (mut left, mut pieces) = (count(file), 0);
        let mut goes_on = false;
        while !home.discard(File(7), from, whole, goes_on).unwrap() {
            goes_on = true;
            let before = std::mem::replace(&mut left, count(file));
            pieces += usize::from(left < before);
            if left == before {
                // It has done its share for now.
                std::thread::sleep(OF_EACH);
            }
        }
        pieces
    }

    #[test]
    fn a_large_file_is_discarded_piece_by_piece() {
        let around = tempfile::tempdir().unwrap();
        let home = home(around.path(), 2500);
        let pieces = pieces(&home, 0, true);
        assert!(pieces > 1 && !home.1.exists(), "{pieces} pieces");
    }

    #[test]
    fn what_stays_of_a_file_is_looked_at_once() {
        let around = tempfile::tempdir().unwrap();
        let home = home(around.path(), 20_200);
        let pieces = pieces(&home, 20_000, false);
        assert_eq!(count(&home.1), 20_000);
        assert!(pieces < 100, "{pieces} pieces");
    }

    #[test]
    fn whoever_asks_anew_is_rid_of_what_has_come_since_and_others_help() {
        let around = tempfile::tempdir().unwrap();
        let home = home(around.path(), 900);
        let discard = |goes_on| home.0.discard(File(7), 0, false, goes_on).unwrap();
        let has_list = || {
            let discards = home.0.discards.lock().unwrap();
            discards
                .unfinished
                .values()
                .any(|walk| walk.entries.is_none())
        };
        let mut is_done = discard(false);
        while !is_done && !has_list() {
            std::thread::sleep(OF_EACH);
            is_done = discard(true);
        }
        assert!(!is_done, "too quick");
        // Another server removes some.
        for number in 0..100 {
            let _ = fs::remove_file(home.1.join(format!("{number:x}")));
        }
        fs::write(home.1.join("fff"), "").unwrap();
        let mut goes_on = false;
        while !discard(std::mem::replace(&mut goes_on, true)) {}
        assert_eq!(count(&home.1), 0);
    }
}
