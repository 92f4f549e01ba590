//! What each technique of StreamCache is worth here: ways to find free memory, to track what is owed, and to order what is
//! written, each alone and all together, in turn.
//!
//! The sides are all that can be combined: the order of streams needs streams. *Nothing* is one list under one lock, marks alone, and
//! files one after the other. Requests are of 4 KiB. Time is nanoseconds for each request as the slowest thread sees it, until the
//! last request has returned; where writeback runs, until all is durable. The instructions are those of the first thread in
//! user space: a count does not hang on what else runs.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use forebay::config::{Allocator, DirtyTracking, FlushOrder, Options, Route};
use forebay::{Config, File, OpenOptions, Session};
use serde::Serialize;

use crate::failure::{Context, Failure, Result};
use crate::instructions::Instructions;
use crate::memory::{PAGE, Random};
use crate::report::columns;
use crate::run::{Bench, INTERRUPTED};
use crate::stats::Summary;
use crate::zipf::Zipf;

/// One combination of the switches.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Techniques {
    allocator: Allocator,
    dirty_tracking: DirtyTracking,
    flush_order: FlushOrder,
}

impl Techniques {
    fn name(self) -> String {
        let allocator = match self.allocator {
            Allocator::Regions => "regions",
            Allocator::RegionsStock => "regions+stock",
        };
        let tracking = match self.dirty_tracking {
            DirtyTracking::Page => "page",
            DirtyTracking::Stream => "stream",
        };
        let order = match self.flush_order {
            FlushOrder::Page => "page",
            FlushOrder::Stream => "stream",
        };
        format!("{allocator}, {tracking}, {order}")
    }
}

/// Tracking, and the order of flushes that goes with it.
const TRACKINGS: [(DirtyTracking, FlushOrder); 3] = [
    (DirtyTracking::Page, FlushOrder::Page),
    (DirtyTracking::Stream, FlushOrder::Page),
    (DirtyTracking::Stream, FlushOrder::Stream),
];

/// All that can be combined: nothing first, everything last.
pub fn all() -> Vec<Techniques> {
    let allocators = [Allocator::Regions, Allocator::RegionsStock];
    let with = |allocator| {
        TRACKINGS.map(|(dirty_tracking, flush_order)| Techniques {
            allocator,
            dirty_tracking,
            flush_order,
        })
    };
    allocators.into_iter().flat_map(with).collect()
}

/// The ways to track, with all else as it is by default: for the row about the cost of tracking.
pub fn trackings() -> Vec<Techniques> {
    all().split_off(TRACKINGS.len())
}

/// What is done with a file of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Written in order, to memory; nothing is written back meanwhile.
    Fresh,
    /// As `Fresh`, each of two threads its half.
    TwoThreads,
    /// Pages of a file that is in memory and owed, each as likely as any other.
    Uniform,
    /// The same by a Zipf distribution (0.99), the pages shuffled.
    Zipf,
    /// Pages at random of a clean file that is in memory, 40 for each block.
    OwedAgain,
    /// The first page of each block of a file 16 times as large, at random: nothing but first requests.
    FirstOfBlock,
    /// Written in order, twice what may be owed: until it is durable.
    Writeback,
}

/// Those of the table of techniques.
pub const ABLATION: [Work; 6] = [
    Work::Fresh,
    Work::TwoThreads,
    Work::Uniform,
    Work::Zipf,
    Work::FirstOfBlock,
    Work::Writeback,
];

/// Those of the row about tracking.
pub const TRACKING: [Work; 5] = [
    Work::Fresh,
    Work::Uniform,
    Work::Zipf,
    Work::OwedAgain,
    Work::FirstOfBlock,
];

const BLOCK: u64 = 256 << 10;
/// How much longer the file is in which only first pages are written.
const SPARSE: u64 = 16;

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Fresh => "in order, new",
            Work::TwoThreads => "in order, new, 2 threads",
            Work::Uniform => "uniform, owed",
            Work::Zipf => "zipf, owed",
            Work::OwedAgain => "uniform, clean, 40 a block",
            Work::FirstOfBlock => "first of each block",
            Work::Writeback => "2 x what may be owed, durable",
        }
    }

    fn threads(self) -> usize {
        if self == Work::TwoThreads { 2 } else { 1 }
    }

    fn file_bytes(self, size: u64) -> u64 {
        match self {
            Work::FirstOfBlock => SPARSE * size,
            _ => size,
        }
    }

    /// What a thread writes, as offsets.
    fn offsets(self, size: u64, thread: usize) -> Vec<u64> {
        let page = PAGE as u64;
        let mut random = Random::new(7 + thread as u64);
        let pages = size / page;
        match self {
            Work::Fresh | Work::Writeback => (0..pages).map(|index| index * page).collect(),
            Work::TwoThreads => {
                let half = pages / 2;
                let first = thread as u64 * half;
                (first..first + half).map(|index| index * page).collect()
            }
            Work::Uniform => (0..pages).map(|_| random.below(pages) * page).collect(),
            Work::Zipf => {
                let zipf = Zipf::new(pages, 0.99);
                let mut place = |_| zipf.draw(&mut random) * page;
                (0..pages).map(&mut place).collect()
            }
            Work::OwedAgain => {
                let count = size / BLOCK * 40;
                (0..count).map(|_| random.below(pages) * page).collect()
            }
            Work::FirstOfBlock => {
                let mut blocks: Vec<u64> = (0..SPARSE * size / BLOCK).collect();
                for last in (1..blocks.len()).rev() {
                    blocks.swap(last, random.below(last as u64 + 1) as usize);
                }
                blocks.into_iter().map(|block| block * BLOCK).collect()
            }
        }
    }

    /// Whether the whole file is in memory before, and whether it is clean then.
    fn before(self) -> (bool, bool) {
        match self {
            Work::Uniform | Work::Zipf => (true, false),
            Work::OwedAgain => (true, true),
            _ => (false, false),
        }
    }
}

/// What one side did in one work.
#[derive(Serialize)]
pub struct Cell {
    #[serde(flatten)]
    techniques: Techniques,
    /// Nanoseconds for each request, of every run.
    runs_ns: Vec<f64>,
    /// Its median and ends.
    ns: Summary,
    /// Instructions for each request, the median; none where they cannot be counted.
    instructions: Option<f64>,
    /// The median against that of the first side.
    against_first: f64,
}

/// One work.
#[derive(Serialize)]
pub struct Part {
    work: &'static str,
    bytes: u64,
    sides: Vec<Cell>,
}

/// Measures the works with the sides in turn, with files of `size` bytes.
pub fn measure(
    bench: &Bench,
    title: &str,
    (works, sides): (&[Work], &[Techniques]),
    size: u64,
) -> Result<Vec<Part>> {
    let longest = works.iter().map(|work| work.file_bytes(size)).max();
    let place = bench.storage.place(2 * longest.unwrap_or(size))?;
    println!(
        "\n{title}: nanoseconds for a request of 4 KiB, {} MiB of requests, on {} ({})",
        size >> 20,
        place.about.file_system,
        place.about.device
    );
    let mut parts = Vec::new();
    for &work in works {
        let mut runs = vec![(Vec::new(), Vec::new()); sides.len()];
        for round in 0..bench.runs {
            // Another begins each round.
            for index in (0..sides.len()).map(|index| (index + round) % sides.len()) {
                if INTERRUPTED.load(Relaxed) {
                    return Err(Failure::Interrupted);
                }
                let side = sides[index];
                let (ns, count) = one_run(&place.dir, work, side, size).context("ablation")?;
                eprintln!(
                    "{}: run {}: {}: {ns:.1} ns",
                    work.name(),
                    round + 1,
                    side.name()
                );
                runs[index].0.push(ns);
                runs[index].1.extend(count);
            }
        }
        parts.push(part(work, sides, size, runs));
    }
    print!("{}", columns(&table(&parts)));
    println!("\n{}", markdown(&table(&parts)));
    Ok(parts)
}

fn part(work: Work, sides: &[Techniques], bytes: u64, runs: Vec<(Vec<f64>, Vec<f64>)>) -> Part {
    let median = |runs: &[f64]| Summary::of(runs).map(|summary| summary.median);
    let first = runs.first().and_then(|(ns, _)| median(ns)).unwrap_or(1.0);
    let cell = |(&techniques, (runs_ns, counts)): (&Techniques, (Vec<f64>, Vec<f64>))| {
        let ns = Summary::of(&runs_ns).expect("at least one run");
        Cell {
            techniques,
            ns,
            instructions: median(&counts),
            against_first: ns.median / first,
            runs_ns,
        }
    };
    Part {
        work: work.name(),
        bytes,
        sides: sides.iter().zip(runs).map(cell).collect(),
    }
}

/// A line for each side, a column for each work.
fn table(parts: &[Part]) -> Vec<Vec<String>> {
    let works = parts.iter().map(|part| part.work.to_owned());
    let head = std::iter::once("allocator, tracking, order".to_owned());
    let mut rows: Vec<Vec<String>> = vec![head.chain(works).collect()];
    let sides = parts.first().map_or(&[][..], |part| &part.sides);
    for (index, side) in sides.iter().enumerate() {
        let cell = |part: &Part| {
            let cell = &part.sides[index];
            let share = (cell.against_first - 1.0) * 100.0;
            let count = cell.instructions;
            let count = count.map_or(String::new(), |count| format!(", {count:.0} instr"));
            format!("{:.0} ({share:+.1} %{count})", cell.ns.median)
        };
        let name = std::iter::once(side.techniques.name());
        rows.push(name.chain(parts.iter().map(cell)).collect());
    }
    rows
}

/// The same table for a document.
fn markdown(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let mut lines = rows.iter().map(line);
    let head = lines.next().unwrap_or_default();
    let count = rows.first().map_or(0, Vec::len);
    format!(
        "{head}|{}\n{}",
        "---|".repeat(count),
        lines.collect::<String>()
    )
}

/// A session and a file of its own; nanoseconds and instructions for each request.
fn one_run(
    dir: &Path,
    work: Work,
    side: Techniques,
    size: u64,
) -> std::io::Result<(f64, Option<f64>)> {
    let config = Config::builder().options(Options {
        arena_dir: crate::place::arena_dir().map(Path::to_owned),
        route: Some(Route::Scrap),
        allocator: Some(side.allocator),
        dirty_tracking: Some(side.dirty_tracking),
        flush_order: Some(side.flush_order),
        ..Options::default()
    });
    let config = config.build().map_err(std::io::Error::other)?;
    let writes_back = work == Work::Writeback;
    let dirty_bytes_max = if writes_back { size / 2 } else { config.memory };
    let config = Config {
        session: format!("bench-{}-ablation", std::process::id()),
        dirty_bytes_max,
        dirty_background: if writes_back {
            size / 4
        } else {
            dirty_bytes_max
        },
        flush_after: None,
        flush_interval: None,
        ..config
    };
    let session = Session::open(config)?;
    session.warm(size + size / 4)?;
    let path = dir.join("forebay-bench.ablation");
    // With space everywhere: what has none goes past memory.
    preallocate(&path, work.file_bytes(size))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.open_file(&path, &options)?;
    let outcome = prepare(&file, work, size).and_then(|()| at_once(&file, work, size));
    // What was written is of no more use: it need not reach the device.
    file.set_len(0)?;
    drop(file);
    drop(session);
    fs::remove_file(&path)?;
    outcome
}

fn preallocate(path: &Path, bytes: u64) -> std::io::Result<()> {
    let file = fs::File::create(path)?;
    // SAFETY: allocates space in the file; no memory of ours is involved.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn prepare(file: &File, work: Work, size: u64) -> std::io::Result<()> {
    let (in_memory, clean) = work.before();
    if in_memory {
        let bytes = vec![3; 1 << 20];
        for offset in (0..size).step_by(1 << 20) {
            file.write_at(&bytes, offset)?;
        }
    }
    if clean {
        file.sync_all()?;
    }
    Ok(())
}

/// All threads begin together; the slowest counts.
fn at_once(file: &File, work: Work, size: u64) -> std::io::Result<(f64, Option<f64>)> {
    let barrier = Barrier::new(work.threads());
    let one = |thread: usize| {
        let offsets = work.offsets(size, thread);
        let bytes = [7; PAGE];
        let counter = Instructions::new();
        barrier.wait();
        let (begun, before) = (Instant::now(), counter.read());
        for &offset in &offsets {
            file.write_at(&bytes, offset)?;
        }
        if work == Work::Writeback {
            file.sync_all()?;
        }
        let (ns, count) = (begun.elapsed().as_nanos(), counter.read());
        let requests = offsets.len() as f64;
        let count = before
            .zip(count)
            .map(|(before, after)| (after - before) as f64 / requests);
        Ok::<_, std::io::Error>((ns as f64 / requests, count))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads = (0..work.threads()).map(|thread| scope.spawn(move || one(thread)));
        let threads: Vec<_> = threads.collect();
        let mut outcome: Option<(f64, Option<f64>)> = None;
        for thread in threads {
            let (ns, count) = thread.join().expect("no thread panics")?;
            outcome = Some(match outcome {
                Some((slowest, first)) => (slowest.max(ns), first),
                None => (ns, count),
            });
        }
        Ok::<_, std::io::Error>(outcome.expect("at least one thread"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_can_be_a_session_and_the_last_is_the_default() {
        let all = all();
        assert_eq!(all.len(), 6);
        for side in &all {
            let mut config = Config::tiny();
            config.dirty_tracking = side.dirty_tracking;
            config.flush_order = side.flush_order;
            config.check().expect("a configuration");
        }
        assert_eq!(all[0].name(), "regions, page, page");
        assert_eq!(all[5].name(), "regions+stock, stream, stream");
        let trackings = trackings();
        assert_eq!(trackings.len(), TRACKINGS.len());
        assert!(
            trackings
                .iter()
                .all(|side| side.allocator == Allocator::RegionsStock)
        );
    }

    #[test]
    fn offsets_are_whole_pages_of_the_file() {
        let size = 8 << 20;
        for work in [ABLATION.as_slice(), &TRACKING].concat() {
            for thread in 0..work.threads() {
                let offsets = work.offsets(size, thread);
                assert!(!offsets.is_empty());
                let end = work.file_bytes(size);
                let fits = |&offset: &u64| offset % PAGE as u64 == 0 && offset < end;
                assert!(offsets.iter().all(fits), "{work:?}");
            }
        }
    }

    #[test]
    fn a_table_becomes_markdown() {
        let rows = [["", "a"], ["b", "1"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(markdown(&rows), "|  | a |\n|---|---|\n| b | 1 |\n");
    }
}
