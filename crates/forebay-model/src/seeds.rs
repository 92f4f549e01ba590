//! Seeds that nobody has tried yet.

use std::time::{SystemTime, UNIX_EPOCH};

/// Where a run's fresh seeds begin: what `TEST_FRESH_SEED` says (a name that is no option of Forebay's, so that programs
/// under test may have it), or the clock, in microseconds.
///
/// `.ci/run` sets the variable from the tree that it tests: every change is tried with seeds of its own, and a run of
/// the same tree can be had again.
pub fn fresh_seed() -> u64 {
    let told = std::env::var("TEST_FRESH_SEED").ok();
    told.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        // Far from the fixed ones, and short enough to be typed.
        let now = now.map_or(1, |since| since.as_micros() as u64);
        now % 1_000_000_000_000 + 1_000_000_000
    })
}
