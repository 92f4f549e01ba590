//! Streams at work: what a sync, the keeper and eviction do by them, and what happens when they know too little.
#![cfg(all(feature = "sim", not(feature = "shuttle")))]

use std::sync::{Arc, Mutex};

use forebay::config::{DirtyTracking, Route};
use forebay::evict;
use forebay::file::streams::write_coldest;
use forebay::flush::{Flusher, Scope};
use forebay::ids::{FileId, ThreadId};
use forebay::keeper::check::check;
use forebay::memory::threads::Me;
use forebay::session::streams::StreamKind;
use forebay::sim::device::{Before, Call, CallKind, SimDisk, SimOptions, Verdict, Wrapped};
use forebay::sim::{Bug, plant};
use forebay::stream::tracking;
use forebay::sync::Ordering;
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::fill;

const BLOCK: u64 = 256 * 1024;
const PAGE: usize = 4096;

/// The order in which blocks reach the devices.
#[derive(Default)]
struct Order(Mutex<Vec<(u64, u64)>>);

struct Log(Arc<Order>, u64);

impl Before for Log {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind == CallKind::WriteDirect {
            let mut order = self.0.0.lock().expect("no panic");
            let blocks = call.offset / BLOCK..(call.offset + call.len).div_ceil(BLOCK);
            order.extend(blocks.map(|block| (self.1, block)));
        }
        Verdict::Proceed
    }
}

struct World {
    session: Session,
    order: Arc<Order>,
    disk: SimDisk,
}

impl World {
    fn new(config: Config) -> World {
        World {
            session: Session::open(config).expect("a session"),
            order: Arc::default(),
            disk: SimDisk::new(SimOptions::default()),
        }
    }

    /// A file of so many blocks of the device's.
    fn file(&self, name: u64, blocks: u64) -> File {
        let log = Log(Arc::clone(&self.order), name);
        let device = Arc::new(Wrapped::new(self.disk.create(), Arc::new(log)));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = self
            .session
            .open_device(device, &format!("sim-{name}"), &options)
            .expect("a file");
        if blocks > 0 {
            file.set_len(blocks * BLOCK).expect("a length");
        }
        file
    }

    fn me(&self) -> Me<'_> {
        self.session.shared().me().expect("a slot")
    }

    fn pass_time(&self, ticks: u32) {
        let tick = &self.session.shared().arena.superblock().tick;
        tick.fetch_add(ticks, Ordering::Relaxed);
    }

    fn written(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.order.0.lock().expect("no panic"))
    }

    fn surprises(&self) -> u32 {
        let lists = self.session.shared().arena.stream_lists();
        lists.surprises.load(Ordering::Relaxed)
    }

    fn flusher(&self) -> Flusher {
        self.session.shared().own_flusher()
    }

    fn assert_sound(&self) {
        let problems = check(&self.session.shared().arena).err();
        assert_eq!(problems, None);
    }
}

fn roomy() -> Config {
    Config {
        memory: 64 * BLOCK,
        dirty_bytes_max: 64 * BLOCK,
        dirty_background: 8 * BLOCK,
        route: Route::Scrap,
        read_ahead: 0,
        ..Config::tiny()
    }
}

fn write_blocks(file: &File, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let mut bytes = vec![0; BLOCK as usize];
        fill(7, block * BLOCK, &mut bytes);
        file.write_at(&bytes, block * BLOCK).expect("written");
    }
}

fn id_of(file: &File) -> FileId {
    file.core().expect("managed").id
}

/// Blocks of a file that are in memory.
fn in_memory(world: &World, file: &File) -> Vec<u32> {
    let arena = &world.session.shared().arena;
    let entry = arena.file_unchecked(id_of(file));
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((block, _)) = forebay::frame::slots::next_linked(arena, entry, at) {
        found.push(block.0);
        at = u64::from(block.0) + 1;
    }
    found
}

#[test]
fn sequential_writes_of_two_files_are_two_streams() {
    let world = World::new(roomy());
    let (a, b) = (world.file(1, 0), world.file(2, 0));
    for page in 0..4 * 64 {
        let bytes = [page as u8; PAGE];
        a.write_at(&bytes, page * PAGE as u64).expect("written");
        b.write_at(&bytes, page * PAGE as u64).expect("written");
    }
    let streams = world.session.streams();
    assert_eq!(streams.len(), 2, "{streams:?}");
    for stream in &streams {
        assert_eq!((stream.start, stream.end), (0, 4 * BLOCK));
        assert_eq!(
            stream.dirty_start.zip(stream.dirty_end),
            Some((0, 4 * BLOCK))
        );
        assert_eq!(stream.kind, StreamKind::Once);
    }
    a.sync_data().expect("synced");
    let streams = world.session.streams();
    let dirty: Vec<_> = streams.iter().map(|s| s.dirty_start.is_some()).collect();
    assert_eq!(dirty, [false, true]);
    assert_eq!(world.surprises(), 0);
    world.assert_sound();
}

#[test]
fn a_file_that_shrinks_keeps_no_stream_beyond_its_end() {
    let world = World::new(roomy());
    let file = world.file(1, 0);
    write_blocks(&file, 0..6);
    file.set_len(2 * BLOCK).expect("shorter");
    let streams = world.session.streams();
    assert_eq!(streams.len(), 1);
    assert_eq!(streams[0].end, 2 * BLOCK);
    file.set_len(0).expect("empty");
    assert_eq!(world.session.streams(), []);
    world.assert_sound();
}

#[test]
fn the_coldest_dirty_stream_is_written_first_and_no_more_than_needed() {
    let world = World::new(roomy());
    let files = [1, 2, 3].map(|name| world.file(name, 0));
    for file in [2, 0, 1] {
        write_blocks(&files[file], 0..6);
        world.pass_time(10);
    }
    assert_eq!(world.written(), []);
    assert_eq!(world.session.stats().owed_bytes, 18 * BLOCK);
    let mut flusher = world.flusher();
    assert!(write_coldest(world.session.shared(), world.me(), &mut flusher) > 0);
    let coldest = [3, 1]
        .into_iter()
        .flat_map(|file| (0..6).map(move |block| (file, block)));
    assert_eq!(
        world.written(),
        coldest.collect::<Vec<_>>(),
        "the third is below the limit"
    );
    world.assert_sound();
}

#[test]
fn a_stream_in_use_is_written_after_others() {
    let world = World::new(roomy());
    let (hot, cold) = (world.file(1, 0), world.file(2, 0));
    write_blocks(&hot, 0..1);
    world.pass_time(5);
    write_blocks(&cold, 0..10);
    world.pass_time(100);
    // A hit: no tree hears of it.
    hot.write_at(&[1; 100], 50).expect("written");
    world.pass_time(1);
    world.written();
    let mut flusher = world.flusher();
    write_coldest(world.session.shared(), world.me(), &mut flusher);
    let files: Vec<_> = world.written().into_iter().map(|(file, _)| file).collect();
    assert!(files.contains(&2) && !files.contains(&1), "{files:?}");
}

#[test]
fn the_coldest_stream_is_evicted_first_a_run_at_a_time() {
    let world = World::new(roomy());
    let (first, second) = (world.file(1, 8), world.file(2, 8));
    let read = |file: &File, block: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        file.read_at(&mut bytes, block * BLOCK).expect("read");
    };
    for file in [&second, &first] {
        world.pass_time(10);
        (0..8).for_each(|block| read(file, block));
    }
    world.pass_time(10);
    evict::evict(world.me(), 3, 0);
    assert_eq!(in_memory(&world, &second), [3, 4, 5, 6, 7]);
    assert_eq!(in_memory(&world, &first).len(), 8);
    // What is left of it is read again: then it is not the coldest any more.
    (3..8).for_each(|block| read(&second, block));
    world.pass_time(10);
    evict::evict(world.me(), 3, 0);
    assert_eq!(in_memory(&world, &first), [3, 4, 5, 6, 7]);
    assert_eq!(in_memory(&world, &second).len(), 5);
    world.assert_sound();
}

#[test]
fn a_missed_change_is_a_doubt_and_no_sync_misses_it() {
    let world = World::new(roomy());
    let file = world.file(1, 0);
    write_blocks(&file, 0..2);
    let tree = world.session.shared().arena.stream_tree(id_of(&file));
    // As a thread that does not run has it.
    tree.lock.store(world.me().id.0, Ordering::Relaxed);
    write_blocks(&file, 2..4);
    tree.lock.store(0, Ordering::Relaxed);
    assert_eq!(tree.doubt.load(Ordering::Relaxed), 1);
    file.sync_data().expect("synced");
    let blocks: Vec<_> = world
        .written()
        .into_iter()
        .map(|(_, block)| block)
        .collect();
    assert_eq!(blocks, [0, 1, 2, 3]);
    assert_eq!(
        world.surprises(),
        0,
        "it was known that something is missing"
    );
    let me = world.me();
    let entry = me.arena.file_unchecked(id_of(&file));
    let operation = me.enter(id_of(&file)).expect("nobody stops it");
    tracking::mend(me, id_of(&file), entry);
    drop(operation);
    assert_eq!(tree.doubt.load(Ordering::Relaxed), 0);
    assert_eq!(world.session.streams()[0].end, 4 * BLOCK);
    world.assert_sound();
}

#[test]
fn a_tree_that_is_wrong_costs_no_byte_and_is_noticed() {
    let world = World::new(roomy());
    let file = world.file(1, 0);
    plant(Some(Bug::UntoldDirt));
    write_blocks(&file, 0..3);
    plant(None);
    assert!(
        check(&world.session.shared().arena).is_err(),
        "the checker sees it"
    );
    file.sync_data().expect("synced");
    let blocks: Vec<_> = world
        .written()
        .into_iter()
        .map(|(_, block)| block)
        .collect();
    assert_eq!(blocks, [0, 1, 2], "the marks say what is owed");
    assert_eq!(world.surprises(), 1, "after the first the tree is in doubt");
}

#[test]
fn without_tracking_there_are_no_streams() {
    let world = World::new(roomy().with_tracking(DirtyTracking::Page));
    let file = world.file(1, 0);
    write_blocks(&file, 0..3);
    assert_eq!(world.session.streams(), []);
    file.sync_data().expect("synced");
    assert_eq!(world.written().len(), 3);
    evict::evict(world.me(), 100, 0);
    assert!(in_memory(&world, &file).is_empty());
    world.assert_sound();
}

#[test]
fn a_dead_holder_of_a_tree_is_found_by_a_rebuild() {
    let world = World::new(roomy());
    let file = world.file(1, 0);
    write_blocks(&file, 0..3);
    let arena = &world.session.shared().arena;
    let dead = forebay::memory::threads::take(arena, false).expect("a slot");
    for lock in [
        &arena.stream_tree(id_of(&file)).lock,
        &arena.stream_lists().lock,
    ] {
        lock.store(dead.0, Ordering::Relaxed);
    }
    let dead_me = Me { arena, id: dead };
    std::mem::forget(dead_me.enter(id_of(&file)).expect("nobody stops it"));
    forebay::memory::threads::slay(arena, dead);
    write_blocks(&file, 3..4);
    forebay::keeper::repair::if_needed(world.session.shared(), world.me());
    write_blocks(&file, 4..5);
    let streams = world.session.streams();
    assert_eq!((streams.len(), streams[0].end), (1, 5 * BLOCK));
    assert_ne!(dead, ThreadId::NOBODY);
    file.sync_data().expect("synced");
    assert_eq!(world.surprises(), 0);
    world.assert_sound();
}

/// Scattered single pages, more of them than there are records.
#[test]
fn more_places_than_records_lose_nothing() {
    let world = World::new(Config {
        memory: 8 * BLOCK,
        ..roomy()
    });
    let file = world.file(1, 800);
    let arena = &world.session.shared().arena;
    for index in 0..400u64 {
        let block = index * 157 % 400 * 2;
        file.write_at(&[index as u8; 10], block * BLOCK)
            .expect("written");
    }
    assert!(world.session.streams().len() <= arena.counts().streams() as usize);
    world.assert_sound();
    file.sync_data().expect("synced");
    assert_eq!(world.surprises(), 0);
    let shared = world.session.shared();
    assert_eq!(
        shared
            .flush(
                world.me(),
                id_of(&file),
                &file.core().expect("managed").device,
                Scope::SYNC
            )
            .pages_written,
        0
    );
    world.assert_sound();
}
