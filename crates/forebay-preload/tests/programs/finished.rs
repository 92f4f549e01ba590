//! Times that a program hears of by the descriptor which it writes a small file with: its close leaves them as they are.

use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::config::Coherence;
use forebay::member::table;
use forebay::sys::liveness;

use crate::outsiders::{LONG, Member, strict};
use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 100_000;
/// As many bytes, in whole pages.
const WHOLE: usize = LEN.next_multiple_of(4096);
/// Longer than a tick of the clock that files get their times from.
const LATER: Duration = Duration::from_millis(40);
const EMPTY: i32 = libc::AT_EMPTY_PATH;

/// Modification and change, seconds and nanoseconds.
type Times = [(i64, i64); 2];

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "final-times" => final_times(dir, argument),
        "asks-beside-a-writer" => asks_beside_a_writer(dir),
        _ => return false,
    }
    true
}

/// What a program does with a file after its first write.
type GoOn = fn(i32);

/// By a descriptor, as `how` says.
fn times_of(fd: i32, how: &str) -> Times {
    let (mut stat, mut extended) = (MaybeUninit::uninit(), MaybeUninit::<libc::statx>::uninit());
    let empty = c"".as_ptr();
    // SAFETY: the targets are ours, and what a call has filled in is read.
    unsafe {
        match how {
            "fstat" => assert_eq!(libc::fstat(fd, stat.as_mut_ptr()), 0),
            "fstatat" => assert_eq!(libc::fstatat(fd, empty, stat.as_mut_ptr(), EMPTY), 0),
            _ => {
                let mask = libc::STATX_BASIC_STATS;
                assert_eq!(
                    libc::statx(fd, empty, EMPTY, mask, extended.as_mut_ptr()),
                    0
                );
                let found = extended.assume_init();
                let time = |time: libc::statx_timestamp| (time.tv_sec, i64::from(time.tv_nsec));
                return [time(found.stx_mtime), time(found.stx_ctime)];
            }
        }
        let found = stat.assume_init();
        [
            (found.st_mtime, found.st_mtime_nsec),
            (found.st_ctime, found.st_ctime_nsec),
        ]
    }
}

fn times_at(path: &Path) -> Times {
    let found = std::fs::metadata(path).expect("a file");
    [
        (found.mtime(), found.mtime_nsec()),
        (found.ctime(), found.ctime_nsec()),
    ]
}

/// Writes files in many ways, asks for the times of each, and once more after its close; says which of them have changed. `argument`: by which call.
fn final_times(dir: &Path, how: &str) {
    let ways: [(&str, GoOn); 6] = [
        ("written", |_| {}),
        ("appended", |fd| {
            assert_eq!(write(fd, &pattern(2, 777)), Ok(777));
        }),
        ("holey", |fd| {
            assert_eq!(pwrite(fd, &pattern(2, LEN), 7 * LEN as i64), Ok(LEN));
        }),
        // To a page's end: where the file goes on in the middle of one, the rest of that page would have to be read.
        ("grown", |fd| {
            assert_eq!(write(fd, &pattern(2, WHOLE - LEN)), Ok(WHOLE - LEN));
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::ftruncate(fd, 5 * LEN as i64) }, 0);
        }),
        // SAFETY: takes no memory.
        ("synced", |fd| assert_eq!(unsafe { libc::fsync(fd) }, 0)),
        ("asked", |fd| {
            times_of(fd, "fstat");
            assert_eq!(write(fd, &pattern(3, LEN)), Ok(LEN));
        }),
    ];
    for (name, go_on) in ways {
        let path = dir.join(name);
        let appends = if name == "appended" {
            libc::O_APPEND
        } else {
            0
        };
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT | appends).expect("open");
        assert_eq!(write(fd, &pattern(1, LEN)), Ok(LEN));
        go_on(fd);
        std::thread::sleep(LATER);
        let told = times_of(fd, how);
        std::thread::sleep(LATER);
        close(fd).expect("close");
        let later = times_at(&path);
        if told[0] != later[0] {
            println!("@{name}: modified");
        }
        if told[1] != later[1] {
            println!("@{name}: changed");
        }
    }
}

/// What has been said of times that did not stay.
fn changes(said: &str) -> Vec<&str> {
    let told = said.lines().filter_map(|line| line.split_once('@'));
    told.map(|(_, what)| what).collect()
}

#[test]
fn times_that_a_writer_is_told_stay_after_its_close() {
    let Some(scene) = strict("final") else { return };
    for how in ["fstat", "fstatat", "statx"] {
        let said = scene.play("final-times", how);
        assert_eq!(changes(&said), Vec::<&str>::new(), "by {how}");
        for name in ["written", "appended", "holey", "grown", "synced", "asked"] {
            let bytes = std::fs::read(scene.path(name)).expect("a file");
            assert!(bytes.starts_with(&pattern(1, LEN)), "{name}");
            std::fs::remove_file(scene.path(name)).expect("removed");
        }
    }
    assert!(scene.bytes_to_memory() >= 3 * 6 * LEN as u64);
}

/// Where outsiders are not held up space beyond the end is given back by the close alone, which is a change of the file, and not of its bytes.
#[test]
fn without_a_guard_the_time_of_modification_stays() {
    let scene = Scene::with("final-open", 0, |config| {
        config.coherence = Coherence::Close;
    });
    let said = scene.play("final-times", "fstat");
    let is_modified = |what: &&str| what.ends_with("modified");
    assert_eq!(changes(&said).into_iter().find(is_modified), None);
}

/// Pages that a file owes.
fn owed(scene: &Scene, name: &str) -> u64 {
    let found = std::fs::metadata(scene.path(name)).expect("a file");
    let arena = &scene.session.as_ref().expect("a session").shared().arena;
    let id = table::find(arena, found.dev(), found.ino()).expect("a managed file");
    arena
        .file_unchecked(id)
        .owed_pages
        .load(forebay::sync::Ordering::Acquire)
}

/// The same call by a program that only reads, and by one that writes much, or asks again and again, writes nothing.
#[test]
fn only_the_writer_of_a_small_file_has_it_written_by_a_question() {
    let scene = Scene::new("final-asked", 0);
    let (mut writer, mut reader) = (Member::of(&scene), Member::of(&scene));
    writer.does("open small");
    writer.does(&format!("write 1 {LEN}"));
    reader.does("look small");
    assert_eq!(reader.does("size"), LEN.to_string());
    assert_ne!(owed(&scene, "small"), 0, "it only reads");
    for turn in 1..=4 {
        assert_eq!(writer.does("size"), (turn * LEN).to_string());
        assert_eq!(owed(&scene, "small"), 0, "turn {turn}");
        writer.does(&format!("write 1 {LEN}"));
    }
    assert_eq!(writer.does("size"), (5 * LEN).to_string());
    assert_ne!(owed(&scene, "small"), 0, "it has asked often enough");
    writer.does("close");
    writer.does("open large");
    for _ in 0..11 {
        writer.does(&format!("write 1 {LEN}"));
    }
    assert_eq!(writer.does("size"), (11 * LEN).to_string());
    assert_ne!(owed(&scene, "large"), 0, "it is large");
    reader.ends();
    writer.ends();
    let bytes = std::fs::read(scene.path("small")).expect("a file");
    assert!(bytes.len() == 5 * LEN && bytes.chunks(LEN).all(|part| part == pattern(1, LEN)));
}

/// Asks for the times of files that another thread writes without a pause, again and again.
fn asks_beside_a_writer(dir: &Path) {
    const PIECE: usize = 64 * 1024;
    let path = dir.join("a");
    for turn in 0..60 {
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).expect("open");
        let bytes = pattern(turn, PIECE);
        assert_eq!(write(fd, &bytes), Ok(PIECE));
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in (0..32)
                    .cycle()
                    .take_while(|_| !enough.load(Ordering::Relaxed))
                {
                    assert_eq!(pwrite(fd, &bytes, at * PIECE as i64), Ok(PIECE));
                }
            });
            for _ in 0..40 {
                let begun = Instant::now();
                times_of(fd, "fstat");
                assert!(begun.elapsed() < LONG, "turn {turn}");
            }
            enough.store(true, Ordering::Relaxed);
        });
        let len = size_of(fd) as usize;
        for at in (0..len).step_by(PIECE) {
            let got = pread(fd, PIECE, at as i64).expect("read");
            assert!(got == bytes, "turn {turn} at {at}");
        }
        close(fd).expect("close");
        assert!(
            std::fs::read(&path)
                .expect("a file")
                .chunks(PIECE)
                .all(|part| part == bytes)
        );
    }
}

#[test]
fn a_question_beside_a_writer_ends() {
    let scene = Scene::new("final-beside", 0);
    scene.play("asks-beside-a-writer", "");
}

/// Whether a thread of a process is in a `read` of its input.
fn awaits_input(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    let mut calls = threads.filter_map(|thread| {
        let place = thread.ok()?.path().join("syscall");
        std::fs::read_to_string(place).ok()
    });
    let awaits = format!("{} 0x0 ", libc::SYS_read);
    calls.any(|call| call.starts_with(&awaits))
}

/// Stopped while it waits for its next order: it has no lock.
#[test]
fn a_question_waits_for_no_program_that_is_stopped() {
    let Some(scene) = strict("final-stopped") else {
        return;
    };
    let (mut asks, mut stops) = (Member::of(&scene), Member::of(&scene));
    for turn in 0..5 {
        let name = format!("f{turn}");
        stops.does(&format!("open {name}"));
        stops.does(&format!("write {turn} {LEN}"));
        asks.does(&format!("open {name}"));
        asks.does(&format!("write {turn} {LEN}"));
        crate::outsiders::in_the_end("it waits", || awaits_input(stops.process()));
        let process = stops.process() as i32;
        // SAFETY: takes no memory; a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(process, libc::SIGSTOP) }, 0);
        crate::outsiders::in_the_end("it is stopped", || liveness::is_stopped(stops.process()));
        let begun = Instant::now();
        assert_eq!(asks.does("size"), LEN.to_string());
        let took = begun.elapsed();
        let left = owed(&scene, &name);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(process, libc::SIGCONT) }, 0);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(left, 0);
        asks.does("close");
        stops.does("close");
    }
    asks.ends();
    stops.ends();
}
