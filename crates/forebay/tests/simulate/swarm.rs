//! What a seed decides about a world before anything happens in it: sizes, budgets, tempers. Each seed leaves some
//! things out and overdoes others, so that many kinds of trouble meet (swarm testing).

use std::time::Duration;

use forebay::Config;
use forebay::config::{DirtyTracking, Route};
use forebay::limits::BLOCK_BYTES;
use forebay::memory::layout::Counts;
use forebay::sim::device::{SimOptions, Weather};
use forebay::sim::tasks::Manner;
use forebay_model::SplitMix64;

/// What clients do, each with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Write,
    WriteVectored,
    Append,
    Read,
    ReadOn,
    SetLen,
    Punch,
    SyncData,
    SyncAll,
    Flush,
    Len,
    Reopen,
    Advise,
    Evict,
    /// Another file gets the name.
    Replace,
    /// The program closes all that it has of a file.
    Leave,
}

const ACTS: [(Act, u64); 14] = [
    (Act::Write, 30),
    (Act::Read, 20),
    (Act::ReadOn, 12),
    (Act::Append, 8),
    (Act::WriteVectored, 4),
    (Act::SetLen, 3),
    (Act::Punch, 4),
    (Act::SyncData, 3),
    (Act::SyncAll, 2),
    (Act::Flush, 2),
    (Act::Len, 3),
    (Act::Reopen, 3),
    (Act::Advise, 1),
    (Act::Evict, 2),
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Swarm {
    pub seed: u64,
    pub files: usize,
    pub handles: usize,
    pub clients: usize,
    /// Threads of each client.
    pub threads: usize,
    /// Bytes of each file that are used.
    pub window: u64,
    /// Bytes of the longest write or read.
    pub longest: u64,
    pub acts: Vec<(Act, u64)>,
    /// Time that clients spend between two operations at most.
    pub rest: Duration,
    pub frames: u32,
    pub headers: u32,
    pub memory: u64,
    pub dirty_max: u64,
    pub read_ahead: u64,
    pub route: Route,
    pub flush_after: Option<Duration>,
    pub flush_interval: Option<Duration>,
    pub idle_after: Option<Duration>,
    pub weather: Weather,
    pub stable_writes: bool,
    pub capacity: u64,
    pub manner: Manner,
    pub keeper: bool,
    /// Whether closes may leave what is owed to the keeper; then there are programs outside as well.
    pub leaves: bool,
    pub outsiders: usize,
    /// Deaths of clients, of keepers, of everything, each as a part of all events of fate; 0 for never.
    pub client_deaths: u64,
    pub keeper_deaths: u64,
    pub power_losses: u64,
}

/// One of a list.
fn one<T: Copy>(random: &mut SplitMix64, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

impl Swarm {
    /// What a seed decides.
    pub fn new(seed: u64) -> Self {
        let random = &mut SplitMix64::new(seed);
        let block = BLOCK_BYTES as u64;
        let frames = one(random, &[2, 3, 4, 6, 8, 16]);
        let window = block * one(random, &[1, 1, 2, 3, 4, 6]);
        let micros = Duration::from_micros;
        let swarm = Swarm {
            seed,
            files: one(random, &[1, 1, 2, 3]),
            handles: one(random, &[1, 2, 3]),
            clients: one(random, &[1, 2, 3, 3, 5]),
            threads: one(random, &[1, 1, 2]),
            window,
            longest: one(random, &[100, 5000, 20_000, 70_000, 300_000, 600_000]).min(window),
            acts: acts(random)
                .into_iter()
                .chain(renames(seed).then_some((Act::Replace, 3)))
                .chain(leaves(seed).then_some((Act::Leave, 15)))
                .collect(),
            rest: micros(one(random, &[1, 20, 100, 3000])),
            frames,
            headers: one(random, &[6, 8, 16, 64]).max(frames),
            memory: u64::from(frames) * block,
            dirty_max: one(random, &[block / 8, block / 2, block, 4 * block, 1 << 40]),
            read_ahead: block * one(random, &[0, 2, 4]),
            route: one(
                random,
                &[
                    Route::Auto,
                    Route::Auto,
                    Route::Threshold,
                    Route::Direct,
                    Route::Scrap,
                ],
            ),
            flush_after: one(random, &[None, Some(micros(3000)), Some(micros(40_000))]),
            flush_interval: one(random, &[None, Some(micros(20_000)), Some(micros(300_000))]),
            idle_after: one(random, &[None, None, Some(micros(600_000))]),
            weather: weather(random),
            stable_writes: random.below(6) == 0,
            capacity: one(random, &[1 << 30, 1 << 30, 1 << 30, window, 2 * window]),
            manner: Manner {
                accesses: one(random, &[3, 10, 30, 30, 100, 400]),
                absence_rarity: one(random, &[4, 30, 200]),
                absence_ns: one(random, &[5_000, 100_000, 2_000_000]),
            },
            keeper: random.below(8) != 0,
            leaves: false,
            outsiders: 0,
            client_deaths: one(random, &[0, 2, 5]),
            keeper_deaths: one(random, &[0, 1, 3]),
            power_losses: one(random, &[0, 0, 1, 2]),
        };
        if leaves(seed) {
            swarm.with_leases()
        } else {
            swarm
        }
    }

    /// Closes may leave what is owed to the keeper: there is one, and files that have one opener or none.
    fn with_leases(self) -> Self {
        Swarm {
            handles: 1,
            clients: self.clients.min(2),
            keeper: true,
            leaves: true,
            outsiders: 1 + self.clients % 2,
            ..self
        }
    }

    /// The session's configuration.
    pub fn config(&self) -> Config {
        let block = BLOCK_BYTES as u64;
        Config {
            memory: self.memory,
            dirty_bytes_max: self.dirty_max,
            dirty_background: self.dirty_max / 2,
            route: self.route,
            direct_min: block,
            read_ahead: self.read_ahead,
            flush_after: self.flush_after,
            flush_interval: self.flush_interval,
            idle_after: self.idle_after,
            ..Config::tiny()
        }
        .with_tracking(self.tracking())
    }

    /// How what is owed is tracked. Not drawn, so that seeds make the worlds that they made before there was a choice.
    fn tracking(&self) -> DirtyTracking {
        match self.seed % 5 {
            0 => DirtyTracking::Page,
            _ => DirtyTracking::Stream,
        }
    }

    /// The arena's tables: small, so that they run out.
    pub fn counts(&self) -> Counts {
        Counts {
            threads: 96,
            // Those without a name are in it as long as somebody has them open.
            files: if renames(self.seed) { 64 } else { 8 },
            nodes: 64,
            headers: self.headers,
            frames: self.frames.next_multiple_of(8),
        }
    }

    /// The disk.
    pub fn disk(&self) -> SimOptions {
        SimOptions {
            capacity_bytes: self.capacity,
            offset_align: 4096,
            stable_writes: self.stable_writes,
            ..SimOptions::default()
        }
    }

    /// Whether names are given to other files.
    pub fn renames(&self) -> bool {
        renames(self.seed)
    }

    /// Whether the device, or its space, may be the cause of an error.
    pub fn may_fail(&self) -> bool {
        self.weather.error_rarity != 0 || self.capacity < 1 << 30
    }

    pub fn power_fails(&self) -> bool {
        self.power_losses != 0
    }
}

/// Whether names are given to other files. Not drawn, as with tracking.
fn renames(seed: u64) -> bool {
    matches!(seed % 6, 2 | 4)
}

/// Whether closes may leave what is owed to the keeper. Not drawn, as with tracking.
pub fn leaves(seed: u64) -> bool {
    matches!(seed % 7, 3 | 6)
}

/// Operations: some not at all, some more often than usual.
fn acts(random: &mut SplitMix64) -> Vec<(Act, u64)> {
    let weigh = |(act, weight): (Act, u64)| match random.below(8) {
        0 if !matches!(act, Act::Write | Act::Read) => (act, 0),
        1 => (act, 4 * weight),
        2 => (act, weight.div_ceil(4)),
        _ => (act, weight),
    };
    ACTS.into_iter().map(weigh).collect()
}

fn weather(random: &mut SplitMix64) -> Weather {
    Weather {
        latency_ns: one(
            random,
            &[
                (100, 2_000),
                (5_000, 20_000),
                (50_000, 150_000),
                (0, 400_000),
            ],
        ),
        slow_rarity: one(random, &[0, 0, 50, 400]),
        error_rarity: one(random, &[0, 0, 0, 300, 60]),
        short_rarity: one(random, &[0, 0, 40]),
        part_bytes: one(random, &[4096, 16 * 1024, 1 << 20]),
    }
}
