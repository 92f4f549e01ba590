//! Which threads see to files of which file system.
//!
//! A call on a file of a mount that a process serves lasts until that process answers, and nothing ends it before: it may be stopped. So a file
//! system without a block device has a lane: a worker, and a porter that lets in those that may come in, since the kernel may take
//! the inode's lock when the event's description is closed. All files of block devices are the first lane's, whose worker is the guard's own and
//! whose porter is the guard's thread.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::arrivals::Told;
use super::{Guard, SETTLE, TICK, guard_of, locked, mend, pace};
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::memory::threads::Me;
use crate::sys::priority;

/// How long a lane has nothing to do before its threads end.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Which lane files of a device number are of: 0 is the first.
pub(super) fn key_of(device: u64) -> u64 {
    if libc::major(device) == 0 { device } else { 0 }
}

/// Files of one file system, or of all block devices.
#[derive(Default)]
pub(super) struct Lane {
    pub key: u64,
    work: Mutex<HashMap<FileId, u32>>,
    woken: Condvar,
    pub turn: pace::Turn,
    /// To the porter, once there is one.
    porter: Mutex<Option<Sender<Told>>>,
    /// Its threads have begun, or cannot.
    has_begun: AtomicBool,
}

impl Lane {
    fn ask(&self, file: FileId, what: u32) {
        *locked(&self.work).entry(file).or_default() |= what;
        self.woken.notify_one();
    }

    pub fn wake(&self) {
        self.woken.notify_all();
    }

    /// Something to do, that first for which somebody has waited longest. Waits for a moment.
    fn next(&self, guard: &Guard) -> Option<(FileId, u32)> {
        let mut work = locked(&self.work);
        if work.is_empty() {
            let woken = self.woken.wait_timeout(work, TICK);
            work = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let settles = |file: &FileId| work.get(file).is_some_and(|what| what & SETTLE != 0);
        let urgent = {
            let waiting = locked(&guard.waiting);
            let mut files = waiting.iter().map(|who| who.file);
            files.find(settles)
        };
        let file = urgent.or_else(|| work.keys().next().copied())?;
        work.remove_entry(&file)
    }

    /// Does what is to be done, until it `is_over`: that is asked with how long there has been nothing.
    pub fn serve(
        &self,
        shared: &Arc<Shared>,
        me: Me<'_>,
        guard: &Guard,
        is_over: impl Fn(Duration) -> bool,
    ) {
        let mut mending = mend::Mending::of(self.key);
        let mut used = Instant::now();
        while !is_over(used.elapsed()) {
            let next = self.next(guard);
            if guard.is_at_work(shared) && !guard.haste.is_needed() {
                mending.go_on(shared, me, guard, next);
            } else {
                mending = mend::Mending::of(self.key);
            }
            if let Some((file, what)) = next
                && what & SETTLE != 0
            {
                guard.admit_to(shared, me, file, &mut mending);
            }
            if next.is_some() || !mending.is_done() {
                used = Instant::now();
            }
        }
    }
}

/// A guard's lanes, and their threads.
#[derive(Default)]
pub(super) struct Lanes {
    all: Mutex<Vec<Arc<Lane>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Lanes {
    pub fn all(&self) -> Vec<Arc<Lane>> {
        locked(&self.all).clone()
    }

    /// The lane of a device number.
    pub fn of(&self, device: u64) -> Arc<Lane> {
        let mut all = locked(&self.all);
        let key = key_of(device);
        if let Some(lane) = all.iter().find(|lane| lane.key == key) {
            return Arc::clone(lane);
        }
        let lane = Lane {
            key,
            ..Lane::default()
        };
        all.push(Arc::new(lane));
        Arc::clone(&all[all.len() - 1])
    }

    /// Something is to be done for a file, which is on this device.
    pub fn ask(&self, device: u64, file: FileId, what: u32) {
        loop {
            let lane = self.of(device);
            lane.ask(file, what);
            // It may have ended just before.
            if locked(&self.all).iter().any(|of| Arc::ptr_eq(of, &lane)) {
                return;
            }
        }
    }

    /// A lane ends, `if_idle` as far as nobody has asked anything of it. Its porter ends with it. What is asked of it from now on is asked of another one.
    fn end(&self, lane: &Arc<Lane>, if_idle: bool) -> bool {
        let mut all = locked(&self.all);
        let ends = !if_idle || locked(&lane.work).is_empty();
        if ends {
            all.retain(|of| !Arc::ptr_eq(of, lane));
            *locked(&lane.porter) = None;
        }
        ends
    }

    /// Whether the threads of all lanes have ended; they do once the guard has.
    pub fn have_ended(&self) -> bool {
        let mut threads = locked(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.is_empty()
    }
}

impl Guard {
    /// Begins the threads of lanes that have none, as far as this is the session's guard.
    pub(super) fn begin_lanes(&self, shared: &Arc<Shared>) {
        for lane in self.lanes.all() {
            self.begin_lane(shared, &lane);
        }
    }

    fn begin_lane(&self, shared: &Arc<Shared>, lane: &Arc<Lane>) {
        let guard = guard_of(shared).filter(|of| std::ptr::eq(&**of, self));
        let Some(guard) = guard.filter(|_| lane.key != 0) else {
            return;
        };
        if self.ended.load(Relaxed) || lane.has_begun.swap(true, Relaxed) {
            return;
        }
        let worker = {
            let (shared, guard, lane) = (Arc::clone(shared), Arc::clone(&guard), Arc::clone(lane));
            move || guard.work_at(&shared, &lane)
        };
        // Without it nobody sees to the files, and a program that waits for them is let in as where nothing goes on.
        if self.begin_thread("forebay-lane", worker).is_err() {
            return;
        }
        let (sender, receiver) = channel();
        let porter = {
            let (shared, guard) = (Arc::clone(shared), Arc::clone(&guard));
            move || guard.let_all_in(&shared, &receiver)
        };
        if self.begin_thread("forebay-porter", porter).is_ok() {
            *locked(&lane.porter) = Some(sender);
        }
    }

    fn begin_thread(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = Builder::new().name(name.into()).spawn(body)?;
        let mut threads = locked(&self.lanes.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    fn work_at(&self, shared: &Arc<Shared>, lane: &Arc<Lane>) {
        let has_ended = || self.ended.load(Relaxed);
        if let Ok(me) = shared.me() {
            lane.serve(shared, me, self, |idle| {
                has_ended() || idle > IDLE_MAX && self.lanes.end(lane, true)
            });
        }
        self.lanes.end(lane, false);
    }

    fn let_all_in(&self, shared: &Shared, those: &Receiver<Told>) {
        let Some(gate) = &self.gate else { return };
        priority::be_prompt();
        for who in those {
            who.let_in(gate, shared.arena.superblock());
        }
    }

    /// Lets somebody in, by the porter of the file's lane where it has one.
    pub(super) fn let_in(&self, shared: &Arc<Shared>, who: Told) {
        let Some(gate) = &self.gate else { return };
        let device = who.inode.map_or(0, |inode| inode.0);
        let porter = (key_of(device) != 0).then(|| {
            let lane = self.lanes.of(device);
            self.begin_lane(shared, &lane);
            locked(&lane.porter).clone()
        });
        let left = match porter.flatten() {
            Some(porter) => porter.send(who).err().map(|unsent| unsent.0),
            None => Some(who),
        };
        if let Some(who) = left {
            who.let_in(gate, shared.arena.superblock());
        }
    }
}
