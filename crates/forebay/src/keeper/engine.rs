//! How a keeper speaks to devices: the I/O engine that the configuration names.

use crate::config::IoEngine;
use crate::device::queue::NAMES;
use crate::device::{Queue, best_queue, threads_queue, uring_queue};
use crate::error::{Error, SessionFault};
use crate::flush::Flusher;
use crate::keeper::ahead::{Prefetcher, REQUESTS_MAX};
use crate::member::shared::Shared;

/// A flusher that has as many requests under way at once as the configuration says.
pub fn flusher(shared: &Shared) -> Result<Flusher, Error> {
    let depth = shared.config.queue_depth as usize;
    Ok(Flusher::new(queue(shared, depth)?, depth).of_keeper())
}

/// The threads that read ahead, likewise.
pub fn prefetcher(shared: &Shared) -> Result<Prefetcher, Error> {
    let depth = (shared.config.queue_depth as usize).min(REQUESTS_MAX);
    Ok(Prefetcher::new(queue(shared, depth)?, depth))
}

/// An I/O engine that was asked for and cannot be had is an error; only `auto` takes what there is.
fn queue(shared: &Shared, depth: usize) -> Result<Box<dyn Queue>, Error> {
    let (name, queue) = match shared.config.io_engine {
        IoEngine::Auto => ("auto", Ok(best_queue(depth))),
        IoEngine::IoUring => ("io_uring", uring_queue(depth)),
        IoEngine::Threads => ("threads", threads_queue(depth)),
    };
    queue.map_err(|why| {
        SessionFault::Unavailable.error(format!(
            "the I/O engine {name} cannot be had ({why}); set io_engine to auto, which takes the best there is"
        ))
    })
}

/// The number by which the superblock knows a queue's name.
pub fn number_of(name: &str) -> u32 {
    let index = NAMES.iter().position(|known| *known == name);
    index.map_or(0, |index| index as u32 + 1)
}
