//! What `sync` and `syncfs` promise: everything, whichever program of the session has written it.
//!
//! The keeper writes what it has descriptors of, with many requests under way; what it does not get done is written by the caller,
//! file by file. Making it durable in the devices' caches as well is the kernel's call of the same name.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::error::{Error, Result};
use crate::file::closing;
use crate::file::core::Core;
use crate::file::settle::{Durability, settle};
use crate::flush::errors;
use crate::ids::FileId;
use crate::keeper::repair;
use crate::member::again;
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, FileEntry, HURRY, LEASED, LIVE};
use crate::memory::threads::{self, Me};
use crate::session::Session;
use crate::session::glance::Glance;
use crate::sync::Ordering;

/// The files that lack something on a device, or on any.
fn unwritten(arena: &Arena, device: Option<u64>) -> impl Iterator<Item = (FileId, &FileEntry)> {
    let entries = (0..arena.counts().files).map(FileId);
    let entries = entries.map(|id| (id, arena.file_unchecked(id)));
    entries.filter(move |(_, entry)| {
        entry.state.load(Ordering::Acquire) == LIVE
            && device.is_none_or(|device| entry.device.load(Ordering::Acquire) == device)
            && is_unwritten(entry)
    })
}

fn is_unwritten(entry: &FileEntry) -> bool {
    let leased = entry.flags.load(Ordering::Acquire) & (CLOSING | LEASED) != 0;
    let with_kernel = entry.kernel_reason.load(Ordering::Acquire) != 0;
    !with_kernel && (leased || entry.owes())
}

impl Glance {
    /// Whether [`Session::write_all`] would have anything to do.
    pub fn owes_anything(&self, device: Option<u64>) -> bool {
        unwritten(self.arena(), device).next().is_some() || !threads::dead(self.arena()).is_empty()
    }
}

impl Session {
    /// Writes everything that the session owes to a device, or to all. Writers that go on meanwhile may owe more by the time this
    /// returns.
    ///
    /// # Errors
    /// The first; all that can be written is, and a program that has such a file open hears of
    /// it as ever.
    pub fn write_all(&self, device: Option<u64>) -> Result<()> {
        let shared = &self.shared;
        let me = shared.me()?;
        repair::await_done(shared, me);
        for (_, entry) in unwritten(&shared.arena, device) {
            entry.flags.fetch_or(HURRY, Ordering::AcqRel);
        }
        shared.wake_keeper();
        let mut all = Ok(());
        for (id, entry) in unwritten(&shared.arena, device) {
            closing::await_end(&shared.arena, id);
            if is_unwritten(entry) {
                all = all.and(self.write_one(me, id));
            }
        }
        all
    }

    fn write_one(&self, me: Me<'_>, id: FileId) -> Result<()> {
        let shared = &self.shared;
        if shared.device(id).is_none() {
            if shared.ask_to_flush(id) {
                return Ok(());
            }
            again::adopt(shared, |wanted, _| wanted == id);
        }
        let entry = shared.arena.file_unchecked(id);
        let Some(device) = shared.device(id) else {
            // Somebody else may have done it meanwhile.
            return match is_unwritten(entry) {
                true => Err(Error::Device {
                    errno: libc::EIO,
                    operation: "flush",
                }),
                false => Ok(()),
            };
        };
        let core = Core {
            shared: Arc::clone(shared),
            id,
            device,
        };
        let seen = AtomicU32::new(errors::sequence(entry));
        let settled = settle(&core, me, Durability::Data, &seen);
        closing::finish_orphan(&core, me);
        // Opened for this alone, perhaps.
        shared.closed(id, &core.device);
        match settled {
            Err(_) if entry.kernel_reason.load(Ordering::Acquire) != 0 => Ok(()),
            settled => settled,
        }
    }
}
