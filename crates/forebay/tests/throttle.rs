//! Writers at the limit on owed bytes, with keepers of every kind: none, one that stands still, one that is slow, one that dies.
//! And who else has to come to an end although somebody writes all the time.
#![cfg(all(feature = "sim", not(feature = "shuttle")))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay::config::Route;
use forebay::device::DeviceFile;
use forebay::file::room;
use forebay::flush::{Flusher, Scope, limit};
use forebay::ids::FileId;
use forebay::member::shared::Shared;
use forebay::sim::device::{Before, Call, CallKind, SimDisk, SimOptions, Verdict, Wrapped};
use forebay::sync::Ordering;
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::fill;

const BLOCK: u64 = 256 * 1024;
/// Blocks that may be owed.
const LIMIT: u64 = 8;
/// Blocks that are written.
const BLOCKS: u64 = 10 * LIMIT;

struct World {
    session: Session,
    disk: SimDisk,
    /// Files and blocks in the order in which they were written on the device.
    written: Arc<Mutex<Vec<(u64, u64)>>>,
}

struct Log(Arc<Mutex<Vec<(u64, u64)>>>, u64);

impl Before for Log {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind == CallKind::WriteDirect {
            let mut written = self.0.lock().expect("no panic");
            written.push((self.1, call.offset / BLOCK));
        }
        Verdict::Proceed
    }
}

impl World {
    fn new() -> World {
        let config = Config {
            memory: 4 * LIMIT * BLOCK,
            dirty_bytes_max: LIMIT * BLOCK,
            dirty_background: LIMIT / 2 * BLOCK,
            route: Route::Scrap,
            read_ahead: 0,
            ..Config::tiny()
        };
        World {
            session: Session::open(config).expect("a session"),
            disk: SimDisk::new(SimOptions::default()),
            written: Arc::default(),
        }
    }

    fn file(&self, name: u64) -> File {
        let log = Log(Arc::clone(&self.written), name);
        self.open(
            Arc::new(Wrapped::new(self.disk.create(), Arc::new(log))),
            name,
        )
    }

    fn open(&self, device: Arc<dyn DeviceFile>, name: u64) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        self.session
            .open_device(device, &format!("sim-{name}"), &options)
            .expect("a file")
    }

    fn shared(&self) -> &Arc<Shared> {
        self.session.shared()
    }

    fn owed_blocks(&self) -> u64 {
        self.session.stats().owed_bytes / BLOCK
    }
}

fn write(file: &File, blocks: std::ops::Range<u64>) {
    let mut bytes = vec![0; BLOCK as usize];
    for block in blocks {
        fill(7, block * BLOCK, &mut bytes);
        file.write_at(&bytes, block * BLOCK).expect("written");
    }
}

fn assert_file(file: &File) {
    let (mut bytes, mut expected) = (vec![0; BLOCK as usize], vec![0; BLOCK as usize]);
    for block in 0..BLOCKS {
        file.read_at(&mut bytes, block * BLOCK).expect("read");
        fill(7, block * BLOCK, &mut expected);
        assert!(bytes == expected, "block {block}");
    }
}

fn id_of(file: &File) -> FileId {
    file.core().expect("managed").id
}

/// Writes ten times the limit while `keep` is the keeper, in a thread of its own, until the writer has ended or it returns.
fn write_beside(keep: impl FnOnce(&Arc<Shared>, FileId, &AtomicBool) + Send) {
    let world = World::new();
    let file = world.file(1);
    let (shared, id, stop) = (world.shared(), id_of(&file), AtomicBool::new(false));
    let superblock = shared.arena.superblock();
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let me = shared.me().expect("a slot");
            superblock.keeper.store(me.id.0, Ordering::Release);
            limit::set_background(superblock, LIMIT / 2 * BLOCK);
            ready.send(()).expect("somebody waits");
            keep(shared, id, &stop);
        });
        is_ready.recv().expect("a keeper");
        write(&file, 0..BLOCKS);
        stop.store(true, SeqCst);
    });
    assert!(world.owed_blocks() <= LIMIT + 1, "the limit holds");
    file.sync_all().expect("synced");
    assert_file(&file);
}

/// What a keeper's flusher does in one step.
fn keep_one_block(shared: &Arc<Shared>, file: FileId, flusher: &mut Flusher) -> u64 {
    let me = shared.me().expect("a slot");
    let device = shared.device(file).expect("open");
    shared
        .flush_with(flusher, me, file, &device, Scope::some(64))
        .pages_written
}

#[test]
fn no_keeper_is_needed() {
    let world = World::new();
    let file = world.file(1);
    write(&file, 0..BLOCKS);
    assert!(world.owed_blocks() <= LIMIT + 1, "the limit holds");
    assert_file(&file);
}

#[test]
fn a_keeper_that_stands_still_stops_nobody() {
    write_beside(|_, _, stop| {
        while !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_slow_keeper_is_enough() {
    write_beside(|shared, file, stop| {
        let mut flusher = shared.own_flusher().of_keeper();
        while !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
            keep_one_block(shared, file, &mut flusher);
        }
    });
}

#[test]
fn a_keeper_may_die_while_it_is_waited_for() {
    write_beside(|shared, file, _| {
        let mut flusher = shared.own_flusher().of_keeper();
        let mut written = 0;
        while written < 2 * LIMIT * 64 {
            written += keep_one_block(shared, file, &mut flusher);
        }
    });
}

/// Takes nothing while it is full.
struct Full(AtomicBool, AtomicU64);

impl Before for Full {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind != CallKind::WriteDirect || !self.0.load(SeqCst) {
            return Verdict::Proceed;
        }
        self.1.fetch_add(1, SeqCst);
        Verdict::Fail(std::io::Error::from_raw_os_error(libc::ENOSPC))
    }
}

/// Nobody can make room by writing what a device does not take: who writes to others neither tries, nor waits for it, nor writes his own
/// bytes instead.
#[test]
fn a_device_that_takes_nothing_slows_down_nobody_who_writes_to_others() {
    let world = World::new();
    let full = Arc::new(Full(AtomicBool::new(true), AtomicU64::new(0)));
    let device = Arc::new(Wrapped::new(world.disk.create(), Arc::clone(&full)));
    let (refused, good) = (world.open(device, 1), world.file(2));
    let (shared, stop) = (world.shared(), AtomicBool::new(false));
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        // One that does nothing.
        scope.spawn(|| {
            let me = shared.me().expect("a slot");
            let keeper = &shared.arena.superblock().keeper;
            keeper.store(me.id.0, Ordering::Release);
            ready.send(()).expect("somebody waits");
            while !stop.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        is_ready.recv().expect("a keeper");
        write(&refused, 0..LIMIT + 1);
        // What is refused is looked for anew.
        std::thread::sleep(Duration::from_millis(150));
        let before = full.1.load(SeqCst);
        for _ in 0..3 {
            write(&good, 0..LIMIT / 2);
        }
        let written = world.written.lock().expect("no panic").len();
        let tries = (before, full.1.load(SeqCst));
        // The limit holds for what can be written.
        write(&good, 0..BLOCKS / 4);
        let owed = world.owed_blocks();
        stop.store(true, SeqCst);
        assert!(tries.0 > 0, "it was tried");
        assert_eq!(tries.0, tries.1, "nobody tries again");
        assert_eq!(written, 0, "nobody writes what is within the limit");
        assert!(owed <= 2 * LIMIT + 2, "{owed}");
    });
    full.0.store(false, SeqCst);
    refused.sync_all().expect("it takes bytes again");
}

/// The keeper whose turn it would be to try again may be stopped.
#[test]
fn what_a_device_has_refused_is_tried_where_nothing_else_can_be_written() {
    let world = World::new();
    let full = Arc::new(Full(AtomicBool::new(true), AtomicU64::new(0)));
    let device = Arc::new(Wrapped::new(world.disk.create(), Arc::clone(&full)));
    let refused = world.open(device, 1);
    let shared = world.shared();
    let me = shared.me().expect("a slot");
    // This thread, which does nothing of a keeper's.
    let keeper = &shared.arena.superblock().keeper;
    keeper.store(me.id.0, Ordering::Release);
    write(&refused, 0..2);
    refused.flush().expect_err("it takes nothing");
    full.0.store(false, SeqCst);
    let core = refused.core().expect("managed");
    assert!(shared.is_refused(core.entry()));
    assert!(room::flush_some(core, me, 1).pages_written > 0);
}

/// Whoever has to flush by itself begins with what was left longest ago, whichever file that is of.
#[test]
fn a_writer_alone_flushes_the_coldest_stream() {
    let world = World::new();
    let (old, new) = (world.file(1), world.file(2));
    write(&old, 0..LIMIT / 2);
    let tick = &world.shared().arena.superblock().tick;
    tick.fetch_add(10, Ordering::Relaxed);
    write(&new, 0..LIMIT);
    let written = world.written.lock().expect("no panic").clone();
    assert_eq!(written.first(), Some(&(1, 0)), "{written:?}");
    let of_old = written.iter().take_while(|(file, _)| *file == 1).count();
    assert!(of_old >= 1, "{written:?}");
}

/// The keeper hears of the lower limit once, and again after it has seen that little is owed.
#[test]
fn the_keeper_is_told_once() {
    let world = World::new();
    let file = world.file(1);
    let superblock = world.shared().arena.superblock();
    let told = || superblock.background_told.load(Ordering::Relaxed) != 0;
    let heard = || superblock.work.load(Ordering::Relaxed);
    limit::set_background(superblock, LIMIT / 2 * BLOCK);
    write(&file, 0..LIMIT / 2);
    assert!(!told(), "below");
    let before = heard();
    limit::look(superblock);
    assert!(!told() && heard() == before, "as much as may be owed");
    write(&file, LIMIT / 2..LIMIT - 1);
    assert!(told(), "above");
    let before = heard();
    limit::look(superblock);
    assert_eq!(heard(), before, "it has been told");
    limit::listen(superblock);
    limit::look(superblock);
    assert!(told() && heard() == before + 1, "it has listened again");
}

/// Writes to the file whenever it has been flushed, for as long as there is patience.
struct Restless {
    file: Mutex<Option<mpsc::Sender<()>>>,
    done: Mutex<mpsc::Receiver<()>>,
    flushes: AtomicU64,
}

/// Flushes after which even the most patient has had enough.
const FLUSHES_MAX: u64 = 50;

impl Before for Restless {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind == CallKind::WriteDirect
            && self.flushes.fetch_add(1, SeqCst) < FLUSHES_MAX
            && let Some(again) = &*self.file.lock().expect("no panic")
        {
            again.send(()).expect("the writer waits");
            // A writer that is made to wait has not written by then.
            let done = self.done.lock().expect("no panic");
            let _ = done.recv_timeout(Duration::from_millis(200));
        }
        Verdict::Proceed
    }
}

#[test]
fn a_file_that_is_written_all_the_time_can_be_given_to_the_kernel() {
    let world = World::new();
    let (again, asked) = mpsc::channel();
    let (written, done) = mpsc::channel();
    let restless = Arc::new(Restless {
        file: Mutex::default(),
        done: Mutex::new(done),
        flushes: AtomicU64::new(0),
    });
    let device = Arc::new(Wrapped::new(world.disk.create(), Arc::clone(&restless)));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = world
        .session
        .open_device(device, "sim-1", &options)
        .expect("a file");
    write(&file, 0..2);
    *restless.file.lock().expect("no panic") = Some(again);
    std::thread::scope(|scope| {
        let file = &file;
        scope.spawn(move || {
            for block in 0.. {
                if asked.recv().is_err() {
                    break;
                }
                let bytes = vec![1; BLOCK as usize];
                let wrote = file.write_at(&bytes, block % 2 * BLOCK);
                // The simulated device has no descriptors for the kernel's way.
                assert!(wrote.is_ok() || file.kernel_reason().is_some());
                let _ = written.send(());
            }
        });
        file.to_kernel().expect("given");
        *restless.file.lock().expect("no panic") = None;
    });
    let flushes = restless.flushes.load(SeqCst);
    assert!(flushes < FLUSHES_MAX, "only once nobody wrote: {flushes}");
    assert!(file.kernel_reason().is_some());
}
