//! Dirty sets of cores at work (`dirty_tracking = percore`): what a sync and a pass find by them, and what happens when they know too
//! little.
#![cfg(all(feature = "sim", not(feature = "shuttle")))]

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay::config::{DirtyTracking, FlushOrder, Route};
use forebay::flush::Scope;
use forebay::ids::FileId;
use forebay::keeper::check::check;
use forebay::memory::threads::{self, Me};
use forebay::sim::device::{SimDisk, SimOptions};
use forebay::sim::{Bug, plant};
use forebay::stream::tracking::{self, percore};
use forebay::sync::Ordering::Relaxed;
use forebay::{Config, File, OpenOptions, Session};

const BLOCK: u64 = 256 * 1024;

fn config() -> Config {
    Config {
        memory: 64 * BLOCK,
        dirty_bytes_max: 64 * BLOCK,
        route: Route::Scrap,
        read_ahead: 0,
        ..Config::tiny()
    }
    .with_tracking(DirtyTracking::Percore)
}

struct World {
    session: Session,
    disk: SimDisk,
}

impl World {
    fn new(config: Config) -> World {
        World {
            session: Session::open(config).expect("a session"),
            disk: SimDisk::new(SimOptions {
                capacity_bytes: 1 << 40,
                ..SimOptions::default()
            }),
        }
    }

    fn file(&self, name: &str, blocks: u64) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let device = Arc::clone(&self.disk.create());
        let file = self.session.open_device(device, name, &options);
        let file = file.expect("a file");
        file.set_len(blocks * BLOCK).expect("a length");
        file
    }

    fn me(&self) -> Me<'_> {
        self.session.shared().me().expect("a slot")
    }

    /// Blocks of each set, and that the checker agrees.
    fn sets(&self) -> Vec<BTreeSet<u32>> {
        let arena = &self.session.shared().arena;
        assert_eq!(check(arena).err(), None);
        let contents = |set| percore::contents(arena, set).expect("sound links");
        let blocks = |set| contents(set).into_iter().map(|(_, _, block)| block);
        (0..percore::count(arena))
            .map(|set| blocks(set).collect())
            .collect()
    }

    fn surprises(&self) -> u32 {
        let lists = self.session.shared().arena.stream_lists();
        lists.surprises.load(Relaxed)
    }

    /// A pass of the keeper's. Pages written.
    fn pass(&self, file: &File) -> u64 {
        let shared = self.session.shared();
        let core = file.core().expect("managed");
        let scope = Scope::some(u64::MAX);
        shared
            .flush_with(
                &mut shared.own_flusher(),
                self.me(),
                core.id,
                &core.device,
                scope,
            )
            .pages_written
    }
}

fn id_of(file: &File) -> FileId {
    file.core().expect("managed").id
}

fn write(file: &File, blocks: impl IntoIterator<Item = u64>) {
    for block in blocks {
        file.write_at(&[block as u8; 100], block * BLOCK)
            .expect("written");
    }
}

#[test]
fn blocks_are_dealt_out_and_leave_when_they_are_written() {
    let world = World::new(config());
    let file = world.file("one", 20);
    write(&file, [0, 1, 2, 3, 9]);
    write(&file, [0, 9]);
    let sets = world.sets();
    assert_eq!(sets, [BTreeSet::from([0, 2]), BTreeSet::from([1, 3, 9])]);
    assert_eq!(world.session.streams(), []);
    assert_eq!(world.pass(&file), 5);
    write(&file, [4]);
    assert_eq!(world.sets(), [BTreeSet::from([4]), BTreeSet::new()]);
    file.sync_data().expect("synced");
    assert_eq!(world.sets(), [BTreeSet::new(), BTreeSet::new()]);
    assert_eq!(world.surprises(), 0);
}

#[test]
fn what_is_cut_off_leaves_the_sets() {
    let world = World::new(config());
    let file = world.file("one", 20);
    write(&file, 0..8);
    file.set_len(3 * BLOCK).expect("shorter");
    let sets = world.sets();
    assert_eq!(sets, [BTreeSet::from([0, 2]), BTreeSet::from([1])]);
}

/// A set that somebody has for long makes nobody wait: the file is in doubt until a flush makes its sets anew.
#[test]
fn a_set_in_other_hands_leaves_a_doubt_that_ends() {
    let world = World::new(config());
    let file = world.file("one", 20);
    let arena = &world.session.shared().arena;
    write(&file, [0]);
    arena.dirty_set(1).lock.store(9, Relaxed);
    write(&file, 1..4);
    assert!(tracking::is_in_doubt(arena, id_of(&file)));
    file.sync_data().expect("the marks say what is owed");
    assert_eq!(
        file.core()
            .expect("managed")
            .entry()
            .owed_pages
            .load(Relaxed),
        0
    );
    arena.dirty_set(1).lock.store(0, Relaxed);
    write(&file, 5..8);
    file.sync_data().expect("synced");
    assert!(!tracking::is_in_doubt(arena, id_of(&file)));
    write(&file, 5..8);
    assert_eq!(world.sets(), [BTreeSet::from([6]), BTreeSet::from([5, 7])]);
    assert_eq!(world.surprises(), 0);
}

#[test]
fn a_sync_finds_what_the_sets_do_not_have() {
    let world = World::new(config());
    let file = world.file("one", 20);
    plant(Some(Bug::UntoldDirt));
    write(&file, 0..3);
    plant(None);
    let arena = &world.session.shared().arena;
    assert!(check(arena).is_err(), "the checker sees it");
    file.sync_data().expect("synced");
    assert_eq!(
        file.core()
            .expect("managed")
            .entry()
            .owed_pages
            .load(Relaxed),
        0
    );
    assert_eq!(world.surprises(), 1, "after the first the file is in doubt");
}

#[test]
fn a_dead_holder_of_a_set_is_found_by_a_rebuild() {
    let world = World::new(config());
    let file = world.file("one", 20);
    write(&file, 0..3);
    let arena = &world.session.shared().arena;
    let dead = threads::take(arena, false).expect("a slot");
    arena.dirty_set(0).lock.store(dead.0, Relaxed);
    let dead_me = Me { arena, id: dead };
    std::mem::forget(dead_me.enter(id_of(&file)).expect("nobody stops it"));
    threads::slay(arena, dead);
    write(&file, 3..5);
    forebay::keeper::repair::if_needed(world.session.shared(), world.me());
    let sets = world.sets();
    assert_eq!(sets, [BTreeSet::from([0, 2, 4]), BTreeSet::from([1, 3])]);
    file.sync_data().expect("synced");
    assert_eq!(world.surprises(), 0);
}

/// More places than there are records: the file is in doubt, and nothing is lost.
#[test]
fn more_places_than_records_lose_nothing() {
    let world = World::new(Config {
        memory: 8 * BLOCK,
        ..config()
    });
    let arena = &world.session.shared().arena;
    let records = u64::from(arena.counts().streams());
    let file = world.file("one", 130 * (records + 20));
    write(&file, (0..records + 10).map(|index| index * 130));
    assert!(tracking::is_in_doubt(arena, id_of(&file)));
    assert_eq!(check(arena).err(), None);
    file.sync_data().expect("synced");
    assert_eq!(
        file.core()
            .expect("managed")
            .entry()
            .owed_pages
            .load(Relaxed),
        0
    );
    write(&file, [7]);
    file.sync_data().expect("synced");
    assert!(!tracking::is_in_doubt(arena, id_of(&file)));
    let mut byte = [0];
    for index in 0..records + 10 {
        file.read_at(&mut byte, index * 130 * BLOCK).expect("read");
        assert_eq!(byte, [(index * 130) as u8]);
    }
}

#[test]
fn the_order_of_streams_needs_streams() {
    let config = Config {
        flush_order: FlushOrder::Stream,
        ..config()
    };
    assert!(config.check().is_err());
}
