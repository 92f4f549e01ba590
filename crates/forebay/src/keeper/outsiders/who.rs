//! Which processes are outside the session: those that do not have its arena mapped. Members are outside with what they have opened or
//! mapped past their library (`docs/decisions/0039-raw-calls.md`).
//!
//! That is evidence of the kernel's: a program gets the mapping before it opens its first file, a forked child has its parent's, and
//! nobody has it any more after executing a program without the library. A process that has nothing of any file mapped is in the middle of
//! executing a program, or of its end: its memory is another already, and its descriptors are about to be closed. One that ends uses
//! nothing any more, however long its memory takes to be given back; one that executes a program is looked at again. So is a member with a
//! descriptor that its library does not know: it may be about to. And so is a process that joins the session while it is looked at: its
//! mappings were read before it had the arena's, its descriptors after it had opened a file.

use std::collections::HashSet;
use std::ffi::CString;
use std::ops::Range;
use std::time::Duration;
use std::{fs, io};

use super::library;
use crate::sys::liveness::words_of_stat;
use crate::sys::mounts::parse_mountinfo;
use crate::sys::stat;

/// What a process has mapped.
#[derive(Default)]
pub struct Mapped {
    /// Whether it is in the session.
    pub is_member: bool,
    has_program: bool,
    wanted: Vec<(u64, u64)>,
    /// Where the preload library begins, for those that are members by it.
    pub library: Option<u64>,
    /// Code that makes system calls for the library, or that the library sees to it for: its own and libc's. What the loader opens it sees nothing
    /// of.
    pub code: Vec<Range<u64>>,
}

/// How often a process is looked at that has no program, and how long apart.
const LOOKS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// How often a member is looked at with a descriptor that its library does not know.
const MEMBER_LOOKS: u32 = 10;

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
            used_by(pid, &wanted, arena, look)
        });
        used.extend(first_certain(looks)?);
    }
    Ok(used)
}

/// What a process outside uses, and whether that is certain.
type Uses = (Vec<(u64, u64)>, bool);

fn used_by(pid: u32, wanted: &Wanted<'_>, arena: (u64, u64), look: u32) -> io::Result<Uses> {
    used_with(mapped(pid, wanted, arena)?, pid, wanted, arena, look)
}

/// As [`used_by`]. The process had this mapped a moment ago.
fn used_with(
    mapped: Mapped,
    pid: u32,
    wanted: &Wanted<'_>,
    arena: (u64, u64),
    look: u32,
) -> io::Result<Uses> {
    let mut used = mapped.wanted;
    if !mapped.is_member {
        if !mapped.has_program && is_ending(pid) {
            return other_threads(pid)
                .next()
                .map_or(Ok((Vec::new(), true)), |thread| {
                    used_by(thread, wanted, arena, look)
                });
        }
        used.extend(open(pid, wanted)?.into_iter().map(|(_, inode)| inode));
        let is_certain =
            used.is_empty() || mapped.has_program && !self::mapped(pid, wanted, arena)?.is_member;
        return Ok((used, is_certain));
    }
    // Programs that are members by the engine's own interfaces say themselves what is managed.
    let Some(library) = mapped.library else {
        return Ok((Vec::new(), true));
    };
    let is_certain = !used.is_empty() || look >= MEMBER_LOOKS;
    let open = open(pid, wanted)?;
    if let Some(known) = (!open.is_empty())
        .then(|| library::Known::of(pid, library))
        .flatten()
    {
        let unknown = open
            .into_iter()
            .filter(|&(fd, _)| !known.has(fd) && has_bytes(pid, fd));
        used.extend(unknown.map(|(_, inode)| inode));
    }
    let is_certain = is_certain || used.is_empty();
    Ok((used, is_certain))
}

/// Whether a thread ends: it makes no call any more, and has lost its memory, or is about to. Nothing is to be expected of one that has ended.
fn is_ending(thread: u32) -> bool {
    /// `PF_EXITING` of the kernel's, in the ninth word of `stat`.
    const EXITING: u64 = 4;
    let stat = fs::read(format!("/proc/{thread}/stat")).unwrap_or_default();
    let flags = words_of_stat(&stat)
        .nth(6)
        .and_then(|flags| flags.parse().ok());
    flags.is_none_or(|flags: u64| flags & EXITING != 0)
}

/// Threads of a process that go on, though the first has ended.
fn other_threads(pid: u32) -> impl Iterator<Item = u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |&thread| thread != pid && !is_ending(thread))
}

/// Whether a descriptor does more than name its file (`O_PATH`).
fn has_bytes(pid: u32, fd: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_PATH == 0)
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

/// The process's descriptors of these files.
fn open(pid: u32, wanted: &Wanted<'_>) -> io::Result<Vec<(u32, (u64, u64))>> {
    let dir = format!("/proc/{pid}/fd");
    let descriptors = unless_refused(fs::read_dir(&dir).map(Some))?;
    let descriptors = descriptors.into_iter().flatten().flatten();
    let inodes = descriptors.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let path = CString::new(format!("{dir}/{name}")).ok()?;
        Some((name.parse().ok()?, stat::inode_of(&path).ok()?))
    });
    Ok(inodes
        .filter(|(_, inode)| wanted.inodes.contains(inode))
        .collect())
}

/// Whether a process has a file open, as far as this user may see.
pub fn has_open(pid: u32, inode: (u64, u64)) -> bool {
    let inodes = HashSet::from([inode]);
    open(pid, &Wanted::by_mounts(&inodes, "")).is_ok_and(|open| !open.is_empty())
}

/// What a process has mapped beside files that are looked for.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub fn mapped_by(pid: u32, arena: (u64, u64)) -> io::Result<Mapped> {
    let nothing = HashSet::new();
    let nothing = Wanted::by_mounts(&nothing, "");
    let first = mapped(pid, &nothing, arena)?;
    if first.has_program || !is_ending(pid) {
        return Ok(first);
    }
    match other_threads(pid).next() {
        Some(thread) => mapped(thread, &nothing, arena),
        None => Ok(first),
    }
}

fn mapped(pid: u32, wanted: &Wanted<'_>, arena: (u64, u64)) -> io::Result<Mapped> {
    let maps = unless_refused(fs::read_to_string(format!("/proc/{pid}/maps")))?;
    Ok(mapped_in(&maps, wanted, arena))
}

fn mapped_in(maps: &str, wanted: &Wanted<'_>, arena: (u64, u64)) -> Mapped {
    let mut mapped = Mapped::default();
    for line in maps.lines().filter_map(Line::of) {
        mapped.has_program = true;
        if (line.device, line.inode) == (Some(arena.0), arena.1) {
            mapped.is_member = true;
            continue;
        }
        mapped
            .wanted
            .extend(wanted.mapped_as(line.device, line.inode));
        if line.name.starts_with(LIBRARY) && line.offset == 0 {
            mapped.library.get_or_insert(line.range.start);
        }
        if line.executable && CALLS.iter().any(|name| line.name.starts_with(name)) {
            mapped.code.push(line.range);
        }
    }
    mapped
}

/// How the preload library's file is called.
const LIBRARY: &str = "libforebay_preload.so";
/// ... and those whose code makes the calls that it knows of: its own and libc's, of old ones too.
const CALLS: [&str; 4] = [LIBRARY, "libc.so", "libc-", "libpthread"];

/// Of a mapping of a file: `BEGIN-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`.
struct Line<'a> {
    range: Range<u64>,
    executable: bool,
    offset: u64,
    device: Option<u64>,
    inode: u64,
    /// The last part of the path.
    name: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (begin, end) = words.next()?.split_once('-')?;
        let (permissions, offset) = (words.next()?, words.next()?);
        let device = words.next()?.split_once(':');
        let device = device.and_then(|(major, minor)| {
            Some(libc::makedev(number(major)? as u32, number(minor)? as u32))
        });
        let inode = words.next()?.parse().ok().filter(|&inode| inode != 0)?;
        Some(Line {
            range: number(begin)?..number(end)?,
            executable: permissions.contains('x'),
            offset: number(offset)?,
            device,
            inode,
            name: line.rsplit_once('/').map_or("", |(_, name)| name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    const LINE: &str =
        "7f0c1000-7f0c2000 rw-s 00000000 00:1b 4711                       /dev/shm/a b";

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = Line::of(LINE).expect("a file's");
        assert_eq!(
            (line.device, line.inode),
            (Some(libc::makedev(0, 0x1b)), 4711)
        );
        assert_eq!((line.name, line.executable), ("a b", false));
        assert!(Line::of("7ffd-7ffe rw-p 00000000 00:00 0   [stack]").is_none());
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

    #[test]
    fn code_that_makes_calls_is_told_from_other_code() {
        let maps = "\
            10-20 r--p 00000000 08:01 5  /x/libforebay_preload.so\n20-30 r-xp 00010000 08:01 5  /x/libforebay_preload.so\n\
            40-50 r-xp 00001000 08:01 6  /lib/x86_64-linux-gnu/libc.so.6\n50-60 r-xp 00001000 08:01 7  /usr/bin/tool\n\
            60-70 r-xp 00001000 08:01 8  /lib/ld-linux-x86-64.so.2 (deleted)\n70-80 rw-s 00000000 00:1b 9  /dev/shm/arena\n";
        let inodes = HashSet::new();
        let nothing = Wanted::by_mounts(&inodes, "");
        let mapped = mapped_in(maps, &nothing, (libc::makedev(0, 0x1b), 9));
        assert!(mapped.is_member);
        assert_eq!(mapped.library, Some(0x10));
        assert_eq!(mapped.code, [0x20..0x30, 0x40..0x50]);
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

    fn ends_soon(thread: u32) -> bool {
        (0..5000).any(|_| {
            std::thread::sleep(LOOK_PAUSE);
            is_ending(thread)
        })
    }

    /// Its mappings are read first, then its descriptors: it may join in between.
    #[test]
    fn who_joins_meanwhile_is_looked_at_again() {
        let (arena, file) = (stand_in_file(), stand_in_file());
        let (arena_inode, inode) = (numbers(&arena), numbers(&file));
        let program = "import mmap, sys, time\n\
            arena = mmap.mmap(0, 4096)\n\
            print(flush=True)\n\
            time.sleep(60)";
        let mut member = Command::new("python3")
            .args(["-c", program])
            .stdin(arena.reopen().expect("opened again"))
            .stdout(Stdio::piped())
            .stderr(file.reopen().expect("opened again"))
            .spawn()
            .expect("python3");
        let mut line = [0];
        let output = member.stdout.as_mut().expect("piped");
        output.read_exact(&mut line).expect("it has the arena");
        let inodes = HashSet::from([inode]);
        let wanted = Wanted::new(&inodes);
        let before = || Mapped {
            has_program: true,
            ..Mapped::default()
        };
        let of = |arena| used_with(before(), member.id(), &wanted, arena, 0).expect("seen");
        assert_eq!(of(arena_inode), (vec![inode], false));
        assert_eq!(of((0, 0)), (vec![inode], true));
        assert!(used_outside(&inodes, arena_inode).is_empty());
        member.kill().expect("killed");
        member.wait().expect("its end");
    }

    fn stand_in_file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(4096).expect("a length");
        file
    }

    fn numbers(file: &tempfile::NamedTempFile) -> (u64, u64) {
        let seen = file.as_file().metadata().expect("stat");
        (seen.dev(), seen.ino())
    }

    #[test]
    fn who_ends_uses_nothing() {
        assert!(!is_ending(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        assert!(!is_ending(child.id()));
        child.kill().expect("killed");
        assert!(ends_soon(child.id()), "it is a zombie, at the latest");
        child.wait().expect("its end");
    }

    /// The first thread of a program may end before the others.
    #[test]
    fn who_goes_on_without_its_first_thread_is_found() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let seen = file.as_file().metadata().expect("stat");
        let wanted = HashSet::from([(seen.dev(), seen.ino())]);
        let program = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut outsider = Command::new("python3")
            .args(["-c", program])
            .stdout(file.reopen().expect("opened again"))
            .spawn()
            .expect("python3");
        assert!(ends_soon(outsider.id()), "its first thread goes on");
        assert_eq!(used_outside(&wanted, (0, 0)), wanted);
        assert!(mapped_by(outsider.id(), (0, 0)).is_ok_and(|mapped| mapped.has_program));
        outsider.kill().expect("killed");
        outsider.wait().expect("its end");
        assert!(used_outside(&wanted, (0, 0)).is_empty());
    }

    #[test]
    fn who_has_a_file_open_is_found_and_not_this_process() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let seen = file.as_file().metadata().expect("stat");
        let inode = (seen.dev(), seen.ino());
        let wanted = HashSet::from([inode]);
        let nowhere = (0, 0);
        assert!(used_outside(&wanted, nowhere).is_empty());
        let mut outsider = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(file.reopen().expect("opened again"))
            .spawn()
            .expect("cat");
        assert_eq!(used_outside(&wanted, nowhere), wanted);
        drop(outsider.stdin.take());
        outsider.wait().expect("its end");
        assert!(used_outside(&wanted, nowhere).is_empty());
    }
}
