//! Files that somebody in the session reaches past the engine: by a stream of stdio, by a mapping, by a descriptor that a program
//! without the preload library has inherited, as a file of the kernel's by the engine's interface ([`Reaching`]).
//!
//! What goes that way is the kernel's, so such a file must not be managed by anybody. Each way there is announced in a word of
//! the arena, by inode, *before* it is used: counted, and then looked whether the session manages the file by now; if so, the file goes to the
//! kernel. A thread that begins to manage a file reads the word first, makes the entry, and reads it again: of two that come at once, at
//! least one sees the other.
//!
//! A count is a hint: several inodes have a word in common, and ways end without anybody hearing of it, by deaths not least.
//! What is certain is asked of the kernel, and only where a count is not zero: whether the description that is about to be
//! managed is the only one of its file (`sys::lock::is_only_description`). So whatever has ended is in nobody's way, and nothing has to be repaired.

use std::sync::Arc;

use crate::member::shared::Shared;
use crate::memory::superblock::{REACHED, Superblock};
use crate::sync::{AtomicU64, Ordering};

/// Announced so far, above; under way, about, below.
const ARRIVAL: u64 = 1 << 32;
const UNDER_WAY: u64 = ARRIVAL - 1;

/// An inode as words know it.
pub fn hash(device: u64, inode: u64) -> u64 {
    let mixed = (inode ^ device.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

fn word(superblock: &Superblock, hash: u64) -> &AtomicU64 {
    &superblock.reached[hash as usize % REACHED]
}

/// A way begins. Whether the session manages the file is to be looked at next.
pub fn begin(superblock: &Superblock, hash: u64) {
    word(superblock, hash).fetch_add(ARRIVAL + 1, Ordering::SeqCst);
}

/// A way has ended, for certain.
pub fn end(superblock: &Superblock, hash: u64) {
    let word = word(superblock, hash);
    let mut seen = word.load(Ordering::Relaxed);
    while seen & UNDER_WAY != 0 {
        match word.compare_exchange(seen, seen - 1, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// The file's mark has been taken away, so that nobody is held up at it: no way begins, but a thread that is about to manage the file looks anew.
pub fn unmarked(superblock: &Superblock, hash: u64) {
    word(superblock, hash).fetch_add(ARRIVAL, Ordering::SeqCst);
}

/// What the word said before a file's entry was made.
pub struct Before(u64);

/// Looks, before the entry is made.
pub fn look(superblock: &Superblock, hash: u64) -> Before {
    Before(word(superblock, hash).load(Ordering::SeqCst))
}

impl Before {
    /// Whether somebody may reach the file past the engine.
    pub fn is_reached(&self) -> bool {
        self.0 & UNDER_WAY != 0
    }

    /// Whether somebody has come since.
    pub fn has_grown(&self, superblock: &Superblock, hash: u64) -> bool {
        look(superblock, hash).0 & !UNDER_WAY != self.0 & !UNDER_WAY
    }
}

/// A way for as long as it is there: a file of the kernel's that somebody has open by the engine's interface.
pub struct Reaching {
    shared: Arc<Shared>,
    hash: u64,
    /// A forked child has a copy, which ends nothing.
    process: u32,
}

impl Reaching {
    /// The way to this device and inode begins. Whether the session manages the file is to be looked at next.
    pub fn begin(shared: &Arc<Shared>, (device, inode): (u64, u64)) -> Self {
        let hash = hash(device, inode);
        begin(shared.arena.superblock(), hash);
        Reaching {
            shared: Arc::clone(shared),
            hash,
            process: std::process::id(),
        }
    }
}

impl Drop for Reaching {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            end(self.shared.arena.superblock(), self.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use crate::sys::lock;

    #[test]
    fn only_descriptions_are_told_from_others() {
        let file = tempfile::tempfile().expect("a file");
        let only = || lock::is_only_description(file.as_fd());
        assert!(only());
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        for writes in [false, true] {
            let other = std::fs::OpenOptions::new()
                .read(true)
                .write(writes)
                .open(&name);
            let other = other.expect("opened again");
            assert!(!only());
            drop(other);
            assert!(only());
        }
        let same = file.try_clone().expect("a duplicate");
        assert!(only(), "one description");
        drop(same);
    }
}
