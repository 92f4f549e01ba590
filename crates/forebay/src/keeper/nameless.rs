//! A session whose arena loses its name while programs are in it: a login manager removes what its user has in shared memory when that user logs
//! out (`RemoveIPC` of logind), and others clean up as well. Should all its processes be killed then, no recovery would find what it owes.
//!
//! So it goes on owing nothing: its files go to the kernel, one by one, and nobody begins to manage another one. A name cannot be given back.

use std::sync::Arc;
use std::time::Duration;

use crate::file::core::Core;
use crate::file::settle;
use crate::flush::Scope;
use crate::ids::FileId;
use crate::member::given::NAMELESS;
use crate::member::presence;
use crate::member::shared::Shared;
use crate::memory::files::{LEASED, LIVE};
use crate::memory::threads::Me;
use crate::sync::Ordering;
use crate::sync::time::Instant;

/// How often files are given that could not be given before.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// Looks whether the arena has its name, and says so to all processes that would manage a file.
pub fn look(shared: &Shared) {
    let superblock = shared.arena.superblock();
    let is_nameless = presence::is_nameless(shared);
    if superblock.has_lost_its_name() != is_nameless {
        let word = u32::from(is_nameless);
        superblock.nameless.store(word, Ordering::Release);
        shared.wake_keeper();
    }
}

/// Gives files to the kernel, by a thread that may wait for devices.
#[derive(Default)]
pub struct Giving(Option<Instant>);

impl Giving {
    /// All files that are not the kernel's, if the arena has lost its name. What cannot be given now is tried again.
    pub fn go_on(&mut self, shared: &Arc<Shared>, me: Me<'_>) {
        let is_due = self.0.is_none_or(|last| last.elapsed() > TRY_EVERY);
        if !shared.arena.superblock().has_lost_its_name() || !is_due {
            return;
        }
        for id in (0..shared.arena.counts().files).map(FileId) {
            let entry = shared.arena.file_unchecked(id);
            // A file that a close has left to the keeper is written, and then it owes nothing.
            let is_leased = entry.flags.load(Ordering::Acquire) & LEASED != 0;
            let is_kernels = entry.kernel_reason.load(Ordering::Acquire) != 0;
            if entry.state.load(Ordering::Acquire) == LIVE && !is_leased && !is_kernels {
                give(shared, me, id);
            }
        }
        self.0 = Some(Instant::now());
    }
}

fn give(shared: &Arc<Shared>, me: Me<'_>, id: FileId) {
    let Some(device) = shared.device(id).filter(|device| device.is_writable()) else {
        settle::to_kernel_if_flushed(me, id, NAMELESS);
        return;
    };
    let core = Core {
        shared: Arc::clone(shared),
        id,
        device,
    };
    // A program that writes without a pause waits for once.
    if !settle::try_to_kernel(&core, me, NAMELESS) {
        settle::to_kernel_while_written(&core, me, NAMELESS, Scope::SYNC);
    }
}
