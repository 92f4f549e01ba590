//! Flushes of files whose device fails here and there.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Scope;
use crate::config::{Config, DirtyTracking, Route};
use crate::device::DeviceFile;
use crate::file::{File, OpenOptions};
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, ThreadId};
use crate::member::shared::Shared;
use crate::member::table::as_witness;
use crate::memory::files::FileEntry;
use crate::memory::layout::Counts;
use crate::memory::threads::Me;
use crate::session::Session;
use crate::sim::device::{
    Before, Call, CallKind, Kinds, SimDisk, SimFile, SimOptions, Verdict, Wrapped,
};
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

/// The kernel tells what it could not write back to the thread that waits for it, once: to a flush in the background, as well.
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

/// A program has died that owed a file's last page. What the kernel could not write back of it is lost to no program that has the file open.
#[test]
fn what_was_not_written_back_while_nobody_had_the_file_open_is_told_to_who_opens_it_next() {
    let has_failed = AtomicBool::new(false);
    let scene = scene(DirtyTracking::Page, move |call| {
        call.kind == CallKind::SyncData && !has_failed.swap(true, Ordering::SeqCst)
    });
    scene.file.write_at(&[1; 5000], 0).expect("memory");
    let shared = Arc::clone(scene.session.shared());
    let me = shared.me().expect("a slot");
    let id = scene.file.core().expect("managed").id;
    let openers = &shared.arena.file_unchecked(id).openers;
    let had = openers.swap(0, Release);
    let flush = || shared.flush(me, id, &scene.device, Scope::some(u64::MAX));
    assert_eq!(flush().errno, Some(libc::EIO));
    assert_eq!(flush().errno, None, "the retry goes well");
    let options = || OpenOptions::new().read(true).write(true).clone();
    let open = || {
        let device = Arc::clone(&scene.device);
        let opened = scene.session.open_device(device, "sim", &options());
        opened.expect("a file")
    };
    let next = open();
    assert_eq!(errno(next.sync_all()), Some(libc::EIO));
    assert_eq!(errno(next.sync_all()), None, "it is told once");
    assert_eq!(errno(next.close()), None);
    let later = open();
    assert_eq!(errno(later.sync_all()), None, "one has heard of it");
    openers.fetch_add(had, Release);
}

/// The kernel tells one of two syncs at the same time, and that one has not said so yet when the other one returns.
#[test]
fn of_two_syncs_at_once_none_says_that_all_is_well_while_the_other_hears_that_it_is_not() {
    let (calls, (began, has_begun)) = (AtomicU32::new(0), channel());
    let scene = scene(DirtyTracking::Page, move |call| {
        if call.kind != CallKind::SyncAll || calls.fetch_add(1, Ordering::SeqCst) > 0 {
            return false;
        }
        began.send(()).expect("somebody waits");
        while calls.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        // Time for the other one to return.
        std::thread::sleep(Duration::from_millis(100));
        true
    });
    let options = OpenOptions::new().read(true).write(true).clone();
    let other = scene
        .session
        .open_device(Arc::clone(&scene.device), "sim", &options);
    let other = other.expect("a file");
    scene.file.write_at(&[1; 8192], 0).expect("memory");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| errno(scene.file.sync_all()));
        has_begun.recv().expect("the first sync");
        assert_eq!(errno(other.sync_all()), Some(libc::EIO));
        assert_eq!(first.join().expect("no panic"), Some(libc::EIO));
    });
    assert_eq!(errno(other.sync_all()), None, "it is told once");
}

/// A member besides the test's own thread.
const OTHER: ThreadId = ThreadId(8);

/// A file whose flushes end with a sync; `during` is told of each sync, and which one it is.
fn synced_scene(
    during: impl Fn(u32, &FileEntry, Me<'_>) + Send + Sync + 'static,
) -> (Scene, Arc<AtomicU32>) {
    let syncs = Arc::new(AtomicU32::new(0));
    let (count, place) = (Arc::clone(&syncs), Arc::new(OnceLock::new()));
    let found: Arc<OnceLock<(Arc<Shared>, FileId)>> = Arc::clone(&place);
    let scene = scene(DirtyTracking::Page, move |call| {
        if let Some((shared, id)) = found.get()
            && Kinds::SYNCS.contains(call.kind)
        {
            let nth = count.fetch_add(1, Ordering::SeqCst) + 1;
            let me = shared.me().expect("a slot");
            during(nth, shared.arena.file_unchecked(*id), me);
        }
        false
    });
    assert!(scene.device.has_sync_and_stat());
    let id = scene.file.core().expect("managed").id;
    let shared = Arc::clone(scene.session.shared());
    assert!(place.set((shared, id)).is_ok());
    scene.file.write_at(&[1; 8192], 0).expect("memory");
    (scene, syncs)
}

/// What the session remembers of the file is what the file is like.
fn is_witnessed(scene: &Scene) -> bool {
    let arena = &scene.session.shared().arena;
    let entry = arena.file_unchecked(scene.file.core().expect("managed").id);
    let stat = scene.inner.stat().expect("a file");
    entry.witness(arena.counts().threads) == Some(as_witness(&stat))
}

/// Should the program be killed in the sync, a repair knows that it was at the file.
#[test]
fn a_sync_that_ends_a_flush_is_part_of_the_change() {
    let (scene, syncs) = synced_scene(|_, entry, me| assert!(entry.has_intent(me.id)));
    assert_eq!(errno(scene.file.sync_all()), None);
    assert_eq!(syncs.load(Ordering::SeqCst), 1);
    assert!(is_witnessed(&scene));
}

/// A change that has begun before the sync may end after it: the sync would not cover it.
#[test]
fn a_flush_beside_another_change_does_not_sync() {
    let (scene, syncs) = synced_scene(|_, entry, me| assert!(!entry.has_intent(me.id)));
    let id = scene.file.core().expect("managed").id;
    let entry = scene.session.shared().arena.file_unchecked(id);
    entry.begin_intent(OTHER);
    assert_eq!(errno(scene.file.sync_all()), None);
    assert_eq!(syncs.load(Ordering::SeqCst), 1);
    entry.end_intent(OTHER);
}

/// Each sync finds the file changed meanwhile, and still there are two of them, and not one after the other without an end.
#[test]
fn a_sync_ends_though_others_change_the_file_all_the_time() {
    let (scene, syncs) = synced_scene(|nth, entry, _| {
        if nth == 2 {
            assert!(!entry.is_unwitnessed(10), "it was looked at again");
        }
        // An end for a thread that would go on.
        if nth < 100 {
            entry.begin_intent(OTHER);
            entry.end_intent(OTHER);
        }
    });
    assert_eq!(errno(scene.file.sync_all()), None);
    assert_eq!(syncs.load(Ordering::SeqCst), 2);
    assert_eq!(scene.inner.contents(), [1; 8192]);
}

/// What the device says of its state is no word about the sync.
#[test]
fn a_look_that_fails_is_no_failed_sync() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_broken);
    let scene = scene(DirtyTracking::Page, move |call| {
        call.kind == CallKind::Stat && fails.load(Ordering::SeqCst)
    });
    let (synced, found) = scene.device.sync_and_stat();
    assert!(synced.is_ok() && found.is_some());
    is_broken.store(true, Ordering::SeqCst);
    let (synced, found) = scene.device.sync_and_stat();
    assert!(synced.is_ok() && found.is_none());
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

const PAGE: usize = 4096;
const BLOCK: usize = 64 * PAGE;

/// Whether a read meets a page of the file.
fn reads(call: &Call, page: usize) -> bool {
    let (start, end) = ((page * PAGE) as u64, ((page + 1) * PAGE) as u64);
    call.kind == CallKind::ReadDirect && call.offset < end && call.offset + call.len > start
}

/// Two blocks on the device, whose page 63 cannot be read from then on while `is_bad`; then 100 bytes in each of these pages. What the device
/// should have afterwards.
fn ragged_scene(is_bad: &Arc<AtomicBool>, pages: &[usize]) -> (Scene, Vec<u8>) {
    let bad = Arc::clone(is_bad);
    let scene = scene(DirtyTracking::Page, move |call| {
        bad.load(Ordering::SeqCst) && reads(call, 63)
    });
    let mut content = vec![1; 2 * BLOCK];
    scene.file.write_at(&content, 0).expect("memory");
    scene.file.sync_data().expect("synced");
    let me = scene.session.shared().me().expect("a slot");
    crate::evict::evict_file(me, scene.file.core().expect("managed").id);
    is_bad.store(true, Ordering::SeqCst);
    for &page in pages {
        let at = page * PAGE + 50;
        content[at..at + 100].fill(2);
        scene.file.write_at(&[2; 100], at as u64).expect("memory");
    }
    (scene, content)
}

/// Twenty pages of a block lack bytes, so that all of the block is read for them.
#[test]
fn a_page_that_nobody_has_written_keeps_nothing_from_the_device() {
    let is_bad = Arc::new(AtomicBool::new(false));
    let pages: Vec<usize> = (0..20).map(|at| 3 * at).chain([70]).collect();
    let (scene, content) = ragged_scene(&is_bad, &pages);
    assert_eq!(errno(scene.file.sync_all()), None);
    assert!(scene.inner.contents() == content);
}

/// The page that cannot be read lacks bytes itself: it stays owed, and nothing else does.
#[test]
fn a_page_that_cannot_be_filled_keeps_no_other_from_the_device() {
    let is_bad = Arc::new(AtomicBool::new(false));
    let pages: Vec<usize> = (0..20).map(|at| 3 * at).chain([63, 70]).collect();
    let (scene, content) = ragged_scene(&is_bad, &pages);
    assert_eq!(errno(scene.file.sync_all()), Some(libc::EIO));
    let mut without = content.clone();
    without[63 * PAGE..64 * PAGE].fill(1);
    assert!(scene.inner.contents() == without);
    assert_eq!(errno(scene.file.sync_all()), Some(libc::EIO), "as before");
    is_bad.store(false, Ordering::SeqCst);
    assert_eq!(errno(scene.file.sync_all()), None);
    assert!(scene.inner.contents() == content);
}

/// A region that cannot be read, with a small write in each of its pages, keeps nothing behind it from the device.
#[test]
fn a_bad_region_keeps_no_block_behind_it_from_the_device() {
    let is_bad = Arc::new(AtomicBool::new(false));
    let bad = Arc::clone(&is_bad);
    let scene = scene(DirtyTracking::Page, move |call| {
        let begins_there = call.offset < 3 * BLOCK as u64 && call.kind == CallKind::ReadDirect;
        bad.load(Ordering::SeqCst) && begins_there
    });
    let mut content = vec![1; 4 * BLOCK];
    scene.file.write_at(&content, 0).expect("memory");
    scene.file.sync_data().expect("synced");
    let me = scene.session.shared().me().expect("a slot");
    crate::evict::evict_file(me, scene.file.core().expect("managed").id);
    is_bad.store(true, Ordering::SeqCst);
    for page in (0..30).map(|at| at / 10 * 64 + at % 10 * 2) {
        let at = (page * PAGE + 50) as u64;
        scene.file.write_at(&[2; 100], at).expect("memory");
    }
    let whole = 3 * BLOCK..3 * BLOCK + PAGE;
    content[whole.clone()].fill(3);
    let written = scene
        .file
        .write_at(&content[whole.clone()], whole.start as u64);
    written.expect("memory");
    assert_eq!(errno(scene.file.sync_all()), Some(libc::EIO));
    assert!(scene.inner.contents() == content);
}

/// A device that reads nothing any more is not asked for each block.
#[test]
fn a_dead_device_is_not_asked_again_and_again() {
    let (dead, calls) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let (is_dead, counted) = (Arc::clone(&dead), Arc::clone(&calls));
    let scene = scene(DirtyTracking::Page, move |_| {
        let fails = is_dead.load(Ordering::SeqCst);
        counted.fetch_add(u32::from(fails), Ordering::SeqCst);
        fails
    });
    for block in 0..60 {
        let at = (block * BLOCK) as u64;
        scene.file.write_at(&[1; PAGE], at).expect("memory");
    }
    scene.file.sync_data().expect("synced");
    let me = scene.session.shared().me().expect("a slot");
    crate::evict::evict_file(me, scene.file.core().expect("managed").id);
    for block in 0..60 {
        let at = (block * BLOCK + 100) as u64;
        scene.file.write_at(&[2; 100], at).expect("memory");
    }
    dead.store(true, Ordering::SeqCst);
    let id = scene.file.core().expect("managed").id;
    let shared = scene.session.shared();
    let outcome = shared.flush(me, id, &scene.device, Scope::some(u64::MAX));
    assert_eq!(outcome.errno, Some(libc::EIO));
    let calls = calls.load(Ordering::SeqCst);
    assert!((1..40).contains(&calls), "{calls} calls");
}

/// A keeper has the device of a file in hand that nobody has open; the file's entry is dropped, and becomes another file's, which owes bytes.
#[test]
fn no_file_is_written_to_the_device_of_the_one_that_had_its_entry() {
    let session = session(DirtyTracking::Page);
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    let disk = SimDisk::new(SimOptions::default());
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let (first, second) = (disk.create(), disk.create());
    let open = |sim: &Arc<SimFile>| {
        let device: Arc<dyn DeviceFile> = Arc::clone(sim) as _;
        session.open_device(device, "sim", &options)
    };
    let file = open(&first).expect("a file");
    let id = file.core().expect("managed").id;
    file.close().expect("closed");
    let other = open(&second).expect("a file");
    if other.core().expect("managed").id != id {
        // There are two entries.
        other.close().expect("closed");
    }
    crate::member::table::forget_removed(shared, me, id);
    let files: Vec<_> = (0..2).map_while(|_| open(&disk.create()).ok()).collect();
    let has_it = |file: &&File| file.core().is_some_and(|core| core.id == id);
    let next = files.iter().find(has_it).expect("the entry is another's");
    next.write_at(&[7; 5000], 0).expect("written");
    let device: Arc<dyn DeviceFile> = Arc::clone(&first) as _;
    let outcome = shared.flush(me, id, &device, Scope::SYNC);
    assert_eq!(outcome.pages_written, 0);
    assert_eq!(first.stat().expect("a file").len, 0);
    next.sync_all().expect("synced");
}
