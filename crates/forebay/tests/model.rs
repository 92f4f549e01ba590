//! The engine against the reference model: one thread, a simulated disk, an arena of eight frames.
#![cfg(feature = "sim")]

mod common;
mod here;

use common::{Engine, Store};
use forebay::Config;
use forebay::config::DirtyTracking;
use forebay_model::{Op, Profile, SplitMix64, drive, generate, shrink};

const FILES: usize = 3;
const HANDLES: usize = 2;

fn run(ops: &[Op], config: Config) -> Result<(), String> {
    let (files, handles) = Op::extent(ops);
    let (files, handles) = (files.max(FILES), handles.max(HANDLES));
    let (_disk, store) = Store::sim(files, 1 << 40);
    let mut engine = Engine::new(config, store, files, handles);
    if engine.session.shared().config.read_ahead > 0 {
        engine.read_ahead(ops.len() as u64);
    }
    drive(ops, &mut engine).map_err(|mismatch| format!("{mismatch}"))
}

/// What is owed is tracked in another way for every second list.
fn tracked(seed: u64, config: Config) -> Config {
    let ways = [DirtyTracking::Stream, DirtyTracking::Page];
    config.with_tracking(ways[(seed % 2) as usize])
}

fn check(seed: u64, profile: &Profile, count: usize, config: impl Fn() -> Config) {
    check_ops(seed, generate(seed, profile, count), config);
}

fn check_ops(seed: u64, ops: Vec<Op>, config: impl Fn() -> Config) {
    let config = || tracked(seed, config());
    if let Err(mismatch) = run(&ops, config()) {
        let small = shrink(ops, |ops| run(ops, config()).is_err());
        let again = run(&small, config()).err().unwrap_or_default();
        panic!(
            "FOREBAY_TEST_SEED={seed}: {mismatch}\nshrunk to {} operations:\n{}\n{again}",
            small.len(),
            forebay_model::to_lines(&small)
        );
    }
}

#[test]
fn small_operations_agree_with_the_model() {
    for seed in here::seeds(0..60, 10) {
        check(seed, &Profile::TINY, 300, Config::tiny);
    }
}

#[test]
fn large_operations_agree_with_the_model() {
    for seed in here::seeds(0..20, 4) {
        check(seed, &Profile::LARGE, 60, Config::tiny);
    }
}

#[test]
fn sparse_operations_agree_with_the_model() {
    for seed in here::seeds(0..20, 4) {
        // Bases that a disk in memory can hold.
        let profile = Profile {
            bases: &[0, 16 << 20, 70 << 20],
            ..Profile::SPARSE
        };
        check(seed, &profile, 150, Config::tiny);
    }
}

#[test]
fn every_route_agrees_with_the_model() {
    use forebay::config::Route;
    for route in [Route::Threshold, Route::Lustre, Route::Direct, Route::Scrap] {
        for seed in here::seeds(100..110, 2) {
            check(seed, &Profile::LARGE, 60, || Config {
                route,
                ..Config::tiny()
            });
            check(seed, &Profile::TINY, 200, || Config {
                route,
                ..Config::tiny()
            });
        }
    }
}

/// Reads in order, which are read ahead for, between everything else; and the same without.
#[test]
fn streams_of_reads_agree_with_the_model() {
    for seed in here::seeds(0..40, 6) {
        let ops = in_streams(generate(seed, &Profile::TINY, 150), seed);
        check_ops(seed, ops.clone(), Config::tiny);
        check_ops(seed, ops, || Config {
            read_ahead: 0,
            ..Config::tiny()
        });
    }
}

/// After each operation a few reads that go on where the last of their kind have ended: upwards, downwards, and at equal distances.
fn in_streams(ops: Vec<Op>, seed: u64) -> Vec<Op> {
    let mut random = SplitMix64::new(seed);
    let mut last = [0u64; 3];
    let mut mixed = Vec::new();
    for op in ops {
        mixed.push(op);
        let kind = random.below(3) as usize;
        for _ in 0..random.below(4) {
            let len = [4096, 30_000, 5000][kind];
            let end = 6 * forebay_model::BLOCK_BYTES;
            let offset = last[kind].min(end);
            last[kind] = match kind {
                0 => (offset + len) % end,
                1 => offset.checked_sub(len).unwrap_or(end),
                _ => (offset + 100_000) % end,
            };
            mixed.push(Op::Read {
                file: (kind % 2) as u8,
                handle: 0,
                offset,
                len: len as u32,
            });
        }
    }
    mixed
}

/// Nothing at all to punch is said before that nothing may be punched, as the kernel does.
#[test]
fn refusals_come_in_the_kernels_order() {
    let (file, handle) = (0, 0);
    let access = forebay_model::Access::ReadOnly;
    let ops = [
        Op::Reopen {
            file,
            handle,
            access,
            truncate: false,
        },
        Op::Punch {
            file,
            handle,
            offset: 10,
            len: 0,
        },
    ];
    run(&ops, Config::tiny()).expect("as the model");
}
