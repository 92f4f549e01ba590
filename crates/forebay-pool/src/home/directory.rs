//! A home that is a directory of a file system: the servers' own, or one that several hosts see.
//!
//! ```text
//! life             the number of the pool's life, and the size of its blocks
//! FILE/BLOCK       a block: its version, 24 bytes, and what it holds
//! FILE/lock        locked by whoever changes anything in FILE
//! ```
//!
//! A block is written to another name and renamed: it is the old one or the new one, also after a crash.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::Home;
use crate::ids::{File, SIZE_BLOCK, Version};
use crate::message::{Block, Place};

const HEAD: usize = 24;
const LIFE: &str = "life";
const LOCK: &str = "lock";

/// A directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Where this server writes what it renames then.
    draft: String,
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
    /// Something else lies there.
    #[error("{0} is neither empty nor a pool's home")]
    Other(PathBuf),
}

impl Directory {
    /// The home of a server with this number.
    pub fn new(path: &Path, server: u32) -> Directory {
        Directory {
            path: path.to_owned(),
            draft: format!("draft-{server}"),
        }
    }

    /// Begins another life of the pool, and says its number; the first is 1. Once a life, by its first server.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn begin_life(path: &Path, block_bytes: u64) -> Result<u64, Foreign> {
        let failed = |error| Foreign::Failed(path.to_owned(), error);
        fs::create_dir_all(path).map_err(failed)?;
        let before = match fs::read_to_string(path.join(LIFE)) {
            Ok(text) => {
                let words: Vec<u64> = { text.split_whitespace() }
                    .map_while(|word| word.parse().ok())
                    .collect();
                match words[..] {
                    [life, bytes] if bytes == block_bytes => life,
                    [_, bytes] => return Err(Foreign::Blocks(path.to_owned(), bytes)),
                    _ => return Err(Foreign::Other(path.to_owned())),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::read_dir(path).map_err(failed)?.next().is_some() {
                    return Err(Foreign::Other(path.to_owned()));
                }
                0
            }
            Err(error) => return Err(failed(error)),
        };
        let life = before + 1;
        let text = format!("{life} {block_bytes}\n");
        replace(
            &path.join("life-draft"),
            &path.join(LIFE),
            &[text.as_bytes()],
        )
        .and_then(|()| sync(path))
        .map_err(failed)?;
        Ok(life)
    }

    fn of(&self, file: File) -> PathBuf {
        self.path.join(format!("{:016x}", file.0))
    }
}

/// Writes a file in one step.
fn replace(draft: &Path, to: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut out = fs::File::create(draft)?;
    parts.iter().try_for_each(|part| out.write_all(part))?;
    fs::rename(draft, to)
}

fn sync(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(path)?)?)
}

fn locked(directory: &Path) -> io::Result<fs::File> {
    let path = directory.join(LOCK);
    let lock = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?;
    lock.lock()?;
    Ok(lock)
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
        let read = perhaps(fs::read(self.of(file).join(format!("{block:x}"))))?;
        Ok(read.and_then(|bytes| {
            let version = version(&bytes)?;
            Some((version, bytes[HEAD..].to_vec()))
        }))
    }

    fn store(&self, block: &Block) -> io::Result<()> {
        let directory = self.of(block.place.0);
        fs::create_dir_all(&directory)?;
        let _lock = locked(&directory)?;
        let path = directory.join(format!("{:x}", block.place.1));
        if let Some(there) = perhaps(fs::File::open(&path))? {
            let mut head = Vec::with_capacity(HEAD);
            there.take(HEAD as u64).read_to_end(&mut head)?;
            if version(&head).is_some_and(|there| there >= block.version) {
                return Ok(());
            }
        }
        let head = head(block.version);
        let parts = [head.as_flattened(), &block.bytes];
        replace(&directory.join(&self.draft), &path, &parts)
    }

    fn discard(&self, file: File, from: u64, whole: bool) -> io::Result<()> {
        let directory = self.of(file);
        if !directory.exists() {
            return Ok(());
        }
        let _lock = locked(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| u64::from_str_radix(name, 16).ok());
            if number.is_some_and(|number| number >= from && (whole || number < SIZE_BLOCK)) {
                perhaps(fs::remove_file(entry.path()))?;
            }
        }
        if whole {
            // Another server may be at it; what it leaves is empty.
            let _ = fs::remove_dir_all(&directory);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        sync(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        two.store(&block(7, 1, 4)).unwrap();
        let load = |number| two.load((File(7), number)).unwrap();
        assert_eq!(load(1).unwrap().1, [5; 100]);
        two.store(&block(7, 1, 6)).unwrap();
        let newest = block(7, 1, 6);
        assert_eq!(load(1), Some((newest.version, newest.bytes.to_vec())));
        one.discard(File(7), 1, false).unwrap();
        assert!(load(0).is_some() && load(SIZE_BLOCK).is_some());
        assert!(load(1).is_none() && load(0xd).is_none());
        one.discard(File(7), 0, true).unwrap();
        assert!(load(0).is_none() && load(SIZE_BLOCK).is_none());
        two.sync().unwrap();
    }

    #[test]
    fn lives_are_counted_and_other_directories_refused() {
        let around = tempfile::tempdir().unwrap();
        let home = around.path().join("home");
        let begin = |bytes| Directory::begin_life(&home, bytes);
        assert_eq!((begin(4096).unwrap(), begin(4096).unwrap()), (1, 2));
        assert!(matches!(begin(512), Err(Foreign::Blocks(_, 4096))));
        let other = Directory::begin_life(around.path(), 4096);
        assert!(matches!(other, Err(Foreign::Other(_))));
    }
}
