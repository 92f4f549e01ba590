//! Requests in flight: three queues behind one trait.
//!
//! - [`uring`]: io_uring, for the keeper (feature `keeper`)
//! - [`threads`]: a few threads that call the file, where io_uring is refused
//! - [`inline`]: carries requests out as they are submitted, in an order that a seed decides: tests,
//!   and the last resort where not even threads can be had
//!
//! A request's memory must stay mapped until its [`Done`] is handed back or the queue is dropped:
//! dropping a queue waits for everything in flight.

pub mod inline;
pub mod threads;
#[cfg(feature = "keeper")]
pub mod uring;

pub use inline::Inline;
pub use threads::Threads;
#[cfg(feature = "keeper")]
pub use uring::Uring;

use super::{Done, Queue, Request, RequestKind};
use std::io;

/// Threads of a fallback queue at most: enough to keep a device busy with requests of 256 KiB.
const THREADS_MAX: usize = 8;

/// The best queue to be had with up to `depth` requests at the device at once (more may be submitted
/// and wait their turn): io_uring, else threads, else inline. [`Queue::name`] tells which it is.
pub fn best_queue(depth: usize) -> Box<dyn Queue> {
    #[cfg(feature = "keeper")]
    if let Ok(queue) = Uring::new(depth) {
        return Box::new(queue);
    }
    match Threads::new(depth.clamp(1, THREADS_MAX)) {
        Ok(queue) => Box::new(queue),
        Err(_) => Box::new(Inline::new()),
    }
}

/// io_uring, or why not.
pub fn uring_queue(depth: usize) -> io::Result<Box<dyn Queue>> {
    #[cfg(feature = "keeper")]
    return Ok(Box::new(Uring::new(depth)?));
    #[cfg(not(feature = "keeper"))]
    {
        let _ = depth;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Threads, or why not.
pub fn threads_queue(depth: usize) -> io::Result<Box<dyn Queue>> {
    Ok(Box::new(Threads::new(depth.clamp(1, THREADS_MAX))?))
}

/// The kinds of queues, by [`Queue::name`], as the superblock numbers them from 1.
pub const NAMES: [&str; 3] = ["io_uring", "threads", "inline"];

/// Carries a request out by calling the file.
fn perform(request: &Request) -> io::Result<usize> {
    let Request {
        file,
        kind,
        pieces,
        offset,
        ..
    } = request;
    match kind {
        RequestKind::Write => file.write_direct(pieces, *offset),
        RequestKind::WriteBuffered => file.write_buffered(pieces, *offset),
        RequestKind::Read => read_pieces(request),
    }
}

/// Reads piece after piece, up to the first that comes back short. An error counts only if nothing
/// was read before it.
fn read_pieces(request: &Request) -> io::Result<usize> {
    let mut done = 0;
    for piece in &request.pieces {
        let read = match request
            .file
            .read_direct(*piece, request.offset + done as u64)
        {
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
            Ok(read) => read,
        };
        done += read;
        if read < piece.len {
            break;
        }
    }
    Ok(done)
}

/// The request's end, after carrying it out here and now.
fn perform_to_done(request: Request) -> Done {
    Done {
        token: request.token,
        result: perform(&request),
    }
}

#[cfg(test)]
mod tests;
