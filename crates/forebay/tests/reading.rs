//! Reads beside what goes on otherwise: writes that hang, blocks that are being read ahead, what the kernel has in its own
//! cache, what programs say of their reads.
#![cfg(feature = "sim")]

mod here;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use forebay::device::{Done, Inline, Queue, Request};
use forebay::frame::header::Usage;
use forebay::frame::slots;
use forebay::ids::BlockIndex;
use forebay::keeper::ahead::Prefetcher;
use forebay::keeper::check::check;
use forebay::sim::device::{
    Before, Call, CallKind, FaultPlan, Kinds, SimDisk, SimOptions, Verdict, Wrapped,
};
use forebay::sync::Ordering;
use forebay::sys::kernel_cache;
use forebay::{Advise, Config, File, OpenOptions, Session};
use forebay_model::fill;

const BLOCK: u64 = 256 * 1024;
const PAGE: usize = 4096;
const SEED: u32 = 7;

fn bytes(offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(SEED, offset, &mut bytes);
    bytes
}

fn read_and_check(file: &File, offset: u64, len: usize) {
    let mut found = vec![0xEE; len];
    assert_eq!(file.read_at(&mut found, offset).expect("read"), len);
    assert!(found == bytes(offset, len), "wrong bytes at {offset}");
}

/// A session on a simulated disk, and a file of so many blocks that are not in memory.
fn scene<B: Before + 'static>(before: &Arc<B>, blocks: u64) -> (Session, File) {
    let config = Config {
        read_ahead: 1 << 20,
        memory: 32 * BLOCK,
        ..Config::tiny()
    };
    let session = Session::open(config).expect("a session");
    let disk = SimDisk::new(SimOptions::default());
    let device = Arc::new(Wrapped::new(disk.create(), Arc::clone(before)));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "sim", &options);
    let file = file.expect("a file");
    for at in (0..blocks).map(|block| block * BLOCK) {
        file.write_at(&bytes(at, BLOCK as usize), at)
            .expect("written");
    }
    file.sync_data().expect("synced");
    drop_clean(&session, &file);
    (session, file)
}

fn drop_clean(session: &Session, file: &File) {
    let me = session.shared().me().expect("a slot");
    forebay::evict::evict_file(me, file.core().expect("managed").id);
}

/// Writes hang from some moment on, until they are let go.
#[derive(Default)]
struct Hang {
    /// Whether writes hang, and how many do.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Hang {
    fn set(&self, hangs: bool) {
        self.state.lock().expect("no panic").0 = hangs;
        self.changed.notify_all();
    }

    fn await_one(&self) {
        let state = self.state.lock().expect("no panic");
        drop(self.changed.wait_while(state, |(_, hanging)| *hanging == 0));
    }
}

impl Before for Hang {
    fn before(&self, call: &Call) -> Verdict {
        if matches!(call.kind, CallKind::WriteDirect | CallKind::WriteBuffered) {
            let mut state = self.state.lock().expect("no panic");
            state.1 += 1;
            self.changed.notify_all();
            let state = self.changed.wait_while(state, |(hangs, _)| *hangs);
            state.expect("no panic").1 -= 1;
        }
        Verdict::Proceed
    }
}

/// While a flush of one block hangs in the device, every other read ends: of memory that is clean, of memory that is dirty,
/// of the very pages that are being written, and of what has to be read from the device.
#[test]
fn no_read_waits_for_a_flush() {
    let hang = Arc::new(Hang::default());
    let (_session, file) = scene(&hang, 8);
    read_and_check(&file, BLOCK, BLOCK as usize);
    for at in [2 * BLOCK, 3 * BLOCK] {
        file.write_at(&bytes(at, BLOCK as usize), at)
            .expect("written");
    }
    hang.set(true);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync_data());
        hang.await_one();
        // Were one of these to wait, the test would never end.
        read_and_check(&file, BLOCK, BLOCK as usize);
        read_and_check(&file, 2 * BLOCK, 2 * BLOCK as usize);
        read_and_check(&file, 5 * BLOCK + 12_288, PAGE);
        read_and_check(&file, 6 * BLOCK, 2 * BLOCK as usize);
        hang.set(false);
        sync.join().expect("no panic").expect("synced");
    });
}

/// A queue that carries requests out when the test says so, one at a time.
struct Stepped {
    waiting: Arc<Mutex<VecDeque<Request>>>,
    inline: Inline,
    steps: Arc<Mutex<usize>>,
}

impl Queue for Stepped {
    fn submit(&mut self, request: Request) {
        self.waiting.lock().expect("no panic").push_back(request);
    }

    fn poll(&mut self, _wait: bool, done: &mut Vec<Done>) {
        let mut steps = self.steps.lock().expect("no panic");
        let mut waiting = self.waiting.lock().expect("no panic");
        while *steps > 0
            && let Some(request) = waiting.pop_front()
        {
            *steps -= 1;
            self.inline.submit(request);
            self.inline.poll(true, done);
        }
    }

    fn in_flight(&self) -> usize {
        self.waiting.lock().expect("no panic").len()
    }

    fn name(&self) -> &'static str {
        "stepped"
    }
}

/// While one block is being read ahead, a reader of another reads it at once and by itself; what was read ahead is in memory as soon as
/// its own request has ended, whatever becomes of the other.
#[test]
fn a_read_waits_for_no_other_block_than_its_own() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, file) = scene(&plan, 16);
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    let (waiting, steps) = (Arc::default(), Arc::new(Mutex::new(0)));
    let queue = Stepped {
        waiting: Arc::clone(&waiting),
        inline: Inline::new(),
        steps: Arc::clone(&steps),
    };
    let mut prefetcher = Prefetcher::new(Box::new(queue), 4);
    prefetcher.take_office(me);
    for block in [2, 9] {
        file.advise(block * BLOCK, BLOCK, Advise::WillNeed)
            .expect("heard");
    }
    prefetcher.round(shared, me, false);
    assert_eq!(waiting.lock().expect("no panic").len(), 2, "two requests");
    let calls = plan.calls();
    read_and_check(&file, 5 * BLOCK, PAGE);
    assert_eq!(plan.calls(), calls + 1, "read by itself");
    *steps.lock().expect("no panic") = 1;
    prefetcher.round(shared, me, false);
    let calls = plan.calls();
    read_and_check(&file, 2 * BLOCK, BLOCK as usize);
    assert_eq!(plan.calls(), calls, "in memory, while block 9 is not");
    *steps.lock().expect("no panic") = 9;
    prefetcher.leave(shared, me);
    read_and_check(&file, 9 * BLOCK, BLOCK as usize);
    assert_eq!(plan.calls(), calls + 1, "the request, and no other read");
}

fn usage(file: &File, block: u32) -> Usage {
    let core = file.core().expect("managed");
    let arena = &core.shared.arena;
    let header = slots::lookup(arena, core.entry(), BlockIndex(block));
    let header = arena.header(header.expect("linked"));
    header.expect("within bounds").usage()
}

/// A reader that says that nothing will be read again leaves blocks that count as used once, however often it reads them.
#[test]
fn what_will_not_be_reused_counts_once() {
    let plan = FaultPlan::counting(Kinds::of(&[CallKind::ReadDirect]));
    let (session, file) = scene(&plan, 8);
    let tick = &session.shared().arena.superblock().tick;
    let read_often = |offset: u64, len: usize| {
        for _ in 0..4 {
            tick.fetch_add(500, Ordering::Relaxed);
            read_and_check(&file, offset, len);
        }
    };
    // Within a block, and over two.
    for (offset, len) in [(BLOCK, PAGE), (3 * BLOCK - PAGE as u64, 2 * PAGE)] {
        let block = (offset / BLOCK) as u32;
        drop_clean(&session, &file);
        file.advise(0, 0, Advise::NoReuse).expect("heard");
        read_often(offset, len);
        let passed = usage(&file, block);
        assert!(matches!(passed, Usage::Once | Usage::Fresh), "{passed:?}");
        file.advise(0, 0, Advise::Normal).expect("heard");
        read_often(offset, len);
        assert_eq!(usage(&file, block), Usage::Again);
    }
}

/// Bytes that this thread has had devices asked for.
fn device_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").expect("readable");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.expect("counted").parse().expect("a number")
}

#[test]
fn what_the_kernel_has_is_read_from_there() {
    let dir = here::directory();
    let path = dir.path().join("file");
    let len = 8 * BLOCK as usize;
    std::fs::write(&path, bytes(0, len)).expect("a file");
    let plain = std::fs::File::open(&path).expect("opened");
    plain.sync_all().expect("synced");
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 64 << 20;
    // Another thread reads ahead.
    config.read_ahead = 0;
    config.session = format!("test-reading-{}", std::process::id());
    let session = Session::open(config).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_file(&path, &options).expect("opened");
    if let Some(reason) = file.kernel_reason() {
        here::skipped(reason);
        return;
    }
    let has = || kernel_cache::cached(std::os::fd::AsFd::as_fd(&plain));
    match has() {
        Ok(cached) if cached.pages as usize * PAGE >= len => {}
        Ok(_) => return here::skipped("the kernel has evicted the file"),
        Err(_) => return here::skipped("no cachestat"),
    }
    // Pages, whole blocks, and past memory.
    let reads = [
        (0, PAGE),
        (BLOCK, BLOCK as usize),
        (2 * BLOCK, 6 * BLOCK as usize),
    ];
    let before = device_bytes();
    for (offset, len) in reads {
        read_and_check(&file, offset, len);
    }
    assert_eq!(device_bytes() - before, 0, "no device is asked");
    drop_clean(&session, &file);
    kernel_cache::advise(
        std::os::fd::AsFd::as_fd(&plain),
        0,
        0,
        libc::POSIX_FADV_DONTNEED,
    )
    .expect("dropped");
    if has().is_ok_and(|cached| cached.pages != 0) {
        return here::skipped("the kernel keeps the file");
    }
    for (offset, len) in reads {
        read_and_check(&file, offset, len);
    }
    assert!(device_bytes() - before >= len as u64 - BLOCK, "now it is");
}

/// The third block cannot be read: what comes before it is given, and who goes on there hears of it.
#[test]
fn a_read_gives_what_comes_before_an_error() {
    struct BadPlace;
    impl Before for BadPlace {
        fn before(&self, call: &Call) -> Verdict {
            let (start, end) = (call.offset, call.offset + call.len);
            let meets = start < 3 * BLOCK && end > 2 * BLOCK;
            match call.kind {
                CallKind::ReadDirect if meets => {
                    Verdict::Fail(std::io::Error::from_raw_os_error(libc::EIO))
                }
                _ => Verdict::Proceed,
            }
        }
    }
    let (_session, file) = scene(&Arc::new(BadPlace), 4);
    let mut found = vec![0xEE; 4 * BLOCK as usize];
    let whole = 2 * BLOCK as usize;
    assert_eq!(file.read_at(&mut found, 0).expect("read"), whole);
    assert!(found[..whole] == bytes(0, whole));
    let error = file.read_at(&mut found, 2 * BLOCK);
    assert_eq!(error.map_err(|error| error.errno()), Err(libc::EIO));
    assert_eq!(
        file.read_at(&mut found, 3 * BLOCK).expect("read"),
        BLOCK as usize
    );
}

/// The last page of the second block cannot be read.
struct BadPage;

impl Before for BadPage {
    fn before(&self, call: &Call) -> Verdict {
        let (start, end) = (call.offset, call.offset + call.len);
        let meets = start < 2 * BLOCK && end > 2 * BLOCK - PAGE as u64;
        match call.kind {
            CallKind::ReadDirect if meets => {
                Verdict::Fail(std::io::Error::from_raw_os_error(libc::EIO))
            }
            _ => Verdict::Proceed,
        }
    }
}

/// Whoever does not ask for it does not hear of it, and whoever does gets what comes before.
#[test]
fn a_page_that_cannot_be_read_takes_no_other_with_it() {
    let (session, file) = scene(&Arc::new(BadPage), 4);
    let bad = 2 * BLOCK - PAGE as u64;
    let errno = |offset: u64, len: usize| {
        let read = file.read_at(&mut vec![0; len], offset);
        read.map_err(|error| error.errno())
    };
    for at in (0..4 * BLOCK).step_by(PAGE) {
        match at == bad {
            true => assert_eq!(errno(at, PAGE), Err(libc::EIO)),
            false => read_and_check(&file, at, PAGE),
        }
    }
    let most = BLOCK as usize - PAGE;
    for (offset, len, there) in [
        (BLOCK, BLOCK as usize, most),
        (BLOCK + 100, BLOCK as usize - 100, most - 100),
        (0, 4 * BLOCK as usize, BLOCK as usize + most),
    ] {
        drop_clean(&session, &file);
        let mut found = vec![0xEE; len];
        assert_eq!(file.read_at(&mut found, offset).expect("read"), there);
        assert!(found[..there] == bytes(offset, there));
        assert_eq!(errno(offset + there as u64, PAGE), Err(libc::EIO));
    }
}

/// What was viewed stays so when the rest of its block has come, and been written.
#[test]
fn a_page_that_cannot_be_read_keeps_no_view_from_others() {
    let (session, file) = scene(&Arc::new(BadPage), 4);
    let bad = 2 * BLOCK - PAGE as u64;
    let mut views = Vec::new();
    let mut view_and_check = |range: std::ops::Range<u64>| {
        let view = file.view(range.clone()).expect("a view");
        // The arena has no file here, so that frames are not mapped side by side.
        assert!(
            !view.is_copy() || range.end - range.start > BLOCK,
            "{range:?}"
        );
        views.push((range, view));
    };
    view_and_check(0..bad);
    view_and_check(bad - 100..bad);
    drop_clean(&session, &file);
    view_and_check(BLOCK + 4096..BLOCK + 4097);
    view_and_check(BLOCK + 8000..bad - 8000);
    view_and_check(2 * BLOCK..4 * BLOCK);
    for range in [0..4 * BLOCK, bad..bad + 1, bad - 1..2 * BLOCK] {
        let view = file.view(range.clone());
        let errno = view.map_err(|error| error.errno()).map(|_| ());
        assert_eq!(errno, Err(libc::EIO), "{range:?}");
    }
    file.write_at(&vec![1; 4 * BLOCK as usize], 0)
        .expect("written");
    for (range, view) in &views {
        let there = bytes(range.start, (range.end - range.start) as usize);
        assert!(view[..] == there, "{range:?}");
    }
    drop(views);
    assert_eq!(check(&session.shared().arena).map(|_| ()), Ok(()));
}
