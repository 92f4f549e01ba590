//! Requests and answers by io_uring: what the kernel calls FUSE over io_uring (Linux 6.14, `/sys/module/fuse/parameters/enable_uring`).
//!
//! The kernel has a queue for each processor, and puts a request into the one of the processor that asks. Each queue has some [places](place), each with a ring
//! and a thread that is kept on that processor and takes the place's [turns](turns). One call gives an answer and waits for the next request, and
//! whoever asked is not sent elsewhere. FORGET and INTERRUPT come by `/dev/fuse` all the same.
//!
//! All threads begin before the kernel is told that there are rings: it sends no request before each queue has a place.

mod place;
mod turns;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::{fs, io};

use forebay::sys::{priority, scheduling};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Answers;
use super::device::Device;
use super::threads::{joined, worse};
use crate::contents::REQUEST_BYTES_MAX;
pub(super) use place::Answer;
use turns::Turns;

/// Places of a processor: so many requests that come from it may wait for something, and the next is answered nevertheless.
const PLACES_MIN: usize = 2;
const PLACES_MAX: usize = 8;
/// About so many places there are together, where there are many processors.
const PLACES_ALL: usize = 256;
/// What the kernel asks for beside the heads: the most that it puts into one request, or into one answer.
const PAYLOAD_BYTES: usize = REQUEST_BYTES_MAX as usize;
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Whether requests come by rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ring {
    /// Where the kernel has them and this process is a group of its own to the scheduler: there they are faster.
    #[default]
    Auto,
    /// Or the mount fails.
    Always,
    /// By `/dev/fuse` alone.
    Never,
}

/// Why there are no rings, and what to do about it.
const NOT_THERE: &str = "this kernel sends no requests by io_uring (Linux 6.14 and later do); leave out `--ring always`";
const IS_OFF: &str = "this kernel's requests by io_uring are switched off; as root: `echo Y > /sys/module/fuse/parameters/enable_uring`";

impl Ring {
    /// All of them.
    pub const ALL: [Ring; 3] = [Ring::Auto, Ring::Always, Ring::Never];

    /// What users call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Ring::Auto => "auto",
            Ring::Always => "always",
            Ring::Never => "never",
        }
    }

    /// Whether requests may come by rings where this process is a group of its own.
    pub(crate) fn may_be_had(self) -> bool {
        self != Ring::Never && is_switched_on() == Some(true)
    }

    /// Places for the requests of a mount; `None` where they come by `/dev/fuse` alone.
    ///
    /// # Errors
    /// Why there are none, if they were asked for.
    pub(crate) fn ready<A: Answers>(self) -> io::Result<Option<Ready<A>>> {
        let is_wanted = match self {
            Ring::Auto => scheduling::is_own_group(),
            Ring::Always => true,
            Ring::Never => false,
        };
        if !is_wanted {
            return Ok(None);
        }
        let ready = match is_switched_on() {
            Some(true) => Ready::new(),
            Some(false) => Err(unsupported(IS_OFF)),
            None => Err(unsupported(NOT_THERE)),
        };
        self.or_without(ready)
    }

    /// What to do where there are no rings: without, unless they were asked for.
    pub(crate) fn or_without<T>(self, rings: io::Result<T>) -> io::Result<Option<T>> {
        match (rings, self) {
            (Ok(rings), _) => Ok(Some(rings)),
            (Err(why), Ring::Always) => Err(refused(why)),
            (Err(_), _) => Ok(None),
        }
    }
}

/// Says of an error what was not to be had.
pub(super) fn refused(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("no requests by io_uring: {why}"))
}

/// The kernel has them, and does not give them to this mount.
pub(super) fn not_granted() -> io::Error {
    unsupported(NOT_THERE)
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Whether the kernel sends requests by io_uring; `None` if it never does.
fn is_switched_on() -> Option<bool> {
    let text = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").ok()?;
    Some(text.trim() == "Y")
}

/// What a thread hears when the kernel has granted rings.
struct Begun<A> {
    device: Arc<Device>,
    answers: Arc<A>,
}

/// Places that the kernel has not been given yet. Dropped, they are gone.
pub(crate) struct Ready<A> {
    rings: Rings,
    begins: Vec<SyncSender<Begun<A>>>,
    told: Receiver<io::Result<()>>,
}

impl<A: Answers> Ready<A> {
    /// Makes places for all processors.
    fn new() -> io::Result<Self> {
        let online = processors("online")?;
        let possible = match &processors("possible")?[..] {
            [all] if *all.start() == 0 && usize::from(*all.end()) < CpuSet::MAX_CPU => all.clone(),
            // The number of a processor is that of its queue, and there are as many of these as processors.
            _ => return Err(unsupported("numbers of processors with gaps")),
        };
        let count = online
            .iter()
            .map(|part| part.clone().count())
            .sum::<usize>();
        let places = (PLACES_ALL / count.max(1)).clamp(PLACES_MIN, PLACES_MAX);
        let is_idle = scheduling::is_own_group();
        let (tells, told) = channel();
        let mut ready = Ready {
            rings: Rings::default(),
            begins: Vec::new(),
            told,
        };
        for processor in possible {
            // One that is not online may be plugged in later.
            let is_online = online.iter().any(|part| part.contains(&processor));
            for _ in 0..if is_online { places } else { 1 } {
                let (begins, begun) = sync_channel(1);
                let post = Post {
                    processor,
                    is_idle,
                    tells: tells.clone(),
                    begun,
                };
                let thread = Builder::new().name(format!("ring-{processor}"));
                let thread = thread.spawn(move || post.stand())?;
                ready.rings.threads.push(thread);
                ready.begins.push(begins);
            }
        }
        ready.await_all()?;
        Ok(ready)
    }

    /// Gives the places to the kernel, which has granted rings. If one of them is not taken, why: the mount is not to be used then. Where it was not FUSE that has
    /// refused the place (a security module, memory), requests wait for it for ever.
    pub(crate) fn serve(self, device: &Arc<Device>, answers: &Arc<A>) -> (Rings, io::Result<()>) {
        for begins in &self.begins {
            let begun = Begun {
                device: Arc::clone(device),
                answers: Arc::clone(answers),
            };
            // Each thread is waiting for that.
            let _ = begins.send(begun);
        }
        let taken = self.await_all();
        (self.rings, taken)
    }

    /// What each thread says.
    fn await_all(&self) -> io::Result<()> {
        let mut all = Ok(());
        for told in self.told.iter().take(self.begins.len()) {
            all = all.and(told);
        }
        all
    }
}

/// Rings that are served until the mount ends.
#[derive(Default)]
pub(crate) struct Rings {
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Rings {
    /// Waits for the end.
    ///
    /// # Errors
    /// Why they have ended, where not because the mount has.
    pub(crate) fn join(self) -> io::Result<()> {
        let mut ended = Ok(());
        for thread in self.threads {
            ended = worse(ended, joined(thread.join()));
        }
        ended
    }
}

/// What one thread is for.
struct Post<A> {
    processor: u16,
    is_idle: bool,
    tells: Sender<io::Result<()>>,
    begun: Receiver<Begun<A>>,
}

impl<A: Answers> Post<A> {
    fn stand(self) -> io::Result<()> {
        let mut only = CpuSet::new();
        only.set(usize::from(self.processor));
        // A processor that is not there now, or not for this process: the thread answers from another one.
        let _ = sched_setaffinity(None, &only);
        if self.is_idle {
            // Else the scheduler takes who is woken here for one that had better run elsewhere, since this processor is busy, answering.
            priority::make_idle();
        }
        let mut turns = match Turns::new(self.processor, PAYLOAD_BYTES) {
            Ok(turns) => turns,
            Err(error) => {
                let _ = self.tells.send(Err(error));
                return Ok(());
            }
        };
        let _ = self.tells.send(Ok(()));
        // Otherwise the kernel has not granted it.
        let Ok(Begun { device, answers }) = self.begun.recv() else {
            return Ok(());
        };
        let registered = turns.register(&device);
        let is_registered = registered.is_ok();
        let _ = self.tells.send(registered);
        match is_registered {
            true => turns.take(&device, &*answers),
            false => Ok(()),
        }
    }
}

/// The processors of a list of the kernel's.
fn processors(list: &str) -> io::Result<Vec<RangeInclusive<u16>>> {
    let text = fs::read_to_string(format!("{PROCESSORS}/{list}"))?;
    parsed(&text).ok_or(io::ErrorKind::InvalidData.into())
}

/// `0-3,5`: parts, one after the other.
fn parsed(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').map(part).collect()
}

#[cfg(test)]
mod tests;
