//! The guard: programs outside the session that open a managed file, or change it (`docs/decisions/0016-coherence.md`).
//!
//! ```text
//!     outsider            guard's thread                    guard's worker
//!     open(file) waits -> is it a member? let in
//!                         is the file managed? no: let in
//!                         else: asks the worker          -> flush, give the file to the kernel
//!     open returns      <----------------------------------- let in
//! ```
//!
//! A file system without a block device has a worker of its own, since a process may serve it and be stopped (`lanes`).
//!
//! That is `strict`. For `notify` the guard hears of openings and changes afterwards, and the worker does the same once it
//! has found an outsider. Whatever goes wrong here lets outsiders in: they may see old bytes then, and nobody hangs.
//!
//! The guard's thread opens no file of anybody's and waits for no lock that is held over more than a few calls: the keeper's
//! own openings, and members', wait for it. If it does not answer a copy of the process does ([`stand_in`]), which knows nothing. It starts a guard
//! that stands in until a keeper answers, where the process has one ([`relief`]), and else lets everybody in.

mod arrivals;
mod freezers;
mod haste;
mod hearing;
mod lanes;
mod library;
mod members;
mod mend;
mod pace;
mod standing;
#[cfg(all(test, feature = "sim", not(feature = "shuttle")))]
mod tests;
mod who;

pub use haste::EACH_MAX;
pub use pace::STILL_MAX;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::{Coherence, Config};
use crate::device::DeviceFile;
use crate::error::{Error, SessionFault};
use crate::ids::FileId;
use crate::keeper::relief;
use crate::member::guard::{Guarding, HEARS, HOLDS, NONE};
use crate::member::presence::keeper_process;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::superblock::Superblock;
use crate::sync::Ordering;
use crate::sys::fanotify::Group;
use crate::sys::inotify::{self, Watcher};
use crate::sys::stand_in::{self, StandIn};
use crate::sys::{liveness, priority, socket, stat};

/// How long the guard's thread waits for events.
const TICK: Duration = Duration::from_millis(50);
/// How often the guard hears of what has happened: our own flushing is among it.
const HEAR_EVERY: Duration = Duration::from_millis(20);
/// How long the guard's thread waits where those that wait are let in within milliseconds.
const HASTE: Duration = Duration::from_millis(5);
/// How long it takes at most until an opener that has been let in shows in `/proc`; its call may cut the file first.
const LINGER: Duration = Duration::from_secs(5);
/// How long a file whose mark was taken away for a lease is not marked again: the guard would wait for the lease.
const LEASE_MIN: Duration = Duration::from_secs(5);
/// How long a watch stays for which there is no file in the session's table yet.
const WATCH_MIN: Duration = Duration::from_secs(2);

/// What the worker is to see to, of one file.
const SETTLE: u32 = 1;
const CHANGED: u32 = 2;
const OPENED: u32 = 4;

/// A keeper's guard.
pub struct Guard {
    /// Those that open; `None`: nobody waits.
    gate: Option<Group>,
    /// What has happened.
    bell: Watcher,
    watched: Mutex<Watched>,
    waiting: Mutex<Vec<Waiting>>,
    /// Files to which an outsider that had waited for long enough has been let in, though they are not the kernel's yet.
    early: Mutex<HashSet<(u64, u64)>>,
    /// Files that somebody from outside came to, and when last.
    arrived: Mutex<HashMap<(u64, u64), Instant>>,
    /// Files that members have opened while nobody used them, since when, or when they lost their marks.
    unused: Mutex<HashMap<(u64, u64), Instant>>,
    lanes: lanes::Lanes,
    ended: AtomicBool,
    standing: standing::Standing,
    /// Somebody has been let in of whom the guard does not know.
    missed: AtomicBool,
    /// The arena's file, which every member has mapped: device and inode.
    arena: (u64, u64),
    /// It stands in for a keeper's, in a process that keeps nothing ([`crate::keeper::relief`]).
    relieves: bool,
    /// While the other keeper is only stopped.
    pub(super) haste: haste::Haste,
}

#[derive(Default)]
struct Watched {
    by_watch: HashMap<i32, (u64, u64)>,
    by_inode: HashMap<(u64, u64), (i32, Instant)>,
    /// Files whose marks were taken away, and when: a lease is about to be taken.
    forgotten: HashMap<(u64, u64), Instant>,
    /// Files that nobody outside the session has open: a lease has told, and they have been marked since. As long as this process has the file open, so
    /// that the mark stays and the number is no other file's.
    alone: HashSet<(u64, u64)>,
}

/// An outsider that waits.
struct Waiting {
    event: arrivals::Told,
    file: FileId,
    inode: (u64, u64),
    since: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of what these hold is one insert or remove.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guard that the configuration asks for, as far as it can be had; `None`: none.
///
/// # Errors
/// [`Error::Session`] where it must be one that cannot be had, with the remedy.
pub fn begin(shared: &Shared) -> Result<Option<Guard>, Error> {
    let config: &Config = &shared.config;
    let wants = config.coherence;
    if config.heap_backed || matches!(wants, Coherence::Interval | Coherence::Close) {
        return Ok(None);
    }
    let refused = |what: &str, why: std::io::Error| {
        SessionFault::Unavailable.error(format!(
            "the coherence {what} cannot be had ({why}); `forebay doctor` says why, and auto takes the strongest there is"
        ))
    };
    let gate = match (wants, Group::new()) {
        (Coherence::Notify, _) | (Coherence::Auto, Err(_)) => None,
        (_, Ok(group)) => Some(group),
        (_, Err(why)) => return Err(refused("strict", why)),
    };
    let bell = match (wants, Watcher::new()) {
        (_, Ok(bell)) => bell,
        (Coherence::Auto, Err(_)) => return Ok(None),
        (_, Err(why)) => return Err(refused("notify", why)),
    };
    Guard::over(&shared.arena, gate, bell).map(Some)
}

/// The session's programs are to know of this process's guard: it keeps.
pub fn announce(shared: &Shared) {
    let guard = guard_of(shared);
    let superblock = shared.arena.superblock();
    let listener = guard.as_ref().and_then(|guard| guard.gate.as_ref());
    let number = listener.map_or(0, |gate| gate.as_fd().as_raw_fd() as u32 + 1);
    superblock.listener.store(number, Ordering::Release);
    let level = guard.map_or(NONE, |guard| guard.level());
    superblock.guard.store(level, Ordering::Release);
}

/// Nobody watches any more.
pub fn recant(superblock: &Superblock) {
    superblock.guard.store(NONE, Ordering::Release);
    superblock.listener.store(0, Ordering::Release);
}

/// Whether the session's keeper has a file open, or is stopped, so that descriptors may be on their way to it.
pub fn keeper_may_have(arena: &Arena, inode: (u64, u64)) -> bool {
    let process = keeper_process(arena);
    process != 0 && (liveness::is_stopped(process) || who::has_open(process, inode))
}

/// The guard of the keeper that this process hosts.
pub fn guard_of(shared: &Shared) -> Option<Arc<Guard>> {
    let guard: Arc<dyn Any + Send + Sync> = shared.guard()?;
    guard.downcast().ok()
}

impl Guarding for Guard {
    fn watch(&self, file: BorrowedFd<'_>) -> bool {
        Guard::watch(self, file)
    }

    fn watch_taken(&self, id: FileId, file: BorrowedFd<'_>) {
        Guard::watch_taken(self, id, file);
    }

    fn is_used_outside(&self, file: BorrowedFd<'_>) -> bool {
        Guard::is_used_outside(self, file)
    }

    fn is_alone(&self, inode: (u64, u64)) -> bool {
        Guard::is_alone(self, inode)
    }

    fn is_not_alone(&self, inode: (u64, u64)) {
        Guard::is_not_alone(self, inode);
    }

    fn holds_up(&self, inode: (u64, u64)) -> bool {
        Guard::holds_up(self, inode)
    }
}

impl Guard {
    fn over(arena: &Arena, gate: Option<Group>, bell: Watcher) -> Result<Self, Error> {
        let failed = |e| Error::device("stat", &e);
        let file = arena.mapping().file();
        let file = file.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        let seen = stat::stat(file.as_fd()).map_err(failed)?;
        Ok(Guard {
            gate,
            bell,
            watched: Mutex::default(),
            waiting: Mutex::default(),
            early: Mutex::default(),
            arrived: Mutex::default(),
            unused: Mutex::default(),
            lanes: lanes::Lanes::default(),
            ended: AtomicBool::new(false),
            standing: standing::Standing::default(),
            missed: AtomicBool::new(false),
            arena: (seen.device, seen.inode),
            relieves: false,
            haste: haste::Haste::default(),
        })
    }

    /// One that takes over those that come to a listener.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn for_relief(arena: &Arena, gate: Group) -> Result<Self, Error> {
        let bell = Watcher::new().map_err(|e| Error::device("watch files", &e))?;
        let guard = Self::over(arena, Some(gate), bell)?;
        Ok(Guard {
            relieves: true,
            ..guard
        })
    }

    /// Whether this process sees to outsiders: it keeps, or stands in for the one that does.
    fn is_at_work(&self, shared: &Shared) -> bool {
        self.relieves || shared.keeps.load(Relaxed)
    }

    /// Whether somebody waits.
    pub(super) fn has_waiting(&self) -> bool {
        !locked(&self.waiting).is_empty()
    }

    /// ... for a file of this lane.
    fn has_waiting_at(&self, lane: u64) -> bool {
        let is_there = |who: &Waiting| lanes::key_of(who.inode.0) == lane;
        locked(&self.waiting).iter().any(is_there)
    }

    /// What the session's programs are to know of it: [`NONE`] would be none.
    pub fn level(&self) -> u32 {
        if self.holds() { HOLDS } else { HEARS }
    }

    fn holds(&self) -> bool {
        self.gate.is_some()
    }

    /// From now on the guard sees who opens the file. `false`: it does not.
    pub fn watch(&self, file: BorrowedFd<'_>) -> bool {
        self.see_to(file).0
    }

    /// Whether it sees who opens the file, and whether it has heard of changes all along.
    fn see_to(&self, file: BorrowedFd<'_>) -> (bool, bool) {
        let bits = match self.holds() {
            true => inotify::CHANGED,
            false => inotify::CHANGED | inotify::OPENED,
        };
        let gated = self
            .gate
            .as_ref()
            .is_none_or(|gate| gate.watch(file).is_ok());
        // Best effort: a file that may not be read, or more watches than there may be.
        if let (Ok(watch), Ok(inode)) = (self.bell.watch(file, bits), stat::inode(file)) {
            let mut watched = locked(&self.watched);
            let before = watched.by_watch.insert(watch, inode);
            watched.by_inode.insert(inode, (watch, Instant::now()));
            watched.forgotten.remove(&inode);
            return (gated, before == Some(inode));
        }
        (gated, false)
    }

    /// The keeper has a file's descriptors from here on. A member may have marked the file by itself ([`fanotify::watch_by`]), so that it has not been
    /// heard of changes.
    pub fn watch_taken(&self, id: FileId, file: BorrowedFd<'_>) {
        // The kernel gives each watch a number of its own: one that is known is this very file's.
        if !self.see_to(file).1 {
            self.ask_for(file, id, CHANGED);
        }
    }

    /// A file is watched after all, which was not for a moment.
    pub fn watch_again(&self, id: FileId, file: BorrowedFd<'_>) {
        self.watch(file);
        // The guard looks for those that have come meanwhile.
        self.ask_for(file, id, OPENED);
    }

    /// Nobody is to wait for this file any more, until it is watched again: if it stays managed, soon.
    pub fn forget(&self, file: BorrowedFd<'_>) {
        if let Some(gate) = &self.gate {
            let _ = gate.forget(file);
        }
        if let Ok(inode) = stat::inode(file) {
            let mut watched = locked(&self.watched);
            watched.by_inode.remove(&inode);
            watched.alone.remove(&inode);
            watched.forgotten.insert(inode, Instant::now());
        }
    }

    /// Whether a program outside the session has the file open, or mapped. Takes milliseconds.
    pub fn is_used_outside(&self, file: BorrowedFd<'_>) -> bool {
        let Ok(inode) = stat::inode(file) else {
            return false;
        };
        if self.is_alone(inode) {
            return false;
        }
        let wanted = HashSet::from([inode]);
        !who::used_outside(&wanted, self.arena).is_empty()
    }

    /// Something is to be done for a file that has these numbers.
    fn ask(&self, (device, _): (u64, u64), file: FileId, what: u32) {
        self.lanes.ask(device, file, what);
    }

    fn ask_for(&self, opened: BorrowedFd<'_>, file: FileId, what: u32) {
        if let Ok(inode) = stat::inode(opened) {
            self.ask(inode, file, what);
        }
    }

    /// Ends the guard's thread, after all others of the keeper's: until then their openings wait for it.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
        self.lanes.all().iter().for_each(|lane| lane.wake());
    }

    /// Holds up programs that open a file from here on, in the place of a lease, which is given up. `false`: somebody outside has come already, or nobody
    /// would be held up; the lease stays, if there was one.
    pub(super) fn take_over(&self, device: &dyn DeviceFile, inode: (u64, u64)) -> bool {
        let Some((_, file)) = device.descriptors().filter(|_| self.holds()) else {
            return false;
        };
        // Its last reader has left it: it is marked, and has no lease, since it was taken over before.
        if self.is_alone(inode) {
            return true;
        }
        // One that is under a lease has no mark. This one may have had it all the time, in the lease's place.
        let was_marked = locked(&self.watched).by_inode.contains_key(&inode);
        if !self.watch(file) {
            return false;
        }
        // First: the guard's thread takes it back as soon as it reads of somebody.
        locked(&self.watched).alone.insert(inode);
        // Taken once more: the kernel refuses where anybody else has the file open, or has begun to open it before the mark was there. Openers
        // from here on wait for the guard. Not for longer than this with both: a guard that reads of somebody waits for the lease.
        if device.lease().is_err() {
            self.is_not_alone(inode);
            if !was_marked {
                self.forget(file);
            }
            return false;
        }
        device.give_lease_up();
        true
    }

    /// Whether the guard has taken a file over from a lease, and nobody outside has come since.
    pub fn is_alone(&self, inode: (u64, u64)) -> bool {
        locked(&self.watched).alone.contains(&inode)
    }

    /// Somebody outside may have it open from here on, or nobody looks any more.
    pub fn is_not_alone(&self, inode: (u64, u64)) {
        locked(&self.watched).alone.remove(&inode);
    }

    fn is_watched(&self, inode: (u64, u64)) -> bool {
        if self.relieves {
            // By the keeper that it stands in for; the marks are that one's.
            return true;
        }
        let watched = locked(&self.watched);
        watched.by_inode.contains_key(&inode) || watched.forgotten.contains_key(&inode)
    }

    /// Before a lease is taken: somebody stands in for this keeper, if that can be.
    pub fn await_stand_in(&self) {
        if !self.relieves {
            self.standing.want();
        }
    }

    /// Where it cannot be had, those that open wait for a keeper that is stopped.
    fn begin_stand_in(&self, shared: &Shared) -> Option<StandIn> {
        let listener = self.gate.as_ref().map(Group::as_fd);
        let relief = listener.and_then(|fd| {
            let arena = shared.arena_path.as_deref()?;
            relief::of(arena, fd.as_raw_fd())
        });
        let stand_in = stand_in::begin(listener, relief.as_ref()).ok()?;
        freezers::leave(stand_in.process());
        Some(stand_in)
    }

    /// Until the keeper ends.
    fn stand(&self, shared: &Arc<Shared>) {
        let (mut stand_in, mut has_tried) = (None, self.relieves);
        let mut heard = Instant::now();
        let mut members = members::Members::new(shared.config.trusts_members);
        let mut paces = pace::Paces::default();
        let mut answers = 0;
        // Those that work at files open some, and wait for this thread.
        while !self.ended.load(Relaxed) || !self.lanes.have_ended() {
            if !has_tried && (self.gate.is_some() || self.standing.is_wanted()) {
                has_tried = true;
                stand_in = self.begin_stand_in(shared);
                self.standing.settle();
            }
            if let Some(stand_in) = &stand_in {
                stand_in.note_round();
                if stand_in.answers() != answers {
                    answers = stand_in.answers();
                    self.missed.store(true, Relaxed);
                }
            }
            let hears = heard.elapsed() >= HEAR_EVERY;
            let mut sources: Vec<BorrowedFd<'_>> = Vec::with_capacity(2);
            sources.extend(self.gate.as_ref().map(Group::as_fd));
            if hears || sources.is_empty() {
                sources.push(self.bell.as_fd());
            }
            let pause = match hears {
                _ if self.haste.is_needed() && self.has_waiting() => HASTE,
                true => TICK,
                false => HEAR_EVERY,
            };
            let _ = socket::wait_readable(&sources, pause.as_millis() as i32);
            self.look_at_arrivals(shared, &mut members);
            if hears {
                heard = Instant::now();
                self.hear(shared);
                self.forget_arrivals(shared.arena.superblock(), LINGER);
            }
            self.begin_lanes(shared);
            paces.look(self, shared);
            self.admit_early(shared, |who| {
                paces.is_over(who) || self.haste.is_over(who.since.elapsed())
            });
        }
    }
}

/// The guard's thread, until [`Guard::end`].
pub fn run(shared: &Arc<Shared>, _stop: &AtomicBool) {
    let Some(guard) = guard_of(shared) else {
        return;
    };
    priority::be_prompt();
    let stood = catch_unwind(AssertUnwindSafe(|| guard.stand(shared)));
    if stood.is_err() {
        // Nobody waits for a guard that is not there.
        recant(shared.arena.superblock());
        shared.set_guard(None);
    }
    guard.admit(shared, |_| true);
    guard.forget_arrivals(shared.arena.superblock(), Duration::ZERO);
}

/// The guard's worker.
pub fn work(shared: &Arc<Shared>, stop: &AtomicBool) {
    let Some(guard) = guard_of(shared) else {
        return;
    };
    let Ok(me) = shared.me() else { return };
    if guard.relieves {
        guard.see_to_the_left(shared, me);
    }
    let first = guard.lanes.of(0);
    first.serve(shared, me, &guard, |_| stop.load(Relaxed));
}
