//! Hosting a keeper: its threads in this process, or, in a simulation, its tasks.

#[cfg(all(test, feature = "sim"))]
mod tests;

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::error::{Error, SessionFault};
use crate::flush::Flusher;
use crate::keeper::ahead::{self, Prefetcher};
use crate::keeper::engine::{flusher, number_of, prefetcher};
use crate::keeper::outsiders::guard_of;
use crate::keeper::{limits, outsiders, ready, run};
use crate::member::shared::Shared;
use crate::sync::Ordering;
use crate::sys::futex;

/// The threads of a process that hosts a keeper. Dropping stops them.
pub struct Hosting {
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    /// The guard's, which ends after all others.
    guard: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// What a keeper's thread does until it is told to stop.
pub type Body = Box<dyn FnOnce(&Arc<Shared>, &AtomicBool) + Send>;

/// What the keeper's threads do, each with its name: among them one that writes back, and one that reads ahead.
pub fn bodies(write: Flusher, reader: Prefetcher) -> [(&'static str, Body); 4] {
    let io_engine = number_of(write.queue_name());
    [
        (
            "forebay-house",
            Box::new(move |s, stop| run::house(s, stop, io_engine)),
        ),
        ("forebay-memory", Box::new(ready::keep_ready)),
        (
            "forebay-write",
            Box::new(|s, stop| run::write_back(s, stop, write)),
        ),
        (
            "forebay-read",
            Box::new(|s, stop| ahead::run(s, stop, reader)),
        ),
    ]
}

/// What looks at others than the session, and keeps outsiders and session apart, beside the guard; a simulation has none of them.
fn guards() -> [(&'static str, Body); 2] {
    [
        ("forebay-limit", Box::new(limits::keep_away)),
        ("forebay-mend", Box::new(outsiders::work)),
    ]
}

/// Has a keeper's threads see that they are to stop.
pub fn wake_all(shared: &Shared) {
    let superblock = shared.arena.superblock();
    for work in [shared.work(), &superblock.ahead_work] {
        work.fetch_add(1, Ordering::AcqRel);
        futex::wake(work);
    }
    superblock.wake_ready();
}

impl Hosting {
    /// Starts the threads. An I/O engine that was asked for and cannot be had is an error; only `auto` takes what there is.
    pub fn start(shared: &Arc<Shared>) -> Result<Self, Error> {
        let bodies = bodies(flusher(shared)?, prefetcher(shared)?);
        let guard = outsiders::begin(shared)?;
        shared.set_guard(guard.map(|guard| Arc::new(guard) as _));
        // An error drops it, and with it what has begun. The house is last, which takes office: nobody relies on a keeper of which anything
        // is missing.
        let mut hosting = Hosting {
            stop: Arc::default(),
            shared: Arc::clone(shared),
            guard: None,
            threads: Vec::new(),
        };
        hosting.guard = Some(hosting.begin("forebay-guard", Box::new(outsiders::run))?);
        let [house, others @ ..] = bodies;
        for (name, body) in guards().into_iter().chain(others).chain([house]) {
            let thread = hosting.begin(name, body)?;
            hosting.threads.push(thread);
        }
        shared.hosts.store(true, Relaxed);
        Ok(hosting)
    }

    fn begin(&self, name: &str, body: Body) -> Result<JoinHandle<()>, Error> {
        #[cfg(all(test, feature = "sim"))]
        tests::refuse()?;
        let (shared, stop) = (Arc::clone(&self.shared), Arc::clone(&self.stop));
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || body(&shared, &stop));
        thread.map_err(|error| {
            SessionFault::Unavailable.error(format!("cannot start a keeper thread: {error}"))
        })
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.shared.hosts.store(false, Relaxed);
        self.stop.store(true, Relaxed);
        wake_all(&self.shared);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(guard) = guard_of(&self.shared) {
            guard.end();
        }
        let _ = self.guard.take().map(JoinHandle::join);
        self.shared.set_guard(None);
    }
}
