//! Keeping away from the limits of memory cgroups: what is clean is given back while programs take memory, as fast as they do.
//!
//! The kernel cannot take memory back from an arena. A process that takes the last of a cgroup is killed at once, so that what is looked at now
//! and then ([`Budget`](super::budget)) is too late for a program that takes some hundred MiB in a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::park_timeout;
use std::time::Duration;

use crate::keeper::budget::{BUDGET_MIN, shrink_to};
use crate::limits::BLOCK_BYTES;
use crate::member::provision::frames_within;
use crate::member::shared::Shared;
use crate::memory::cgroup::{Gauge, Nearness, System};
use crate::memory::threads::Me;
use crate::sync::{Ordering, planted};

/// Between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How fast programs are expected to take memory at most.
const BYTES_PER_MS: u64 = 4 << 20;

/// The keeper's thread that looks how near the limits are, the more often the nearer.
pub(super) fn keep_away(shared: &Arc<Shared>, stop: &AtomicBool) {
    let Ok(me) = shared.me() else { return };
    let mut gauge = Gauge::new(System::here());
    while !stop.load(Relaxed) {
        let heeds = shared.keeps.load(Relaxed) && !planted!(DeafPressure);
        let near = heeds.then(|| gauge.look()).flatten();
        // The thread that ends the keeper wakes this one.
        park_timeout(near.map_or(PAUSE_MAX, |near| heed(shared, me, near)));
    }
}

/// Gives back what is missing. How long to pause.
fn heed(shared: &Shared, me: Me<'_>, near: Nearness) -> Duration {
    if near.missing == 0 {
        // Half of the way to the margin, by the fastest.
        let pause = Duration::from_millis(near.spare / BYTES_PER_MS / 2);
        return pause.clamp(PAUSE_MIN, PAUSE_MAX);
    }
    let superblock = me.arena.superblock();
    let frames = |bytes: u64| u32::try_from(bytes.div_ceil(BLOCK_BYTES as u64)).unwrap_or(u32::MAX);
    let backed = || superblock.frames_backed.load(Ordering::Relaxed);
    let before = backed();
    let goal = before
        .saturating_sub(frames(near.missing))
        .max(frames(BUDGET_MIN));
    if goal >= before {
        return PAUSE_MAX;
    }
    let full = frames_within(me.arena, &shared.config, 1.0);
    shrink_to(shared, me, goal.min(full), full);
    // What is left is owed, or in use: it goes when it has been written.
    if backed() < before {
        PAUSE_MIN
    } else {
        PAUSE_MIN * 4
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::file::OpenOptions;
    use crate::session::Session;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_missing_is_given_back_in_one_step() {
        let mut config = Config::builder().build().expect("defaults");
        config.memory = 64 * MIB;
        config.session = format!("test-limits-{}", std::process::id());
        let mut session = Session::open(config).expect("a session");
        session.warm(48 * MIB).expect("memory");
        // Nobody else gives memory or takes it.
        session.stop_keeping();
        let place = tempfile::TempDir::new().expect("a directory");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = session.open_file(place.path().join("a"), &options);
        let file = file.expect("a file");
        for at in (0..40 * MIB).step_by(65536) {
            assert_eq!(file.write_at(&[7; 65536], at).expect("written"), 65536);
        }
        file.sync_all().expect("synced");
        let shared = session.shared();
        let me = shared.me().expect("a slot");
        let bytes = || {
            let backed = me.arena.superblock().frames_backed.load(Ordering::Relaxed);
            u64::from(backed) * BLOCK_BYTES as u64
        };
        let before = bytes();
        assert!(before >= 40 * MIB, "{before} bytes have memory");
        let near = |spare, missing| Nearness { spare, missing };
        assert_eq!(heed(shared, me, near(80 * MIB, 0)), PAUSE_MIN * 2);
        assert_eq!(bytes(), before);
        heed(shared, me, near(0, 16 * MIB));
        let after = bytes();
        assert!(after <= before - 16 * MIB && after >= BUDGET_MIN, "{after}");
        // However much is missing, something is left to work with.
        heed(shared, me, near(0, u64::MAX));
        assert!(bytes() >= BUDGET_MIN / 2, "{}", bytes());
        let mut byte = [0];
        assert_eq!(file.read_at(&mut byte, 20 * MIB).expect("read"), 1);
        assert_eq!(byte, [7]);
    }
}
