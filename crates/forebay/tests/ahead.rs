//! Reading ahead: streams find in memory what comes next, nobody gets old bytes or another's error, and nobody waits for long.
#![cfg(feature = "sim")]

mod common;
mod here;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::device::{Done, Inline, Queue, Request};
use forebay::keeper::ahead::Prefetcher;
use forebay::sim::device::{
    CallKind, FaultPlan, Kinds, Outcome as Fault, Repeat, SimDisk, SimFile, SimOptions, Wrapped,
};
use forebay::sim::{Bug, plant};
use forebay::sync::Ordering;
use forebay::sys::memory::AlignedBytes;
use forebay::{Advise, Config, File, OpenOptions, Session, Stats};
use forebay_model::fill;

const BLOCK: u64 = 256 * 1024;
const PAGE: usize = 4096;
const SEED: u32 = 99;

fn bytes(offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(SEED, offset, &mut bytes);
    bytes
}

fn read_and_check(file: &File, offset: u64, len: usize) {
    let mut found = vec![0xEE; len];
    assert_eq!(file.read_at(&mut found, offset).expect("read"), len);
    assert!(found == bytes(offset, len), "wrong bytes at {offset}");
}

/// A file in a real session with a keeper, and nothing of it in memory.
fn uncached(dir: &Path, name: &str, read_ahead: u64, len: u64) -> (Session, File) {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 64 << 20;
    config.read_ahead = read_ahead;
    config.session = format!("test-ahead-{name}-{}", std::process::id());
    let session = Session::open(config).expect("a session");
    let path = dir.join(name);
    std::fs::write(&path, bytes(0, len as usize)).expect("a file");
    std::fs::File::open(&path)
        .and_then(|f| f.sync_all())
        .expect("synced");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_file(&path, &options).expect("opened");
    (session, file)
}

fn reads(pattern: &str, len: u64) -> Vec<(u64, usize)> {
    let page = PAGE as u64;
    let pages = len / page;
    match pattern {
        "up" => (0..pages).map(|p| (p * page, PAGE)).collect(),
        "down" => (0..pages).rev().map(|p| (p * page, PAGE)).collect(),
        "large" => (0..len / 65536).map(|i| (i * 65536, 65536)).collect(),
        _ => (0..len / (2 * BLOCK))
            .map(|i| (i * 2 * BLOCK, PAGE))
            .collect(),
    }
}

fn run(pattern: &str, read_ahead: u64) -> Option<(Stats, u64)> {
    let dir = here::directory();
    let len = 24 << 20;
    let name = format!("{pattern}-{read_ahead}");
    let (session, file) = uncached(dir.path(), &name, read_ahead, len);
    if let Some(reason) = file.kernel_reason() {
        here::skipped(reason);
        return None;
    }
    let list = reads(pattern, len);
    let wanted: u64 = list.iter().map(|(_, len)| *len as u64).sum();
    for (offset, len) in list {
        read_and_check(&file, offset, len);
    }
    let stats = session.stats();
    file.close().expect("closed");
    Some((stats, wanted))
}

const PATTERNS: [&str; 4] = ["up", "down", "large", "strided"];

/// How much is read ahead depends on who is quicker, here.
#[test]
fn streams_are_read_ahead_by_a_keeper() {
    for pattern in PATTERNS {
        let Some((stats, wanted)) = run(pattern, 4 << 20) else {
            return;
        };
        let (ahead, used) = (stats.ahead_bytes, stats.ahead_used_bytes);
        assert!(used <= ahead, "{pattern}: {used} of {ahead} used");
        let read = stats.device_read_bytes;
        assert!(read < wanted + wanted / 4, "{pattern}: {read} for {wanted}");
        assert_eq!(stats.ahead_wasted_bytes, 0, "{pattern}");
    }
}

/// With a keeper that is always quicker.
#[test]
fn streams_find_in_memory_what_comes_next() {
    for pattern in PATTERNS {
        let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
        let (session, _, file) = simulated(&plan);
        let mut prefetcher = office(&session, Box::new(Inline::new()));
        let list = reads(pattern, 8 * BLOCK);
        let wanted: u64 = list.iter().map(|(_, len)| *len as u64).sum();
        for (offset, len) in list {
            read_and_check(&file, offset, len);
            round(&session, &mut prefetcher);
        }
        let stats = session.stats();
        let (ahead, used) = (stats.ahead_bytes, stats.ahead_used_bytes);
        let least = if pattern == "strided" {
            0
        } else {
            wanted / 8 * 6
        };
        assert!(ahead >= least, "{pattern}: {ahead} of {wanted} ahead");
        assert_eq!(used, ahead, "{pattern}: all of it is used");
        assert!(stats.device_read_bytes <= wanted, "{pattern}: {stats:?}");
    }
}

#[test]
fn it_can_be_switched_off() {
    let Some((stats, _)) = run("up", 0) else {
        return;
    };
    assert_eq!((stats.ahead_bytes, stats.ahead_used_bytes), (0, 0));
}

/// A session on a simulated disk, one file with known bytes that are not in memory.
fn simulated(plan: &Arc<FaultPlan>) -> (Session, Arc<SimFile>, File) {
    let disk = SimDisk::new(SimOptions::default());
    let sim = disk.create();
    let config = Config {
        read_ahead: 1 << 20,
        memory: 32 * BLOCK,
        ..Config::tiny()
    };
    let session = Session::open(config).expect("a session");
    let device = Arc::new(Wrapped::new(Arc::clone(&sim), Arc::clone(plan)));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session
        .open_device(device, "sim", &options)
        .expect("a file");
    for block in 0..8 {
        let at = block * BLOCK;
        file.write_at(&bytes(at, BLOCK as usize), at)
            .expect("written");
    }
    file.sync_data().expect("synced");
    drop_clean(&session, &file);
    (session, sim, file)
}

fn drop_clean(session: &Session, file: &File) {
    let me = session.shared().me().expect("a slot");
    forebay::evict::evict_file(me, file.core().expect("managed").id);
}

fn round(session: &Session, prefetcher: &mut Prefetcher) {
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    prefetcher.round(shared, me, true);
}

fn office(session: &Session, queue: Box<dyn Queue>) -> Prefetcher {
    let prefetcher = Prefetcher::new(queue, 4);
    prefetcher.take_office(session.shared().me().expect("a slot"));
    prefetcher
}

/// Whatever read fails: what was read ahead fails in silence, and the reader has its own error or its bytes.
#[test]
fn an_error_of_reading_ahead_is_nobodys() {
    let reads = Kinds::of(&[CallKind::ReadDirect]);
    let mut silent = 0;
    for n in 0..12 {
        let plan = FaultPlan::nth(n, reads, Fault::Errno(libc::EIO), Repeat::Once);
        let (session, _, file) = simulated(&plan);
        let mut prefetcher = office(&session, Box::new(Inline::new()));
        let mut errors = 0;
        for page in 0..8 * 64 {
            let (at, mut found) = (page * PAGE as u64, [0; PAGE]);
            match file.read_at(&mut found, at) {
                Ok(_) => assert!(found[..] == bytes(at, PAGE)[..], "wrong bytes at {at}"),
                Err(error) => {
                    assert_eq!(error.errno(), libc::EIO);
                    errors += 1;
                    read_and_check(&file, at, PAGE);
                }
            }
            round(&session, &mut prefetcher);
        }
        assert!(errors <= 1, "one call fails, {errors} reads say so");
        silent += usize::from(errors == 0);
        file.sync_data().expect("no error is left to a sync");
        file.close().expect("closed");
    }
    assert!(silent > 0, "no read ahead has failed");
}

/// A queue whose requests never end while the test looks.
struct Stuck(Vec<Request>);

impl Queue for Stuck {
    fn submit(&mut self, request: Request) {
        self.0.push(request);
    }

    fn poll(&mut self, _wait: bool, _done: &mut Vec<Done>) {}

    fn in_flight(&self) -> usize {
        self.0.len()
    }

    fn name(&self) -> &'static str {
        "stuck"
    }
}

#[test]
fn a_keeper_that_is_stopped_is_not_waited_for_long() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, _, file) = simulated(&plan);
    let mut prefetcher = office(&session, Box::new(Stuck(Vec::new())));
    let begun = Instant::now();
    for page in 0..8 * 64 {
        read_and_check(&file, page * PAGE as u64, PAGE);
        let shared = session.shared();
        prefetcher.round(shared, shared.me().expect("a slot"), false);
    }
    assert!(prefetcher.is_reading(), "nothing was asked");
    let waited = begun.elapsed();
    // One wait for each page would be 15 s.
    assert!(waited < Duration::from_secs(10), "waited {waited:?}");
}

/// What has been read ahead of a file that somebody writes meanwhile, in every way, is not kept.
#[test]
fn what_was_read_before_a_change_is_not_kept() {
    let changes: [fn(&File); 4] = [
        |file| {
            file.write_at(&vec![7; 3 * BLOCK as usize], BLOCK)
                .expect("written");
            file.sync_data().expect("synced");
        },
        |file| file.punch(BLOCK, 3 * BLOCK).expect("punched"),
        |file| {
            file.set_len(BLOCK + 5).expect("cut");
            file.set_len(8 * BLOCK).expect("longer");
        },
        |file| {
            file.write_at(&[7; 100], BLOCK + 10).expect("written");
            file.sync_data().expect("synced");
        },
    ];
    for (which, change) in changes.iter().enumerate() {
        for evicts in [false, true] {
            let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
            let (session, sim, file) = simulated(&plan);
            let mut prefetcher = office(&session, Box::new(Late(Inline::new())));
            for page in 0..4 {
                read_and_check(&file, page * PAGE as u64, PAGE);
            }
            // Read from the device now, and kept after the change.
            let shared = session.shared();
            let me = shared.me().expect("a slot");
            prefetcher.round(shared, me, false);
            assert!(prefetcher.is_reading(), "nothing was asked");
            change(&file);
            if evicts {
                file.sync_data().expect("synced");
                drop_clean(&session, &file);
            }
            prefetcher.leave(shared, me);
            let mut found = vec![0; 8 * BLOCK as usize];
            file.read_at(&mut found, 0).expect("read");
            file.sync_data().expect("synced");
            let device = sim.contents();
            assert!(found[..] == device[..], "change {which}, evicts {evicts}");
            file.close().expect("closed");
        }
    }
}

/// Reads at once and tells later.
struct Late(Inline);

impl Queue for Late {
    fn submit(&mut self, request: Request) {
        self.0.submit(request);
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Done>) {
        if wait {
            self.0.poll(true, done);
        }
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn name(&self) -> &'static str {
        "late"
    }
}

#[test]
fn what_a_program_says_is_heeded() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, _, file) = simulated(&plan);
    let mut prefetcher = office(&session, Box::new(Inline::new()));
    let mut ahead = |session: &Session| {
        (0..9).for_each(|_| round(session, &mut prefetcher));
        session.stats().ahead_bytes / BLOCK
    };
    file.advise(2 * BLOCK + 5, BLOCK, Advise::WillNeed)
        .expect("heard");
    assert_eq!(ahead(&session), 2, "both blocks that the range touches");
    let calls = plan.calls();
    read_and_check(&file, 2 * BLOCK, 2 * BLOCK as usize);
    assert_eq!(plan.calls(), calls, "they are in memory");

    file.advise(0, 3 * BLOCK + 5, Advise::DontNeed)
        .expect("heard");
    read_and_check(&file, 3 * BLOCK, BLOCK as usize);
    assert_eq!(plan.calls(), calls, "a part of a block stays");
    read_and_check(&file, 2 * BLOCK, PAGE);
    assert_eq!(plan.calls(), calls + 1, "a whole one went");

    drop_clean(&session, &file);
    file.advise(0, 0, Advise::Random).expect("heard");
    for page in 0..64 {
        read_and_check(&file, page * PAGE as u64, PAGE);
    }
    assert_eq!(ahead(&session), 2, "nothing is read ahead");
    drop_clean(&session, &file);
    file.advise(0, 0, Advise::Sequential).expect("heard");
    read_and_check(&file, 2 * BLOCK, PAGE);
    assert!(ahead(&session) > 2, "the first read is enough");
    file.advise(0, 0, Advise::Normal).expect("heard");
}

/// A hot set of pages, read at random, beside a scan of four times the memory.
#[test]
fn a_scan_leaves_a_hot_set_in_memory() {
    let hit_ratio = |bug: Option<Bug>| {
        plant(bug);
        let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
        let (session, file) = large(&plan, 128);
        let tick = &session.shared().arena.superblock().tick;
        let hot = |index: u64| (100 + index % 8) * BLOCK + index % 64 * PAGE as u64;
        let me = session.shared().me().expect("a slot");
        let free = &session.shared().arena.superblock().frames_free;
        for _ in 0..3 {
            tick.fetch_add(5, Ordering::Relaxed);
            (0..64).for_each(|index| read_and_check(&file, hot(index), PAGE));
        }
        let (mut hits, mut looks) = (0, 0);
        for block in 0..96 {
            // As a keeper and writers do: room for the next.
            tick.fetch_add(1, Ordering::Relaxed);
            if free.load(Ordering::Relaxed) < 4 {
                forebay::evict::evict(me, 2, 0);
            }
            read_and_check(&file, block * BLOCK, BLOCK as usize);
            let before = plan.calls();
            read_and_check(&file, hot(block * 37), PAGE);
            hits += u32::from(plan.calls() == before);
            looks += 1;
        }
        plant(None);
        f64::from(hits) / f64::from(looks)
    };
    let hot = hit_ratio(None);
    assert!(hot > 0.99, "{hot} of the hot set's reads are hits");
    let without = hit_ratio(Some(Bug::EvictInUse));
    assert!(without < 0.9, "{without}, and nothing kept them");
}

/// Memory is full of what a stream has passed by, all at one tick, and nobody drives the session's clock but who reads ahead.
#[test]
fn what_has_been_passed_by_gives_way_to_what_comes_next() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, file) = large(&plan, 128);
    for block in 0..64 {
        read_and_check(&file, block * BLOCK, BLOCK as usize);
    }
    let mut prefetcher = office(&session, Box::new(Inline::new()));
    let begun = Instant::now();
    while session.stats().ahead_bytes == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no room is found"
        );
        file.advise(64 * BLOCK, BLOCK, Advise::WillNeed)
            .expect("heard");
        (0..3).for_each(|_| round(&session, &mut prefetcher));
        std::thread::sleep(Duration::from_millis(1));
    }
    read_and_check(&file, 64 * BLOCK, BLOCK as usize);
}

/// Of what a program says that it will need no more is read than may stay.
#[test]
fn the_limit_on_clean_memory_holds_for_what_is_on_its_way() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, file) = large(&plan, 32);
    let superblock = session.shared().arena.superblock();
    superblock.clean_frames_max.store(8, Ordering::Relaxed);
    let mut prefetcher = office(&session, Box::new(Inline::new()));
    file.advise(0, 24 * BLOCK, Advise::WillNeed).expect("heard");
    (0..32).for_each(|_| round(&session, &mut prefetcher));
    let read = session.stats().ahead_bytes / BLOCK;
    assert!((6..=8).contains(&read), "{read} blocks are read ahead");
    let calls = plan.calls();
    read_and_check(&file, 0, read as usize * BLOCK as usize);
    assert_eq!(plan.calls(), calls, "they are in memory");
}

/// A file of so many blocks over 32 frames.
fn large(plan: &Arc<FaultPlan>, blocks: u64) -> (Session, File) {
    let disk = SimDisk::new(SimOptions::default());
    let device = Arc::new(Wrapped::new(disk.create(), Arc::clone(plan)));
    let config = Config {
        memory: 32 * BLOCK,
        ..Config::tiny()
    };
    let session = Session::open(config).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session
        .open_device(device, "sim", &options)
        .expect("a file");
    for at in (0..blocks).map(|block| block * BLOCK) {
        file.write_at(&bytes(at, BLOCK as usize), at)
            .expect("written");
    }
    file.sync_data().expect("synced");
    drop_clean(&session, &file);
    (session, file)
}

/// A file of 12 blocks over 32 frames: read past memory the first time, into it the second, and then from it.
#[test]
fn a_large_read_goes_past_memory_once() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, file) = large(&plan, 12);
    let len = 12 * BLOCK as usize;
    for (align, shift) in [(PAGE, 0), (PAGE, 1)] {
        let memory = AlignedBytes::new(len + PAGE, align);
        let read = || {
            let (calls, before) = (plan.calls(), session.stats());
            // SAFETY: the memory is this test's own, longer than what is read, and initialised.
            let target =
                unsafe { std::slice::from_raw_parts_mut(memory.piece().ptr.add(shift), len) };
            target.fill(0xEE);
            for at in (0..len).step_by(4 * BLOCK as usize) {
                let part = &mut target[at..at + 4 * BLOCK as usize];
                assert_eq!(file.read_at(part, at as u64).expect("read"), part.len());
            }
            assert!(target[..] == bytes(0, len)[..], "wrong bytes");
            let after = session.stats();
            (
                plan.calls() - calls,
                after.device_read_bytes - before.device_read_bytes,
                before.memory_free_bytes - after.memory_free_bytes,
            )
        };
        if shift == 0 {
            assert_eq!(read(), (3, len as u64, 0), "past memory");
            assert_eq!(read(), (12, len as u64, len as u64), "into memory");
        }
        assert_eq!(read(), (0, 0, 0), "from memory");
    }
    drop_clean(&session, &file);
    file.write_at(&[7; 100], 5 * BLOCK + 10).expect("written");
    file.core()
        .expect("managed")
        .entry()
        .read_past
        .store(0, Ordering::Relaxed);
    let memory = vec![0xEE; len + 1];
    let mut found = memory.clone();
    let calls = plan.calls();
    file.read_at(&mut found[1..], 0).expect("read");
    let mut expected = bytes(0, len);
    expected[5 * BLOCK as usize + 10..][..100].fill(7);
    assert!(found[1..] == expected[..], "wrong bytes");
    // Five blocks, one with newer bytes, and six, the caller's memory being what it is.
    assert!(
        plan.calls() - calls <= 2 + 2 + 2,
        "{}",
        plan.calls() - calls
    );
}
