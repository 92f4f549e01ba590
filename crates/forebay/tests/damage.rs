//! Arenas with damaged words are recovered: nothing panics, hangs, or writes nonsense into a file.
//!
//! A worker is killed with bytes owed to two files; words of its arena are overwritten at random, and a recovery follows.
//! Afterwards each byte of each file is what it was before, or what was acknowledged.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::Config;
use forebay::frame::header::Header;
use forebay::limits::BLOCK_PAGES;
use forebay::memory::files::FileEntry;
use forebay::memory::layout::{Counts, Layout};
use forebay::memory::superblock::Superblock;
use forebay_model::{Op, SplitMix64, fill};
use workers::{Spec, Work, Worker, arena_path, config, session_name};

/// Bytes that the dead session owes: file, offset, length, seed. Parts of pages, a whole block, and more than the file had.
const RUNS: [(u8, u64, u32, u32); 6] = [
    (0, 100, 5000, 1),
    (0, 20_000, 9000, 2),
    (0, 262_144, 262_144, 3),
    (0, 700_001, 3, 4),
    (1, 5, 10, 5),
    (1, 40_960, 8192, 6),
];
const OLD_LEN: usize = 640 * 1024;
const FILES: [&str; 3] = ["file-0", "file-1", "bystander"];
const ENTRY_BYTES: usize = size_of::<FileEntry>();
/// Words of an entry that come before its path.
const ENTRY_WORDS: usize = offset_of!(FileEntry, path) / 8;

fn old(file: usize) -> Vec<u8> {
    let mut bytes = vec![0; OLD_LEN];
    fill(100 + file as u32, 0, &mut bytes);
    bytes
}

/// What programs saw of a file before the session died.
fn new(file: usize) -> Vec<u8> {
    let mut bytes = old(file);
    for (of, offset, len, seed) in RUNS {
        let end = offset as usize + len as usize;
        if usize::from(of) == file {
            bytes.resize(bytes.len().max(end), 0);
            fill(seed, offset, &mut bytes[offset as usize..end]);
        }
    }
    bytes
}

fn layout_of(superblock: &[u8]) -> Layout {
    let counts = &superblock[offset_of!(Superblock, counts)..];
    let count = |index: usize| {
        let bytes = counts[index * 4..][..4].try_into();
        u32::from_le_bytes(bytes.expect("four bytes"))
    };
    Layout::new(Counts {
        threads: count(0),
        files: count(1),
        nodes: count(2),
        headers: count(3),
        frames: count(4),
    })
}

/// A dead session's arena, kept to be damaged again and again.
struct Scene {
    config: Config,
    arena: PathBuf,
    /// Its tables.
    sound: Vec<u8>,
    /// Words that are not zero, and those of the files' entries and headers: others are not worth damaging.
    used: Vec<usize>,
    records: [Vec<usize>; 3],
    /// Changed and modified times of the files, as the arena knows them.
    times: [[u64; 2]; 2],
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let dir = here::directory();
        let config = config(&session_name("damage"));
        let mut scene = Scene {
            arena: arena_path(&config),
            config,
            sound: Vec::new(),
            used: Vec::new(),
            records: Default::default(),
            times: [[0; 2]; 2],
            dir,
        };
        scene.write_files();
        // So that no two times of two files, or of one, are alike.
        std::thread::sleep(Duration::from_millis(20));
        scene.write_files();
        scene.work();
        scene.times = [0, 1].map(|file| scene.times_of(file));
        scene.sound = scene.tables();
        let ends = [0, 1].map(|file| scene.entry(file) + offset_of!(FileEntry, disk_end) / 8);
        let is_used = |word: &usize| {
            scene.sound[word * 8..][..8].iter().any(|&byte| byte != 0) && !ends.contains(word)
        };
        scene.used = (0..scene.sound.len() / 8).filter(is_used).collect();
        scene.records = scene.records();
        // Where the device file ends is said in this one place, and what is thought to lie beyond is written as zeros.
        scene.records[0].retain(|word| !ends.contains(word));
        scene
    }

    /// The first word of a file's entry.
    fn entry(&self, file: usize) -> usize {
        let inode = fs::metadata(self.path(file)).expect("a file").ino();
        let words = self.sound.as_chunks::<8>().0;
        let named = words.iter().position(|word| *word == inode.to_le_bytes());
        named.expect("it is in the arena") * 8 / ENTRY_BYTES * ENTRY_BYTES / 8
    }

    /// Words of the entries, without the paths; of the headers of what is owed, what is no page's; and the pages'.
    fn records(&self) -> [Vec<usize>; 3] {
        let mut records = [Vec::new(), Vec::new(), Vec::new()];
        for entry in [0, 1].map(|file| self.entry(file)) {
            records[0].extend(entry..entry + ENTRY_WORDS);
        }
        let layout = layout_of(&self.sound);
        let headers = self.sound[layout.headers_offset()..].chunks_exact(size_of::<Header>());
        for (index, header) in headers.enumerate() {
            if header[8..16] != [0; 8] {
                let first = (layout.headers_offset() + index * size_of::<Header>()) / 8;
                let pages = size_of::<Header>() / 8 - BLOCK_PAGES;
                records[1].extend(first..first + pages);
                records[2].extend(first + pages..first + size_of::<Header>() / 8);
            }
        }
        records
    }

    fn path(&self, file: usize) -> PathBuf {
        self.dir.path().join(FILES[file])
    }

    fn write_files(&self) {
        for file in 0..FILES.len() {
            // In place: another inode would be another file.
            fs::write(self.path(file), old(file)).expect("written");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn times_of(&self, file: usize) -> [u64; 2] {
        let meta = fs::metadata(self.path(file)).expect("a file");
        let ns = |s: i64, ns: i64| (s * 1_000_000_000 + ns) as u64;
        [
            ns(meta.mtime(), meta.mtime_nsec()),
            ns(meta.ctime(), meta.ctime_nsec()),
        ]
    }

    fn work(&self) {
        let work = Work::Commands { files: 2 };
        let spec = Spec::new(&self.config.session, self.dir.path(), false, work);
        let mut worker = Worker::ready(&spec);
        for (file, offset, len, seed) in RUNS {
            let op = Op::Write {
                file,
                handle: 0,
                offset,
                len,
                seed,
            };
            assert_eq!(worker.run(&op), format!("{len} bytes written"));
        }
        worker.kill();
        worker.end().assert_good_or_killed();
    }

    fn tables(&self) -> Vec<u8> {
        let arena = fs::File::open(&self.arena).expect("an arena");
        let mut bytes = vec![0; 4096];
        arena.read_exact_at(&mut bytes, 0).expect("a superblock");
        let layout = layout_of(&bytes);
        let headers = layout.counts.headers as usize * size_of::<Header>();
        bytes.resize(layout.headers_offset() + headers, 0);
        arena.read_exact_at(&mut bytes, 0).expect("its tables");
        bytes
    }

    /// The arena as it was, but that it knows the files' times as they are now: they were put back.
    fn restored(&self) -> Vec<u8> {
        self.write_files();
        let mut bytes = self.sound.clone();
        for file in 0..2 {
            let now = self.times_of(file);
            for (was, is) in self.times[file].iter().zip(now) {
                let words = bytes.as_chunks_mut::<8>().0;
                let hits = words.iter_mut().filter(|word| **word == was.to_le_bytes());
                hits.for_each(|word| *word = is.to_le_bytes());
            }
        }
        bytes
    }

    /// Overwrites words as `seed` says, recovers a copy, and says what is wrong afterwards.
    fn damage(&self, seed: u64) -> Result<String, String> {
        let mut random = SplitMix64::new(seed);
        let damages: Vec<(usize, u64)> = (0..1 + random.below(4))
            .map(|_| {
                // Not the magic: what has none is no arena.
                let among = match random.below(4) {
                    0 => &self.used[1..],
                    at => &self.records[at as usize - 1][..],
                };
                let word = among[random.below(among.len() as u64) as usize];
                let kind = random.below(3);
                (word, self.value(&mut random, kind))
            })
            .collect();
        self.recover_with(&damages)
    }

    /// Anything, what indices and states look like, or all bits.
    fn value(&self, random: &mut SplitMix64, kind: u64) -> u64 {
        match kind {
            0 => random.next_u64(),
            1 => random.below(64),
            _ => u64::MAX,
        }
    }

    /// Overwrites words, recovers a copy, and says what is wrong afterwards.
    fn recover_with(&self, damages: &[(usize, u64)]) -> Result<String, String> {
        let mut bytes = self.restored();
        for (word, value) in damages {
            bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        // A copy, because an arena that has been recovered is removed.
        let config = config(&session_name("damaged"));
        let copy = arena_path(&config);
        fs::copy(&self.arena, &copy).expect("a copy");
        let file = fs::OpenOptions::new().write(true).open(&copy);
        file.and_then(|file| file.write_all_at(&bytes, 0))
            .expect("damaged");
        let spec = Spec::new(
            &config.session,
            Path::new("/"),
            false,
            Work::Recover { path: copy.clone() },
        );
        let mut worker = Worker::ready(&spec);
        worker.go();
        let ended = worker.end();
        let _ = fs::remove_file(&copy);
        let _ = fs::remove_dir_all(&config.kept_dir);
        let panicked = ended.lines.iter().any(|line| line.contains("panicked"));
        if panicked || ended.status.signal().is_some() {
            return Err(format!("recovery died: {ended:?}"));
        }
        for (file, name) in FILES.iter().enumerate() {
            self.nonsense(file)
                .map_err(|why| format!("{name}: {why}; {:?}", ended.lines))?;
        }
        Ok(format!("{:?}", ended.lines))
    }

    /// Fails where a file has bytes that it neither had nor was to have.
    fn nonsense(&self, file: usize) -> Result<(), String> {
        let found = fs::read(self.path(file)).expect("a file");
        let (old, new) = (old(file), new(file));
        if found.len() < old.len() || found.len() > new.len() {
            return Err(format!("it has {} bytes", found.len()));
        }
        let at = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
        let wrong = |&i: &usize| found[i] != at(&old, i) && found[i] != at(&new, i);
        let count = (0..found.len()).filter(wrong).count();
        match (0..found.len()).find(wrong) {
            None => Ok(()),
            Some(first) => Err(format!("{count} wrong bytes from {first} on")),
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

/// Fails for the first of the seeds whose damage does harm.
fn harm(seeds: impl Iterator<Item = u64>) -> Result<(), String> {
    let scene = Scene::new();
    for seed in seeds {
        scene
            .damage(seed)
            .map_err(|why| format!("FOREBAY_TEST_SEED={seed}: {why}"))?;
    }
    Ok(())
}

#[test]
fn an_arena_without_damage_is_written() {
    let scene = Scene::new();
    let report = scene.recover_with(&[]).expect("no harm");
    for file in 0..2 {
        assert!(
            fs::read(scene.path(file)).expect("a file") == new(file),
            "{report}"
        );
    }
}

#[test]
fn damaged_arenas_do_no_harm() {
    harm(here::seeds(0..30, 10)).unwrap();
}

#[test]
#[ignore = "long"]
fn many_damaged_arenas_do_no_harm() {
    harm(here::fresh_seeds(3000)).unwrap();
}

/// Each word of the records by itself.
#[test]
#[ignore = "a minute"]
fn no_word_does_harm_by_itself() {
    let scene = Scene::new();
    let mut random = SplitMix64::new(9);
    for &word in scene.records.iter().take(2).flatten() {
        for kind in 0..3 {
            let value = scene.value(&mut random, kind);
            if let Err(why) = scene.recover_with(&[(word, value)]) {
                panic!("word {word} with {value:#x}: {why}");
            }
        }
    }
}

#[test]
fn a_recovery_that_believes_anything_is_found() {
    let believed = || harm(0..60).unwrap();
    assert!(workers::is_found(forebay::sim::Bug::TrustWords, believed));
}
