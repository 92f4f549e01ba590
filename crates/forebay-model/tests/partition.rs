//! Several workers on the same files: right with plain files, and readers notice time going back.

mod memory;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use forebay_model::{MonotoneReader, Op, Outcome, PartitionPlan, Profile, StdFiles, Target};
use memory::{Bug, Memory};

const WORKERS: usize = 3;

/// Beside the build's output: on a disk, where the usual place may be memory.
fn temporary_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

#[test]
fn plain_files_serve_several_threads() {
    for seed in 0..10 {
        let plan = PartitionPlan::new(seed, &Profile::PARTITION, WORKERS, 200);
        let directory = temporary_directory();
        let mut first = StdFiles::new(directory.path(), 2, 1).expect("files");
        plan.prepare
            .iter()
            .for_each(|op| assert_eq!(first.run(op), Outcome::Done));
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (plan, directory) = (&plan, directory.path());
                scope.spawn(move || {
                    let mut target = StdFiles::join(directory, 2, 1).expect("files");
                    plan.drive_worker(worker, &mut target)
                        .unwrap_or_else(|m| panic!("{m}"));
                });
            }
        });
        plan.finished()
            .finish(&mut first)
            .unwrap_or_else(|m| panic!("{m}"));
    }
}

#[test]
fn stripes_cover_the_files_and_share_pages() {
    let plan = PartitionPlan::new(1, &Profile::PARTITION, WORKERS, 10);
    let mut shared = 0;
    for pair in plan.stripes.windows(2) {
        if pair[0].file == pair[1].file {
            assert_eq!(pair[0].end, pair[1].start);
            shared += usize::from(pair[0].end % 4096 != 0);
        }
    }
    assert!(shared > 5, "only {shared} pages have two owners");
    assert_eq!(plan.stripes.last().unwrap().end, Profile::PARTITION.window);
}

/// Answers now and then as the files were some operations ago.
struct Forgetful {
    now: Arc<Mutex<Memory>>,
    past: VecDeque<Vec<Vec<u8>>>,
    forgets: bool,
    reads: usize,
}

impl Target for Forgetful {
    fn run(&mut self, op: &Op) -> Outcome {
        let mut memory = self.now.lock().unwrap();
        let outcome = memory.run(op);
        self.past.push_back(memory.files.clone());
        if self.past.len() > 8 {
            self.past.pop_front();
        }
        let Op::Read { file, offset, .. } = *op else {
            return outcome;
        };
        let Outcome::Bytes(bytes) = &outcome else {
            return outcome;
        };
        self.reads += 1;
        if !self.forgets || !self.reads.is_multiple_of(10) {
            return outcome;
        }
        let old = self.past[0][file as usize]
            .get(offset as usize..)
            .unwrap_or_default();
        Outcome::Bytes(old[..bytes.len()].to_vec())
    }
}

/// Runs the workers in turns of 30 operations on one thread.
fn run(seed: u64, forgets: bool) -> Result<(), forebay_model::Mismatch> {
    let profile = Profile {
        files: 1,
        ..Profile::PARTITION
    };
    let plan = PartitionPlan::new(seed, &profile, 1, 300);
    let now = Arc::new(Mutex::new(Memory::new(1, Bug::None)));
    let mut target = Forgetful {
        now,
        past: VecDeque::new(),
        forgets,
        reads: 0,
    };
    plan.prepare.iter().for_each(|op| drop(target.run(op)));
    plan.drive_worker(0, &mut target)?;
    plan.finished().finish(&mut target)
}

#[test]
fn reads_of_ones_own_that_go_back_are_found() {
    for seed in 0..10 {
        run(seed, false).unwrap();
        let report = run(seed, true)
            .expect_err("an old read went unnoticed")
            .to_string();
        assert!(report.contains("went back"), "{report}");
    }
}

#[test]
fn a_reader_may_lag_but_not_go_back() {
    let plan = PartitionPlan::new(2, &Profile::PARTITION, WORKERS, 300);
    let versions = |s: &&forebay_model::Stripe| s.versions.len() >= 3 && s.end - s.start > 20;
    let stripe = plan
        .stripes
        .iter()
        .find(versions)
        .expect("a stripe that is written often");
    let mut states = vec![vec![0; (stripe.end - stripe.start) as usize]];
    for version in &stripe.versions {
        let mut state = states.last().unwrap().clone();
        let at = (version.start - stripe.start) as usize;
        let len = (version.end - version.start) as usize;
        forebay_model::fill(version.seed, version.start, &mut state[at..at + len]);
        states.push(state);
    }
    let last = states.len() - 1;
    let mut reader = MonotoneReader::new(&plan);
    let mut see = |state: &Vec<u8>| reader.observe(stripe.file, stripe.start, state);
    see(&states[0]).unwrap();
    see(&states[1]).unwrap();
    see(&states[1]).unwrap();
    see(&states[last]).unwrap();
    assert!(see(&states[0]).is_err(), "back to the beginning");
    let mut odd = states[last].clone();
    odd[3] = (1..=255)
        .find(|b| states.iter().all(|s| s[3] != *b))
        .unwrap();
    assert!(
        see(&odd).unwrap_err().to_string().contains("no write"),
        "nobody wrote that"
    );
}
