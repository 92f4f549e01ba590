//! A queue of a few threads that call the file: for hosts where io_uring is refused.
//!
//! Requests go to the threads over one channel and come back over another. Dropping the queue closes
//! the first, and the threads end when it is empty, so everything submitted is carried out. A file
//! that panics (a simulated one does, on a misaligned request) panics again in the thread that polls.

use super::perform_to_done;
use crate::device::{Done, Queue, Request};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// See the module's documentation.
pub struct Threads {
    /// `None` only while dropping.
    requests: Option<Sender<Request>>,
    completions: Receiver<thread::Result<Done>>,
    workers: Vec<JoinHandle<()>>,
    in_flight: usize,
}

/// Threads need little: a request is a system call.
const STACK_BYTES: usize = 256 * 1024;

impl Threads {
    /// Starts up to `count` threads; fails only if not one can be started.
    pub fn new(count: usize) -> io::Result<Self> {
        assert!(count > 0, "a queue needs a thread");
        let (requests, to_do) = channel();
        let (finished, completions) = channel();
        let to_do = Arc::new(Mutex::new(to_do));
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            let (to_do, finished) = (Arc::clone(&to_do), finished.clone());
            let thread = thread::Builder::new()
                .name("forebay-io".into())
                .stack_size(STACK_BYTES);
            match thread.spawn(move || work(&to_do, &finished)) {
                Ok(worker) => workers.push(worker),
                Err(error) if workers.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Self {
            requests: Some(requests),
            completions,
            workers,
            in_flight: 0,
        })
    }

    fn take(&mut self, completion: thread::Result<Done>, done: &mut Vec<Done>) {
        self.in_flight -= 1;
        match completion {
            Ok(completion) => done.push(completion),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// Life of a thread: until the channel is closed and empty, or nobody wants the answers.
fn work(to_do: &Mutex<Receiver<Request>>, finished: &Sender<thread::Result<Done>>) {
    loop {
        // One thread waits in `recv` with the lock held, the others wait for the lock.
        let next = to_do.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(request) = next else { return };
        let done = catch_unwind(AssertUnwindSafe(|| perform_to_done(request)));
        // Without a receiver the queue is being dropped, and the rest is carried out all the same.
        let _ = finished.send(done);
    }
}

impl Queue for Threads {
    fn submit(&mut self, request: Request) {
        let requests = self.requests.as_ref().expect("set until dropped");
        requests.send(request).expect("threads outlive the queue");
        self.in_flight += 1;
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Done>) {
        if wait && self.in_flight > 0 {
            let completion = self.completions.recv().expect("threads outlive the queue");
            self.take(completion, done);
        }
        while let Ok(completion) = self.completions.try_recv() {
            self.take(completion, done);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        drop(self.requests.take());
        for worker in self.workers.drain(..) {
            // It catches the panics of files, and has no others.
            let _ = worker.join();
        }
    }
}
