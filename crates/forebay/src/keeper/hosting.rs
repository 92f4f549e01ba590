//! Starting and ending the threads of a process that hosts a keeper.

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use std::thread::JoinHandle;

use super::run::{house, stage_one, stage_two};
use crate::error::Error;
use crate::keeper::engine::{flusher, number_of, prefetcher};
use crate::keeper::{ahead, outsiders, ready};
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::futex;

/// The threads of a process that hosts a keeper. Dropping stops them.
pub struct Hosting {
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What a keeper's thread does until it is told to stop.
type Body = Box<dyn FnOnce(&Arc<Shared>, &AtomicBool) + Send>;

impl Hosting {
    /// Starts the threads. An I/O engine that was asked for and cannot be had is an error; only `auto` takes what there is.
    pub fn start(shared: &Arc<Shared>) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let (fill, write) = (flusher(shared)?, flusher(shared)?);
        let reader = prefetcher(shared)?;
        let io_engine = number_of(write.queue_name());
        let guard = outsiders::begin(shared)?;
        shared.set_guard(guard.map(Arc::new));
        let bodies: [(&str, Body); 7] = [
            (
                "forebay-house",
                Box::new(move |s, stop| house(s, stop, io_engine)),
            ),
            ("forebay-memory", Box::new(ready::keep_ready)),
            ("forebay-fill", Box::new(|s, stop| stage_one(s, stop, fill))),
            (
                "forebay-write",
                Box::new(|s, stop| stage_two(s, stop, write)),
            ),
            (
                "forebay-read",
                Box::new(|s, stop| ahead::run(s, stop, reader)),
            ),
            ("forebay-mend", Box::new(outsiders::work)),
            // The last: it ends after all others.
            ("forebay-guard", Box::new(outsiders::run)),
        ];
        for (name, body) in bodies {
            let (shared, stop) = (Arc::clone(shared), Arc::clone(&stop));
            let thread = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || body(&shared, &stop))
                .map_err(|error| {
                    Error::Session(format!("cannot start a keeper thread: {error}"))
                })?;
            threads.push(thread);
        }
        Ok(Hosting {
            stop,
            shared: Arc::clone(shared),
            threads,
        })
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let asked = &self.shared.arena.superblock().ahead_work;
        for work in [self.shared.work(), asked] {
            work.fetch_add(1, Ordering::AcqRel);
            futex::wake(work);
        }
        self.shared.arena.superblock().wake_ready();
        let guard_thread = self.threads.pop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(guard) = self.shared.guard() {
            guard.end();
        }
        let _ = guard_thread.map(JoinHandle::join);
        self.shared.set_guard(None);
    }
}
