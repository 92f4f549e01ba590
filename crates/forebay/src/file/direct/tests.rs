//! Writes that come up short, and writes whose memory is not what it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{through_kernel, write};
use crate::config::{Config, Route};
use crate::file::view::cold::Cold;
use crate::file::view::run::Place;
use crate::file::view::{After, pin_block};
use crate::file::{File, OpenOptions};
use crate::ids::BlockIndex;
use crate::limits::BLOCK_BYTES;
use crate::memory::layout::Counts;
use crate::memory::pins;
use crate::scrap::split::segments;
use crate::session::Session;
use crate::sim::device::{Before, Call, CallKind, SimDisk, SimFile, SimOptions, Verdict, Wrapped};
use crate::sys::memory::AlignedBytes;

const PAGE: usize = 4096;

fn session() -> Session {
    let config = Config {
        route: Route::Scrap,
        ..Config::tiny()
    };
    let counts = Counts {
        threads: 10,
        files: 2,
        nodes: 64,
        headers: 8,
        frames: 8,
    };
    Session::simulated(config, counts).expect("a session")
}

fn open(session: &Session, disk: &SimDisk, before: impl Before + 'static) -> (Arc<SimFile>, File) {
    let inner = disk.create();
    let device = Arc::new(Wrapped::new(Arc::clone(&inner), Arc::new(before)));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "sim", &options);
    (inner, file.expect("a file"))
}

fn bytes(file: &File, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    let read = file.read_at(&mut bytes, offset as u64).expect("read");
    bytes.truncate(read);
    bytes
}

/// The device takes half of each direct write of a block, but of the file's first.
struct Halves;

impl Before for Halves {
    fn before(&self, call: &Call) -> Verdict {
        match (call.kind, call.len as usize) {
            (CallKind::WriteDirect, BLOCK_BYTES) if call.offset > 0 => {
                let error = std::io::Error::from_raw_os_error(libc::EIO);
                Verdict::Tear(BLOCK_BYTES / 2, error)
            }
            _ => Verdict::Proceed,
        }
    }
}

/// A write past memory has failed and left bytes beyond the file's end. They are nobody's, also where the file grows over them by a write that
/// finds its block in memory.
#[test]
fn what_a_failed_write_has_left_does_not_come_into_the_file() {
    let (session, disk) = (session(), SimDisk::new(SimOptions::default()));
    let (_inner, file) = open(&session, &disk, Halves);
    file.write_at(&[1; BLOCK_BYTES + 1000], 0).expect("written");
    let source = AlignedBytes::copy_of(&[9; BLOCK_BYTES], PAGE);
    let (core, me) = (file.core().expect("managed"), session.shared().me());
    let me = me.expect("a slot");
    let from = source.piece().ptr;
    // SAFETY: the memory is ours and as long.
    let written = unsafe { write(core, me, from, BLOCK_BYTES, BLOCK_BYTES as u64, false) };
    assert!(written.is_err());
    assert_eq!(file.len().expect("a length"), BLOCK_BYTES as u64 + 1000);
    let at = BLOCK_BYTES + 60 * PAGE;
    file.write_at(&[2; 100], at as u64).expect("written");
    let gap = bytes(&file, BLOCK_BYTES + 1000, 60 * PAGE - 1000);
    assert!(gap == [0; 60 * PAGE - 1000]);
    assert_eq!(bytes(&file, at, 200), [2; 100]);
}

/// A write past memory has failed and left bytes beyond the file's end. A thread that reads blocks for a view has read them too, and still has
/// a block in hand when the file gets another length: they are nobody's.
#[test]
fn what_a_failed_write_has_left_is_not_kept_by_who_has_read_it() {
    let (session, disk) = (session(), SimDisk::new(SimOptions::default()));
    let (inner, file) = open(&session, &disk, Halves);
    let old = BLOCK_BYTES + 1000;
    file.write_at(&vec![1; old], 0).expect("written");
    file.sync_data().expect("synced");
    let (core, me) = (file.core().expect("managed"), session.shared().me());
    let me = me.expect("a slot");
    let source = AlignedBytes::copy_of(&[9; BLOCK_BYTES], PAGE);
    let from = source.piece().ptr;
    // SAFETY: the memory is ours and as long.
    let written = unsafe { write(core, me, from, BLOCK_BYTES, BLOCK_BYTES as u64, false) };
    assert!(written.is_err());
    assert!(
        inner.contents()[old..].contains(&9),
        "nothing is left behind"
    );
    crate::evict::evict_file(me, core.id);
    let (place, mut pins) = (Place::default(), Vec::new());
    let mut cold = Cold::up_to(BlockIndex(1), &place);
    let segments: Vec<_> = segments(0, old).collect();
    let mut pin = |at: usize| {
        let into = (&mut pins, &mut cold);
        pin_block(core, me, 1, &segments[at], into).expect("read")
    };
    assert_eq!(pin(0), After::Done);
    file.set_len(4 * BLOCK_BYTES as u64).expect("longer");
    assert_eq!(pin(1), After::Done);
    let found = bytes(&file, old, 2 * BLOCK_BYTES - old);
    let stale = found.iter().position(|&byte| byte != 0);
    assert_eq!(stale, None, "bytes that nobody has written");
    pins::unpin(me, &pins);
}

/// The kernel takes what a program's memory has, and the memory becomes another's before the call is over.
struct Changes {
    inner: Arc<SimFile>,
    source: AtomicUsize,
}

impl Before for Arc<Changes> {
    fn before(&self, call: &Call) -> Verdict {
        let source = self.source.load(Ordering::Relaxed);
        if call.kind != CallKind::WriteBuffered || source == 0 {
            return Verdict::Proceed;
        }
        // SAFETY: the test's own memory, as long as the write; it waits for us.
        let source =
            unsafe { std::slice::from_raw_parts_mut(source as *mut u8, call.len as usize) };
        let ours = AlignedBytes::copy_of(&vec![5; source.len()], PAGE);
        let piece = ours.part(0, source.len());
        crate::device::DeviceFile::write_buffered(&*self.inner, &[piece], call.offset)
            .expect("written");
        source.fill(0);
        Verdict::Pretend
    }
}

/// What is read after a write through the kernel is what the kernel has taken, whatever the program's memory has become.
#[test]
fn memory_gets_what_the_kernel_gets() {
    let (session, disk) = (session(), SimDisk::new(SimOptions::default()));
    let inner = disk.create();
    let changes = Arc::new(Changes {
        inner: Arc::clone(&inner),
        source: AtomicUsize::new(0),
    });
    let device = Arc::new(Wrapped::new(
        Arc::clone(&inner),
        Arc::new(Arc::clone(&changes)),
    ));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session
        .open_device(device, "sim", &options)
        .expect("a file");
    file.write_at(&[1; 1000], 0).expect("written");
    assert_eq!(bytes(&file, 0, 2000), [1; 1000]);
    let (core, me) = (file.core().expect("managed"), session.shared().me());
    let mut source = vec![5; PAGE];
    changes
        .source
        .store(source.as_mut_ptr().addr(), Ordering::Relaxed);
    // SAFETY: the vector lives as long as the call.
    let written =
        unsafe { through_kernel(core, me.expect("a slot"), source.as_ptr(), PAGE, 0, false) };
    changes.source.store(0, Ordering::Relaxed);
    assert_eq!(written.ok(), Some(PAGE));
    assert!(bytes(&file, 0, PAGE) == [5; PAGE]);
    file.sync_data().expect("synced");
    assert!(inner.contents() == [5; PAGE]);
}
