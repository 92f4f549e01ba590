//! Who is outside the session: whoever does not have its arena mapped.
//!
//! That is evidence of the kernel's: a program gets the mapping before it opens its first file, a forked child has its parent's, and
//! nobody has it any more after executing a program without the library.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::{fs, io};

use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::memory::threads;
use crate::sync::Ordering;
use crate::sys::stat;

/// What a process has mapped.
struct Mapped {
    is_member: bool,
    wanted: Vec<(u64, u64)>,
}

/// Members that have been seen, each by a thread of its own that lives: as long as that does, nobody has to look again.
#[derive(Default)]
pub struct Members(HashMap<i32, (ThreadId, u32)>);

/// Members that are remembered at most.
const MEMBERS_MAX: usize = 1024;

impl Members {
    /// As [`is_member`].
    pub fn has(&mut self, arena: &Arena, pid: i32, inode: (u64, u64)) -> bool {
        if let Some((thread, life)) = self.0.get(&pid)
            && threads::life(arena, *thread) == Some(*life)
        {
            return true;
        }
        let is_member = is_member(pid, inode);
        if is_member {
            self.remember(arena, pid);
        }
        is_member
    }

    fn remember(&mut self, arena: &Arena, pid: i32) {
        if self.0.len() >= MEMBERS_MAX {
            self.0.clear();
        }
        let its = |id: &ThreadId| {
            let slot = arena.thread(*id);
            slot.is_some_and(|slot| slot.pid.load(Ordering::Relaxed) == pid as u32)
        };
        let slots = (1..arena.counts().threads).map(ThreadId).filter(its);
        let alive = slots.filter_map(|id| Some((id, threads::life(arena, id)?)));
        if let Some(thread) = alive.last() {
            self.0.insert(pid, thread);
        }
    }
}

/// Whether a process is in the session, by its number in `/proc`.
pub fn is_member(pid: i32, arena: (u64, u64)) -> bool {
    if pid <= 0 {
        return false;
    }
    let nothing = HashSet::new();
    pid as u32 == std::process::id()
        || mapped(pid as u32, &nothing, arena).is_ok_and(|mapped| mapped.is_member)
}

/// Those of the files, named by device and inode, that a program outside has open or mapped, as far as this user may see. Where this
/// process has no descriptors to look with, all of them.
pub fn used_outside(wanted: &HashSet<(u64, u64)>, arena: (u64, u64)) -> HashSet<(u64, u64)> {
    look(wanted, arena).unwrap_or_else(|_| wanted.clone())
}

fn look(wanted: &HashSet<(u64, u64)>, arena: (u64, u64)) -> io::Result<HashSet<(u64, u64)>> {
    let mut used = HashSet::new();
    let me = std::process::id();
    let pids = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.filter(|&pid: &u32| pid != me) {
        let mapped = mapped(pid, wanted, arena)?;
        if !mapped.is_member {
            used.extend(mapped.wanted);
            used.extend(open(pid, wanted)?);
        }
    }
    Ok(used)
}

/// What there is of something of another process's: nothing where it has ended, or is not for this user to see.
fn unless_refused<T: Default>(got: io::Result<T>) -> io::Result<T> {
    match got {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            Err(error)
        }
        got => Ok(got.unwrap_or_default()),
    }
}

fn open(pid: u32, wanted: &HashSet<(u64, u64)>) -> io::Result<Vec<(u64, u64)>> {
    let dir = format!("/proc/{pid}/fd");
    let descriptors = unless_refused(fs::read_dir(&dir).map(Some))?;
    let descriptors = descriptors.into_iter().flatten().flatten();
    let inodes = descriptors.filter_map(|entry| {
        let name = entry.file_name();
        let path = CString::new(format!("{dir}/{}", name.to_str()?)).ok()?;
        stat::inode_of(&path).ok()
    });
    Ok(inodes.filter(|inode| wanted.contains(inode)).collect())
}

fn mapped(pid: u32, wanted: &HashSet<(u64, u64)>, arena: (u64, u64)) -> io::Result<Mapped> {
    let mut mapped = Mapped {
        is_member: false,
        wanted: Vec::new(),
    };
    let maps = unless_refused(fs::read_to_string(format!("/proc/{pid}/maps")))?;
    for line in maps.lines() {
        let Some(number) = inode_in(line) else {
            continue;
        };
        if number == arena.1 && device_in(line) == Some(arena.0) {
            mapped.is_member = true;
            return Ok(mapped);
        }
        // Some file systems have another device number here than for `stat`, so the inode alone must do.
        let same = wanted.iter().filter(|(_, inode)| *inode == number);
        mapped.wanted.extend(same);
    }
    Ok(mapped)
}

/// `ADDRESS PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`
fn inode_in(line: &str) -> Option<u64> {
    let inode = line.split_ascii_whitespace().nth(4)?.parse().ok()?;
    (inode != 0).then_some(inode)
}

fn device_in(line: &str) -> Option<u64> {
    let device = line.split_ascii_whitespace().nth(3)?;
    let (major, minor) = device.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some(libc::makedev(number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    const LINE: &str =
        "7f0c1000-7f0c2000 rw-s 00000000 00:1b 4711                       /dev/shm/a b";

    #[test]
    fn lines_of_the_kernel_are_read() {
        assert_eq!(inode_in(LINE), Some(4711));
        assert_eq!(device_in(LINE), Some(libc::makedev(0, 0x1b)));
        assert_eq!(inode_in("7ffd-7ffe rw-p 00000000 00:00 0   [stack]"), None);
    }

    #[test]
    fn who_has_a_file_open_is_found_and_this_process_is_a_member() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let seen = file.as_file().metadata().expect("stat");
        let inode = (seen.dev(), seen.ino());
        let wanted = HashSet::from([inode]);
        let nowhere = (0, 0);
        assert!(is_member(std::process::id() as i32, nowhere));
        assert!(used_outside(&wanted, nowhere).is_empty());
        let mut outsider = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(file.reopen().expect("opened again"))
            .spawn()
            .expect("cat");
        assert!(!is_member(outsider.id() as i32, nowhere));
        assert_eq!(used_outside(&wanted, nowhere), wanted);
        drop(outsider.stdin.take());
        outsider.wait().expect("its end");
        assert!(used_outside(&wanted, nowhere).is_empty());
    }
}
