//! Checks on the checker: targets with one mistake each, which must be found soon, and the same
//! target without a mistake, which must not be accused.

mod memory;

use forebay_model::{Driver, Mismatch, Op, Outcome, Target, drive, generate, shrink};
use memory::{Bug, Memory, PLAIN};

/// Operations within which every mistake must be found.
const FOUND_WITHIN_OPS: usize = 800;

fn run(ops: &[Op], bug: Bug) -> Result<(), Mismatch> {
    drive(ops, &mut Memory::new(PLAIN.files as usize, bug))
}

/// Drives, then takes the power away at the end.
fn run_and_lose_power(ops: &[Op], bug: Bug) -> Result<(), Mismatch> {
    let mut target = Memory::new(PLAIN.files as usize, bug);
    let mut driver = Driver::for_ops(ops);
    for op in ops {
        driver.step(op, &mut target)?;
    }
    (0..driver.model().files() as u8).try_for_each(|file| {
        let image = target.lose_power(file);
        driver.model().may_be_after_power_loss(file, &[], &image)
    })
}

#[test]
fn a_right_target_is_not_accused() {
    for seed in 0..200 {
        let ops = generate(seed, &PLAIN, 60);
        run(&ops, Bug::None).unwrap();
        run_and_lose_power(&ops, Bug::None).unwrap();
    }
}

#[test]
fn every_mistake_is_found_soon() {
    for bug in [
        Bug::LosesLastByteOfRaggedWrite,
        Bug::ShowsOldBytesAfterCutAndGrow,
        Bug::PunchesWholePagesOnly,
        Bug::ForgetsToGrow,
        Bug::AppendsAtPageEnd,
        Bug::WritesOnePageTooFar,
        Bug::ReadsOfTheOtherFile,
    ] {
        for seed in 0..20 {
            let found = run(&generate(seed, &PLAIN, FOUND_WITHIN_OPS), bug);
            assert!(found.is_err(), "{bug:?} was not found with seed {seed}");
        }
    }
}

#[test]
fn syncs_that_lie_are_found_soon() {
    for bug in [Bug::SyncsAllButTheLastBlock, Bug::SyncForgetsTheLength] {
        // Lists are short, so that most end soon after a sync.
        let lists = (0..40).filter(|&seed| {
            let ops = generate(seed, &PLAIN, 20);
            run_and_lose_power(&ops, bug).is_err()
        });
        assert!(lists.count() > 5, "{bug:?} is hardly ever found");
    }
}

#[test]
fn a_report_names_place_writer_and_operations() {
    let bug = Bug::LosesLastByteOfRaggedWrite;
    let fails = |ops: &[Op]| run(ops, bug).is_err();
    let ops = (0..)
        .map(|seed| generate(seed, &PLAIN, 100))
        .find(|ops| fails(ops))
        .unwrap();
    let small = shrink(ops, fails);
    assert!(small.len() <= 12, "{small:?}");

    let ops = [
        Op::Write {
            file: 0,
            handle: 0,
            offset: 270_000,
            len: 9000,
            seed: 1,
        },
        Op::Write {
            file: 0,
            handle: 0,
            offset: 275_000,
            len: 4000,
            seed: 2,
        },
        Op::Read {
            file: 0,
            handle: 0,
            offset: 274_000,
            len: 3000,
        },
    ];
    let mut driver = Driver::for_ops(&ops);
    let mut target = Memory::new(1, Bug::None);
    driver.step(&ops[0], &mut target).unwrap();
    let lost = &mut |op: &Op| match op {
        Op::Read { .. } => target.run(op),
        _ => Outcome::Wrote(op.payload_len()),
    };
    driver.step(&ops[1], lost).unwrap();
    let report = driver.step(&ops[2], lost).unwrap_err().to_string();
    for part in [
        "offset 275000 = block 1, page 67 (3 of the block), byte 568 of the page",
        "expected",
        "written by operation 1, seed 2",
        "as written by operation 0, seed 1 (16 bytes agree)",
        "operations on that byte:",
        "last operations:",
    ] {
        assert!(report.contains(part), "{part:?} is missing in: {report}");
    }
}

#[test]
fn faults_are_tolerated_where_they_may_happen_and_nowhere_else() {
    for seed in 0..100 {
        let ops = generate(seed, &PLAIN, 60);
        let run = |bug, tolerant: bool| {
            let mut target = Memory::new(PLAIN.files as usize, bug);
            target.fault_every = 10;
            let mut driver = Driver::for_ops(&ops);
            if tolerant {
                driver = driver.tolerating_faults();
            }
            ops.iter().try_for_each(|op| driver.step(op, &mut target))?;
            driver.finish(&mut target)
        };
        run(Bug::None, true).unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
        assert!(
            run(Bug::None, false).is_err(),
            "faults went unnoticed with seed {seed}"
        );
    }
}
