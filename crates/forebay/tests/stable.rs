//! Devices that need stable pages (checksums, parity): what they write does not change under way, whoever writes meanwhile.
#![cfg(feature = "sim")]

mod here;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay::config::Route;
use forebay::sim::device::{Call, CallKind, SimDisk, SimOptions};
use forebay::sim::{Bug, plant};
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::{SplitMix64, fill};

/// The writers' pages: few, so that they are often in flight.
const FILE_BYTES: u64 = 3 * 65_536 + 1000;

fn disk() -> SimDisk {
    let disk = SimDisk::new(SimOptions {
        stable_writes: true,
        ..SimOptions::default()
    });
    let hook = |call: &Call| {
        if call.kind == CallKind::WriteDirect {
            std::thread::sleep(Duration::from_micros(300));
        }
    };
    disk.set_hook(Some(Arc::new(hook)));
    disk
}

/// Writes, shortens and punches at random; what a writer last put at each byte of its half stands in `expected`.
fn write_for(
    file: &File,
    mut random: SplitMix64,
    (from, to): (u64, u64),
    time: Duration,
) -> Vec<u8> {
    let mut expected = vec![0; (to - from) as usize];
    let begun = Instant::now();
    while begun.elapsed() < time {
        let at = random.below(to - from);
        let most = [10, 5000, 30_000][random.below(3) as usize];
        let len = 1 + random.below((to - from - at).min(most));
        let range = at as usize..(at + len) as usize;
        if random.below(10) == 0 {
            file.punch(from + at, len).expect("punched");
            expected[range].fill(0);
            continue;
        }
        let mut bytes = vec![0; len as usize];
        fill(random.next_u64() as u32, at, &mut bytes);
        assert_eq!(
            file.write_at(&bytes, from + at).expect("written"),
            bytes.len()
        );
        expected[range].copy_from_slice(&bytes);
    }
    expected
}

/// Two writers, each in a half, beside somebody who syncs all the time; how many writes of the device changed under way.
fn unstable_writes(route: Route, seed: u64, bug: Option<Bug>) -> u64 {
    let disk = disk();
    let config = Config {
        route,
        ..Config::tiny()
    };
    let session = Session::open(config).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session
        .open_device(disk.create(), "stable", &options)
        .expect("a file");
    file.set_len(FILE_BYTES).expect("a length");
    let done = AtomicBool::new(false);
    let middle = 65_536 + 777;
    let time = Duration::from_millis(400);
    let halves = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                file.sync_data().expect("synced");
            }
        });
        let writers = [(0, middle), (middle, FILE_BYTES)].map(|half| {
            let file = &file;
            scope.spawn(move || {
                plant(bug);
                write_for(file, SplitMix64::new(seed ^ half.0), half, time)
            })
        });
        let halves = writers.map(|writer| writer.join().expect("it writes"));
        done.store(true, Relaxed);
        halves.concat()
    });
    file.sync_all().expect("synced");
    let mut found = vec![0; FILE_BYTES as usize];
    assert_eq!(
        file.read_at(&mut found, 0).expect("reads") as u64,
        FILE_BYTES
    );
    assert!(
        found == halves,
        "FOREBAY_TEST_SEED={seed}: other bytes than were written"
    );
    disk.unstable_writes()
}

#[test]
fn pages_in_flight_do_not_change() {
    for seed in here::fresh_seeds(2) {
        for route in [Route::Auto, Route::Scrap] {
            let changed = unstable_writes(route, seed, None);
            assert_eq!(changed, 0, "FOREBAY_TEST_SEED={seed}");
        }
    }
}

#[test]
fn pages_that_change_in_flight_are_found() {
    let found =
        (0..10).any(|seed| unstable_writes(Route::Scrap, seed, Some(Bug::UnstablePages)) > 0);
    assert!(found, "nobody noticed");
}

/// A large write goes past memory; the program's own memory changes while the device has it in hand, as that of a program of several
/// threads may.
#[test]
fn what_a_program_changes_under_its_own_write_does_not_reach_the_device_in_flight() {
    const LEN: usize = 1 << 20;
    for route in [Route::Direct, Route::Auto] {
        let disk = disk();
        let session = Session::open(Config {
            route,
            ..Config::tiny()
        });
        let session = session.expect("a session");
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = session
            .open_device(disk.create(), "stable", &options)
            .expect("a file");
        let memory: Arc<[AtomicU8]> = (0..LEN + 4096).map(|_| AtomicU8::new(1)).collect();
        let skew = memory.as_ptr().align_offset(4096);
        let (changing, changed) = (Arc::clone(&memory), Arc::new(AtomicU8::new(1)));
        let seen = Arc::clone(&changed);
        let hook = move |call: &Call| {
            if call.kind == CallKind::WriteDirect {
                let now = changed.fetch_add(1, Relaxed) + 1;
                changing.iter().for_each(|byte| byte.store(now, Relaxed));
            }
        };
        disk.set_hook(Some(Arc::new(hook)));
        // SAFETY: the memory is initialised and lives to the end of this round. The hook writes it while the engine copies it or has the
        // device read it, which is what is tested: both read it byte by byte at an address, and nobody decides by a byte.
        let source =
            unsafe { std::slice::from_raw_parts(memory[skew..].as_ptr().cast::<u8>(), LEN) };
        assert_eq!(file.write_at(source, 0).expect("written"), LEN);
        file.sync_data().expect("synced");
        assert!(seen.load(Relaxed) > 1, "the device was written to");
        assert_eq!(disk.unstable_writes(), 0, "{route:?}");
    }
}
