//! Closes that leave what is owed to the keeper, step by step: a process with two parts in one session, one that keeps and one
//! that closes. Whole programs are tested with the preload library.

mod here;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay::device::RealFile;
use forebay::file::inode::Inode;
use forebay::file::settle::Durability;
use forebay::flush::errors;
use forebay::memory::files::{CLOSING, LEASED};
use forebay::session::glance::Glance;
use forebay::sync::Ordering;
use forebay::{Config, OpenOptions, Session};

const LEN: usize = 3_000_001;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 4096) as u8).collect()
}

struct Scene {
    keeps: Option<Session>,
    closes: Session,
    path: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

fn config(arenas: &Path) -> Config {
    let set = |builder: forebay::config::Builder, (key, text): (&str, &str)| builder.set(key, text);
    let options = [
        ("memory", "16MiB"),
        ("session", "closing"),
        ("arena_dir", arenas.to_str().expect("UTF-8")),
        ("flush_interval", "never"),
        ("flush_after", "never"),
        ("route", "scrap"),
        // What is full is being written already.
        ("close_behind_bytes", "1"),
    ];
    let builder = options.into_iter().try_fold(Config::builder(), set);
    builder
        .and_then(|builder| builder.build())
        .expect("a configuration")
}

impl Scene {
    /// `None`: files of this place cannot be managed.
    fn new() -> Option<Self> {
        let arenas = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let files = tempfile::tempdir_in(&here::places()[0]).expect("a directory");
        let probe = File::create(files.path().join("probe")).expect("a file");
        if let Err(reason) = RealFile::reopen(probe.as_fd()) {
            here::skipped(reason);
            return None;
        }
        let config = config(arenas.path());
        let keeps = Session::open(config.clone()).expect("a session");
        // A keeper has the word a moment before it has its desk; what is written until then it opens by itself.
        let superblock = keeps.shared().arena.superblock();
        await_that(|| superblock.keeper_epoch.load(Ordering::Acquire) != 0);
        Some(Scene {
            keeps: Some(keeps),
            closes: Session::join(config).expect("a session"),
            path: files.path().join("f"),
            _dirs: [arenas, files],
        })
    }

    /// A program's descriptor, and the engine's file, which owes everything.
    fn written(&self) -> (File, Inode) {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&self.path)
            .expect("a file");
        let inode = self.closes.adopt(file.as_fd(), true, |fd| fd);
        let inode = inode.expect("it can be managed");
        self.write(&inode);
        (file, inode)
    }

    fn write(&self, inode: &Inode) {
        let me = self.closes.shared().me().expect("a slot");
        let bytes = bytes();
        // SAFETY: the bytes live during the call.
        let written = unsafe { inode.write_at(me, bytes.as_ptr(), LEN, 0, true) };
        assert_eq!(written.expect("written"), LEN);
    }

    fn flags(&self, inode_number: u64) -> u32 {
        let arena = &self.closes.shared().arena;
        let device = fs::metadata(&self.path).expect("a file").dev();
        let id = forebay::member::table::find(arena, device, inode_number).expect("an entry");
        arena.file_unchecked(id).flags.load(Ordering::Acquire)
    }

    /// The time that programs of the session are told instead of the device file's.
    fn told_ns(&self) -> Option<u64> {
        let arena = self.closes.place().expect("a place").path.expect("a file");
        let (glance, _) = Glance::at(&arena).expect("an arena");
        let meta = fs::metadata(&self.path).expect("a file");
        let ns = |seconds: i64, ns: i64| (seconds * 1_000_000_000 + ns) as u64;
        let mtime_ns = ns(meta.mtime(), meta.mtime_nsec());
        let ctime_ns = ns(meta.ctime(), meta.ctime_nsec());
        match glance.known(meta.dev(), meta.ino()) {
            Some(known) => known.changed_ns(mtime_ns, ctime_ns),
            None => glance.changed_with_kernel((meta.dev(), meta.ino()), (mtime_ns, ctime_ns)),
        }
    }

    fn is_whole(&self) -> bool {
        fs::read(&self.path).expect("a file") == bytes()
    }
}

fn await_that(mut what: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_file_is_left_to_the_keeper_and_looks_finished_at_once() {
    let Some(scene) = Scene::new() else { return };
    // No lease is to be had while a process that another test has just forked has this one's descriptors: then it is flushed.
    await_that(|| {
        let (file, inode) = scene.written();
        let number = file.metadata().expect("a file").ino();
        let seen = AtomicU32::new(inode.error_sequence());
        let me = scene.closes.shared().me().expect("a slot");
        let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
        let before = fs::metadata(&scene.path).expect("a file");
        assert_eq!(before.len(), LEN as u64);
        drop(file);
        inode.leave(me, &seen, &prepared).expect("left");
        assert!(scene.is_whole());
        await_that(|| scene.flags(number) & (CLOSING | LEASED) == 0);
        let after = fs::metadata(&scene.path).expect("a file");
        let is_left = scene.closes.stats().closed_behind != 0;
        let times = [&after, &before].map(|meta| (meta.mtime(), meta.mtime_nsec()));
        assert!(!is_left || times[0] == times[1], "{times:?}");
        is_left
    });
}

/// A thread of the keeper's that looks for something to do is at the file while another finishes it: what that has left is noted later.
#[test]
fn its_times_are_those_of_the_close_while_somebody_is_at_it() {
    let Some(scene) = Scene::new() else { return };
    // As in the test before.
    await_that(|| is_left_while_somebody_is_at_it(&scene));
    // What others do is told.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(&scene.path, mode).expect("a mode");
    assert_eq!(scene.told_ns(), None);
}

fn is_left_while_somebody_is_at_it(scene: &Scene) -> bool {
    let (file, inode) = scene.written();
    let number = file.metadata().expect("a file").ino();
    let seen = AtomicU32::new(inode.error_sequence());
    let shared = scene.closes.shared();
    let me = shared.me().expect("a slot");
    let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    let core = inode.core();
    let (id, device) = (core.id, std::sync::Arc::clone(&core.device));
    let closed = device.stat().expect("a file").mtime_ns;
    drop(file);
    let is_left = std::thread::scope(|scope| {
        let (begun, is_begun) = std::sync::mpsc::channel();
        let (seen_it, may_end) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let other = shared.me().expect("a slot");
            assert!(shared.begin_intent(other, id));
            begun.send(()).expect("somebody waits");
            let _ = may_end.recv();
            shared.end_intent(other, id, &device, None);
        });
        is_begun.recv().expect("begun");
        inode.leave(me, &seen, &prepared).expect("left");
        let is_left = scene.closes.stats().closed_behind != 0;
        if is_left {
            await_that(|| scene.flags(number) & (CLOSING | LEASED) == 0);
            assert_eq!(scene.told_ns(), Some(closed));
        }
        drop(seen_it);
        is_left
    });
    assert!(!is_left || scene.told_ns() == Some(closed));
    is_left
}

#[test]
fn its_times_are_those_of_the_close_once_it_is_with_the_kernel() {
    let Some(scene) = Scene::new() else { return };
    let mut closed = 0;
    await_that(|| {
        let (file, inode) = scene.written();
        let number = file.metadata().expect("a file").ino();
        let seen = AtomicU32::new(inode.error_sequence());
        let me = scene.closes.shared().me().expect("a slot");
        let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
        closed = inode.core().device.stat().expect("a file").mtime_ns;
        drop(file);
        let before = scene.closes.stats().closed_behind;
        inode.leave(me, &seen, &prepared).expect("left");
        // Where the lease is refused ([`leave_stuck`]) nothing is left, and the time is another.
        let is_left = scene.closes.stats().closed_behind > before;
        if is_left {
            await_that(|| scene.flags(number) & (CLOSING | LEASED) == 0);
        }
        is_left
    });
    let meta = fs::metadata(&scene.path).expect("a file");
    let given = scene.closes.give_to_kernel(meta.dev(), meta.ino(), 1);
    given.expect("nothing is owed");
    assert_eq!(scene.told_ns(), Some(closed));
    // What others do is told.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&scene.path, "others").expect("written");
    assert_eq!(scene.told_ns(), None);
}

#[test]
fn the_keeper_goes_between_the_steps() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let (file, inode) = scene.written();
    let number = file.metadata().expect("a file").ino();
    let seen = AtomicU32::new(inode.error_sequence());
    let me = scene.closes.shared().me().expect("a slot");
    let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    drop(scene.keeps.take());
    drop(file);
    inode.leave(me, &seen, &prepared).expect("flushed");
    assert_eq!(scene.flags(number) & (CLOSING | LEASED), 0);
    assert!(scene.is_whole());
    assert_eq!(scene.closes.stats().closed_behind, 0);
}

#[test]
fn somebody_opens_it_between_the_steps() {
    let Some(scene) = Scene::new() else { return };
    let (file, inode) = scene.written();
    let seen = AtomicU32::new(inode.error_sequence());
    let me = scene.closes.shared().me().expect("a slot");
    let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    let outsider = File::open(&scene.path).expect("no lease yet");
    drop(file);
    inode.leave(me, &seen, &prepared).expect("flushed");
    let mut found = vec![0; LEN];
    outsider.read_exact_at(&mut found, 0).expect("bytes");
    assert!(found == bytes());
    assert_eq!(scene.closes.stats().closed_behind, 0);
}

#[test]
fn what_may_be_executed_or_is_open_elsewhere_is_waited_for() {
    let Some(scene) = Scene::new() else { return };
    let (file, inode) = scene.written();
    let seen = AtomicU32::new(inode.error_sequence());
    let me = scene.closes.shared().me().expect("a slot");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    file.set_permissions(executable).expect("a mode");
    assert!(inode.prepare_to_leave(me, &seen).is_none());
    let plain = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(plain).expect("a mode");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let keeps = scene.keeps.as_ref().expect("a session");
    let other = keeps.open_file(&scene.path, &options).expect("a file");
    assert!(inode.prepare_to_leave(me, &seen).is_none());
    // Its close has written everything.
    other.close().expect("closed");
    assert!(inode.prepare_to_leave(me, &seen).is_none());
    scene.write(&inode);
    assert!(inode.prepare_to_leave(me, &seen).is_some());
    inode.close(me, &seen).expect("closed");
    drop(file);
    assert!(scene.is_whole());
}

/// A closer that has died may have said so of a file of which the keeper has nothing.
#[test]
fn a_lease_that_is_none_is_forgotten() {
    let Some(scene) = Scene::new() else { return };
    let (file, inode) = scene.written();
    let number = file.metadata().expect("a file").ino();
    let seen = AtomicU32::new(0);
    let me = scene.closes.shared().me().expect("a slot");
    let id = inode.core().id;
    // To the device: where the kernel has all of it, nothing stays in memory, and the entry goes with the close.
    let written = inode.settle(me, Durability::Written, &seen);
    written.expect("written");
    inode.close(me, &seen).expect("closed");
    drop(file);
    let arena = &scene.closes.shared().arena;
    arena.superblock().leased.fetch_add(1, Ordering::AcqRel);
    let entry = arena.file_unchecked(id);
    entry.flags.fetch_or(LEASED, Ordering::AcqRel);
    await_that(|| scene.flags(number) & LEASED == 0);
    await_that(|| arena.superblock().leased.load(Ordering::Acquire) == 0);
}

#[test]
fn who_opens_a_file_hears_of_what_nobody_has_heard() {
    let Some(scene) = Scene::new() else { return };
    let (_file, inode) = scene.written();
    let entry = inode.core().entry();
    let me = scene.closes.shared().me().expect("a slot");
    inode
        .settle(me, Durability::Written, &AtomicU32::new(0))
        .expect("written");
    errors::record(entry, libc::EIO, 0);
    let told = AtomicU32::new(inode.error_sequence());
    assert_eq!(errors::unreported(entry, &told), None);
    errors::nobody_heard(entry);
    let first = AtomicU32::new(inode.error_sequence());
    let second = AtomicU32::new(inode.error_sequence());
    assert_eq!(errors::unreported(entry, &first), Some(libc::EIO));
    assert_eq!(errors::unreported(entry, &second), Some(libc::EIO));
    assert_eq!(errors::unreported(entry, &first), None);
    let later = AtomicU32::new(inode.error_sequence());
    assert_eq!(errors::unreported(entry, &later), None);
    assert_eq!(first.load(Relaxed), later.load(Relaxed));
}

/// An opening that does not wait would be refused while the lease is held: the test before shows that it ends.
#[test]
fn the_lease_keeps_others_out() {
    let Some(scene) = Scene::new() else { return };
    let (file, inode) = scene.written();
    let me = scene.closes.shared().me().expect("a slot");
    let seen = AtomicU32::new(inode.error_sequence());
    let _prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    drop(file);
    // It is refused while anybody is in the middle of a call on another description.
    await_that(|| inode.core().device.lease().is_ok());
    assert!(!inode.core().device.is_lease_wanted());
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&scene.path);
    let refused = opened.expect_err("somebody has a lease").raw_os_error();
    assert_eq!(refused, Some(libc::EWOULDBLOCK));
    assert!(inode.core().device.is_lease_wanted());
    inode.core().device.give_lease_up();
    inode.close(me, &seen).expect("closed");
    assert!(scene.is_whole());
}

/// Leaves a file that does not get on: as the keeper sees it, it owes a page that nobody can write. Deaths have left such.
///
/// The lease for that is refused while a process has copies of this one's descriptors, as the stand-ins have that keepers of other tests fork:
/// then the closer writes the file, and nothing is left.
fn leave_stuck(scene: &Scene) -> forebay::ids::FileId {
    let mut left = None;
    await_that(|| {
        left = try_to_leave_stuck(scene);
        left.is_some()
    });
    left.expect("left to the keeper")
}

fn try_to_leave_stuck(scene: &Scene) -> Option<forebay::ids::FileId> {
    let (file, inode) = scene.written();
    let seen = AtomicU32::new(inode.error_sequence());
    let me = scene.closes.shared().me().expect("a slot");
    let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    let (id, owed) = (inode.core().id, &inode.core().entry().owed_pages);
    owed.fetch_add(1, Ordering::AcqRel);
    drop(file);
    let before = scene.closes.stats().closed_behind;
    inode.leave(me, &seen, &prepared).expect("left");
    if scene.closes.stats().closed_behind > before {
        return Some(id);
    }
    unstick(scene, id);
    None
}

fn unstick(scene: &Scene, file: forebay::ids::FileId) {
    let entry = scene.closes.shared().arena.file_unchecked(file);
    entry.owed_pages.fetch_sub(1, Ordering::AcqRel);
}

/// The kernel lets people in after 45 s; this is less.
const IN_TIME: Duration = Duration::from_secs(35);

#[test]
fn a_file_that_does_not_get_on_is_given_up() {
    let Some(scene) = Scene::new() else { return };
    let stuck = leave_stuck(&scene);
    let begun = Instant::now();
    drop(File::open(&scene.path).expect("a file"));
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    unstick(&scene, stuck);
}

#[test]
fn a_file_that_does_not_get_on_is_in_no_others_way() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let stuck = leave_stuck(&scene);
    let path = scene.path.clone();
    let opener = std::thread::spawn(move || drop(File::open(path).expect("a file")));
    scene.path = scene.path.with_file_name("g");
    let (file, inode) = scene.written();
    let number = file.metadata().expect("a file").ino();
    let seen = AtomicU32::new(inode.error_sequence());
    let me = scene.closes.shared().me().expect("a slot");
    let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    drop(file);
    inode.leave(me, &seen, &prepared).expect("left");
    let begun = Instant::now();
    while scene.flags(number) & (CLOSING | LEASED) != 0 {
        assert!(begun.elapsed() < IN_TIME);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(scene.is_whole());
    opener.join().expect("it is opened");
    unstick(&scene, stuck);
}

#[test]
fn who_keeps_no_more_has_no_leases() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let stuck = leave_stuck(&scene);
    scene.keeps.as_mut().expect("a session").stop_keeping();
    let begun = Instant::now();
    drop(File::open(&scene.path).expect("a file"));
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    unstick(&scene, stuck);
}

#[test]
fn a_new_keeper_waits_for_nobodys_lease() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let (file, inode) = scene.written();
    let me = scene.closes.shared().me().expect("a slot");
    let seen = AtomicU32::new(inode.error_sequence());
    let _prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
    drop(file);
    drop(scene.keeps.take());
    await_that(|| inode.core().device.lease().is_ok());
    let next = Session::open(scene.closes.shared().config.clone()).expect("a session");
    let begun = Instant::now();
    while !next.shared().keeps.load(Relaxed) {
        assert!(begun.elapsed() < IN_TIME, "it waits for the lease");
        std::thread::sleep(Duration::from_millis(1));
    }
    inode.core().device.give_lease_up();
    inode.close(me, &seen).expect("closed");
    assert!(scene.is_whole());
}

#[test]
fn a_keeper_that_came_late_lets_go_of_what_is_closed() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    drop(scene.keeps.take());
    let (file, inode) = scene.written();
    let next = Session::open(scene.closes.shared().config.clone()).expect("a session");
    let id = inode.core().id;
    await_that(|| next.shared().device(id).is_some());
    let me = scene.closes.shared().me().expect("a slot");
    let seen = AtomicU32::new(inode.error_sequence());
    drop(file);
    inode.close(me, &seen).expect("closed");
    // A program could not be executed as long as it had the file open.
    assert!(next.shared().device(id).is_none());
    assert!(scene.is_whole());
}

/// Between the moment at which a closer has nobody count it any more and the one at which it leaves the file to the keeper, a keeper may write the last that the
/// file owes, and somebody remove it: its entry is nobody's then, and may become another file's.
#[cfg(feature = "sim")]
#[test]
fn an_entry_is_not_dropped_while_its_closer_is_leaving_it() {
    let Some(scene) = Scene::new() else { return };
    let looked = std::rc::Rc::new(std::cell::Cell::new(0u32));
    let mut at = 0;
    loop {
        let (file, inode) = scene.written();
        let seen = AtomicU32::new(inode.error_sequence());
        let me = scene.closes.shared().me().expect("a slot");
        let prepared = inode.prepare_to_leave(me, &seen).expect("prepared");
        let id = inode.core().id;
        drop(file);
        let leave = || inode.leave(me, &seen, &prepared).expect("left");
        let visit = as_keeper(&scene, id, &looked);
        let (visited, ()) = forebay::sim::visit_after_changes(at, visit, leave);
        let arena = &scene.closes.shared().arena;
        await_that(|| arena.file_unchecked(id).flags.load(Ordering::Acquire) & LEASED == 0);
        let _ = fs::remove_file(&scene.path);
        if !visited {
            break;
        }
        at += 1;
    }
    assert!(looked.get() > 0, "nobody came in between");
}

/// Writes what a file owes, removes it, and drops its entry, if nobody is counted as having it open and nobody has left it.
#[cfg(feature = "sim")]
fn as_keeper(
    scene: &Scene,
    id: forebay::ids::FileId,
    looked: &std::rc::Rc<std::cell::Cell<u32>>,
) -> impl FnOnce() + 'static {
    use forebay::member::table::forget_removed;
    let keeps = scene.keeps.as_ref().expect("a keeper");
    let (shared, path) = (std::sync::Arc::clone(keeps.shared()), scene.path.clone());
    let looked = std::rc::Rc::clone(looked);
    move || {
        let entry = shared.arena.file_unchecked(id);
        let is_left = entry.flags.load(Ordering::Acquire) & LEASED != 0;
        let Some(device) = shared
            .device(id)
            .filter(|_| !is_left && !shared.is_open(id))
        else {
            return;
        };
        let me = shared.me().expect("a slot");
        shared.flush(me, id, &device, forebay::flush::Scope::SYNC);
        drop(device);
        let _ = fs::remove_file(path);
        forget_removed(&shared, me, id);
        looked.set(looked.get() + 1);
    }
}
