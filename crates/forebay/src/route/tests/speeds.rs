//! Estimates: they arrive at the truth, one wild observation does not move them far, and nothing
//! that shared memory may hold makes them unusable.

use proptest::prelude::*;

use super::super::*;
use super::{BLOCK, MIB};

fn time_ns(bytes: u64, units: u64, fixed_ns: u64, bytes_per_second: u64) -> u64 {
    fixed_ns * units + bytes * 1_000_000_000 / bytes_per_second
}

fn close(found: u64, truth: u64, percent: u64) -> bool {
    found.abs_diff(truth) * 100 <= truth * percent
}

#[test]
fn a_device_is_learnt_from_short_and_long_writes() {
    for (latency, speed) in [(12_000, 7_000_000_000), (500_000, 150_000_000)] {
        let mut speeds = Speeds::default();
        for _ in 0..300 {
            for bytes in [4096, MIB, 128 * 1024, 2 * BLOCK] {
                speeds.observe_write(bytes, time_ns(bytes, 1, latency, speed));
            }
        }
        let device = speeds.device();
        assert!(close(device.write_latency_ns, latency, 5), "{device:?}");
        assert!(close(device.write_bytes_per_second, speed, 5), "{device:?}");
    }
}

#[test]
fn copying_is_learnt_with_a_price_per_block() {
    let mut speeds = Speeds::default();
    for _ in 0..300 {
        for bytes in [4096, 2 * MIB, 65_536] {
            let blocks = bytes.div_ceil(BLOCK);
            speeds.observe_copy(bytes, time_ns(bytes, blocks, 3_000, 12_000_000_000));
        }
    }
    assert!(close(speeds.copy().per_block_ns, 3_000, 5), "{speeds:?}");
    assert!(
        close(speeds.copy().bytes_per_second, 12_000_000_000, 5),
        "{speeds:?}"
    );
}

#[test]
fn bounce_copies_are_learnt_by_themselves() {
    let mut speeds = Speeds::default();
    for _ in 0..300 {
        speeds.observe_bounce(2 * BLOCK, time_ns(2 * BLOCK, 0, 0, 12_000_000_000));
        speeds.observe_bounce(4096, 1_000_000);
    }
    let copy = speeds.copy();
    assert!(
        close(copy.bounce_bytes_per_second, 12_000_000_000, 5),
        "{speeds:?}"
    );
    assert_eq!(
        copy.bytes_per_second,
        Speeds::default().copy().bytes_per_second
    );
}

#[test]
fn one_size_alone_predicts_that_size() {
    for ns in [5_000, 100_000, 3_000_000] {
        let mut speeds = Speeds::default();
        for _ in 0..300 {
            speeds.observe_write(MIB, ns);
        }
        assert!(
            close(speeds.write_latency_ns + speeds.write_ns_per_mib, ns, 10),
            "{speeds:?}"
        );
    }
}

#[test]
fn a_device_that_changes_is_followed_within_fifty_writes() {
    let mut speeds = Speeds::default();
    for _ in 0..50 {
        speeds.observe_write(4 * MIB, 4 * 40_000_000);
    }
    assert!(
        speeds.device().write_bytes_per_second < 40_000_000,
        "{speeds:?}"
    );
}

#[test]
fn nothing_is_learnt_from_nothing_or_from_middling_sizes() {
    let mut speeds = Speeds::default();
    speeds.observe_write(0, 1000);
    speeds.observe_write(MIB, 0);
    speeds.observe_copy(128 * 1024, 1);
    assert_eq!(speeds, Speeds::default());
}

#[test]
fn words_that_were_never_written_are_the_defaults() {
    assert_eq!(Speeds::from_words([0; Speeds::WORDS]), Speeds::default());
    let seen = Speeds {
        write_latency_ns: 7,
        ..Speeds::default()
    };
    assert_eq!(Speeds::from_words(seen.to_words()), seen);
}

#[test]
fn the_defaults_go_direct_until_a_disk_is_known_to_be_slow() {
    let request = WriteRequest {
        offset: 0,
        len: MIB,
        memory_aligned: true,
    };
    let mut speeds = Speeds::default();
    let direct = |speeds: &Speeds, memory_pressure| {
        let situation = Situation {
            device: speeds.device(),
            copy: speeds.copy(),
            memory_pressure,
            ..super::calm()
        };
        Auto.plan(&request, &situation).direct_bytes()
    };
    let mut taught = 0;
    while direct(&speeds, Pressure::NONE) > 0 {
        speeds.observe_write(MIB, 7_000_000);
        taught += 1;
    }
    assert!((1..=3).contains(&taught), "{taught} slow writes");
    assert_eq!(direct(&speeds, Pressure::FULL), MIB);
}

proptest! {
    #[test]
    fn one_observation_moves_an_estimate_by_an_eighth_at_most(bytes: u64, ns: u64) {
        let before = Speeds::default();
        let mut after = before;
        after.observe_write(bytes, ns);
        after.observe_copy(bytes, ns);
        after.observe_bounce(bytes, ns);
        for (was, is) in before.to_words().into_iter().zip(after.to_words()) {
            prop_assert!(is.abs_diff(was) <= was / 8 + 1, "{} became {}", was, is);
        }
    }

    #[test]
    fn any_words_give_usable_speeds(words: [u64; 5], bytes: u64, ns: u64) {
        let mut speeds = Speeds::from_words(words);
        speeds.observe_write(bytes, ns);
        speeds.observe_copy(bytes, ns);
        speeds.observe_bounce(bytes, ns);
        prop_assert_eq!(Speeds::from_words(speeds.to_words()), speeds);
        prop_assert!(speeds.device().write_bytes_per_second > 0);
        prop_assert!(speeds.copy().bytes_per_second > 0);
    }

    /// Fields are public: whatever stands in them, learning must not panic.
    #[test]
    fn any_fields_can_learn(words: [u64; 5], bytes: u64, ns: u64) {
        let [
            copy_ns_per_block,
            copy_ns_per_mib,
            write_latency_ns,
            write_ns_per_mib,
            bounce_ns_per_mib,
        ] = words;
        let mut speeds = Speeds {
            copy_ns_per_block,
            copy_ns_per_mib,
            write_latency_ns,
            write_ns_per_mib,
            bounce_ns_per_mib,
        };
        speeds.observe_write(bytes, ns);
        speeds.observe_copy(bytes, ns);
        speeds.observe_bounce(bytes, ns);
    }
}
