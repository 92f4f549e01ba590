//! One file, by the mount and by programs of its session.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay::{Config, OpenOptions, Session};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::process::{Pid, Signal, kill_process};

use crate::place::is_managed;
use crate::scene::{Scene, wait_until};

/// This process in the mount's session, as a program under `forebay run` is.
fn member(scene: &Scene) -> Session {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.session = scene.place.session.clone();
    config.arena_dir = Some(scene.place.arenas.path().to_owned());
    config.close_behind_bytes = 1;
    Session::join(config).expect("the session")
}

fn open(session: &Session, path: &Path) -> forebay::File {
    let mut options = OpenOptions::new();
    let file = session.open_file(path, options.read(true).write(true).create(true));
    file.expect("a file")
}

#[test]
fn bytes_are_the_same_at_once() {
    let Some(scene) = Scene::begin("same", &["--believe", "0"]) else {
        return;
    };
    if !is_managed(&scene.directory) {
        return;
    }
    let session = member(&scene);
    let (path, there) = scene.both("file");
    let ours = open(&session, &there);
    let by_mount = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opened");
    for round in 0..200u64 {
        let (bytes, other) = ([round as u8; 700], [!(round as u8); 300]);
        ours.write_at(&bytes, round * 1000).expect("written");
        let mut seen = [0; 700];
        by_mount
            .read_exact_at(&mut seen, round * 1000)
            .expect("read");
        assert_eq!(seen, bytes, "round {round}");
        assert_eq!(
            by_mount.metadata().expect("known").len(),
            round * 1000 + 700
        );
        by_mount
            .write_all_at(&other, round * 1000 + 700)
            .expect("written");
        let mut seen = [0; 300];
        assert_eq!(
            ours.read_at(&mut seen, round * 1000 + 700).expect("read"),
            300
        );
        assert_eq!(seen, other, "round {round}");
        assert_eq!(ours.len().expect("known"), (round + 1) * 1000);
    }
    ours.set_len(10).expect("set");
    assert_eq!(fs::metadata(&path).expect("known").len(), 10);
    assert_eq!(by_mount.read_at(&mut [0; 20], 0).expect("read"), 10);
    assert!(ours.kernel_reason().is_none(), "{:?}", ours.kernel_reason());
    ours.close().expect("closed");
    drop(by_mount);
    drop(session);
    scene.end();
}

#[test]
fn appends_by_both_are_whole() {
    let Some(scene) = Scene::begin("both", &[]) else {
        return;
    };
    let session = member(&scene);
    let (path, there) = scene.both("log");
    fs::write(&path, "").expect("made");
    let ours = open(&session, &there);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let mut by_mount = File::options().append(true).open(&path).expect("opened");
            for number in 0..300 {
                by_mount
                    .write_all(format!("mount {number:05}\n").as_bytes())
                    .expect("written");
            }
        });
        for number in 0..300 {
            ours.append(format!("other {number:05}\n").as_bytes())
                .expect("written");
        }
    });
    let text = fs::read_to_string(&path).expect("read");
    for who in ["mount", "other"] {
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(who)).collect();
        let wanted: Vec<_> = (0..300)
            .map(|number| format!("{who} {number:05}"))
            .collect();
        assert_eq!(lines, wanted);
    }
    ours.close().expect("closed");
    drop(session);
    scene.end();
}

#[test]
fn what_is_closed_is_the_directorys() {
    let Some(scene) = Scene::begin("outside", &[]) else {
        return;
    };
    let (path, there) = scene.both("file");
    for round in 1..30usize {
        fs::write(&path, vec![round as u8; round * 3000]).expect("written");
        assert!(
            fs::read(&there).expect("read") == vec![round as u8; round * 3000],
            "round {round}"
        );
        // And the other way round, where nobody has the file open.
        let (path, there) = scene.both(&format!("file {round}"));
        fs::write(&there, vec![!(round as u8); round * 2000]).expect("written");
        assert!(
            fs::read(&path).expect("read") == vec![!(round as u8); round * 2000],
            "round {round}"
        );
    }
    scene.end();
}

/// Whether the keeper is still at a file whose close did not wait.
fn is_leased(session: &Session) -> bool {
    let superblock = session.shared().arena.superblock();
    superblock.leased.load(Ordering::Acquire) != 0
}

/// Writes a file and closes it as a program under `forebay run` does, which leaves it to the keeper.
fn leave(session: &Session, path: &Path, bytes: &[u8]) {
    let file = forebay::sys::file::open(path, libc::O_RDWR | libc::O_CREAT, 0o666);
    let file = file.expect("opened");
    let Ok(inode) = session.adopt(file.as_fd(), true, |fd| fd) else {
        panic!("it is not managed");
    };
    let me = session.shared().me().expect("a slot");
    let seen = AtomicU32::new(inode.error_sequence());
    // SAFETY: a slice of the caller's: initialised, it lives until this returns, and nobody writes it meanwhile.
    let written = unsafe { inode.write_at(me, bytes.as_ptr(), bytes.len(), 0, true) };
    assert_eq!(written.ok(), Some(bytes.len()));
    match inode.prepare_to_leave(me, &seen) {
        Some(prepared) => {
            drop(file);
            inode.leave(me, &seen, &prepared).expect("left");
        }
        None => inode.close(me, &seen).expect("closed"),
    }
}

#[test]
fn times_that_are_set_after_a_close_stay() {
    let Some(scene) = Scene::begin("left", &["--believe", "0"]) else {
        return;
    };
    if !is_managed(&scene.directory) {
        return;
    }
    let session = member(&scene);
    let keeper = scene.place.stat()["members"]["keeper"].as_u64();
    let keeper = Pid::from_raw(keeper.expect("a keeper") as i32).expect("a number");
    let bytes = vec![5; 8 << 20];
    // The keeper is stopped before it has written what a close has left to it.
    let caught = (0..200).find(|number| {
        leave(&session, &scene.directory.join(number.to_string()), &bytes);
        kill_process(keeper, Signal::STOP).expect("stopped");
        if !is_leased(&session) {
            kill_process(keeper, Signal::CONT).expect("it goes on");
        }
        is_leased(&session)
    });
    let (path, there) = scene.both(&caught.expect("a lease").to_string());
    let (tv_sec, tv_nsec) = (1_000_000_000, 7);
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let set = rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty());
    kill_process(keeper, Signal::CONT).expect("it goes on");
    set.expect("set");
    wait_until("it is written", || {
        !is_leased(&session) && session.stats().owed_bytes == 0
    });
    for path in [&path, &there] {
        let meta = fs::metadata(path).expect("known");
        let modified = (meta.mtime(), meta.mtime_nsec());
        assert_eq!(modified, (tv_sec, tv_nsec), "{path:?}");
    }
    assert!(fs::read(&there).expect("read") == bytes);
    drop(session);
    scene.end();
}
