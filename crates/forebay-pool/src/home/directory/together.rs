//! Blocks that are stored all or none: names of several directories that one operation changes.
//!
//! ```text
//! together/DRAFT-CLIENT-REQUEST   what a server is about to store, until it has
//! ```
//!
//! A server writes down what it stores before the first block comes to its place. One that is killed in between leaves that to the others: they store the rest before an
//! epoch begins in which clients do anything. Where none of the blocks is there in this version the server had not begun, or was not allowed to any more: then nothing of it
//! is stored.
//!
//! Nothing of this is synced. It is for servers that are killed, and not for hosts that lose power: what has come apart by that is passed over, by its sum.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::{DIRECTORY_MODE, FILE_MODE, perhaps};
use crate::ids::Version;
use crate::message::{Block, Place};
use crate::random::mix2;

const TOGETHER: &str = "together";

/// As it is written down.
type Written = Vec<(Place, Version, Vec<u8>)>;

/// Writes down what is to be stored.
pub(super) fn begin(home: impl AsFd, name: &str, blocks: &[Block]) -> io::Result<()> {
    match mkdirat(&home, TOGETHER, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(why) => return Err(why.into()),
    }
    let blocks = blocks.iter();
    let blocks = blocks.map(|block| (block.place, block.version, block.bytes.to_vec()));
    let mut bytes = postcard::to_stdvec(&blocks.collect::<Written>()).map_err(io::Error::other)?;
    let sum = sum_of(&bytes);
    bytes.extend(sum.to_le_bytes());
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(home, path_of(name), flags, Mode::from_raw_mode(FILE_MODE))?;
    fs::File::from(file).write_all(&bytes)
}

/// All of it is stored, or nothing is to be.
pub(super) fn end(home: impl AsFd, name: &str) -> io::Result<()> {
    match unlinkat(home, path_of(name), AtFlags::empty()) {
        // Another server was quicker.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

/// All that is written down, by its names. What makes no sense has no blocks.
pub(super) fn left(home: impl AsFd) -> io::Result<Vec<(String, Vec<Block>)>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = openat(&home, TOGETHER, flags | OFlags::DIRECTORY, Mode::empty());
    let Some(directory) = perhaps(opened.map_err(io::Error::from))? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        let opened = openat(&directory, &name, flags, Mode::empty()).map_err(io::Error::from);
        if let Some(file) = perhaps(opened)? {
            let mut bytes = Vec::new();
            fs::File::from(file).read_to_end(&mut bytes)?;
            all.push((name, blocks_of(&bytes).unwrap_or_default()));
        }
    }
    Ok(all)
}

fn path_of(name: &str) -> String {
    format!("{TOGETHER}/{name}")
}

fn blocks_of(bytes: &[u8]) -> Option<Vec<Block>> {
    let (written, sum) = bytes.split_last_chunk()?;
    if u64::from_le_bytes(*sum) != sum_of(written) {
        return None;
    }
    let written: Written = postcard::from_bytes(written).ok()?;
    let block = |(place, version, bytes): (Place, Version, Vec<u8>)| Block {
        place,
        version,
        bytes: bytes.into(),
    };
    Some(written.into_iter().map(block).collect())
}

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix2(sum, u64::from_le_bytes(word))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Directory;
    use super::*;
    use crate::home::Home;
    use crate::ids::File;

    const REQUEST: (u32, u64) = (9, 4);

    fn block(number: u64, change: u64) -> Block {
        let version = Version {
            epoch: 1,
            stamp: 2,
            change,
        };
        Block {
            place: (File::NAMES, number),
            version,
            bytes: vec![change as u8; 100].into(),
        }
    }

    /// What a block was changed by last.
    fn change(home: &Directory, number: u64) -> Option<u64> {
        let found = home.load((File::NAMES, number)).unwrap();
        found.map(|(version, _)| version.change)
    }

    /// A server writes down that it stores two blocks, does what it is told to, and is killed. What has the next one stored then?
    fn after(does: impl FnOnce(&Directory, &Path)) -> [Option<u64>; 2] {
        let around = tempfile::tempdir().unwrap();
        let [one, two] = [1, 2].map(|server| Directory::of_anybody(around.path(), server).unwrap());
        for number in [1, 2] {
            one.store(&block(number, 3), &|| true).unwrap();
        }
        let blocks = [1, 2].map(|number| block(number, 5));
        one.begin_together(REQUEST, &blocks).unwrap();
        does(&one, around.path());
        two.go_on_together(&|| true).unwrap();
        let left = fs::read_dir(around.path().join(TOGETHER)).unwrap();
        assert_eq!(left.count(), 0);
        [1, 2].map(|number| change(&two, number))
    }

    #[test]
    fn what_a_killed_server_has_stored_a_part_of_is_stored_by_the_next_one() {
        let store = |home: &Directory, number, change| {
            home.store(&block(number, change), &|| true).unwrap();
        };
        assert_eq!(after(|home, _| store(home, 1, 5)), [Some(5), Some(5)]);
        // It had not begun.
        assert_eq!(after(|_, _| {}), [Some(3), Some(3)]);
        // Somebody has changed the other one since.
        let later = |home: &Directory, _: &Path| {
            store(home, 1, 5);
            store(home, 2, 6);
        };
        assert_eq!(after(later), [Some(5), Some(6)]);
        let ended = |home: &Directory, _: &Path| {
            store(home, 1, 5);
            home.end_together(REQUEST).unwrap();
        };
        assert_eq!(after(ended), [Some(5), Some(3)]);
    }

    #[test]
    fn what_was_written_down_and_has_come_apart_is_passed_over() {
        for length in [0, 7, 60, 200] {
            let come_apart = |home: &Directory, path: &Path| {
                home.store(&block(1, 5), &|| true).unwrap();
                let mut all = fs::read_dir(path.join(TOGETHER)).unwrap();
                let path = all.next().unwrap().unwrap().path();
                let mut bytes = fs::read(&path).unwrap();
                let whole = bytes.len();
                bytes.truncate(length);
                bytes.resize(whole, 0);
                fs::write(path, bytes).unwrap();
            };
            assert_eq!(after(come_apart), [Some(5), Some(3)], "{length}");
        }
    }
}
