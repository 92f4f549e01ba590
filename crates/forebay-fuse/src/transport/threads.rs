//! The threads that answer a mount's requests.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::Answers;
use super::device::{Device, serve};
use super::follow::Follow;
use super::init::{Agreed, agree};
use super::ring::{Ring, Rings, not_granted, refused};
use crate::wire::init;

/// Threads that serve requests: a few may wait for devices while others go on.
const THREADS_MIN: usize = 8;
const THREADS_MAX: usize = 32;

/// All of them, until the mount ends. Whoever drops this leaves them to it.
pub(crate) struct Threads(JoinHandle<io::Result<()>>);

impl Threads {
    /// Agrees with the kernel on what is `wanted` of it, and begins to answer. Threads that read requests `follow` whoever asks; those of rings stay where they are.
    ///
    /// # Errors
    /// Why there will be no mount.
    pub(crate) fn begin<A: Answers>(
        device: OwnedFd,
        wanted: u64,
        ring: Ring,
        follow: Option<Follow>,
        answers: Arc<A>,
    ) -> io::Result<Self> {
        let device = Arc::new(Device::new(device));
        let ready = ring.ready()?;
        let of_rings = ready.as_ref().map_or(0, |_| init::OVER_IO_URING);
        let agreed = agree(&device, wanted | of_rings)?;
        let (rings, follow) = match ready {
            Some(ready) if agreed.flags & init::OVER_IO_URING != 0 => {
                let (rings, taken) = ready.serve(&device, &answers);
                taken.map_err(refused)?;
                (rings, None)
            }
            Some(_) => {
                ring.or_without::<()>(Err(not_granted()))?;
                (Rings::default(), follow)
            }
            None => (Rings::default(), follow),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = (cores * 2).clamp(THREADS_MIN, THREADS_MAX);
        let all = move || {
            let ended = serve_by_threads(count, &device, agreed, &*answers, follow.as_ref());
            answers.ended();
            worse(ended, rings.join())
        };
        named().spawn(all).map(Threads)
    }

    /// Whether nothing is served any more.
    pub(crate) fn are_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until nothing is served any more. What answered is gone then.
    ///
    /// # Errors
    /// Why it has ended, where not because the mount has.
    pub(crate) fn join(self) -> io::Result<()> {
        joined(self.0.join())
    }
}

fn named() -> thread::Builder {
    thread::Builder::new().name("forebay-mount".into())
}

/// This thread is one of them.
fn serve_by_threads(
    count: usize,
    device: &Arc<Device>,
    agreed: Agreed,
    answers: &impl Answers,
    follow: Option<&Follow>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let one = |device: Arc<Device>| move || serve(&device, agreed.max_write, answers, follow);
        let mut others = Vec::new();
        for _ in 1..count {
            // Each has a queue of its own, where this user may open the device.
            let cloned = device.cloned().map(Arc::new);
            let own = cloned.unwrap_or_else(|_| Arc::clone(device));
            match named().spawn_scoped(scope, one(own)) {
                Ok(thread) => others.push(thread),
                // Those that there are do its part.
                Err(_) => break,
            }
        }
        let mut ended = one(Arc::clone(device))();
        for thread in others {
            ended = worse(ended, joined(thread.join()));
        }
        ended
    })
}

/// Whether a request was under way when the mount ended, and nothing else is wrong.
pub(crate) fn is_aborted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNABORTED)
}

/// How two threads have ended together: what is really wrong is told first.
pub(super) fn worse(one: io::Result<()>, other: io::Result<()>) -> io::Result<()> {
    match (one, other) {
        (Err(error), Err(other)) if is_aborted(&error) => Err(other),
        (one, other) => one.and(other),
    }
}

pub(super) fn joined(ended: thread::Result<io::Result<()>>) -> io::Result<()> {
    ended.unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_really_wrong_is_told_first() {
        let numbers = [0, libc::ECONNABORTED, libc::EBADF];
        let ended = |errno| match errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
        for (at, one) in numbers.into_iter().enumerate() {
            for (beside, other) in numbers.into_iter().enumerate() {
                let told = worse(ended(one), ended(other)).err();
                let told = told.and_then(|error| error.raw_os_error());
                assert_eq!(told.unwrap_or(0), numbers[at.max(beside)]);
            }
        }
    }
}
