//! What the guard's worker does about outsiders: what the session has of a file is written, and the file is the kernel's, for
//! as long as anybody of the session has it open.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::lanes::{Lane, key_of};
use super::pace::{PATIENCE, STILL_MAX};
use super::{CHANGED, Guard, HOLDS, OPENED, guard_of, locked, who};
use crate::file::closing;
use crate::file::core::Core;
use crate::file::settle::{self, Durability};
use crate::flush::{Scope, errors};
use crate::ids::FileId;
use crate::member::again::{adopt, adopt_owed_file};
use crate::member::given;
use crate::member::lacks::lacks_anything;
use crate::member::shared::Shared;
use crate::memory::files::{CLOSING, EXCEEDING, HURRY, LEASED, LIVE, TRUNCATING};
use crate::memory::threads::{Me, stop_file};
use crate::sync::Ordering;
use crate::sys::fanotify::Group;

/// How often all processes are looked through for outsiders at most: it takes milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a file is tried at least that nobody waits for, where somebody waits for another one.
const TRY_MIN: Duration = Duration::from_millis(250);
/// How long it is hoped that a file is left alone by its writers for long enough to be given to the kernel.
const WRITERS_PATIENCE: Duration = Duration::from_millis(100);
/// How long a change must look like an outsider's.
const LOOKS_MIN: Duration = Duration::from_millis(5);
/// How long a guard that stands in waits for a lease that somebody has on a file.
const RELIEF_PATIENCE: Duration = Duration::from_millis(800);
/// The same, and as [`WRITERS_PATIENCE`], while a keeper is stopped.
const HASTY_PATIENCE: [Duration; 2] = [Duration::ZERO, Duration::from_millis(2)];
/// How often it is tried then to be alone on a file that programs use.
const REST_TRIES: u32 = 3;
/// All that is owed, without waiting for what others have in flight: they may be stopped.
const UNSHARED: Scope = Scope::some(u64::MAX);
/// How often it is seen to that all files are watched.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Whether the session has anything of the file that others would have to be told.
pub fn is_managed(shared: &Shared, file: FileId) -> bool {
    let entry = shared.arena.file_unchecked(file);
    entry.state.load(Ordering::Acquire) == LIVE
        && entry.kernel_reason.load(Ordering::Acquire) == 0
        && (entry.owes() || shared.is_open(file))
}

/// As [`is_managed`], or to be changed by the session for the last time: its space beyond the end is given back by cutting it there, and
/// what it is then would be taken for the session's own doing.
pub fn is_known(shared: &Shared, file: FileId) -> bool {
    let entry = shared.arena.file_unchecked(file);
    is_managed(shared, file)
        || entry.state.load(Ordering::Acquire) == LIVE
            && entry.kernel_reason.load(Ordering::Acquire) == 0
            && (lacks_anything(entry) || entry.is_unwitnessed(shared.arena.counts().threads))
}

/// Between two rounds of one worker's.
#[derive(Default)]
pub struct Mending {
    /// Whose files it sees to ([`key_of`]).
    lane: u64,
    /// Files that somebody has opened, a member or an outsider.
    opened: HashSet<FileId>,
    /// Files that somebody has changed, the session perhaps, and since when it looks like an outsider.
    changed: HashMap<FileId, Option<Instant>>,
    looked: Option<Instant>,
    tended: Option<Instant>,
    /// Since when outsiders may have come in unseen.
    missed: Option<Instant>,
}

impl Mending {
    pub fn of(lane: u64) -> Self {
        Mending {
            lane,
            ..Mending::default()
        }
    }

    /// Whether nothing is left of what it has been asked for.
    pub fn is_done(&self) -> bool {
        self.opened.is_empty() && self.changed.is_empty()
    }

    fn has(&self, inode: (u64, u64)) -> bool {
        key_of(inode.0) == self.lane
    }

    /// One round.
    pub fn go_on(
        &mut self,
        shared: &Arc<Shared>,
        me: Me<'_>,
        guard: &Guard,
        next: Option<(FileId, u32)>,
    ) {
        if let Some((file, what)) = next
            && is_managed(shared, file)
        {
            if what & CHANGED != 0 {
                self.changed.entry(file).or_default();
            }
            if what & OPENED != 0 {
                self.opened.insert(file);
            }
        }
        // First: flushing would be a change, too.
        self.look_at_changes(shared, me, guard);
        if let Some((file, what)) = next
            && what & OPENED != 0
            && is_managed(shared, file)
            && !self.changed.contains_key(&file)
        {
            flush(shared, me, guard, file);
        }
        self.look_for_the_missed(shared, guard);
        if is_due(self.tended, TEND_EVERY) {
            self.tended = Some(Instant::now());
            self.tend(shared, me, guard);
        }
        if !self.opened.is_empty() && is_due(self.looked, LOOK_EVERY) {
            self.look_for_outsiders(shared, me, guard);
            self.looked = Some(Instant::now());
        }
    }

    /// Gives a file to the kernel that somebody waits for. Whether it was the session's, and is not any more: somebody may have come
    /// meanwhile to whom it is.
    pub fn settles(
        &mut self,
        shared: &Arc<Shared>,
        me: Me<'_>,
        guard: &Guard,
        file: FileId,
    ) -> bool {
        if !guard.is_at_work(shared) || !is_known(shared, file) {
            return false;
        }
        if guard.haste.is_needed() {
            give_to_kernel_in_haste(shared, me, guard, file);
            return !is_known(shared, file);
        }
        give_to_kernel_while(shared, me, file, true, |begun| {
            let is_awaited = || locked(&guard.waiting).iter().any(|who| who.file == file);
            match guard.relieves {
                true => begun.elapsed() < STILL_MAX,
                // Others get their turn where nothing goes on.
                false if is_awaited() => !lane_of(guard, shared, file).turn.stands_still(),
                false => is_in_time(guard, self.lane, begun, STILL_MAX),
            }
        });
        let stays = is_known(shared, file);
        if stays {
            // Outsiders that are let in all the same are looked for.
            self.opened.insert(file);
        }
        !stays
    }

    /// A writer of the session's is between the device's length and the file's for moments: so nothing is believed that is seen
    /// once.
    fn look_at_changes(&mut self, shared: &Arc<Shared>, me: Me<'_>, guard: &Guard) {
        self.changed.retain(|&file, since| {
            if !is_managed(shared, file) {
                return false;
            }
            match is_changed_outside(shared, guard, file) {
                None => *since = None,
                Some(false) => return false,
                Some(true) => {
                    let since = since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= LOOKS_MIN {
                        give_to_kernel(shared, me, guard, file);
                    }
                }
            }
            true
        });
    }

    /// Watches what is not watched: files that an earlier keeper has left. Outsiders may have come in between.
    fn tend(&mut self, shared: &Arc<Shared>, me: Me<'_>, guard: &Guard) {
        for (file, device) in shared.open_devices() {
            let entry = shared.arena.file_unchecked(file);
            let leased = entry.flags.load(Ordering::Acquire) & LEASED != 0;
            if leased || guard.is_watched(entry.numbers()) || !is_managed(shared, file) {
                continue;
            }
            if !self.has(entry.numbers()) {
                self.leave(guard, entry.numbers(), file);
                continue;
            }
            let watched = device.descriptors().map(|(_, fd)| guard.watch(fd));
            if watched == Some(false) {
                give_to_kernel(shared, me, guard, file);
            }
            self.opened.insert(file);
        }
        if self.lane == 0 {
            guard.tidy(shared);
        }
    }

    /// A file of another lane is its worker's to see to; the first lane's sees that it is.
    fn leave(&self, guard: &Guard, inode: (u64, u64), file: FileId) {
        if self.lane == 0 {
            guard.ask(inode, file, OPENED);
        }
    }

    /// Files that an opener may have come to while the guard did not answer, and may be on its way to still.
    fn look_for_the_missed(&mut self, shared: &Shared, guard: &Guard) {
        if self.lane == 0 && guard.missed.swap(false, Relaxed) {
            self.missed = Some(Instant::now());
        }
        if let Some(since) = self.missed {
            for (file, _) in shared.open_devices() {
                let inode = shared.arena.file_unchecked(file).numbers();
                match self.has(inode) {
                    true => _ = self.opened.insert(file),
                    false => self.leave(guard, inode, file),
                }
            }
            self.missed = (since.elapsed() < TEND_EVERY).then_some(since);
        }
    }

    fn look_for_outsiders(&mut self, shared: &Arc<Shared>, me: Me<'_>, guard: &Guard) {
        let inode = |file: FileId| shared.arena.file_unchecked(file).numbers();
        let opened = self.opened.drain().filter(|&file| is_managed(shared, file));
        let files: HashMap<_, _> = opened.map(|file| (inode(file), file)).collect();
        if files.is_empty() {
            return;
        }
        let wanted = files.keys().copied().collect();
        for used in who::used_outside(&wanted, guard.arena) {
            let file = files[&used];
            give_to_kernel(shared, me, guard, file);
            if is_managed(shared, file) {
                self.opened.insert(file);
            }
        }
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= every)
}

fn core_of(shared: &Arc<Shared>, file: FileId) -> Option<Core> {
    Some(Core {
        shared: Arc::clone(shared),
        id: file,
        device: shared.device(file)?,
    })
}

/// Whether somebody else than the session has changed the device file since the session last did. `None`: it is being changed by
/// the session, so that nothing can be told yet.
fn is_changed_outside(shared: &Shared, guard: &Guard, file: FileId) -> Option<bool> {
    const UNFINISHED: u32 = CLOSING | LEASED | TRUNCATING | EXCEEDING;
    let entry = shared.arena.file_unchecked(file);
    let device = shared.device(file)?;
    let changes = entry.changes.load(Ordering::Acquire);
    if entry.flags.load(Ordering::Acquire) & UNFINISHED != 0 {
        return None;
    }
    let [len, mtime_ns, _] = entry.witness(shared.arena.counts().threads)?;
    let owes = entry.owed_pages.load(Ordering::Acquire) != 0;
    let size = entry.size.load(Ordering::Acquire);
    let reaches = entry.disk_end.load(Ordering::Acquire) >= size;
    let seen = device.stat().ok()?;
    // Our own last change may have been seen together with somebody's; a length tells all the same.
    let length_is_ours =
        seen.len == len && seen.len <= size && (owes || !reaches || seen.len == size);
    // Which programs can have it open is known where outsiders wait; programs set times.
    let same = length_is_ours && (guard.holds() || seen.mtime_ns == mtime_ns);
    (entry.changes.load(Ordering::Acquire) == changes).then_some(!same)
}

/// As [`core_of`]. Where the guard is short of numbers for descriptors no other description of the file is opened: the guard would have to hear of
/// that, and those that wait for this very file may have all numbers that it has for those that come.
fn core_to_write(shared: &Arc<Shared>, gate: Option<&Group>, file: FileId) -> Option<Core> {
    let core = core_of(shared, file)?;
    if gate.is_some_and(Group::is_short) {
        core.device.open_no_more();
    }
    Some(core)
}

fn settled(core: &Core, me: Me<'_>) -> bool {
    let seen = AtomicU32::new(errors::sequence(core.entry()));
    settle::settle(core, me, Durability::Written, &seen).is_ok()
}

/// As [`settled`], as far as that goes: what another thread has in hand, or in flight, is not waited for: that one may be stopped.
fn written(core: &Core, me: Me<'_>) -> bool {
    if core.entry().owed_pages.load(Ordering::Acquire) != 0 {
        let outcome = core.shared.flush(me, core.id, &core.device, UNSHARED);
        return outcome.errno.is_none();
    }
    // A thread that is alone on it gives it its length.
    core.entry().lacks_length() && stop_file(me, core.id).is_none() || settled(core, me)
}

fn flush(shared: &Arc<Shared>, me: Me<'_>, guard: &Guard, file: FileId) {
    if shared.arena.file_unchecked(file).owes()
        && let Some(core) = core_to_write(shared, guard.gate.as_ref(), file)
    {
        // A thread that waits for the worker meanwhile sees that it gets on.
        let lane = lane_of(guard, shared, file);
        let _turn = lane.turn.take(me, file);
        settled(&core, me);
    }
}

/// Whether what nobody waits for may go on. It is tried again.
fn is_in_time(guard: &Guard, lane: u64, begun: Instant, most: Duration) -> bool {
    let passed = begun.elapsed();
    passed < TRY_MIN || passed < most && !guard.has_waiting_at(lane)
}

fn lane_of(guard: &Guard, shared: &Shared, file: FileId) -> Arc<Lane> {
    let (device, _) = shared.arena.file_unchecked(file).numbers();
    guard.lanes.of(device)
}

/// As [`give_to_kernel_while`], where nobody waits for it.
pub(super) fn give_to_kernel(shared: &Arc<Shared>, me: Me<'_>, guard: &Guard, file: FileId) {
    let (device, _) = shared.arena.file_unchecked(file).numbers();
    give_to_kernel_while(shared, me, file, false, |begun| {
        is_in_time(guard, key_of(device), begun, PATIENCE)
    });
}

/// As [`give_to_kernel_while`], until then.
pub fn give_to_kernel_until(shared: &Arc<Shared>, me: Me<'_>, file: FileId, end: Instant) {
    give_to_kernel_while(shared, me, file, true, |_| Instant::now() < end);
}

/// As [`give_to_kernel_while`], while the keeper is stopped: where it has anything of the file in hand it is left alone.
pub fn give_to_kernel_in_haste(shared: &Arc<Shared>, me: Me<'_>, guard: &Guard, file: FileId) {
    guard.haste.try_one(|most| {
        let begun = Instant::now();
        let in_time = || begun.elapsed() < most;
        let mut tries = (0..REST_TRIES).take_while(|_| in_time());
        if tries.any(|_| settle::is_at_rest(me, file)) {
            give_to_kernel_while(shared, me, file, true, |_| in_time());
        }
        !is_known(shared, file)
    });
}

/// The last changes of a file that owes nothing. A program that has it open already may be appending: the cut would take that off, and the time of that would be
/// ours. Where nobody is made to wait there is no telling whether somebody has.
fn finish(core: &Core, me: Me<'_>, guard: Option<&Guard>, is_awaited: bool) {
    let holds = guard.is_some_and(|guard| guard.level() == HOLDS);
    let inode = core.entry().numbers();
    // An outsider that has waited for long enough may be let in at any time.
    let is_awaited = || {
        let is_in = |guard: &Guard| locked(&guard.early).contains(&inode);
        is_awaited && !guard.is_some_and(is_in)
    };
    if !holds {
        return;
    }
    settle::trim(core, me, |_| is_awaited());
    if is_awaited() && !core.entry().owes() {
        // A close has left it to the keeper.
        closing::give_time_back(&core.shared, me, core.id, &core.device, true);
    }
}

/// What cannot be written stays owed, and the file the session's; it is tried again, and told, as ever. Tries for as long as it is `wanted`,
/// by what is said of when it has begun. `is_awaited`: an outsider waits for it, and has not opened the file yet.
fn give_to_kernel_while(
    shared: &Arc<Shared>,
    me: Me<'_>,
    file: FileId,
    is_awaited: bool,
    wanted: impl Fn(Instant) -> bool,
) {
    let entry = shared.arena.file_unchecked(file);
    let begun = Instant::now();
    let guard = guard_of(shared);
    let gate = guard.as_ref().and_then(|guard| guard.gate.as_ref());
    let is_hasty = guard.as_ref().is_some_and(|guard| guard.haste.is_needed());
    let [lease, writers] = match is_hasty {
        true => HASTY_PATIENCE,
        false => [RELIEF_PATIENCE, WRITERS_PATIENCE],
    };
    let lane = guard.as_ref().map(|guard| lane_of(guard, shared, file));
    let turn = lane.as_ref().map(|lane| lane.turn.take(me, file));
    while is_known(shared, file) && wanted(begun) {
        if shared.keeps.load(Relaxed) && entry.flags.load(Ordering::Acquire) & LEASED != 0 {
            // The thread that writes it for its closer is about to do so, and gives it the time of its close: two at once would get in each other's
            // way.
            entry.flags.fetch_or(HURRY, Ordering::AcqRel);
            shared.wake_keeper();
            me.wait(64);
            continue;
        }
        if entry.owes() {
            match shared.keeps.load(Relaxed) {
                true => adopt(shared, |id, _| id == file),
                // It has no descriptors from programs.
                false => adopt_owed_file(shared, file, Some(lease)),
            }
            let Some(core) = core_to_write(shared, gate, file) else {
                if shared.lies_in_a_lane(file) {
                    shared.take_from_its_lane(file, || gate?.lend());
                    me.wait(64);
                    continue;
                }
                return;
            };
            if !written(&core, me)
                || begun.elapsed() > writers
                    && settle::to_kernel_while_written(&core, me, given::OUTSIDER, UNSHARED)
            {
                return;
            }
        }
        if let Some(core) = core_of(shared, file) {
            finish(&core, me, guard.as_deref(), is_awaited);
        }
        // Each try to be alone on the file may take seconds.
        if shared.keeps.load(Relaxed) && !wanted(begun) {
            return;
        }
        if settle::to_kernel_if_flushed(me, file, given::OUTSIDER) {
            return;
        }
        if let Some(turn) = turn.as_ref().filter(|_| !is_hasty)
            && begun.elapsed() > writers
            && entry.owes()
            && wanted(begun)
        {
            turn.look_who_has_it(me, file);
        }
        me.wait(64);
    }
}
