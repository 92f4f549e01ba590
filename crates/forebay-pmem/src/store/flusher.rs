//! The flusher: a thread that commits every so often, so that what was done is durable soon without a sync.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Inner;
use crate::errno::OpenError;

/// The thread, or none where nobody asked for one.
pub(super) struct Flusher {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Flusher {
    pub(super) fn start(inner: &Arc<Inner>, interval: Option<Duration>) -> Result<Self, OpenError> {
        let Some(interval) = interval else {
            return Ok(Self { thread: None });
        };
        let (stop, stopped) = channel();
        let inner = Arc::downgrade(inner);
        let thread = std::thread::Builder::new().name("pmem-flush".to_string());
        let thread = thread.spawn(move || run(&inner, &stopped, interval));
        let thread =
            thread.map_err(|error| OpenError::system("no thread can be started", error))?;
        Ok(Self {
            thread: Some((stop, thread)),
        })
    }

    pub(super) fn stop(self) {
        if let Some((stop, thread)) = self.thread {
            drop(stop);
            // A panic of the thread's has been printed, and the store can only be read since.
            let _ = thread.join();
        }
    }
}

fn run(inner: &Weak<Inner>, stopped: &Receiver<()>, interval: Duration) {
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let Some(inner) = inner.upgrade() else { return };
        if inner.is_dirty() {
            // An error is kept: whoever syncs next gets it.
            let _ = inner.commit(false);
        }
    }
}
