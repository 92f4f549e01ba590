//! Shared mappings that only read, made of the arena's frames for as long as nobody can write the file.
//!
//! What others write such a mapping must show, at once, and no process can change another one's mappings. So the kernel says when somebody
//! comes: a *lease* for reading is had only while nobody has the file open for writing, and whoever opens it so, or cuts it by its name, in
//! the session or outside, waits in the kernel until the lease has been given up. A thread of this process ([`agent`]) hears of it. It
//! has the file itself mapped in place of the frames, lets the session know that the file is reached past it, and then gives the lease up.
//!
//! ```text
//! frames, lease --(somebody waits; a fork; a lock; the process leaves)--> the file's own pages --> no lease
//! ```
//!
//! The frames are pinned in this process's name, and a child does not get such mappings: they are replaced before a fork.

mod agent;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use forebay::sys::{file, lease};
use libc::c_int;

use super::{Gone, Lock, views};
use crate::attach;
use crate::files::{self, Why};
use crate::foreign::File;
use crate::inside::{Inside, NotCancelled};
use crate::raw::KeepErrno;
use crate::table::Word;

/// Files that are mapped so at most.
const LEASES: usize = 64;

/// A lease of this process's. Whoever has the table's lock changes it.
struct Held {
    /// Its name; 0: free.
    name: AtomicU64,
    /// A description of the file that only reads, and whose the lease is.
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    /// Views under it, and threads that are about to make one.
    uses: AtomicU32,
}

static TABLE: [Held; LEASES] = [const {
    Held {
        name: AtomicU64::new(0),
        fd: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        uses: AtomicU32::new(0),
    }
}; LEASES];
/// Leases in use.
static USED: AtomicU32 = AtomicU32::new(0);
static NAMES: AtomicU64 = AtomicU64::new(0);
/// A description of the arena's file that only reads; -1: none yet.
static FRAMES: AtomicI32 = AtomicI32::new(-1);
/// The inode of the arena's file.
static FRAMES_INODE: AtomicU64 = AtomicU64::new(0);

/// A lease that is given up when this is dropped.
pub(super) struct Lease(OwnedFd);

impl Drop for Lease {
    fn drop(&mut self) {
        // The mappings that have replaced frames keep the description.
        let _ = lease::give_up(self.0.as_fd());
    }
}

/// A use of a lease.
pub(super) struct Use {
    name: u64,
    frames: c_int,
}

impl Held {
    fn named(_lock: &Lock, name: u64) -> Option<&'static Held> {
        TABLE.iter().find(|held| held.name.load(Relaxed) == name)
    }

    fn of_file(_lock: &Lock, file: File) -> Option<&'static Held> {
        TABLE.iter().find(|held| {
            held.name.load(Relaxed) != 0
                && held.inode.load(Relaxed) == file.inode
                && held.device.load(Relaxed) == file.device
        })
    }

    fn file(&self) -> File {
        File {
            device: self.device.load(Relaxed),
            inode: self.inode.load(Relaxed),
        }
    }

    /// Whether nobody waits for its end.
    fn is_held(&self) -> bool {
        // SAFETY: the description's only descriptor, which is closed under the lock that the caller has.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd.load(Relaxed)) };
        lease::is_held_to_read(fd).unwrap_or(false)
    }

    fn one_more(&self) -> Use {
        self.uses.fetch_add(1, Relaxed);
        Use {
            name: self.name.load(Relaxed),
            frames: FRAMES.load(Relaxed),
        }
    }
}

impl Use {
    /// What mappings of frames are made of.
    pub(super) fn frames(&self) -> c_int {
        self.frames
    }

    /// Whether nobody waits for the lease's end.
    pub(super) fn is_held(&self, lock: &Lock) -> bool {
        Held::named(lock, self.name).is_some_and(Held::is_held)
    }

    /// A view has it from now on: its name, for [`put`].
    pub(super) fn keep(self) -> u64 {
        let name = self.name;
        std::mem::forget(self);
        name
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let lock = Lock::take();
        let given = put(&lock, self.name);
        drop(lock);
        drop(given);
    }
}

/// One use less. The lease, if it was the last.
pub(super) fn put(lock: &Lock, name: u64) -> Option<Lease> {
    let held = Held::named(lock, name)?;
    if held.uses.fetch_sub(1, Relaxed) != 1 {
        return None;
    }
    held.name.store(0, Relaxed);
    USED.fetch_sub(1, Relaxed);
    // SAFETY: put there by `enter`, and taken once.
    Some(Lease(unsafe {
        OwnedFd::from_raw_fd(held.fd.swap(-1, Relaxed))
    }))
}

/// Whether anything is mapped so.
pub fn any() -> bool {
    USED.load(Relaxed) != 0
}

/// The inode that mappings of frames show.
pub(super) fn frames_inode() -> u64 {
    FRAMES_INODE.load(Relaxed)
}

/// A lease on the file behind a managed descriptor that only reads. `None`: somebody may write it, or the kernel gives no such leases.
pub(super) fn of(fd: c_int, word: Word) -> Option<Use> {
    let description = word.description();
    let file = File {
        device: description.device.load(Relaxed),
        inode: description.inode.load(Relaxed),
    };
    {
        let lock = Lock::take();
        if let Some(held) = Held::of_file(&lock, file) {
            return Some(held.one_more());
        }
        find_frames(&lock)?;
    }
    let thread = agent::thread()?;
    // SAFETY: open during the program's call.
    let fd = unsafe { files::borrow(fd) };
    let description = attach::relocate(file::open_again(fd, false, false).ok()?);
    lease::tell_thread(description.as_fd(), thread, agent::SIGNAL).ok()?;
    lease::take_to_read(description.as_fd()).ok()?;
    let lock = Lock::take();
    let entered = enter(&lock, file, description, thread);
    drop(lock);
    entered.ok()
}

fn enter(
    lock: &Lock,
    file: File,
    description: OwnedFd,
    thread: libc::pid_t,
) -> Result<Use, OwnedFd> {
    let free = TABLE.iter().find(|held| held.name.load(Relaxed) == 0);
    let Some(free) = free.filter(|_| agent::stays(lock, thread)) else {
        return Err(description);
    };
    free.device.store(file.device, Relaxed);
    free.inode.store(file.inode, Relaxed);
    free.uses.store(0, Relaxed);
    free.fd
        .store(std::os::fd::IntoRawFd::into_raw_fd(description), Relaxed);
    free.name.store(NAMES.fetch_add(1, Relaxed) + 1, Relaxed);
    USED.fetch_add(1, Relaxed);
    Ok(free.one_more())
}

fn find_frames(_lock: &Lock) -> Option<()> {
    if FRAMES.load(Relaxed) == -1 {
        let session = attach::joined()?;
        let frames = session.shared().frames_to_read(attach::relocate)?;
        let look = files::Look::at(frames.as_raw_fd())?;
        FRAMES_INODE.store(look.inode, Relaxed);
        FRAMES.store(std::os::fd::IntoRawFd::into_raw_fd(frames), Relaxed);
    }
    Some(())
}

/// A file whose mappings have been replaced, and what is to be dropped once the session knows.
struct Moved {
    file: File,
    gone: Gone,
}

/// Replaces what is mapped under a lease. `false`: it could not be, and the lease stays.
fn replace(lock: &Lock, held: &Held, moved: &mut Vec<Moved>) -> bool {
    let (name, file, fd) = (held.name.load(Relaxed), held.file(), held.fd.load(Relaxed));
    // The last view takes the lease with it, unless somebody is about to make one, who will see that it is not held.
    let (gone, is_done) = views::replace(lock, name, (file, fd));
    moved.push(Moved { file, gone });
    is_done
}

/// The session hears that the files are reached past it, and then the leases are given up.
fn let_go(moved: Vec<Moved>) {
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    for Moved { file, gone } in moved {
        if !gone.is_empty() {
            // Nothing is owed of a file that nobody could write.
            let _ = files::give_inode_to_kernel(file.device, file.inode, Why::Mapped);
        }
        drop(gone);
    }
}

/// Replaces what is mapped under those leases of which `is_meant` says so. Whether all of it has been.
fn replace_those(is_meant: impl Fn(&Held) -> bool) -> bool {
    let (mut moved, mut is_done) = (Vec::new(), true);
    let lock = Lock::take();
    for held in &TABLE {
        if held.name.load(Relaxed) != 0 && is_meant(held) {
            is_done &= replace(&lock, held, &mut moved);
        }
    }
    drop(lock);
    let_go(moved);
    is_done
}

/// Replaces what is mapped under a lease.
pub(super) fn give_up(lease: u64) {
    replace_those(|held| held.name.load(Relaxed) == lease);
}

/// The program is about to lock the file behind a descriptor: a descriptor of ours that is closed later would give its locks up.
pub fn give_up_of(fd: c_int) {
    if !any() || Inside::is() {
        return;
    }
    let _errno = KeepErrno::new();
    if let Some((device, inode)) = crate::foreign::regular(fd) {
        let is_of = |held: &Held| {
            let file = held.file();
            (file.device, file.inode) == (device, inode)
        };
        replace_those(is_of);
    }
}

/// Nothing is mapped so any more, and there is no thread for it. `false`: something still is.
pub fn end() -> bool {
    if !any() && !agent::is_there() {
        return true;
    }
    let _errno = KeepErrno::new();
    let ending = agent::Ending::begin();
    let is_done = replace_those(|_| true);
    if is_done && let Some(ending) = ending {
        ending.wait();
    }
    is_done
}

/// A child has none: what it got of its parent's is nobody's here, and descriptors are closed with the engine's others.
pub(super) fn in_child() {
    if any() {
        for held in &TABLE {
            held.name.store(0, Relaxed);
            held.fd.store(-1, Relaxed);
        }
        USED.store(0, Relaxed);
    }
    FRAMES.store(-1, Relaxed);
    agent::in_child();
}
