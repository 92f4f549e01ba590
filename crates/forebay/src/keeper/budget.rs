//! How much memory the session may have, and how it keeps to that: room ahead of need, the limits around it, and idleness.

use std::time::Instant;

use crate::evict;
use crate::ids::ThreadId;
use crate::keeper::ready;
use crate::limits::{BLOCK_BYTES, HUGE_FRAMES, PAGE_BYTES};
use crate::member::provision::{self, frames_within, whole};
use crate::member::shared::Shared;
use crate::memory::cgroup::{self, System};
use crate::memory::regions::{self, LOW_PARTS, Shortage};
use crate::memory::threads::Me;
use crate::sync::{Ordering, planted};

/// Free memory below which a keeper that may not back more evicts, bytes.
const READY_BYTES: u64 = ready::READY_BYTES_MIN;
/// What the budget falls to at least under pressure, bytes.
pub(super) const BUDGET_MIN: u64 = 16 * 1024 * 1024;

/// Memory goes back by huge pages: where frames between those that are free hold something, more have to go, this often.
const SHRINK_ROUNDS: u32 = 4;

/// What a keeper remembers of its looks at memory.
pub(super) struct Budget {
    watch: cgroup::Watch,
    /// What this process might use when the keeper began, bytes.
    available: u64,
    /// What was used so far, and since when no more.
    last_use: (u64, Instant),
}

impl Budget {
    /// Of a keeper that begins.
    pub(super) fn new() -> Self {
        Budget {
            watch: cgroup::Watch::new(System::here()),
            available: System::here().limits().total_bytes,
            last_use: (0, Instant::now()),
        }
    }

    /// Shrinks before the kernel has to, and grows again when the pressure is gone.
    pub(super) fn heed_pressure(&mut self, shared: &Shared, me: Me<'_>) {
        let superblock = me.arena.superblock();
        let full = frames_within(me.arena, &shared.config, self.share_left());
        let budget = superblock.frames_max.load(Ordering::Relaxed);
        let backed = superblock.frames_backed.load(Ordering::Relaxed);
        let pressed = match self.watch.pressure() {
            _ if planted!(DeafPressure) => false,
            cgroup::Pressure::High => true,
            cgroup::Pressure::Some(used) => used > 0.9,
            cgroup::Pressure::None => false,
        };
        if pressed {
            let least = ((BUDGET_MIN / BLOCK_BYTES as u64) as u32).min(full);
            // From what there is: a budget that nobody has used up can shrink for long before it gives anything back.
            let budget = budget.min(backed);
            let smaller = (budget - budget / 8).max(least);
            shrink_to(shared, me, smaller, full);
        } else if budget > full || backed > full {
            // The limit around us has fallen, or tables have grown, or not all could be given back then.
            shrink_to(shared, me, full, full);
        } else if budget < full {
            // However little was left of it, as large as before in some seconds: a program that takes too much is heeded at once
            // (`limits`).
            let larger = (budget + full / 8 + 1)
                .next_multiple_of(HUGE_FRAMES)
                .min(full);
            superblock.frames_max.store(larger, Ordering::Relaxed);
            limit_owed(shared, larger, full);
        }
    }

    /// What is left of what there was when the keeper began, where limits have been lowered since.
    fn share_left(&self) -> f64 {
        let now = System::here().limits().total_bytes;
        if now == 0 || now >= self.available || planted!(DeafPressure) {
            return 1.0;
        }
        now as f64 / self.available as f64
    }

    /// A session that does nothing gives its memory back.
    pub(super) fn rest_if_idle(&mut self, shared: &Shared, me: Me<'_>) {
        let Some(idle_after) = shared.config.idle_after else {
            return;
        };
        let uses = uses_so_far(me);
        if uses != self.last_use.0 {
            self.last_use = (uses, Instant::now());
            return;
        }
        let superblock = me.arena.superblock();
        if self.last_use.1.elapsed() < idle_after || superblock.owed_about() != 0 {
            return;
        }
        evict::evict(me, u32::MAX / 4, 0);
        regions::give_all_back(me);
        ready::forget_demand(superblock);
        let ready = (READY_BYTES / BLOCK_BYTES as u64) as u32;
        provision::give_back(me, ready);
    }
}

/// Lowers the budget, and what is held with it. What is owed, or in use, stays for now.
pub(super) fn shrink_to(shared: &Shared, me: Me<'_>, frames: u32, full: u32) {
    let superblock = me.arena.superblock();
    let frames = whole(frames);
    superblock.frames_max.store(frames, Ordering::Relaxed);
    limit_owed(shared, frames, full);
    for round in 0..=SHRINK_ROUNDS {
        let backed = superblock.frames_backed.load(Ordering::Relaxed);
        let excess = backed.saturating_sub(frames);
        if excess == 0 {
            break;
        }
        let more = match round {
            0 => excess.saturating_sub(superblock.free_about()),
            _ => excess << round,
        };
        let evicted = evict::evict(me, more, 0);
        let given = provision::give_back(me, frames);
        if round > 0 && evicted == 0 && given == 0 {
            break;
        }
    }
}

/// Room ahead of need where the budget is used up; until then, memory is given ahead (`keeper::ready`).
pub(super) fn keep_room(me: Me<'_>) {
    let superblock = me.arena.superblock();
    let shortage = regions::look(me.arena);
    if shortage == Shortage::Urgent {
        regions::halve_all(me);
    }
    drop_clean(me);
    let free = superblock.free_about();
    let backed = superblock.frames_backed.load(Ordering::Relaxed);
    let max = superblock.frames_max.load(Ordering::Relaxed);
    // A little more than what would be little again at once.
    let low = max / LOW_PARTS;
    let goal = (low + low / 4).max((READY_BYTES / BLOCK_BYTES as u64) as u32);
    if free < goal && backed >= max {
        let wanted = (goal - free).min(backed / 8);
        let idle_ticks = if shortage == Shortage::None { 1000 } else { 64 };
        // Long streams leave nothing that has been idle for long: there, what they have passed by.
        if evict::evict(me, wanted, idle_ticks) == 0 && shortage != Shortage::None {
            evict::evict(me, wanted, 1);
        }
    }
}

/// Clean memory has a limit of its own, for those who want the rest for writes.
fn drop_clean(me: Me<'_>) {
    let excess = me.arena.superblock().clean_excess(0);
    if excess > 0 {
        evict::evict(me, excess, 0);
    }
}

/// Of `frames` frames out of the `full` budget, the share may be dirty that was configured: what is dirty can be neither evicted
/// nor given back.
fn limit_owed(shared: &Shared, frames: u32, full: u32) {
    let configured = shared.config.dirty_bytes_max / PAGE_BYTES as u64;
    let pages = (u128::from(configured) * u128::from(frames) / u128::from(full.max(1))) as u64;
    let limit = &shared.arena.superblock().owed_pages_max;
    limit.store(pages.max(1), Ordering::Relaxed);
}

/// A number that changes whenever any thread reads or writes.
fn uses_so_far(me: Me<'_>) -> u64 {
    (0..me.arena.counts().threads)
        .filter_map(|id| me.arena.thread(ThreadId(id)))
        .flat_map(|slot| slot.counters.iter().take(4))
        .map(|counter| counter.load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::file::OpenOptions;
    use crate::session::Session;

    const MIB: u64 = 1 << 20;

    #[test]
    fn budgets_are_whole_huge_pages() {
        let budgets = [1, 7, 8, 9, 15, 16, 1000].map(whole);
        assert_eq!(budgets, [1, 7, 8, 8, 8, 16, 1000]);
    }

    /// A thread that gives tables memory lowers the budget, and leaves it to the keeper to take the frames' back.
    #[test]
    fn frames_give_way_to_tables() {
        let mut config = Config::builder().build().expect("defaults");
        // So much that frames are far from the part of it that is theirs in any case.
        config.memory = 256 * MIB;
        config.session = format!("test-tables-{}", std::process::id());
        let mut session = Session::open(config).expect("a session");
        session.warm(256 * MIB).expect("memory");
        session.stop_keeping();
        let place = tempfile::TempDir::new().expect("a directory");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = session.open_file(place.path().join("a"), &options);
        let file = file.expect("a file");
        for at in (0..64 * MIB).step_by(65536) {
            assert_eq!(file.write_at(&[7; 65536], at).expect("written"), 65536);
        }
        file.sync_all().expect("synced");
        let shared = session.shared();
        let me = shared.me().expect("a slot");
        let superblock = me.arena.superblock();
        let backed = || superblock.frames_backed.load(Ordering::Relaxed);
        let before = backed();
        // As if 10 MiB more were headers.
        let more = 10 * MIB as u32 / size_of::<crate::frame::header::Header>() as u32;
        superblock.headers_backed.fetch_add(more, Ordering::Relaxed);
        let full = frames_within(me.arena, &shared.config, 1.0);
        superblock.frames_max.store(full, Ordering::Relaxed);
        Budget::new().heed_pressure(shared, me);
        superblock.headers_backed.fetch_sub(more, Ordering::Relaxed);
        assert!(before > full, "{before} frames have memory, {full} may");
        assert!(backed() <= full, "{} have memory, {full} may", backed());
    }
}
