//! The bodies of the fuzz targets, one module a target, each with a `check(data)` that panics when a
//! property does not hold.
//!
//! `fuzz/fuzz_targets` hands them to libFuzzer (`scripts/fuzz.sh`); the tests here hand them
//! seeded random bytes, so that every run of the tests exercises them without a fuzzer.

pub mod arena_checker;
pub mod scrap_merge;

/// Calls `check` with `rounds` inputs of up to `bytes_max` bytes, the same ones every time. When it
/// panics, says in which round.
pub fn seeded(rounds: u64, bytes_max: usize, check: impl Fn(&[u8])) {
    for round in 0..rounds {
        let mut random = SplitMix(round);
        let len = random.next() as usize % (bytes_max + 1);
        let data: Vec<u8> = std::iter::repeat_with(|| random.next() as u8)
            .take(len)
            .collect();
        let _named = Named(round);
        check(&data);
    }
}

/// Says which round it was when the thread unwinds.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in round {} of the seeded inputs", self.0);
        }
    }
}

/// SplitMix64: good enough to pick test inputs, and needs no crate.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
