//! Views of what is not in memory, on real files: read by several threads into frames side by side, and left in the middle by deaths.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forebay::evict::evict_file;
use forebay::ids::FrameId;
use forebay::keeper::check::check;
use forebay::limits::HUGE_BYTES;
use forebay::memory::regions::Owner;
use forebay::sync::Ordering;
use forebay::{File, OpenOptions, Session};
use forebay_model::{SplitMix64, fill};
use workers::{config, session_name};

const MIB: usize = 1 << 20;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// Bytes that differ at each place: blocks that have changed places show.
fn bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(3, 0, &mut bytes);
    bytes
}

/// A session that keeps, with so much memory that several threads are worth it.
fn session(name: &str) -> Session {
    let mut config = config(name);
    config.memory = 512 << 20;
    config.dirty_bytes_max = 64 << 20;
    Session::open(config).expect("a session")
}

fn drop_clean(file: &File) {
    let core = file.core().expect("managed");
    evict_file(core.shared.me().expect("a slot"), core.id);
}

/// Looks at the arena once nobody works in it.
fn audit(mut session: Session) {
    session.stop_keeping();
    if let Err(problems) = check(&session.shared().arena) {
        panic!("at the end: {problems:#?}");
    }
}

/// Nobody has a frame in hand, sooner or later: the keeper does, too.
fn await_none_held(session: &Session) {
    let begun = Instant::now();
    while held(session) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "frames are held");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Frames that threads have in hand.
fn held(session: &Session) -> usize {
    let arena = &session.shared().arena;
    let is_held = |id: &u32| {
        let owner = arena.frame_owner(FrameId(*id)).expect("a frame");
        matches!(Owner::unpack(owner.load(Ordering::Acquire)), Owner::Held(_))
    };
    (0..arena.counts().frames).filter(is_held).count()
}

#[test]
fn what_is_read_for_a_view_lies_on_huge_pages() {
    let dir = here::directory();
    let path = dir.path().join("file");
    let content = bytes(24 * MIB + 5000);
    std::fs::write(&path, &content).expect("a file");
    let session = session(&session_name("cold-runs"));
    let file = session.open_file(&path, &options()).expect("a file");
    assert_eq!(file.kernel_reason(), None);
    for range in [0..u64::MAX, 1000..content.len() as u64 - 1] {
        drop_clean(&file);
        let view = file.view(range.clone()).expect("a view");
        let end = content.len().min(range.end as usize);
        assert!(view[..] == content[range.start as usize..end]);
        assert!(!view.is_copy());
        assert_eq!(session.stats().run_bytes, 24 * MIB as u64);
        await_none_held(&session);
        // A part of it that is one huge page is an address in the arena, and needs no mapping.
        let huge = HUGE_BYTES as u64;
        let part = file.view(3 * huge..4 * huge).expect("a view");
        let other = file.view(3 * huge..4 * huge).expect("a view");
        assert_eq!(part.as_ptr(), other.as_ptr());
    }
    audit(session);
}

/// What is missing in part, or newer in memory, is no matter of whole runs.
#[test]
fn what_memory_has_of_a_file_stays_as_it_is() {
    let dir = here::directory();
    let path = dir.path().join("file");
    let mut content = bytes(20 * MIB);
    std::fs::write(&path, &content).expect("a file");
    let session = session(&session_name("cold-newer"));
    let file = session.open_file(&path, &options()).expect("a file");
    let mut dice = SplitMix64::new(5);
    for _ in 0..20 {
        drop_clean(&file);
        for _ in 0..10 {
            let at = dice.below(20 * MIB as u64 - 9000) as usize;
            let len = 1 + dice.below(9000) as usize;
            content[at..at + len].fill(dice.below(256) as u8);
            let written = file.write_at(&content[at..at + len], at as u64);
            assert_eq!(written.expect("written"), len);
        }
        if dice.below(2) == 0 {
            file.sync_data().expect("synced");
        }
        let view = file.view(0..u64::MAX).expect("a view");
        assert!(view[..] == content[..] && !view.is_copy());
        await_none_held(&session);
    }
    audit(session);
}

#[test]
fn streams_that_are_written_come_to_lie_on_huge_pages() {
    let dir = here::directory();
    let session = session(&session_name("cold-streams"));
    let content = bytes(16 * MIB);
    let file = session.open_file(dir.path().join("written"), &options());
    let file = file.expect("a file");
    for at in (0..content.len()).step_by(64 << 10) {
        let part = &content[at..at + (64 << 10)];
        assert_eq!(file.write_at(part, at as u64).expect("written"), part.len());
    }
    // The first 2 MiB were a short file's for a while.
    let written = session.stats().run_bytes;
    assert!(written >= 12 * MIB as u64, "{written} bytes written lie so");
    audit(session);
}

const VIEWER: &str = "TEST_COLD_VIEWER";

/// What [`deaths_in_the_middle_of_a_cold_view`] starts.
#[test]
#[ignore = "a part of another test"]
fn viewer() {
    let Ok(spec) = std::env::var(VIEWER) else {
        return;
    };
    let (name, path) = spec.split_once(' ').expect("a session and a file");
    let session = session(name);
    let file = session.open_file(path, &options()).expect("the file");
    loop {
        drop_clean(&file);
        let view = file.view(0..u64::MAX).expect("a view");
        assert!(!view.is_copy());
    }
}

fn start(name: &str, path: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "viewer", "--ignored", "--nocapture"]);
    command.env(VIEWER, format!("{name} {}", path.display()));
    command.spawn().expect("a viewer")
}

/// Frames that the dead have read into are free again, and nobody finds in them what a device wrote later.
#[test]
fn deaths_in_the_middle_of_a_cold_view() {
    let dir = here::directory();
    let path = dir.path().join("file");
    let content = bytes(32 * MIB);
    std::fs::write(&path, &content).expect("a file");
    let name = session_name("cold-deaths");
    let session = session(&name);
    let file = session.open_file(&path, &options()).expect("a file");
    let mut dice = SplitMix64::new(7);
    let mut met = 0;
    for round in 0..8 {
        let mut child = start(&name, &path);
        // Some time after it has begun.
        let begun = Instant::now();
        let before = session.stats().device_read_bytes;
        while session.stats().device_read_bytes - before < content.len() as u64 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it does not begin"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(dice.below(30_000)));
        child.kill().expect("killed");
        child.wait().expect("its end");
        met += usize::from(held(&session) > 0);
        await_none_held(&session);
        drop_clean(&file);
        let view = file.view(0..u64::MAX).expect("a view");
        assert!(view[..] == content[..], "round {round}");
        drop(view);
        let shared = session.shared();
        shared.unpin_dead(shared.me().expect("a slot"));
    }
    eprintln!("{met} of 8 deaths left frames in hand");
    assert_eq!(session.stats().corruptions, 0);
    assert_eq!(session.stats().viewed_bytes, 0);
    audit(session);
}
