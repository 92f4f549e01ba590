//! Those that come to open a watched file, from the moment at which the kernel tells of them until they have certainly come in.
//!
//! An outsider on its way in is in no process's table of descriptors, so a look for outsiders there misses it. So each is counted
//! ([`reached`]) before it is looked whether the file is managed, once more before it is let in, and for a while after that: a program
//! that begins to manage the file meanwhile sees the count, and asks the kernel whether there is another description than its own.

use std::collections::hash_map::Entry;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::lanes::key_of;
use super::pace::STILL_MAX;
use super::{Guard, OPENED, SETTLE, Waiting, locked, members, mend};
use crate::device::DeviceFile;
use crate::ids::FileId;
use crate::member::gone::{Place, unless_gone};
use crate::member::reached;
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::superblock::{ARRIVALS, Arrival, Superblock};
use crate::memory::threads::{self, Me};
use crate::sync::Ordering;
use crate::sys::fanotify::{self, Group};
use crate::sys::signals::is_own_thread;
use crate::sys::stand_in::NUMBERS_MIN;
use crate::sys::stat;

/// How often a file is given to the kernel again that somebody has begun to manage meanwhile.
const SETTLE_TRIES: u32 = 8;
/// How long a file that members open has been unused before it loses its mark, and how seldom it loses it.
const UNMARK_EVERY: Duration = Duration::from_millis(20);
/// Files of which that is remembered at most.
const UNUSED_MAX: usize = 4096;
/// How long is waited where there is no descriptor for those that come.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(2);

/// Somebody of whom the guard has been told.
pub(super) struct Told {
    pub event: fanotify::Event,
    /// Device and inode.
    pub inode: Option<(u64, u64)>,
    /// Its place among [`Superblock::arrivals`]; `None`: all were taken.
    pub record: Option<usize>,
}

impl Told {
    /// An opener that was killed while it waited waits no more.
    pub fn let_in(self, gate: &Group, superblock: &Superblock) {
        let _ = gate.admit(self.event);
        // Last: one that were not answered would wait for good. A second answer is nobody's.
        if let Some(record) = self.record {
            superblock.arrivals[record]
                .inode
                .store(0, Ordering::Release);
        }
    }
}

impl Guard {
    /// Somebody from outside comes to a file, or may do so unseen.
    pub fn note_arrival(&self, superblock: &Superblock, inode: (u64, u64)) {
        let hash = reached::hash(inode.0, inode.1);
        reached::begin(superblock, hash);
        match locked(&self.arrived).entry(inode) {
            Entry::Vacant(entry) => {
                entry.insert(Instant::now());
            }
            Entry::Occupied(mut entry) => {
                entry.insert(Instant::now());
                // The earlier one counts for both.
                reached::end(superblock, hash);
            }
        }
        // Last: a thread that finds the file not alone finds out why ([`Guard::holds_up`]).
        self.is_not_alone(inode);
    }

    /// Whether somebody from outside has come to a file and is not in yet, as far as is known: the worker gives the file to the kernel first. One
    /// that has been let in may count for a while.
    pub fn holds_up(&self, inode: (u64, u64)) -> bool {
        let has_come = || {
            locked(&self.arrived).contains_key(&inode)
                || locked(&self.waiting).iter().any(|who| who.inode == inode)
        };
        self.holds() && has_come() && !locked(&self.early).contains(&inode)
    }

    /// Those that came so long ago have come in.
    pub(super) fn forget_arrivals(&self, superblock: &Superblock, after: Duration) {
        locked(&self.arrived).retain(|&(device, inode), at| {
            let stays = at.elapsed() < after;
            if !stays {
                reached::end(superblock, reached::hash(device, inode));
            }
            stays
        });
    }

    /// Looks at those that have come to open a file.
    pub(super) fn look_at_arrivals(&self, shared: &Arc<Shared>, members: &mut members::Members) {
        let Some(gate) = &self.gate else { return };
        let is_full = !self.relieves && locked(&self.waiting).len() + fanotify::EVENTS > ARRIVALS;
        if is_full || self.haste.leaves() {
            // Others wait in the kernel.
            return;
        }
        // Those that wait already are let in by means of these, perhaps.
        let left = if self.has_waiting() {
            fanotify::KEPT
        } else {
            0
        };
        let arrivals = gate.waiting(left);
        if arrivals.is_err() {
            // An opener's descriptor comes free once it is let in.
            members.forget_threads();
            std::thread::sleep(NO_ROOM_PAUSE);
        }
        for event in self.told(shared.arena.superblock(), arrivals.unwrap_or_default()) {
            let is_member = members.open(&shared.arena, event.event.thread, self.arena);
            if is_member && let Some(inode) = event.inode {
                self.unmark_unused(shared, gate, &event.event, inode);
            }
            let inode = event.inode.filter(|_| !is_member);
            let inode = match self.is_at_work(shared) {
                true => inode,
                false => {
                    self.note_missed(shared, inode);
                    None
                }
            };
            match inode.and_then(|inode| {
                let file = self.in_the_way(shared, gate, &event.event, inode)?;
                Some((inode, file))
            }) {
                None => {
                    self.let_in(shared, event);
                }
                Some((inode, file)) => {
                    let since = Instant::now();
                    locked(&self.waiting).push(Waiting {
                        event,
                        file,
                        inode,
                        since,
                    });
                    self.ask(inode, file, SETTLE);
                }
            }
        }
    }

    /// A member comes to open a file that nobody has open, and that owes nothing: nobody need wait for it any more. The process that
    /// manages it next marks it again. Not twice within [`UNMARK_EVERY`]: several members may come at once, and one of them be about to
    /// manage it.
    fn unmark_unused(
        &self,
        shared: &Shared,
        gate: &Group,
        event: &fanotify::Event,
        inode: (u64, u64),
    ) {
        let (arena, thread) = (&shared.arena, event.thread);
        let is_known =
            || table::find(arena, inode.0, inode.1).filter(|&file| mend::is_known(shared, file));
        let is_engines =
            || is_own_thread(thread) || threads::opens_for_the_engine(arena, thread as u32);
        if self.relieves || !self.is_at_work(shared) || is_known().is_some() || is_engines() {
            return;
        }
        if !self.may_unmark(inode) {
            return;
        }
        // Before the count, as for outsiders.
        let _ = gate.forget(event.file.as_fd());
        self.is_not_alone(inode);
        reached::unmarked(arena.superblock(), reached::hash(inode.0, inode.1));
        if let Some(file) = is_known() {
            let _ = gate.watch(event.file.as_fd());
            self.ask(inode, file, OPENED);
        }
    }

    /// Whether a file has been seen unused for long enough, and has not lost its mark just now.
    fn may_unmark(&self, inode: (u64, u64)) -> bool {
        let mut unused = locked(&self.unused);
        if unused.len() >= UNUSED_MAX {
            unused.retain(|_, since| since.elapsed() < UNMARK_EVERY);
        }
        let has_room = unused.len() < UNUSED_MAX;
        match unused.entry(inode) {
            Entry::Occupied(mut since) if since.get().elapsed() >= UNMARK_EVERY => {
                since.insert(Instant::now());
                true
            }
            Entry::Vacant(entry) if has_room => {
                entry.insert(Instant::now());
                false
            }
            Entry::Occupied(_) | Entry::Vacant(_) => false,
        }
    }

    /// An opener is let in though nobody sees to it: this process is about to keep, and programs mark files by it already.
    fn note_missed(&self, shared: &Shared, inode: Option<(u64, u64)>) {
        if let Some(inode) = inode {
            self.note_arrival(shared.arena.superblock(), inode);
            self.missed.store(true, Relaxed);
        }
    }

    /// Takes note of those of whom the kernel has just told, all of them before anything else is done: should this process be stopped now,
    /// or killed, another one sees to them.
    fn told(&self, superblock: &Superblock, events: Vec<fanotify::Event>) -> Vec<Told> {
        let mut records = superblock.arrivals.iter().enumerate();
        let told = events.into_iter().map(|event| {
            let inode = stat::inode(event.file.as_fd()).ok();
            let free = |(_, record): &(usize, &Arrival)| record.inode.load(Ordering::Acquire) == 0;
            // Numbers of a guard that stands in are of another process.
            let record = inode.filter(|_| !self.relieves).and_then(|(_, inode)| {
                let (at, record) = records.find(free)?;
                let number = event.number() as u64;
                record.number.store(number, Ordering::Relaxed);
                record.inode.store(inode, Ordering::Release);
                Some(at)
            });
            Told {
                event,
                inode,
                record,
            }
        });
        told.collect()
    }

    /// Sees to those that another guard has been told of, which does not answer any more: their files are given to the kernel, and they are
    /// let in.
    pub fn see_to_the_left(&self, shared: &Arc<Shared>, me: Me<'_>) {
        let begun = Instant::now();
        let files = |inode: u64| {
            let files = (0..shared.arena.counts().files).map(FileId);
            files.filter(move |file| {
                mend::is_known(shared, *file)
                    && shared.arena.file_unchecked(*file).numbers().1 == inode
            })
        };
        let records = shared.arena.superblock().arrivals.iter();
        let taken = records.map(|record| (record, record.inode.load(Ordering::Acquire)));
        let mut taken: Vec<_> = taken.filter(|(_, inode)| *inode != 0).collect();
        // Last those whose file system may be served by a process that is stopped.
        let may_be_served = |file| key_of(shared.arena.file_unchecked(file).numbers().0) != 0;
        taken.sort_by_cached_key(|(_, inode)| files(*inode).any(may_be_served));
        for (record, inode) in taken {
            for file in files(inode) {
                match self.haste.is_needed() {
                    true => mend::give_to_kernel_in_haste(shared, me, self, file),
                    false => mend::give_to_kernel_until(shared, me, file, begun + STILL_MAX),
                }
            }
            self.let_in_the_left(record, inode);
        }
    }

    /// Lets all of them in: they have waited for long enough. Also those whom the other guard had just been told of, and had not taken note of.
    pub fn let_in_all_left(&self, superblock: &Superblock) {
        for record in &superblock.arrivals {
            let inode = record.inode.load(Ordering::Acquire);
            if inode != 0 {
                self.let_in_the_left(record, inode);
            }
        }
        if let Some(gate) = &self.gate {
            // A number that nobody has is an error and no more.
            (0..NUMBERS_MIN).for_each(|number| _ = gate.admit_number(number));
        }
    }

    /// The one that the record was of when it had this inode: a keeper that goes on lets that opener in too, and another one has the record next.
    fn let_in_the_left(&self, record: &Arrival, inode: u64) {
        let number = record.number.load(Ordering::Relaxed);
        let word = &record.inode;
        let taken = word.compare_exchange(inode, 0, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok()
            && let Some(gate) = &self.gate
        {
            // A number that nobody has is an error and no more.
            let _ = gate.admit_number(number as i32);
        }
    }

    /// The file that an outsider is about to open, and must not see as it is.
    fn in_the_way(
        &self,
        shared: &Shared,
        gate: &Group,
        event: &fanotify::Event,
        (device, inode): (u64, u64),
    ) -> Option<FileId> {
        let known = || {
            table::find(&shared.arena, device, inode)
                .filter(|&file| mend::is_known(shared, file))
                .and_then(|file| unless_gone(&shared.arena, file, Place::of(event.file.as_fd())))
        };
        // The process that manages it next marks it again. Before the count: a program that is just about to manage the file may
        // lose its mark here, and then it sees the count.
        let unused = !self.is_watched((device, inode)) && known().is_none();
        if unused {
            let _ = gate.forget(event.file.as_fd());
        }
        self.note_arrival(shared.arena.superblock(), (device, inode));
        let known = known();
        if unused && known.is_some() {
            let _ = gate.watch(event.file.as_fd());
        }
        known
    }

    /// Lets those in for whom `may`.
    pub(super) fn admit(&self, shared: &Arc<Shared>, may: impl Fn(&Waiting) -> bool) {
        for who in self.admitted(may) {
            self.let_in(shared, who.event);
        }
    }

    fn admitted(&self, may: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        // At once: another thread looks through those that wait meanwhile.
        let mut waiting = locked(&self.waiting);
        waiting.extract_if(.., |who| may(who)).collect()
    }

    /// As [`Guard::admit`], of those that have waited for long enough: a thread that is at such a file still knows that somebody is in.
    pub(super) fn admit_early(&self, shared: &Arc<Shared>, may: impl Fn(&Waiting) -> bool) {
        for who in self.admitted(may) {
            locked(&self.early).insert(who.inode);
            self.let_in(shared, who.event);
        }
    }

    /// Lets in those that wait for a file, once the worker has given it to the kernel.
    pub(super) fn admit_to(
        &self,
        shared: &Arc<Shared>,
        me: Me<'_>,
        file: FileId,
        mending: &mut mend::Mending,
    ) {
        let inodes: Vec<_> = {
            let waiting = locked(&self.waiting);
            let theirs = waiting.iter().filter(|who| who.file == file);
            theirs.map(|who| who.inode).collect()
        };
        for _ in 0..SETTLE_TRIES {
            // First: a program that is about to manage the file sees it, or is seen.
            for &inode in &inodes {
                self.note_arrival(shared.arena.superblock(), inode);
            }
            if !mending.settles(shared, me, self, file) {
                break;
            }
        }
        self.admit(shared, |who| who.file == file);
        if !mend::is_known(shared, file) {
            let inode = shared.arena.file_unchecked(file).numbers();
            locked(&self.early).remove(&inode);
        }
    }

    /// Gives a lease up: those that have waited for it come in without being seen.
    pub fn end_lease(&self, shared: &Shared, device: &dyn DeviceFile, inode: (u64, u64)) {
        self.note_arrival(shared.arena.superblock(), inode);
        device.give_lease_up();
    }
}
