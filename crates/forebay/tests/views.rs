//! Views: the bytes of a range as they were, whatever happens to the file, to memory and to other holders of views.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::held::Held;
use common::{Engine, Store};
use forebay::config::Coherence;
use forebay::evict::evict_file;
use forebay::keeper::check::check;
use forebay::limits::{BLOCK_BYTES, HUGE_BYTES};
use forebay::memory::pins;
use forebay::sim::device::{
    CallKind, FaultPlan, Kinds, Outcome, Repeat, SimDisk, SimOptions, Wrapped,
};
use forebay::sim::{Bug, plant};
use forebay::sync::Ordering;
use forebay::{Config, File, OpenOptions, PrivateView, Session};
use forebay_model::{Op, Profile, SplitMix64, Target, fill, generate};
use workers::{config, session_name};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Views held at once by the random tests.
const HELD: usize = 6;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

fn bytes(seed: u32, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill(seed, 0, &mut bytes);
    bytes
}

/// A session of its own in memory that files share, with a keeper.
fn session(name: &str, memory: u64) -> Session {
    let mut config = config(&session_name(name));
    config.memory = memory;
    config.dirty_bytes_max = memory / 2;
    Session::open(config).expect("a session")
}

fn file_of(session: &Session, dir: &Path, content: &[u8]) -> File {
    let file = session.open_file(dir.join("file"), &options());
    let file = file.expect("a file");
    assert_eq!(file.write_at(content, 0).expect("written"), content.len());
    assert_eq!(file.kernel_reason(), None);
    file
}

/// What happens to a file, and its name.
type Change = (&'static str, fn(&File));

fn pinned(session: &Session) -> u32 {
    let superblock = session.shared().arena.superblock();
    superblock.frames_pinned.load(Ordering::Acquire)
}

/// A file's content at a moment, as reads tell.
fn read(file: &File, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let read = file.read_at(&mut bytes, range.start).expect("a read");
    bytes.truncate(read);
    bytes
}

/// Takes views between random operations and looks at those held. How many were taken without a copy. In memory that has no file (`audits`), those
/// that may be written would all be copies.
fn hold_views(seed: u64, ops: &[Op], engine: &mut Engine, audits: bool) -> u32 {
    let mut dice = SplitMix64::new(seed);
    let mut held: Vec<(Held, Vec<u8>)> = Vec::new();
    let mut without_copy = 0;
    for op in ops {
        engine.run(op);
        if dice.below(2) == 0 {
            let file = engine.handle(dice.below(2) as u8, 0);
            let start = dice.below(3 * BLOCK);
            let most = [100, 4096, BLOCK, 3 * BLOCK][dice.below(4) as usize];
            let range = start..start + dice.below(most);
            let is_private = !audits && dice.below(2) == 0;
            let view = match Held::take(file, range.clone(), is_private) {
                // The handle is open for writing alone.
                Err(error) if error.errno() == 9 => continue,
                view => view.expect("a view"),
            };
            assert_eq!(view[..], read(file, &range), "seed {seed}: {range:?}");
            without_copy += u32::from(!view.is_copy() && !view.is_empty());
            let bytes = view.to_vec();
            held.push((view, bytes));
        }
        while held.len() > HELD || !held.is_empty() && dice.below(4) == 0 {
            held.swap_remove(dice.below(held.len() as u64) as usize);
        }
        for (view, bytes) in &mut held {
            assert_eq!(view[..], bytes[..], "seed {seed}: a view after {op:?}");
            if dice.below(4) == 0 {
                view.store(bytes, &mut dice);
            }
        }
        if audits && dice.below(8) == 0 {
            audit(&engine.session, "with views");
        }
    }
    drop(held);
    without_copy
}

fn audit(session: &Session, when: &str) {
    if let Err(problems) = check(&session.shared().arena) {
        panic!("{when}: {problems:#?}");
    }
}

fn in_memory(seed: u64, count: usize) -> u32 {
    let ops = generate(seed, &Profile::TINY, count);
    let (files, handles) = Op::extent(&ops);
    let (_disk, store) = Store::sim(files.max(2), 1 << 30);
    // Eight frames, half of which may be pinned.
    let mut engine = Engine::new(Config::tiny(), store, files.max(2), handles.max(1));
    let without_copy = hold_views(seed, &ops, &mut engine, true);
    assert_eq!(pinned(&engine.session), 0);
    audit(&engine.session, "without views");
    without_copy
}

#[test]
fn a_view_never_changes() {
    let taken: u32 = here::seeds(0..12, 3).map(|seed| in_memory(seed, 120)).sum();
    assert!(taken > 40, "{taken} views were no copies");
}

#[test]
fn a_view_of_real_files_never_changes() {
    let mut taken = 0;
    for seed in here::seeds(0..3, 1) {
        let dir = here::directory();
        let mut config = config(&session_name("views-random"));
        config.memory = 8 << 20;
        let store = Store::Dir(dir.path().to_owned());
        let mut engine = Engine::new(config, store, 2, 2);
        let ops = generate(
            seed,
            &Profile {
                files: 2,
                handles: 2,
                ..Profile::LARGE
            },
            60,
        );
        taken += hold_views(seed, &ops, &mut engine, false);
    }
    assert!(taken > 0, "all views were copies");
}

#[test]
fn what_happens_to_the_file_does_not_happen_to_its_view() {
    let dir = here::directory();
    let session = session("views-fates", 32 << 20);
    let content = bytes(1, 3 * BLOCK);
    let changes: [Change; 7] = [
        ("written", |file| {
            file.write_at(&bytes(2, 2 * BLOCK), 100).expect("written");
        }),
        ("appended to", |file| {
            file.append(&[7; 5000]).expect("appended");
        }),
        ("synced", |file| file.sync_all().expect("synced")),
        ("cut", |file| {
            file.set_len(BLOCK + 77).expect("cut");
            file.set_len(3 * BLOCK).expect("longer");
            file.write_at(&[1; 100], BLOCK + 50).expect("written");
        }),
        ("punched", |file| {
            file.punch(10, 2 * BLOCK + 5000).expect("punched");
            file.write_at(&[9; 10], 5000).expect("written");
        }),
        ("evicted", |file| {
            let core = file.core().expect("managed");
            file.sync_all().expect("synced");
            let me = core.shared.me().expect("a slot");
            forebay::evict::evict_file(me, core.id);
            read(file, &(0..3 * BLOCK));
            file.write_at(&bytes(3, 3 * BLOCK), 0).expect("written");
        }),
        ("given to the kernel", |file| {
            file.to_kernel().expect("given");
            file.write_at(&bytes(4, 3 * BLOCK), 0).expect("written");
        }),
    ];
    for (name, change) in changes {
        let file = file_of(&session, dir.path(), &content);
        let ranges = [
            0..3 * BLOCK,
            5..BLOCK,
            BLOCK + 10..BLOCK + 90,
            2 * BLOCK..4 * BLOCK,
        ];
        let views: Vec<_> = ranges
            .iter()
            .map(|range| (range.clone(), file.view(range.clone()).expect("a view")))
            .collect();
        change(&file);
        for (range, view) in &views {
            let end = range.end.min(3 * BLOCK) as usize;
            let expected = &content[range.start as usize..end];
            assert!(!view.is_copy(), "{name}: {range:?} is a copy");
            assert_eq!(view[..], *expected, "{name}: {range:?}");
        }
        file.close().expect("closed");
        for (range, view) in &views {
            let end = range.end.min(3 * BLOCK) as usize;
            assert_eq!(
                view[..],
                content[range.start as usize..end],
                "closed: {name}"
            );
        }
        drop(views);
        assert_eq!(pinned(&session), 0, "{name}");
        std::fs::remove_file(dir.path().join("file")).expect("removed");
    }
}

#[test]
fn a_view_outlives_its_file_and_its_session() {
    let dir = here::directory();
    let session = session("views-outlive", 32 << 20);
    let content = bytes(12, 2 * BLOCK);
    let file = file_of(&session, dir.path(), &content);
    let views = [file.view(0..2 * BLOCK), file.view(7..8)];
    file.close().expect("closed");
    drop(session);
    // Another session in the same place.
    let other = self::session("views-outlive", 32 << 20);
    let file = file_of(&other, dir.path(), &bytes(13, 2 * BLOCK));
    let [whole, byte] = views.map(|view| view.expect("a view"));
    assert!(!whole.is_copy());
    assert_eq!(whole[..], content[..]);
    std::thread::spawn(move || drop(byte))
        .join()
        .expect("dropped");
    drop(whole);
    assert_eq!(read(&file, &(0..100)), bytes(13, 2 * BLOCK)[..100]);
}

#[test]
fn missing_bytes_are_read_and_holes_are_zeros() {
    let dir = here::directory();
    let path = dir.path().join("file");
    let content = bytes(5, 700_000);
    std::fs::write(&path, &content).expect("a file");
    let session = session("views-cold", 32 << 20);
    let file = session.open_file(&path, &options()).expect("a file");
    file.set_len(3 * BLOCK + 1000).expect("longer");
    // Newer bytes that the device does not have, of pages in part.
    file.write_at(&[3; 5000], 300_001).expect("written");
    let mut expected = content;
    expected.resize((3 * BLOCK + 1000) as usize, 0);
    expected[300_001..305_001].fill(3);
    let view = file.view(0..u64::MAX).expect("a view");
    assert_eq!(view[..], expected[..]);
    assert!(!view.is_copy());
    assert_eq!(view.as_ptr().addr() % 4096, 0);
    let ragged = file.view(4099..4109).expect("a view");
    assert_eq!(ragged[..], expected[4099..4109]);
    assert!(file.view(10 << 20..11 << 20).expect("a view").is_empty());
    let backwards = Range { start: 5, end: 4 };
    assert!(file.view(backwards).is_err());
}

/// A file on a simulated disk of which nothing is in memory, and its session of 64 frames.
fn cold(plan: &Arc<FaultPlan>, content: &[u8]) -> (Session, File) {
    let disk = SimDisk::new(SimOptions::default());
    let config = Config {
        memory: 64 * BLOCK,
        ..Config::tiny()
    };
    let session = Session::open(config).expect("a session");
    let device = Arc::new(Wrapped::new(disk.create(), Arc::clone(plan)));
    let file = session.open_device(device, "sim", &options());
    let file = file.expect("a file");
    assert_eq!(file.write_at(content, 0).expect("written"), content.len());
    file.sync_data().expect("synced");
    drop_clean(&session, &file);
    (session, file)
}

fn drop_clean(session: &Session, file: &File) {
    let me = session.shared().me().expect("a slot");
    evict_file(me, file.core().expect("managed").id);
}

#[test]
fn missing_blocks_are_read_at_once() {
    let reads = Kinds::of(&[CallKind::ReadDirect]);
    let plan = FaultPlan::counting(reads);
    let content = bytes(15, 20 * BLOCK + 5000);
    let (session, file) = cold(&plan, &content);
    let before = plan.calls();
    let view = file.view(1000..u64::MAX).expect("a view");
    assert!(view[..] == content[1000..]);
    // Of 21 blocks eight at once.
    assert_eq!(plan.calls() - before, 3);
    drop(view);
    // What is there in part, and newer, is left as it is.
    drop_clean(&session, &file);
    let mut newer = content;
    for at in [3 * BLOCK + 77, 7 * BLOCK - 10, 20 * BLOCK] {
        let at = at as usize;
        newer[at..at + 20].fill(0xAB);
        let written = file.write_at(&newer[at..at + 20], at as u64);
        assert_eq!(written.expect("written"), 20);
    }
    let view = file.view(0..u64::MAX).expect("a view");
    assert!(view[..] == newer[..]);
    drop(view);
    assert_eq!(pinned(&session), 0);
    audit(&session, "after cold views");
}

/// The kernel has all of it in memory as well: somebody has copied the file to where it is.
#[test]
fn what_views_have_shown_is_in_memory_after_a_close() {
    let dir = here::directory();
    let path = dir.path().join("file");
    let content = bytes(7, 8 * BLOCK);
    let mut plain = std::fs::File::create(&path).expect("a file");
    std::io::Write::write_all(&mut plain, &content).expect("written");
    plain.sync_all().expect("durable");
    drop(plain);
    let mut config = config(&session_name("viewed"));
    (config.memory, config.coherence) = (16 << 20, Coherence::Notify);
    let session = Session::open(config).expect("a session");
    let read_from_device = || session.stats().device_read_bytes;
    for round in 0..3 {
        let file = session.open_file(&path, &options()).expect("a file");
        assert_eq!(file.kernel_reason(), None);
        let view = file.view(0..content.len() as u64).expect("a view");
        assert!(!view.is_copy() && view[..] == content[..]);
        drop(view);
        file.close().expect("closed");
        assert_eq!(read_from_device(), content.len() as u64, "round {round}");
    }
}

/// A view is whole or an error, and what could be read before it harms nobody.
#[test]
fn a_device_that_fails_leaves_nothing_of_a_view() {
    let reads = Kinds::of(&[CallKind::ReadDirect]);
    let content = bytes(16, 20 * BLOCK);
    for n in 0..4 {
        let plan = FaultPlan::nth(n, reads, Outcome::Errno(libc::EIO), Repeat::ForEver);
        let (session, file) = cold(&plan, &content);
        match file.view(0..u64::MAX) {
            Err(error) => assert_eq!(error.errno(), libc::EIO),
            Ok(view) => assert!(view[..] == content[..] && n == 3, "call {n}"),
        }
        assert_eq!((plan.tripped() > 0, pinned(&session)), (n < 3, 0));
        let there = (n * HUGE_BYTES as u64).min(20 * BLOCK);
        let view = file.view(0..there).expect("what was read");
        assert!(view[..] == content[..there as usize]);
        drop(view);
        audit(&session, "after a failure");
    }
}

/// Once: what was asked for is read again.
#[test]
fn a_device_that_fails_once_keeps_no_view_from_anybody() {
    let reads = Kinds::of(&[CallKind::ReadDirect]);
    let content = bytes(17, 20 * BLOCK);
    for n in 0..3 {
        let plan = FaultPlan::nth(n, reads, Outcome::Errno(libc::EIO), Repeat::Once);
        let (session, file) = cold(&plan, &content);
        let view = file.view(0..u64::MAX).expect("a view");
        assert!(view[..] == content[..]);
        assert_eq!(plan.tripped(), 1);
        drop(view);
        audit(&session, "after a failure");
    }
}

/// Blocks that came into memory out of order lie apart; their view is side by side all the same.
#[test]
fn frames_that_lie_apart_are_mapped_side_by_side() {
    let dir = here::directory();
    let session = session("views-apart", 32 << 20);
    let content = bytes(6, 9 * BLOCK);
    let file = session.open_file(dir.path().join("file"), &options());
    let file = file.expect("a file");
    file.set_len(9 * BLOCK).expect("a length");
    for block in [3, 1, 8, 0, 6, 2, 7, 5, 4] {
        let at = block * BLOCK_BYTES;
        file.write_at(&content[at..at + BLOCK_BYTES], at as u64)
            .expect("written");
    }
    let view = file.view(100..9 * BLOCK - 3).expect("a view");
    assert!(!view.is_copy());
    let copy = content.clone();
    file.write_at(&bytes(7, 9 * BLOCK), 0).expect("written");
    assert_eq!(view[..], copy[100..copy.len() - 3]);
}

/// A file of nine blocks whose frames lie apart but for three.
fn scattered(session: &Session, dir: &Path, content: &[u8]) -> File {
    let file = session.open_file(dir.join("scattered"), &options());
    let file = file.expect("a file");
    file.set_len(9 * BLOCK).expect("a length");
    for block in [3, 1, 8, 0, 6, 7, 2, 5, 4] {
        let at = block * BLOCK_BYTES;
        file.write_at(&content[at..at + BLOCK_BYTES], at as u64)
            .expect("written");
    }
    file
}

/// Stores into a view of a range, and says whether anybody but the view itself shows it, or the view shows what others do.
fn stores_leak(file: &File, content: &[u8], range: Range<u64>) -> bool {
    let was = &content[range.start as usize..range.end as usize];
    let mut view = file.view_private(range.clone()).expect("a view");
    let beside = file.view_private(range.clone()).expect("a view");
    let plain = file.view(range.clone()).expect("a view");
    assert!(!view.is_copy() && !beside.is_copy() && !plain.is_copy());
    assert_eq!(view[..], *was);
    let mut stored = was.to_vec();
    for at in (0..was.len()).step_by(3 * 4096 + 77) {
        stored[at] ^= 0xFF;
        view[at] ^= 0xFF;
    }
    let mut leaks = view[..] != stored[..];
    leaks |= beside[..] != *was || plain[..] != *was;
    leaks |= read(file, &range) != *was;
    leaks |= file.view_private(range.clone()).expect("another")[..] != *was;
    // What is written later shows nowhere.
    file.write_at(&vec![9; was.len()], range.start)
        .expect("written");
    leaks |= view[..] != stored[..] || beside[..] != *was;
    file.write_at(was, range.start).expect("as it was");
    leaks
}

#[test]
fn what_is_stored_into_a_view_stays_there() {
    let dir = here::directory();
    let session = session("views-private", 64 << 20);
    let content = bytes(20, 9 * BLOCK);
    let ranges = [0..9 * BLOCK, 100..9 * BLOCK - 3, 5..9, BLOCK - 1..BLOCK + 1];
    let files = [
        file_of(&session, dir.path(), &content),
        scattered(&session, dir.path(), &content),
    ];
    for file in &files {
        for range in ranges.clone() {
            assert!(!stores_leak(file, &content, range.clone()), "{range:?}");
        }
        file.sync_all().expect("synced");
    }
    for name in ["file", "scattered"] {
        let on_disk = std::fs::read(dir.path().join(name)).expect("the file");
        assert!(on_disk == content, "{name}");
    }
    plant(Some(Bug::OpenView));
    let is_found = stores_leak(&files[0], &content, 100..BLOCK);
    plant(None);
    assert!(
        is_found,
        "stores reached the frames, and nothing went wrong"
    );
    assert_eq!(pinned(&session), 0);
}

/// What cannot be mapped may be written all the same.
#[test]
fn copies_may_be_written_as_well() {
    let dir = here::directory();
    let session = session("views-private-copies", 8 << 20);
    let content = bytes(21, 6 << 20);
    let file = file_of(&session, dir.path(), &content);
    let check = |file: &File, what: &str| {
        let mut view = file.view_private(10..5 << 20).expect("a view");
        assert!(view.is_copy(), "{what}");
        view.fill(1);
        assert!(read(file, &(0..6 << 20)) == content, "{what}");
        assert!(view.iter().all(|&byte| byte == 1), "{what}");
    };
    check(&file, "more than half of the memory");
    file.to_kernel().expect("given");
    check(&file, "the kernel's");
    let mut nothing = file.view_private(7 << 20..8 << 20).expect("a view");
    assert!(nothing.is_empty() && nothing.as_mut().is_empty());
}

#[test]
fn a_forked_child_has_a_view_of_its_own() {
    let dir = here::directory();
    let session = session("views-private-forked", 32 << 20);
    let content = bytes(22, 3 * BLOCK);
    let file = scattered(&session, dir.path(), &bytes(22, 9 * BLOCK));
    let mut view = file.view_private(0..3 * BLOCK).expect("a view");
    assert!(!view.is_copy());
    view[5] ^= 1;
    let mut pipe = [0; 2];
    // SAFETY: the target is ours.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child looks at its own copy, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: one byte of ours; the parent stores before it writes one.
        let heard = unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) } == 1;
        let mut right = heard && view[5] == content[5] ^ 1 && view[6..] == content[6..];
        view[100_000..200_000].fill(77);
        right &= view[100_000..200_000].iter().all(|&byte| byte == 77);
        drop(view);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    view[6] ^= 1;
    file.write_at(&[3; 50_000], 120_000).expect("written");
    // SAFETY: one byte of ours.
    assert_eq!(unsafe { libc::write(pipe[1], pipe.as_ptr().cast(), 1) }, 1);
    let mut status = 0;
    // SAFETY: the target is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's view is wrong");
    assert_eq!(
        pinned(&session),
        3,
        "the child has let its parent's pins go"
    );
    assert_eq!(view[7..], content[7..]);
    drop(view);
    assert_eq!(pinned(&session), 0);
}

/// A file that is replaced by another of its name: views are of the one that was opened.
#[test]
fn a_view_of_a_file_that_is_replaced() {
    let dir = here::directory();
    let session = session("views-replaced", 32 << 20);
    let (old, new) = (bytes(23, 3 * BLOCK), bytes(24, 2 * BLOCK + 5));
    let file = file_of(&session, dir.path(), &old);
    let view = file.view(0..3 * BLOCK).expect("a view");
    let mut own = file.view_private(10..BLOCK).expect("a view");
    own[0] = 7;
    for (round, closes) in [false, true].into_iter().enumerate() {
        let other = session.open_file(dir.path().join("new"), &options());
        let other = other.expect("a file");
        other.write_at(&new, 0).expect("written");
        let fresh = other.view(0..3 * BLOCK).expect("a view");
        std::fs::rename(dir.path().join("new"), dir.path().join("file")).expect("replaced");
        if closes {
            other.close().expect("closed");
        }
        let again = session.open_file(dir.path().join("file"), &options());
        let again = again.expect("the file of this name");
        assert!(again.view(0..u64::MAX).expect("a view")[..] == new[..]);
        again.write_at(&[round as u8; 1000], 0).expect("written");
        assert!(fresh[..] == new[..], "round {round}: the new one");
        assert!(view[..] == old[..], "round {round}: the old one");
        assert!(own[0] == 7 && own[1..] == old[11..BLOCK as usize]);
        assert!(read(&file, &(0..3 * BLOCK)) == old);
    }
    file.close().expect("closed");
    assert!(view[..] == old[..]);
    drop((view, own));
    assert_eq!(pinned(&session), 0);
}

/// Half of the memory can be pinned; then views are copies, and whoever writes gets memory all the same.
#[test]
fn with_as_much_pinned_as_may_be_everybody_goes_on() {
    let dir = here::directory();
    let session = session("views-full", 8 << 20);
    let content = bytes(8, 16 << 20);
    let file = file_of(&session, dir.path(), &content);
    let blocks = content.len() as u64 / BLOCK;
    let views: Vec<_> = (0..blocks)
        .map(|block| {
            file.view(block * BLOCK..(block + 1) * BLOCK)
                .expect("a view")
        })
        .collect();
    let copies = views.iter().filter(|view| view.is_copy()).count();
    assert!(copies > 0 && copies < views.len(), "{copies} copies");
    let frames = session.shared().arena.superblock();
    let most = pins::frames_max(frames);
    assert!(pinned(&session) <= most, "{} of {most}", pinned(&session));
    // Each block that a view holds gets a new version, and all of the file goes through the rest of the memory.
    let newer = bytes(9, 16 << 20);
    assert_eq!(file.write_at(&newer, 0).expect("written"), newer.len());
    file.sync_all().expect("synced");
    assert_eq!(read(&file, &(0..16 << 20)), newer);
    for (block, view) in views.iter().enumerate() {
        assert_eq!(
            view[..],
            content[block * BLOCK_BYTES..][..BLOCK_BYTES],
            "{block}"
        );
    }
    drop(views);
    assert_eq!(pinned(&session), 0);
}

/// Tests of this file find what they look for.
#[test]
fn views_that_are_written_into_or_freed_are_found() {
    for bug in [Bug::WriteInPlace, Bug::FreePinned] {
        plant(Some(bug));
        let is_found =
            (0..20).any(|seed| std::panic::catch_unwind(|| in_memory(seed, 120)).is_err());
        plant(None);
        assert!(is_found, "{bug:?} was planted, and nothing went wrong");
    }
}

const HOLDER: &str = "TEST_VIEW_HOLDER";

/// What [`a_killed_holder_leaves_nothing_pinned`] starts.
#[test]
#[ignore = "a part of another test"]
fn holder() {
    let Ok(spec) = std::env::var(HOLDER) else {
        return;
    };
    let (name, path) = spec.split_once(' ').expect("a session and a file");
    let session = Session::join(config(name)).expect("the session");
    let file = session.open_file(path, &options()).expect("the file");
    let view = file.view(0..4 * BLOCK).expect("a view");
    println!("@held {} {}", view.len(), view.is_copy());
    std::thread::sleep(Duration::from_secs(600));
}

const MAPPER: &str = "TEST_VIEW_MAPPER";

/// What [`beyond_the_mappings_of_a_process_views_are_copies`] starts: the limit is a process's, and other tests would meet it.
#[test]
#[ignore = "a part of another test"]
fn mapper() {
    if std::env::var_os(MAPPER).is_none() {
        return;
    }
    let dir = here::directory();
    // As many pins may be as there are frames: 8,192.
    let session = session("views-mappings", 2 << 30);
    let content = bytes(25, BLOCK);
    let file = file_of(&session, dir.path(), &content);
    let mut views: Vec<PrivateView> = Vec::new();
    // Each has three mappings: its own, and what is left of its addresses on both sides.
    while views.last().is_none_or(|view| !view.is_copy()) {
        assert!(views.len() <= 16_384 / 3, "there is no end");
        views.push(file.view_private(0..100).expect("a view"));
    }
    assert_eq!(views.len() - 1, 16_384 / 3);
    let whole = |view: &PrivateView| view[..] == content[..100];
    assert!(views.iter().all(whole));
    // A window has no addresses then, and with a few its blocks are the process's own.
    let none = session.window(4 << 20).expect_err("no addresses");
    assert_eq!(none.errno(), libc::ENOMEM);
    views.truncate(views.len() - 2);
    let mut window = session.window(4 << 20).expect("a window");
    assert_eq!(window.counts(), (16, 0, 0));
    window.fill(5);
    window.commit(&file, 0, 0..4 << 20).expect("written");
    assert_eq!(read(&file, &(0..1)), [5]);
    assert!(views.iter().all(whole));
    // Views that need no mapping are none the worse, and with the others gone there is room.
    assert!(!file.view(0..100).expect("a view").is_copy());
    drop(views);
    assert!(!file.view_private(0..100).expect("a view").is_copy());
    println!("@all is well");
}

#[test]
fn beyond_the_mappings_of_a_process_views_are_copies() {
    let program = std::env::current_exe().expect("this program");
    let out = Command::new(program)
        .args(["--exact", "mapper", "--ignored", "--nocapture"])
        .env(MAPPER, "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    let wrong = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("@all is well"), "{said}\n{wrong}");
}

fn start_holder(name: &str, path: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env(HOLDER, format!("{name} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a holder");
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let line = out
        .lines()
        .map(|line| line.expect("text"))
        .find(|line| line.contains("@held"));
    let line = line.expect("it holds a view");
    assert!(
        line.ends_with(&format!("@held {} false", 4 * BLOCK)),
        "{line}"
    );
    child
}

#[test]
fn a_killed_holder_leaves_nothing_pinned() {
    let dir = here::directory();
    let session = session("views-killed", 32 << 20);
    let content = bytes(10, 4 * BLOCK);
    let file = file_of(&session, dir.path(), &content);
    let name = session.shared().config.session.clone();
    let mine = file.view(0..100).expect("a view");
    let mut holders: Vec<_> = (0..2)
        .map(|_| start_holder(&name, &dir.path().join("file")))
        .collect();
    assert_eq!(pinned(&session), 4);
    // What the holders hold are old versions now.
    file.write_at(&bytes(11, 4 * BLOCK), 0).expect("written");
    let killed = holders.pop().expect("two");
    end(killed);
    // One of them lives: its frames stay, as long as one may look.
    let me = session.shared().me().expect("a slot");
    session.shared().unpin_dead(me);
    assert_eq!(pinned(&session), 4);
    end(holders.pop().expect("one"));
    let begun = Instant::now();
    while pinned(&session) != 1 {
        // The keeper does.
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{}",
            pinned(&session)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(mine[..], content[..100]);
    drop(mine);
    assert_eq!(pinned(&session), 0);
    assert_eq!(read(&file, &(0..4 * BLOCK)), bytes(11, 4 * BLOCK));
}

fn end(mut child: Child) {
    child.kill().expect("killed");
    child.wait().expect("its end");
}
