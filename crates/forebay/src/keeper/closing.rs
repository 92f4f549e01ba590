//! Files whose close did not wait (`file::closing`): written before all others, and given back to the world.
//!
//! What somebody waits for comes first: an outsider whose opening the lease holds up, a program of the session that says so
//! (`HURRY`). The thread that writes is the only one that ends leases, so that nobody is in its way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::device::DeviceFile;
use crate::evict;
use crate::file::core::Core;
use crate::file::streams;
use crate::file::{closing, settle, vanished};
use crate::flush::{Flusher, Outcome, Scope, errors};
use crate::ids::FileId;
use crate::keeper::outsiders::guard_of;
use crate::member::closed;
use crate::member::shared::Shared;
use crate::memory::files::{BACK, CLOSING, HURRY, LEASED};
use crate::memory::threads::Me;
use crate::sync::time::{Instant, sleep};
use crate::sync::{Ordering, planted};

/// Pages that are written before the keeper looks again who waits.
const PAGES_AT_ONCE: u64 = 4 * 1024;
/// The same where nobody waits: a program that takes its file back waits for as much.
const PAGES_AT_LEISURE: u64 = 1024;
/// How long a file may owe the same, though it is tried: much less than the kernel keeps those waiting that want the lease.
const STUCK_PATIENCE: Duration = Duration::from_secs(5);
/// How long threads of this process that are at a file are waited for before it counts as let go: much longer than a busy machine
/// keeps one of them from going on, and less than a client waits for an answer.
const DROP_PATIENCE: Duration = Duration::from_secs(4);
const CLOSE_PAUSE: Duration = Duration::from_micros(100);
const CLOSE_PAUSE_MAX: Duration = Duration::from_millis(4);

/// How long a keeper that ends goes on with files under a lease, which ends with it.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// Waits until no file is under a lease of this keeper's.
pub fn await_none(shared: &Shared) {
    let begun = Instant::now();
    while begun.elapsed() < LAST_PATIENCE && forget_lost(shared) > 0 {
        sleep(CLOSE_PAUSE);
    }
}

/// Gives up what a keeper that ends could not write: another one could not open it as long as this process lives.
pub fn give_all_up(shared: &Shared) {
    for (id, device) in leased_devices(shared) {
        end_lease(shared, id, device.as_ref());
        closed::end_lease(&shared.arena, id);
    }
}

/// Those that have waited for it come in without being seen.
fn end_lease(shared: &Shared, id: FileId, device: &dyn DeviceFile) {
    match guard_of(shared) {
        Some(guard) => {
            let inode = shared.arena.file_unchecked(id).numbers();
            guard.end_lease(shared, device, inode);
        }
        None => device.give_lease_up(),
    }
}

fn flags_of(shared: &Shared, id: FileId) -> u32 {
    let entry = shared.arena.file_unchecked(id);
    entry.flags.load(Ordering::Acquire)
}

fn leased_devices(shared: &Shared) -> Vec<(FileId, Arc<dyn DeviceFile>)> {
    let open = shared.open_devices();
    open.filter(|(id, _)| flags_of(shared, *id) & LEASED != 0)
        .collect()
}

/// The files under a lease, as the thread that writes them sees them.
#[derive(Default)]
pub struct Leased {
    /// Those that owe the same as when they were tried then.
    stuck: HashMap<FileId, (u64, Instant)>,
}

impl Leased {
    /// Writes what files under a lease owe before a keeper ends: until the house has seen to it that there are no more.
    pub fn write_the_rest(&mut self, shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher) {
        let begun = Instant::now();
        while shared.keeps.load(Relaxed) && begun.elapsed() < LAST_PATIENCE {
            if !self.write_some(shared, me, flusher) {
                sleep(CLOSE_PAUSE);
            }
        }
    }

    /// Writes some of what a file under a lease owes. Whether there was any to be written. One that does not get on is in no other's
    /// way.
    pub fn write_some(&mut self, shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher) -> bool {
        let mut leased = leased_devices(shared);
        self.stuck
            .retain(|stuck, _| leased.iter().any(|(id, _)| id == stuck));
        leased.sort_by_cached_key(|(id, device)| {
            flags_of(shared, *id) & (HURRY | BACK) == 0 && !device.is_lease_wanted()
        });
        for (id, listed) in leased {
            // Writing others takes time: meanwhile this one may have been closed again, under another lease.
            let Some(device) = shared.device(id).filter(|device| {
                Arc::ptr_eq(device, &listed) && flags_of(shared, id) & LEASED != 0
            }) else {
                continue;
            };
            drop(listed);
            if flags_of(shared, id) & BACK != 0 && hand_back(shared, id, device.as_ref()) {
                return true;
            }
            if planted!(EarlyRelease) {
                device.give_lease_up();
            }
            // Waits for no thread that has something of a file in flight.
            let at_once = Scope::some(PAGES_AT_ONCE);
            let dropped = vanished::drop_if_nameless(shared, me, id, &device, at_once);
            let scope = Scope::some(match flags_of(shared, id) & HURRY {
                0 if !streams::owes_too_much(shared) => PAGES_AT_LEISURE,
                _ => PAGES_AT_ONCE,
            });
            let outcome =
                dropped.unwrap_or_else(|| shared.flush_with(flusher, me, id, &device, scope));
            if go_on(shared, me, id, device, outcome) {
                return true;
            }
            if self.is_stuck(shared, id)
                && let Some(device) = shared.device(id)
            {
                end_lease(shared, id, device.as_ref());
                closed::end_lease(&shared.arena, id);
            }
        }
        false
    }

    /// Whether nothing of a file could be written for so long that nobody is kept waiting for it any more: what it owes is
    /// tried again as after a death.
    fn is_stuck(&mut self, shared: &Shared, id: FileId) -> bool {
        let entry = shared.arena.file_unchecked(id);
        let owed = entry.owed_pages.load(Ordering::Acquire);
        let (before, since) = self.stuck.entry(id).or_insert((owed, Instant::now()));
        if *before != owed {
            (*before, *since) = (owed, Instant::now());
        }
        since.elapsed() > STUCK_PATIENCE
    }
}

/// Gives a file back to the session before everything is written, if the guard takes it over.
fn hand_back(shared: &Shared, id: FileId, device: &dyn DeviceFile) -> bool {
    let inode = shared.arena.file_unchecked(id).numbers();
    let is_held = guard_of(shared).is_some_and(|guard| guard.take_over(device, inode));
    if is_held {
        closed::end_lease(&shared.arena, id);
    }
    is_held
}

/// Whether it went on.
fn go_on(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    device: Arc<dyn DeviceFile>,
    outcome: Outcome,
) -> bool {
    let entry = shared.arena.file_unchecked(id);
    let owes = entry.owed_pages.load(Ordering::Acquire) != 0;
    if owes && outcome.errno.is_none() {
        return outcome.pages_written > 0;
    }
    if !owes && planted!(KeptLease) {
        return false;
    }
    let core = Core {
        shared: Arc::clone(shared),
        id,
        device,
    };
    if !owes && (settle::finish(&core, me).is_ok() || is_with_kernel(&core, me)) {
        if matches!(core.device.stat(), Ok(stat) if stat.links == 0) {
            // As in `settle::close`: nobody can open it again.
            evict::evict_file(me, id);
        }
        let_go(shared, core);
        closed::end_lease(&shared.arena, id);
    } else {
        give_up(&core);
    }
    true
}

/// A file that has been given to the kernel in the meantime has only its time left to get.
fn is_with_kernel(core: &Core, me: Me<'_>) -> bool {
    let is = core.entry().kernel_reason.load(Ordering::Acquire) != 0;
    if is {
        closing::restore_time(core, me);
    }
    is
}

/// Closes the description, and with it ends the lease. The flushers hold a device for moments.
fn let_go(shared: &Shared, core: Core) {
    // First: a program that comes in then hands over a device of its own. The kernel has let somebody in already where it took too long.
    let is_kept = shared.is_open(core.id);
    if !is_kept {
        shared.drop_device(core.id);
    }
    // The closer may not have come to close its descriptor of the same description yet.
    end_lease(shared, core.id, core.device.as_ref());
    if is_kept {
        return;
    }
    let device = Arc::clone(&core.device);
    drop(core);
    await_dropped(device);
}

/// Waits until nobody of this process uses a device file any more, within bounds. Whether that is so: then its descriptors are closed, and
/// the file may be executed. Threads have a device file for moments, as long as its file owes nothing.
pub fn await_dropped<T: ?Sized>(device: Arc<T>) -> bool {
    let weak = Arc::downgrade(&device);
    drop(device);
    let (begun, mut pause) = (Instant::now(), CLOSE_PAUSE);
    while weak.strong_count() != 0 {
        if begun.elapsed() > DROP_PATIENCE {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(CLOSE_PAUSE_MAX);
    }
    true
}

/// What cannot be written is like what a killed program has left: it stays owed, is tried again now and then, and the
/// program that opens the file next hears of it. Nobody is kept waiting for it.
fn give_up(core: &Core) {
    let entry = core.entry();
    errors::nobody_heard(entry);
    entry.flags.fetch_and(!CLOSING, Ordering::AcqRel);
    end_lease(&core.shared, core.id, core.device.as_ref());
    closed::end_lease(&core.shared.arena, core.id);
}

/// A file may be said to be under a lease that this keeper does not have: its closer has died, or an earlier keeper. How many
/// are under one in earnest.
pub fn forget_lost(shared: &Shared) -> u32 {
    let leased = &shared.arena.superblock().leased;
    let counted = leased.load(Ordering::Acquire);
    if counted == 0 {
        return 0;
    }
    let ids = (0..shared.arena.counts().files).map(FileId);
    let left = ids.filter(|&id| !forget_if_lost(shared, id)).count() as u32;
    if left == 0 {
        // What a death has left counted. One that is being counted just now is found by its flag.
        let _ = leased.compare_exchange(counted, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    left
}

/// As [`forget_lost`], of one file. Whether it is under no lease.
pub fn forget_if_lost(shared: &Shared, id: FileId) -> bool {
    let flags = &shared.arena.file_unchecked(id).flags;
    if flags.load(Ordering::Acquire) & LEASED == 0 {
        return true;
    }
    let lost = shared.device(id).is_none();
    if lost {
        closed::end_lease(&shared.arena, id);
    }
    lost
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::await_dropped;

    /// On a busy machine a thread may get no time for as long as that, with a device file in hand.
    #[test]
    fn a_thread_that_gets_no_time_is_waited_for() {
        let device = Arc::new(());
        let other = Arc::clone(&device);
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(500));
            drop(other);
        });
        assert!(await_dropped(device));
        late.join().expect("an end");
    }
}
