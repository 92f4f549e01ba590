//! Clients that are stopped at any access while they give memory, or take some: nobody says that they are dead, and they do not
//! go on. Others find memory all the same.
#![cfg(feature = "sim")]

use forebay::config::Route;
use forebay::device::DeviceFile;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forebay::keeper::{provision, repair};
use forebay::memory::layout::Counts;
use forebay::memory::regions;
use forebay::memory::threads::{self, Me};
use forebay::session::members;
use forebay::sim::device::{SimDisk, SimOptions};
use forebay::sync::Ordering;
use forebay::sys::liveness;
use forebay::{Config, File, OpenOptions, Session, sim};

const BLOCK: u64 = 256 << 10;
const FRAMES: u32 = 32;
/// More than whoever is stopped leaves memory for.
const BLOCKS: u64 = 20;

struct World {
    session: Session,
    file: File,
    _disk: SimDisk,
}

/// A session that has been given no memory yet, nobody keeping it.
fn world() -> World {
    let config = Config {
        memory: u64::from(FRAMES) * BLOCK,
        dirty_bytes_max: 1 << 40,
        dirty_background: 1 << 40,
        route: Route::Scrap,
        read_ahead: 0,
        ..Config::tiny()
    };
    let counts = Counts {
        threads: 8,
        files: 8,
        nodes: 256,
        headers: 256,
        frames: FRAMES,
    };
    let session = Session::simulated(config, counts).expect("a session");
    let disk = SimDisk::new(SimOptions::default());
    let device = disk.create();
    device.reserve(0, BLOCKS * BLOCK).expect("space");
    device.set_len(BLOCKS * BLOCK).expect("a length");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "file", &options);
    World {
        file: file.expect("a file"),
        session,
        _disk: disk,
    }
}

impl World {
    /// Somebody does this, and is stopped before the `n`-th access. `false`: it has ended before.
    fn is_stopped(&self, n: u64, act: fn(&World, Me<'_>)) -> bool {
        let shared = self.session.shared();
        members::forget(shared.instance);
        let me = shared.me().expect("a slot");
        let ended = sim::crash_after(n, || act(self, me));
        // From here on this thread is somebody else; the slot of the other stays taken.
        members::forget(shared.instance);
        ended.is_none()
    }

    /// Writes more than whoever is stopped leaves memory for.
    fn write_all(&self, n: u64) {
        let bytes = vec![7; BLOCK as usize];
        for block in 0..BLOCKS {
            let written = self.file.write_at(&bytes, block * BLOCK);
            let written = written.unwrap_or_else(|error| panic!("stopped at {n}: {error}"));
            assert_eq!(written, bytes.len());
        }
    }
}

/// Does this for every access at which somebody may be stopped.
fn others_go_on(act: fn(&World, Me<'_>), least: u64) {
    // The many alike at the end, which show free entries of tables, by leaps.
    for n in (0..100).chain((100..).step_by(97)) {
        let world = world();
        let stopped = world.is_stopped(n, act);
        world.write_all(n);
        if !stopped {
            assert!(n >= least, "only {n} accesses");
            return;
        }
    }
}

#[test]
fn memory_is_found_past_whoever_is_stopped_while_he_gives_some() {
    let give = |world: &World, me: Me<'_>| {
        provision::more(world.session.shared(), me, false);
    };
    others_go_on(give, 60);
}

/// He holds up to three frames, each of which may be counted as free while nobody can have it.
#[test]
fn memory_is_found_past_whoever_is_stopped_with_frames_in_hand() {
    let take = |_: &World, me: Me<'_>| {
        for _ in 0..3 {
            let frame = regions::take_frame(me).expect("a frame");
            regions::free_frame(me, frame);
        }
    };
    for n in 0.. {
        let world = world();
        // Few have memory, and all but three of them are somebody's.
        let me = world.session.shared().me().expect("a slot");
        provision::more(world.session.shared(), me, false);
        let free = me.arena.superblock().free_about();
        (3..free).for_each(|_| _ = regions::take_frame(me).expect("a frame"));
        let stopped = world.is_stopped(n, take);
        world.write_all(n);
        if !stopped {
            assert!(n >= 20, "only {n} accesses");
            return;
        }
    }
}

/// A process that is stopped.
struct Stopped(Child);

impl Stopped {
    fn new() -> Self {
        let child = Command::new("sleep").arg("1000").spawn();
        let child = Stopped(child.expect("a process"));
        // SAFETY: takes no memory; a child that has not been waited for.
        unsafe { libc::kill(child.0.id() as i32, libc::SIGSTOP) };
        let begun = Instant::now();
        while !liveness::is_stopped(child.0.id()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it runs on");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Somebody is stopped in the middle of an operation, and somebody else has died in one. A repair would have to wait for the
/// former, and everybody would wait with it, again and again: two seconds each time.
#[test]
fn nobody_waits_for_what_somebody_stopped_puts_off() {
    let world = world();
    let shared = world.session.shared();
    let file = world.file.core().expect("managed").id;
    let process = Stopped::new();
    let somebody = || {
        members::forget(shared.instance);
        shared.me().expect("a slot")
    };
    let stopped = somebody();
    stopped.slot().pid.store(process.0.id(), Ordering::Relaxed);
    let operation = stopped.enter(file).expect("no gate is closed");
    let dead = somebody();
    std::mem::forget(dead.enter(file).expect("no gate is closed"));
    threads::slay(dead.arena, dead.id);
    let me = somebody();
    let attempt = |_| {
        let begun = Instant::now();
        assert_eq!(repair::if_needed(shared, me), None);
        assert!(threads::stop_session(me).is_none());
        assert!(threads::stop_file(me, file).is_none());
        begun.elapsed()
    };
    // Six seconds each, before anybody looked; on a busy machine one may take long for other reasons.
    let least = (0..10).map(attempt).min().expect("attempts");
    assert!(least < Duration::from_secs(4), "{least:?}");
    // It goes on.
    drop(operation);
    assert!(repair::if_needed(shared, me).is_some());
    world.write_all(0);
}
