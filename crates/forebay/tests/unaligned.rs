//! Writes of whole blocks from memory that the device does not take, and from memory that it does though it begins anywhere.
#![cfg(feature = "sim")]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use forebay::config::Route;
use forebay::device::DeviceFile;
use forebay::memory::regions;
use forebay::sim::device::{CallKind, SimDisk, SimFile, SimOptions};
use forebay::sys::memory::AlignedBytes;
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::fill;

const BLOCK: usize = 256 * 1024;
const LEN: usize = 4 * BLOCK;

struct World {
    session: Session,
    disk: SimDisk,
    device: Arc<SimFile>,
    file: File,
}

impl World {
    fn new(memory_align: u32) -> Self {
        Self::by(Route::Direct, memory_align)
    }

    fn by(route: Route, memory_align: u32) -> Self {
        Self::on(route, memory_align, false)
    }

    /// `is_store`: a flush of the file can end in its sync. Simulated files with odd numbers can.
    fn on(route: Route, memory_align: u32, is_store: bool) -> Self {
        let disk = SimDisk::new(SimOptions {
            memory_align,
            first_inode: if is_store { 1 } else { 2 },
            ..SimOptions::default()
        });
        let device = disk.create();
        let config = Config {
            route,
            ..Config::tiny()
        };
        let session = Session::open(config).expect("a session");
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let shared: Arc<dyn DeviceFile> = device.clone();
        let file = session
            .open_device(shared, "file", &options)
            .expect("a file");
        World {
            session,
            disk,
            device,
            file,
        }
    }

    /// Writes 1 MiB from `skew` bytes after a page; the lengths of the device's direct writes.
    fn write(&self, skew: usize, seed: u32) -> Vec<u64> {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        self.disk.set_hook(Some(Arc::new(move |call| {
            if call.kind == CallKind::WriteDirect {
                seen.lock().expect("no panic").push(call.len);
            }
        })));
        let mut bytes = vec![0; skew + LEN];
        fill(seed, 0, &mut bytes[skew..]);
        let memory = AlignedBytes::copy_of(&bytes, 4096);
        // SAFETY: the memory is ours and as long, and nobody changes it.
        let source =
            unsafe { std::slice::from_raw_parts(memory.part(skew, LEN).ptr.cast_const(), LEN) };
        assert_eq!(self.file.write_at(source, 0).expect("space"), LEN);
        self.disk.set_hook(None);
        let mut back = vec![0; LEN];
        assert_eq!(self.file.read_at(&mut back, 0).expect("reads"), LEN);
        assert!(back == bytes[skew..], "other bytes");
        calls.lock().expect("no panic").clone()
    }

    /// Frames that are free once what has been read back is out of memory.
    fn frames_free(&self) -> u32 {
        let shared = self.session.shared();
        forebay::evict::evict(shared.me().expect("a slot"), u32::MAX, 0);
        let superblock = shared.arena.superblock();
        superblock.frames_free.load(Ordering::Relaxed)
    }
}

/// What devices say of memory counts, not how long their sectors are: NVMe takes every multiple of four.
#[test]
fn memory_that_the_device_takes_is_not_copied() {
    let world = World::new(4);
    assert_eq!(world.write(16, 1), [LEN as u64]);
    assert_eq!(world.write(0, 2), [LEN as u64]);
    assert_eq!(world.write(18, 3), [LEN as u64 / 2; 2]);
}

#[test]
fn other_memory_goes_by_way_of_frames_and_gives_them_back() {
    let world = World::new(512);
    assert_eq!(world.write(1024, 1), [LEN as u64]);
    let free = world.frames_free();
    assert_eq!(world.write(16, 2), [LEN as u64 / 2; 2]);
    assert_eq!(world.write(4095, 3), [LEN as u64 / 2; 2]);
    assert_eq!(world.frames_free(), free);
}

#[test]
fn without_a_free_frame_it_goes_by_way_of_other_memory() {
    let world = World::new(512);
    world.write(0, 1);
    let me = world.session.shared().me().expect("a slot");
    let mut taken: Vec<_> = std::iter::from_fn(|| regions::take_frame(me)).collect();
    assert_eq!(world.write(16, 2), [BLOCK as u64; 4]);
    regions::free_frame(me, taken.pop().expect("a frame"));
    assert_eq!(world.write(16, 3), [BLOCK as u64; 4]);
    for frame in taken {
        regions::free_frame(me, frame);
    }
}

/// A device too slow for large requests to be sent to it for their own sake.
fn slow(is_store: bool) -> World {
    let world = World::on(Route::Auto, 512, is_store);
    let superblock = world.session.shared().arena.superblock();
    let device = world.device.caps().device;
    for _ in 0..100 {
        forebay::flush::busy::observe_write(superblock, device, 1 << 20, 1 << 26);
    }
    world
}

/// There the sync is the flush's last request, which is made in any case.
#[test]
fn on_a_store_a_synced_write_goes_to_memory() {
    let world = slow(true);
    for seed in 1..4 {
        world.write(16, seed);
        world.file.sync_data().expect("synced");
    }
    assert_eq!(world.session.stats().direct_bytes, 0);
}

#[test]
fn who_syncs_after_each_large_write_waits_for_the_device_once() {
    let world = slow(false);
    let direct = || world.session.stats().direct_bytes;
    world.write(16, 1);
    world.write(16, 2);
    assert_eq!(direct(), 0);
    world.file.sync_data().expect("synced");
    world.write(16, 3);
    assert_eq!(direct(), LEN as u64);
    // Only once for each sync.
    world.write(16, 4);
    assert_eq!(direct(), LEN as u64);
    world.file.flush().expect("flushed");
    world.write(16, 5);
    assert_eq!(direct(), LEN as u64, "a flush is no sync");
}
