//! Clients that are stopped at any access while they give memory, or take some: nobody says that they are dead, and they do not
//! go on. Others find memory all the same. And the same in the middle of an append, while the file goes to the kernel.
#![cfg(feature = "sim")]

use forebay::config::Route;
use forebay::device::DeviceFile;
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay::file::settle;
use forebay::flush::Scope;
use forebay::ids::{BlockIndex, ThreadId};
use forebay::keeper::repair;
use forebay::member::members;
use forebay::member::provision;
use forebay::memory::layout::Counts;
use forebay::memory::regions;
use forebay::memory::threads::{self, Me};
use forebay::sim::device::{SimDisk, SimOptions};
use forebay::sim::{Bug, plant};
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
    disk: SimDisk,
}

/// A session that has been given no memory yet, nobody keeping it.
fn world() -> World {
    world_for(8)
}

/// The same, for this many threads.
fn world_for(threads: u32) -> World {
    let config = Config {
        memory: u64::from(FRAMES) * BLOCK,
        dirty_bytes_max: 1 << 40,
        dirty_background: 1 << 40,
        route: Route::Scrap,
        read_ahead: 0,
        kernel_after_holes: 4,
        ..Config::tiny()
    };
    let counts = Counts {
        threads,
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
        disk,
    }
}

impl World {
    /// Somebody does this, and is stopped before the `n`-th access. `false`: it has ended before.
    fn is_stopped(&self, n: u64, act: impl FnOnce(&World, Me<'_>)) -> bool {
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

/// Memory is taken back without a moment in which everybody waits, and never all that is free at once.
#[test]
fn memory_is_found_past_whoever_is_stopped_while_he_takes_some_back() {
    let take = |world: &World, me: Me<'_>| {
        provision::more(world.session.shared(), me, false);
        provision::give_back(me, 0);
    };
    others_go_on(take, 100);
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

/// Somebody has died in the middle of an operation, with a block's lock, and whoever waits for it is stopped at any access while
/// it has that seen to. Where that keeps others waiting.
fn others_wait_for_a_waiter(is_kept: bool) -> Option<u64> {
    for n in (0..20).chain((20..6000).step_by(13)) {
        let mut world = world_for(32);
        if is_kept {
            world.session.keep().expect("a keeper");
        }
        let world = Arc::new(world);
        let shared = world.session.shared().clone();
        let core = world.file.core().expect("managed");
        world.file.write_at(&[7; 5000], 0).expect("room");
        members::forget(shared.instance);
        let dead = shared.me().expect("a slot");
        let operation = dead.enter(core.id).expect("no gate is closed");
        std::mem::forget(core.lock(dead, BlockIndex(0)).expect("nobody has it"));
        std::mem::forget(operation);
        threads::slay(dead.arena, dead.id);
        // Less than what a keeper is given, on a machine that has no time for it.
        let patience = Duration::from_millis(if is_kept { 50 } else { 20_000 });
        let stopped = world.is_stopped(n, |_, me| {
            let begun = Instant::now();
            // As whoever waits does.
            while threads::is_dead(me.arena, dead.id) && begun.elapsed() < patience {
                me.arena.rescue(me);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let (ends, ended) = mpsc::channel();
        let of_thread = Arc::clone(&world);
        std::thread::spawn(move || {
            let _ = ends.send(of_thread.file.write_at(&[8; 5000], 0).is_ok());
        });
        // Shorter than anybody who has something is waited for. Where it has to hang somewhere, whatever takes long is taken for that.
        let most = Duration::from_secs(if is_kept { 30 } else { 5 });
        if ended.recv_timeout(most) != Ok(true) {
            return Some(n);
        }
        if !stopped {
            return None;
        }
    }
    None
}

/// The repair is the keeper's: who waits for it is in no repair when he is stopped.
#[test]
fn nobody_waits_for_whoever_is_stopped_while_he_waits_for_the_dead() {
    assert_eq!(others_wait_for_a_waiter(true), None, "the session hangs");
    // Without a keeper it has to be the waiter: the test can fail.
    assert_ne!(others_wait_for_a_waiter(false), None);
}

/// Where somebody who appends may be stopped so that the file goes to the kernel with some of his bytes, all of which he has the kernel
/// append when he goes on.
fn torn_append(process: &Stopped) -> Option<u64> {
    // In two blocks.
    const END: u64 = BLOCKS * BLOCK - 1000;
    const LEN: u64 = 2000;
    let mut switches = 0;
    for n in 0.. {
        let world = world();
        world.file.set_len(END).expect("shorter");
        // So that he has it at once.
        let me = world.session.shared().me().expect("a slot");
        provision::more(world.session.shared(), me, false);
        let mut somebody = ThreadId(0);
        let stopped = world.is_stopped(n, |world, me| {
            somebody = me.id;
            me.slot().pid.store(process.0.id(), Ordering::Relaxed);
            world.file.append(&[7; LEN as usize]).expect("an append");
        });
        let core = world.file.core().expect("managed");
        let me = world.session.shared().me().expect("a slot");
        // In an operation he keeps everybody from being alone on the file.
        let is_at_work = stopped && threads::works_on(me.arena, somebody).is_some();
        let switched = !is_at_work && {
            settle::flush(core, me, Scope::some(1000));
            settle::to_kernel_if_flushed(me, core.id, 1)
        };
        if stopped {
            // What he has is nobody's from here on: a close would wait for it.
            threads::slay(me.arena, somebody);
        }
        if switched {
            switches += 1;
            let appended = core.device.stat().expect("a length").len - END;
            if stopped && appended != 0 && appended != LEN {
                return Some(n);
            }
        }
        if !stopped {
            assert!(n >= 60 && switches >= 2, "{switches} switches of {n}");
            return None;
        }
    }
    unreachable!("it goes on")
}

#[test]
fn a_file_goes_to_the_kernel_before_an_append_or_after_it() {
    let process = Stopped::new();
    assert_eq!(torn_append(&process), None, "appended in part");
    plant(Some(Bug::SwitchedAppends));
    let found = torn_append(&process);
    plant(None);
    assert_ne!(found, None, "a switch in the middle of an append");
}

/// A file of so many blocks, the first four of which have space.
fn file_of(world: &World, name: &str, blocks: u64) -> File {
    let device = world.disk.create();
    device.reserve(0, 4 * BLOCK).expect("space");
    device.set_len(blocks * BLOCK).expect("a length");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = world.session.open_device(device, name, &options);
    file.expect("a file")
}

/// A file with a few blocks in memory.
fn file_in(world: &World, name: &str) -> File {
    let file = file_of(world, name, 4);
    for block in 0..3 {
        file.write_at(&[1; 5000], block * BLOCK).expect("room");
    }
    file
}

/// A file with a block in memory, and many holes.
fn file_with_holes(world: &World, name: &str) -> File {
    let file = file_of(world, name, 64);
    file.write_at(&[1; 5000], 0).expect("room");
    file
}

/// What somebody has who is stopped: takes it, and gives it back after the call of the last.
type Has = fn(&World, Me<'_>, &File, &dyn Fn());
/// What somebody else does.
type Does = fn(&World, &File) -> bool;

const HOLDERS: [(&str, Has); 6] = [
    ("in an operation", |_, me, file, wait| {
        let operation = me.enter(file.core().expect("managed").id);
        let _operation = operation.expect("no gate is closed");
        wait();
    }),
    ("with a header's lock", |_, me, file, wait| {
        let core = file.core().expect("managed");
        let _operation = me.enter(core.id).expect("no gate is closed");
        let _guard = core.lock(me, BlockIndex(0)).expect("nobody has it");
        wait();
    }),
    ("with a file's gate", |_, me, file, wait| {
        let _stop = threads::stop_file(me, file.core().expect("managed").id);
        wait();
    }),
    ("with an append lock", |_, me, file, wait| {
        let word = &file.core().expect("managed").entry().append_lock;
        word.store(me.id.0, Ordering::Release);
        wait();
        word.store(0, Ordering::Release);
    }),
    ("with the table's lock", |_, me, _, wait| {
        let word = &me.arena.superblock().table_lock;
        word.store(me.id.0, Ordering::Release);
        wait();
        word.store(0, Ordering::Release);
    }),
    ("with the session's gate", |_, me, _, wait| {
        let _stop = threads::stop_session(me).expect("nobody is at work");
        wait();
    }),
];

const DEEDS: [(&str, Does); 7] = [
    ("writes", |_, file| file.write_at(&[2; 5000], 0).is_ok()),
    ("writes elsewhere", |_, file| {
        file.write_at(&[2; 5000], 2 * BLOCK).is_ok()
    }),
    ("reads", |_, file| {
        file.read_at(&mut [0; 5000], 0).is_ok_and(|len| len == 5000)
    }),
    ("appends", |_, file| file.append(&[3; 5000]).is_ok()),
    ("cuts", |_, file| file.set_len(3 * BLOCK).is_ok()),
    ("syncs", |_, file| file.sync_data().is_ok()),
    ("opens another", |world, _| {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let device = world.disk.create();
        world.session.open_device(device, "new", &options).is_ok()
    }),
];

/// What comes of a deed while somebody is stopped, and how long it takes; `None`: more than `limit`.
fn done_beside(
    process: &Stopped,
    has: Has,
    does: Does,
    same: bool,
    limit: Duration,
) -> Option<(bool, Duration)> {
    let world = world();
    let (file, other) = (file_in(&world, "one"), file_in(&world, "other"));
    let files = (&file, if same { &file } else { &other });
    done_beside_in(&world, files, process, has, does, limit)
}

/// The same, with one of two files in hand; the deed is done to the second.
fn done_beside_in(
    world: &World,
    (file, at): (&File, &File),
    process: &Stopped,
    has: Has,
    does: Does,
    limit: Duration,
) -> Option<(bool, Duration)> {
    let (holds, held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (ends, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let me = world.session.shared().me().expect("a slot");
            let own = me.slot().pid.swap(process.0.id(), Ordering::Relaxed);
            has(world, me, file, &|| {
                holds.send(()).expect("a listener");
                let _ = released.recv();
            });
            me.slot().pid.store(own, Ordering::Relaxed);
        });
        held.recv().expect("it has it");
        scope.spawn(move || {
            let begun = Instant::now();
            let good = does(world, at);
            let _ = ends.send((good, begun.elapsed()));
        });
        let done = ended.recv_timeout(limit).ok();
        drop(release);
        done
    })
}

/// A file that is written into its holes goes to the kernel where nobody has it in hand, and else no write waits for that.
#[test]
fn a_write_into_a_hole_waits_for_nobody_who_is_stopped() {
    let process = Stopped::new();
    // The kernel has no such file: a simulated one is nobody's once it is the kernel's.
    let write: Does = |_, file| {
        let is_written = |at| file.write_at(&[2; 5000], at).is_ok();
        (8..60).all(|block| is_written(block * BLOCK + 100) || file.kernel_reason().is_some())
    };
    for (holder, has) in HOLDERS.iter().filter(|(name, _)| !name.contains("gate")) {
        let world = world();
        let file = file_with_holes(&world, "holes");
        let limit = Duration::from_secs(60);
        let done = done_beside_in(&world, (&file, &file), &process, *has, write, limit);
        let (good, _) = done.unwrap_or_else(|| panic!("waits for one {holder}"));
        assert!(good, "beside one {holder}");
        // Nobody has it any more.
        for block in 8..60 {
            let written = file.write_at(&[2; 5000], block * BLOCK + 100_000);
            assert!(
                written.is_ok() || file.kernel_reason().is_some(),
                "after one {holder}: {written:?}"
            );
        }
        assert!(file.kernel_reason().is_some(), "after one {holder}");
    }
}

/// Whatever somebody has who is stopped, but for the session's gate: who works on other files goes on. Those who open some may be told to
/// leave them to the kernel.
#[test]
fn other_files_have_nothing_to_do_with_whoever_is_stopped() {
    let process = Stopped::new();
    for (holder, has) in HOLDERS.iter().filter(|(name, _)| !name.contains("session")) {
        for (deed, does) in DEEDS {
            let done = done_beside(&process, *has, does, false, Duration::from_secs(60));
            let (good, _) = done.unwrap_or_else(|| panic!("{deed}: waits for one {holder}"));
            let may_fail = deed.contains("opens") && holder.contains("table");
            assert!(good || may_fail, "{deed} beside one {holder}");
        }
    }
}

/// The table of `docs/locking.md`: least times of three.
#[test]
#[ignore = "measures, with waits of seconds"]
fn who_waits_for_whom() {
    let process = Stopped::new();
    for (holder, has) in HOLDERS {
        for same in [true, false] {
            for (deed, does) in DEEDS {
                let limit = Duration::from_secs(3);
                let done = (0..3).map(|_| done_beside(&process, has, does, same, limit));
                let done = done.min_by_key(|done| done.map_or(limit, |(_, time)| time));
                let what = match done.expect("three") {
                    None => "waits".to_owned(),
                    Some((good, time)) => {
                        format!("{} in {time:?}", if good { "done" } else { "fails" })
                    }
                };
                let which = if same {
                    "the same file"
                } else {
                    "another file"
                };
                println!("{holder}: {deed}, {which}: {what}");
            }
        }
    }
}
