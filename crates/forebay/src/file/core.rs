//! What one open file needs for every operation, and how an operation waits.
//!
//! Every operation is a loop: enter, try under the header's lock, leave; where something is in the way, the way on is
//! decided here, outside any operation: wait a moment, repair after a death, make room.

use std::sync::Arc;

use crate::device::DeviceFile;
use crate::error::Error;
use crate::file::read::follow;
use crate::file::{resize, room};
use crate::frame::header::{Guard, Identity, State};
use crate::frame::slots::{self, Refused};
use crate::ids::{BlockIndex, FileId, HeaderId};
use crate::member::again;
use crate::member::shared::Shared;
use crate::memory::files::{ASKED, FileEntry, TRUNCATING};
use crate::memory::threads::{Me, Operation};
use crate::stream::tracking;
use crate::sync::Ordering;

/// Why a step could not be done; the operation has to be left.
#[derive(Debug)]
pub enum Halt {
    /// Somebody else is at work there, or has died at it.
    Busy,
    /// What is missing is being read; how many such reads had ended when that was seen.
    Ahead(u32),
    /// No free memory, header or node.
    NoMemory,
    /// The space that the bytes need is not reserved any more.
    Unreserved,
    /// Somebody has written beyond the end at which bytes were to be appended.
    Outgrown,
    /// A truncation was left in the middle by a death, and has to be finished first.
    Truncating,
    /// The file is in kernel mode by now.
    Kernel,
    /// The caller's memory is not there; nothing was done.
    Fault,
    /// It cannot be done.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Halt::Failed(error)
    }
}

/// An open managed file, as its operations see it.
#[derive(Clone)]
pub struct Core {
    /// The session.
    pub shared: Arc<Shared>,
    /// The file's entry.
    pub id: FileId,
    /// The device file.
    pub device: Arc<dyn DeviceFile>,
}

impl Core {
    /// The file's entry.
    #[inline(always)]
    pub fn entry(&self) -> &FileEntry {
        self.shared.arena.file_unchecked(self.id)
    }

    /// Changes the device file, noting for recovery that the change is ours: what the file looks like afterwards is
    /// remembered, and a change under way at a death is known for one.
    pub fn change<T>(&self, me: Me<'_>, change: impl FnOnce(&dyn DeviceFile) -> T) -> T {
        self.shared.change(me, self.id, &self.device, || {
            me.at_device(self.id, || change(self.device.as_ref()))
        })
    }

    /// The file once more, opened as a recovery would, where this process may write it so.
    pub fn opened_to_write(&self) -> Option<Core> {
        let device =
            again::open_again(&self.shared, self.id).filter(|device| device.is_writable())?;
        Some(Core {
            shared: Arc::clone(&self.shared),
            id: self.id,
            device,
        })
    }

    /// The file's size, once a truncation that a death has left in the middle is finished: nobody may see a size from
    /// before it and then bytes from after it.
    #[inline]
    pub fn size(&self, me: Me<'_>) -> std::result::Result<u64, Halt> {
        while self.entry().flags.load(Ordering::Acquire) & TRUNCATING != 0 {
            resize::finish_truncation(self, me)?;
        }
        Ok(self.entry().size.load(Ordering::Acquire))
    }

    /// A program has asked for space up to `end`: what lies beyond the file's end is not given back.
    pub fn keep_space(&self, end: u64) {
        let entry = self.entry();
        if end > entry.size.load(Ordering::Acquire) {
            entry.flags.fetch_or(ASKED, Ordering::AcqRel);
        }
    }

    /// Runs `step` inside an operation until it succeeds or fails for good. `step` may be run many times; it keeps
    /// its progress itself.
    #[inline]
    pub fn operate<'a, T>(
        &'a self,
        me: Me<'a>,
        mut step: impl FnMut(&Operation<'a>) -> std::result::Result<T, Halt>,
    ) -> std::result::Result<T, Halt> {
        let mut round = 0;
        loop {
            let halt = match me.enter(self.id) {
                Ok(operation) => {
                    let entry = self.entry();
                    if entry.kernel_reason.load(Ordering::Acquire) != 0 {
                        return Err(Halt::Kernel);
                    }
                    if entry.flags.load(Ordering::Relaxed) & TRUNCATING != 0 {
                        Halt::Truncating
                    } else {
                        match step(&operation) {
                            Ok(value) => return Ok(value),
                            Err(halt) => halt,
                        }
                    }
                }
                Err(_) => Halt::Busy,
            };
            round += 1;
            match halt {
                Halt::Busy => me.wait(round),
                Halt::Ahead(ends) => follow::sleep(me, ends),
                Halt::NoMemory => room::make(self, me, round)?,
                Halt::Truncating => resize::finish_truncation(self, me)?,
                other => return Err(other),
            }
        }
    }

    /// The header of a block, linked now if there was none.
    #[inline]
    pub fn header_for(&self, me: Me<'_>, block: BlockIndex) -> std::result::Result<HeaderId, Halt> {
        match slots::lookup(me.arena, self.entry(), block) {
            Some(header) => Ok(header),
            None => self.link_header(me, block),
        }
    }

    #[cold]
    fn link_header(&self, me: Me<'_>, block: BlockIndex) -> std::result::Result<HeaderId, Halt> {
        let arena = me.arena;
        let claim = |i: u32| arena.header(HeaderId(i)).is_some_and(|h| h.claim(me.id));
        // Each thread goes on where it last found one, and begins at a place of its own, so that two do not fetch each
        // other's lines.
        let hint = &me.slot().header_hint;
        let start = match hint.load(Ordering::Relaxed) {
            0 => me.id.index() * 3,
            last => last as usize,
        };
        let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
        let taken = arena.header_hints().first(backed).take(start, claim);
        if let Some(taken) = taken {
            hint.store(taken / u64::BITS, Ordering::Relaxed);
        }
        let id = HeaderId(taken.ok_or(Halt::NoMemory)?);
        let header = arena.header(id).ok_or(Halt::NoMemory)?;
        header.prepare(Identity {
            file: self.id,
            block,
        });
        match slots::install(me, self.entry(), block, id) {
            Ok(()) => {
                header.set_linked();
                tracking::linked(me, self.id, self.entry(), block);
                Ok(id)
            }
            Err(refused) => {
                header.unclaim();
                arena.header_hints().set(id.0);
                match refused {
                    Refused::Taken(other) => Ok(other),
                    Refused::NoNodes => Err(Halt::NoMemory),
                }
            }
        }
    }

    /// Locks the header of a block, superseded or not.
    #[inline]
    pub fn lock_any<'a>(
        &self,
        me: Me<'a>,
        block: BlockIndex,
    ) -> std::result::Result<Guard<'a>, Halt> {
        let id = self.header_for(me, block)?;
        let header = me.arena.header(id).ok_or(Halt::Busy)?;
        let guard = header.lock(me, id).ok_or(Halt::Busy)?;
        if guard.is_for(Identity {
            file: self.id,
            block,
        }) {
            Ok(guard)
        } else {
            Err(Halt::Busy)
        }
    }

    /// Locks the header of a block that no direct write is over.
    #[inline]
    pub fn lock<'a>(&self, me: Me<'a>, block: BlockIndex) -> std::result::Result<Guard<'a>, Halt> {
        let guard = self.lock_any(me, block)?;
        match guard.state() {
            State::Linked => Ok(guard),
            _ => Err(Halt::Busy),
        }
    }

    /// The error for a halt that ends an operation.
    pub fn ended(halt: Halt) -> Error {
        match halt {
            Halt::Failed(error) => error,
            Halt::NoMemory => Error::NoSpace { what: "the arena" },
            Halt::Fault => Error::Fault,
            Halt::Busy
            | Halt::Ahead(_)
            | Halt::Unreserved
            | Halt::Outgrown
            | Halt::Truncating
            | Halt::Kernel => Error::Corrupt("an operation ended in the middle".into()),
        }
    }
}
