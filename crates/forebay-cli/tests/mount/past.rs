//! Files of a mounted store in a session, as programs under `forebay run` have them: their bytes are in the arena, and move between it and
//! the store past the kernel's cache.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay::config::Coherence;
use forebay::keeper::recover::{Saved, recover};
use forebay::session::adopt::find_arena;
use forebay::sys::{extents, handle};
use forebay::{Config, Error, OpenOptions, Session};

use rustix::process::Signal;

use crate::here::skipped;
use crate::place::{Process, is_managed};
use crate::scene::{Scene, wait_until};

/// A session of this process's own, and its keeper.
fn session(scene: &Scene) -> Session {
    Session::open(config(scene.place.arenas.path())).expect("a session")
}

fn config(arenas: &Path) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.session = "past".into();
    config.arena_dir = Some(arenas.to_owned());
    config.memory = 64 << 20;
    config
}

fn open(session: &Session, path: &Path) -> forebay::File {
    let mut options = OpenOptions::new();
    let file = session.open_file(path, options.read(true).write(true).create(true));
    file.expect("a file")
}

#[test]
fn files_of_a_store_are_in_the_session() {
    let Some(mut scene) = Scene::begin_store("past", "64MiB", &[]) else {
        return;
    };
    let path = scene.point.join("file");
    let session = session(&scene);
    let ours = open(&session, &path);
    assert!(ours.kernel_reason().is_none(), "{:?}", ours.kernel_reason());
    for round in 0..2000u64 {
        ours.write_at(&[round as u8; 700], round * 1000)
            .expect("written");
    }
    ours.set_len(1_999_000).expect("cut");
    let mut seen = [1; 1000];
    assert_eq!(ours.read_at(&mut seen, 1_000_000).expect("read"), 1000);
    assert!(seen[..700] == [232; 700] && seen[700..] == [0; 300]);
    let stats = session.stats();
    assert!(stats.scrap_bytes >= 1_000_000, "{stats:?}");
    // A program that is not of the session finds everything there.
    let cat = Command::new("cat").arg(&path).output().expect("cat runs");
    let other = cat.stdout;
    assert_eq!(other.len(), 1_999_000);
    assert!((0..1999).all(|at| other[at * 1000..][..700] == [at as u8; 700]));
    ours.sync_all().expect("synced");
    ours.close().expect("closed");
    // What was synced is the store's, however its process ends.
    scene.process.take().expect("mounted").kill();
    drop(session);
    assert_eq!(scene.run(&["umount"], &scene.point).code, 0);
    scene.await_store();
    scene.mount(&[]);
    assert!(fs::read(&path).expect("read") == other);
    scene.end();
}

/// The session syncs a store's file and looks at it by one request: it tells what `stat` tells, and what it has
/// synced outlives the mount's process.
#[test]
fn one_request_syncs_a_stores_file_and_tells_what_it_is_like() {
    let Some(mut scene) = Scene::begin_store("past-synced", "32MiB", &["--flush-interval", "1h"])
    else {
        return;
    };
    if !is_managed(&scene.point) {
        return;
    }
    let path = scene.point.join("file");
    fs::write(&path, [7; 9000]).expect("written");
    fs::hard_link(&path, scene.point.join("other")).expect("linked");
    let reader = File::open(&path).expect("opened");
    let told = extents::sync_in_store(reader.as_fd()).expect("synced");
    let stat = reader.metadata().expect("a file");
    let ns = |seconds: i64, ns: i64| (seconds * 1_000_000_000 + ns) as u64;
    let changed = ns(stat.ctime(), stat.ctime_nsec());
    let modified = ns(stat.mtime(), stat.mtime_nsec());
    assert_eq!(told, [9000, stat.blocks() * 512, modified, changed, 2]);
    fs::write(scene.point.join("later"), b"unsynced").expect("written");
    drop(reader);
    scene.process.take().expect("mounted").kill();
    assert_eq!(scene.run(&["umount"], &scene.point).code, 0);
    scene.await_store();
    scene.mount(&[]);
    assert_eq!(
        fs::read(scene.point.join("other")).expect("read"),
        [7; 9000]
    );
    assert!(!scene.point.join("later").exists(), "it was not synced");
    // Elsewhere nobody knows the request.
    let elsewhere = tempfile::tempfile().expect("a file");
    let unknown = extents::sync_in_store(elsewhere.as_fd()).expect_err("no store");
    assert_eq!(unknown.raw_os_error(), Some(libc::ENOTTY));
    scene.end();
}

#[test]
fn numbers_that_are_given_again_are_other_files() {
    let Some(scene) = Scene::begin_store("numbers", "16MiB", &[]) else {
        return;
    };
    if !is_managed(&scene.point) {
        return;
    }
    let path = scene.point.join("file");
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        let file = File::create_new(&path).expect("made");
        assert!(seen.insert(handle::hash(file.as_fd()).expect("a handle")));
        fs::remove_file(&path).expect("removed");
        drop(file);
    }
    scene.end();
}

#[test]
fn a_full_store_is_an_error_of_the_write_that_asks_for_more() {
    let Some(scene) = Scene::begin_store("past-full", "16MiB", &[]) else {
        return;
    };
    let path = scene.point.join("file");
    let session = session(&scene);
    let ours = open(&session, &path);
    let bytes = [5; 100_000];
    let mut len = 0;
    let error = loop {
        match ours.write_at(&bytes, len) {
            Ok(n) => len += n as u64,
            Err(error) => break error,
        }
        assert!(len < 16 << 20, "more than there is");
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(len > 8 << 20, "{len}");
    ours.sync_all().expect("what was written has room");
    ours.close().expect("closed");
    assert!(fs::read(&path).expect("read") == vec![5; len as usize]);
    drop(session);
    scene.end();
}

#[test]
fn the_death_of_a_stores_mount_is_an_error_that_syncs_tell() {
    let Some(mut scene) = Scene::begin_store("past-dead", "32MiB", &[]) else {
        return;
    };
    let session = session(&scene);
    let ours = open(&session, &scene.point.join("file"));
    ours.write_at(&[1; 5000], 0).expect("written");
    ours.sync_all().expect("synced");
    ours.write_at(&[2; 5000], 0).expect("written");
    scene.process.take().expect("mounted").kill();
    let error = ours.sync_all().expect_err("nobody takes the bytes");
    assert!(matches!(error, Error::Device { .. }), "{error:?}");
    let _ = ours.close();
    drop(session);
    wait_until("the dead mount can be taken away", || {
        scene.run(&["umount"], &scene.point).code == 0
    });
    scene.await_store();
    scene.mount(&[]);
    let back = fs::read(scene.point.join("file")).expect("read");
    assert_eq!(back, [1; 5000]);
    scene.end();
}

/// What a keeper in a process of its own is told of.
const FILE: &str = "FOREBAY_TEST_PAST_FILE";
const ARENAS: &str = "FOREBAY_TEST_PAST_ARENAS";

/// A session's configuration in which nothing is written before it must be, and no other process has any of its files open.
fn lazy(arenas: &Path) -> Config {
    let mut config = config(arenas);
    (config.flush_after, config.flush_interval) = (None, None);
    config.coherence = Coherence::Interval;
    config
}

/// A session's keeper in a process of its own, which has made a file, and then owes bytes of it.
fn keeper(scene: &Scene, path: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "past::the_keeper", "--ignored", "--nocapture"]);
    command
        .env(FILE, path)
        .env(ARENAS, scene.place.arenas.path());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a keeper");
    let said = BufReader::new(child.stdout.take().expect("taken")).lines();
    let owes = |line: String| line.contains("owes");
    assert!(said.map_while(Result::ok).any(owes), "it owes nothing");
    child
}

#[test]
#[ignore = "the program that another test starts"]
fn the_keeper() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let arenas = PathBuf::from(std::env::var_os(ARENAS).expect("a directory"));
    let session = Session::open(lazy(&arenas)).expect("a session");
    let file = open(&session, Path::new(&path));
    file.write_at(&[1; 5000], 0).expect("written");
    file.sync_all().expect("synced");
    file.write_at(&[2; 5000], 0).expect("written");
    println!("owes");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_dead_stores_numbers_are_another_stores_and_nothing_is_dropped() {
    let Some(mut scene) = Scene::begin_store("past-number", "16MiB", &[]) else {
        return;
    };
    let path = scene.point.join("file");
    let mut keeper = keeper(&scene, &path);
    let arenas = scene.place.arenas.path().to_owned();
    let arena = find_arena(&lazy(&arenas)).expect("an arena");
    let joined = Session::join_living(&arena, lazy(&arenas)).expect("a session");
    let session = joined.expect("it lives");
    let numbers = |path: &Path| {
        let seen = fs::metadata(path).expect("a file");
        (seen.dev(), seen.ino())
    };
    let dead = numbers(&path);
    scene.process.take().expect("mounted").kill();
    keeper.kill().expect("killed");
    keeper.wait().expect("ended");
    wait_until("the dead mount can be taken away", || {
        scene.run(&["umount"], &scene.point).code == 0
    });
    scene.await_store();
    fs::remove_file(&scene.store).expect("removed");
    let made = ["pmem", "create", "--sparse", "--size", "16MiB"];
    assert_eq!(scene.run(&made, &scene.store).code, 0);
    // Mounts of other tests may have the number meanwhile.
    loop {
        scene.mount(&[]);
        fs::write(&path, "another store's").expect("written");
        if numbers(&path) == dead {
            break;
        }
        scene.umount();
        scene.await_end(0);
        std::thread::sleep(Duration::from_millis(200));
    }
    let other = open(&session, &path);
    assert!(
        other.kernel_reason().is_none(),
        "{:?}",
        other.kernel_reason()
    );
    let mut seen = [0; 100];
    let len = other.read_at(&mut seen, 0).expect("read");
    assert_eq!(&seen[..len], b"another store's");
    other.write_at(b"A", 0).expect("written");
    other.sync_all().expect("synced");
    other.close().expect("closed");
    assert_eq!(session.stats().files_vanished, 0);
    drop(session);
    let mut config = lazy(&arenas);
    config.kept_dir = scene.place.file("kept");
    let report = recover(&arena, &config).expect("recovered");
    let [Saved::Kept { kept, .. }] = &report.files[..] else {
        panic!("{report:?}");
    };
    assert!(fs::read(kept).expect("kept")[..5000] == [2; 5000]);
    assert_eq!(fs::read(&path).expect("read"), b"Another store's");
    scene.end();
}

/// A process that is stopped until this is dropped.
struct Stopped<'a>(&'a mut Process);

impl<'a> Stopped<'a> {
    fn new(process: &'a mut Process) -> Self {
        process.signal(Signal::STOP);
        Stopped(process)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

#[test]
fn a_stopped_mount_holds_up_nobody_who_comes_to_other_files() {
    let Some(mut scene) = Scene::begin_store("past-stopped", "64MiB", &[]) else {
        return;
    };
    if !is_managed(scene.place.files.path()) {
        return;
    }
    let mut config = lazy(scene.place.arenas.path());
    config.coherence = Coherence::Strict;
    let session = match Session::open(config) {
        Ok(session) => session,
        Err(error) => return skipped(error),
    };
    let paths = [
        scene.point.join("file"),
        scene.place.file("file"),
        scene.place.file("own"),
    ];
    let files = paths.each_ref().map(|path| {
        let file = open(&session, path);
        assert!(file.kernel_reason().is_none(), "{:?}", file.kernel_reason());
        file.write_at(&[1; 5000], 0).expect("written");
        file.sync_all().expect("synced");
        file.write_at(&[2; 5000], 0).expect("written");
        file
    });
    let cat = |path: &Path| {
        let mut command = Command::new("cat");
        let child = command.arg(path).stdout(Stdio::piped()).spawn();
        child.expect("cat runs")
    };
    let [stuck, free, _] = &paths;
    let stopped = Stopped::new(scene.process.as_mut().expect("mounted"));
    let others: Vec<_> = (0..3).map(|_| cat(stuck)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let seen = cat(free).wait_with_output().expect("an end");
    // Nor do programs of the session wait.
    let synced = files[2].write_at(&[3; 5000], 0);
    let synced = synced.and_then(|_| files[2].sync_all());
    let took = begun.elapsed();
    drop(stopped);
    synced.expect("synced");
    assert!(seen.stdout == [2; 5000], "it is not what was written");
    assert!(took < Duration::from_secs(30), "{took:?}");
    for other in others {
        let seen = other.wait_with_output().expect("an end");
        assert!(seen.stdout == [2; 5000], "it is not what was written");
    }
    for file in files {
        file.close().expect("closed");
    }
    drop(session);
    scene.end();
}

#[test]
fn a_directory_of_a_store_that_is_mounted_is_no_store() {
    let Some(scene) = Scene::begin_store("past-through", "32MiB", &[]) else {
        return;
    };
    let mut other = Scene::unmounted("past-through-to");
    fs::remove_dir(&other.directory).expect("removed");
    other.directory = scene.point.join("below");
    fs::create_dir(&other.directory).expect("made");
    other.mount(&[]);
    let file = tempfile::tempfile_in(&other.point).expect("a file");
    let reason = forebay::device::RealFile::reopen(file.as_fd()).err();
    assert_eq!(reason, Some(forebay::device::KernelReason::Fuse));
    drop(file);
    other.end();
    scene.end();
}
