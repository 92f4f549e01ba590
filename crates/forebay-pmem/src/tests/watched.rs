//! Simulated memory that counts what is read, and does something when bytes have been copied, or when a record of the log becomes durable: then a commit
//! has its own lock, and nobody the state's.

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
}

impl Watched {
    pub fn new(inside: Arc<Simulated>) -> Arc<Self> {
        Arc::new(Self {
            inside,
            read: AtomicU64::new(0),
            at_sync: Mutex::new(None),
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

    /// Does something when bytes of a file have been copied.
    pub fn at_copy(&self, work: Work) {
        *self.next() = Some((For::Data, work));
    }

    fn come_to(&self, purpose: For) {
        let work = self.next().take_if(|(at, _)| *at == purpose);
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
        self.inside.write(at, bytes);
    }

    fn stream(&self, at: u64, bytes: &[u8], purpose: For) {
        self.inside.stream(at, bytes, purpose);
    }

    fn flush(&self, at: u64, length: u64, purpose: For) {
        self.inside.flush(at, length, purpose);
    }

    fn fence(&self, purpose: For) {
        if purpose == For::Data {
            self.come_to(purpose);
        }
        self.inside.fence(purpose);
    }

    fn sync(&self, purpose: For) -> Result<()> {
        self.come_to(purpose);
        self.inside.sync(purpose)
    }
}
