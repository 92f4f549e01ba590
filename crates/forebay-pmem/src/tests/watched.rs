//! Simulated memory that counts what is read, and does something when a record of the log becomes durable: then a commit has
//! its own lock, and nobody the state's. Or before any other of a commit's steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sim::Simulated;
use crate::errno::Result;
use crate::medium::{Durability, For, Medium};

type Work = Box<dyn FnOnce() + Send>;

pub struct Watched {
    inside: Arc<Simulated>,
    read: AtomicU64,
    at_sync: Mutex<Option<(For, Work)>>,
    /// Stores, flushes, fences and syncs so far.
    steps: AtomicU64,
    at_step: Mutex<Option<(u64, Work)>>,
}

impl Watched {
    pub fn new(inside: Arc<Simulated>) -> Arc<Self> {
        Arc::new(Self {
            inside,
            read: AtomicU64::new(0),
            at_sync: Mutex::new(None),
            steps: AtomicU64::new(0),
            at_step: Mutex::new(None),
        })
    }

    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Does something at the next commit; nothing: what has not been done is not done any more.
    pub fn at_commit(&self, work: Option<Work>) {
        *self.next() = work.map(|work| (For::Log, work));
    }

    /// Does something when the log is about to begin anew: what a commit has freed is free, but metadata.
    pub fn at_truncation(&self, work: Work) {
        *self.next() = Some((For::Tail, work));
    }

    /// Does something before the step that comes after so many others.
    pub fn before_step(&self, number: u64, work: Work) {
        let step = self.steps.load(Ordering::Relaxed) + number;
        *self.step() = Some((step, work));
    }

    /// What was to be done before a step, and has not been: there were fewer.
    pub fn take_work(&self) -> Option<Work> {
        self.step().take().map(|(_, work)| work)
    }

    fn step(&self) -> MutexGuard<'_, Option<(u64, Work)>> {
        self.at_step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps_on(&self) {
        let now = self.steps.fetch_add(1, Ordering::Relaxed);
        let work = self.step().take_if(|(at, _)| *at == now);
        if let Some((_, work)) = work {
            work();
        }
    }

    fn next(&self) -> MutexGuard<'_, Option<(For, Work)>> {
        self.at_sync.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for Watched {
    fn length(&self) -> u64 {
        self.inside.length()
    }

    fn durability(&self) -> Durability {
        self.inside.durability()
    }

    fn address(&self, at: u64, length: usize, writable: bool) -> *mut u8 {
        self.inside.address(at, length, writable)
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.inside.read(at, into);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.steps_on();
        self.inside.write(at, bytes);
    }

    fn stream(&self, at: u64, bytes: &[u8], purpose: For) {
        self.steps_on();
        self.inside.stream(at, bytes, purpose);
    }

    fn flush(&self, at: u64, length: u64, purpose: For) {
        self.steps_on();
        self.inside.flush(at, length, purpose);
    }

    fn fence(&self, purpose: For) {
        self.steps_on();
        self.inside.fence(purpose);
    }

    fn sync(&self, purpose: For) -> Result<()> {
        self.steps_on();
        let work = self.next().take_if(|(at, _)| *at == purpose);
        if let Some((_, work)) = work {
            work();
        }
        self.inside.sync(purpose)
    }
}
