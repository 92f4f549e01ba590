//! `kill -9` of clients, keepers' hosts, and all at once, at random moments under load: what was acknowledged is in the
//! files, by the survivors' work or by recovery.
//!
//! Writes of the dead may still be under way at the device, so the device is slow where root can make it so. Each round
//! prints its seed when it fails; `FOREBAY_TEST_SEED` repeats that one. `FOREBAY_TEST_ROUNDS` says how many rounds a test
//! makes at most, `FOREBAY_TEST_KILLS` how many the long tests make. `FOREBAY_TEST_DIRS` names a directory to be in, where the
//! device is as fast as it is.
#![cfg(feature = "sim")]

mod common;
mod disks;
mod here;
mod workers;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use disks::{Disk, Group};
use forebay::keeper::recover::{Report, Saved, recover};
use forebay::sim::Bug;
use forebay_model::{Driver, Model, Op, SplitMix64};
use workers::{
    Ended, Spec, Work, Worker, alone_ops, answer, arena_path, config, is_found, plan, record,
    session_name,
};

/// Bytes a second of the slow device.
const SPEED: u64 = 24 << 20;
/// Of one so slow that what has been begun is still under way a moment later.
const CRAWL: u64 = 4 << 20;

/// Where the files of a series of rounds are.
struct Ground {
    dir: PathBuf,
    /// Makes its members' writes slow.
    group: Option<Group>,
    _disk: Option<Disk>,
    _dir: Option<tempfile::TempDir>,
}

impl Ground {
    fn new() -> Ground {
        Self::with_speed(SPEED)
    }

    fn with_speed(speed: u64) -> Ground {
        match Self::slow_disk(speed) {
            Ok((disk, group)) => Ground {
                dir: disk.dir().to_owned(),
                group: Some(group),
                _disk: Some(disk),
                _dir: None,
            },
            Err(reason) => {
                eprintln!("the device is as fast as it is: {reason}");
                let dir = here::directory();
                Ground {
                    dir: dir.path().to_owned(),
                    group: None,
                    _disk: None,
                    _dir: Some(dir),
                }
            }
        }
    }

    fn slow_disk(speed: u64) -> Result<(Disk, Group), String> {
        if here::is_told_where() {
            return Err("another place is asked for".into());
        }
        let disk = Disk::new("xfs", 320, "")?;
        let group = Group::slow_writes(&disk, speed)?;
        Ok((disk, group))
    }

    /// A directory for one round, removed with it.
    fn round(&self) -> tempfile::TempDir {
        tempfile::tempdir_in(&self.dir).expect("a directory")
    }

    fn start(&self, spec: &Spec) -> Worker {
        let worker = Worker::ready(spec);
        if let Some(group) = &self.group {
            group.add(worker.pid()).expect("a member of the group");
        }
        worker
    }
}

/// Runs rounds with seeds from `first` on, one of five with a seed that nobody has tried; the seed of one that fails is
/// printed.
fn rounds(first: u64, count: u64, round: impl Fn(&Ground, u64)) {
    let count = here::number("FOREBAY_TEST_ROUNDS", count).min(count);
    let fresh = count.div_ceil(5);
    let seeds = here::seeds(first..first + count - fresh, fresh);
    rounds_on(&Ground::new(), seeds, round);
}

/// The same where only a slow device tells anything.
fn slow_rounds(speed: u64, seeds: Range<u64>, round: impl Fn(&Ground, u64)) {
    let ground = Ground::with_speed(speed);
    if ground.group.is_none() {
        return here::skipped("no device can be made slow");
    }
    rounds_on(&ground, here::seeds(seeds, 1), round);
}

fn rounds_on(ground: &Ground, seeds: impl Iterator<Item = u64>, round: impl Fn(&Ground, u64)) {
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| round(ground, seed)));
        if let Err(payload) = result {
            eprintln!("the round of seed {seed} has failed: FOREBAY_TEST_SEED={seed} repeats it");
            std::panic::resume_unwind(payload);
        }
    }
}

/// Recovers a session if it has left anything. Everything must go into the files: nobody else has touched them. Only where a request
/// of the dead has reached its file long after it was made is that doubted, and kept aside: it is put where it belongs then.
fn recover_all(session: &str) -> Option<Report> {
    let config = config(session);
    let arena = arena_path(&config);
    if !arena.exists() {
        put_back_all(&config);
        return None;
    }
    let report = match recover(&arena, &config) {
        // It ended in good order, but somebody looked at it just then (`forebay stat`), who has removed it in its last process's place.
        Err(_) if !arena.exists() => {
            put_back_all(&config);
            return None;
        }
        report => report.expect("a dead session can be recovered"),
    };
    let is_right = |saved: &Saved| match saved {
        Saved::Written { .. } => true,
        Saved::Kept { reason, .. } => reason.contains("nobody can tell"),
        Saved::Failed { .. } => false,
    };
    assert!(report.files.iter().all(is_right), "{report:?}");
    put_back_all(&config);
    assert!(report.removed && !arena.exists(), "{report:?}");
    assert_eq!(report.findings.corruptions, 0, "{report:?}");
    Some(report)
}

fn put_back_all(config: &forebay::Config) {
    workers::put_back(config, Path::to_owned);
    let _ = std::fs::remove_dir_all(&config.kept_dir);
}

fn check(model: &Model, in_flight: &[Op], dir: &Path) {
    for file in 0..model.files() as u8 {
        let image = std::fs::File::open(dir.join(format!("file-{file}"))).expect("the file");
        if let Err(mismatch) = model.after_death(file, in_flight, &image) {
            panic!(
                "{mismatch}\nin flight: {in_flight:?}\n{}",
                differences(model, file, &image)
            );
        }
    }
}

/// Which pages are not as the model has them, as runs, for messages.
fn differences(model: &Model, file: u8, image: &std::fs::File) -> String {
    use std::os::unix::fs::FileExt;
    let content = model.content(file);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in 0..content.len().div_ceil(4096) {
        let mut found = vec![0; (content.len() - page * 4096).min(4096) as usize];
        let _ = image.read_exact_at(&mut found, page * 4096);
        if found != content.read(page * 4096, found.len() as u64) {
            match runs.last_mut() {
                Some(last) if last.1 == page => last.1 += 1,
                _ => runs.push((page, page + 1)),
            }
        }
    }
    format!(
        "pages that differ: {runs:?} of a file of {} bytes",
        content.len()
    )
}

/// Kills some of the workers after a while; how everybody ended.
fn kill_some(mut all: Vec<Worker>, victims: &[bool], random: &mut SplitMix64) -> Vec<Ended> {
    all.iter_mut().for_each(Worker::go);
    std::thread::sleep(Duration::from_micros(random.below(150_000)));
    for (worker, _) in all.iter_mut().zip(victims).filter(|(_, dies)| **dies) {
        worker.kill();
    }
    let ended: Vec<Ended> = all.into_iter().map(Worker::end).collect();
    for (worker, dies) in ended.iter().zip(victims) {
        match dies {
            true => worker.assert_good_or_killed(),
            false => worker.assert_good(),
        }
    }
    ended
}

/// Which of three dies: one, the keeper's host and others, or all.
fn victims(random: &mut SplitMix64) -> [bool; 3] {
    match random.below(6) {
        0 => [false, false, true],
        1 => [true, false, false],
        2 => [true, false, true],
        3 => [true, true, false],
        _ => [true, true, true],
    }
}

/// Three processes, each with bytes of its own in two files.
fn shared_files(ground: &Ground, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let session = session_name("kill");
    let dir = ground.round();
    let ops = 300;
    let plan = plan(seed, 3, ops);
    for op in &plan.prepare {
        let Op::SetLen { file, len, .. } = *op else {
            panic!("plans set lengths");
        };
        let made = std::fs::File::create(dir.path().join(format!("file-{file}"))).expect("a file");
        made.set_len(len).expect("a length");
    }
    let hosts = [true, random.below(2) == 0, false];
    let all = (0..3).map(|me| {
        let work = Work::Partition {
            seed,
            workers: 3,
            me,
            ops,
        };
        ground.start(&Spec::new(&session, dir.path(), hosts[me], work))
    });
    let victims = victims(&mut random);
    let ended = kill_some(all.collect(), &victims, &mut random);
    recover_all(&session);
    let mut driver = Driver::for_ops(&[plan.prepare.as_slice(), &plan.workers.concat()].concat());
    let model = driver.model_mut();
    plan.prepare.iter().for_each(|op| drop(model.apply(op)));
    let mut in_flight = Vec::new();
    for (worker, ops) in ended.iter().zip(&plan.workers) {
        let done = worker.acknowledged();
        ops[..done].iter().for_each(|op| drop(model.apply(op)));
        in_flight.extend(ops.get(done).cloned());
    }
    check(model, &in_flight, dir.path());
}

/// One process with everything that a file can be asked, beside a keeper in another or in itself.
fn alone(ground: &Ground, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let session = session_name("kill");
    let dir = ground.round();
    let list = 300;
    let work = Work::Alone { seed, ops: list };
    let keeper = Spec::new(&session, dir.path(), true, Work::Commands { files: 1 });
    let keeper = (random.below(2) == 0).then(|| ground.start(&keeper));
    let hosts = keeper.is_none() && random.below(3) > 0;
    let worker = ground.start(&Spec::new(&session, dir.path(), hosts, work));
    let ended = kill_some(vec![worker], &[true], &mut random);
    if let Some(mut keeper) = keeper {
        if random.below(2) == 0 {
            keeper.kill();
        }
        keeper.end().assert_good_or_killed();
    }
    recover_all(&session);
    let ops = alone_ops(seed, list);
    let mut driver = Driver::for_ops(&ops);
    let done = ended[0].acknowledged();
    ops[..done]
        .iter()
        .for_each(|op| drop(driver.model_mut().apply(op)));
    let in_flight: Vec<Op> = ops.get(done).cloned().into_iter().collect();
    check(driver.model(), &in_flight, dir.path());
}

/// The same with nobody killed: a check on the check, and on slow devices.
fn unharmed(ground: &Ground, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let session = session_name("slow");
    let dir = ground.round();
    let keeper = Spec::new(&session, dir.path(), true, Work::Commands { files: 1 });
    let keeper = (random.below(2) == 0).then(|| ground.start(&keeper));
    let hosts = keeper.is_none() && random.below(3) > 0;
    let work = Work::Alone { seed, ops: 300 };
    let mut worker = ground.start(&Spec::new(&session, dir.path(), hosts, work));
    worker.go();
    worker.finish();
    keeper.map(Worker::finish);
    let mut driver = Driver::for_ops(&alone_ops(seed, 300));
    for op in alone_ops(seed, 300) {
        driver.model_mut().apply(&op);
    }
    check(driver.model(), &[], dir.path());
}

/// A file is made longer while writes of its old bytes are under way, at a device that takes most of a second for them.
fn lengthened_in_flight(ground: &Ground, _seed: u64) {
    let session = session_name("long");
    let dir = ground.round();
    let work = Work::Commands { files: 1 };
    let mut worker = ground.start(&Spec::new(&session, dir.path(), true, work));
    let (file, handle, len, pieces) = (0, 0, 64 << 10, 48);
    let mut ops: Vec<Op> = (0..pieces)
        .map(|index| Op::Write {
            file,
            handle,
            offset: index * u64::from(len),
            len,
            seed: 7,
        })
        .collect();
    let len = 2 * pieces * u64::from(len);
    ops.push(Op::SetLen { file, handle, len });
    ops.push(Op::SyncAll { file, handle });
    let mut driver = Driver::for_ops(&ops);
    for op in &ops {
        if matches!(op, Op::SetLen { .. }) {
            // The keeper begins to write a few milliseconds after the last change.
            std::thread::sleep(Duration::from_millis(100));
        }
        let answered = worker.run(op);
        assert_eq!(answered, answer(&driver.model_mut().apply(op)));
    }
    worker.finish();
    check(driver.model(), &[], dir.path());
}

/// Three processes append to one file.
fn appends(ground: &Ground, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let session = session_name("kill");
    let dir = ground.round();
    let start = |me: usize| {
        let work = Work::Appends { me, count: 200 };
        ground.start(&Spec::new(&session, dir.path(), me == 0, work))
    };
    let all = (0..3).map(start).collect();
    let victims = victims(&mut random);
    let ended = kill_some(all, &victims, &mut random);
    recover_all(&session);
    let bytes = std::fs::read(dir.path().join("file-0")).expect("the file");
    let mut taken = Vec::new();
    for (me, worker) in ended.iter().enumerate() {
        for (index, offset) in worker.appends() {
            let expected = record(me, index);
            let at = offset as usize;
            let found = bytes.get(at..at + expected.len());
            assert!(
                found == Some(&expected[..]),
                "record {index} of {me} at {at} is lost or torn"
            );
            taken.push(at..at + expected.len());
        }
    }
    taken.sort_by_key(|range| range.start);
    assert!(
        taken.windows(2).all(|two| two[0].end <= two[1].start),
        "records overlap"
    );
}

/// A recovery is killed at some moment; the next one finishes.
fn interrupted_recovery(ground: &Ground, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let session = session_name("kill");
    let dir = ground.round();
    let list = 200;
    let work = Work::Alone { seed, ops: list };
    let hosts = random.below(2) == 0;
    let worker = ground.start(&Spec::new(&session, dir.path(), hosts, work));
    let ended = kill_some(vec![worker], &[true], &mut random);
    let path = arena_path(&config(&session));
    for _ in 0..1 + random.below(3) {
        if !path.exists() {
            break;
        }
        let work = Work::Recover { path: path.clone() };
        let mut recovery = ground.start(&Spec::new(&session, dir.path(), false, work));
        recovery.go();
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        recovery.kill();
        recovery.end().assert_good_or_killed();
    }
    recover_all(&session);
    let ops = alone_ops(seed, list);
    let mut driver = Driver::for_ops(&ops);
    let done = ended[0].acknowledged();
    ops[..done]
        .iter()
        .for_each(|op| drop(driver.model_mut().apply(op)));
    let in_flight: Vec<Op> = ops.get(done).cloned().into_iter().collect();
    check(driver.model(), &in_flight, dir.path());
}

#[test]
fn killed_processes_that_share_files_lose_nothing() {
    rounds(1000, 35, shared_files);
}

#[test]
fn a_killed_process_loses_nothing_whatever_it_does() {
    rounds(2000, 35, alone);
}

#[test]
fn killed_appenders_lose_and_tear_nothing() {
    rounds(3000, 15, appends);
}

#[test]
fn a_slow_device_loses_nothing() {
    slow_rounds(SPEED, 5000..5007, unharmed);
}

#[test]
fn a_file_made_longer_keeps_what_is_being_written() {
    slow_rounds(CRAWL, 6200..6202, lengthened_in_flight);
}

#[test]
fn a_recovery_that_is_killed_can_be_done_again() {
    rounds(4000, 15, interrupted_recovery);
}

/// Runs rounds until one fails; how many it took.
fn rounds_until_found(
    bug: Bug,
    ground: &Ground,
    (first, most): (u64, u64),
    round: impl Fn(&Ground, u64),
) {
    let found = (first..first + most).position(|seed| is_found(bug, || round(ground, seed)));
    match found {
        Some(index) => eprintln!("{bug:?} is found by round {index}"),
        None => panic!("{bug:?} is not found by {most} rounds"),
    }
}

#[test]
fn planted_bugs_are_found() {
    let ground = Ground::new();
    rounds_until_found(Bug::ForgottenDirt, &ground, (6000, 20), alone);
    rounds_until_found(Bug::EarlyEnd, &ground, (6100, 20), appends);
    rounds_until_found(Bug::ForgetFlights, &ground, (6300, 60), shared_files);
    drop(ground);
    // Only XFS, and only a slow one.
    let ground = Ground::with_speed(CRAWL);
    if ground.group.is_some() {
        rounds_until_found(Bug::ShortLanding, &ground, (6200, 5), lengthened_in_flight);
    }
}

fn long(round: fn(&Ground, u64)) {
    // A quarter for each kind of round.
    let count = here::number("FOREBAY_TEST_KILLS", 10_000).div_ceil(4);
    rounds_on(&Ground::new(), here::fresh_seeds(count), round);
}

#[test]
#[ignore = "long: a quarter of FOREBAY_TEST_KILLS rounds, 10,000 by default"]
fn thousands_of_kills_shared() {
    long(shared_files);
}

#[test]
#[ignore = "long: a quarter of FOREBAY_TEST_KILLS rounds, 10,000 by default"]
fn thousands_of_kills_alone() {
    long(alone);
}

#[test]
#[ignore = "long: a quarter of FOREBAY_TEST_KILLS rounds, 10,000 by default"]
fn thousands_of_kills_appending() {
    long(appends);
}

#[test]
#[ignore = "long"]
fn slow_for_long() {
    long(unharmed);
}

#[test]
#[ignore = "long: a quarter of FOREBAY_TEST_KILLS rounds, 10,000 by default"]
fn thousands_of_kills_recovering() {
    long(interrupted_recovery);
}
