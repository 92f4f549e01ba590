//! Where files are measured: a given directory, or a file system made for the purpose.
//!
//! A made one is a loop device over a memory file, mounted in a mount namespace that only this
//! process and its children see. Dropping it unmounts it. Should we die without that, even by
//! SIGKILL, the kernel does the same: the namespace goes, the mount goes, the loop device detaches
//! itself and the memory file with it. What may remain is an empty directory.
//!
//! Each workload has a device of its own, so that none is measured on one that others have aged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;

use crate::failure::{Context, Failure, Result};
use crate::meter::{DeviceCounter, meminfo_bytes};

mod made;

/// A file system that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// XFS
    Xfs,
    /// ext4
    Ext4,
    /// btrfs
    Btrfs,
}

impl FileSystem {
    /// The name that `mount` and `mkfs` know.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Xfs => "xfs",
            FileSystem::Ext4 => "ext4",
            FileSystem::Btrfs => "btrfs",
        }
    }
}

/// Where the engine's arena goes, if not where the engine itself would put it.
static ARENA_DIR: OnceLock<PathBuf> = OnceLock::new();

/// Where the engine's arena goes, if not where the engine itself would put it: with a made device, a tmpfs with huge
/// pages.
pub fn arena_dir() -> Option<&'static Path> {
    ARENA_DIR.get().map(PathBuf::as_path)
}

/// Removes the mount point of the arena's tmpfs; the mount goes with the process.
pub fn forget_arena_dir() {
    if let Some(dir) = arena_dir() {
        made::unmount(dir);
    }
}

/// What was asked for on the command line.
#[derive(Clone, Debug)]
pub enum Storage {
    /// A directory that is there.
    Dir(PathBuf),
    /// A new device for each workload.
    Make(FileSystem),
}

/// A directory to measure in.
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// Its file system and device, for people.
    pub about: PlaceName,
    /// Where its device counts.
    pub counter: DeviceCounter,
    _made: Option<made::MadeDevice>,
}

/// Names of the file system and its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaceName {
    /// `xfs`
    pub file_system: String,
    /// `loop0 over a memory file`
    pub device: String,
}

impl Storage {
    /// To be called once, before any thread is started: hides the mounts to come from all others.
    pub fn prepare(&self) -> Result<()> {
        match self {
            Storage::Dir(dir) if dir.is_dir() => Ok(()),
            Storage::Dir(dir) => Err(Failure::Usage(format!("{} is no directory", dir.display()))),
            Storage::Make(_) => {
                made::hide_mounts().context("own mount namespace (needs root)")?;
                let _ = ARENA_DIR.set(made::mount_huge_pages()?);
                Ok(())
            }
        }
    }

    /// A place for a workload whose files take up to `bytes`.
    pub fn place(&self, bytes: u64) -> Result<Place> {
        let (dir, made) = match self {
            Storage::Dir(dir) => {
                let dir = dir.canonicalize().context("--dir")?;
                check_space(&dir, bytes)?;
                (dir, None)
            }
            Storage::Make(file_system) => {
                let made = made::MadeDevice::new(*file_system, bytes)?;
                (made.dir().to_owned(), Some(made))
            }
        };
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("mountinfo")?;
        let (file_system, source) = mount_of(&mounts, &dir).unwrap_or_default();
        let name = source.strip_prefix("/dev/").unwrap_or("").to_owned();
        let stat = Path::new("/sys/class/block").join(&name).join("stat");
        let counter = DeviceCounter((!name.is_empty() && stat.exists()).then_some(stat));
        let over = if made.is_some() {
            " over a memory file"
        } else {
            ""
        };
        let about = PlaceName {
            file_system,
            device: format!("{source}{over}"),
        };
        Ok(Place {
            dir,
            about,
            counter,
            _made: made,
        })
    }
}

fn check_space(dir: &Path, bytes: u64) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())
        .map_err(|_| Failure::Usage("--dir holds a zero byte".into()))?;
    let mut info = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a terminated path; the call fills the structure if it succeeds, checked before use.
    let info = unsafe {
        if libc::statvfs(path.as_ptr(), info.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error()).context("statvfs");
        }
        info.assume_init()
    };
    let free = info.f_bavail * info.f_frsize;
    if free < bytes {
        return Err(Failure::Unavailable(format!(
            "{bytes} bytes needed, {free} free in --dir"
        )));
    }
    Ok(())
}

/// File system type and source of the mount that `dir` is on, from the text of `mountinfo`.
fn mount_of(mountinfo: &str, dir: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, String, String)> = None;
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let point = Path::new(left.split(' ').nth(4)?);
        let depth = point.components().count();
        // Later lines are mounted over earlier ones.
        if dir.starts_with(point) && best.as_ref().is_none_or(|(deepest, ..)| depth >= *deepest) {
            let mut right = right.split(' ');
            best = Some((depth, right.next()?.to_owned(), right.next()?.to_owned()));
        }
    }
    best.map(|(_, file_system, source)| (file_system, source))
}

/// All memory of the machine.
pub fn memory_total() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo_bytes(&text, "MemTotal").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    2 1 0:5 / /a/b rw shared:1 - tmpfs none rw\n\
                    3 2 7:0 / /a/b rw - xfs /dev/loop0 rw\n";
        let at = |dir| mount_of(text, Path::new(dir)).unwrap();
        assert_eq!(at("/a/b/c"), ("xfs".into(), "/dev/loop0".into()));
        assert_eq!(at("/a/bc"), ("ext4".into(), "/dev/sda1".into()));
    }
}
