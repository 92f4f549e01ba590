//! Which processes are outside the session: those that do not have its arena mapped.
//!
//! That is evidence of the kernel's: a program gets the mapping before it opens its first file, a forked child has its parent's, and
//! nobody has it any more after executing a program without the library. A process that has nothing of any file mapped is in the middle of
//! executing a program, or of its end: its memory is another already, and its descriptors are about to be closed. It is looked at again.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::time::Duration;
use std::{fs, io};

use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::memory::mounts::parse_mountinfo;
use crate::memory::threads;
use crate::sync::Ordering;
use crate::sys::stat;

/// What a process has mapped.
#[derive(Default)]
struct Mapped {
    is_member: bool,
    has_program: bool,
    wanted: Vec<(u64, u64)>,
}

/// How often a process is looked at that has no program, and how long apart.
const LOOKS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Files that are looked for.
struct Wanted<'a> {
    inodes: &'a HashSet<(u64, u64)>,
    /// Devices that mappings name as `stat` does. Those of some file systems have another number there.
    same: HashSet<u64>,
}

impl<'a> Wanted<'a> {
    fn new(inodes: &'a HashSet<(u64, u64)>) -> Self {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self::by_mounts(inodes, &mountinfo)
    }

    fn by_mounts(inodes: &'a HashSet<(u64, u64)>, mountinfo: &str) -> Self {
        let devices = parse_mountinfo(mountinfo).into_iter();
        let devices = devices.map(|mount| libc::makedev(mount.device.0, mount.device.1));
        let same = devices.filter(|device| inodes.iter().any(|(of, _)| of == device));
        Wanted {
            inodes,
            same: same.collect(),
        }
    }

    /// Those that a mapping of this device and inode may be of: files of many file systems have the same numbers.
    fn mapped_as(&self, device: Option<u64>, number: u64) -> impl Iterator<Item = &(u64, u64)> {
        self.inodes.iter().filter(move |(of, inode)| {
            *inode == number && (device == Some(*of) || !self.same.contains(of))
        })
    }
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
        || mapped(pid as u32, &Wanted::by_mounts(&nothing, ""), arena)
            .is_ok_and(|mapped| mapped.is_member)
}

/// Those of the files, named by device and inode, that a program outside has open or mapped, as far as this user may see. Where this
/// process has no descriptors to look with, all of them.
pub fn used_outside(wanted: &HashSet<(u64, u64)>, arena: (u64, u64)) -> HashSet<(u64, u64)> {
    look(wanted, arena).unwrap_or_else(|_| wanted.clone())
}

fn look(wanted: &HashSet<(u64, u64)>, arena: (u64, u64)) -> io::Result<HashSet<(u64, u64)>> {
    let wanted = Wanted::new(wanted);
    let mut used = HashSet::new();
    let me = std::process::id();
    let pids = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.filter(|&pid: &u32| pid != me) {
        let looks = (0..LOOKS).map(|look| {
            if look != 0 {
                std::thread::sleep(LOOK_PAUSE);
            }
            used_by(pid, &wanted, arena)
        });
        used.extend(first_certain(looks)?);
    }
    Ok(used)
}

/// What a process outside uses, and whether that is certain.
type Uses = (Vec<(u64, u64)>, bool);

fn used_by(pid: u32, wanted: &Wanted<'_>, arena: (u64, u64)) -> io::Result<Uses> {
    let mapped = mapped(pid, wanted, arena)?;
    if mapped.is_member {
        return Ok((Vec::new(), true));
    }
    let mut used = mapped.wanted;
    used.extend(open(pid, wanted)?);
    let is_certain = mapped.has_program || used.is_empty();
    Ok((used, is_certain))
}

/// The first of several looks that is certain, else the last one.
fn first_certain(looks: impl Iterator<Item = io::Result<Uses>>) -> io::Result<Vec<(u64, u64)>> {
    let mut used = Vec::new();
    for look in looks {
        let (seen, is_certain) = look?;
        used = seen;
        if is_certain {
            break;
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

fn open(pid: u32, wanted: &Wanted<'_>) -> io::Result<Vec<(u64, u64)>> {
    let dir = format!("/proc/{pid}/fd");
    let descriptors = unless_refused(fs::read_dir(&dir).map(Some))?;
    let descriptors = descriptors.into_iter().flatten().flatten();
    let inodes = descriptors.filter_map(|entry| {
        let name = entry.file_name();
        let path = CString::new(format!("{dir}/{}", name.to_str()?)).ok()?;
        stat::inode_of(&path).ok()
    });
    Ok(inodes
        .filter(|inode| wanted.inodes.contains(inode))
        .collect())
}

fn mapped(pid: u32, wanted: &Wanted<'_>, arena: (u64, u64)) -> io::Result<Mapped> {
    let maps = unless_refused(fs::read_to_string(format!("/proc/{pid}/maps")))?;
    Ok(mapped_in(&maps, wanted, arena))
}

fn mapped_in(maps: &str, wanted: &Wanted<'_>, arena: (u64, u64)) -> Mapped {
    let mut mapped = Mapped::default();
    for line in maps.lines() {
        let Some(number) = inode_in(line) else {
            continue;
        };
        mapped.has_program = true;
        let device = device_in(line);
        if number == arena.1 && device == Some(arena.0) {
            mapped.is_member = true;
            return mapped;
        }
        mapped.wanted.extend(wanted.mapped_as(device, number));
    }
    mapped
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

    /// Small numbers are on every file system: shared memory of some other program is none of the file's.
    #[test]
    fn a_file_of_the_same_number_elsewhere_is_another() {
        let (here, elsewhere) = (libc::makedev(7, 1), libc::makedev(0, 0x1b));
        let mounts =
            "30 1 7:1 / /mnt rw - ext4 /dev/loop1 rw\n31 1 0:40 / /sub rw - btrfs /dev/loop2 rw\n";
        let of = |device: u64| {
            let inodes = HashSet::from([(device, 4711)]);
            let found = mapped_in(LINE, &Wanted::by_mounts(&inodes, mounts), (0, 0));
            assert!(found.has_program && !found.is_member);
            found.wanted
        };
        assert_eq!(of(here), []);
        assert_eq!(of(elsewhere), [(elsewhere, 4711)]);
        // A device that no mount has: mappings name another one.
        let subvolume = libc::makedev(0, 0x33);
        assert_eq!(of(subvolume), [(subvolume, 4711)]);
    }

    /// A process that executes a program has its new memory while it still has the old descriptors.
    #[test]
    fn who_has_no_program_is_looked_at_again() {
        let inodes = HashSet::new();
        let nothing = Wanted::by_mounts(&inodes, "");
        let stack = "7ffd-7ffe rw-p 00000000 00:00 0   [stack]\n";
        assert!(!mapped_in(stack, &nothing, (0, 0)).has_program);
        let used = || vec![(1, 2)];
        let looks = |looks: Vec<Uses>| first_certain(looks.into_iter().map(Ok)).expect("no error");
        assert_eq!(looks(vec![(used(), false), (vec![], true)]), []);
        assert_eq!(
            looks(vec![(used(), false), (used(), true), (vec![], true)]),
            used()
        );
        assert_eq!(looks(vec![(used(), false); 3]), used());
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
