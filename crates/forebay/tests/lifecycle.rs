//! A session's memory: given back when idle, never above its budget, and enough where there is little.
#![cfg(feature = "sim")]

mod common;
mod disks;
mod here;
mod workers;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use disks::{Disk, Group, Tmpfs};
use forebay::keeper::recover::recover;
use forebay::member::provision;
use forebay::memory::regions;
use forebay::session::look::look;
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::{Access, Op, fill};
use here::directory;
use workers::{Spec, Work, Worker, config, plan, session_name};

const MIB: u64 = 1 << 20;

fn open(session: &Session, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    session.open_file(path, &options).expect("a file")
}

fn write(file: &File, len: u64, seed: u32) {
    write_at(file, 0, len, seed);
}

/// In requests of less than a block, which nobody writes to the device before he must.
fn write_dirty(file: &File, len: u64, seed: u32) {
    write_pieces(file, 0, len, 64 << 10, seed);
}

fn write_at(file: &File, start: u64, len: u64, seed: u32) {
    write_pieces(file, start, len, MIB as usize / 4, seed);
}

fn write_pieces(file: &File, start: u64, len: u64, piece: usize, seed: u32) {
    let mut bytes = vec![0; piece];
    for at in (start..start + len).step_by(bytes.len()) {
        fill(seed, at, &mut bytes);
        assert_eq!(
            file.write_at(&bytes, at).expect("memory is made"),
            bytes.len()
        );
    }
}

fn assert_file(path: &Path, len: u64, seed: u32) {
    let mut expected = vec![0; len as usize];
    fill(seed, 0, &mut expected);
    assert!(
        std::fs::read(path).expect("the file") == expected,
        "{} differs",
        path.display()
    );
}

/// Bytes of memory behind the arena's file.
fn allocated(session: &Session) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let path = session.place().expect("accounts").path.expect("a file");
    std::fs::metadata(path).expect("the arena").blocks() * 512
}

fn frames(session: &Session) -> u32 {
    session
        .shared()
        .arena
        .superblock()
        .frames_backed
        .load(Ordering::Relaxed)
}

#[test]
fn an_idle_session_gives_memory_back() {
    let dir = directory();
    let mut config = config(&session_name("idle"));
    config.memory = 96 * MIB;
    config.dirty_bytes_max = 80 * MIB;
    config.idle_after = Some(Duration::from_secs(1));
    // It stays dirty, but for requests of a block and more: what is clean may be evicted before memory is asked for.
    config.route = forebay::config::Route::Scrap;
    config.dirty_background = 64 * MIB;
    (config.flush_after, config.flush_interval) = (None, None);
    let session = Session::open(config).expect("a session");
    let path = dir.path().join("file");
    // Ahead, as a keeper with a core to itself does: a writer that outruns it makes room by writing.
    session.warm(64 * MIB).expect("memory");
    let file = open(&session, &path);
    write_dirty(&file, 64 * MIB, 1);
    // Before the sync, in which a busy machine may let the session be idle.
    let (most, held) = (frames(&session), allocated(&session));
    file.sync_all().expect("synced");
    assert!(most >= 200, "{most} frames for 64 MiB");
    let begun = Instant::now();
    while frames(&session) > most / 2 || allocated(&session) > held / 2 {
        let (now, bytes) = (frames(&session), allocated(&session));
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{now} frames of {most}, {bytes} bytes of {held}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    // And works on.
    write(&file, 32 * MIB, 2);
    let mut back = vec![0; 1000];
    file.read_at(&mut back, 40 * MIB).expect("reads");
    let mut expected = vec![0; 1000];
    fill(1, 40 * MIB, &mut expected);
    assert_eq!(back, expected);
}

/// Two who do not know of each other: one who wants all of the memory, and one who takes for idle what nobody uses.
#[test]
fn memory_that_is_given_back_at_once_is_not_given_for_ever() {
    let mut config = config(&session_name("fight"));
    config.memory = 256 * MIB;
    let session = Arc::new(Session::open(config).expect("a session"));
    let stop = Arc::new(AtomicBool::new(false));
    let giver = {
        let (session, stop) = (Arc::clone(&session), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let me = session.shared().me().expect("a slot");
                provision::give_back(me, 0);
            }
        })
    };
    let (tell, told) = mpsc::channel();
    let warming = Arc::clone(&session);
    std::thread::spawn(move || {
        let warmed = warming.warm(256 * MIB);
        drop(warming);
        tell.send(warmed).expect("somebody waits");
    });
    let warmed = told.recv_timeout(Duration::from_secs(20));
    stop.store(true, Ordering::Relaxed);
    giver.join().expect("given back");
    warmed.expect("it ends").expect("memory");
}

/// Frames that are kept ready.
fn ready(session: &Session) -> u32 {
    let superblock = session.shared().arena.superblock();
    superblock.frames_ready.load(Ordering::Relaxed)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `/dev/shm` is small in many places, and others want it, too.
#[test]
fn a_session_that_writes_little_holds_little() {
    let dir = directory();
    let mut config = config(&session_name("little"));
    config.memory = 512 * MIB;
    config.route = forebay::config::Route::Scrap;
    let session = Session::open(config).expect("a session");
    let file = open(&session, &dir.path().join("file"));
    write(&file, MIB, 1);
    wait_until("nothing is ready", || frames(&session) >= 64);
    // Longer than the keeper looks away.
    std::thread::sleep(Duration::from_millis(300));
    // What is ready, what is in use, and a huge page begun; and tables, most of which are as large for any session.
    let (backed, held) = (frames(&session), allocated(&session));
    assert!(backed <= 64 + 8 + 8, "{backed} frames for one MiB");
    assert!(held <= 34 * MIB, "{held} bytes of memory for one MiB");
    assert_eq!(ready(&session), 64);
}

/// Writers that catch up with the keeper find more ready, until they rest.
#[test]
fn demand_is_met_ahead_and_forgotten_when_idle() {
    let dir = directory();
    let mut config = config(&session_name("demand"));
    config.memory = 512 * MIB;
    config.dirty_bytes_max = 512 * MIB;
    config.dirty_background = 512 * MIB;
    (config.flush_after, config.flush_interval) = (None, None);
    config.idle_after = Some(Duration::from_secs(1));
    config.route = forebay::config::Route::Scrap;
    let session = Session::open(config).expect("a session");
    let file = open(&session, &dir.path().join("file"));
    let superblock = session.shared().arena.superblock();
    let free = || superblock.frames_free.load(Ordering::Relaxed);
    write(&file, 64 * MIB, 1);
    // All of it at once, faster than any keeper looks, and again when as much is ready as should be: taken as fast as it is given, memory
    // would run out first.
    let me = session.shared().me().expect("a slot");
    let mut taken = Vec::new();
    wait_until("it is not doubled", || {
        if free() >= ready(&session) {
            taken.extend(std::iter::from_fn(|| regions::take_frame(me)));
        }
        ready(&session) >= 128
    });
    wait_until("not as much is ready as should be", || {
        free() >= ready(&session)
    });
    let max = superblock.frames_max.load(Ordering::Relaxed);
    assert!(ready(&session) <= max / 4 && frames(&session) <= max);
    for frame in taken {
        regions::free_frame(me, frame);
    }
    file.sync_all().expect("synced");
    wait_until("it is not forgotten", || {
        ready(&session) == 64 && free() <= 128
    });
}

/// Several writers with more than fits: nothing fails, and no budget is passed on the way.
fn under_load(config: Config, dir: &Path, each: u64) {
    let (memory, dirty) = (config.memory, config.dirty_bytes_max);
    let session = Session::open(config).expect("a session");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let session = &session;
        let done = &done;
        let watch = scope.spawn(move || {
            let mut most = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let stats = session.stats();
                let tables = session.shared().arena.tables_backed_bytes();
                most.0 = most
                    .0
                    .max(stats.memory_held_bytes - tables.min(stats.memory_held_bytes));
                most.1 = most.1.max(stats.dirty_bytes);
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let writers: Vec<_> = (0..3u32)
            .map(|seed| {
                scope.spawn(move || {
                    let path = dir.join(format!("file-{seed}"));
                    let file = open(session, &path);
                    write(&file, each, seed + 1);
                    file.sync_all().expect("synced");
                    assert_file(&path, each, seed + 1);
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        for writer in ended {
            writer.expect("no writer fails");
        }
        let (held, owed) = watch.join().expect("watched");
        assert!(
            held <= memory,
            "{held} bytes of frames held, {memory} allowed"
        );
        // Each writer may pass the limit by its own last request and what the sum lags behind.
        let slack = 3 * (MIB / 4 + MIB / 4);
        assert!(owed <= dirty + slack, "{owed} bytes dirty, {dirty} allowed");
    });
}

#[test]
fn budgets_hold_under_load() {
    let dir = directory();
    under_load(config(&session_name("load")), dir.path(), 24 * MIB);
    let mut tight = config(&session_name("load"));
    tight.memory = 4 * MIB;
    tight.dirty_bytes_max = MIB;
    tight.dirty_background = MIB / 2;
    let dir = directory();
    under_load(tight, dir.path(), 8 * MIB);
}

/// What has been read takes no more than its part, however much is free; what is written may take the rest.
#[test]
fn clean_memory_has_a_limit_of_its_own() {
    let dir = directory();
    let path = dir.path().join("file");
    let mut config = config(&session_name("clean"));
    config.memory = 128 * MIB;
    config.dirty_bytes_max = 64 * MIB;
    config.dirty_background = 64 * MIB;
    (config.flush_after, config.flush_interval) = (None, None);
    config.route = forebay::config::Route::Scrap;
    // Else a keeper without privilege writes what is owed when it hears that the file has been opened, by this test.
    config.coherence = forebay::config::Coherence::Close;
    let clean_max = 8 * MIB;
    config.clean_bytes_max = Some(clean_max);
    let session = Session::open(config).expect("a session");
    // As in the test of idleness.
    session.warm(64 * MIB).expect("memory");
    let file = open(&session, &path);
    write_dirty(&file, 48 * MIB, 1);
    let superblock = session.shared().arena.superblock();
    let used = || {
        let backed = superblock.frames_backed.load(Ordering::Relaxed);
        u64::from(backed - superblock.free_about()) * (MIB / 4)
    };
    let stats = session.stats();
    assert!(
        used() >= 48 * MIB,
        "dirty bytes have gone: {} used, {} dirty, {} flushed",
        used(),
        stats.dirty_bytes,
        stats.device_write_bytes
    );
    file.sync_all().expect("synced");
    wait_until("what was written stays", || used() <= clean_max);
    let mut back = vec![0; MIB as usize];
    for at in 0..48 {
        file.read_at(&mut back, at * MIB).expect("bytes");
        // And what the reader brings by itself, as the keeper has room for what it is reading before it begins.
        assert!(used() <= clean_max + 2 * MIB, "{} bytes are clean", used());
    }
    assert!(used() >= clean_max / 2, "{} bytes are kept", used());
}

#[test]
fn a_small_memory_file_system_is_lived_with() {
    let tmpfs = match Tmpfs::new(32) {
        Ok(tmpfs) => tmpfs,
        Err(reason) => return here::skipped(reason),
    };
    for fill_it in [false, true] {
        let dir = directory();
        let mut config = config(&session_name("small"));
        config.arena_dir = Some(tmpfs.dir().to_owned());
        config.memory = 256 * MIB;
        config.dirty_bytes_max = 128 * MIB;
        config.dirty_background = 64 * MIB;
        if fill_it {
            // Others take the room after the session has begun: what is left has to do.
            let session = Session::open(config.clone()).expect("a session");
            let file = open(&session, &dir.path().join("file"));
            write(&file, 2 * MIB, 1);
            let mut ballast = std::fs::File::create(tmpfs.dir().join("ballast")).expect("a file");
            while std::io::Write::write_all(&mut ballast, &[1; 65536]).is_ok() {}
            write(&file, 48 * MIB, 2);
            file.sync_all().expect("synced");
            assert_file(&dir.path().join("file"), 48 * MIB, 2);
            std::fs::remove_file(tmpfs.dir().join("ballast")).expect("removed");
        } else {
            let session = Session::open(config).expect("a session");
            let file = open(&session, &dir.path().join("file"));
            write(&file, 64 * MIB, 1);
            file.sync_all().expect("synced");
            assert_file(&dir.path().join("file"), 64 * MIB, 1);
        }
    }
}

/// Whoever finds a memory file system all but full is told where, how much is missing and what to do, and nothing is left there.
#[test]
fn a_full_memory_file_system_is_named_with_its_remedy() {
    let tmpfs = match Tmpfs::new(32) {
        Ok(tmpfs) => tmpfs,
        Err(reason) => return here::skipped(reason),
    };
    let mut config = config(&session_name("full"));
    config.arena_dir = Some(tmpfs.dir().to_owned());
    // With more, the arena would go where there is room.
    config.memory = 2 * MIB;
    let mut ballast = std::fs::File::create(tmpfs.dir().join("ballast")).expect("a file");
    while std::io::Write::write_all(&mut ballast, &[1; 65536]).is_ok() {}
    let filled = ballast.metadata().expect("a length").len();
    for free in [4 * MIB, 5 * MIB] {
        ballast.set_len(filled - free).expect("shorter");
        let error = Session::open(config.clone())
            .err()
            .expect("there is no room");
        let text = error.to_string();
        let dir = tmpfs.dir().display().to_string();
        assert!(text.contains(&dir) && text.contains("arena_dir"), "{text}");
        let arenas = forebay::memory::place::find_arenas(config.arena_dir.as_deref());
        let left: Vec<_> = arenas
            .iter()
            .filter(|a| a.session == config.session)
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    drop(ballast);
    std::fs::remove_file(tmpfs.dir().join("ballast")).expect("removed");
    Session::open(config).expect("there is room again");
}

/// What [`grow`] writes, bytes: just after a step ahead.
const GROWN: u64 = 40 << 16;

/// A client's file 0 grows, with space reserved ahead, and is synced; then it is open for reading only, or as it was.
fn grow(client: &mut Worker, for_reading: bool) {
    let (file, handle, len, seed) = (0, 0, 1 << 16, 1);
    for offset in (0..GROWN).step_by(len as usize) {
        client.run(&Op::Write {
            file,
            handle,
            offset,
            len,
            seed,
        });
    }
    client.run(&Op::SyncAll { file, handle });
    if for_reading {
        let (access, truncate) = (Access::ReadOnly, false);
        client.run(&Op::Reopen {
            file,
            handle,
            access,
            truncate,
        });
    }
}

/// Whoever dies has closed its files, also those that it only read, and also when its keeper dies with it: what was reserved
/// ahead for them goes back, and their entries can be used for other files.
#[test]
fn the_dead_have_nothing_open() {
    let disk = match Disk::new("xfs", 320, "") {
        Ok(disk) => disk,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    // This process keeps the session, or stands by while one keeps it that has the file open as well and ends, or dies.
    for keeper in [None, Some(false), Some(true)] {
        let name = session_name("opens");
        let work = Work::Commands { files: 1 };
        let worker = |hosts| Worker::ready(&Spec::new(&name, disk.dir(), hosts, work.clone()));
        let elsewhere = keeper.map(|_| worker(true));
        let session = Session::open(config(&name)).expect("a session");
        let _other = open(&session, &disk.dir().join("other"));
        let mut client = worker(false);
        // Opened for reading only where that is not the last close, which would give back what is reserved.
        grow(&mut client, elsewhere.is_some());
        let path = disk.dir().join("file-0");
        let is_open = || {
            let arena = session.place().expect("accounts").path.expect("a file");
            let files = look(&arena).expect("an arena").expect("a session").files();
            let file = files.into_iter().find(|file| file.path == path);
            file.expect("an entry").is_open
        };
        let bytes = || std::fs::metadata(&path).expect("the file").blocks() * 512;
        assert!(is_open());
        assert!(bytes() > GROWN + MIB / 2, "nothing is reserved ahead");
        client.kill();
        client.end().assert_good_or_killed();
        assert_eq!(
            is_open(),
            elsewhere.is_some(),
            "the keeper has it open, too"
        );
        match (elsewhere, keeper) {
            (Some(mut keeper), Some(true)) => {
                keeper.kill();
                keeper.end().assert_good_or_killed();
            }
            (keeper, _) => drop(keeper.map(Worker::finish)),
        }
        assert!(!is_open());
        let begun = Instant::now();
        while bytes() != GROWN {
            let late = begun.elapsed() > Duration::from_secs(10);
            assert!(!late, "{keeper:?}: {} bytes for {GROWN}", bytes());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::remove_file(path).expect("removed");
    }
}

/// A file's end that was punched before it was written is nobody's byte, and still its length: who leaves last sees to it for
/// those who died.
#[test]
fn a_length_that_only_memory_knows_outlives_its_writer() {
    let dir = directory();
    for hosts in [false, true] {
        for round in 0..4 {
            let name = session_name("length");
            let session = match hosts {
                true => Session::open(config(&name)),
                false => Session::join(config(&name)),
            };
            let session = session.expect("a session");
            let work = Work::Commands { files: 1 };
            let mut client = Worker::ready(&Spec::new(&name, dir.path(), false, work));
            let (file, handle, seed) = (0, 0, 1);
            let (offset, len) = (0, 300_000);
            client.run(&Op::Write {
                file,
                handle,
                offset,
                len,
                seed,
            });
            let (offset, len) = (200_000, 100_000);
            client.run(&Op::Punch {
                file,
                handle,
                offset,
                len,
            });
            // With the keeper's flushes over, and some rounds of its housekeeping, or not.
            let pause = if round % 2 == 0 { 30 } else { 1200 };
            std::thread::sleep(Duration::from_millis(pause));
            client.kill();
            client.end().assert_good_or_killed();
            let config = config(&name);
            drop(session);
            let arena = workers::arena_path(&config);
            if arena.exists() {
                let report = recover(&arena, &config).expect("a dead session");
                assert!(report.removed, "{report:?}");
            }
            let path = dir.path().join("file-0");
            let found = std::fs::metadata(&path).expect("the file").len();
            assert_eq!(found, 300_000, "kept by a keeper: {hosts}");
            std::fs::remove_file(&path).expect("removed");
        }
    }
}

#[test]
fn a_cgroup_smaller_than_the_budget_kills_nobody() {
    let group = match Group::little_memory(64 * MIB) {
        Ok(group) => group,
        Err(reason) => return here::skipped(reason),
    };
    let dir = directory();
    let session = session_name("cgroup");
    let mut spec = Spec::new(&session, dir.path(), true, Work::Commands { files: 1 });
    spec.memory = Some(512 * MIB);
    let mut worker = Worker::start_with(&spec, |command| group.enter(command));
    worker.await_ready();
    for index in 0..160u32 {
        let op = Op::Write {
            file: 0,
            handle: 0,
            offset: u64::from(index) * MIB,
            len: MIB as u32,
            seed: 1,
        };
        assert_eq!(worker.run(&op), format!("{MIB} bytes written"));
    }
    assert_eq!(worker.run(&Op::SyncAll { file: 0, handle: 0 }), "done");
    worker.finish();
    assert_file(&dir.path().join("file-0"), 160 * MIB, 1);
    assert_eq!(group.times_killed(), 0, "the kernel had to kill");
}

#[test]
fn processes_share_one_budget() {
    let dir = directory();
    let session = session_name("budget");
    let plan = plan(5, 3, 100);
    for op in &plan.prepare {
        let Op::SetLen { file, len, .. } = *op else {
            panic!("plans set lengths");
        };
        let made = std::fs::File::create(dir.path().join(format!("file-{file}"))).expect("a file");
        made.set_len(len).expect("a length");
    }
    let all: Vec<Worker> = (0..3)
        .map(|me| {
            let work = Work::Partition {
                seed: 5,
                workers: 3,
                me,
                ops: 100,
            };
            let mut spec = Spec::new(&session, dir.path(), me == 0, work);
            // Less than the two files: 4 of 3 MiB, twice.
            spec.memory = Some(2 * MIB);
            Worker::ready(&spec)
        })
        .collect();
    let mut all = all;
    all.iter_mut().for_each(Worker::go);
    all.into_iter().for_each(|worker| drop(worker.finish()));
    let driver = plan.finished();
    for file in 0..2u8 {
        let image = std::fs::File::open(dir.path().join(format!("file-{file}"))).expect("the file");
        if let Err(mismatch) = driver.model().after_death(file, &[], &image) {
            panic!("{mismatch}");
        }
    }
}
