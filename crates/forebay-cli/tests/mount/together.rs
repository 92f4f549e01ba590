//! Programs on several hosts that work in one file of a pool at once: what they read is held against what they have written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use forebay_model::history::{self, Act, CELL_BYTES, ChangeId, Checked, Event};
use forebay_model::{SplitMix64, fresh_seed};

use crate::pools::Hosts;

/// How long programs work; `FOREBAY_TEST_TOGETHER_SECONDS` says another time.
const SECONDS: u64 = 1;
/// What one program does at most in a second: all of it is looked at.
const MOST: usize = 500;
/// Programs of each host.
const PROGRAMS: usize = 2;
/// Bytes before the first cell: no cell lies as blocks do, and some lie in two of them.
const HEAD: u64 = 3;
/// Cells where writes begin and truncations end: 16 blocks.
const CELLS: u64 = 8192;
/// Cells of a block of these pools.
const BLOCK: u64 = 512;

/// What programs do with the file.
#[derive(Clone, Copy)]
enum Work {
    /// Everything.
    All,
    /// Appends and reads.
    Appends,
}

/// A program, with descriptions of its own of the file.
struct Program {
    id: ChangeId,
    file: File,
    append: File,
    random: SplitMix64,
    begun: Instant,
    events: Vec<Event>,
}

fn place(cell: usize) -> u64 {
    HEAD + (cell * CELL_BYTES) as u64
}

impl Program {
    fn new(path: &Path, writer: u16, seed: u64, begun: Instant) -> Self {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path).expect("opened");
        let append = options.append(true).open(path).expect("opened");
        Program {
            id: ChangeId {
                writer,
                sequence: 0,
            },
            file,
            append,
            random: SplitMix64::new(seed ^ u64::from(writer) << 32),
            begun,
            events: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn below(&mut self, bound: u64) -> usize {
        self.random.below(bound) as usize
    }

    /// Where something begins: half of the time in two blocks, which all programs want.
    fn at(&mut self) -> usize {
        let wide = self.random.below(2) == 0;
        self.below(if wide { CELLS } else { 2 * BLOCK })
    }

    /// How many cells: most often a part of a block, now and then up to eight blocks.
    fn length(&mut self) -> usize {
        let most = [64, 64, BLOCK, 2 * BLOCK, 8 * BLOCK][self.below(5)];
        1 + self.below(most)
    }

    fn act(&mut self, work: Work) {
        self.id.sequence += 1;
        let (at, length) = (self.at(), self.length());
        let start = self.now();
        let act = match (work, self.below(20)) {
            (Work::All, 0..6) => self.write(at, length),
            (Work::All, 6..8) | (Work::Appends, 0..8) => self.append(length),
            (Work::All, 8) => self.cut(at),
            (Work::All, 9) => self.look(),
            // From behind, where others append.
            (Work::Appends, 8..14) => {
                let size = self.size();
                self.read(size.saturating_sub(length), 2 * length)
            }
            _ => self.read(at, length),
        };
        let end = self.now();
        self.events.push(Event {
            id: self.id,
            act,
            start,
            end,
        });
    }

    fn bytes(&self, length: usize) -> Vec<u8> {
        let cells = (0..length).flat_map(|index| self.id.value(index).to_le_bytes());
        cells.collect()
    }

    fn write(&mut self, at: usize, length: usize) -> Act {
        let bytes = self.bytes(length);
        let count = self.file.write_at(&bytes, place(at));
        assert_eq!(count.expect("written"), bytes.len());
        Act::Write(at..at + length)
    }

    fn append(&mut self, length: usize) -> Act {
        let bytes = self.bytes(length);
        let count = rustix::io::write(&self.append, &bytes);
        assert_eq!(count.expect("appended"), bytes.len());
        Act::Append(length)
    }

    fn cut(&mut self, at: usize) -> Act {
        self.file.set_len(place(at)).expect("cut");
        Act::Truncate(at)
    }

    /// Nothing is behind the end that the file is said to have.
    fn look(&mut self) -> Act {
        let size = self.size();
        Act::Read(size, vec![0; (CELLS as usize).saturating_sub(size)])
    }

    fn size(&self) -> usize {
        let bytes = self.file.metadata().expect("told").len() - HEAD;
        assert_eq!(bytes % CELL_BYTES as u64, 0, "a size that nobody has made");
        bytes as usize / CELL_BYTES
    }

    fn read(&mut self, at: usize, length: usize) -> Act {
        let mut bytes = vec![0; length * CELL_BYTES];
        let count = self.file.read_at(&mut bytes, place(at)).expect("read");
        assert_eq!(count % CELL_BYTES, 0, "an end that nobody has made");
        // What is behind the end is nothing, and so are zeros.
        let cells = bytes.as_chunks().0.iter();
        Act::Read(at, cells.map(|cell| u64::from_le_bytes(*cell)).collect())
    }
}

fn time() -> Duration {
    let told = std::env::var("FOREBAY_TEST_TOGETHER_SECONDS").ok();
    let told = told.map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(told.unwrap_or(SECONDS))
}

/// Programs of all these hosts at once, in one file; then each host reads all of it.
fn work(points: &[PathBuf], name: &str, work: Work) -> Checked {
    let paths: Vec<PathBuf> = points.iter().map(|point| point.join(name)).collect();
    std::fs::write(&paths[0], [255; HEAD as usize]).expect("made");
    let (begun, seed) = (Instant::now(), fresh_seed());
    let mut programs: Vec<Program> = { (1..).zip(paths.iter().cycle()) }
        .take(PROGRAMS * points.len())
        .map(|(writer, path)| Program::new(path, writer, seed, begun))
        .collect();
    thread::scope(|scope| {
        for program in &mut programs {
            scope.spawn(move || {
                let most = MOST * time().as_secs() as usize;
                while begun.elapsed() < time() && program.events.len() < most {
                    program.act(work);
                }
            });
        }
    });
    for program in &mut programs[..points.len()] {
        let start = program.now();
        let size = program.size();
        let mut cells = Vec::new();
        // One step each: what the kernel asks for at once.
        for at in (0..size).step_by(BLOCK as usize * 8) {
            match program.read(at, size.saturating_sub(at).min(BLOCK as usize * 8)) {
                Act::Read(_, values) => cells.extend(values),
                _ => unreachable!("a read"),
            }
        }
        let (id, end) = (program.id, program.now());
        let act = Act::Read(0, cells);
        program.events.push(Event {
            id,
            act,
            start,
            end,
        });
    }
    let worked = begun.elapsed();
    let events: Vec<Event> = programs.into_iter().flat_map(|one| one.events).collect();
    let checked = history::check(&events).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    let all = begun.elapsed();
    println!("{name}, seed {seed}: {checked:?}; {worked:.1?}, with the check {all:.1?}");
    checked
}

/// Two servers, and hosts whose requests go these ways.
fn together(name: &str, port: u16, paths: &[&str]) {
    let Some(mut hosts) = Hosts::unmounted(2, name, port, "copies = 2", &[]) else {
        return;
    };
    let mount = |(at, path): (usize, &&str)| hosts.mount_by(&format!("host{at}"), path);
    let points: Vec<PathBuf> = paths.iter().enumerate().map(mount).collect();
    for (file, kind) in [("all", Work::All), ("appends", Work::Appends)] {
        let checked = work(&points, file, kind);
        // Else nobody was in anybody's way, and nothing was to be found.
        let Checked {
            of_others, of_open, ..
        } = checked;
        assert!(of_others >= 20 && of_open > 0, "{file}: {checked:?}");
    }
    (0..points.len()).for_each(|_| hosts.umount(0));
}

#[test]
fn two_hosts_work_in_one_file_by_their_memory() {
    together("pool-local", 7611, &["local", "local"]);
}

#[test]
fn two_hosts_work_in_one_file_past_their_memory() {
    together("pool-remote", 7615, &["remote", "remote"]);
}

#[test]
fn two_hosts_work_in_one_file_by_lot() {
    together("pool-lot", 7621, &["ratio:50", "ratio:50"]);
}

#[test]
fn two_hosts_work_in_one_file_as_they_learn() {
    together("pool-learn", 7625, &["seed", "seed"]);
}

#[test]
fn three_hosts_work_in_one_file_each_its_own_way() {
    together("pool-three", 7631, &["local", "remote", "ratio:50"]);
}
