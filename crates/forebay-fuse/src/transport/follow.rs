//! Threads that follow whoever asks: as long as requests come from one processor, they are answered there.
//!
//! To wake a thread on another processor, and to be woken from there, takes several times what most answers take. The threads that wait for requests therefore
//! stay on the processor that the last few requests came from. They are idle ones to the scheduler: it takes a processor for free on which only such
//! threads run, and so leaves whoever asks there when he is answered. Where requests come from several processors, the threads may run on all of them.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay::sys::liveness::words_of_stat;
use forebay::sys::{priority, scheduling};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Request;
use crate::wire::{self, opcode};

/// One request in so many is looked at: a look costs about as much as a request does.
const LOOK_EVERY: u32 = 32;
/// Somebody who reads so much goes on while the kernel asks for more than he wants: two processors have work then.
const READ_AHEAD_BYTES: u32 = 64 << 10;
/// What `/proc` says of a thread up to its processor: 52 numbers at most and a name.
const STAT_BYTES: usize = 1024;
/// Stands for all processors where one could be named.
const ANYWHERE: u16 = u16::MAX;

/// Where the threads of a mount answer.
pub(crate) struct Follow {
    requests: AtomicU32,
    /// Where the last four requests that were looked at came from, a number of 16 bits each.
    seen: AtomicU64,
    /// Where this process may run.
    all: CpuSet,
}

impl Follow {
    /// `None` where the threads, which the caller is about to start, would not be idle ones, or would have to wait for others than those that ask ([`scheduling`]).
    /// [`Options::prepare`](crate::mount::Options::prepare) makes the caller idle.
    pub(crate) fn begin() -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        // By ordinary threads the scheduler would take the processor on which somebody is answered for a busy one, and move him to another at nearly every call.
        (priority::is_idle() && scheduling::is_own_session()).then(|| Self::among(all))
    }

    fn among(all: CpuSet) -> Self {
        Follow {
            requests: AtomicU32::new(0),
            seen: AtomicU64::new(u64::MAX),
            all,
        }
    }

    /// What is to be learnt from a request once it is answered; `None` for most.
    fn whom(&self, request: &Request<'_>) -> Option<Whom> {
        let thread = request.header.pid;
        // The kernel asks on its own account, or for somebody who cannot be seen from here.
        if thread == 0 {
            return None;
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(LOOK_EVERY) {
            return None;
        }
        Some(if reads_ahead(request) {
            Whom::Anybody
        } else {
            Whom::Here(thread)
        })
    }

    /// Takes notice of where a request came from.
    fn saw(&self, processor: u16) {
        let next = |seen| Some(seen << u16::BITS | u64::from(processor));
        // It is a hint: which of two looks at once counts for the later one does not matter.
        let _ = self
            .seen
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// The processor to be on.
    fn place(&self) -> u16 {
        let seen = self.seen.load(Ordering::Relaxed);
        match seen.rotate_left(u16::BITS) == seen {
            true => seen as u16,
            false => ANYWHERE,
        }
    }
}

/// By whom a request may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    /// By somebody on the processor of this thread, which waits for the answer.
    Here(u32),
    Anybody,
}

fn reads_ahead(request: &Request<'_>) -> bool {
    let is_large = |read: wire::ReadIn| read.size >= READ_AHEAD_BYTES;
    request.header.opcode == opcode::READ
        && wire::ReadIn::parse(request.operation).is_some_and(is_large)
}

/// One of the threads.
pub(super) struct Follower<'a> {
    follow: Option<&'a Follow>,
    is_at: u16,
    /// What this thread was last allowed by itself; another mask is somebody else's wish.
    allowed: Option<CpuSet>,
    all: CpuSet,
    looks_at: Option<Whom>,
}

impl<'a> Follower<'a> {
    /// `None`: it stays where the scheduler puts it.
    pub(super) fn new(follow: Option<&'a Follow>) -> Self {
        Follower {
            follow,
            is_at: ANYWHERE,
            allowed: follow.map(|follow| follow.all),
            all: follow.map_or_else(CpuSet::new, |follow| follow.all),
            looks_at: None,
        }
    }

    /// A request has come.
    pub(super) fn hears(&mut self, request: &Request<'_>) {
        self.looks_at = self.follow.and_then(|follow| follow.whom(request));
    }

    /// It is answered, or will be.
    pub(super) fn moves(&mut self) {
        let Some(follow) = self.follow else {
            return;
        };
        match self.looks_at.take() {
            Some(Whom::Here(thread)) => {
                // Who cannot be looked at may be anywhere.
                follow.saw(processor_of(thread).unwrap_or(ANYWHERE));
            }
            Some(Whom::Anybody) => follow.saw(ANYWHERE),
            None => {}
        }
        let place = follow.place();
        if place != self.is_at {
            self.is_at = place;
            self.go(place);
        }
    }

    fn go(&mut self, place: u16) {
        // An administrator may have given the thread another mask meanwhile (`taskset`): this goes on within that one.
        let now = sched_getaffinity(None).ok();
        if let Some(now) = now.filter(|now| self.allowed.is_some_and(|allowed| allowed != *now)) {
            self.all = now;
        }
        let mut allowed = processors(&self.all, place);
        if sched_setaffinity(None, &allowed).is_err() {
            // The processor has gone, or may not be used any more.
            allowed = self.all;
            let _ = sched_setaffinity(None, &allowed);
        }
        self.allowed = sched_getaffinity(None).ok();
    }
}

/// The processors of `all` for a place.
fn processors(all: &CpuSet, place: u16) -> CpuSet {
    let mut one = CpuSet::new();
    let number = usize::from(place);
    if number >= CpuSet::MAX_CPU || !all.is_set(number) {
        return *all;
    }
    one.set(number);
    one
}

/// Where a thread runs, or ran last; `None`: that is not to be seen, or it is a real-time one, which leaves its processor to nobody.
fn processor_of(thread: u32) -> Option<u16> {
    // `/proc/THREAD/stat` adds up all threads of the process.
    let mut file = File::open(format!("/proc/{thread}/task/{thread}/stat")).ok()?;
    let mut stat = [0; STAT_BYTES];
    let len = file.read(&mut stat).ok()?;
    processor_in(&stat[..len])
}

fn processor_in(stat: &[u8]) -> Option<u16> {
    // The processor is the 39th of all, and then come the real-time priority and the policy.
    let mut words = words_of_stat(stat).skip(36);
    let processor = words.next()?.parse().ok()?;
    let priority: u32 = words.next()?.parse().ok()?;
    let policy: libc::c_int = words.next()?.parse().ok()?;
    (priority == 0 && policy != libc::SCHED_DEADLINE).then_some(processor)
}

#[cfg(test)]
mod tests;
