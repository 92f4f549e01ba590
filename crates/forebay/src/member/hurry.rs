//! Having the keeper write a file before everything else.

use std::time::Duration;

use crate::ids::{FileId, ThreadId};
use crate::member::presence::{has_keeper, keeper_process};
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::files::HURRY;
use crate::memory::threads;
use crate::sync::Ordering;
use crate::sync::time::{Instant, sleep};
use crate::sys::liveness;

/// Pages from which on it is worth it even in a row: several of the longest requests.
pub const PAGES_IN_A_ROW_MIN: u64 = 4096;
/// A keeper that writes nothing for so long is not waited for.
pub const PATIENCE: Duration = Duration::from_millis(20);
/// The same for a caller that has no other way but to wait, once the keeper has begun, unless it is stopped. And how often it is looked after.
const ASKED_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Has the keeper begin to write a file whose descriptors it has, or finds.
pub fn hurry(shared: &Shared, file: FileId) {
    let flags = &shared.arena.file_unchecked(file).flags;
    flags.fetch_or(HURRY, Ordering::AcqRel);
    shared.have_taken(file);
    shared.wake_keeper();
}

/// Before the keeper is asked to write all of a file and to answer then: the thread that answers does nothing else meanwhile, and each process that
/// asks something would wait for it. So those that write in the background do most of it first, where it is much. Best effort: they do not begin
/// with a file whose descriptors the keeper does not have.
pub fn have_most_written(shared: &Shared, file: FileId) {
    let entry = shared.arena.file_unchecked(file);
    let owed = || entry.owed_pages.load(Ordering::Acquire);
    if owed() < PAGES_IN_A_ROW_MIN || !has_keeper(&shared.arena) {
        return;
    }
    hurry(shared, file);
    let (mut least, mut progress) = (owed(), Instant::now());
    let mut has_begun = false;
    while entry.flags.load(Ordering::Acquire) & HURRY != 0 {
        let now = owed();
        let since = progress.elapsed();
        if now < least {
            (least, progress, has_begun) = (now, Instant::now(), true);
        } else if since > PATIENCE {
            has_begun |= is_being_flushed(&shared.arena, file);
            let is_late = !has_begun || since > ASKED_PATIENCE;
            if is_late || liveness::is_stopped(keeper_process(&shared.arena)) {
                break;
            }
        }
        sleep(LOOK_EVERY);
    }
}

/// Whether a living thread is at writing the file, though none of it may be written yet.
fn is_being_flushed(arena: &Arena, file: FileId) -> bool {
    let mut threads = (1..arena.counts().threads).map(ThreadId);
    threads.any(|id| threads::flushes(arena, id) == Some(file) && !threads::is_dead(arena, id))
}
