//! What is mounted where, and ending it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// How the kernel calls our mounts.
pub const FILE_SYSTEM: &str = "fuse.forebay";
/// The program by which users mount without privilege, and end it.
pub const HELPER: &str = "fusermount3";

/// What is at a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is mounted there.
    Free,
    /// A mount of ours that works.
    Alive,
    /// A mount of ours whose process has died.
    Dead,
    /// Another file system.
    Foreign,
}

/// One line of the kernel's list.
struct Line {
    device: Vec<u8>,
    point: PathBuf,
    kind: String,
}

/// The kernel writes spaces and their like in octal.
pub(crate) fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| first == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn parsed(line: &[u8]) -> Option<Line> {
    let mut words = line.split(|&byte| byte == b' ');
    let device = words.nth(2)?.to_vec();
    let point = unescaped(words.nth(1)?);
    let kind = words.skip_while(|&word| word != b"-").nth(1)?;
    let kind = String::from_utf8_lossy(kind).into_owned();
    Some(Line {
        device,
        point,
        kind,
    })
}

/// The file system that one sees at a path: the last that was mounted there.
fn topmost(path: &Path) -> io::Result<Option<Line>> {
    let list = fs::read("/proc/self/mountinfo")?;
    let mut lines = list.split(|&byte| byte == b'\n').filter_map(parsed);
    Ok(lines.rfind(|line| line.point == path))
}

/// What the kernel's list says is mounted at a path that [`resolved`] has given: a mount of ours counts as one that works. Its process is not
/// asked, which may be stopped.
///
/// # Errors
/// The system's, when the list of mounts cannot be read.
pub fn listed(path: &Path) -> io::Result<State> {
    Ok(match topmost(path)? {
        None => State::Free,
        Some(line) if line.kind != FILE_SYSTEM => State::Foreign,
        Some(_) => State::Alive,
    })
}

/// As [`listed`], and asks the process of a mount of ours.
///
/// # Errors
/// As for [`listed`].
pub fn state(path: &Path) -> io::Result<State> {
    let listed = listed(path)?;
    if listed != State::Alive {
        return Ok(listed);
    }
    // Not its attributes: those the kernel may know.
    Ok(match rustix::fs::statvfs(path) {
        // The last one is a ring's, whose process is just ending.
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => State::Dead,
        _ => State::Alive,
    })
}

/// The path as the kernel has it in its list. The last part is not looked at where a dead mount is in the way.
///
/// # Errors
/// The system's.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let path = std::path::absolute(path)?;
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Err(error),
            }
        }
        path => path,
    }
}

/// Why a mount was not ended.
#[derive(Debug)]
pub enum NotEnded {
    /// Somebody has a file open there, or is in one of its directories.
    Busy,
    /// In words.
    Failed(String),
}

/// Ends what is mounted at a path. `lazy`: nobody finds it any more from now on, and whoever has something open goes on until
/// that is closed.
///
/// # Errors
/// Why it was not.
pub fn end(path: &Path, lazy: bool) -> Result<(), NotEnded> {
    let flags = if lazy {
        UnmountFlags::DETACH | UnmountFlags::NOFOLLOW
    } else {
        UnmountFlags::NOFOLLOW
    };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(NotEnded::Busy),
        Err(Errno::PERM) => end_by_helper(path, lazy),
        Err(error) => Err(NotEnded::Failed(io::Error::from(error).to_string())),
    }
}

fn end_by_helper(path: &Path, lazy: bool) -> Result<(), NotEnded> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(path).env("LC_ALL", "C").output();
    let output = output.map_err(|error| NotEnded::Failed(no_helper(&error)))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(NotEnded::Busy),
        false => Err(NotEnded::Failed(said.trim().to_owned())),
    }
}

/// Where this process has mounted something.
pub(crate) struct Own {
    pub(crate) path: PathBuf,
    /// What it is told by from what others mount there afterwards; `None`: the list could not be read.
    device: Option<Vec<u8>>,
}

impl Own {
    /// For what has just been mounted.
    pub(crate) fn of(path: &Path) -> Self {
        Own {
            path: path.to_owned(),
            device: device(path),
        }
    }

    /// After the end of its requests: a mount that nobody has unmounted was aborted. It is taken away, since it would only be in the way, and that is said.
    ///
    /// # Errors
    /// That, in words.
    pub(crate) fn take_away(&self) -> Result<(), String> {
        let is_left = self.device.is_some() && device(&self.path) == self.device;
        // Its number may be that of another one by now, which somebody serves.
        if !is_left || !state(&self.path).is_ok_and(|state| state == State::Dead) {
            return Ok(());
        }
        let point = self.path.display();
        let what = format!(
            "{point} was aborted, not unmounted (`umount --force` does that to a mount in use)"
        );
        Err(match end(&self.path, true) {
            Ok(()) => format!("{what}; it is unmounted now"),
            Err(_) => format!("{what}; run `forebay umount {point}`"),
        })
    }
}

/// The device of a mount of ours.
fn device(path: &Path) -> Option<Vec<u8>> {
    let line = topmost(path).ok()??;
    (line.kind == FILE_SYSTEM).then_some(line.device)
}

/// Whether the helper is there.
pub fn helper_works() -> bool {
    let output = Command::new(HELPER).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// Why the helper cannot be called.
pub(crate) fn no_helper(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{HELPER} is not installed, and without it only root may mount; install the package fuse3"
        ),
        _ => format!("{HELPER} cannot be called: {error}"),
    }
}

/// A path as a mount option: commas and backslashes are escaped.
pub(crate) fn as_option(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes().iter();
    let escaped = bytes.flat_map(|&byte| match byte {
        b',' | b'\\' => vec![b'\\', byte],
        _ => vec![byte],
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_are_read() {
        let line = b"36 35 0:43 / /mnt/with\\040space\\134 rw,nosuid shared:7 - fuse.forebay /data rw,user_id=0";
        let line = parsed(line).expect("a line");
        assert_eq!(line.point, Path::new("/mnt/with space\\"));
        assert_eq!((&line.device[..], &*line.kind), (&b"0:43"[..], FILE_SYSTEM));
        assert!(parsed(b"").is_none());
    }

    #[test]
    fn a_directory_is_free_and_proc_is_not_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = resolved(dir.path()).expect("a path");
        assert_eq!(state(&path).expect("a state"), State::Free);
        assert_eq!(state(Path::new("/proc")).expect("a state"), State::Foreign);
        assert!(matches!(end(&path, false), Err(NotEnded::Failed(_))));
    }
}
