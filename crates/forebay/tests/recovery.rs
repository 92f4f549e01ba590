//! What recovery may write, what it must keep aside, and what it does with arenas that are none.
//!
//! A worker without a keeper writes and is killed, so that its bytes are in the arena alone; then somebody does something
//! to the file or to the arena, and the arena is recovered.
#![cfg(feature = "sim")]

mod common;
mod disks;
mod here;
mod workers;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use disks::{Disk, Tmpfs};
use forebay::ids::{FileId, ThreadId};
use forebay::keeper::recover::{Report, Saved, recover};
use forebay::memory::arena::Arena;
use forebay::memory::files::{CLOSING, EXCEEDING, FileEntry, LIVE, TRUNCATING};
use forebay::memory::mapping::Mapping;
use forebay::sim::faults::{self, Call};
use forebay::{Config, Error, OpenOptions, Session};
use forebay_model::{Op, SplitMix64, fill};
use workers::{Spec, Work, Worker, arena_path, bytes_of, config, session_name};

/// Bytes that the dead session owes: the first run is longer than the file was.
const RUNS: [(u64, u32, u32); 3] = [(0, 5000, 1), (20_000, 9000, 2), (70_001, 3, 3)];
const OLD_LEN: usize = 64 * 1024;

/// A session whose only process was killed with bytes owed to one file.
struct Scene {
    config: Config,
    arena: PathBuf,
    file: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Scene {
    fn new() -> Scene {
        let dir = here::directory();
        let mut scene = Scene::in_dir(dir.path());
        scene._dir = Some(dir);
        scene.begin()
    }

    fn in_dir(dir: &Path) -> Scene {
        let config = config(&session_name("recover"));
        Scene {
            arena: arena_path(&config),
            config,
            file: dir.join("file-0"),
            _dir: None,
        }
    }

    /// A program writes 5,000 bytes to the file, syncs them and is killed.
    fn write_and_die(&self) {
        let dir = self.file.parent().expect("a directory");
        let work = Work::Commands { files: 1 };
        let spec = Spec::new(&self.config.session, dir, false, work);
        let mut worker = Worker::ready(&spec);
        let (file, handle) = (0, 0);
        worker.run(&Op::Write {
            file,
            handle,
            offset: 0,
            len: 5000,
            seed: 1,
        });
        worker.run(&Op::SyncAll { file, handle });
        worker.kill();
        worker.end().assert_good_or_killed();
    }

    fn begin(self) -> Scene {
        fs::write(&self.file, vec![7; OLD_LEN]).expect("a file");
        let dir = self.file.parent().expect("a directory").to_owned();
        let spec = Spec::new(
            &self.config.session,
            &dir,
            false,
            Work::Commands { files: 1 },
        );
        let mut worker = Worker::ready(&spec);
        for (offset, len, seed) in RUNS {
            let op = Op::Write {
                file: 0,
                handle: 0,
                offset,
                len,
                seed,
            };
            assert_eq!(worker.run(&op), format!("{len} bytes written"));
        }
        worker.kill();
        worker.end().assert_good_or_killed();
        self
    }

    fn recover(&self) -> Report {
        recover(&self.arena, &self.config).expect("a report")
    }

    /// Everything is in the file.
    fn assert_written(&self, report: &Report) {
        assert!(
            matches!(report.files[..], [Saved::Written { .. }]),
            "{report:?}"
        );
        assert!(report.removed && !self.arena.exists());
        let bytes = fs::read(&self.file).expect("the file");
        assert_eq!(bytes, self.expected());
    }

    /// What the session's programs saw.
    fn expected(&self) -> Vec<u8> {
        let mut bytes = vec![7; OLD_LEN];
        bytes.resize(70_004, 0);
        for (offset, len, seed) in RUNS {
            fill(seed, offset, &mut bytes[offset as usize..][..len as usize]);
        }
        bytes
    }

    /// Nothing is written; everything that was acknowledged lies aside, with a note.
    fn assert_kept(&self, report: &Report, why: &str) {
        let [
            Saved::Kept {
                path,
                kept,
                reason,
                bytes,
            },
        ] = &report.files[..]
        else {
            panic!("{report:?}");
        };
        assert_eq!(path, &self.file);
        assert!(reason.contains(why), "{reason}");
        assert!(report.removed && !self.arena.exists());
        assert!(kept.starts_with(&self.config.kept_dir));
        assert_eq!(
            fs::metadata(kept).expect("kept").mode() & 0o077,
            0,
            "for the owner alone"
        );
        let file = fs::File::open(kept).expect("kept");
        let expected = self.expected();
        for (offset, len, _) in RUNS {
            let mut found = vec![0; len as usize];
            file.read_exact_at(&mut found, offset).expect("all bytes");
            assert_eq!(found, expected[offset as usize..][..len as usize]);
        }
        let note = fs::read_to_string(kept.with_extension("json")).expect("a note");
        let note: serde_json::Value = serde_json::from_str(&note).expect("JSON");
        assert_eq!(note["path"], self.file.to_str().expect("plain"));
        assert_eq!(note["reason"], reason.as_str());
        assert_eq!(note["size"], 70_004);
        let runs: Vec<(u64, u64)> = serde_json::from_value(note["runs"].clone()).expect("runs");
        assert_eq!(runs.iter().map(|run| run.1).sum::<u64>(), *bytes);
        for (offset, len, _) in RUNS {
            let held =
                |run: &&(u64, u64)| run.0 < offset + u64::from(len) && offset < run.0 + run.1;
            let held: u64 = runs
                .iter()
                .filter(held)
                .map(|run| (run.0 + run.1).min(offset + u64::from(len)) - run.0.max(offset))
                .sum();
            assert_eq!(
                held,
                u64::from(len),
                "{runs:?} do not say where {offset} is"
            );
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.arena);
        let _ = fs::remove_file(self.arena.with_extension("sock"));
        let _ = fs::remove_dir_all(&self.config.kept_dir);
    }
}

/// Orders to fail calls are the process's.
static FAULTS: Mutex<()> = Mutex::new(());
const CHANGED: &str = "changed by another program";

#[test]
fn an_untouched_file_is_written() {
    let scene = Scene::new();
    scene.assert_written(&scene.recover());
    let again = recover(&scene.arena, &scene.config);
    assert!(
        matches!(again, Err(Error::Arena(_))),
        "there is nothing more to recover"
    );
}

#[test]
fn a_file_with_new_contents_is_left_alone() {
    let scene = Scene::new();
    fs::write(&scene.file, vec![9; OLD_LEN]).expect("written");
    scene.assert_kept(&scene.recover(), CHANGED);
    assert_eq!(fs::read(&scene.file).expect("the file"), vec![9; OLD_LEN]);
}

#[test]
fn a_recovery_that_does_not_look_is_found() {
    let writes = || {
        let scene = Scene::new();
        fs::write(&scene.file, vec![9; OLD_LEN]).expect("written");
        scene.assert_kept(&scene.recover(), CHANGED);
    };
    assert!(workers::is_found(forebay::sim::Bug::BlindWitness, writes));
    let loses = || {
        let scene = Scene::new();
        scene.assert_written(&scene.recover());
    };
    assert!(workers::is_found(forebay::sim::Bug::ForgottenDirt, loses));
}

#[test]
fn a_truncated_file_is_left_alone() {
    let scene = Scene::new();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&scene.file)
        .expect("the file");
    file.set_len(100).expect("truncated");
    scene.assert_kept(&scene.recover(), CHANGED);
    assert_eq!(fs::read(&scene.file).expect("the file"), vec![7; 100]);
}

#[test]
fn a_file_whose_modification_time_was_put_back_is_left_alone() {
    let scene = Scene::new();
    let before = fs::metadata(&scene.file).expect("the file");
    std::thread::sleep(Duration::from_millis(20));
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&scene.file)
        .expect("the file");
    file.write_all_at(b"!", 30_000).expect("written");
    file.set_modified(before.modified().expect("a time"))
        .expect("put back");
    drop(file);
    let after = fs::metadata(&scene.file).expect("the file");
    assert_eq!(
        (before.mtime(), before.mtime_nsec()),
        (after.mtime(), after.mtime_nsec())
    );
    scene.assert_kept(&scene.recover(), CHANGED);
    assert_eq!(fs::read(&scene.file).expect("the file")[30_000], b'!');
}

#[test]
fn a_renamed_file_is_left_alone() {
    let scene = Scene::new();
    let elsewhere = scene.file.with_file_name("elsewhere");
    fs::rename(&scene.file, &elsewhere).expect("renamed");
    scene.assert_kept(&scene.recover(), "not where it was");
    assert_eq!(fs::read(&elsewhere).expect("the file"), vec![7; OLD_LEN]);
}

#[test]
fn bytes_of_an_unlinked_file_are_kept() {
    let scene = Scene::new();
    fs::remove_file(&scene.file).expect("unlinked");
    scene.assert_kept(&scene.recover(), "not where it was");
    assert!(!scene.file.exists());
}

#[test]
fn a_name_that_is_no_text_can_be_noted() {
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::new();
    let dir = scene.file.parent().expect("a directory").to_owned();
    let odd = dir.join(std::ffi::OsStr::from_bytes(b"na\xffme"));
    fs::create_dir(&odd).expect("a directory");
    let spec = Spec::new(
        &session_name("odd"),
        &odd,
        false,
        Work::Commands { files: 1 },
    );
    // As JSON the worker's orders cannot have such a path: it goes there by itself.
    let spec = Spec {
        dir: ".".into(),
        ..spec
    };
    let mut worker = Worker::start_with(&spec, |command| {
        command.current_dir(&odd);
    });
    worker.await_ready();
    worker.run(&Op::Write {
        file: 0,
        handle: 0,
        offset: 0,
        len: 10,
        seed: 1,
    });
    worker.kill();
    worker.end().assert_good_or_killed();
    fs::remove_file(odd.join("file-0")).expect("removed");
    let config = config(&spec.session);
    let report = recover(&arena_path(&config), &config).expect("a report");
    assert!(
        matches!(&report.files[..], [Saved::Kept { .. }]),
        "{report:?}"
    );
    serde_json::to_string(&report).expect("as text");
    let _ = fs::remove_dir_all(&config.kept_dir);
}

#[test]
fn a_file_that_another_has_replaced_is_left_alone() {
    let scene = Scene::new();
    let other = scene.file.with_file_name("other");
    fs::write(&other, b"mine").expect("another file");
    fs::rename(&other, &scene.file).expect("replaced");
    scene.assert_kept(&scene.recover(), "another file");
    assert_eq!(fs::read(&scene.file).expect("the file"), b"mine");
}

#[test]
fn bytes_that_cannot_be_kept_stay_in_the_arena() {
    let mut scene = Scene::new();
    fs::remove_file(&scene.file).expect("unlinked");
    let kept_dir = std::mem::replace(&mut scene.config.kept_dir, "/dev/null/kept".into());
    let report = scene.recover();
    assert!(
        matches!(&report.files[..], [Saved::Failed { .. }]),
        "{report:?}"
    );
    assert!(!report.removed && scene.arena.exists());
    scene.config.kept_dir = kept_dir;
    scene.assert_kept(&scene.recover(), "not where it was");
}

/// A file system that cannot be written now is waited for, in vain and then not.
fn unreachable_for_a_while(away: fn(&Disk), back: fn(&Disk)) {
    for kind in ["xfs", "ext4"] {
        match Disk::new(kind, 320, "") {
            Ok(disk) => unreachable_on(&disk, away, back),
            Err(reason) => return here::skipped(reason),
        }
    }
}

fn unreachable_on(disk: &Disk, away: fn(&Disk), back: fn(&Disk)) {
    let scene = Scene::in_dir(disk.dir()).begin();
    away(disk);
    for _ in 0..2 {
        let report = scene.recover();
        assert!(
            matches!(&report.files[..], [Saved::Failed { .. }]),
            "{report:?}"
        );
        assert!(!report.removed && scene.arena.exists());
    }
    let opened = Session::open(scene.config.clone()).map(drop);
    let error = opened.expect_err("bytes are not saved yet").to_string();
    assert!(error.contains("file-0"), "{error}");
    back(disk);
    scene.assert_written(&scene.recover());
}

#[test]
fn a_file_system_that_is_not_mounted_is_waited_for() {
    unreachable_for_a_while(
        |disk| disk.unmount().expect("unmounted"),
        |disk| disk.mount().expect("mounted"),
    );
}

#[test]
fn a_read_only_file_system_is_waited_for() {
    unreachable_for_a_while(
        |disk| disk.remount("ro").expect("read-only"),
        |disk| disk.remount("rw").expect("writable"),
    );
}

#[test]
fn a_living_session_is_not_recovered() {
    let dir = here::directory();
    for hosts in [false, true] {
        let config = config(&session_name("alive"));
        let spec = Spec::new(
            &config.session,
            dir.path(),
            hosts,
            Work::Commands { files: 1 },
        );
        let mut worker = Worker::ready(&spec);
        worker.run(&Op::Write {
            file: 0,
            handle: 0,
            offset: 0,
            len: 100,
            seed: 1,
        });
        let error = recover(&arena_path(&config), &config).expect_err("it lives");
        let pid = format!("in use by process {};", worker.pid());
        assert!(error.to_string().contains(&pid), "{error}");
        let op = Op::Read {
            file: 0,
            handle: 0,
            offset: 0,
            len: 100,
        };
        assert_eq!(worker.run(&op), bytes_of(1, 0, 100));
        worker.finish();
    }
}

#[test]
fn opening_a_session_recovers_what_its_predecessor_left() {
    for hosts in [true, false] {
        let scene = Scene::new();
        let config = scene.config.clone();
        let session = if hosts {
            Session::open(config)
        } else {
            Session::join(config)
        };
        let session = session.expect("a session");
        assert_eq!(fs::read(&scene.file).expect("the file"), scene.expected());
        let file = session
            .open_file(&scene.file, OpenOptions::new().read(true))
            .expect("opens");
        assert_eq!(file.len().expect("a length"), 70_004);
        drop(file);
        drop(session);
        assert!(!scene.arena.exists());
    }
}

/// Whatever lies where an arena should be.
fn odd_arena(bytes: &[u8]) -> (Config, PathBuf) {
    let config = config(&session_name("odd"));
    let path = arena_path(&config);
    fs::write(&path, bytes).expect("written");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    (config, path)
}

#[test]
fn an_arena_that_was_never_made_is_removed() {
    for bytes in [vec![], vec![0; 2 << 20]] {
        let (config, path) = odd_arena(&bytes);
        let report = recover(&path, &config).expect("nothing in it");
        assert!(report.removed && report.files.is_empty() && !path.exists());
        // And nobody has to do it by hand.
        let (config, path) = odd_arena(&bytes);
        drop(Session::open(config).expect("a session"));
        assert!(!path.exists());
    }
}

/// A program that was updated while others of its session run on.
#[test]
fn an_arena_of_another_build_is_not_waited_for_while_it_is_used() {
    let mut bytes = vec![0; 2 << 20];
    bytes[..8].copy_from_slice(&forebay::memory::superblock::MAGIC.to_le_bytes());
    bytes[7] ^= 0x40;
    let (config, path) = odd_arena(&bytes);
    let used = fs::File::open(&path).expect("it is there");
    used.lock_shared()
        .expect("as whoever is in a session has it");
    let begun = Instant::now();
    let error = Session::open(config.clone())
        .map(drop)
        .expect_err("it is another build's");
    assert!(begun.elapsed() < Duration::from_secs(2), "{error}");
    assert!(error.to_string().contains("another build"), "{error}");
    assert!(
        error.to_string().contains(path.to_str().expect("plain")),
        "{error}"
    );
    drop(used);
    fs::remove_file(&path).expect("removed");
}

#[test]
fn what_is_no_arena_is_refused_with_its_name() {
    let mut random = SplitMix64::new(1);
    let garbage: Vec<u8> = (0..2 << 20).map(|_| random.below(256) as u8).collect();
    let magic = forebay::memory::superblock::MAGIC.to_le_bytes();
    let mut other_version = vec![0; 2 << 20];
    other_version[..8].copy_from_slice(&magic);
    other_version[7] ^= 0x40;
    let mut bad_counts = garbage.clone();
    bad_counts[..8].copy_from_slice(&magic);
    let odd = [
        garbage.clone(),
        garbage[..12_345].to_vec(),
        magic.to_vec(),
        other_version,
        bad_counts,
    ];
    for bytes in odd {
        let (config, path) = odd_arena(&bytes);
        for result in [
            recover(&path, &config).map(drop),
            Session::open(config.clone()).map(drop),
        ] {
            let error = result.expect_err("it is no arena");
            assert!(matches!(error, Error::Arena(_)), "{error}");
            let is_of_another_build = bytes[..4] == magic[..4] && bytes[..8] != magic;
            assert_eq!(
                error.to_string().contains("another build"),
                is_of_another_build
            );
            assert!(
                error.to_string().contains(path.to_str().expect("plain")),
                "{error}"
            );
        }
        assert!(
            fs::read(&path).expect("still there") == bytes,
            "and as it was"
        );
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn an_arena_that_was_cut_is_refused() {
    let scene = Scene::new();
    let whole = fs::metadata(&scene.arena).expect("an arena").len();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&scene.arena)
        .expect("an arena");
    for len in [whole - (2 << 20), 2 << 20, whole / 2 + 1, 4096] {
        file.set_len(len).expect("cut");
        let error = recover(&scene.arena, &scene.config).expect_err("it is cut");
        assert!(matches!(error, Error::Arena(_)), "{error}");
    }
    assert_eq!(fs::read(&scene.file).expect("the file"), vec![7; OLD_LEN]);
}

/// Orders to fail calls of this process on a file, and of workers that are told so.
fn faults(dir: &Path, file: &Path, call: Call, countdown: u64) -> &'static faults::Orders {
    let orders = faults::obey(&dir.join("orders")).expect("orders");
    orders
        .inode
        .store(fs::metadata(file).expect("a file").ino(), SeqCst);
    orders.errno.store(libc::EIO as u32, SeqCst);
    count(orders, call);
    orders.countdown.store(countdown, SeqCst);
    orders
}

/// Begins to count calls of another kind.
fn count(orders: &faults::Orders, call: Call) {
    orders.only.store(call as u32, SeqCst);
    orders.calls.store(0, SeqCst);
}

/// The device says once that it has lost something: what was written goes there again with the next recovery.
#[test]
fn what_a_recovery_could_not_make_durable_is_written_again() {
    let _alone = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = Scene::new();
    let dir = here::directory();
    let orders = faults(dir.path(), &scene.file, Call::Sync, 1);
    let report = scene.recover();
    assert!(
        matches!(&report.files[..], [Saved::Failed { .. }]),
        "{report:?}"
    );
    assert!(!report.removed && scene.arena.exists());
    count(orders, Call::WriteDirect);
    scene.assert_written(&scene.recover());
    assert!(orders.calls.load(SeqCst) > 0, "nothing was written again");
}

/// What only the keeper has open is synced by it, and not only written.
#[test]
fn a_file_that_the_keeper_alone_has_is_synced_by_it() {
    let _alone = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = here::directory();
    let config = config(&session_name("synced"));
    let file = dir.path().join("file-0");
    fs::write(&file, vec![7; OLD_LEN]).expect("a file");
    let orders = faults(dir.path(), &file, Call::Sync, 1);
    let work = Work::Commands { files: 1 };
    let spec = Spec::new(&config.session, dir.path(), true, work);
    let mut worker = Worker::start_with(&spec, |command| {
        command.env("FOREBAY__SIM_FAULT", dir.path().join("orders"));
    });
    worker.await_ready();
    let (file_0, handle) = (0, 0);
    worker.run(&Op::Write {
        file: file_0,
        handle,
        offset: 0,
        len: 5000,
        seed: 1,
    });
    let sync = Op::SyncAll {
        file: file_0,
        handle,
    };
    assert!(worker.run(&sync).contains("Io"), "the sync fails");
    // Where nobody looks for it.
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::rename(&file, elsewhere.join("file-0")).expect("moved");
    count(orders, Call::Sync);
    let session = Session::join_living(&arena_path(&config), config.clone());
    let session = session.expect("a session").expect("it lives");
    for _ in 0..2 {
        let unsettled = session.settle_all().expect("a slot");
        assert!(unsettled.is_empty(), "{unsettled:?}");
    }
    assert_eq!(orders.calls.load(SeqCst), 1, "syncs by the keeper");
    drop(session);
    worker.finish();
}

#[test]
fn what_cannot_be_kept_leaves_nothing_behind() {
    let place = match Tmpfs::new(1) {
        Ok(place) => place,
        Err(reason) => return here::skipped(reason),
    };
    let mut scene = Scene::new();
    fs::remove_file(&scene.file).expect("unlinked");
    let before = std::mem::replace(&mut scene.config.kept_dir, place.dir().join("kept"));
    fs::create_dir(&scene.config.kept_dir).expect("a directory");
    let ballast = place.dir().join("ballast");
    fs::write(&ballast, vec![1; (1 << 20) - 8192]).expect("room for ballast");
    let report = scene.recover();
    assert!(
        matches!(&report.files[..], [Saved::Failed { .. }]),
        "{report:?}"
    );
    let left = fs::read_dir(&scene.config.kept_dir).expect("a directory");
    assert_eq!(left.count(), 0, "files that look like what was kept");
    fs::remove_file(&ballast).expect("removed");
    scene.assert_kept(&scene.recover(), "not where it was");
    let left = fs::read_dir(&scene.config.kept_dir).expect("a directory");
    assert_eq!(left.count(), 2, "the bytes and the note");
    scene.config.kept_dir = before;
}

/// Of a file that owes no bytes the arena may know its length alone.
#[test]
fn an_unreachable_file_without_owed_bytes_is_not_forgotten() {
    let disk = match Disk::new("ext4", 64, "") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    for flag in [EXCEEDING, TRUNCATING, CLOSING] {
        let scene = Scene::in_dir(disk.dir());
        scene.write_and_die();
        set_flag(&scene.arena, flag);
        disk.unmount().expect("unmounted");
        let report = scene.recover();
        assert!(
            matches!(&report.files[..], [Saved::Failed { .. }]),
            "{flag}: {report:?}"
        );
        assert!(!report.removed && scene.arena.exists());
        disk.mount().expect("mounted");
        let report = scene.recover();
        assert!(report.files.is_empty() && report.removed, "{report:?}");
    }
}

/// As a death in the middle of such a change leaves it.
fn set_flag(arena: &Path, flag: u32) {
    change_entry(arena, |entry| {
        entry.flags.fetch_or(flag, SeqCst);
    });
}

/// Changes the one entry of an arena, whose file owes nothing.
fn change_entry(arena: &Path, change: impl Fn(&FileEntry)) {
    let file = fs::OpenOptions::new().read(true).write(true).open(arena);
    let mapping = Mapping::attach(file.expect("an arena")).expect("mapped");
    let arena = Arena::open(mapping).expect("an arena");
    let entries = (0..arena.counts().files).map(|id| arena.file_unchecked(FileId(id)));
    let mut found = 0;
    for entry in entries.filter(|entry| entry.state.load(SeqCst) == LIVE) {
        assert_eq!(entry.owed_pages.load(SeqCst), 0);
        change(entry);
        found += 1;
    }
    assert_eq!(found, 1);
}

/// One thread died as it found that the file is the kernel's, another while it changed the file by the kernel. How long such a file is
/// the kernel knows, so nothing is left to do.
#[test]
fn the_dead_may_have_been_at_a_file_of_the_kernels() {
    let dir = here::directory();
    let scene = Scene::in_dir(dir.path());
    scene.write_and_die();
    let outside = fs::OpenOptions::new().append(true).open(&scene.file);
    std::io::Write::write_all(&mut outside.expect("the file"), b"by the kernel").expect("appended");
    change_entry(&scene.arena, |entry| {
        entry.kernel_reason.store(1, SeqCst);
        entry.flags.fetch_or(EXCEEDING, SeqCst);
        entry.begin_intent(ThreadId::NOBODY);
    });
    let report = scene.recover();
    assert!(report.files.is_empty() && report.removed, "{report:?}");
    assert_eq!(fs::read(&scene.file).expect("the file").len(), 5013);
}

/// A thread that waits in a flush may repair, and a repair waits for what the dead have under way: a change within a change.
#[test]
fn a_change_within_a_change_does_not_end_it() {
    let dir = here::directory();
    let session = forebay::Session::open(forebay::Config::tiny()).expect("a session");
    let path = dir.path().join("file");
    let plain = std::fs::File::create(&path).expect("a file");
    let device = match forebay::device::RealFile::reopen(std::os::fd::AsFd::as_fd(&plain)) {
        Ok(device) => std::sync::Arc::new(device),
        Err(reason) => return here::skipped(reason),
    };
    let core = session.manage_device(device, &path).expect("an entry");
    let me = core.shared.me().expect("a slot");
    core.change(me, |_| {
        core.change(me, |_| ());
        assert!(core.entry().has_intent(me.id), "the outer change goes on");
    });
    assert!(!core.entry().has_intent(me.id));
}

/// An arena names files and what to write to them: its maker would have the rights of whoever recovers or joins it.
#[test]
fn arenas_of_others_are_refused() {
    let scene = Scene::new();
    let link = scene.arena.with_file_name("a-link.arena");
    std::os::unix::fs::symlink(&scene.arena, &link).expect("a link");
    let refused = recover(&link, &scene.config);
    let _ = fs::remove_file(&link);
    assert!(matches!(refused, Err(Error::Arena(_))), "{refused:?}");
    if forebay::memory::place::dir::user_id() == 0 {
        let give = |uid| std::os::unix::fs::chown(&scene.arena, Some(uid), None);
        give(4711).expect("given away");
        let refused = recover(&scene.arena, &scene.config);
        let config = config(&session_name("living"));
        let living = Session::open(config.clone()).expect("a session");
        let arena = living.arena_path().expect("a path");
        let own = Session::join_living(arena, config.clone()).expect("a session");
        assert!(own.is_some());
        std::os::unix::fs::chown(arena, Some(4711), None).expect("given away");
        let joined = Session::join_living(arena, config).expect("no session");
        std::os::unix::fs::chown(arena, Some(0), None).expect("taken back");
        give(0).expect("taken back");
        let error = refused.expect_err("another's").to_string();
        assert!(error.contains("belongs to user 4711"), "{error}");
        assert!(joined.is_none(), "another's session is joined");
    }
    scene.assert_written(&scene.recover());
}
