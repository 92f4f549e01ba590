//! The directory of one user's arenas: `forebay-<uid>`, mode 0700, files `<session>.arena`, 0600.
//!
//! Memory file systems are world-writable, so anyone may have put a directory, a link or a file of
//! that name there first. Everything goes through descriptors: the directory is opened without
//! following links and then asked who owns it, files are opened relative to that descriptor, again
//! without following links, and asked too. What is checked is what is used, so there is nothing to
//! race with. A stranger who occupies the name can only deny the place, and the ladder goes on.

use super::{FoundArena, is_session_name};
use crate::error::{Error, Result, SessionFault};
use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Ends the name of an arena's file.
const ARENA_SUFFIX: &str = ".arena";
/// The permission bits of a file's mode.
const MODE_BITS: u32 = 0o777;

/// A directory that was seen to belong to this user alone.
#[derive(Debug)]
pub struct UserDir {
    /// Where it was found; for messages. Access goes through the descriptor.
    pub path: PathBuf,
    file: File,
}

/// The user whose permissions file accesses have.
pub fn user_id() -> u32 {
    // SAFETY: a call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

/// The file name of a session's arena.
pub fn arena_name(session: &str) -> String {
    format!("{session}{ARENA_SUFFIX}")
}

impl UserDir {
    /// Opens the user's directory in `parent`, making it if need be.
    ///
    /// # Errors
    /// [`Error::Arena`] when it cannot be made, or exists and is someone else's or open to others.
    pub fn make(parent: &Path, uid: u32) -> Result<Self> {
        if let Ok(Some(made)) = Self::open(parent, uid) {
            return Ok(made);
        }
        let path = parent.join(format!("forebay-{uid}"));
        let name = c_path(&path)?;
        // SAFETY: a NUL-terminated string that lives through the call.
        let rc = unsafe { libc::mkdir(name.as_ptr(), 0o700) };
        let error = io::Error::last_os_error();
        if rc != 0 && error.raw_os_error() != Some(libc::EEXIST) {
            return Err(Error::Arena(format!(
                "cannot make {}: {error}; make the directory writable for this user",
                path.display()
            )));
        }
        Self::open(parent, uid)?
            .ok_or_else(|| Error::Arena(format!("{} vanished while opening it", path.display())))
    }

    /// Opens the user's directory in `parent`; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Arena`] when what has the name is not a directory of this user's alone.
    pub fn open(parent: &Path, uid: u32) -> Result<Option<Self>> {
        let path = parent.join(format!("forebay-{uid}"));
        let name = c_path(&path)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let file = match open_at(libc::AT_FDCWD, &name, flags, 0) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(distrust(&path, &error.to_string())),
        };
        let meta = file
            .metadata()
            .map_err(|error| distrust(&path, &error.to_string()))?;
        if meta.uid() != uid {
            return Err(distrust(
                &path,
                &format!("it belongs to user {}", meta.uid()),
            ));
        }
        if meta.mode() & MODE_BITS != 0o700 {
            return Err(distrust(
                &path,
                &format!("its mode is {:o}", meta.mode() & MODE_BITS),
            ));
        }
        Ok(Some(Self { path, file }))
    }

    /// The path of a session's arena here.
    pub fn arena_path(&self, session: &str) -> PathBuf {
        self.path.join(arena_name(session))
    }

    /// Makes a session's arena file, empty.
    ///
    /// # Errors
    /// [`Error::Session`] when it exists.
    pub fn create(&self, session: &str) -> Result<File> {
        let name = session_file(session)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        match open_at(self.file.as_raw_fd(), &name, flags, 0o600) {
            Ok(file) => exactly(file, 0o600),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(SessionFault::InUse
                .error(format!(
                    "'{session}' has an arena already; join it, or run `forebay recover`"
                ))),
            Err(error) => Err(Error::device("make the arena's file", &error)),
        }
    }

    /// Opens a session's arena file for reading and writing.
    ///
    /// # Errors
    /// [`Error::Session`] when there is none, [`Error::Arena`] when it is not a file that only this
    /// user can reach.
    pub fn open_session(&self, session: &str) -> Result<File> {
        let name = session_file(session)?;
        let path = self.path.join(arena_name(session));
        let file = match open_at(
            self.file.as_raw_fd(),
            &name,
            libc::O_RDWR | libc::O_NONBLOCK,
            0,
        ) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SessionFault::Absent.error(format!(
                    "'{session}' has no arena; start it with `forebay daemon`"
                )));
            }
            Err(error) => return Err(distrust(&path, &error.to_string())),
        };
        let meta = file
            .metadata()
            .map_err(|error| distrust(&path, &error.to_string()))?;
        let owner = self
            .file
            .metadata()
            .map_err(|error| distrust(&path, &error.to_string()))?;
        if !meta.is_file() || meta.uid() != owner.uid() || meta.nlink() != 1 {
            return Err(distrust(
                &path,
                "it is not a plain file of this user with one name",
            ));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(distrust(
                &path,
                &format!("its mode is {:o}", meta.mode() & MODE_BITS),
            ));
        }
        Ok(file)
    }

    /// Removes a session's arena file.
    ///
    /// # Errors
    /// [`Error::Session`] when there is none.
    pub fn remove(&self, session: &str) -> Result<()> {
        let name = session_file(session)?;
        // SAFETY: an open descriptor and a NUL-terminated string that lives through the call.
        let rc = unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Err(SessionFault::Absent.error(format!("'{session}' has no arena")))
            }
            _ => Err(Error::device("remove the arena's file", &error)),
        }
    }

    /// The arenas in this directory, in name order. Files that cannot be trusted are left out.
    pub fn arenas(&self) -> Vec<FoundArena> {
        // The descriptor's own view of the directory, so that a swap of the path changes nothing.
        let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
        else {
            return Vec::new();
        };
        let mut found: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| self.found(name.strip_suffix(ARENA_SUFFIX)?))
            .collect();
        found.sort_by(|a, b| a.session.cmp(&b.session));
        found
    }

    /// A session's arena in this directory, if it can be trusted.
    pub fn found(&self, session: &str) -> Option<FoundArena> {
        let bytes = self.open_session(session).ok()?.metadata().ok()?.len();
        let path = self.path.join(arena_name(session));
        Some(FoundArena {
            path,
            session: session.to_owned(),
            bytes,
        })
    }
}

/// Opens an arena by its path, for reading and writing: a plain file of this user's own, and no link to one. It names files, and what is to be written to
/// them: another user who had made it would have this user's rights, root's included.
///
/// # Errors
/// The system's, and what is wrong with it.
pub fn open_own(path: &Path) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let file = open_at(libc::AT_FDCWD, &name, libc::O_RDWR | libc::O_NONBLOCK, 0)?;
    let (meta, me) = (file.metadata()?, user_id());
    if !meta.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if meta.uid() != me {
        let why = format!("it belongs to user {}, and this is user {me}", meta.uid());
        return Err(io::Error::other(why));
    }
    Ok(file)
}

/// Whether a file, found at a path, lies where this user's arenas lie, under an arena's name, and for that user alone: what Forebay has made,
/// whatever is in it.
pub fn is_in_place(path: &Path, found: &Metadata) -> bool {
    let place = || {
        let path = path.canonicalize().ok()?;
        let session = path.file_name()?.to_str()?.strip_suffix(ARENA_SUFFIX)?;
        let dir = UserDir::open(path.parent()?.parent()?, user_id()).ok()??;
        let meta = dir.open_session(session).ok()?.metadata().ok()?;
        (dir.path == path.parent()?).then_some((meta.dev(), meta.ino()))
    };
    place() == Some((found.dev(), found.ino()))
}

/// Opens relative to a directory, never through a link and never leaking into a child program.
pub(super) fn open_at(dir: i32, name: &CStr, flags: i32, mode: libc::mode_t) -> io::Result<File> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name is NUL-terminated and lives through the call.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags, libc::c_uint::from(mode)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just opened, which nobody else knows; the file owns it from here on.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives a file that was just made its full mode, whatever the process's umask took away.
fn exactly(file: File, mode: u32) -> Result<File> {
    file.set_permissions(std::fs::Permissions::from_mode(mode))
        .map_err(|error| Error::device("set the arena's mode", &error))?;
    Ok(file)
}

fn session_file(session: &str) -> Result<CString> {
    if !is_session_name(session) {
        return Err(Error::InvalidInput(
            "a session's name is 1 to 64 letters, digits, dots, underscores and hyphens",
        ));
    }
    CString::new(arena_name(session)).map_err(|_| Error::InvalidInput("a name without NUL"))
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::InvalidInput("a path has no NUL byte in it"))
}

fn distrust(path: &Path, why: &str) -> Error {
    Error::Arena(format!(
        "{} is not safe to use ({why}); remove it, or set arena_dir to a directory of your own",
        path.display()
    ))
}
