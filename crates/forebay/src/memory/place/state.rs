//! A directory for what outlives the session: the daemon's log, and the bytes that a recovery keeps aside.
//!
//! It may lie below one that all users write to (`/var/tmp`, for a service without a home), and root may be the one who uses it. So no name
//! on the way to it is trusted that somebody else could have put there: the way is gone component by component, by
//! descriptors, and what lies in a directory that others may change must be this user's or root's; so must a link that
//! lies in a directory of somebody else's. Files are opened relative to the last descriptor, never through a link.

use super::dir::{open_at, user_id};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Bits of a mode by which others than the owner may change a directory.
const OTHERS_WRITE: u32 = 0o022;
/// Only owners may take away what lies in a directory.
const STICKY: u32 = 0o1000;
/// Links on the way, at most; as many as the kernel follows.
const LINKS_MAX: u32 = 40;

/// A directory that nobody but this user and root could have put where it is.
#[derive(Debug)]
pub struct StateDir {
    /// Where it was found; for messages. Access goes through the descriptor.
    pub path: PathBuf,
    file: File,
}

impl StateDir {
    /// Opens the directory, making it and what leads to it if need be.
    ///
    /// # Errors
    /// [`Error::Arena`] when it cannot be made, or somebody else could have put it there.
    pub fn make(path: &Path) -> Result<Self> {
        let cannot = |error: &io::Error| {
            Error::Arena(format!(
                "cannot make or open {}: {error}; give another kept_dir",
                path.display()
            ))
        };
        let start = if path.is_absolute() { c"/" } else { c"." };
        let mut at = start_at(start).map_err(|e| cannot(&e))?;
        let mut todo = components(path);
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            let entry = entry_at(&at, &name).map_err(|e| cannot(&e))?;
            let meta = entry.metadata().map_err(|e| cannot(&e))?;
            let around = at.metadata().map_err(|e| cannot(&e))?;
            let guarded = all_change(&around) || (meta.is_symlink() && !is_trusted(around.uid()));
            if name != ".." && guarded && !is_trusted(meta.uid()) {
                let why = format!(
                    "{} on the way belongs to user {}, where others could have put it",
                    name.display(),
                    meta.uid()
                );
                return Err(distrust(path, &why));
            }
            if !meta.is_symlink() {
                at = entry;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(cannot(&io::Error::from_raw_os_error(libc::ELOOP)));
            }
            let target = target_of(&entry).map_err(|e| cannot(&e))?;
            if target.is_absolute() {
                at = start_at(c"/").map_err(|e| cannot(&e))?;
            }
            for name in components(&target).into_iter().rev() {
                todo.push_front(name);
            }
        }
        let meta = at.metadata().map_err(|e| cannot(&e))?;
        if !is_trusted(meta.uid()) {
            return Err(distrust(
                path,
                &format!("it belongs to user {}", meta.uid()),
            ));
        }
        if meta.mode() & 0o002 != 0 && meta.mode() & STICKY == 0 {
            return Err(distrust(path, "every user may change it"));
        }
        Ok(Self {
            path: path.to_owned(),
            file: at,
        })
    }

    /// Opens a plain file of this user's alone to read it, and to write at its end; makes it if there is none.
    ///
    /// # Errors
    /// [`Error::Arena`] when what has the name is anything else.
    pub fn append(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let flags = libc::O_RDWR | libc::O_APPEND | libc::O_CREAT | libc::O_NONBLOCK;
        let file = open_at(
            self.file.as_raw_fd(),
            &c_string(OsStr::new(name))?,
            flags,
            0o600,
        )
        .map_err(|error| distrust(&path, &error.to_string()))?;
        let meta = file
            .metadata()
            .map_err(|error| distrust(&path, &error.to_string()))?;
        if !meta.is_file() || meta.uid() != user_id() || meta.nlink() != 1 {
            return Err(distrust(
                &path,
                "it is not a plain file of this user with one name",
            ));
        }
        Ok(file)
    }

    /// Makes a file for writing that nobody has had open: what has the name is removed first.
    ///
    /// # Errors
    /// The system's.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let name = c_string(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        match self.unlink(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        open_at(self.file.as_raw_fd(), &name, flags, 0o600)
    }

    /// Gives a file another name; what has that is replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let [from, to] = [from, to].map(c_string);
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let (from, to) = (from.map_err(invalid)?, to.map_err(invalid)?);
        let dir = self.file.as_raw_fd();
        // SAFETY: an open descriptor and NUL-terminated strings that live through the call.
        match unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Removes a file, if it is there and can be removed.
    pub fn remove(&self, name: &OsStr) {
        if let Ok(name) = c_string(name) {
            let _ = self.unlink(&name);
        }
    }

    fn unlink(&self, name: &CStr) -> io::Result<()> {
        // SAFETY: an open descriptor and a NUL-terminated string that lives through the call.
        match unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

/// Whether its mode lets others than its owner put things there.
fn all_change(dir: &std::fs::Metadata) -> bool {
    dir.mode() & OTHERS_WRITE != 0
}

/// This user, root, and where root has no number (in a user namespace) the number that stands for those without one.
fn is_trusted(uid: u32) -> bool {
    /// The kernel's default for `/proc/sys/kernel/overflowuid`.
    const NOBODY: u32 = 65_534;
    uid == 0 || uid == user_id() || (uid == NOBODY && !are_all_users_known())
}

/// Whether this is a user namespace in which every user has a number, as the first one is.
fn are_all_users_known() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let first: Vec<_> = map.split_whitespace().take(3).collect();
    first.is_empty() || first == ["0", "0", "4294967295"]
}

fn start_at(name: &CStr) -> io::Result<File> {
    open_at(libc::AT_FDCWD, name, libc::O_PATH | libc::O_DIRECTORY, 0)
}

/// What has the name, not opened but held; a directory of this user's is made where there is nothing.
fn entry_at(dir: &File, name: &OsStr) -> io::Result<File> {
    let name = c_string(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    match open_at(dir.as_raw_fd(), &name, libc::O_PATH, 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    // SAFETY: an open descriptor and a NUL-terminated string that lives through the call.
    let rc = unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o700) };
    let error = io::Error::last_os_error();
    if rc != 0 && error.kind() != io::ErrorKind::AlreadyExists {
        return Err(error);
    }
    open_at(dir.as_raw_fd(), &name, libc::O_PATH, 0)
}

/// Where a link leads that is held.
fn target_of(link: &File) -> io::Result<PathBuf> {
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: an open descriptor, an empty NUL-terminated string, and memory of ours of that length.
    let len = unsafe {
        libc::readlinkat(
            link.as_raw_fd(),
            c"".as_ptr(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    target.truncate(len);
    Ok(PathBuf::from(OsString::from_vec(target)))
}

fn distrust(path: &Path, why: &str) -> Error {
    Error::Arena(format!(
        "{} is not safe to use ({why}); remove it, or set kept_dir to a directory of your own",
        path.display()
    ))
}

fn c_string(name: &OsStr) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Error::InvalidInput("a path has no NUL byte in it"))
}
