//! Files that owe bytes, that nobody has open, and that are gone from where they were, or altogether. And entries that nobody needs.

mod here;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use forebay::device::RealFile;
use forebay::file::inode::Inode;
use forebay::file::vanished;
use forebay::ids::FileId;
use forebay::member::gone::Place;
use forebay::member::table;
use forebay::memory::arena::Arena;
use forebay::memory::files::{ABSENT, LEASED, LIVE, VANISHED};
use forebay::session::glance::Glance;
use forebay::sync::Ordering;
use forebay::{Config, Session};

const LEN: usize = 300_001;
const PATIENCE: Duration = Duration::from_secs(60);

/// A session that has no keeper yet.
struct Scene {
    session: Session,
    config: Config,
    path: PathBuf,
    dirs: [tempfile::TempDir; 2],
}

fn config(arenas: &Path) -> Config {
    let options = [
        ("memory", "16MiB"),
        ("session", "gone"),
        ("arena_dir", arenas.to_str().expect("UTF-8")),
        ("flush_interval", "never"),
        ("flush_after", "never"),
        ("route", "scrap"),
    ];
    let set = |builder: forebay::config::Builder, (key, text): (&str, &str)| builder.set(key, text);
    let builder = options.into_iter().try_fold(Config::builder(), set);
    builder
        .and_then(|builder| builder.build())
        .expect("a configuration")
}

fn create(path: &Path) -> File {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(path).expect("a file")
}

impl Scene {
    /// `None`: files of this place cannot be managed.
    fn new() -> Option<Self> {
        let arenas = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let files = here::directory();
        if let Err(reason) = RealFile::reopen(create(&files.path().join("probe")).as_fd()) {
            here::skipped(reason);
            return None;
        }
        let config = config(arenas.path());
        Some(Scene {
            session: Session::join(config.clone()).expect("a session"),
            config,
            path: files.path().join("f"),
            dirs: [arenas, files],
        })
    }

    fn adopt(&self, file: &File) -> Inode {
        let adopted = self.session.adopt(file.as_fd(), true, |fd| fd);
        adopted.expect("it can be managed")
    }

    fn written(&self) -> (File, Inode) {
        let file = create(&self.path);
        let inode = self.adopt(&file);
        let me = self.session.shared().me().expect("a slot");
        // SAFETY: the bytes live during the call.
        let written = unsafe { inode.write_at(me, [7; LEN].as_ptr(), LEN, 0, true) };
        assert_eq!(written.expect("written"), LEN);
        (file, inode)
    }

    /// A file that owes everything, and that who had it open, and the keeper, have died with. Its numbers.
    fn orphan(&self) -> (FileId, (u64, u64)) {
        let (file, inode) = self.written();
        let meta = file.metadata().expect("a file");
        let id = inode.core().id;
        let shared = self.session.shared();
        assert!(table::close(shared, id, true));
        shared.drop_device(id);
        assert!(self.owed(id) > 0);
        (id, (meta.dev(), meta.ino()))
    }

    /// A file whose openers have died without a keeper that would have counted them off. Its numbers.
    fn left_open(&self, owes: bool) -> (FileId, (u64, u64)) {
        let (file, inode) = self.written();
        let meta = file.metadata().expect("a file");
        let id = inode.core().id;
        let shared = self.session.shared();
        if !owes {
            assert!(self.session.settle_all().expect("a session").is_empty());
        }
        assert_eq!(self.owed(id) > 0, owes);
        // The kernel takes the lock of who dies; the entry counts on.
        shared.take_open(shared.opened(id), true);
        shared.drop_device(id);
        assert!(!shared.is_open(id));
        let entry = shared.arena.file_unchecked(id);
        assert_eq!(entry.opens(), 1);
        (id, (meta.dev(), meta.ino()))
    }

    fn owed(&self, id: FileId) -> u64 {
        let entry = self.session.shared().arena.file_unchecked(id);
        entry.owed_pages.load(Ordering::Acquire)
    }

    /// Removes the file, and makes one that gets its number, with `len` bytes: at `path`.
    fn replace(&self, (device, inode): (u64, u64), path: &Path, len: usize) -> bool {
        let begun = Instant::now();
        fs::remove_file(&self.path).expect("removed");
        let mut others = Vec::new();
        while begun.elapsed() < PATIENCE && others.len() < 1000 {
            fs::write(path, vec![1; len]).expect("a file");
            let meta = fs::metadata(path).expect("a file");
            if (meta.dev(), meta.ino()) == (device, inode) {
                return true;
            }
            // What is kept keeps its number.
            let kept = path.with_extension(others.len().to_string());
            fs::rename(path, &kept).expect("renamed");
            others.push(kept);
        }
        here::skipped("this file system does not give the number again");
        false
    }

    fn await_nothing_owed(&self, id: FileId) {
        let begun = Instant::now();
        while self.owed(id) != 0 {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.session.stats().dirty_bytes, 0);
    }

    fn flags(&self, id: FileId) -> u32 {
        let entry = self.session.shared().arena.file_unchecked(id);
        entry.flags.load(Ordering::Acquire)
    }
}

#[test]
fn what_is_known_of_a_file_is_not_known_of_one_with_its_number() {
    let Some(scene) = Scene::new() else { return };
    let (_, numbers) = scene.orphan();
    let arena = scene.session.place().expect("a place").path;
    let (glance, _) = Glance::at(&arena.expect("an arena")).expect("a session");
    let known = |file: &File| glance.known_at(numbers, || Place::of(file.as_fd()));
    let size = known(&create(&scene.path)).map(|known| known.size);
    assert_eq!(size, Some(LEN as u64));
    let other = scene.dirs[1].path().join("other");
    if !scene.replace(numbers, &other, 5) {
        return;
    }
    assert!(glance.known(numbers.0, numbers.1).is_some());
    assert!(known(&create(&other)).is_none());
}

#[test]
fn who_opens_a_file_with_the_number_of_one_that_is_gone_has_its_bytes_dropped() {
    let Some(scene) = Scene::new() else { return };
    let (id, numbers) = scene.orphan();
    let other = scene.dirs[1].path().join("other");
    if !scene.replace(numbers, &other, 5) {
        return;
    }
    let file = create(&other);
    let inode = scene.adopt(&file);
    assert_ne!(inode.core().id, id);
    assert_eq!(inode.core().entry().size.load(Ordering::Acquire), 5);
    scene.await_nothing_owed(id);
    let found = table::find(&scene.session.shared().arena, numbers.0, numbers.1);
    assert_eq!(found, Some(inode.core().id));
    let me = scene.session.shared().me().expect("a slot");
    inode.close(me, &AtomicU32::new(0)).expect("closed");
    assert_eq!(fs::read(&other).expect("a file"), [1; 5]);
    assert_eq!(scene.session.stats().files_vanished, 1);
}

/// An entry that counts openers who have died says nothing of a new file with its number.
#[test]
fn what_the_dead_had_open_is_not_known_of_a_file_with_its_number() {
    for owes in [true, false] {
        for glances in [true, false] {
            let Some(scene) = Scene::new() else { return };
            let (id, numbers) = scene.left_open(owes);
            let other = scene.dirs[1].path().join("other");
            if !scene.replace(numbers, &other, 5) {
                return;
            }
            let file = create(&other);
            if glances {
                let arena = scene.session.place().expect("a place").path;
                let (glance, _) = Glance::at(&arena.expect("an arena")).expect("a session");
                let known = glance.known_at(numbers, || Place::of(file.as_fd()));
                assert!(known.is_none(), "{owes}: {known:?}");
            }
            let inode = scene.adopt(&file);
            assert_ne!(inode.core().id, id);
            assert_eq!(inode.core().entry().size.load(Ordering::Acquire), 5);
            let found = table::find(&scene.session.shared().arena, numbers.0, numbers.1);
            assert_eq!(found, Some(inode.core().id), "{owes}");
            scene.await_nothing_owed(id);
            let me = scene.session.shared().me().expect("a slot");
            inode.close(me, &AtomicU32::new(0)).expect("closed");
            assert_eq!(fs::read(&other).expect("a file"), [1; 5]);
        }
    }
}

/// In the place of the old one, or beside it: a keeper looks there.
#[test]
fn a_keeper_drops_the_bytes_of_a_file_whose_number_another_has() {
    for name in ["f", "other"] {
        let Some(scene) = Scene::new() else { return };
        let (id, numbers) = scene.orphan();
        let other = scene.dirs[1].path().join(name);
        if !scene.replace(numbers, &other, 5) {
            return;
        }
        let _keeper = Session::open(scene.config.clone()).expect("a session");
        scene.await_nothing_owed(id);
        assert_eq!(fs::read(&other).expect("a file"), [1; 5]);
    }
}

#[test]
fn a_keeper_drops_what_the_one_before_has_seen_vanish() {
    let Some(scene) = Scene::new() else { return };
    let (id, _) = scene.orphan();
    fs::remove_file(&scene.path).expect("removed");
    let entry = scene.session.shared().arena.file_unchecked(id);
    entry.flags.fetch_or(VANISHED, Ordering::AcqRel);
    let _keeper = Session::open(scene.config.clone()).expect("a session");
    scene.await_nothing_owed(id);
}

/// A file that is only somewhere else keeps its bytes; opened there it gets them.
#[test]
fn what_has_been_moved_is_told_of_once_and_not_dropped() {
    let Some(scene) = Scene::new() else { return };
    let (id, _) = scene.orphan();
    let elsewhere = scene.dirs[1].path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    let moved = elsewhere.join("f");
    fs::rename(&scene.path, &moved).expect("renamed");
    let session = &scene.session;
    let mut unsettled = session.settle_all().expect("a session");
    assert_eq!(unsettled.len(), 1, "{unsettled:?}");
    session.drop_told(&mut unsettled);
    assert_eq!(unsettled.len(), 1, "nobody has been told");
    session.note_told(&unsettled);
    let mut again = session.settle_all().expect("a session");
    assert_eq!(again.len(), 1, "who asks for all hears of it");
    session.drop_told(&mut again);
    assert!(again.is_empty(), "{again:?}");
    assert!(scene.owed(id) > 0);
    let file = create(&moved);
    let inode = scene.adopt(&file);
    assert_eq!(inode.core().id, id);
    let me = session.shared().me().expect("a slot");
    inode.close(me, &AtomicU32::new(0)).expect("closed");
    assert_eq!(fs::read(&moved).expect("a file"), [7; LEN]);
    assert!(session.settle_all().expect("a session").is_empty());
}

/// What a keeper does with a file under its lease, step by step; this process is the closer and the keeper.
#[test]
fn the_last_name_goes_while_the_keeper_has_the_file() {
    let Some(scene) = Scene::new() else { return };
    let (file, inode) = scene.written();
    let shared = scene.session.shared();
    let me = shared.me().expect("a slot");
    let id = inode.core().id;
    drop(file);
    let device = shared.device(id).expect("a device");
    device.unite().expect("one description");
    device.lease().expect("a lease");
    let look = || vanished::tend(shared, me);
    // Somebody has it open.
    fs::hard_link(&scene.path, scene.path.with_extension("2")).expect("linked");
    fs::remove_file(&scene.path).expect("removed");
    look();
    assert_eq!(scene.flags(id) & VANISHED, 0);
    assert!(table::close(shared, id, true));
    shared
        .arena
        .superblock()
        .leased
        .fetch_add(1, Ordering::AcqRel);
    let entry = shared.arena.file_unchecked(id);
    entry.flags.fetch_or(LEASED, Ordering::AcqRel);
    // It has a name.
    look();
    look();
    assert_eq!(scene.flags(id) & VANISHED, 0);
    assert!(scene.owed(id) > 0);
    fs::remove_file(scene.path.with_extension("2")).expect("removed");
    look();
    assert_ne!(scene.flags(id) & VANISHED, 0);
    assert!(scene.owed(id) > 0, "it has been seen once");
    look();
    scene.await_nothing_owed(id);
    device.give_lease_up();
}

/// The table's entries in a state, or in any other.
fn entries(arena: &Arena, is: impl Fn(u32) -> bool) -> usize {
    let ids = (0..arena.counts().files).map(FileId);
    ids.filter(|&id| is(arena.file_unchecked(id).state.load(Ordering::Acquire)))
        .count()
}

/// Entries that nobody needs are in the way of each search for a file that nobody manages: of each call on it.
#[test]
fn a_file_that_the_kernel_has_leaves_no_entry_when_it_is_closed() {
    let Some(scene) = Scene::new() else { return };
    let shared = scene.session.shared();
    let me = shared.me().expect("a slot");
    let arena = &shared.arena;
    for _ in 0..20 {
        let (file, inode) = scene.written();
        assert_eq!(entries(arena, |state| state == LIVE), 1);
        inode.close(me, &AtomicU32::new(0)).expect("closed");
        if forebay::sys::kernel_cache::cached(file.as_fd()).is_err() {
            return here::skipped("the kernel does not say what it has in its cache");
        }
        assert_eq!(entries(arena, |state| state != ABSENT), 0);
        assert_eq!(fs::read(&scene.path).expect("a file"), [7; LEN]);
        fs::remove_file(&scene.path).expect("removed");
    }
}

/// Entries of one search stand one behind the other: those that are left are found, whichever of the others go first.
#[test]
fn what_is_left_in_the_table_is_found() {
    let Some(scene) = Scene::new() else { return };
    let mut config = Config::tiny();
    config.heap_backed = true;
    let session = Session::open(config).expect("a session");
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    let arena = &shared.arena;
    assert_eq!(arena.counts().files, 16, "so few that they are near");
    let mut random = 27_u64;
    for round in 0..20 {
        let create = |at: usize| create(&scene.path.with_extension(format!("{round}-{at}")));
        let files: Vec<File> = (0..14).map(create).collect();
        let adopt = |file: &File| session.adopt(file.as_fd(), true, |fd| fd).expect("managed");
        let mut left: Vec<(Inode, (u64, u64))> = files
            .iter()
            .map(|file| (adopt(file), file.metadata().expect("a file")))
            .map(|(inode, meta)| (inode, (meta.dev(), meta.ino())))
            .collect();
        while !left.is_empty() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (inode, _) = left.swap_remove((random >> 33) as usize % left.len());
            inode.close(me, &AtomicU32::new(0)).expect("closed");
            for (inode, (device, number)) in &left {
                assert_eq!(table::find(arena, *device, *number), Some(inode.core().id));
            }
        }
        assert_eq!(entries(arena, |state| state != ABSENT), 0);
    }
}
