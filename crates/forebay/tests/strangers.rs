//! A session that dies before, in or after a flush, a stranger who changes the file, and recoveries that die as well: no byte of the
//! stranger's is overwritten, and none of the session's is lost.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay::Config;
use forebay::ids::FileId;
use forebay::keeper::recover::{Report, Saved, recover};
use forebay::memory::arena::Arena;
use forebay::memory::mapping::Mapping;
use forebay_model::{Op, fill};
use workers::{Spec, Work, Worker, arena_path, config, session_name};

const OLD_LEN: usize = 64 * 1024;
/// What the session has written: the last of them lies beyond the old end.
const RUNS: [(u64, u32, u32); 3] = [(4096, 8192, 1), (20_000, 9000, 2), (70_001, 3, 3)];
const NEW_LEN: usize = 70_004;
/// Where a stranger writes, bytes that the session owes.
const STRANGER: std::ops::Range<u64> = 21_000..25_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Nothing,
    Content,
    Length,
    Name,
}

/// Where the session dies: before a shared access of a sync, or before any, or after all.
struct Scene {
    config: Config,
    arena: PathBuf,
    dir: tempfile::TempDir,
    lived: bool,
}

impl Scene {
    fn new(dies_at: u64) -> Scene {
        let dir = here::directory();
        let config = config(&session_name("strangers"));
        fs::write(dir.path().join("file-0"), vec![7; OLD_LEN]).expect("a file");
        let work = Work::Commands { files: 1 };
        let mut spec = Spec::new(&config.session, dir.path(), false, work);
        spec.dies_at = Some(dies_at);
        let mut worker = Worker::ready(&spec);
        let (file, handle) = (0, 0);
        for (offset, len, seed) in RUNS {
            let op = Op::Write {
                file,
                handle,
                offset,
                len,
                seed,
            };
            assert_eq!(worker.run(&op), format!("{len} bytes written"));
        }
        let lived = worker.try_run(&Op::SyncAll { file, handle });
        if lived {
            // After the flush, with something owed again.
            let (offset, len, seed) = RUNS[1];
            worker.run(&Op::Write {
                file,
                handle,
                offset,
                len,
                seed,
            });
        }
        worker.kill();
        worker.end().assert_good_or_killed();
        Scene {
            arena: arena_path(&config),
            config,
            dir,
            lived,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("file-0")
    }

    /// Does it, and returns where the file is then.
    fn change(&self, change: Change) -> PathBuf {
        // Later than any request that the dead had given to the kernel reaches the file.
        std::thread::sleep(Duration::from_millis(30));
        let path = self.path();
        match change {
            Change::Nothing => {}
            Change::Content => {
                let file = fs::OpenOptions::new().write(true).open(&path);
                let bytes = vec![9; (STRANGER.end - STRANGER.start) as usize];
                let written = file.expect("the file").write_all_at(&bytes, STRANGER.start);
                written.expect("written");
            }
            Change::Length => {
                let file = fs::OpenOptions::new().write(true).open(&path);
                file.expect("the file").set_len(10_000).expect("cut");
            }
            Change::Name => {
                let elsewhere = path.with_file_name("elsewhere");
                fs::rename(&path, &elsewhere).expect("renamed");
                return elsewhere;
            }
        }
        path
    }

    /// A recovery that dies before its so manieth access, if it has so many.
    fn recover_and_die(&self, dies_at: u64) {
        let path = self.arena.clone();
        let work = Work::Recover { path };
        let mut spec = Spec::new(&self.config.session, self.dir.path(), false, work);
        spec.dies_at = Some(dies_at);
        let mut worker = Worker::ready(&spec);
        worker.go();
        worker.end().assert_good_or_killed();
    }

    /// Before the so manieth change that a recovery makes to the arena a stranger writes to the file, unless he would have to wait.
    /// Whether he has; `None`: the recovery has ended before.
    fn recover_with_a_stranger(&self, at: u64) -> (Option<bool>, Report) {
        let has_changed = Rc::new(Cell::new(false));
        let (path, told) = (self.path(), Rc::clone(&has_changed));
        let visit = move || {
            let mut options = fs::OpenOptions::new();
            let opened = options.write(true).custom_flags(libc::O_NONBLOCK);
            if let Ok(file) = opened.open(path) {
                let bytes = vec![9; (STRANGER.end - STRANGER.start) as usize];
                file.write_all_at(&bytes, STRANGER.start).expect("written");
                told.set(true);
            }
        };
        let recover = || recover(&self.arena, &self.config).expect("a report");
        let (visited, report) = forebay::sim::visit_after_changes(at, visit, recover);
        (visited.then(|| has_changed.get()), report)
    }

    fn recover(&self) -> Option<Report> {
        let there = self.arena.exists();
        there.then(|| recover(&self.arena, &self.config).expect("a report"))
    }

    fn assert_whole(&self, path: &Path, what: &str) {
        let mut wanted = vec![7; OLD_LEN];
        wanted.resize(NEW_LEN, 0);
        for (offset, len, seed) in RUNS {
            fill(seed, offset, &mut wanted[offset as usize..][..len as usize]);
        }
        assert!(fs::read(path).expect("the file") == wanted, "{what}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.arena);
        let _ = fs::remove_file(self.arena.with_extension("sock"));
        let _ = fs::remove_dir_all(&self.config.kept_dir);
    }
}

fn is_manageable() -> bool {
    use std::os::fd::AsFd;
    let file = tempfile::tempfile_in(here::directory().path()).expect("a file");
    forebay::device::RealFile::reopen(file.as_fd())
        .map_err(here::skipped)
        .is_ok()
}

/// Dies at an access, has the file changed, and recovers, dying at others first.
fn round(dies_at: u64, change: Change, recoveries: &[u64]) -> bool {
    let what = format!("{change:?}, death at {dies_at}, recoveries die at {recoveries:?}");
    let scene = Scene::new(dies_at);
    let path = scene.change(change);
    let before = fs::read(&path).expect("the file");
    recoveries.iter().for_each(|&at| scene.recover_and_die(at));
    let report = scene.recover();
    assert!(
        report.as_ref().is_none_or(|report| report.removed),
        "{what}: {report:?}"
    );
    let after = fs::read(&path).expect("the file");
    match change {
        Change::Nothing => {}
        Change::Content => {
            let range = STRANGER.start as usize..STRANGER.end as usize;
            assert!(after[range].iter().all(|&byte| byte == 9), "{what}");
        }
        Change::Length => assert!(after == before, "{what}: {} bytes", after.len()),
        Change::Name => assert!(after == before, "{what}"),
    }
    if change != Change::Length {
        workers::put_back(&scene.config, |_| path.clone());
        scene.assert_whole(&path, &what);
    }
    if change == Change::Nothing && recoveries.is_empty() {
        let kept = |saved: &Saved| !matches!(saved, Saved::Written { .. });
        let asides = report
            .iter()
            .flat_map(|report| &report.files)
            .filter(|saved| kept(saved));
        assert_eq!(asides.count(), 0, "{what}: {report:?}");
    }
    scene.lived
}

#[test]
fn recoveries_that_die_overwrite_nothing_of_a_stranger() {
    if !is_manageable() {
        return;
    }
    let changes = [
        Change::Content,
        Change::Length,
        Change::Name,
        Change::Nothing,
    ];
    let mut turn = 0;
    for dies_at in [0, 90, 200, 330, 500, u64::MAX - 1] {
        for change in changes {
            // A recovery makes some thousands of accesses; most of them look for something to do.
            let first = [3, 200, 2_000, 9_000, 40_000][turn % 5];
            let all = [first, first / 2 + 50];
            turn += 1;
            round(dies_at, change, &all[..turn % 3]);
        }
    }
}

#[test]
fn a_recovery_that_does_not_look_is_found() {
    if !is_manageable() {
        return;
    }
    for change in [Change::Content, Change::Length] {
        let writes = || _ = round(200, change, &[]);
        assert!(workers::is_found(forebay::sim::Bug::BlindWitness, writes));
    }
}

/// What the dead had given to the kernel may reach the file late. Then it holds what is owed, and nobody is harmed.
#[test]
fn a_change_of_ours_that_is_late_is_told_by_what_the_file_holds() {
    if !is_manageable() {
        return;
    }
    let scene = Scene::new(200);
    assert!(!scene.lived);
    let path = scene.change(Change::Nothing);
    let file = fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("the file");
    for (offset, len, seed) in &RUNS[..2] {
        let mut bytes = vec![0; *len as usize];
        fill(*seed, *offset, &mut bytes);
        file.write_all_at(&bytes, *offset).expect("written");
    }
    let report = scene.recover().expect("an arena");
    let all = |saved: &Saved| matches!(saved, Saved::Written { .. });
    assert!(report.removed && report.files.iter().all(all), "{report:?}");
    scene.assert_whole(&path, "late");
}

/// The clock has been set back since the session ended, so that whatever anybody does to the file is dated earlier than that.
#[test]
fn a_strangers_change_is_not_ours_because_the_clock_was_set_back() {
    if !is_manageable() {
        return;
    }
    let scene = Scene::new(200);
    assert!(!scene.lived);
    let path = scene.change(Change::Content);
    let before = fs::read(&path).expect("the file");
    let mut options = fs::OpenOptions::new();
    let arena = options.read(true).write(true).open(&scene.arena);
    let arena = arena.expect("the arena");
    let arena = Arena::open(Mapping::attach(arena).expect("mapped")).expect("an arena");
    for entry in (0..arena.counts().files).filter_map(|id| arena.file(FileId(id))) {
        let [_, modified, changed] = &entry.witness;
        for time in [modified, changed, &entry.changed_ns] {
            time.fetch_add(3_600_000_000_000, Ordering::SeqCst);
        }
    }
    drop(arena);
    let report = scene.recover().expect("an arena");
    assert!(
        matches!(&report.files[..], [Saved::Kept { .. }]),
        "{report:?}"
    );
    assert!(fs::read(&path).expect("the file") == before);
}

/// Whoever changes a file while a recovery is at work either comes before the file is saved, and it is not, or waits until it is.
#[test]
fn what_a_stranger_changes_while_a_recovery_runs_stays() {
    if !is_manageable() {
        return;
    }
    let (kept, held) = strangers_meanwhile();
    assert!(kept > 0 && held > 0, "{kept} kept aside, {held} held up");
}

#[test]
fn a_recovery_that_looks_once_is_found() {
    if !is_manageable() {
        return;
    }
    let meanwhile = || _ = strangers_meanwhile();
    assert!(workers::is_found(
        forebay::sim::Bug::BlindWitness,
        meanwhile
    ));
}

/// A stranger comes at each of many moments of a recovery. How often the session's bytes were kept aside then, and how often he was held up.
fn strangers_meanwhile() -> (u32, u32) {
    let (mut kept, mut held) = (0, 0);
    // After a death in the middle of a flush, and after one with nothing under way.
    for dies_at in [200, u64::MAX - 1] {
        let before = forebay::sim::changes();
        Scene::new(dies_at).recover();
        let all = forebay::sim::changes() - before;
        let moments = (0..8).map(|part| all * part / 8);
        // Most changes rebuild the arena; the file is saved by the last ones.
        let last = (1..=130).step_by(7).map(|left| all.saturating_sub(left));
        for at in moments.chain(last) {
            let scene = Scene::new(dies_at);
            let path = scene.path();
            scene.change(Change::Nothing);
            let (visited, report) = scene.recover_with_a_stranger(at);
            let Some(has_changed) = visited else { continue };
            let what = format!("death at {dies_at}, a stranger at {at}: {report:?}");
            assert!(report.removed, "{what}");
            let after = fs::read(&path).expect("the file");
            let range = STRANGER.start as usize..STRANGER.end as usize;
            let is_his = after[range].iter().all(|&byte| byte == 9);
            assert_eq!(is_his, has_changed, "{what}");
            let are_kept = matches!(&report.files[..], [Saved::Kept { .. }]);
            kept += u32::from(are_kept);
            held += u32::from(!has_changed);
            assert!(!are_kept || has_changed, "{what}");
            if are_kept || !has_changed {
                workers::put_back(&scene.config, |_| path.clone());
                scene.assert_whole(&path, &what);
            }
        }
    }
    (kept, held)
}

#[test]
fn a_second_recovery_knows_what_the_first_has_seen() {
    if !is_manageable() {
        return;
    }
    // In the middle of a flush, so that the session's own change is not told by times alone.
    for dies_at in [140, 200, 260] {
        let mut scene = Scene::new(dies_at);
        scene.change(Change::Content);
        let before = fs::read(scene.path()).expect("the file");
        // It cannot keep the bytes anywhere, so they stay in the arena.
        let kept_dir = std::mem::replace(&mut scene.config.kept_dir, "/dev/null/kept".into());
        let report = scene.recover().expect("an arena");
        assert!(
            matches!(&report.files[..], [Saved::Failed { .. }]) && !report.removed,
            "{report:?}"
        );
        scene.config.kept_dir = kept_dir;
        let report = scene.recover().expect("an arena");
        assert!(
            matches!(&report.files[..], [Saved::Kept { .. }]) && report.removed,
            "{report:?}"
        );
        assert!(fs::read(scene.path()).expect("the file") == before);
    }
}

/// A session whose file is all with the device dies in `op`, and a stranger appends a line. Whether the session has lived, and how long the file
/// was when it died.
fn appended_after(op: &Op, dies_at: u64) -> (bool, u64) {
    // No whole page: a recovery may find what a flush has written of the last one.
    const LEN: usize = 60_001;
    let dir = here::directory();
    let config = config(&session_name("appended"));
    let path = dir.path().join("file-0");
    fs::write(&path, vec![7; LEN]).expect("a file");
    let work = Work::Commands { files: 1 };
    let mut spec = Spec::new(&config.session, dir.path(), false, work);
    spec.dies_at = Some(dies_at);
    let mut worker = Worker::ready(&spec);
    let (file, handle) = (0, 0);
    let (offset, len, seed) = RUNS[0];
    worker.run(&Op::Write {
        file,
        handle,
        offset,
        len,
        seed,
    });
    worker.run(&Op::SyncData { file, handle });
    let lived = worker.try_run(op);
    worker.kill();
    worker.end().assert_good_or_killed();
    let scene = Scene {
        arena: arena_path(&config),
        config,
        dir,
        lived,
    };
    let reached = fs::metadata(&path).expect("a file").len();
    scene.change(Change::Nothing);
    let file = fs::OpenOptions::new().append(true).open(&path);
    std::io::Write::write_all(&mut file.expect("the file"), b"a line\n").expect("written");
    let before = fs::read(&path).expect("the file");
    scene.recover();
    let after = fs::read(&path).expect("the file");
    assert!(
        after == before,
        "{op:?}, death at {dies_at}: {} bytes became {}",
        before.len(),
        after.len()
    );
    (lived, reached)
}

/// A recovery ends what the dead have begun, and cuts what they have left: not what somebody has written since.
#[test]
fn what_a_stranger_appends_after_a_death_in_a_change_of_the_length_stays() {
    if !is_manageable() {
        return;
    }
    let (file, handle) = (0, 0);
    let cut = Op::SetLen {
        file,
        handle,
        len: 0,
    };
    let longer = Op::Append {
        file,
        handle,
        len: 600_000,
        seed: 4,
    };
    for op in [&cut, &longer] {
        let mut begun = 0;
        let mut dies_at = 0;
        loop {
            let (lived, reached) = appended_after(op, dies_at);
            if lived {
                break;
            }
            begun += u32::from(reached == 0);
            // What the file and its space become is asked first, what memory becomes comes afterwards.
            dies_at += if dies_at < 200 { 5 } else { 50 };
        }
        assert!(*op != cut || begun > 0, "nobody died after the cut");
    }
}
