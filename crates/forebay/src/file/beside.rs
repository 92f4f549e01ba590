//! Flushing many files: several threads take one after the other.
//!
//! A small file is a few requests that wait for one another: what lacks bytes is read before it is written, its last page goes by the
//! kernel's cache and is waited for, and a sync waits for the device. A queue that one thread has keeps the device busy within a file, not across files. So each
//! thread does one small file at a time, with plain calls, and the device has as many requests as there are threads. A file that owes
//! much, or in many places, keeps a queue busy by itself: the caller does these, before it takes part in the rest.
//!
//! The threads live for one pass. A process that hosts no keeper has none: it was promised that the engine starts none there.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use crate::file::hasten::{REQUESTS_MIN, is_scattered};
use crate::flush::Flusher;
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// Files under way at once.
const THREADS: usize = 8;
/// Small files from which on it is worth to begin threads, and for how many of them each thread begins.
const FILES_MIN: usize = 8;
const FILES_EACH: usize = 4;
/// Pages that a small file owes at most: 1 MiB.
const SMALL_PAGES_MAX: u64 = 256;
/// Where memory is short a thread flushes and evicts, as any does.
const STACK_BYTES: usize = 1024 * 1024;

/// What the threads share.
struct Work<'a, J, F> {
    shared: &'a Arc<Shared>,
    jobs: &'a [(FileId, J)],
    /// Places in `jobs` of small files.
    small: Vec<usize>,
    next: AtomicUsize,
    flush: F,
}

/// Flushes files, each as `flush` says: with the caller's flusher, or one of a thread that helps. What it returned of each, in their order.
pub fn for_each<J: Sync, T: Send + 'static>(
    shared: &Arc<Shared>,
    me: Me<'_>,
    flusher: &mut Flusher,
    jobs: &[(FileId, J)],
    flush: impl Fn(Me<'_>, &mut Flusher, &(FileId, J)) -> T + Sync,
) -> Vec<T> {
    let one_by_one =
        |flusher: &mut Flusher| jobs.iter().map(|job| flush(me, flusher, job)).collect();
    if jobs.len() < FILES_MIN || !shared.hosts.load(Relaxed) {
        return one_by_one(flusher);
    }
    let (small, large): (Vec<_>, Vec<_>) =
        (0..jobs.len()).partition(|&at| is_small(me, jobs[at].0));
    if small.len() < FILES_MIN {
        return one_by_one(flusher);
    }
    let helpers = (small.len() / FILES_EACH).min(THREADS - 1);
    let work = Work {
        shared,
        jobs,
        small,
        next: AtomicUsize::new(0),
        flush,
    };
    let mut done = scope(|scope| {
        let begin = |_| work.begin(scope, flusher.helper());
        let helpers: Vec<_> = (0..helpers).map_while(begin).collect();
        let by_queue = |at: usize| (at, (work.flush)(me, flusher, &jobs[at]));
        let mut done: Vec<_> = large.into_iter().map(by_queue).collect();
        done.extend(work.go_on(me, flusher));
        let end_of = |helper: ScopedJoinHandle<'_, _>| match helper.join() {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        };
        done.extend(helpers.into_iter().flat_map(end_of));
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, done)| done).collect()
}

/// Whether a queue would gain little: a file that owes single pages in many places has as many requests as a large one.
fn is_small(me: Me<'_>, file: FileId) -> bool {
    let owed = &me.arena.file_unchecked(file).owed_pages;
    let owed = owed.load(Ordering::Acquire);
    owed <= SMALL_PAGES_MAX && (owed < u64::from(REQUESTS_MIN) || !is_scattered(me, file))
}

impl<J: Sync, T: Send + 'static, F: Fn(Me<'_>, &mut Flusher, &(FileId, J)) -> T + Sync>
    Work<'_, J, F>
{
    /// Another thread, if one is to be had.
    fn begin<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut flusher: Flusher,
    ) -> Option<ScopedJoinHandle<'scope, Vec<(usize, T)>>> {
        let run = move || match self.shared.me() {
            Ok(me) => self.go_on(me, &mut flusher),
            // No slot is free: the others do it.
            Err(_) => Vec::new(),
        };
        let thread = Builder::new()
            .name("forebay-beside".into())
            .stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, run).ok()
    }

    /// Takes one small file after the other until none is left.
    fn go_on(&self, me: Me<'_>, flusher: &mut Flusher) -> Vec<(usize, T)> {
        let mut done = Vec::new();
        while let Some(&at) = self.small.get(self.next.fetch_add(1, Relaxed)) {
            done.push((at, (self.flush)(me, flusher, &self.jobs[at])));
        }
        done
    }
}
