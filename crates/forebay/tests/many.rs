//! Many files that owe something: they are flushed beside one another, whichever call of a device fails, and a pass over files whose time
//! has not come does nothing.
#![cfg(feature = "sim")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Engine, Store};
use forebay::device::{DeviceFile, Inline};
use forebay::flush::{Flusher, Scope, due};
use forebay::ids::FileId;
use forebay::keeper::run::sweep;
use forebay::limits::BLOCK_BYTES;
use forebay::member::shared::Shared;
use forebay::sim::device::{
    Before, Call, CallKind, FaultPlan, Kinds, Outcome as Fault, Repeat, SimDisk, SimFile,
    SimOptions, Verdict, Wrapped,
};
use forebay::{Config, config::Route};
use forebay_model::{Op, Outcome, Target, fill};

const FILES: usize = 12;
/// Requests that the queue of a tiny session takes.
const DEPTH: usize = 4;
/// Two whole pages, and a last one that goes by the kernel's cache.
const LEN: u32 = 2 * 4096 + 100;

/// A session in which nobody has to write before it is told to.
fn roomy() -> Config {
    let block = BLOCK_BYTES as u64;
    Config {
        memory: 128 * block,
        dirty_bytes_max: 64 * block,
        dirty_background: 48 * block,
        ..Config::tiny()
    }
}

/// A device with files that owe [`LEN`] bytes each, in a session that may begin threads or may not.
struct Scene {
    files: Vec<Arc<SimFile>>,
    engine: Engine,
}

impl Scene {
    fn new<B: Before + 'static>(before: &Arc<B>, may_begin_threads: bool) -> Scene {
        let disk = SimDisk::new(SimOptions::default());
        let files: Vec<_> = (0..FILES).map(|_| disk.create()).collect();
        let wrap = |file: &Arc<SimFile>| {
            Arc::new(Wrapped::new(Arc::clone(file), Arc::clone(before))) as Arc<dyn DeviceFile>
        };
        let store = Store::Sim(files.iter().map(wrap).collect());
        let mut engine = Engine::new(roomy(), store, FILES, 1);
        for file in 0..FILES as u8 {
            let written = engine.run(&Op::Write {
                file,
                handle: 0,
                offset: 0,
                len: LEN,
                seed: u32::from(file),
            });
            assert_eq!(written, Outcome::Wrote(u64::from(LEN)));
        }
        let hosts = &engine.session.shared().hosts;
        hosts.store(may_begin_threads, SeqCst);
        Scene { files, engine }
    }

    /// The files whose bytes the device has.
    fn written(&self) -> usize {
        let is_written = |(file, device): (usize, &Arc<SimFile>)| {
            let mut due = vec![0; LEN as usize];
            fill(file as u32, 0, &mut due);
            device.contents() == due
        };
        self.files
            .iter()
            .enumerate()
            .filter(|it| is_written(*it))
            .count()
    }
}

/// Counts the calls that are under way.
#[derive(Default)]
struct Slow {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Before for Slow {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind == CallKind::WriteDirect {
            self.most
                .fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_millis(5));
            self.now.fetch_sub(1, SeqCst);
        }
        Verdict::Proceed
    }
}

#[test]
fn small_files_are_written_beside_one_another_where_threads_may_begin() {
    for may_begin_threads in [false, true] {
        let slow = Arc::new(Slow::default());
        let scene = Scene::new(&slow, may_begin_threads);
        let unsettled = scene.engine.session.settle_all().expect("a slot");
        assert!(unsettled.is_empty(), "{unsettled:?}");
        assert_eq!(scene.written(), FILES);
        let most = slow.most.load(SeqCst);
        assert_eq!(most > 1, may_begin_threads, "{most} writes at once");
    }
}

/// Pages of which every other one is written: each is a request.
const PLACES: u64 = 40;

#[test]
fn a_file_that_owes_many_places_is_written_by_a_queue_though_it_owes_little() {
    let slow = Arc::new(Slow::default());
    let scene = Scene::new(&slow, true);
    for file in 0..FILES as u8 {
        for place in 0..PLACES {
            let at = u64::from(LEN) + place * 2 * 4096;
            let file = scene.engine.handle(file, 0);
            file.write_at(&[7; 4096], at).expect("written");
        }
    }
    let unsettled = scene.engine.session.settle_all().expect("a slot");
    assert!(unsettled.is_empty(), "{unsettled:?}");
    assert_eq!(slow.most.load(SeqCst), DEPTH, "as many as the queue takes");
}

/// Makes the last file's entry that of another one, while the first is written.
#[derive(Default)]
struct Swaps {
    shared: OnceLock<(Arc<Shared>, FileId)>,
}

impl Before for Swaps {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind == CallKind::WriteDirect
            && let Some((shared, id)) = self.shared.get()
        {
            let entry = shared.arena.file_unchecked(*id);
            entry.birth.store(OTHER, forebay::sync::Ordering::Relaxed);
        }
        Verdict::Proceed
    }
}

/// A birth that no file here has.
const OTHER: u64 = u64::MAX - 1;

#[test]
fn an_entry_that_becomes_another_files_meanwhile_is_left_alone() {
    let swaps = Arc::new(Swaps::default());
    let scene = Scene::new(&swaps, false);
    let last = scene.engine.handle(FILES as u8 - 1, 0).core();
    let last = last.expect("a managed file");
    let birth = &last.entry().birth;
    let before = birth.load(forebay::sync::Ordering::Relaxed);
    let set = swaps.shared.set((Arc::clone(&last.shared), last.id));
    assert!(set.is_ok());
    let unsettled = scene.engine.session.settle_all().expect("a slot");
    assert_eq!(birth.load(forebay::sync::Ordering::Relaxed), OTHER);
    birth.store(before, forebay::sync::Ordering::Relaxed);
    assert!(unsettled.is_empty(), "{unsettled:?}");
    assert_eq!(scene.written(), FILES - 1);
}

/// Calls by which a file may fail to be settled.
const CHANGES: Kinds = Kinds::of(&[
    CallKind::WriteDirect,
    CallKind::WriteBuffered,
    CallKind::SyncData,
    CallKind::SyncAll,
    CallKind::SetLen,
]);

#[test]
fn whichever_call_fails_once_everything_is_written_and_a_lost_sync_named() {
    let mut named = 0;
    for nth in 0.. {
        let plan = FaultPlan::nth(nth, CHANGES, Fault::Errno(libc::EIO), Repeat::Once);
        let scene = Scene::new(&plan, true);
        let settle = || scene.engine.session.settle_all().expect("a slot");
        let unsettled = settle();
        if plan.calls() <= nth {
            assert!(unsettled.is_empty(), "{unsettled:?}");
            assert!(nth >= 3 * FILES as u64, "{nth} calls");
            assert!(named >= FILES, "{named} syncs were lost");
            return;
        }
        // A write that fails is tried again by the same call; a sync is not, since it may have been told of anything.
        assert!(unsettled.len() <= 1, "call {nth}: {unsettled:?}");
        named += unsettled.len();
        assert_eq!(scene.written(), FILES, "call {nth}");
        let again = settle();
        assert!(again.is_empty(), "call {nth}: {again:?}");
    }
}

/// A pass asks the kernel about each file that it takes up.
#[test]
fn a_file_is_due_when_something_of_it_is() {
    let scene = Scene::new(&Arc::new(Slow::default()), false);
    let core = scene.engine.handle(0, 0).core().expect("a managed file");
    let me = core.shared.me().expect("a slot");
    let aged = Scope {
        dirty_ticks: 50,
        full_idle_ticks: u32::MAX,
        ..Scope::some(u64::MAX)
    };
    assert!(due::is_any(me, core.id, &Scope::some(u64::MAX)));
    assert!(!due::is_any(me, core.id, &aged));
    let tick = &me.arena.superblock().tick;
    tick.fetch_add(50, forebay::sync::Ordering::Relaxed);
    assert!(due::is_any(me, core.id, &aged));
    let never = Scope {
        dirty_ticks: u32::MAX,
        ..aged
    };
    assert!(!due::is_any(me, core.id, &never));
    assert!(!due::is_any(me, core.id, &Scope { from: 1, ..aged }));
}

/// The first file's write goes on until all others have been written, and theirs begin while it goes on.
#[derive(Default)]
struct Together {
    large: AtomicUsize,
    small: AtomicUsize,
    late: AtomicUsize,
}

impl Together {
    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            if begun.elapsed() > Duration::from_secs(5) {
                self.late.fetch_add(1, SeqCst);
                return;
            }
            sleep(Duration::from_millis(1));
        }
    }
}

/// One file's calls.
struct Part {
    all: Arc<Together>,
    is_large: bool,
}

impl Before for Part {
    fn before(&self, call: &Call) -> Verdict {
        let Together { large, small, .. } = &*self.all;
        if call.kind == CallKind::WriteDirect {
            if self.is_large {
                large.fetch_add(1, SeqCst);
                self.all.wait_until(|| small.load(SeqCst) == FILES);
            } else {
                self.all.wait_until(|| large.load(SeqCst) > 0);
                small.fetch_add(1, SeqCst);
            }
        }
        Verdict::Proceed
    }
}

/// What a pass has under way itself says nothing of how busy others keep the device.
#[test]
fn a_pass_puts_nothing_off_for_what_it_writes_itself() {
    let disk = SimDisk::new(SimOptions::default());
    let all = Arc::new(Together::default());
    let part = |file: usize| {
        let part = Part {
            all: Arc::clone(&all),
            is_large: file == 0,
        };
        Arc::new(Wrapped::new(disk.create(), Arc::new(part))) as Arc<dyn DeviceFile>
    };
    let block = BLOCK_BYTES as u64;
    let config = Config {
        route: Route::Scrap,
        flush_after: Some(Duration::from_millis(1)),
        ..roomy()
    };
    let store = Store::Sim((0..=FILES).map(part).collect());
    let engine = Engine::new(config, store, FILES + 1, 1);
    let bytes = vec![7; BLOCK_BYTES];
    for file in 0..=FILES {
        // More than a small file owes.
        let blocks = if file == 0 { 8 } else { 1 };
        for at in 0..blocks {
            let file = engine.handle(file as u8, 0);
            file.write_at(&bytes, at * block).expect("written");
        }
    }
    assert_eq!(all.large.load(SeqCst), 0, "nothing is written yet");
    let shared = engine.session.shared();
    shared.hosts.store(true, SeqCst);
    let me = shared.me().expect("a slot");
    let tick = &me.arena.superblock().tick;
    tick.fetch_add(50, forebay::sync::Ordering::Relaxed);
    let mut flusher = Flusher::new(Box::new(Inline::new()), 1);
    assert!(sweep(shared, me, &mut flusher));
    assert_eq!(all.small.load(SeqCst), FILES, "small files written");
    assert_eq!(all.late.load(SeqCst), 0, "somebody waited in vain");
    assert_eq!(engine.session.stats().owed_bytes, 0);
}
