//! Threads that follow whoever asks: as long as requests come from one processor, they are answered there.
//!
//! To wake a thread on another processor, and to be woken from there, takes several times what most answers take. The threads that wait for requests therefore
//! stay on the processor that the last few requests came from. They are idle ones to the scheduler: it takes a processor for free on which only such
//! threads run, and so leaves whoever asks there when he is answered. Where requests come from several processors, the threads may run on all of them.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay::sys::liveness::words_of_stat;
use forebay::sys::{priority, scheduling};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use super::Request;
use crate::wire::{self, opcode};

/// One request in so many is looked at in any case: a look costs about as much as a request does.
const LOOK_EVERY: u32 = 32;
/// Whoever asks from another processor takes no less from one request to the next. Who asks from the same one and takes as long has something else to do.
const LATE: Duration = Duration::from_micros(20);
/// While the threads are on one processor, one request in so many may be looked at because it is late.
const LOOK_EVERY_LATE: u32 = 8;
/// Looks that have to agree.
const AGREE: u32 = 4;
/// Somebody who reads so much goes on while the kernel asks for more than he wants: two processors have work then.
const READ_AHEAD_BYTES: u32 = 64 << 10;
/// What `/proc` says of a thread up to its processor: 52 numbers at most and a name.
const STAT_BYTES: usize = 1024;
/// Stands for all processors where one could be named.
const ANYWHERE: u16 = u16::MAX;

/// Where the threads of a mount answer.
pub(crate) struct Follow {
    requests: AtomicU32,
    /// Which request was looked at last.
    looked: AtomicU32,
    /// When the last request came, in nanoseconds since `begun`.
    came: AtomicU64,
    begun: Instant,
    /// Where the last four requests that were looked at came from, a number of 16 bits each.
    seen: AtomicU64,
    /// Whether the next request is looked at, since the last looks do not say enough.
    again: AtomicBool,
    threads: Mutex<Threads>,
    /// Where this process may run.
    all: CpuSet,
}

/// Those that answer now.
struct Threads {
    are_at: u16,
    all: Vec<Thread>,
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
            looked: AtomicU32::new(0),
            came: AtomicU64::new(0),
            begun: Instant::now(),
            seen: AtomicU64::new(u64::MAX),
            again: AtomicBool::new(false),
            threads: Mutex::new(Threads {
                are_at: ANYWHERE,
                all: Vec::new(),
            }),
            all,
        }
    }

    /// What is to be learnt from a request that comes `now`, once it is answered; `None` for most.
    fn look(&self, request: &Request<'_>, now: Duration) -> Option<Look> {
        let thread = request.header.pid;
        // The kernel asks on its own account, or for somebody who cannot be seen from here.
        if thread == 0 {
            return None;
        }
        // All of these are hints: which of two requests at once counts for the later one does not matter.
        let now = now.as_nanos() as u64;
        let waited = now.saturating_sub(self.came.swap(now, Ordering::Relaxed));
        let seen = self.seen.load(Ordering::Relaxed);
        let are_somewhere = agreeing(seen) == AGREE && seen as u16 != ANYWHERE;
        let is_late = are_somewhere && u128::from(waited) > LATE.as_nanos();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let every = if is_late { LOOK_EVERY_LATE } else { LOOK_EVERY };
        let is_again = self.again.load(Ordering::Relaxed);
        let since = number.wrapping_sub(self.looked.load(Ordering::Relaxed));
        if !is_again && since < every && number != 0 {
            return None;
        }
        self.looked.store(number, Ordering::Relaxed);
        let whom = match reads_ahead(request) {
            true => Whom::Anybody,
            false => Whom::Here(thread),
        };
        Some(Look { whom, is_again })
    }

    /// Takes notice of where a request came from, and says where to be; `None`: the next look says it.
    fn saw(&self, processor: u16, is_again: bool) -> Option<u16> {
        let next = |seen| Some(seen << u16::BITS | u64::from(processor));
        let before = self
            .seen
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let seen = next(before.unwrap_or_else(|seen| seen)).unwrap_or_default();
        let agree = agreeing(seen);
        // Two programs on two processors do not have each of their requests looked at: a second look that finds another one than the first is the last.
        let go_on = agree < AGREE && (agree > 1 || !is_again);
        self.again.store(go_on, Ordering::Relaxed);
        match agree {
            AGREE => Some(processor),
            _ => (!go_on).then_some(ANYWHERE),
        }
    }

    /// All threads go there, also those that wait: the next requests come to these.
    fn go(&self, place: u16) {
        let mut threads = self.threads();
        if threads.are_at != place {
            threads.are_at = place;
            for thread in &mut threads.all {
                thread.go(place);
            }
        }
    }

    /// The calling thread is one of them from now on.
    fn join(&self) {
        let mut threads = self.threads();
        let mut thread = Thread::calling(self.all);
        if threads.are_at != ANYWHERE {
            thread.go(threads.are_at);
        }
        threads.all.push(thread);
    }

    fn leave(&self) {
        let own = gettid();
        self.threads().all.retain(|thread| thread.number != own);
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of the last looks found the same processor.
fn agreeing(seen: u64) -> u32 {
    let last = u64::from(seen as u16);
    let differ = seen ^ (last | last << 16 | last << 32 | last << 48);
    differ.trailing_zeros() / u16::BITS
}

/// A request that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    whom: Whom,
    /// Whether because of the look before.
    is_again: bool,
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

/// A thread that answers.
struct Thread {
    number: Pid,
    /// What it was last allowed by [`Thread::go`]; another mask is somebody else's wish.
    allowed: CpuSet,
    all: CpuSet,
}

impl Thread {
    fn calling(all: CpuSet) -> Self {
        Thread {
            number: gettid(),
            allowed: all,
            all,
        }
    }

    fn go(&mut self, place: u16) {
        let number = Some(self.number);
        // An administrator may have given the thread another mask meanwhile (`taskset`): this goes on within that one.
        if let Ok(now) = sched_getaffinity(number)
            && now != self.allowed
        {
            self.all = now;
        }
        let mut allowed = processors(&self.all, place);
        if sched_setaffinity(number, &allowed).is_err() {
            // The processor has gone, or may not be used any more.
            allowed = self.all;
            let _ = sched_setaffinity(number, &allowed);
        }
        self.allowed = sched_getaffinity(number).unwrap_or(allowed);
    }
}

/// What one of the threads does for all of them.
pub(super) struct Follower<'a> {
    follow: Option<&'a Follow>,
    look: Option<Look>,
}

impl<'a> Follower<'a> {
    /// For the calling thread. `None`: it stays where the scheduler puts it.
    pub(super) fn new(follow: Option<&'a Follow>) -> Self {
        if let Some(follow) = follow {
            follow.join();
        }
        Follower { follow, look: None }
    }

    /// A request has come.
    pub(super) fn hears(&mut self, request: &Request<'_>) {
        let look = |follow: &Follow| follow.look(request, follow.begun.elapsed());
        self.look = self.follow.and_then(look);
    }

    /// It is answered, or will be.
    pub(super) fn moves(&mut self) {
        let Some((follow, look)) = self.follow.zip(self.look.take()) else {
            return;
        };
        let processor = match look.whom {
            // Who cannot be looked at may be anywhere.
            Whom::Here(thread) => processor_of(thread).unwrap_or(ANYWHERE),
            Whom::Anybody => ANYWHERE,
        };
        if let Some(place) = follow.saw(processor, look.is_again) {
            follow.go(place);
        }
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        if let Some(follow) = self.follow {
            follow.leave();
        }
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
