//! The matrix of recoveries: a session dies before, in or after a flush; an outsider changes nothing, the content, the length or the
//! name; a recovery is cut off at any step, perhaps a second one, and the last one ends. No byte of the outsider's is overwritten, and
//! none of the session's is lost.
//!
//! A session is killed once for each moment; its arena and its file are then put back again and again, as they were. Recoveries that
//! are cut off are forked children. `strangers.rs` has the same with processes throughout, and a few rules more.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay::Config;
use forebay::keeper::recover::{Report, recover};
use forebay::memory::files::{FileEntry, sum_of};
use forebay::sim;
use forebay_model::{Op, SplitMix64, fill};
use workers::{Spec, Work, Worker, arena_path, config, session_name};

const OLD_LEN: usize = 64 * 1024;
/// What the session has written: the last of them lies beyond the old end.
const RUNS: [(u64, u32, u32); 3] = [(4096, 8192, 1), (20_000, 9000, 2), (70_001, 3, 3)];
const NEW_LEN: usize = 70_004;
/// Where an outsider writes, bytes that the session owes.
const OUTSIDER: std::ops::Range<u64> = 21_000..25_000;
/// Later than any request that the dead had given to the kernel is taken to reach the file, which is 10 ms, by the clock of files: that lags by one
/// tick of the kernel's, 4 ms, and by two where the machine is busy.
const LATE: Duration = Duration::from_millis(30);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Nothing,
    Content,
    Length,
    Name,
}

const CHANGES: [Change; 4] = [
    Change::Nothing,
    Change::Content,
    Change::Length,
    Change::Name,
];

/// A session that has died at a moment of a sync, kept to be recovered again and again.
struct Scene {
    dies_at: u64,
    config: Config,
    arena: PathBuf,
    kept: PathBuf,
    /// What the file held when the session died, its times, and where its entry is in the arena.
    content: Vec<u8>,
    times: [u64; 2],
    entry: u64,
    /// The sync ended, and something was written after it.
    lived: bool,
    dir: tempfile::TempDir,
}

fn times_of(path: &Path) -> [u64; 2] {
    let meta = fs::metadata(path).expect("a file");
    let ns = |s: i64, ns: i64| (s * 1_000_000_000 + ns) as u64;
    [
        ns(meta.mtime(), meta.mtime_nsec()),
        ns(meta.ctime(), meta.ctime_nsec()),
    ]
}

impl Scene {
    fn new(dies_at: u64) -> Scene {
        let dir = here::directory();
        let config = config(&session_name("matrix"));
        let path = dir.path().join("file-0");
        fs::write(&path, vec![7; OLD_LEN]).expect("a file");
        let work = Work::Commands { files: 1 };
        let mut spec = Spec::new(&config.session, dir.path(), false, work);
        spec.dies_at = Some(dies_at);
        let mut worker = Worker::ready(&spec);
        let write = |(offset, len, seed): (u64, u32, u32)| Op::Write {
            file: 0,
            handle: 0,
            offset,
            len,
            seed,
        };
        for run in RUNS {
            worker.run(&write(run));
        }
        // A death before the flush has written anything is later than what the file's times show.
        std::thread::sleep(LATE);
        let lived = worker.try_run(&Op::SyncAll { file: 0, handle: 0 });
        if lived {
            // With something owed again.
            worker.run(&write(RUNS[1]));
        }
        worker.kill();
        worker.end().assert_good_or_killed();
        let (content, times) = (fs::read(&path).expect("the file"), times_of(&path));
        let arena = arena_path(&config);
        let kept = dir.path().join("arena");
        fs::rename(&arena, &kept)
            .or_else(|_| fs::copy(&arena, &kept).map(drop))
            .expect("kept");
        let entry = entry_of(&kept, fs::metadata(&path).expect("a file").ino());
        Scene {
            dies_at,
            config,
            arena,
            kept,
            content,
            times,
            entry,
            lived,
            dir,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("file-0")
    }

    fn moved(&self) -> PathBuf {
        self.dir.path().join("elsewhere")
    }

    /// Everything as it was when the session had died, but that it died now, by the file's times: by its own, which show when it was last at the file,
    /// perhaps later. When that was, since 1970.
    fn restore(&self) -> Duration {
        let path = self.path();
        if self.moved().exists() {
            fs::rename(self.moved(), &path).expect("its name");
        }
        let _ = fs::remove_dir_all(&self.config.kept_dir);
        // In place: another inode would be another file.
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("the file");
        file.set_len(self.content.len() as u64).expect("its length");
        file.write_all_at(&self.content, 0).expect("written");
        let arena = copy_sparse(&self.kept, &self.arena);
        let now = times_of(&path);
        let late = [now[0] - self.times[0], now[1] - self.times[1]];
        let word_at = |at: usize| self.entry + at as u64;
        let read = |at: usize| {
            let mut word = [0; 8];
            arena.read_exact_at(&mut word, word_at(at)).expect("a word");
            u64::from_ne_bytes(word)
        };
        let write = |at: usize, word: u64| {
            let written = arena.write_all_at(&word.to_ne_bytes(), word_at(at));
            written.expect("a word");
        };
        let at = offset_of!(FileEntry, witness);
        let changes = read(offset_of!(FileEntry, changes)) as u32;
        let witnessed = offset_of!(FileEntry, witnessed);
        let is_right = read(witnessed) == sum_of(changes, [0, 8, 16].map(|word| read(at + word)));
        for (at, late) in [
            (at + 8, late[0]),
            (at + 16, late[1]),
            (offset_of!(FileEntry, changed_ns), late[1]),
        ] {
            write(at, read(at) + late);
        }
        if is_right {
            let moved = [0, 8, 16].map(|word| read(at + word));
            write(witnessed, sum_of(changes, moved));
        }
        let shown = read(offset_of!(FileEntry, changed_ns));
        Duration::from_nanos(shown.max(now[1]))
    }

    /// Does it long enough after a death, and returns where the file is then.
    fn change(&self, change: Change, died: Duration) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        std::thread::sleep((died + LATE).saturating_sub(now.expect("a time after 1970")));
        let path = self.path();
        let open = || {
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("the file")
        };
        match change {
            Change::Nothing => {}
            Change::Content => {
                let bytes = vec![9; (OUTSIDER.end - OUTSIDER.start) as usize];
                open()
                    .write_all_at(&bytes, OUTSIDER.start)
                    .expect("written");
            }
            Change::Length => open().set_len(10_000).expect("cut"),
            Change::Name => {
                fs::rename(&path, self.moved()).expect("renamed");
                return self.moved();
            }
        }
        path
    }

    /// A recovery that dies before its so manieth change of a word. How many it made, if it ended.
    fn recover_and_die(&self, dies_at: u64) -> Option<u64> {
        let mut ends = [0; 2];
        // SAFETY: two numbers of ours.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child recovers, says how far it got, and ends without unwinding into the test's frames.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "a child");
        if child == 0 {
            let before = sim::changes();
            let ended = std::panic::catch_unwind(|| {
                sim::crash_after_changes(dies_at, || recover(&self.arena, &self.config).is_ok())
            });
            let whole = matches!(ended, Ok(Some(true)));
            let count = if whole { sim::changes() - before } else { 0 };
            // SAFETY: memory of ours; nothing of the parent's runs.
            unsafe {
                libc::write(ends[1], (&raw const count).cast(), 8);
                libc::_exit(i32::from(ended.is_err()));
            }
        }
        let (mut status, mut count) = (0, 0u64);
        // SAFETY: memory of ours, and descriptors that nobody else has.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut count).cast(), 8);
            libc::close(ends[0]);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert_eq!(status, 0, "a recovery that is cut off at {dies_at}");
        (count != 0).then_some(count)
    }

    /// Fails where the file is not what the session had left, once what was kept aside is put back.
    fn assert_whole(&self, path: &Path, what: &str) {
        let mut wanted = vec![7; OLD_LEN];
        wanted.resize(NEW_LEN, 0);
        for (offset, len, seed) in RUNS {
            fill(seed, offset, &mut wanted[offset as usize..][..len as usize]);
        }
        assert!(fs::read(path).expect("the file") == wanted, "{what}");
    }

    /// One cell of the matrix.
    fn play(&self, change: Change, cut_off: &[u64]) {
        let dies_at = self.dies_at;
        let what = format!("{change:?}, death at {dies_at}, recoveries cut off at {cut_off:?}");
        let died = self.restore();
        let path = self.change(change, died);
        let before = fs::read(&path).expect("the file");
        for &at in cut_off {
            self.recover_and_die(at);
        }
        let report: Option<Report> = self
            .arena
            .exists()
            .then(|| recover(&self.arena, &self.config).unwrap_or_else(|e| panic!("{what}: {e}")));
        let removed = report.as_ref().is_none_or(|report| report.removed);
        assert!(removed, "{what}: {report:?}");
        let after = fs::read(&path).expect("the file");
        match change {
            Change::Nothing => {}
            Change::Content => {
                let range = OUTSIDER.start as usize..OUTSIDER.end as usize;
                let theirs = after[range].iter().all(|&byte| byte == 9);
                assert!(theirs, "{what}: {report:?}");
            }
            Change::Length | Change::Name => {
                assert!(after == before, "{what}: {} bytes, {report:?}", after.len());
            }
        }
        if change != Change::Length {
            workers::put_back(&self.config, |_| path.clone());
            self.assert_whole(&path, &what);
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

/// Where the entry of an inode begins.
fn entry_of(arena: &Path, inode: u64) -> u64 {
    let bytes = fs::read(arena).expect("an arena");
    let entries = bytes.chunks_exact(size_of::<FileEntry>());
    let known = |entry: &[u8]| entry[offset_of!(FileEntry, inode)..][..8] == inode.to_ne_bytes();
    let index = entries
        .into_iter()
        .position(known)
        .expect("it is in the arena");
    (index * size_of::<FileEntry>()) as u64
}

/// Copies what a file has, and leaves its holes.
fn copy_sparse(from: &Path, to: &Path) -> fs::File {
    let source = fs::File::open(from).expect("a file");
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let target = options.open(to).expect("a copy");
    let len = source.metadata().expect("a length").len();
    target.set_len(len).expect("its length");
    let mut piece = vec![0; 64 * 1024];
    let mut at = 0;
    while at < len {
        let here = piece.len().min((len - at) as usize);
        source.read_exact_at(&mut piece[..here], at).expect("bytes");
        if piece[..here].iter().any(|&byte| byte != 0) {
            target.write_all_at(&piece[..here], at).expect("written");
        }
        at += here as u64;
    }
    target
}

fn is_manageable() -> bool {
    use std::os::fd::AsFd;
    let file = tempfile::tempfile_in(here::directory().path()).expect("a file");
    forebay::device::RealFile::reopen(file.as_fd())
        .map_err(here::skipped)
        .is_ok()
}

/// Accesses of the part of a sync that is looked at.
const SYNC: u64 = 700;
/// After the sync.
const AFTER: u64 = u64::MAX - 1;

/// Plays so many cells, a few moments of death with many recoveries each. How many were played.
fn sample(seed: u64, moments: u64, cells: u64) -> u64 {
    let dice = &mut SplitMix64::new(seed);
    let mut played = 0;
    for _ in 0..moments {
        let scene = Scene::new(match dice.below(4) {
            0 => AFTER,
            _ => dice.below(SYNC),
        });
        scene.restore();
        let all = scene.recover_and_die(u64::MAX - 1).expect("it ends");
        for cell in 0..cells {
            let change = CHANGES[(cell % 4) as usize];
            // The end of a recovery is where it writes.
            let mut step = || match dice.below(2) {
                0 => dice.below(all + 1),
                _ => all - dice.below(all / 3 + 1),
            };
            let cut_off = [step(), step()];
            let times = [1, 1, 2, 0][dice.below(4) as usize];
            println!("a cell of seed {seed}");
            scene.play(change, &cut_off[..times]);
            played += 1;
        }
    }
    played
}

#[test]
fn no_cell_of_the_matrix_overwrites_anything() {
    if !is_manageable() {
        return;
    }
    let seeds = here::seeds(0..1, 1);
    let played: u64 = seeds.map(|seed| sample(seed, 2, 24)).sum();
    println!("{played} cells");
}

/// A session that dies before, in and after its flush; each change; each step of a recovery.
#[test]
#[ignore = "an hour; FOREBAY_TEST_STRIDE thins it out"]
fn the_whole_matrix_overwrites_nothing() {
    if !is_manageable() {
        return;
    }
    let stride = here::number("FOREBAY_TEST_STRIDE", 40);
    let moments = here::number("FOREBAY_TEST_MOMENTS", 12);
    let from = forebay_model::fresh_seed();
    let play = |worker: u64| {
        let mut played = [0u64; 3];
        for moment in (worker..moments).step_by(2) {
            let scene = Scene::new(match moments - moment {
                1 => AFTER,
                _ => SYNC * moment / moments,
            });
            scene.restore();
            let all = scene.recover_and_die(u64::MAX - 1).expect("it ends");
            for (index, change) in CHANGES.into_iter().enumerate() {
                for step in
                    (((from + index as u64 + moment) % stride)..all).step_by(stride as usize)
                {
                    scene.play(change, &[step]);
                    played[usize::from(scene.lived)] += 1;
                }
            }
            played[2] = played[2].max(all);
        }
        played
    };
    let [first, second] = std::thread::scope(|scope| {
        let workers = [0, 1].map(|worker| scope.spawn(move || play(worker)));
        workers.map(|worker| worker.join().expect("all cells"))
    });
    println!(
        "{} cells of sessions that died before or in their flush, {} after it; up to {} steps in a recovery",
        first[0] + second[0],
        first[1] + second[1],
        first[2].max(second[2])
    );
}

#[test]
fn a_recovery_that_writes_blindly_is_found() {
    if !is_manageable() {
        return;
    }
    for change in [Change::Content, Change::Length] {
        let scene = Scene::new(200);
        let writes = || scene.play(change, &[]);
        assert!(workers::is_found(sim::Bug::BlindWitness, writes));
    }
}
