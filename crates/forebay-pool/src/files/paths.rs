//! Files by paths.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::process::{getegid, geteuid};

use super::{Error, Files, Heard, Result};
use crate::client::{Changes, Entry, Facts, Failure, Kind};
use crate::ids::File;

/// Symbolic links that one path may go through.
const LINKS_MAX: usize = 40;

/// How a file is to be opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Made if it is not there.
    pub create: bool,
    /// Made, and an error if it is there.
    pub create_new: bool,
    /// Emptied.
    pub truncate: bool,
    /// The mode of a file that is made, less the process's umask.
    pub mode: u16,
}

impl Files {
    /// Opens a file.
    ///
    /// # Errors
    /// That it is not there, is none, or is there although it was to be made.
    pub fn open(self: &Arc<Self>, path: &[u8], options: OpenOptions) -> Result<Open> {
        let makes = options.create || options.create_new;
        let (parent, name, found) = self.walk(path, !options.create_new)?;
        let entry = match found {
            Some(_) if options.create_new => return Err(Error::Exists),
            Some(entry) => entry,
            None if !makes => return Err(Failure::NoSuchName.into()),
            None => {
                let (entry, is_new) = self.make(parent, &name, facts(Kind::File, options.mode))?;
                if options.create_new && !is_new {
                    return Err(Error::Exists);
                }
                entry
            }
        };
        if entry.kind != Kind::File {
            return Err(Error::IsADirectory);
        }
        let open = Open {
            files: Arc::clone(self),
            file: entry.file,
            heard: self.heard(),
            modified: Mutex::default(),
        };
        if options.truncate {
            open.set_len(0)?;
        }
        Ok(open)
    }

    /// What a path stands for. A symbolic link at its end is followed.
    ///
    /// # Errors
    /// That there is nothing.
    pub fn find(&self, path: &[u8]) -> Result<Entry> {
        let (_, _, found) = self.walk(path, true)?;
        found.ok_or(Failure::NoSuchName.into())
    }

    /// Makes a directory, with this mode less the process's umask.
    ///
    /// # Errors
    /// That something is there, or that the directory around it is not.
    pub fn make_directory(&self, path: &[u8], mode: u16) -> Result<()> {
        match self.walk(path, false)? {
            (_, _, Some(_)) => Err(Error::Exists),
            (parent, name, None) => {
                let (_, is_new) = self.make(parent, &name, facts(Kind::Directory, mode))?;
                is_new.then_some(()).ok_or(Error::Exists)
            }
        }
    }

    /// Removes a file, a symbolic link or an empty directory. Whoever has it open finds that it is gone.
    ///
    /// # Errors
    /// That it is not there, or not empty.
    pub fn delete(&self, path: &[u8]) -> Result<()> {
        let (parent, name, found) = self.walk(path, false)?;
        let kind = found.ok_or(Failure::NoSuchName)?.kind;
        let entry = self.unlink(parent, &name, kind == Kind::Directory)?;
        self.give_back(entry.file);
        Ok(())
    }

    /// Renames. A file that has the new name is replaced.
    ///
    /// # Errors
    /// As for [`Files::rename`].
    pub fn rename_path(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from_parent, from_name, _) = self.walk(from, false)?;
        let (to_parent, to_name, _) = self.walk(to, false)?;
        let (from, to) = ((from_parent, &*from_name), (to_parent, &*to_name));
        if let Some(replaced) = self.rename(from, to, true)? {
            self.give_back(replaced.file);
        }
        Ok(())
    }

    /// The directory that a path ends in, its last name, and what that stands for.
    fn walk(&self, path: &[u8], follows: bool) -> Result<(File, Vec<u8>, Option<Entry>)> {
        let root = Entry {
            file: File::ROOT,
            kind: Kind::Directory,
        };
        let mut rest: Vec<Vec<u8>> = parts(path).rev().collect();
        let mut above = vec![];
        let mut here = root;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if here.kind != Kind::Directory {
                return Err(Error::NotADirectory);
            }
            if name == b".." {
                here = above.pop().unwrap_or(root);
                continue;
            }
            let found = self.look_up(here.file, &name)?;
            let is_last = rest.is_empty();
            match found {
                Some(entry) if entry.kind == Kind::Symlink && (follows || !is_last) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Error::Loop);
                    }
                    let target = self.read(entry.file, 0, 4096)?;
                    if target.first() == Some(&b'/') {
                        above.clear();
                        here = root;
                    }
                    rest.extend(parts(&target).rev());
                }
                found if is_last => return Ok((here.file, name, found)),
                Some(entry) => above.push(std::mem::replace(&mut here, entry)),
                None => return Err(Failure::NoSuchName.into()),
            }
        }
        // The root, or what a `..` has led to: it is there, and has no name to be changed by.
        Ok((File::ROOT, Vec::new(), Some(here)))
    }
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as i64)
}

/// What this process's umask takes from modes. It is read here, since the system call changes it for all threads; where it cannot be read it takes all
/// that others may do.
fn umask() -> u16 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = { status.lines() }.find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|mask| u16::from_str_radix(mask.trim(), 8).ok());
    mask.unwrap_or(0o077)
}

/// What is known of a new file: it is its maker's.
fn facts(kind: Kind, mode: u16) -> Facts {
    let now = now();
    Facts {
        kind,
        mode: mode & !umask(),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        accessed: now,
        modified: now,
        changed: now,
    }
}

/// An open file.
pub struct Open {
    files: Arc<Files>,
    file: File,
    heard: Heard,
    /// When something was written by it last, until the pool knows.
    modified: Mutex<Option<i64>>,
}

impl Open {
    /// Its number in the pool.
    pub fn number(&self) -> File {
        self.file
    }

    /// Reads from an offset on. Fewer bytes than there is room for at the file's end only.
    ///
    /// # Errors
    /// [`Error`]; nothing else is one below either.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.files.read_into(self.file, offset, into)
    }

    /// Writes all of it at an offset.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.writing(|| self.files.write(self.file, offset, bytes))
    }

    /// Writes all of it at the end, and says where that was.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.writing(|| self.files.append(self.file, bytes))
    }

    /// How long it is, in bytes.
    pub fn size(&self) -> Result<u64> {
        Ok(self.files.attributes(self.file)?.0)
    }

    /// Gives it another length.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.writing(|| self.files.truncate(self.file, size))
    }

    /// What was written is at the servers when this returns, and the time of what was written by this opening as well.
    pub fn sync(&self) -> Result<()> {
        self.publish()?;
        self.files.sync_for(self.file, &self.heard)
    }

    fn modified(&self) -> MutexGuard<'_, Option<i64>> {
        self.modified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what changes bytes. What fails may have changed some.
    fn writing<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        *self.modified() = Some(now());
        done
    }

    /// Tells the pool when the file was written, if this opening has written it.
    fn publish(&self) -> Result<()> {
        let modified = self.modified().take();
        if modified.is_none() {
            return Ok(());
        }
        let changes = Changes {
            modified,
            changed: modified,
            ..Changes::default()
        };
        let told = self.files.change(self.file, changes);
        if told.is_err() {
            let mut later = self.modified();
            *later = later.or(modified);
        }
        told
    }
}
