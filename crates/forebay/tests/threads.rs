//! Operating-system threads over one arena on the heap: own bytes are exact, foreign bytes never go back,
//! while others flush, evict, truncate, append, stop the session and die.
//!
//! A run of every day takes about 20 s; the ignored ones last `FOREBAY_THREADS_SECONDS`.
#![cfg(feature = "sim")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{Engine, Store};
use forebay::config::Route;
use forebay::device::DeviceFile;
use forebay::keeper::repair;
use forebay::member::members;
use forebay::member::provision;
use forebay::memory::threads::{self, slay, stop_session};
use forebay::sim::device::{Pace, SimDisk, SimFile, SimOptions, slowed};
use forebay::sim::{Crash, crash_after};
use forebay::{Config, File, OpenOptions, Session, evict};
use forebay_model::{
    BLOCK_BYTES, MonotoneReader, Op, Outcome, PartitionPlan, Profile, SplitMix64, Target, byte_at,
    fill, first_difference, fresh_seed,
};

const WORKERS: usize = 4;
/// Operations of each worker in a round.
const OPS: usize = 150;

fn long() -> Duration {
    let seconds = std::env::var("FOREBAY_THREADS_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(300))
}

/// Files on a simulated disk, every second time with a device that takes its time.
struct Disk {
    files: Vec<Arc<SimFile>>,
    devices: Vec<Arc<dyn DeviceFile>>,
    _disk: SimDisk,
}

impl Disk {
    fn new(files: u8, seed: u64) -> Self {
        let disk = SimDisk::new(SimOptions::default());
        let pace = Pace::new(Duration::from_micros(50), None);
        let files: Vec<_> = (0..files).map(|_| disk.create()).collect();
        let device = |file: &Arc<SimFile>| -> Arc<dyn DeviceFile> {
            if seed.is_multiple_of(2) {
                Arc::clone(file) as _
            } else {
                slowed(Arc::clone(file), &pace)
            }
        };
        let devices = files.iter().map(device).collect();
        Disk {
            files,
            devices,
            _disk: disk,
        }
    }

    fn store(&self) -> Store {
        Store::Sim(self.devices.clone())
    }
}

/// A session whose memory is far too small, by one of the routes.
fn session(seed: u64) -> Session {
    let routes = [Route::Auto, Route::Scrap, Route::Direct, Route::Threshold];
    let route = routes[(seed / 2 % 4) as usize];
    let direct_min = if seed.is_multiple_of(3) {
        BLOCK_BYTES
    } else {
        2 * BLOCK_BYTES
    };
    Session::open(Config {
        route,
        direct_min,
        ..Config::tiny()
    })
    .expect("a session")
}

/// What goes on behind everybody's back until `done`: flushes, evictions, memory given back, stops.
fn disturb(mut engine: Engine, seed: u64, done: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    while !done.load(Relaxed) {
        let file = random.below(engine.files.len() as u64) as u8;
        let core = engine
            .handle(file, 0)
            .core()
            .expect("a managed file")
            .clone();
        let me = core.shared.me().expect("a slot");
        match random.below(8) {
            0 | 1 => {
                let steps = 1 + random.below(8) as u8;
                engine.run(&Op::KeeperStep {
                    steps: steps.into(),
                });
            }
            2 => _ = evict::evict_file(me, core.id),
            3 => _ = evict::evict(me, 2, 0),
            4 => _ = provision::give_back(me, 0),
            5 => drop(stop_session(me)),
            6 => _ = engine.run(&Op::SyncData { file, handle: 0 }),
            _ => std::thread::sleep(Duration::from_micros(random.below(500))),
        }
    }
}

/// Reads at random, and sees to it that nothing goes back.
fn watch(plan: &PartitionPlan, mut engine: Engine, seed: u64, done: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    let mut reader = MonotoneReader::new(plan);
    while !done.load(Relaxed) {
        let file = random.below(u64::from(Profile::PARTITION.files)) as u8;
        let offset = random.below(Profile::PARTITION.window - 1);
        let len = (1 + random.below(20_000)).min(Profile::PARTITION.window - offset) as u32;
        match engine.run(&Op::Read {
            file,
            handle: 0,
            offset,
            len,
        }) {
            Outcome::Bytes(bytes) if bytes.len() == len as usize => {
                reader
                    .observe(file, offset, &bytes)
                    .unwrap_or_else(|m| panic!("watcher: {m}"));
            }
            odd => panic!("a watcher's read: {odd:?}"),
        }
    }
}

/// One plan from beginning to end.
fn partition(seed: u64) {
    let plan = PartitionPlan::new(seed, &Profile::PARTITION, WORKERS, OPS);
    let disk = Disk::new(Profile::PARTITION.files, seed);
    let session = session(seed);
    let files = disk.files.len();
    let engine = || Engine::over(session.clone(), disk.store(), files, 1);
    let mut first = engine();
    plan.prepare
        .iter()
        .for_each(|op| assert_eq!(first.run(op), Outcome::Done));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (plan, done, engine) = (&plan, &done, &engine);
        let worker = |worker| {
            scope.spawn(move || {
                let driven = plan.drive_worker(worker, &mut engine());
                driven.unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        scope.spawn(move || disturb(engine(), seed, done));
        scope.spawn(move || watch(plan, engine(), seed, done));
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Relaxed);
        assert!(
            ended.iter().all(Result::is_ok),
            "seed {seed}: a worker failed"
        );
    });
    plan.finished()
        .finish(&mut first)
        .unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
    the_device_agrees(&disk, &mut first, seed);
}

/// After a sync the device has what reads give.
fn the_device_agrees(disk: &Disk, engine: &mut Engine, seed: u64) {
    for (index, device) in disk.files.iter().enumerate() {
        let file = index as u8;
        assert_eq!(engine.run(&Op::SyncData { file, handle: 0 }), Outcome::Done);
        let contents = device.contents();
        let len = contents.len() as u32;
        let read = engine.run(&Op::Read {
            file,
            handle: 0,
            offset: 0,
            len,
        });
        assert!(
            read == Outcome::Bytes(contents),
            "seed {seed}: the device has other bytes in file {file}"
        );
    }
}

/// A round that takes longer than this hangs: a thread that has failed may have left others waiting for it.
const ROUND_MAX: Duration = Duration::from_secs(90);

/// Ends the program if nothing has been heard for too long.
fn watch_over(name: &str, heard: std::sync::mpsc::Receiver<u64>) {
    use std::sync::mpsc::RecvTimeoutError::Timeout;
    let mut last = None;
    loop {
        match heard.recv_timeout(ROUND_MAX) {
            Ok(seed) => last = Some(seed),
            Err(Timeout) => {
                eprintln!("{name}: the round with seed {last:?} hangs");
                std::process::abort();
            }
            Err(_) => return,
        }
    }
}

/// Rounds with fresh seeds for a while.
fn rounds(name: &'static str, time: Duration, round: impl Fn(u64)) {
    let end = Instant::now() + time;
    let first = fresh_seed();
    let mut count = 0;
    let (tell, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || watch_over(name, heard));
    while Instant::now() < end {
        let seed = first.wrapping_add(count);
        tell.send(seed).expect("somebody watches");
        round(seed);
        count += 1;
    }
    eprintln!("{name}: {count} rounds with seeds from {first}");
}

#[test]
fn disjoint_writers_and_monotone_readers() {
    (0..4).for_each(partition);
    rounds("partition", Duration::from_secs(10), partition);
}

#[test]
#[ignore = "minutes"]
fn disjoint_writers_and_monotone_readers_for_long() {
    rounds("partition", long(), partition);
}

fn open(session: &Session, device: &Arc<dyn DeviceFile>, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).clone();
    session
        .open_device(Arc::clone(device), name, &options)
        .expect("a file")
}

/// Bytes of a record.
const RECORD_BYTES: usize = 3001;

/// Records of several threads, while another file of the session is cut and punched.
fn appends_and_truncations(seed: u64) {
    const RECORDS: u32 = 60;
    let disk = Disk::new(2, seed);
    let session = session(seed);
    let [log, other] = [0, 1].map(|i| open(&session, &disk.devices[i], &format!("sim-{i}")));
    let (next, done) = (AtomicU32::new(1), AtomicBool::new(false));
    let append = || {
        let mut places = Vec::new();
        for _ in 0..RECORDS {
            let record = next.fetch_add(1, Relaxed);
            let mut bytes = vec![0; RECORD_BYTES];
            fill(record, 0, &mut bytes);
            places.push((log.append(&bytes).expect("an append"), record));
        }
        places
    };
    let cut = || {
        let mut random = SplitMix64::new(seed);
        while !done.load(Relaxed) {
            let at = random.below(3 * BLOCK_BYTES);
            match random.below(4) {
                0 => other.set_len(at).expect("a truncation"),
                1 => other
                    .punch(at, 1 + random.below(BLOCK_BYTES))
                    .expect("a hole"),
                2 => log.sync_data().expect("a sync"),
                _ => _ = other.write_at(&[7; 9000], at).expect("a write"),
            }
        }
    };
    let read = || {
        let mut random = SplitMix64::new(seed + 1);
        let mut bytes = vec![0xEE; 100_000];
        while !done.load(Relaxed) {
            let n = other
                .read_at(&mut bytes, random.below(3 * BLOCK_BYTES))
                .expect("a read");
            assert!(
                bytes[..n].iter().all(|&b| b == 0 || b == 7),
                "seed {seed}: foreign bytes"
            );
            bytes.fill(0xEE);
        }
    };
    let mut places = std::thread::scope(|scope| {
        let appenders: Vec<_> = (0..3).map(|_| scope.spawn(append)).collect();
        let others = [scope.spawn(cut), scope.spawn(read)];
        let places: Vec<_> = appenders.into_iter().map(|a| a.join()).collect();
        done.store(true, Relaxed);
        others
            .into_iter()
            .for_each(|o| o.join().expect("no mismatch"));
        places
            .into_iter()
            .flat_map(|p| p.expect("no mismatch"))
            .collect::<Vec<_>>()
    });
    places.sort_unstable();
    log.sync_data().expect("a sync");
    records_are_whole(&disk.files[0].contents(), &places, seed);
}

/// Records lie one after the other, each in one piece.
fn records_are_whole(device: &[u8], places: &[(u64, u32)], seed: u64) {
    for (index, &(at, record)) in places.iter().enumerate() {
        assert_eq!(
            at,
            (index * RECORD_BYTES) as u64,
            "seed {seed}: records overlap or leave gaps"
        );
        let bytes = &device[at as usize..at as usize + RECORD_BYTES];
        let good = bytes.iter().zip(0..).all(|(&b, i)| b == byte_at(record, i));
        assert!(good, "seed {seed}: the record at {at} is not of one piece");
    }
}

#[test]
fn appends_beside_truncations() {
    rounds("appends", Duration::from_secs(5), appends_and_truncations);
}

#[test]
#[ignore = "minutes"]
fn appends_beside_truncations_for_long() {
    rounds("appends", long(), appends_and_truncations);
}

/// Deaths are no news.
fn hear_nothing_of_deaths() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Crash>() {
                usual(info);
            }
        }));
    });
}

/// Says that it is over, also where a panic ends it: a scope waits for all of its threads.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Bytes of a thread's own in a file that it shares.
const OWN_BYTES: u64 = 40_000;

/// Writes its part again and again, and reads it back each time.
fn survive(file: &File, index: u64, seeds: &AtomicU32, done: &AtomicBool) {
    let start = index * OWN_BYTES;
    let mut expected = vec![0; OWN_BYTES as usize];
    let mut random = SplitMix64::new(index);
    while !done.load(Relaxed) {
        let from = random.below(OWN_BYTES - 1);
        let len = 1 + random.below((OWN_BYTES - from).min(9000));
        let part = &mut expected[from as usize..(from + len) as usize];
        fill(seeds.fetch_add(1, Relaxed), start + from, part);
        assert_eq!(
            file.write_at(part, start + from).expect("a write"),
            part.len()
        );
        if random.below(8) == 0 {
            file.sync_data().expect("a sync");
        }
        let mut found = vec![0xEE; OWN_BYTES as usize];
        file.read_at(&mut found, start).expect("a read");
        let odd = first_difference(&found, &expected);
        assert_eq!(
            odd,
            None,
            "a survivor's bytes have changed at {}",
            start + odd.unwrap_or(0) as u64
        );
    }
}

/// Lives once, and dies at work on the last part and on the whole blocks behind it.
fn live_and_die(file: &File, random: &mut SplitMix64, survivors: u64) {
    let core = file.core().expect("a managed file");
    let me = core.shared.me().expect("a slot");
    let own = survivors * OWN_BYTES;
    let bytes = vec![0xDD; 2 * BLOCK_BYTES as usize];
    let (what, n) = (random.below(6), random.below(2000));
    let offset = own + random.below(OWN_BYTES / 2);
    let died = crash_after(n, || {
        let outcome = match what {
            0 | 1 => file.write_at(&bytes[..10_000], offset).map(|_| ()),
            2 => file.write_at(&bytes, 2 * BLOCK_BYTES).map(|_| ()),
            3 => file.sync_data(),
            4 => file.punch(offset, 5000),
            _ => {
                evict::evict_file(me, core.id);
                file.read_at(&mut [0; 20_000], 0).map(|_| ())
            }
        };
        outcome.expect("an operation");
    });
    if died.is_none() {
        members::forget(core.shared.instance);
        slay(me.arena, me.id);
    }
}

/// Sees to the dead whom nobody has met, whose slots are missing otherwise. A repair is put off while a thread gets no time to stop in.
fn bury_all(session: &Session) {
    let (shared, begun) = (session.shared(), Instant::now());
    let me = shared.me().expect("a slot");
    while !threads::dead(me.arena).is_empty() && begun.elapsed() < Duration::from_secs(20) {
        repair::if_needed(shared, me);
    }
}

/// Threads die all the time; those that live notice nothing of it.
fn deaths(seed: u64) {
    const SURVIVORS: u64 = 3;
    hear_nothing_of_deaths();
    let disk = Disk::new(1, seed);
    let session = session(seed);
    let file = open(&session, &disk.devices[0], "sim-0");
    file.set_len(4 * BLOCK_BYTES).expect("room");
    let (seeds, done, lives) = (AtomicU32::new(1), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (file, seeds, done, lives) = (&file, &seeds, &done, &lives);
        let ends = Ends(done);
        let living: Vec<_> = (0..SURVIVORS)
            .map(|index| scope.spawn(move || survive(file, index, seeds, done)))
            .collect();
        let mut random = SplitMix64::new(seed);
        let end = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end && !living.iter().any(|thread| thread.is_finished()) {
            let mut own = SplitMix64::new(random.next_u64());
            scope
                .spawn(move || live_and_die(file, &mut own, SURVIVORS))
                .join()
                .expect("a death or an end");
            if lives.fetch_add(1, Relaxed).is_multiple_of(16) {
                bury_all(&session);
            }
        }
        drop(ends);
        living
            .into_iter()
            .for_each(|thread| thread.join().expect("no mismatch"));
    });
    let shared = session.shared();
    repair::if_needed(shared, shared.me().expect("a slot"));
    assert_eq!(
        session.stats().corruptions,
        0,
        "seed {seed}: deaths explain everything"
    );
    file.sync_data().expect("a sync");
    assert_eq!(
        session.stats().dirty_bytes,
        0,
        "seed {seed}: owed after a sync"
    );
}

#[test]
fn survivors_notice_nothing() {
    rounds("deaths", Duration::from_secs(6), deaths);
}

#[test]
#[ignore = "minutes"]
fn survivors_notice_nothing_for_long() {
    rounds("deaths", long(), deaths);
}
