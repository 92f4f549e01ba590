//! Closes that leave what the file owes to the keeper: nobody can tell.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forebay::keeper::recover::recover;

use crate::deaths;
use crate::scene::{Scene, Teller, mtime_ns, mtime_of, now_ns, tell};
use crate::sys::*;

const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
/// Files of the loops, which are overwritten again and again: old bytes are there to be seen.
const NAMES: u32 = 5;

fn ctime_ns(meta: &Metadata) -> i128 {
    i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec())
}

/// Bytes of a number's file: up to 400,000 of them.
fn contents(number: u32) -> Vec<u8> {
    let len = 1 + number.wrapping_mul(2_654_435_761) as usize % 400_000;
    let mut bytes = pattern(number as u8, len);
    for (byte, mark) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = mark;
    }
    bytes
}

fn path_of(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("f{}", number % NAMES))
}

/// Writes a number's file in three parts, one of them over another, and closes it.
fn make(dir: &Path, number: u32) {
    let bytes = contents(number);
    let fd = open(&path_of(dir, number), NEW).expect("open");
    let middle = bytes.len() / 3;
    write(fd, &bytes[..middle]).expect("write");
    write(fd, &vec![0xee; bytes.len() - middle]).expect("write");
    pwrite(fd, &bytes[middle..], middle as i64).expect("write");
    close(fd).expect("close");
}

/// Makes files and waits for a word after each.
fn make_all(dir: &Path, count: u32) {
    for number in 0..count {
        let begun = now_ns();
        make(dir, number);
        said(number, begun, now_ns());
    }
}

/// Tells of a file, and waits for a word.
fn said(number: u32, begun: i128, closed: i128) {
    tell(format_args!("{number} {begun} {closed}"));
}

fn program_of(dir: &Path, number: u32) {
    let path = dir.join(format!("program{}", number % 3));
    let bytes = fs::read("/bin/true").expect("a program");
    let _ = fs::remove_file(&path);
    let made_executable = number.is_multiple_of(2);
    let mode = if made_executable { 0o644 } else { 0o755 };
    // SAFETY: a string of ours.
    let fd = unsafe { libc::open(c(&path).as_ptr(), NEW, mode) };
    assert_eq!(write(fd, &bytes), Ok(bytes.len()));
    close(fd).expect("close");
    if made_executable {
        let permissions = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, permissions).expect("a mode");
    }
    let status = Command::new(&path).status();
    assert!(status.expect("it can be executed").success());
}

/// Opens without waiting for the kernel: no lease may be in the way, unless a keeper that has had no time for a second was waited for.
fn open_at_once(path: &Path) -> i32 {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        match open(path, libc::O_RDONLY | libc::O_NONBLOCK) {
            Ok(fd) => return fd,
            Err(libc::EAGAIN) if asked.elapsed() >= Duration::from_secs(1) => {
                assert!(begun.elapsed() < Duration::from_secs(60), "a lease stays");
            }
            Err(errno) => panic!("a lease is in the way: {errno}"),
        }
    }
}

/// What programs of the session can see of a close that did not wait.
fn look_closely(dir: &Path, number: u32) {
    let path = path_of(dir, number);
    let begun = now_ns();
    make(dir, number);
    let closed = now_ns();
    let seen = fs::metadata(&path).expect("a file");
    assert_eq!(seen.len(), contents(number).len() as u64);
    // The kernel's clock for times is a coarse one.
    assert!(mtime_of(&seen) >= begun - 20_000_000 && mtime_of(&seen) <= closed);
    match number % 3 {
        0 => {
            let fd = open_at_once(&path);
            let bytes = contents(number);
            assert!(read(fd, bytes.len() + 1).expect("read") == bytes);
            let again = fs::metadata(&path).expect("a file");
            let times = (mtime_of(&again), ctime_ns(&again));
            assert_eq!(times, (mtime_of(&seen), ctime_ns(&seen)));
            close(fd).expect("close");
        }
        1 => {
            set_times(&path, 1_000_000_007);
            assert!(fs::read(&path).expect("a file") == contents(number));
            let again = fs::metadata(&path).expect("a file");
            assert_eq!(again.mtime(), 1_000_000_007);
        }
        _ => {
            let fd = open(&path, libc::O_RDWR | libc::O_APPEND).expect("open");
            write(fd, b"more").expect("write");
            close(fd).expect("close");
            let mut bytes = contents(number);
            bytes.extend(b"more");
            assert!(fs::read(&path).expect("a file") == bytes);
        }
    }
}

fn set_times(path: &Path, seconds: i64) {
    let time = libc::timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let times = [time, time];
    // SAFETY: a string and times of ours.
    let set = unsafe { libc::utimensat(libc::AT_FDCWD, c(path).as_ptr(), times.as_ptr(), 0) };
    assert_eq!(set, 0);
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let count = || argument.parse().expect("a count");
    match role {
        "leaves" => make_all(dir, count()),
        "leaves-for-ever" => (0..u32::MAX).for_each(|number| {
            make(dir, number);
            println!("@{number} 0 0");
        }),
        "leaves-programs" => (0..count()).for_each(|number| program_of(dir, number)),
        "ends" => (0..count()).for_each(|number| {
            // SAFETY: these end the child.
            let ended = in_child(|| unsafe {
                let fd = open(&path_of(dir, number), NEW).expect("open");
                write(fd, &contents(number)).expect("write");
                match number % 2 {
                    0 => libc::_exit(0),
                    _ => libc::exit(0),
                }
            });
            assert_eq!(ended, 0);
            said(number, 0, 0);
        }),
        "leaves-and-looks" => (0..count()).for_each(|number| look_closely(dir, number)),
        _ => return false,
    }
    true
}

/// A role that leaves every file to the keeper, however little it owes.
fn leaving(scene: &Scene, role: &str, count: u32) -> Command {
    let mut command = scene.role(role, &count.to_string());
    command.env("FOREBAY_CLOSE_BEHIND_BYTES", "1");
    command
}

fn closed_behind(scene: &Scene) -> u64 {
    scene
        .session
        .as_ref()
        .expect("a session")
        .stats()
        .closed_behind
}

struct Maker(Teller);

impl Maker {
    fn start(scene: &Scene, count: u32) -> Self {
        Self::of(leaving(scene, "leaves", count))
    }

    fn of(command: Command) -> Self {
        Maker(Teller::start(command))
    }

    /// The next file that has been closed, and the time before it was opened and after its close.
    fn next(&mut self) -> Option<(u32, i128, i128)> {
        self.0.next(|words| {
            let numbers: Vec<i128> = words.iter().filter_map(|n| n.parse().ok()).collect();
            let &[number, begun, closed] = &numbers[..] else {
                return None;
            };
            Some((number as u32, begun, closed))
        })
    }

    fn go_on(&mut self) {
        self.0.go_on();
    }
}

#[test]
fn outsiders_see_every_byte_right_after_the_close() {
    let scene = Scene::new("leaves", 0);
    let count = 2000;
    let mut maker = Maker::start(&scene, count);
    let mut seen = 0;
    while let Some((number, begun, closed)) = maker.next() {
        let path = path_of(scene.dir.path(), number);
        let wanted = contents(number);
        // Without opening it: the length is there, and so is the time.
        let before = fs::metadata(&path).expect("a file");
        assert_eq!(before.len(), wanted.len() as u64);
        assert!(fs::read(&path).expect("a file") == wanted, "file {number}");
        let after = mtime_ns(&path);
        assert!(
            (begun - 20_000_000..=closed).contains(&after),
            "{after} is not between {begun} and {closed}"
        );
        seen += 1;
        maker.go_on();
    }
    assert!(maker.0.program.wait().expect("an end").success());
    assert_eq!(seen, count);
    let behind = closed_behind(&scene);
    assert!(behind > u64::from(count) / 2, "{behind} of {count}");
}

#[test]
fn what_is_open_at_the_end_is_left_to_the_keeper_as_well() {
    let scene = Scene::new("ends", 0);
    let count = 200;
    let mut maker = Maker::of(leaving(&scene, "ends", count));
    let mut seen = 0;
    while let Some((number, _, _)) = maker.next() {
        let path = path_of(scene.dir.path(), number);
        assert!(
            fs::read(&path).expect("a file") == contents(number),
            "file {number}"
        );
        seen += 1;
        maker.go_on();
    }
    assert!(maker.0.program.wait().expect("an end").success());
    assert_eq!(seen, count);
    let behind = closed_behind(&scene);
    assert!(behind > u64::from(count) / 2, "{behind} of {count}");
}

#[test]
fn a_program_that_was_just_written_can_be_executed() {
    let mut scene = Scene::new("leaves-programs", 0);
    // By itself: what other tests fork here would have its descriptors for a moment, and what anybody can write to is not executed.
    let (mut keeper, arena) = keeper_of(&mut scene);
    let status = leaving(&scene, "leaves-programs", 100).status();
    assert!(status.expect("a program").success());
    let seen = forebay::session::look::look(&arena).expect("an arena");
    let stats = seen.expect("a session").stats().expect("counters");
    let behind = stats.closed_behind;
    assert!(behind >= 25, "{behind} of 50");
    end(&mut keeper);
    let config = crate::scene::config(&scene.name);
    recover(&arena, &config).expect("a recovery");
}

#[test]
fn programs_of_the_session_see_nothing_of_it() {
    let scene = Scene::new("leaves-and-looks", 0);
    let status = leaving(&scene, "leaves-and-looks", 300).status();
    let files = scene.session.as_ref().map(forebay::Session::files);
    assert!(status.expect("a program").success(), "{files:#?}");
    let behind = closed_behind(&scene);
    assert!(behind >= 100, "{behind} of 300");
}

#[test]
fn a_program_that_is_killed_after_the_close_loses_nothing() {
    for round in 0..20 {
        let mut scene = Scene::new("leaves-killed", 0);
        let mut maker = Maker::start(&scene, u32::MAX);
        let mut last = 0;
        for _ in 0..round + 1 {
            (last, _, _) = maker.next().expect("a close");
            maker.go_on();
        }
        maker.0.program.kill().expect("a kill");
        maker.0.program.wait().expect("an end");
        // The next one may have been begun over another name, not over this one.
        let path = path_of(scene.dir.path(), last);
        assert!(fs::read(path).expect("a file") == contents(last));
        finish(&mut scene);
    }
}

/// What the killed have left unfinished, a truncation perhaps, is for a recovery.
fn finish(scene: &mut Scene) {
    let place = scene.session.as_ref().expect("a session").place();
    let arena = place.expect("a place").path.expect("an arena");
    drop(scene.session.take());
    if arena.exists() {
        let config = crate::scene::config(&scene.name);
        recover(&arena, &config).expect("a recovery");
    }
}

/// A keeper in a process of its own, so that it can be killed.
fn keeper_of(scene: &mut Scene) -> (Child, PathBuf) {
    let place = scene.session.as_ref().expect("a session").place();
    let arena = place.expect("a place").path.expect("an arena");
    drop(scene.session.take());
    (deaths::keeper_process(&scene.name), arena)
}

fn end(program: &mut Child) {
    program.kill().expect("a kill");
    program.wait().expect("an end");
}

/// The contents of a file that was closed between two times, and that it looks as if nothing had happened since.
fn check(dir: &Path, (number, begun, closed): (u32, i128, i128)) {
    let path = path_of(dir, number);
    assert!(
        fs::read(&path).expect("a file") == contents(number),
        "file {number}"
    );
    let time = mtime_ns(&path);
    assert!(
        (begun - 20_000_000..=closed).contains(&time),
        "{time} is not between {begun} and {closed}"
    );
}

#[test]
fn everybody_is_killed_after_the_close_and_a_recovery_finishes() {
    for round in 0..12 {
        let mut scene = Scene::new("leaves-all-killed", 0);
        let (mut keeper, arena) = keeper_of(&mut scene);
        let mut maker = Maker::start(&scene, u32::MAX);
        let mut last = maker.next().expect("a close");
        for _ in 0..round {
            maker.go_on();
            last = maker.next().expect("a close");
        }
        end(&mut keeper);
        end(&mut maker.0.program);
        let put_back = match arena.exists() {
            true => deaths::recover_all(&arena, &scene.name),
            false => Vec::new(),
        };
        // Its time is nobody's to set where nobody can tell what is newer.
        match put_back.contains(&path_of(scene.dir.path(), last.0)) {
            true => check_last(scene.dir.path(), last.0, &put_back),
            false => check(scene.dir.path(), last),
        }
    }
}

#[test]
fn the_keeper_is_killed_after_the_close_and_the_next_one_finishes() {
    for round in 0..8 {
        let mut scene = Scene::new("leaves-keeper-killed", 0);
        let (mut keeper, _) = keeper_of(&mut scene);
        let mut maker = Maker::start(&scene, u32::MAX);
        let mut last = maker.next().expect("a close");
        for _ in 0..round {
            maker.go_on();
            last = maker.next().expect("a close");
        }
        end(&mut keeper);
        let config = crate::scene::config(&scene.name);
        let session = forebay::Session::open(config).expect("a session");
        assert!(session.settle_all().expect("a slot").is_empty());
        // Its time is the keeper's to set, or has been set by who settled.
        let begun = std::time::Instant::now();
        let is_finished = || {
            let files = session.files();
            files.iter().all(|file| file.owed_bytes == 0)
                && mtime_ns(&path_of(scene.dir.path(), last.0)) <= last.2
        };
        while !is_finished() && begun.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        check(scene.dir.path(), last);
        end(&mut maker.0.program);
        scene.session = Some(session);
    }
}

#[test]
fn who_has_the_file_open_sees_every_byte_after_the_close() {
    let scene = Scene::new("leaves-reader", 0);
    let watched = path_of(scene.dir.path(), 0);
    fs::write(&watched, b"old").expect("a file");
    let outsider = fs::File::open(&watched).expect("a file");
    let mut maker = Maker::start(&scene, 1);
    let (number, _, _) = maker.next().expect("a close");
    let wanted = contents(number);
    let mut bytes = vec![0; wanted.len()];
    std::os::unix::fs::FileExt::read_exact_at(&outsider, &mut bytes, 0).expect("bytes");
    assert!(bytes == wanted);
    assert_eq!(closed_behind(&scene), 0, "no lease is to be had");
    maker.go_on();
    assert!(maker.0.program.wait().expect("an end").success());
}

/// Files that are made without a pause, and how many have been closed when `kill` is to be called.
fn killed_in_the_middle(scene: &Scene, round: u32, kill: impl FnOnce(&mut Child)) -> u32 {
    let mut maker = Maker::of(leaving(scene, "leaves-for-ever", 0));
    maker.next().expect("a close");
    std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 1777));
    kill(&mut maker.0.program);
    let mut last = 0;
    while let Some((number, _, _)) = maker.next() {
        last = number;
    }
    last
}

/// What was closed last under each name is there, but for the one that was being made. `put_back`: what a recovery had
/// kept aside.
fn check_last(dir: &Path, last: u32, put_back: &[PathBuf]) {
    for number in (last + 2).saturating_sub(NAMES)..=last {
        let path = path_of(dir, number);
        let seen = fs::read(&path).expect("a file");
        let wanted = contents(number);
        let is_other = |(seen, wanted): (&u8, &u8)| seen != wanted;
        assert!(
            seen == wanted,
            "file {number} of {last}: {} bytes of {}, others from {:?}; {:?}; {put_back:?}",
            seen.len(),
            wanted.len(),
            seen.iter().zip(&wanted).position(is_other),
            fs::metadata(&path),
        );
    }
}

#[test]
fn a_program_that_is_killed_in_the_middle_of_closes_loses_none_of_them() {
    for round in 0..20 {
        let mut scene = Scene::new("leaves-killed-in", 0);
        let last = killed_in_the_middle(&scene, round, end);
        check_last(scene.dir.path(), last, &[]);
        finish(&mut scene);
    }
}

#[test]
fn everybody_is_killed_in_the_middle_of_closes_and_a_recovery_finishes() {
    for round in 0..20 {
        let mut scene = Scene::new("leaves-all-killed-in", 0);
        let (mut keeper, arena) = keeper_of(&mut scene);
        let last = killed_in_the_middle(&scene, round, |program| {
            end(&mut keeper);
            end(program);
        });
        let put_back = match arena.exists() {
            true => deaths::recover_all(&arena, &scene.name),
            false => Vec::new(),
        };
        check_last(scene.dir.path(), last, &put_back);
    }
}
