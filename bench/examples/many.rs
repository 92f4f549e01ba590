//! Many dirty files at once: how long until all is on the device, and how many requests the device has at a time.
//!
//!     cargo run --release -p forebay-bench --example many -- DIRECTORY [ROUNDS] [FILES] [WAY]
//!
//! DIRECTORY lies on the file system to be measured. Each run writes the same to all files, and keeps them open. Then the session is settled
//! (all is durable), or its bytes are handed to the device without a sync, or each file is synced in turn, or the keeper writes by itself:
//! what is 200 ms old, or what exceeds a limit of 16 MiB. The kernel's side writes the same by `pwrite`, and calls `syncfs`, or `fdatasync`
//! for each file. Ways take turns in each round; WAY is a part of the names of those that are wanted.
//!
//! Medians of ms from the last write on, or, where the keeper writes what is old, from its first write on; of requests to the device, reads
//! in brackets; of requests that it had at a time while it had any (`/sys/dev/block/*/stat`); and ms of processor time.
//!
//! What this does not measure: closes. A program's close of a small file gives its bytes to the kernel's cache.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::config::Options;
use forebay::file::settle::Durability;
use forebay::{Config, OpenOptions, Session};
use forebay_seed::random::Random;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What is written: offset and length.
type Writes = Vec<(u64, usize)>;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// New files, of 20,000 to 200,000 bytes, by one write each.
    New,
    /// Files that are there, of the same sizes: six pieces of 1,000 bytes anywhere.
    Ragged,
    /// New files of 100,000 bytes by 25 writes of 4,000 bytes.
    Pieces,
}

const WORKS: [(&str, Work); 3] = [
    ("new, 20 to 200 KB", Work::New),
    ("pieces of 1,000 bytes", Work::Ragged),
    ("100 KB by 4,000 bytes", Work::Pieces),
];

const WAYS: [&str; 7] = [
    "settle",
    "written",
    "sync each",
    "keeper, old",
    "keeper, limit",
    "kernel, syncfs",
    "kernel, fdatasync each",
];

/// Bytes from which on the keeper writes, in one of the ways.
const LIMIT: u64 = 16 << 20;

fn size_of(number: u64) -> u64 {
    Random::new(number).below(180_001) as u64 + 20_000
}

fn writes(work: Work, number: u64) -> Writes {
    let size = size_of(number);
    match work {
        Work::New => vec![(0, size as usize)],
        Work::Ragged => {
            let mut random = Random::new(number + 1_000_000);
            let any = |_| (random.below(size as usize - 1_000) as u64, 1_000);
            (0..6).map(any).collect()
        }
        Work::Pieces => (0..25).map(|piece| (piece * 4_000, 4_000)).collect(),
    }
}

/// The device's own counts: reads, writes, ms in which it had any, ms of all requests together.
fn device(directory: &Path) -> Result<[u64; 4], Failure> {
    let of = fs::metadata(directory)?.dev();
    let (major, minor) = (libc::major(of), libc::minor(of));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
    let words: Vec<u64> = text
        .split_whitespace()
        .filter_map(|it| it.parse().ok())
        .collect();
    Ok([words[0], words[4], words[9], words[10]])
}

fn cpu_ms() -> f64 {
    // SAFETY: all zeros are a `rusage`, and the call writes into it alone.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

struct World {
    directory: PathBuf,
    files: u64,
}

/// ms, writes, reads, requests at a time, processor ms.
type Outcome = [f64; 5];

impl World {
    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// The files as they are before, on the device and not in the kernel's cache.
    fn prepare(&self, work: Work) -> Result<(), Failure> {
        for number in 0..self.files {
            let _ = fs::remove_file(self.path(number));
            if work == Work::Ragged {
                fs::write(self.path(number), vec![1; size_of(number) as usize])?;
            }
        }
        let directory = fs::File::open(&self.directory)?;
        // SAFETY: the descriptor is open.
        unsafe { libc::syncfs(directory.as_raw_fd()) };
        for number in 0..self.files {
            if let Ok(file) = fs::File::open(self.path(number)) {
                // SAFETY: the descriptor is open.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            }
        }
        Ok(())
    }

    fn by_kernel(&self, work: Work, each: bool) -> Result<Outcome, Failure> {
        let bytes = vec![7; 256 << 10];
        let mut files = Vec::new();
        for number in 0..self.files {
            let mut options = fs::OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .create(true)
                .open(self.path(number))?;
            for (at, len) in writes(work, number) {
                file.write_all_at(&bytes[..len], at)?;
            }
            files.push(file);
        }
        self.measured(|| {
            if each {
                return Ok(files.iter().try_for_each(fs::File::sync_data)?);
            }
            // SAFETY: the descriptor is open.
            match unsafe { libc::syncfs(files[0].as_raw_fd()) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error().into()),
            }
        })
    }

    fn session(&self, way: &str) -> Result<Session, Failure> {
        let mut options = Options::default();
        options.set("memory", "1GiB")?;
        let (after, interval) = match way {
            "keeper, old" => ("100ms", "200ms"),
            _ => ("never", "never"),
        };
        if way == "keeper, limit" {
            options.set("dirty_background", &LIMIT.to_string())?;
        }
        options.set("flush_after", after)?;
        options.set("flush_interval", interval)?;
        let config = Config::builder().options(options).build()?;
        Ok(Session::open(Config {
            session: format!("many-{}", std::process::id()),
            ..config
        })?)
    }

    fn by_session(&self, work: Work, way: &str) -> Result<Outcome, Failure> {
        let session = self.session(way)?;
        let bytes = vec![7; 256 << 10];
        let mut files = Vec::new();
        for number in 0..self.files {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            let file = session.open_file(self.path(number), &options)?;
            if let Some(reason) = file.kernel_reason() {
                return Err(format!("not managed: {reason}").into());
            }
            files.push(file);
        }
        for (number, file) in files.iter().enumerate() {
            for (at, len) in writes(work, number as u64) {
                file.write_at(&bytes[..len], at)?;
            }
        }
        let owed = || session.stats().owed_bytes;
        let all = owed();
        if way == "keeper, old" {
            wait_until(|| owed() < all);
        }
        let outcome = self.measured(|| {
            match way {
                "settle" => drop(session.settle_all()?),
                "written" => drop(session.settle_where(Durability::Written, |_| true)?),
                "sync each" => files.iter().try_for_each(|file| file.sync_data())?,
                "keeper, limit" => wait_until(|| owed() <= LIMIT),
                _ => wait_until(|| owed() == 0),
            }
            Ok(())
        })?;
        assert!(owed() == 0 || way == "keeper, limit", "all is written");
        for file in files {
            file.close()?;
        }
        Ok(outcome)
    }

    fn measured(&self, write: impl FnOnce() -> Result<(), Failure>) -> Result<Outcome, Failure> {
        let (before, cpu, begun) = (device(&self.directory)?, cpu_ms(), Instant::now());
        write()?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let after = device(&self.directory)?;
        let [reads, writes, busy, all] = std::array::from_fn(|i| (after[i] - before[i]) as f64);
        Ok([ms, writes, reads, all / busy.max(1.0), cpu_ms() - cpu])
    }

    fn run(&self, work: Work, way: &str) -> Result<Outcome, Failure> {
        self.prepare(work)?;
        match way {
            "kernel, syncfs" => self.by_kernel(work, false),
            "kernel, fdatasync each" => self.by_kernel(work, true),
            _ => self.by_session(work, way),
        }
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("which directory?")?).join("many");
    let number = |text: Option<String>, or| text.map_or(Ok(or), |text| text.parse());
    let rounds: u64 = number(arguments.next(), 3)?;
    let files: u64 = number(arguments.next(), 1_000)?;
    let wanted = arguments.next().unwrap_or_default();
    let is_wanted = |(_, way): &(usize, &&str)| way.contains(&wanted);
    fs::create_dir_all(&directory)?;
    let world = World { directory, files };
    println!(
        "| work | way | ms | writes (reads) | at a time | CPU ms |\n|---|---|---|---|---|---|"
    );
    for (name, work) in WORKS {
        let mut outcomes: BTreeMap<usize, Vec<Outcome>> = BTreeMap::new();
        for _ in 0..rounds {
            for (index, way) in WAYS.iter().enumerate().filter(is_wanted) {
                outcomes
                    .entry(index)
                    .or_default()
                    .push(world.run(work, way)?);
            }
        }
        for (index, outcomes) in outcomes {
            let [ms, writes, reads, depth, cpu] =
                std::array::from_fn(|i| median(outcomes.iter().map(|it| it[i]).collect()));
            let way = WAYS[index];
            println!(
                "| {name} | {way} | {ms:.0} | {writes:.0} ({reads:.0}) | {depth:.1} | {cpu:.0} |"
            );
        }
    }
    fs::remove_dir_all(&world.directory)?;
    Ok(())
}
