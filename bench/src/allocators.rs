//! What each way of finding free memory is worth: one list under one lock, a region for each core, and a stock for each file on top.
//!
//! Two tables. *Alone* is the allocator by itself: frames and small frames taken, a hundred at a time, and given back. *At work* is
//! requests of 4 KiB to pages that are not in memory yet, each of which needs a small frame at random and a 64th of a frame in order,
//! so the two tables together say how much of a request the allocator can be. Two threads work on one file, each on its own half, or
//! each on a file of its own.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use forebay::config::{Allocator, Options, Route};
use forebay::memory::regions;
use forebay::{Config, File, OpenOptions, Session};

use crate::failure::{Context, Failure, Result};
use crate::memory::PAGE;
use crate::report::columns;
use crate::requests::{Request, Shape, make};
use crate::run::{Bench, INTERRUPTED};
use crate::stats::Summary;

const ALL: [(Allocator, &str); 2] = [
    (Allocator::Regions, "regions"),
    (Allocator::RegionsStock, "regions+stock"),
];
/// Taken before any is given back.
const AT_ONCE: usize = 100;
/// Times that so many are taken and given back.
const ROUNDS: usize = 2000;

/// What is asked of the allocator, or of the engine on top of it.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// Frames alone.
    Frames,
    /// Small frames alone.
    Small,
    /// Requests of 4 KiB.
    Requests { random: bool },
}

#[derive(Clone, Copy, Debug)]
struct Case {
    question: Question,
    threads: usize,
    files: usize,
}

impl Case {
    fn name(&self) -> String {
        let what = match self.question {
            Question::Frames => "frames alone",
            Question::Small => "small frames alone",
            Question::Requests { random: true } => "4 KiB at random",
            Question::Requests { random: false } => "4 KiB in order",
        };
        match (self.threads, self.files) {
            (1, _) => format!("{what}, 1 thread"),
            (threads, 1) => format!("{what}, {threads} threads, one file"),
            (threads, _) => format!("{what}, {threads} threads, a file each"),
        }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let questions = [
        Question::Frames,
        Question::Small,
        Question::Requests { random: true },
        Question::Requests { random: false },
    ];
    questions.into_iter().flat_map(|question| {
        [(1, 1), (2, 1), (2, 2)].map(|(threads, files)| Case {
            question,
            threads,
            files,
        })
    })
}

/// Prints nanoseconds for each allocator, in turn, for files of `size` bytes in all.
pub fn print(bench: &Bench, size: u64) -> Result<()> {
    let place = bench.storage.place(8 * size)?;
    println!(
        "\nallocators: nanoseconds for a frame or a request, on {} ({})",
        place.about.file_system, place.about.device
    );
    let head = ["", "regions", "regions+stock"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for case in cases() {
        let mut runs: [Vec<f64>; 2] = Default::default();
        for round in 0..bench.runs {
            for (index, &(allocator, name)) in ALL.iter().enumerate() {
                if INTERRUPTED.load(std::sync::atomic::Ordering::Relaxed) {
                    return Err(Failure::Interrupted);
                }
                let ns = one_run(&place.dir, case, allocator, size).context(name)?;
                eprintln!("{}: run {}: {name}: {ns:.1} ns", case.name(), round + 1);
                runs[index].push(ns);
            }
        }
        let cells = runs.iter().map(|runs| {
            let summary = Summary::of(runs).expect("at least one run");
            format!(
                "{:.0} ({:.0}..{:.0})",
                summary.median, summary.min, summary.max
            )
        });
        rows.push(std::iter::once(case.name()).chain(cells).collect());
    }
    print!("{}", columns(&rows));
    Ok(())
}

/// A session and files of its own; nanoseconds for each of what is asked, as one thread sees it.
fn one_run(dir: &Path, case: Case, allocator: Allocator, size: u64) -> std::io::Result<f64> {
    let config = Config::builder().options(Options {
        arena_dir: crate::place::arena_dir().map(Path::to_owned),
        route: Some(Route::Scrap),
        allocator: Some(allocator),
        ..Options::default()
    });
    let config = config.build().map_err(std::io::Error::other)?;
    let config = Config {
        session: format!("bench-{}-allocators", std::process::id()),
        // Nothing is written meanwhile.
        dirty_bytes_max: config.memory,
        dirty_background: config.memory,
        flush_after: None,
        flush_interval: None,
        ..config
    };
    let session = Session::open(config)?;
    session.warm(size + size / 4)?;
    let mut files = Vec::new();
    let paths: Vec<_> = (0..case.files)
        .map(|index| dir.join(format!("forebay-bench.{index}")))
        .collect();
    for path in &paths {
        // With space everywhere: what has none goes past memory.
        preallocate(path, 4 * size)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        files.push(session.open_file(path, &options)?);
    }
    let result = at_once(&session, case, &files, size);
    for file in &files {
        // What was written is of no more use: it need not reach the device.
        file.set_len(0)?;
    }
    drop(files);
    drop(session);
    paths.iter().try_for_each(fs::remove_file)?;
    result
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

/// All threads begin together; the slowest counts.
fn at_once(session: &Session, case: Case, files: &[File], size: u64) -> std::io::Result<f64> {
    let barrier = Barrier::new(case.threads);
    let each = size / case.threads as u64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..case.threads)
            .map(|index| {
                let (file, barrier) = (&files[index % files.len()], &barrier);
                scope.spawn(move || match case.question {
                    Question::Frames | Question::Small => alone(session, case, file, barrier),
                    Question::Requests { random } => {
                        let first = index as u64 * each * if random { 4 } else { 1 };
                        at_work(file, &requests(random, first, each), barrier)
                    }
                })
            })
            .collect();
        let mut slowest = 0f64;
        for thread in threads {
            slowest = slowest.max(thread.join().expect("no thread panics")?);
        }
        Ok(slowest)
    })
}

/// At random: pages of a span four times as large, so that blocks have few pages each and no whole frame.
fn requests(random: bool, first: u64, bytes: u64) -> Vec<Request> {
    let (shape, span, bytes) = if random {
        // As much memory as in order: a header for each few pages weighs as well.
        (Shape::RandomPages, 4 * bytes, bytes / 2)
    } else {
        (Shape::Sequential { len: PAGE as u32 }, bytes, bytes)
    };
    let mut requests = make(shape, span, bytes);
    for request in &mut requests {
        request.offset += first;
    }
    requests
}

fn at_work(file: &File, requests: &[Request], barrier: &Barrier) -> std::io::Result<f64> {
    let bytes = [7; PAGE];
    barrier.wait();
    let begun = Instant::now();
    for request in requests {
        file.write_at(&bytes, request.offset)?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / requests.len() as f64)
}

fn alone(session: &Session, case: Case, file: &File, barrier: &Barrier) -> std::io::Result<f64> {
    let core = file
        .core()
        .ok_or_else(|| std::io::Error::other("not managed"))?;
    let me = session.shared().me()?;
    let stock = Some(&core.entry().stock);
    let (mut frames, mut smalls) = (Vec::new(), Vec::new());
    barrier.wait();
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let Ok(_operation) = me.enter(core.id) else {
            continue;
        };
        if matches!(case.question, Question::Frames) {
            frames.extend((0..AT_ONCE).filter_map(|_| regions::take_frame(me)));
            frames
                .drain(..)
                .for_each(|frame| regions::free_frame(me, frame));
        } else {
            smalls.extend((0..AT_ONCE).filter_map(|_| regions::take_small(me, stock)));
            smalls
                .drain(..)
                .for_each(|small| regions::free_small(me, stock, small));
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / (ROUNDS * AT_ONCE) as f64)
}
