//! A tiny session on a simulated disk, and threads in it that a test starts, and kills.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay::config::{Config, Route};
use forebay::device::DeviceFile;
use forebay::file::core::{Core, Halt};
use forebay::file::quick::{self, Recent};
use forebay::file::settle::{Durability, settle};
use forebay::file::view::cold::Cold;
use forebay::file::write::Intent;
use forebay::file::{append, direct, read, resize, view, window, write};
use forebay::flush::{Flusher, Scope};
use forebay::frame::header::State;
use forebay::ids::{BlockIndex, FrameId, HeaderId, ThreadId};
use forebay::limits::{BLOCK_BYTES, HUGE_FRAMES};
use forebay::memory::layout::Counts;
use forebay::memory::pins::{self, Pin};
use forebay::memory::regions::{self, Owner};
use forebay::memory::threads::{self, Me};
use forebay::route::Scrap;
use forebay::scrap::segments;
use forebay::sim::device::{SimDisk, SimFile, SimOptions};
use forebay::sim::{self, explore::die_after};
use forebay::sync::Ordering;
use forebay::sys::memory::{AlignedBytes, Piece};
use forebay::{Session, evict};
use forebay_model::fill;
use shuttle::thread::JoinHandle;

use crate::explore::dice;
use crate::history::History;
use crate::stepped::{Late, Stepped};

pub const BLOCK: u64 = BLOCK_BYTES as u64;
pub const PAGE: u64 = 4096;

/// How much of everything there is.
#[derive(Clone, Copy)]
pub struct Shape {
    pub files: usize,
    /// Frames that may have memory.
    pub frames: u32,
    pub headers: u32,
    /// Bytes that each file has at first, zeros on the device.
    pub len: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            files: 1,
            frames: 2,
            headers: 4,
            len: 3 * BLOCK,
        }
    }
}

/// A file with what is known of its bytes.
pub struct Subject {
    pub core: Core,
    pub sim: Arc<SimFile>,
    pub history: History,
    recent: Recent,
}

pub struct World {
    pub session: Session,
    pub files: Vec<Subject>,
    _disk: SimDisk,
}

/// A thread of the session.
pub struct Member {
    pub world: Arc<World>,
    pub id: ThreadId,
    dead: AtomicBool,
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.dead.load(Relaxed) && !std::thread::panicking() {
            threads::release(self.me());
        }
    }
}

/// Whether the short way is tried.
fn is_heads() -> bool {
    dice().is_multiple_of(2)
}

/// Starts exploring; ends it when dropped.
pub struct Exploring(());

impl Drop for Exploring {
    fn drop(&mut self) {
        sim::set_exploring(false);
    }
}

impl World {
    /// Nothing is explored until [`World::explore`].
    pub fn new(shape: Shape) -> Arc<World> {
        let config = Config {
            memory: u64::from(shape.frames) * BLOCK,
            dirty_bytes_max: 1 << 40,
            dirty_background: 0,
            route: Route::Scrap,
            ..Config::tiny()
        };
        let counts = Counts {
            threads: 10,
            files: 2,
            nodes: 64,
            headers: shape.headers,
            frames: shape.frames.next_multiple_of(8),
        };
        let session = Session::simulated(config, counts).expect("a session");
        let options = SimOptions {
            offset_align: 4096,
            ..SimOptions::default()
        };
        let disk = SimDisk::new(options);
        let file = |index: usize| {
            let sim = disk.create();
            sim.reserve(0, shape.len).expect("space");
            sim.set_len(shape.len)
                .expect("a simulated file can be extended");
            let device = Arc::new(Stepped(Arc::clone(&sim)));
            let name = format!("file-{index}");
            let core = session
                .manage_device(device, Path::new(&name))
                .expect("a place in the table");
            Subject {
                core,
                sim,
                history: History::new(),
                recent: Recent::default(),
            }
        };
        let files = (0..shape.files).map(file).collect();
        let world = Arc::new(World {
            session,
            files,
            _disk: disk,
        });
        let first = world.member();
        forebay::member::provision::more(world.session.shared(), first.me(), false);
        world
    }

    /// From here on every shared access is a place to switch, until the result is dropped.
    pub fn explore(&self) -> Exploring {
        sim::set_exploring(true);
        Exploring(())
    }

    /// A slot for one more thread.
    pub fn member(self: &Arc<Self>) -> Member {
        let id = threads::take(&self.session.shared().arena, false).expect("a free slot");
        Member {
            world: Arc::clone(self),
            id,
            dead: AtomicBool::new(false),
        }
    }

    /// Starts a thread.
    pub fn spawn(self: &Arc<Self>, work: impl FnOnce(&Member) + Send + 'static) -> JoinHandle<()> {
        let member = self.member();
        shuttle::thread::spawn(move || work(&member))
    }

    /// Starts a thread that dies before its `n`-th shared access, unless it has ended by then.
    pub fn spawn_mortal(
        self: &Arc<Self>,
        n: u64,
        work: impl FnOnce(&Member) + Send + 'static,
    ) -> JoinHandle<()> {
        self.spawn(move |member| member.die_within(n, work))
    }

    /// Repairs what the dead have left that nobody has met.
    pub fn repair(self: &Arc<Self>) {
        sim::set_exploring(false);
        let member = self.member();
        for _ in 0..3 {
            forebay::keeper::repair::if_needed(self.session.shared(), member.me());
        }
        assert_eq!(threads::dead(member.me().arena), [], "dead and not buried");
        assert_eq!(
            member
                .me()
                .arena
                .superblock()
                .corruptions
                .load(Ordering::Relaxed),
            0,
            "corruptions"
        );
    }

    /// As [`World::check_at_rest`], after a repair.
    pub fn check_after_death(self: &Arc<Self>) {
        self.repair();
        self.check_at_rest();
    }

    /// Flushes every file.
    pub fn flush_all(self: &Arc<Self>) {
        let member = self.member();
        (0..self.files.len()).for_each(|file| member.flush_late(file));
    }

    /// What must be true when everybody has ended: files agree with their histories, on the device too;
    /// nothing of the arena is lost.
    pub fn check_at_rest(self: &Arc<Self>) {
        sim::set_exploring(false);
        let member = self.member();
        for index in 0..self.files.len() {
            let end = self.files[index].core.entry().size.load(Ordering::Acquire);
            member.read(index, 0, end as usize);
            member.sync(index);
            member.read(index, 0, end as usize);
            let (subject, now) = (&self.files[index], self.files[index].history.now());
            let mut device = subject.sim.contents();
            assert!(
                device.len() as u64 <= end,
                "the device file is longer than the file"
            );
            device.resize(end as usize, 0);
            subject.history.holds(now, 0, &device);
            assert_eq!(
                subject.core.entry().owed_pages.load(Ordering::Acquire),
                0,
                "owed after a sync"
            );
        }
        self.check_streams(&member);
        member.check_memory();
        assert_eq!(self.session.streams(), [], "streams without blocks");
    }
}

impl Member {
    /// Works, and dies before its `n`-th shared access unless it has ended by then.
    pub fn die_within(&self, n: u64, work: impl FnOnce(&Member)) {
        if die_after(n, || work(self)).is_none() {
            self.dead.store(true, Relaxed);
            threads::slay(self.me().arena, self.id);
        }
    }

    pub fn me(&self) -> Me<'_> {
        self.world.session.shared().as_thread(self.id)
    }

    pub fn file(&self, file: usize) -> &Subject {
        &self.world.files[file]
    }

    fn intent(&self) -> Intent<'_> {
        // The one that the session is configured with.
        Intent {
            route: &Scrap,
            sequential: false,
            long: false,
            sync: false,
            at_end: false,
        }
    }

    /// Writes into memory, half of the time by the short way if that goes; `seed` must be new.
    pub fn write(&self, file: usize, seed: u32, offset: u64, len: usize) {
        let subject = self.file(file);
        let mut bytes = vec![0; len];
        fill(seed, offset, &mut bytes);
        let begun = subject.history.begin(offset, offset + len as u64, seed);
        if self.write_at_once(file, &bytes, offset) {
            subject.history.ack(begun);
            return;
        }
        // SAFETY: a vector is valid for its length.
        let written = unsafe {
            write::write(
                &subject.core,
                self.me(),
                bytes.as_ptr(),
                len,
                offset,
                self.intent(),
            )
        };
        assert_eq!(written.expect("a write"), len);
        subject.history.ack(begun);
    }

    fn write_at_once(&self, file: usize, bytes: &[u8], offset: u64) -> bool {
        let (Subject { core, recent, .. }, me) = (self.file(file), self.me());
        let (stream, source, len) = (recent.stream(me), bytes.as_ptr(), bytes.len());
        // SAFETY: a slice is valid for its length.
        is_heads() && unsafe { quick::write(core, me, stream, source, len, offset, false) }
    }

    /// Writes whole blocks to the device.
    pub fn write_direct(&self, file: usize, seed: u32, block: u64, blocks: usize) {
        self.write_direct_from(0, file, seed, block, blocks);
    }

    /// The same from memory that the device does not take.
    pub fn write_bounced(&self, file: usize, seed: u32, block: u64, blocks: usize) {
        self.write_direct_from(16, file, seed, block, blocks);
    }

    fn write_direct_from(&self, skew: usize, file: usize, seed: u32, block: u64, blocks: usize) {
        let subject = self.file(file);
        let (offset, len) = (block * BLOCK, blocks * BLOCK_BYTES);
        let mut bytes = vec![0; skew + len];
        fill(seed, offset, &mut bytes[skew..]);
        let memory = AlignedBytes::copy_of(&bytes, 4096);
        let source = memory.part(skew, len).ptr;
        let begun = subject.history.begin(offset, offset + len as u64, seed);
        // SAFETY: the memory is ours and as long.
        let written =
            unsafe { direct::write(&subject.core, self.me(), source, len, offset, false) };
        assert_eq!(written.expect("a direct write"), len);
        subject.history.ack(begun);
    }

    /// Writes through the kernel's cache.
    pub fn write_through_kernel(&self, file: usize, seed: u32, offset: u64, len: usize) {
        let subject = self.file(file);
        let mut bytes = vec![0; len];
        fill(seed, offset, &mut bytes);
        let begun = subject.history.begin(offset, offset + len as u64, seed);
        // SAFETY: a vector is valid for its length.
        let written = unsafe {
            direct::through_kernel(&subject.core, self.me(), bytes.as_ptr(), len, offset, false)
        };
        assert_eq!(written.expect("a write through the kernel"), len);
        subject.history.ack(begun);
    }

    /// Reads, and checks what was read. Returns how many bytes there were.
    pub fn read(&self, file: usize, offset: u64, len: usize) -> usize {
        self.read_bytes(file, offset, len).len()
    }

    /// As [`Member::read`]: what it has read.
    pub fn read_bytes(&self, file: usize, offset: u64, len: usize) -> Vec<u8> {
        let subject = self.file(file);
        // Bytes that nobody wrote: what a read leaves out shows.
        let mut bytes = vec![0xEE; len];
        let begin = subject.history.now();
        // SAFETY: a vector is valid for its length.
        let read = unsafe {
            read::read(
                &subject.core,
                self.me(),
                bytes.as_mut_ptr(),
                len,
                offset,
                false,
            )
        };
        let read = read.expect("a read");
        bytes.truncate(read);
        subject.history.saw(begin, offset, &bytes);
        bytes
    }

    /// Pins a block and looks at its bytes; they are bytes that a read might have seen. `None`: as much is pinned as may be.
    pub fn view(&self, file: usize, block: u64) -> Option<Held> {
        self.view_all(file, block, 1).pop()
    }

    /// As [`Member::view`], for blocks in a row, up to the first for which there is no room.
    pub fn view_all(&self, file: usize, block: u64, blocks: usize) -> Vec<Held> {
        let subject = self.file(file);
        let begin = subject.history.now();
        let all: Vec<_> = segments(block * BLOCK, blocks * BLOCK_BYTES).collect();
        let place = view::run::Place::default();
        let mut cold = Cold::up_to(all[blocks - 1].block, &place);
        let mut views = Vec::new();
        for segment in &all {
            let mut pins = Vec::new();
            let into = (&mut pins, &mut cold);
            let after = view::pin_block(&subject.core, self.me(), 1, segment, into);
            if after.expect("a view") != view::After::Done {
                break;
            }
            let mut held = Held {
                pins,
                bytes: Vec::new(),
            };
            held.bytes = held.look(self);
            let offset = segment.block.start();
            subject.history.saw(begin, offset, &held.bytes);
            views.push(held);
        }
        views
    }

    /// Fills a frame as a window does, and gives it to a block; `seed` must be new. `None`: no frame is to be had.
    pub fn give(&self, file: usize, seed: u32, block: u64) -> Option<Held> {
        let (subject, me, offset) = (self.file(file), self.me(), block * BLOCK);
        let pin = {
            let _alone = me.enter_arena();
            let frame = regions::take_frame(me)?;
            let pin = pins::hold(me, 1, frame);
            if pin.is_none() {
                regions::free_frame(me, frame);
            }
            pin?
        };
        let mut bytes = vec![0; BLOCK_BYTES];
        fill(seed, offset, &mut bytes);
        let frame = me.arena.frame_bytes(pin.frame).expect("a frame");
        let len = BLOCK_BYTES;
        // SAFETY: a frame that nobody else has.
        unsafe { Piece { ptr: frame, len }.copy_in(&bytes) };
        let frame = pin.frame;
        let held = Held {
            pins: vec![pin],
            bytes,
        };
        let begun = subject.history.begin(offset, offset + BLOCK, seed);
        let given = window::commit::attach_block(&subject.core, me, BlockIndex::of(offset), frame);
        given.expect("a commit");
        subject.history.ack(begun);
        Some(held)
    }

    /// Looks at what is held, which has not changed, and lets it go.
    pub fn end_view(&self, held: Option<Held>) {
        let Some(held) = held else { return };
        for _ in 0..3 {
            assert!(held.look(self) == held.bytes, "a view has changed");
            shuttle::thread::yield_now();
        }
        pins::unpin(self.me(), &held.pins);
    }

    /// Appends bytes of `seed`, whose positions count from 0. Returns where they are.
    pub fn append(&self, file: usize, bytes: &[u8]) -> u64 {
        let (at, written) = self.try_append(file, bytes).expect("an append");
        assert_eq!(written, bytes.len());
        at
    }

    /// Appends, half of the time by the short way if that goes; where, and how many bytes.
    pub fn try_append(&self, file: usize, bytes: &[u8]) -> Result<(u64, usize), Halt> {
        let (Subject { core, recent, .. }, me) = (self.file(file), self.me());
        let (source, len) = (bytes.as_ptr(), bytes.len());
        if is_heads() {
            let stream = recent.stream(me);
            // SAFETY: a slice is valid for its length.
            let at = unsafe { quick::append(core, me, stream, source, len, true) };
            if let Ok(at) = at {
                return Ok((at, len));
            }
        }
        // SAFETY: a slice is valid for its length.
        unsafe { append::append(core, me, source, len, self.intent()) }
    }

    pub fn evict(&self, file: usize) {
        evict::evict_file(self.me(), self.file(file).core.id);
    }

    /// Syncs, and checks that the device has what was acknowledged before.
    pub fn sync(&self, file: usize) {
        let subject = self.file(file);
        let begin = subject.history.now();
        let seen = std::sync::atomic::AtomicU32::new(0);
        settle(&subject.core, self.me(), Durability::Data, &seen).expect("a sync");
        let device = subject.sim.contents();
        subject.history.holds(begin, 0, &device);
    }

    /// Flushes with several requests under way at once, as the keeper does.
    pub fn flush_late(&self, file: usize) {
        let core = &self.file(file).core;
        let mut flusher = Flusher::new(Box::new(Late::default()), 3);
        flusher.flush(self.me(), core.id, &core.device, Scope::SYNC);
    }

    pub fn set_len(&self, file: usize, len: u64) {
        let subject = self.file(file);
        let begun = subject.history.begin(len, u64::MAX, 0);
        resize::set_len(&subject.core, self.me(), len).expect("a truncation");
        subject.history.ack(begun);
    }

    pub fn punch(&self, file: usize, offset: u64, len: u64) {
        let subject = self.file(file);
        let begun = subject.history.begin(offset, offset + len, 0);
        resize::punch(&subject.core, self.me(), offset, len).expect("a hole");
        subject.history.ack(begun);
    }

    /// Frames that have memory, or may have: all of a huge page where one of them does.
    pub fn frames_with_memory(&self) -> u32 {
        let arena = self.me().arena;
        let frames = arena.counts().frames;
        let is_backed = |id: u32| {
            let owner = arena.frame_owner(FrameId(id)).expect("a frame");
            Owner::unpack(owner.load(Ordering::Acquire)) != Owner::Unbacked
        };
        let pieces = (0..frames).step_by(HUGE_FRAMES as usize);
        let held =
            pieces.filter(|&first| (first..(first + HUGE_FRAMES).min(frames)).any(is_backed));
        held.count() as u32 * HUGE_FRAMES
    }

    /// Evicts everything, and looks whether every frame, small frame and header can be had again.
    fn check_memory(&self) {
        for file in 0..self.world.files.len() {
            self.evict(file);
        }
        let arena = self.me().arena;
        for id in (0..arena.counts().headers).map(HeaderId) {
            let header = arena.header(id).expect("a header with memory");
            assert_eq!(header.holder(), None, "{}", header.describe());
            assert_eq!(header.state(), State::Free, "{}", header.describe());
        }
        let backed = arena.superblock().frames_backed.load(Ordering::Relaxed);
        assert_eq!(
            arena.superblock().frames_free.load(Ordering::Relaxed),
            backed,
            "count of free frames"
        );
        assert_eq!(
            arena.superblock().frames_claimed.load(Ordering::Relaxed),
            self.frames_with_memory(),
            "count of frames with memory"
        );
        let pinned = &arena.superblock().frames_pinned;
        assert_eq!(pinned.load(Ordering::Relaxed), 0, "frames that views hold");
        for id in (0..backed).map(FrameId) {
            let pins = arena.pins(id).expect("a frame").load(Ordering::Relaxed);
            assert_eq!(pins, 0, "{id:?} has pins");
            let owner = arena
                .frame_owner(id)
                .expect("a frame")
                .load(Ordering::Acquire);
            assert_eq!(Owner::unpack(owner), Owner::Free, "{id:?} is lost");
        }
        assert_eq!(
            arena.frame_hints().count_about(1000),
            backed as usize,
            "hints of free frames"
        );
        let headers = arena.header_hints().count_about(1000);
        assert_eq!(
            headers,
            arena.counts().headers as usize,
            "hints of free headers"
        );
        let owed = arena.superblock().owed_pages.load(Ordering::Relaxed) as i64;
        assert!(
            owed.unsigned_abs() <= 64 * 8,
            "{owed} pages counted as owed"
        );
    }
}

/// A pinned block, with the bytes that it had.
pub struct Held {
    pins: Vec<Pin>,
    bytes: Vec<u8>,
}

impl Held {
    fn look(&self, member: &Member) -> Vec<u8> {
        let frame = member.me().arena.frame_bytes(self.pins[0].frame);
        let piece = Piece {
            ptr: frame.expect("a frame"),
            len: BLOCK_BYTES,
        };
        // SAFETY: a frame with memory.
        unsafe { piece.copy_out() }
    }
}

/// Waits for threads.
pub fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("a thread that ends");
    }
}
