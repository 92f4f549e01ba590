//! Windows: what is committed is the file's without a copy, and no store into the window reaches it.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::windows::Windows;
use common::{Engine, Store};
use forebay::keeper::check::check;
use forebay::limits::BLOCK_BYTES;
use forebay::memory::pins;
use forebay::sim::{Bug, plant};
use forebay::sync::Ordering;
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::{Op, Profile, SplitMix64, drive, fill, generate};
use workers::{config, session_name};

const BLOCK: u64 = BLOCK_BYTES as u64;
const MIB: usize = 1 << 20;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
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

fn file_in(session: &Session, dir: &Path) -> File {
    let file = session.open_file(dir.join("file"), &options());
    let file = file.expect("a file");
    assert_eq!(file.kernel_reason(), None);
    file
}

fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, offset).expect("a read");
    bytes.truncate(read);
    bytes
}

fn pinned(session: &Session) -> u32 {
    let superblock = session.shared().arena.superblock();
    superblock.frames_pinned.load(Ordering::Acquire)
}

fn audit(session: &Session) {
    if let Err(problems) = check(&session.shared().arena) {
        panic!("{problems:#?}");
    }
}

/// Random operations, positional writes of which are commits. Bytes that went without a copy.
fn in_memory(seed: u64, count: usize) -> u64 {
    let ops = generate(seed, &Profile::TINY, count);
    let (files, handles) = Op::extent(&ops);
    let (_disk, store) = Store::sim(files.max(2), 1 << 40);
    // Eight frames, half of which may be held.
    let mut engine = Engine::new(Config::tiny(), store, files.max(2), handles.max(2));
    engine.windows = Some(Windows::new(seed, 3 * BLOCK_BYTES));
    drive(&ops, &mut engine).unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
    audit(&engine.session);
    let windows = engine.windows.take().expect("windows");
    let attached = windows.attached_bytes;
    drop(windows);
    assert_eq!(pinned(&engine.session), 0);
    audit(&engine.session);
    attached
}

#[test]
fn commits_agree_with_the_model() {
    let attached: u64 = here::seeds(0..24, 4).map(|seed| in_memory(seed, 150)).sum();
    assert!(attached >= 10 * BLOCK, "{attached} bytes without a copy");
}

#[test]
fn commits_of_real_files_agree_with_the_model() {
    let mut attached = 0;
    for seed in here::seeds(0..4, 1) {
        let dir = here::directory();
        let mut config = config(&session_name("windows-random"));
        config.memory = 32 << 20;
        let store = Store::Dir(dir.path().to_owned());
        let mut engine = Engine::new(config, store, 2, 2);
        engine.windows = Some(Windows::new(seed, 5 * MIB));
        let profile = Profile {
            files: 2,
            handles: 2,
            ..Profile::LARGE
        };
        let ops = generate(seed, &profile, 60);
        drive(&ops, &mut engine).unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
        attached += engine.windows.take().expect("windows").attached_bytes;
        assert_eq!(pinned(&engine.session), 0);
    }
    assert!(attached >= 10 * BLOCK, "{attached} bytes without a copy");
}

#[test]
fn whole_blocks_go_without_a_copy() {
    let dir = here::directory();
    let session = session("windows-whole", 64 << 20);
    let file = file_in(&session, dir.path());
    let mut window = session.window(8 * MIB).expect("a window");
    assert!(window.iter().all(|&byte| byte == 0));
    assert_eq!(window.as_ptr().addr() % (2 * MIB), 0);
    let content = bytes(1, 8 * MIB);
    window.copy_from_slice(&content);
    // The second and the third of four huge pages: both ends are ragged.
    let range = 100..8 * MIB - 100;
    let given = window.commit(&file, 100, range.clone());
    assert_eq!(given.expect("given"), range.len());
    assert_eq!(window.attached_bytes(), 16 * BLOCK);
    assert!(read(&file, 100, 8 * MIB) == content[range]);
    // They are what a view shows, too: one version of each block.
    let view = file.view(8 * BLOCK..24 * BLOCK).expect("a view");
    assert!(!view.is_copy());
    assert_eq!(pinned(&session), 32);
    drop(view);
    // The same bytes once more, elsewhere: what was given is copied, what was not goes as it is.
    window.commit(&file, 8 << 20, 0..8 * MIB).expect("again");
    assert_eq!(window.attached_bytes(), 32 * BLOCK);
    window.refill().expect("refilled");
    assert_eq!(window.counts(), (0, 32, 0));
    assert!(window[..] == content[..]);
    window
        .commit(&file, 16 << 20, 0..8 * MIB)
        .expect("refilled");
    assert_eq!(window.attached_bytes(), 64 * BLOCK);
    window.detach().expect("detached");
    assert!(window.iter().all(|&byte| byte == 0));
    file.sync_all().expect("synced");
    for offset in [8 << 20, 16 << 20] {
        assert!(read(&file, offset, 8 * MIB) == content);
    }
    drop(window);
    assert_eq!(pinned(&session), 0);
    file.close().expect("closed");
    let outside = std::fs::read(dir.path().join("file")).expect("read");
    assert!(outside[16 << 20..] == content[..]);
}

/// Whatever the alignment of the data: the window moves so that it fits.
#[test]
fn a_window_slides_to_where_its_bytes_will_lie() {
    let dir = here::directory();
    let session = session("windows-slide", 64 << 20);
    let file = file_in(&session, dir.path());
    let mut window = session.window(4 * MIB).expect("a window");
    let content = bytes(2, 4 * MIB);
    let mut at = 5;
    for step in 1..=4u64 {
        window.slide(at).expect("moved");
        window.copy_from_slice(&content);
        window.commit(&file, at, 0..4 * MIB).expect("given");
        // Of three huge pages the first and the last are there in part.
        assert_eq!(window.attached_bytes(), step * 8 * BLOCK);
        at += 4 * MIB as u64 + 13;
    }
    for step in 0..4 {
        let at = 5 + step * (4 * MIB as u64 + 13);
        assert!(read(&file, at, 4 * MIB) == content, "piece {step}");
    }
}

/// Another thread stores into the window all the time, as only a program that breaks the rules does: what the file has got stays.
fn stores_reach(session: &Session, dir: &Path) -> bool {
    let file = file_in(session, dir);
    let mut window = session.window(2 * MIB).expect("a window");
    window.fill(1);
    let (address, stop) = (window.as_mut_ptr().addr(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0u8;
            while !stop.load(Relaxed) {
                byte = byte.wrapping_add(1);
                for at in (0..2 * MIB).step_by(4096) {
                    let place = std::ptr::with_exposed_provenance_mut::<u8>(address + at);
                    // SAFETY: mapped until the thread is joined; one byte, of which anything may become.
                    unsafe { place.write_volatile(byte) };
                }
            }
        });
        window.commit(&file, 0, 0..2 * MIB).expect("given");
        let first = read(&file, 0, 2 * MIB);
        std::thread::sleep(Duration::from_millis(20));
        let changed = read(&file, 0, 2 * MIB) != first;
        stop.store(true, Relaxed);
        changed
    })
}

#[test]
fn no_store_reaches_what_was_given() {
    let session = session("windows-stores", 32 << 20);
    for _ in 0..5 {
        assert!(!stores_reach(&session, here::directory().path()));
    }
    plant(Some(Bug::OpenWindow));
    // The thread that stores may get no turn.
    let found = (0..50).any(|_| stores_reach(&session, here::directory().path()));
    plant(None);
    assert!(found, "a window was left open, and nothing went wrong");
}

/// Half of the memory can be held; what is beyond is the process's own, and everybody goes on.
#[test]
fn what_does_not_fit_is_copied() {
    let dir = here::directory();
    let session = session("windows-short", 8 << 20);
    let file = file_in(&session, dir.path());
    let most = pins::frames_max(session.shared().arena.superblock()) as usize;
    let mut window = session.window(12 * MIB).expect("a window");
    let (own, fresh, _) = window.counts();
    assert!(fresh > 0 && fresh <= most, "{fresh} of {most}");
    assert_eq!(own + fresh, 48);
    let content = bytes(3, 12 * MIB);
    window.copy_from_slice(&content);
    window.commit(&file, 0, 0..12 * MIB).expect("given");
    // Whole huge pages are given.
    let fresh = fresh / 8 * 8;
    assert_eq!(window.attached_bytes(), fresh as u64 * BLOCK);
    assert!(fresh > 0 && read(&file, 0, 12 * MIB) == content);
    // There is no frame for it: what it shows stays, and what is stored stays its own.
    window.refill().expect("refilled");
    assert!(window[..] == content[..]);
    window.fill(7);
    window.detach().expect("detached");
    assert!(pinned(&session) as usize <= most);
    let (own, again, given) = window.counts();
    assert_eq!((own + again, given), (48, 0));
    let zeros = window.iter().filter(|&&byte| byte == 0).count();
    assert!(zeros >= fresh * BLOCK_BYTES, "{zeros} zeros");
    window.fill(9);
    window.commit(&file, 12 << 20, 0..12 * MIB).expect("given");
    assert!(read(&file, 0, 12 * MIB) == content);
    assert!(read(&file, 12 << 20, 12 * MIB) == vec![9; 12 * MIB]);
    file.sync_all().expect("synced");
    drop(window);
    assert_eq!(pinned(&session), 0);
}

/// With all of the memory dirty, a window waits for nobody.
#[test]
fn a_window_of_a_full_session_is_memory_of_the_process() {
    let dir = here::directory();
    let session = session("windows-full", 8 << 20);
    let file = file_in(&session, dir.path());
    let views: Vec<_> = (0..64)
        .map(|block| {
            file.write_at(&bytes(block, BLOCK_BYTES), u64::from(block) * BLOCK)
                .expect("written");
            let at = u64::from(block) * BLOCK;
            file.view(at..at + BLOCK).expect("a view")
        })
        .collect();
    assert!(views.iter().any(forebay::View::is_copy));
    let mut window = session.window(MIB).expect("a window");
    assert_eq!(window.counts(), (4, 0, 0));
    window.fill(5);
    window.commit(&file, 0, 0..MIB).expect("given");
    assert_eq!(window.attached_bytes(), 0);
    assert!(read(&file, 0, MIB) == vec![5; MIB]);
    drop(views);
    window.refill().expect("refilled");
    assert_eq!(window.counts(), (0, 4, 0));
    assert!(window.iter().all(|&byte| byte == 5));
}

/// Memory that somebody else is about to give is waited for, a moment; then the window's thread gives it.
#[test]
fn a_window_waits_for_memory_that_is_coming() {
    let session = Session::join(config(&session_name("windows-coming"))).expect("a session");
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let shared = session.shared().clone();
    let giver = std::thread::spawn(move || {
        let me = shared.me().expect("a slot");
        tell.send(me.id.0).expect("told");
        let _ = ended.recv();
    });
    let superblock = session.shared().arena.superblock();
    assert_eq!(superblock.frames_free.load(Ordering::Relaxed), 0);
    let id = told.recv().expect("a number");
    superblock.giver.store(id, Ordering::Release);
    let window = session.window(MIB).expect("a window");
    assert_eq!(window.counts(), (0, 4, 0));
    drop(end);
    giver.join().expect("ended");
}

#[test]
fn what_cannot_take_frames_gets_copies_or_says_no() {
    let dir = here::directory();
    let session = session("windows-others", 32 << 20);
    let mut window = session.window(MIB).expect("a window");
    let content = bytes(4, MIB);
    window.copy_from_slice(&content);
    let open = |name: &str, options: &OpenOptions| {
        session
            .open_file(dir.path().join(name), options)
            .expect("a file")
    };
    // A file of the kernel's.
    let file = open("kernel", &options());
    file.to_kernel().expect("given");
    window.commit(&file, 0, 0..MIB).expect("written");
    assert!(read(&file, 0, MIB) == content);
    // One that appends.
    let file = open("appended", options().append(true));
    file.append(b"before").expect("appended");
    window.commit(&file, 0, 0..MIB).expect("appended");
    assert!(read(&file, 6, MIB) == content);
    // A hole.
    let file = open("hole", &options());
    file.write_at(&bytes(5, 4 * MIB), 0).expect("written");
    file.sync_all().expect("synced");
    file.punch(0, 4 << 20).expect("punched");
    window.commit(&file, BLOCK, 0..MIB).expect("written");
    assert!(read(&file, BLOCK, MIB) == content);
    // Another session's.
    let other = self::session("windows-other", 32 << 20);
    let file = other.open_file(dir.path().join("other"), &options());
    let file = file.expect("a file");
    window.commit(&file, 0, 0..MIB).expect("written");
    assert!(read(&file, 0, MIB) == content);
    assert_eq!(window.attached_bytes(), 0);
    // None that is only read.
    let file = open("kernel", OpenOptions::new().read(true));
    for range in [0..MIB, 5..5] {
        let refused = window.commit(&file, 0, range);
        assert_eq!(refused.expect_err("refused").errno(), libc::EBADF);
    }
    let backwards = std::ops::Range { start: 5, end: 4 };
    for range in [0..MIB + 1, backwards] {
        assert!(window.commit(&file, 0, range).is_err());
    }
    let file = open("nothing", &options());
    assert_eq!(window.commit(&file, 0, 5..5).expect("nothing"), 0);
    assert!(session.window(0).is_err());
    assert!(session.window(usize::MAX).is_err());
}

/// A child has nothing of its parent's windows, whose frames may be somebody else's by then.
#[test]
fn a_forked_child_has_no_windows() {
    let session = session("windows-forked", 32 << 20);
    let mut window = session.window(MIB).expect("a window");
    window.fill(3);
    // SAFETY: the child looks at its own copy, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let wrong = !window.is_empty() || window.detach().is_ok();
        drop(window);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(wrong)) };
    }
    let mut status = 0;
    // SAFETY: the target is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(pinned(&session), 4);
    assert!(window.iter().all(|&byte| byte == 3));
}

const HOLDER: &str = "TEST_WINDOW_HOLDER";

/// What [`a_killed_holder_leaves_what_it_has_committed`] starts: commits one piece after the other, and says so.
#[test]
#[ignore = "a part of another test"]
fn holder() {
    let Ok(spec) = std::env::var(HOLDER) else {
        return;
    };
    let (name, path) = spec.split_once(' ').expect("a session and a file");
    let session = Session::join(config(name)).expect("the session");
    let file = session.open_file(path, &options()).expect("the file");
    let mut window = session.window(2 * MIB).expect("a window");
    for piece in 0u32.. {
        fill(piece, 0, &mut window);
        let at = u64::from(piece % 8) * 2 * MIB as u64;
        window.commit(&file, at, 0..2 * MIB).expect("given");
        println!("@{piece} {}", window.attached_bytes());
        match piece % 3 {
            0 => window.detach().expect("detached"),
            1 => window.refill().expect("refilled"),
            _ => window.slide(0).expect("moved"),
        }
    }
}

fn start_holder(name: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env(HOLDER, format!("{name} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a holder")
}

#[test]
fn a_killed_holder_leaves_what_it_has_committed() {
    let mut dice = SplitMix64::new(forebay_model::fresh_seed());
    let session = session("windows-killed", 64 << 20);
    let name = session.shared().config.session.clone();
    for _ in 0..6 {
        let dir = here::directory();
        let path = dir.path().join("file");
        let file = file_in(&session, dir.path());
        let mut child = start_holder(&name, &path);
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let mut lines = out.lines().map(|line| line.expect("text"));
        let last = 8 + dice.below(30);
        let reached = lines.by_ref().find_map(|line| {
            let (piece, attached) = line.strip_prefix('@')?.split_once(' ')?;
            assert!(attached.parse::<u64>().expect("bytes") > 0);
            (piece.parse() == Ok(last)).then_some(())
        });
        reached.expect("it commits");
        child.kill().expect("killed");
        child.wait().expect("its end");
        let acknowledged = lines.filter(|line| line.starts_with('@'));
        let last = acknowledged.last().map_or(last, |line| {
            let piece = line[1..].split(' ').next().expect("a number");
            piece.parse().expect("a number")
        });
        // All that was acknowledged, but what the next was to replace.
        for piece in last - 6..=last {
            let mut expected = vec![0; 2 * MIB];
            fill(piece as u32, 0, &mut expected);
            let at = piece % 8 * 2 * MIB as u64;
            assert!(
                read(&file, at, 2 * MIB) == expected,
                "piece {piece} of {last}"
            );
        }
        let begun = Instant::now();
        while pinned(&session) != 0 {
            // The keeper does.
            let elapsed = begun.elapsed();
            assert!(elapsed < Duration::from_secs(60), "{}", pinned(&session));
            std::thread::sleep(Duration::from_millis(10));
        }
        file.close().expect("closed");
    }
}
