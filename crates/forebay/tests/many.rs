//! Many files that owe something: they are flushed beside one another, whichever call of a device fails, and a pass over files whose time
//! has not come does nothing.
#![cfg(feature = "sim")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use common::{Engine, Store};
use forebay::Config;
use forebay::device::DeviceFile;
use forebay::flush::{Scope, due};
use forebay::sim::device::{
    Before, Call, CallKind, FaultPlan, Kinds, Outcome as Fault, Repeat, SimDisk, SimFile,
    SimOptions, Verdict, Wrapped,
};
use forebay_model::{Op, Outcome, Target, fill};

const FILES: usize = 12;
/// Two whole pages, and a last one that goes by the kernel's cache.
const LEN: u32 = 2 * 4096 + 100;

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
        let mut engine = Engine::new(Config::tiny(), store, FILES, 1);
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
