//! Flushes of files whose device fails here and there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::Scope;
use crate::config::{Config, DirtyTracking, Route};
use crate::device::DeviceFile;
use crate::file::{File, OpenOptions};
use crate::frame::slots;
use crate::ids::BlockIndex;
use crate::memory::layout::Counts;
use crate::session::Session;
use crate::sim::device::{Before, Call, CallKind, SimDisk, SimFile, SimOptions, Verdict, Wrapped};
use crate::sync::Ordering::Release;

fn session(tracking: DirtyTracking) -> Session {
    let config = Config {
        route: Route::Scrap,
        // Writers flush nothing by themselves.
        memory: 64 << 20,
        dirty_bytes_max: 64 << 20,
        dirty_background: 64 << 20,
        ..Config::tiny().with_tracking(tracking)
    };
    let counts = Counts {
        threads: 10,
        files: 2,
        nodes: 64,
        headers: 80,
        frames: 80,
    };
    Session::simulated(config, counts).expect("a session")
}

/// A file of a disk whose calls fail as `fails` says.
struct Scene {
    session: Session,
    inner: Arc<SimFile>,
    device: Arc<dyn DeviceFile>,
    file: File,
}

struct Fails<F>(F);

impl<F: Fn(&Call) -> bool + Send + Sync> Before for Fails<F> {
    fn before(&self, call: &Call) -> Verdict {
        match (self.0)(call) {
            true => Verdict::Fail(std::io::Error::from_raw_os_error(libc::EIO)),
            false => Verdict::Proceed,
        }
    }
}

fn scene(tracking: DirtyTracking, fails: impl Fn(&Call) -> bool + Send + Sync + 'static) -> Scene {
    let session = session(tracking);
    let inner = SimDisk::new(SimOptions::default()).create();
    let wrapped = Wrapped::new(Arc::clone(&inner), Arc::new(Fails(fails)));
    let device: Arc<dyn DeviceFile> = Arc::new(wrapped);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(Arc::clone(&device), "sim", &options);
    Scene {
        file: file.expect("a file"),
        session,
        inner,
        device,
    }
}

fn errno(result: crate::Result<()>) -> Option<i32> {
    result.err().map(|error| error.errno())
}

/// The kernel tells what it could not write back to whoever waits for it, once: to a flush in the background, as well.
#[test]
fn what_the_kernel_could_not_write_back_is_told_to_a_sync() {
    let has_failed = AtomicBool::new(false);
    let scene = scene(DirtyTracking::Page, move |call| {
        call.kind == CallKind::SyncData && !has_failed.swap(true, Ordering::SeqCst)
    });
    scene.file.write_at(&[1; 5000], 0).expect("memory");
    let shared = scene.session.shared();
    let me = shared.me().expect("a slot");
    let id = scene.file.core().expect("managed").id;
    let flush = || shared.flush(me, id, &scene.device, Scope::some(u64::MAX));
    assert_eq!(flush().errno, Some(libc::EIO));
    assert_eq!(flush().errno, None, "the retry goes well");
    assert_eq!(errno(scene.file.sync_all()), Some(libc::EIO));
    assert_eq!(errno(scene.file.sync_all()), None, "it is told once");
    assert_eq!(scene.inner.contents(), [1; 5000]);
}

/// What the dead have under way, on a device that cannot say that it is over.
#[test]
fn a_sync_does_not_wait_for_what_cannot_be_waited_for() {
    let scene = scene(DirtyTracking::Page, |call| {
        call.kind == CallKind::WaitInFlight
    });
    scene.file.write_at(&[1; 8192], 0).expect("memory");
    let shared = Arc::clone(scene.session.shared());
    {
        let me = shared.me().expect("a slot");
        let id = scene.file.core().expect("managed").id;
        let entry = shared.arena.file_unchecked(id);
        let _operation = me.enter(id).expect("nobody is in the way");
        let header = slots::lookup(&shared.arena, entry, BlockIndex(0)).expect("a header");
        let guard = shared
            .arena
            .header(header)
            .and_then(|at| at.lock(me, header));
        let guard = guard.expect("nobody has it");
        guard.begin_flight(guard.dirty());
        guard.orphan_flights();
        shared.arena.superblock().orphans.store(1, Release);
    }
    let repairs = || {
        let rebuilds = &shared.arena.superblock().rebuilds;
        rebuilds.load(crate::sync::Ordering::Acquire)
    };
    // Each stops the whole session.
    let me = shared.me().expect("a slot");
    for _ in 0..200 {
        crate::keeper::repair::if_needed(&shared, me);
    }
    assert!((1..10).contains(&repairs()), "{} repairs", repairs());
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(errno(scene.file.sync_all())));
    let told = receiver.recv_timeout(Duration::from_secs(30));
    assert_eq!(told.expect("it ends"), Some(libc::EIO));
}
