//! Which processes hold views, and the pins of those that are gone.
//!
//! A process with views has a number. It owns the lock of the byte with that number in the arena's file, which the kernel takes away when
//! the process ends, however it does (a child that was forked and runs on keeps it, and can read the views that it has inherited). A
//! process that takes pins of the dead back owns the lock meanwhile, so that the number is nobody else's. An arena on the heap is one
//! process's.
//!
//! Mappings that a program has asked for have a number of their own, with an open description of its own ([`Holder`]): each mapping that is
//! made of that description keeps it, and with it the lock, in whatever process it comes to be.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::member::shared::Shared;
use crate::memory::pins::{self, HOLDERS_MAX};
use crate::memory::threads::Me;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::{file, lock};

/// Far below the bytes of files (`member::opens`): byte + number.
const FIRST_BYTE: u64 = 1 << 40;

/// One process's number.
#[derive(Default)]
pub struct Viewers {
    /// 0: none yet.
    own: AtomicU32,
    /// 1 while a thread of this process takes locks: they are the process's, so two threads do not keep each other out by them.
    busy: AtomicU32,
}

/// A number for pins, and an open description of the arena's file that owns its lock. Once the last descriptor and the last mapping of the
/// description are gone, the pins are those of a process that is gone.
#[derive(Debug)]
pub struct Holder {
    number: u32,
    file: OwnedFd,
}

impl Holder {
    /// What pins name.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What mappings of its frames are made of.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The right of one thread to take locks of numbers.
struct Alone<'a>(&'a AtomicU32);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.0.store(0, Ordering::Release);
    }
}

impl Viewers {
    fn try_alone(&self) -> Option<Alone<'_>> {
        self.busy
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| Alone(&self.busy))
    }
}

impl Shared {
    /// This process's number for its pins; taken on first use. `None`: too many processes hold views. The caller is in no operation.
    pub fn viewer(&self, me: Me<'_>) -> Option<u32> {
        let mut round = 0;
        loop {
            match self.viewers.own.load(Ordering::Acquire) {
                0 => {}
                own => return Some(own),
            }
            if let Some(_alone) = self.viewers.try_alone() {
                return self.take_number(me);
            }
            round += 1;
            me.wait(round);
        }
    }

    fn take_number(&self, me: Me<'_>) -> Option<u32> {
        let own = &self.viewers.own;
        // Another thread may have been here.
        if own.load(Ordering::Acquire) != 0 {
            return Some(own.load(Ordering::Acquire));
        }
        let number = match self.arena.mapping().file() {
            None => 1,
            Some(file) => (1..=HOLDERS_MAX).find(|&number| takes(file.as_fd(), me, number))?,
        };
        own.store(number, Ordering::Release);
        Some(number)
    }

    /// A number that is not this process's alone. `None`: there is none, the arena is no file, or the process has no descriptor left. The
    /// caller is in no operation.
    pub fn holder(&self, me: Me<'_>, relocate: fn(OwnedFd) -> OwnedFd) -> Option<Holder> {
        let arena = self.arena.mapping().file()?;
        let file = relocate(file::open_again(arena.as_fd(), false, true).ok()?);
        let mut numbers = (1..=HOLDERS_MAX).rev();
        let number = numbers.find(|&number| takes(file.as_fd(), me, number))?;
        Some(Holder { number, file })
    }

    /// Takes back what the dead have pinned. Costs a look where nothing is pinned. The caller is in no operation.
    pub fn unpin_dead(&self, me: Me<'_>) {
        let pinned = &self.arena.superblock().frames_pinned;
        let Some(file) = self.arena.mapping().file() else {
            return;
        };
        if pinned.load(Ordering::Acquire) == 0 {
            return;
        }
        let Some(_alone) = self.viewers.try_alone() else {
            return;
        };
        let own = self.viewers.own.load(Ordering::Acquire);
        for number in self.holders().into_iter().filter(|&number| number != own) {
            let byte = FIRST_BYTE + u64::from(number);
            if lock::try_own(file.as_fd(), byte).unwrap_or(false) {
                pins::unpin_all_of(me, number);
                let _ = lock::let_go(file.as_fd(), byte);
            }
        }
    }

    /// Numbers that pins name, each once.
    fn holders(&self) -> Vec<u32> {
        let of = |(_, word)| pins::unpack(&self.arena, word).map(|(holder, _)| holder);
        let mut holders: Vec<u32> = pins::records(&self.arena, 0).filter_map(of).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }
}

/// Takes a number that is nobody's: the process that had it before is gone, and so are its pins. `false`: somebody has it, or its pins cannot
/// be taken back yet.
fn takes(arena: BorrowedFd<'_>, me: Me<'_>, number: u32) -> bool {
    let byte = FIRST_BYTE + u64::from(number);
    let is_owned = lock::try_own(arena, byte).unwrap_or(false);
    let is_free = is_owned && pins::unpin_all_of(me, number);
    if is_owned && !is_free {
        let _ = lock::let_go(arena, byte);
    }
    is_free
}
