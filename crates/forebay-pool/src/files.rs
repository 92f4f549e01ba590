//! Files of a pool by their names: what programs and mounts use.
//!
//! [`Files`] is a membership with a name space. Each call does one operation of [`client::Operation`](crate::client::Operation), or looks again and
//! repeats it where somebody else was quicker. Calls by number are what a file system needs; [`Files::open`] and what follows it
//! take paths. Paths begin at the pool's root, with or without a `/`.
//!
//! What it does not do: say who may do what. Whoever is in the pool may do everything.

mod heard;
mod left;
mod paths;

use std::time::Duration;

use crate::client::{Answer, Changes, Entry, Facts, Failure, Kind, Operation};
use crate::ids::File;
use crate::net::{Config, Ended, Pool};
pub use heard::Heard;
pub use left::Left;
pub use paths::{Open, OpenOptions};

/// Why a call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The pool says so.
    #[error(transparent)]
    Pool(#[from] Failure),
    /// Something has this name already.
    #[error("something has this name already")]
    Exists,
    /// A part of a path, or what should list names, is none.
    #[error("not a directory")]
    NotADirectory,
    /// It has names, not bytes.
    #[error("is a directory")]
    IsADirectory,
    /// Directories do not move into other directories.
    #[error("a directory stays in the directory that it is in")]
    Crosses,
    /// A name is too long.
    #[error("a name has at most 255 bytes")]
    TooLong,
    /// Symbolic links that lead to one another.
    #[error("too many symbolic links")]
    Loop,
    /// A name that no file can have.
    #[error("not a name")]
    Invalid,
}

impl Error {
    /// The number that a system call would fail with.
    pub fn errno(self) -> i32 {
        match self {
            Error::Pool(Failure::CutOff) => libc::ETIMEDOUT,
            Error::Pool(Failure::GivenUp) => libc::ENOTCONN,
            Error::Pool(Failure::Lost) => libc::EIO,
            Error::Pool(Failure::TooLarge) => libc::EFBIG,
            Error::Pool(Failure::NoSuchName) => libc::ENOENT,
            Error::Pool(Failure::Changed) => libc::EAGAIN,
            Error::Pool(Failure::NotEmpty) => libc::ENOTEMPTY,
            Error::Pool(Failure::Gone) => libc::ESTALE,
            Error::Pool(Failure::Full | Failure::NoRoom) => libc::ENOSPC,
            Error::Exists => libc::EEXIST,
            Error::NotADirectory => libc::ENOTDIR,
            Error::IsADirectory => libc::EISDIR,
            Error::Crosses => libc::EXDEV,
            Error::TooLong => libc::ENAMETOOLONG,
            Error::Loop => libc::ELOOP,
            Error::Invalid => libc::EINVAL,
        }
    }
}

/// What a call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// The operation's answer is always of its kind; anything else is no answer.
const NO_ANSWER: Error = Error::Pool(Failure::Lost);

/// The files of a pool. Any number of threads may use it.
pub struct Files {
    /// What [`Files::delete`] and [`Files::rename_path`] could not give back.
    left: Left,
    pool: Pool,
}

impl Files {
    /// Joins a pool, and waits at most `patience` until it is in.
    ///
    /// # Errors
    /// Why it is not let in.
    pub fn join(config: &Config, patience: Duration) -> std::result::Result<Self, Ended> {
        let pool = Pool::join(config, patience)?;
        Ok(Files {
            left: Left::default(),
            pool,
        })
    }

    /// The membership, for operations of its own.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn run(&self, operation: Operation) -> Result<Answer> {
        Ok(self.pool.run(operation)?)
    }

    fn done(&self, operation: Operation) -> Result<()> {
        self.run(operation).map(drop)
    }

    /// What a name in a directory stands for.
    pub fn look_up(&self, parent: File, name: &[u8]) -> Result<Option<Entry>> {
        let name = checked(name)?.to_vec();
        match self.run(Operation::LookUp { parent, name })? {
            Answer::Entry(entry) => Ok(entry),
            _ => Err(NO_ANSWER),
        }
    }

    /// All names in a directory, in no order.
    pub fn list(&self, parent: File) -> Result<Vec<(Vec<u8>, Entry)>> {
        match self.run(Operation::List { parent })? {
            Answer::Names(names) => Ok(names),
            _ => Err(NO_ANSWER),
        }
    }

    /// What a name stands for, and whether that was made by this call.
    pub fn make(&self, parent: File, name: &[u8], facts: Facts) -> Result<(Entry, bool)> {
        self.make_with(parent, name, facts, &[])
    }

    /// As [`Files::make`]; whoever finds a file that this call has made finds these bytes in it, a few: the target of a symbolic link.
    pub fn make_with(
        &self,
        parent: File,
        name: &[u8],
        facts: Facts,
        bytes: &[u8],
    ) -> Result<(Entry, bool)> {
        let make = Operation::Make {
            parent,
            name: checked(name)?.to_vec(),
            facts,
            bytes: bytes.to_vec(),
        };
        match self.run(make)? {
            Answer::Made(entry, is_new) => Ok((entry, is_new)),
            _ => Err(NO_ANSWER),
        }
    }

    /// Takes a name away, and says what it stood for. That is not given back yet: see [`Files::remove`].
    pub fn unlink(&self, parent: File, name: &[u8], directory: bool) -> Result<Entry> {
        again(|| {
            let entry = self.look_up(parent, name)?.ok_or(Failure::NoSuchName)?;
            match (entry.kind == Kind::Directory, directory) {
                (true, false) => return Err(Error::IsADirectory),
                (false, true) => return Err(Error::NotADirectory),
                _ => {}
            }
            let name = name.to_vec();
            self.done(Operation::Unlink {
                parent,
                name,
                entry,
            })?;
            Ok(entry)
        })
    }

    /// Renames, and says what has been replaced. That is not given back yet: see [`Files::remove`].
    pub fn rename(
        &self,
        from: (File, &[u8]),
        to: (File, &[u8]),
        replaces: bool,
    ) -> Result<Option<Entry>> {
        again(|| {
            let entry = self.look_up(from.0, from.1)?.ok_or(Failure::NoSuchName)?;
            let replaced = self.look_up(to.0, to.1)?;
            let is_directory = entry.kind == Kind::Directory;
            if is_directory && from.0 != to.0 {
                return Err(Error::Crosses);
            }
            match replaced {
                Some(_) if !replaces => return Err(Error::Exists),
                Some(other) if other.kind == Kind::Directory && !is_directory => {
                    return Err(Error::IsADirectory);
                }
                Some(other) if other.kind != Kind::Directory && is_directory => {
                    return Err(Error::NotADirectory);
                }
                _ => {}
            }
            self.done(Operation::Rename {
                from: (from.0, from.1.to_vec()),
                entry,
                to: (to.0, to.1.to_vec()),
                replaced,
            })?;
            Ok(replaced.filter(|other| *other != entry))
        })
    }

    /// Gives back what a file without a name has. Whoever has it open finds that it is gone.
    pub fn remove(&self, file: File) -> Result<()> {
        self.done(Operation::Remove { file })
    }

    /// The same; whether nothing is to be done for it any more. Whoever was quicker has done it; or what it has stays, since this process is in the
    /// pool no more.
    pub fn try_remove(&self, file: File) -> bool {
        let is_over = [
            Ok(()),
            Err(Failure::Gone.into()),
            Err(Failure::GivenUp.into()),
        ];
        is_over.contains(&self.remove(file))
    }

    /// The same, now or later. Nobody hears of a failure: its name has gone.
    fn give_back(&self, file: File) {
        if self.try_remove(file) {
            self.left.again(|file| self.try_remove(file));
        } else {
            self.left.add(file);
        }
    }

    /// Size in bytes, and what else is known.
    pub fn attributes(&self, file: File) -> Result<(u64, Facts)> {
        match self.run(Operation::Attributes { file })? {
            Answer::Attributes(size, facts) => Ok((size, facts)),
            _ => Err(NO_ANSWER),
        }
    }

    /// Changes what is known, but the size.
    pub fn change(&self, file: File, changes: Changes) -> Result<()> {
        self.done(Operation::Change { file, changes })
    }

    /// Bytes from an offset, up to the file's end.
    pub fn read(&self, file: File, offset: u64, length: u64) -> Result<Vec<u8>> {
        Ok(self.pool.read(file, offset, length)?)
    }

    /// The same into the caller's memory. Returns how many bytes: fewer than there is room for at the file's end only.
    pub fn read_into(&self, file: File, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.pool.read_into(file, offset, into)?)
    }

    /// Writes at an offset.
    pub fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.pool.write(file, offset, bytes)?)
    }

    /// Writes at the end, and says where that was.
    pub fn append(&self, file: File, bytes: &[u8]) -> Result<u64> {
        let bytes = bytes.to_vec().into();
        match self.run(Operation::Append { file, bytes })? {
            Answer::At(at) => Ok(at),
            _ => Err(NO_ANSWER),
        }
    }

    /// Gives a file another size.
    pub fn truncate(&self, file: File, size: u64) -> Result<()> {
        self.done(Operation::Truncate { file, size })
    }

    /// What was written by this membership before is at the servers when this returns, and durable in the home, if there is one. Writes of other
    /// members, also to the same bytes, are theirs to sync, though they have returned. [`Failure::Lost`]: some of it is lost, and nobody has been told.
    /// Where several have opened the file each of them needs [`Files::sync_for`].
    pub fn sync(&self, file: File) -> Result<()> {
        self.done(Operation::sync(file))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.left.again(|file| self.try_remove(file));
    }
}

fn checked(name: &[u8]) -> Result<&[u8]> {
    let is_name = crate::client::is_name;
    match name.len() {
        _ if is_name(name) => Ok(name),
        256.. if is_name(&name[..255]) => Err(Error::TooLong),
        _ => Err(Error::Invalid),
    }
}

/// Repeats what others have made untrue while it was under way. Each time somebody has got further, so not all repeat for ever.
fn again<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match work() {
            Err(Error::Pool(Failure::Changed)) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::net::{Serving, tests::config};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn what_could_not_be_given_back_goes_with_the_next_name_or_at_the_end() {
        let config = config(1);
        let serving = Serving::begin(&config, 0).unwrap();
        let join = || Arc::new(Files::join(&config, PATIENCE).unwrap());
        let (files, other) = (join(), join());
        let make = |name: &[u8]| {
            let options = OpenOptions {
                create: true,
                ..OpenOptions::default()
            };
            files.open(name, options).unwrap().number()
        };
        let is_gone = |file| other.attributes(file) == Err(Failure::Gone.into());
        // Its name goes, and then the term ends.
        let unlink = |name: &[u8]| {
            let file = files.unlink(File::ROOT, name, false).unwrap().file;
            files.left.add(file);
            file
        };
        make(b"one");
        make(b"two");
        make(b"three");
        let one = unlink(b"one");
        assert!(!is_gone(one));
        files.delete(b"two").unwrap();
        assert!(is_gone(one), "a removal");
        let three = unlink(b"three");
        assert!(!is_gone(three));
        drop(files);
        assert!(is_gone(three), "the end");
        serving.stop();
        drop(other);
    }

    #[test]
    fn who_watches_hears_of_a_file_before_others_change_it() {
        let config = config(1);
        let serving = Serving::begin(&config, 0).unwrap();
        let join = || Arc::new(Files::join(&config, PATIENCE).unwrap());
        let (files, other) = (join(), join());
        let made = files.make(File::ROOT, b"file", Facts::default()).unwrap();
        let file = made.0.file;
        let is_written = Arc::new(AtomicBool::new(false));
        let heard = Arc::new(Mutex::new(Vec::new()));
        files.pool().watch({
            let (is_written, heard) = (Arc::clone(&is_written), Arc::clone(&heard));
            move |file| {
                // Time for others to go on, if they could.
                std::thread::sleep(Duration::from_millis(100));
                let is_written = is_written.load(Ordering::SeqCst);
                heard.lock().unwrap().push((file, is_written));
            }
        });
        let takes = || std::mem::take(&mut *heard.lock().unwrap());
        files.write(file, 0, b"bytes").unwrap();
        assert_eq!(files.attributes(file).unwrap().0, 5);
        assert!(files.pool().term_left() > Duration::ZERO);
        // What another one reads stays here as well.
        assert_eq!(other.read(file, 0, 9).unwrap(), b"bytes");
        assert_eq!(takes(), []);
        other.write(file, 0, b"BYTES").unwrap();
        is_written.store(true, Ordering::SeqCst);
        let heard_of = takes();
        assert!(heard_of.contains(&(file, false)), "{heard_of:?}");
        assert!(!heard_of.iter().any(|(_, is_written)| *is_written));
        drop((files, other));
        serving.stop();
    }
}
