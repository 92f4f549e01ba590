//! What a reader brings from the device, where the block's header has become another one meanwhile.

use crate::config::Config;
use crate::evict::{evict, evict_file};
use crate::file::{File, OpenOptions};
use crate::ids::FileId;
use crate::limits::BLOCK_BYTES;
use crate::member::shared::Shared;
use crate::memory::layout::Counts;
use crate::memory::threads::Me;
use crate::session::Session;
use crate::sim::device::{Before, Call, CallKind, SimDisk, SimOptions, Verdict, Wrapped};
use crate::sim::{Bug, plant};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

const PAGE: usize = 4096;

/// Holds readers in the middle: one of two pages gets the first and waits before the second, one of three waits at once.
#[derive(Default)]
struct Hold {
    /// Whether the reader of two, or three, pages is there, and whether it may go on.
    readers: Mutex<[(bool, bool); 2]>,
    changed: Condvar,
}

impl Hold {
    fn wait_at(&self, which: usize) {
        let mut readers = self.readers.lock().expect("no panic");
        readers[which].0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(readers, |r| !r[which].1));
    }

    fn await_reader(&self, which: usize) {
        let readers = self.readers.lock().expect("no panic");
        drop(self.changed.wait_while(readers, |r| !r[which].0));
    }

    fn let_go(&self, which: usize) {
        self.readers.lock().expect("no panic")[which].1 = true;
        self.changed.notify_all();
    }

    fn may_go(&self, which: usize) -> bool {
        self.readers.lock().expect("no panic")[which].1
    }
}

impl Before for Hold {
    fn before(&self, call: &Call) -> Verdict {
        match (call.kind, call.offset, call.len as usize / PAGE) {
            (CallKind::ReadDirect, 0, 2) if !self.may_go(0) => return Verdict::Shorten(PAGE),
            (CallKind::ReadDirect, 4096, 1) => self.wait_at(0),
            (CallKind::ReadDirect, 0, 3) => self.wait_at(1),
            _ => {}
        }
        Verdict::Proceed
    }
}

fn session() -> Session {
    let config = Config {
        memory: 4 * BLOCK_BYTES as u64,
        ..Config::tiny()
    };
    let counts = Counts {
        threads: 10,
        files: 2,
        nodes: 64,
        headers: 2,
        frames: 8,
    };
    Session::simulated(config, counts).expect("a session")
}

/// The first page as a later reader finds it. A reader has seen the block's header, at epoch 1, and the page when it was
/// full of ones; then the header went to another file, and the page, full of twos, came and went by the other header,
/// which describes the block again, for a second reader, and is at epoch 1 as well.
fn page_after(bug: Option<Bug>) -> u8 {
    let disk = SimDisk::new(SimOptions::default());
    let hold = Arc::new(Hold::default());
    let session = session();
    let open = || {
        let device = Arc::new(Wrapped::new(disk.create(), Arc::clone(&hold)));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = session.open_device(device, "sim", &options);
        let file = file.expect("a file");
        file.set_len(BLOCK_BYTES as u64).expect("a length");
        file
    };
    let (file, other) = (open(), open());
    let write = |file: &File, byte: u8| {
        file.write_at(&[byte; PAGE], 0).expect("written");
        file.sync_data().expect("synced");
    };
    let evict = || {
        let me = session.shared().me().expect("a slot");
        evict_file(me, file.core().expect("managed").id);
    };
    let read = |pages: usize| {
        let mut bytes = vec![0; pages * PAGE];
        file.read_at(&mut bytes, 0).expect("read");
        bytes[0]
    };
    write(&file, 1);
    evict();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            plant(bug);
            read(2)
        });
        hold.await_reader(0);
        evict();
        write(&other, 9);
        write(&file, 2);
        evict();
        scope.spawn(|| read(3));
        hold.await_reader(1);
        hold.let_go(0);
        late.join().expect("no panic");
        let found = read(1);
        hold.let_go(1);
        found
    })
}

#[test]
fn another_headers_epoch_says_nothing() {
    assert_eq!(page_after(None), 2);
    let found = page_after(Some(Bug::AnyHeader));
    assert_eq!(found, 1, "AnyHeader was planted, and nothing went wrong");
}

/// Does something beside each read of the device, but not for ever.
struct Beside<F> {
    /// Whose it is, once that is known.
    file: OnceLock<(Arc<Shared>, FileId)>,
    reads: AtomicU32,
    act: F,
}

impl<F: Fn(Me<'_>, FileId) + Send + Sync> Before for Beside<F> {
    fn before(&self, call: &Call) -> Verdict {
        if call.kind == CallKind::ReadDirect
            && let Some((shared, id)) = self.file.get()
            && self.reads.fetch_add(1, Relaxed) < 100
        {
            std::thread::scope(|scope| {
                scope.spawn(|| (self.act)(shared.me().expect("a slot"), *id));
            });
        }
        Verdict::Proceed
    }
}

/// How often the device is read for a page that somebody looks at, while something is done beside each of these reads.
fn reads_beside(
    act: impl Fn(Me<'_>, FileId) + Send + Sync + 'static,
    look: impl FnOnce(&File) -> Vec<u8>,
) -> u32 {
    let session = session();
    let before = Arc::new(Beside {
        file: OnceLock::new(),
        reads: AtomicU32::new(0),
        act,
    });
    let disk = SimDisk::new(SimOptions::default());
    let device = Arc::new(Wrapped::new(disk.create(), Arc::clone(&before)));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "sim", &options);
    let file = file.expect("a file");
    file.write_at(&[7; 4 * PAGE], 0).expect("written");
    file.sync_data().expect("synced");
    let id = file.core().expect("managed").id;
    evict_file(session.shared().me().expect("a slot"), id);
    let shared = Arc::clone(session.shared());
    // Its header was used long ago.
    let tick = &shared.arena.superblock().tick;
    tick.fetch_add(1000, Relaxed);
    assert!(before.file.set((shared, id)).is_ok());
    assert_eq!(look(&file), [7; PAGE]);
    before.reads.load(Relaxed)
}

fn read_first(file: &File) -> Vec<u8> {
    let mut found = vec![0; PAGE];
    assert_eq!(file.read_at(&mut found, 0).expect("read"), PAGE);
    found
}

fn view_first(file: &File) -> Vec<u8> {
    file.view(0..PAGE as u64).expect("a view").to_vec()
}

fn evict_all(me: Me<'_>, id: FileId) {
    evict_file(me, id);
}

#[test]
fn a_read_ends_however_often_its_block_is_evicted() {
    let reads = reads_beside(evict_all, read_first);
    assert!((2..20).contains(&reads), "{reads} reads");
}

#[test]
fn a_view_ends_however_often_its_block_is_evicted() {
    let reads = reads_beside(evict_all, view_first);
    assert!((2..40).contains(&reads), "{reads} reads");
}

/// A block whose read has just begun has no memory to give.
#[test]
fn who_makes_room_leaves_a_block_that_is_being_read() {
    let make_room = |me: Me<'_>, _| {
        evict(me, 1, 2);
    };
    assert_eq!(reads_beside(make_room, read_first), 1);
    assert_eq!(reads_beside(make_room, view_first), 1);
}
