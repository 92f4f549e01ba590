//! Which file a number of the kernel's is.
//!
//! The kernel names files by numbers that it has got from a lookup, and says how many lookups it has forgotten: a number lives for as long as
//! it knows one. A file is known by its device, its inode and what tells it from earlier files of that number, never by a path, so
//! that whatever is renamed stays what it is.
//!
//! A descriptor (`O_PATH`) holds the file, so that its number is not given to another. There are not enough descriptors for all
//! that the kernel may remember: those that were not used for long are given back, and opened again by the name that the file was last found
//! by. Should that lead to another file by then, the answer is `ESTALE`, and the kernel looks the path up again. A file that is open
//! keeps its descriptor.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::sys::handle;
use rustix::fs::{Mode, OFlags, Stat, fstat, openat};

use crate::failed::{Answer, Failed};

/// The number of the root, by the kernel's convention.
pub(crate) const ROOT: u64 = 1;
/// Numbers for files whose inode's is taken begin here: beyond those of file systems.
const OTHERS: u64 = 1 << 63;
/// Files of other file systems below the directory have numbers with the file system's above this bit.
const DEVICE_SHIFT: u32 = 48;
/// Descriptors that are held at least, however few there may be.
const HELD_MIN: usize = 64;

pub(crate) const BY_NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What tells a file from all others that there are or have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Made of the file's handle; 0 where the file system has none.
    generation: u64,
}

impl Identity {
    fn of(fd: BorrowedFd<'_>, stat: &Stat) -> Self {
        Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
            generation: handle::hash(fd).unwrap_or(0),
        }
    }
}

struct Node {
    identity: Identity,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    fd: Option<Arc<OwnedFd>>,
    /// Used since it was last looked at for giving its descriptor back.
    used: bool,
    /// Handles that are open.
    opened: u32,
    /// Where it was found last.
    parent: u64,
    name: OsString,
}

/// Directories without descriptors that one file may lie below: more than any path has names.
const DEPTH_MAX: usize = 4096;

/// All files that the kernel knows.
pub(crate) struct Nodes {
    table: Mutex<Table>,
    /// Descriptors that are held at most, but for open files.
    held_max: usize,
}

struct Table {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<Identity, u64>,
    /// File systems below the directory, the directory's own first.
    devices: Vec<u64>,
    next_other: u64,
    /// Those that may hold a descriptor, in the order in which they are looked at for giving it back.
    held: VecDeque<u64>,
}

/// A file that was found: its number, a descriptor of it, and what the file system says of it.
pub(crate) struct Found {
    pub(crate) number: u64,
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) stat: Stat,
}

impl Nodes {
    pub(crate) fn new(root: OwnedFd, descriptors: usize) -> Answer<Self> {
        let stat = fstat(&root)?;
        let identity = Identity::of(root.as_fd(), &stat);
        let node = Node {
            identity,
            lookups: 1,
            fd: Some(Arc::new(root)),
            used: true,
            opened: 1,
            parent: ROOT,
            name: OsString::new(),
        };
        let table = Table {
            nodes: HashMap::from([(ROOT, node)]),
            numbers: HashMap::from([(identity, ROOT)]),
            devices: vec![identity.device],
            next_other: OTHERS,
            held: VecDeque::new(),
        };
        Ok(Nodes {
            table: Mutex::new(table),
            held_max: (descriptors / 4).max(HELD_MIN),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor of a file that the kernel knows.
    pub(crate) fn fd(&self, number: u64) -> Answer<Arc<OwnedFd>> {
        let mut without = Vec::new();
        let mut next = number;
        let mut fd = loop {
            let mut table = self.table();
            let node = table.nodes.get_mut(&next).ok_or(Failed(libc::ESTALE))?;
            node.used = true;
            if let Some(fd) = &node.fd {
                break Arc::clone(fd);
            }
            // Directories that are moved beside the mount may be known as each other's parents.
            if without.len() == DEPTH_MAX {
                return Err(Failed(libc::ESTALE));
            }
            without.push((next, node.identity, node.name.clone()));
            next = node.parent;
        };
        for (number, identity, name) in without.iter().rev() {
            let opened = self.open_by_name(fd.as_fd(), name);
            // Any other error is not about the name: the file may be there all the same.
            let opened = opened.map_err(|failed| match failed {
                Failed(libc::ENOENT | libc::ENOTDIR) => Failed(libc::ESTALE),
                failed => failed,
            })?;
            if Identity::of(opened.as_fd(), &fstat(&opened)?) != *identity {
                return Err(Failed(libc::ESTALE));
            }
            fd = Arc::new(opened);
            self.hold(*number, &fd);
        }
        Ok(fd)
    }

    #[cfg(test)]
    pub(crate) fn give_back(&self, held_max: usize) {
        self.table().give_back(held_max);
    }

    fn hold(&self, number: u64, fd: &Arc<OwnedFd>) {
        let mut table = self.table();
        if let Some(node) = table.nodes.get_mut(&number)
            && node.fd.is_none()
        {
            node.fd = Some(Arc::clone(fd));
            table.held.push_back(number);
            table.give_back(self.held_max);
        }
    }

    /// Opens a name of a directory; where descriptors have run out, some are given back.
    fn open_by_name(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Answer<OwnedFd> {
        match openat(parent, name, BY_NAME, Mode::empty()) {
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                self.table().give_back(self.held_max / 2);
                Ok(openat(parent, name, BY_NAME, Mode::empty())?)
            }
            opened => Ok(opened?),
        }
    }

    /// Finds a name, and counts a lookup.
    pub(crate) fn look_up(&self, parent: u64, name: &OsStr) -> Answer<Found> {
        let directory = self.fd(parent)?;
        let fd = self.open_by_name(directory.as_fd(), name)?;
        self.enter(parent, name, fd)
    }

    /// Counts a lookup of a file that has just been found by a name.
    pub(crate) fn enter(&self, parent: u64, name: &OsStr, fd: OwnedFd) -> Answer<Found> {
        let stat = fstat(&fd)?;
        let identity = Identity::of(fd.as_fd(), &stat);
        let mut table = self.table();
        let number = match table.numbers.get(&identity) {
            Some(&number) => number,
            None => table.new_number(identity),
        };
        let node = table.nodes.entry(number).or_insert_with(|| Node {
            identity,
            lookups: 0,
            fd: None,
            used: true,
            opened: 0,
            parent,
            name: OsString::new(),
        });
        node.lookups += 1;
        node.used = true;
        if number != ROOT {
            node.parent = parent;
            node.name.clear();
            node.name.push(name);
        }
        let (fd, is_new) = match &node.fd {
            Some(fd) => (Arc::clone(fd), false),
            None => (Arc::new(fd), true),
        };
        if is_new {
            node.fd = Some(Arc::clone(&fd));
            table.numbers.insert(identity, number);
            table.held.push_back(number);
            table.give_back(self.held_max);
        }
        Ok(Found { number, fd, stat })
    }

    /// The kernel has forgotten so many lookups.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.table();
        let Some(node) = table.nodes.get_mut(&number).filter(|_| number != ROOT) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && node.opened == 0 {
            table.remove(number);
        }
    }

    /// A handle of a file has been opened: it keeps its descriptor.
    pub(crate) fn opened(&self, number: u64) {
        if let Some(node) = self.table().nodes.get_mut(&number) {
            node.opened += 1;
        }
    }

    /// A handle has been closed.
    pub(crate) fn closed(&self, number: u64) {
        let mut table = self.table();
        let Some(node) = table.nodes.get_mut(&number) else {
            return;
        };
        node.opened = node.opened.saturating_sub(1);
        if node.opened == 0 && node.lookups == 0 {
            table.remove(number);
        }
    }

    /// A name has been given to a file: by renaming it, or another. Where that cannot be looked at, the next lookup tells.
    pub(crate) fn named(&self, parent: u64, name: &OsStr) {
        let Ok(directory) = self.fd(parent) else {
            return;
        };
        let Ok(fd) = openat(&directory, name, BY_NAME, Mode::empty()) else {
            return;
        };
        let Ok(stat) = fstat(&fd) else { return };
        let identity = Identity::of(fd.as_fd(), &stat);
        let mut table = self.table();
        let Some(&number) = table
            .numbers
            .get(&identity)
            .filter(|&&number| number != ROOT)
        else {
            return;
        };
        if let Some(node) = table.nodes.get_mut(&number) {
            node.parent = parent;
            node.name = name.to_owned();
        }
    }
}

impl Table {
    /// The inode's own, where nobody has it: programs compare it.
    fn new_number(&mut self, identity: Identity) -> u64 {
        let known = self
            .devices
            .iter()
            .position(|&device| device == identity.device);
        let device = known.unwrap_or_else(|| {
            self.devices.push(identity.device);
            self.devices.len() - 1
        }) as u64;
        let own = match device {
            0 => identity.inode,
            _ => device << DEVICE_SHIFT | identity.inode,
        };
        let fits = device == 0 || identity.inode >> DEVICE_SHIFT == 0 && device < 1 << 15;
        if fits && own > ROOT && own < OTHERS && !self.nodes.contains_key(&own) {
            return own;
        }
        self.next_other += 1;
        self.next_other
    }

    fn remove(&mut self, number: u64) {
        if let Some(node) = self.nodes.remove(&number)
            && self.numbers.get(&node.identity) == Some(&number)
        {
            self.numbers.remove(&node.identity);
        }
    }

    /// Gives descriptors back until no more than so many are held, of those that were not used for long first.
    fn give_back(&mut self, held_max: usize) {
        // Each is looked at twice at most: once for having been used, once for going.
        for _ in 0..self.held.len() * 2 {
            if self.held.len() <= held_max {
                return;
            }
            let Some(number) = self.held.pop_front() else {
                return;
            };
            let Some(node) = self.nodes.get_mut(&number).filter(|node| node.fd.is_some()) else {
                continue;
            };
            // One without a name can be opened by none. It may get one.
            let is_nameless = node.name.is_empty();
            if std::mem::take(&mut node.used) || node.opened > 0 || is_nameless {
                self.held.push_back(number);
            } else {
                node.fd = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn parents_in_a_circle_are_stale() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        let root = fs::File::open(dir.path()).expect("opened").into();
        let nodes = Nodes::new(root, 64).expect("a table");
        let a = nodes.look_up(ROOT, OsStr::new("a")).expect("found").number;
        let b = nodes.look_up(a, OsStr::new("b")).expect("found").number;
        // Beside the mount: a/b becomes b, and a becomes b/a.
        fs::rename(dir.path().join("a/b"), dir.path().join("b")).expect("moved");
        fs::rename(dir.path().join("a"), dir.path().join("b/a")).expect("moved");
        let again = nodes.look_up(b, OsStr::new("a")).expect("found").number;
        assert_eq!(again, a);
        nodes.give_back(0);
        assert_eq!(nodes.fd(b).map(drop), Err(Failed(libc::ESTALE)));
        assert_eq!(nodes.fd(a).map(drop), Err(Failed(libc::ESTALE)));
        // Found again from above, both are there.
        assert_eq!(
            nodes.look_up(ROOT, OsStr::new("b")).expect("found").number,
            b
        );
        nodes.fd(a).expect("found below it");
    }

    #[test]
    fn what_lost_its_descriptors_is_opened_from_above() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("a/b/c")).expect("made");
        let root = fs::File::open(dir.path()).expect("opened").into();
        let nodes = Nodes::new(root, 64).expect("a table");
        let mut number = ROOT;
        for name in ["a", "b", "c"] {
            number = nodes
                .look_up(number, OsStr::new(name))
                .expect("found")
                .number;
        }
        nodes.give_back(0);
        let fd = nodes.fd(number).expect("opened");
        let inode = fs::metadata(dir.path().join("a/b/c")).expect("there");
        assert_eq!(
            fstat(&fd).expect("a status").st_ino,
            std::os::unix::fs::MetadataExt::ino(&inode)
        );
    }

    #[test]
    fn what_has_no_name_keeps_its_descriptor() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = fs::File::open(dir.path()).expect("opened").into();
        let nodes = Nodes::new(root, 64).expect("a table");
        let file = tempfile::tempfile_in(dir.path()).expect("a file");
        let fd = file.try_clone().expect("a descriptor").into();
        let number = nodes.enter(ROOT, OsStr::new(""), fd).expect("in").number;
        nodes.give_back(0);
        let fd = nodes.fd(number).expect("held");
        let is = |fd: BorrowedFd<'_>| fstat(fd).expect("a status").st_ino;
        assert_eq!(is(fd.as_fd()), is(file.as_fd()));
    }
}
