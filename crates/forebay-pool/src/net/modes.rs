//! Which way each read and write of a client goes: by this host's memory, or past it (Conflux, section 3.2: SEED, and its rivals).
//!
//! A request asks the policy for a mode, goes that way, and tells the policy what it took. Each thread has a log of its latest requests; the
//! logs of all of them are the environment that SEED asks its network with. The network learns in a thread of its own, from pairs that
//! requests leave behind; none of them waits for it. Whatever is chosen, bytes are the same: modes differ in time alone.
//!
//! What this does not do: it does not know what is in memory and what is not, and a read that has to fetch its blocks is a slow local one.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_seed::chooser::Policy;
use forebay_seed::decision::{CERTAINTY_DEFAULT, CERTAINTY_MAX};
use forebay_seed::rivals::{Better, Fixed, Table};
use forebay_seed::{
    Bounds, Chooser, Curve, Environment, Kind, Log, Mode, Pair, Record, Request, Trainer,
};
use serde::{Deserialize, Serialize};

use crate::random::mix2;

/// How a client chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PathPolicy {
    /// By SEED, with corrections, and this certainty: how far from even a choice is for how small a difference.
    Seed(u32),
    /// By SEED as the paper has it.
    Paper,
    /// By a table of moving averages, and SEED's curve.
    Table,
    /// The better of both by moving averages.
    Better,
    /// All by this host's memory.
    #[default]
    Local,
    /// All past it.
    Remote,
    /// By lot: so many in a hundred go past it.
    Ratio(u8),
}

impl TryFrom<String> for PathPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<PathPolicy, String> {
        let ratio = text.strip_prefix("ratio:").map(str::parse);
        let certainty = text.strip_prefix("seed:").map(str::parse);
        if let Some(Ok(certainty @ 1..=CERTAINTY_MAX)) = certainty {
            return Ok(PathPolicy::Seed(certainty));
        }
        match (text.as_str(), ratio) {
            ("seed", _) => Ok(PathPolicy::Seed(CERTAINTY_DEFAULT)),
            ("paper", _) => Ok(PathPolicy::Paper),
            ("table", _) => Ok(PathPolicy::Table),
            ("better", _) => Ok(PathPolicy::Better),
            ("local", _) => Ok(PathPolicy::Local),
            ("remote", _) => Ok(PathPolicy::Remote),
            (_, Some(Ok(percent @ 0..=100))) => Ok(PathPolicy::Ratio(percent)),
            _ => Err(format!(
                "path: {text} is none of seed, seed:1 to seed:{CERTAINTY_MAX}, paper, table, better, local, remote, ratio:0 to ratio:100"
            )),
        }
    }
}

impl From<PathPolicy> for String {
    fn from(path: PathPolicy) -> String {
        path.to_string()
    }
}

impl fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPolicy::Seed(CERTAINTY_DEFAULT) => f.write_str("seed"),
            PathPolicy::Seed(certainty) => write!(f, "seed:{certainty}"),
            PathPolicy::Paper => f.write_str("paper"),
            PathPolicy::Table => f.write_str("table"),
            PathPolicy::Better => f.write_str("better"),
            PathPolicy::Local => f.write_str("local"),
            PathPolicy::Remote => f.write_str("remote"),
            PathPolicy::Ratio(percent) => write!(f, "ratio:{percent}"),
        }
    }
}

/// What a client's requests have done since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads by this host's memory, and past it.
    pub reads: [u64; 2],
    /// Writes, alike.
    pub writes: [u64; 2],
    /// How often the network has been trained.
    pub epochs: u64,
    /// How often it has become better, and was put to use.
    pub published: u64,
}

impl Counts {
    /// In the text form that Prometheus reads.
    pub fn metrics(&self) -> String {
        let [reads, writes] = [self.reads, self.writes];
        let requests = [("read", reads), ("write", writes)].map(|(kind, [local, remote])| {
            let of = |path, count| {
                format!("forebay_pool_requests{{kind=\"{kind}\",path=\"{path}\"}} {count}\n")
            };
            of("local", local) + &of("remote", remote)
        });
        let mut text = format!(
            "# HELP forebay_pool_requests Reads and writes, by the path that they went.\n\
             # TYPE forebay_pool_requests counter\n{}",
            requests.concat()
        );
        for (name, help, count) in [
            ("epochs", "How often the network was trained.", self.epochs),
            (
                "published",
                "How often it had become better, and was put to use.",
                self.published,
            ),
        ] {
            let name = format!("forebay_pool_network_{name}");
            text += &format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}\n");
        }
        text
    }
}

/// Tells what a client's requests have done, also when the client has gone.
pub struct Counting(Arc<Shared>);

impl Counting {
    /// What they have done until now.
    pub fn counts(&self) -> Counts {
        let of = |kind: Kind| {
            let [local, remote] = &self.0.counts[kind as usize];
            [local, remote].map(|count| count.load(Ordering::Relaxed))
        };
        Counts {
            reads: of(Kind::Read),
            writes: of(Kind::Write),
            epochs: self.0.epochs.load(Ordering::Relaxed),
            published: self.0.published.load(Ordering::Relaxed),
        }
    }
}

/// The network is trained so often, ...
const EPOCH_EVERY: Duration = Duration::from_millis(100);
/// ... or less often, so that it takes one part in so many of a processor's time.
const EPOCH_SHARE: u32 = 32;
/// Pairs that wait for the next epoch. More are dropped.
const PAIRS: usize = 4096;

/// A policy that learns.
enum Learns {
    Seed {
        chooser: Box<Chooser>,
        pairs: Vec<Pair>,
    },
    Rival(Box<dyn Policy + Send>),
}

/// A thread's log, and whose it is.
type OwnLog = (Weak<Shared>, Arc<Mutex<Log>>);

/// Chooses.
pub(super) struct Modes {
    path: PathPolicy,
    shared: Arc<Shared>,
    logs: RwLock<Vec<Weak<Mutex<Log>>>>,
    draws: AtomicU64,
    seed: u64,
    began: Instant,
    trainer: Option<JoinHandle<()>>,
    local: Limiter,
}

/// What the thread that trains has besides, and whoever wants to know.
struct Shared {
    counts: [[AtomicU64; 2]; 2],
    learns: Mutex<Option<Learns>>,
    epochs: AtomicU64,
    published: AtomicU64,
    is_over: Mutex<bool>,
    ends: Condvar,
}

impl Modes {
    /// Chooses as the path says; until [`Modes::learn`] one that learns is local.
    pub fn new(path: PathPolicy, seed: u64) -> Modes {
        let shared = Shared {
            counts: Default::default(),
            learns: Mutex::new(None),
            epochs: AtomicU64::new(0),
            published: AtomicU64::new(0),
            is_over: Mutex::new(false),
            ends: Condvar::new(),
        };
        Modes {
            path,
            shared: Arc::new(shared),
            logs: RwLock::default(),
            draws: AtomicU64::new(0),
            seed,
            began: Instant::now(),
            trainer: None,
            local: Limiter::default(),
        }
    }

    /// Whether it has to know what requests take alone.
    pub fn learns(&self) -> bool {
        matches!(
            self.path,
            PathPolicy::Seed(_) | PathPolicy::Paper | PathPolicy::Table | PathPolicy::Better
        )
    }

    /// Begins to learn, from what requests took alone.
    pub fn learn(&mut self, alone: &[Record]) {
        let certainty = match self.path {
            PathPolicy::Seed(certainty) => certainty,
            _ => CERTAINTY_DEFAULT,
        };
        let (bounds, curve) = (Bounds::measured(alone), Curve::new(certainty));
        let seed = |chooser: Chooser| Learns::Seed {
            chooser: Box::new(chooser),
            pairs: Vec::new(),
        };
        let learns = match self.path {
            PathPolicy::Seed(_) => seed(Chooser::new(bounds, curve).with_corrections()),
            PathPolicy::Paper => seed(Chooser::new(bounds, curve)),
            PathPolicy::Table => Learns::Rival(Box::new(Table::new(bounds, curve))),
            PathPolicy::Better => Learns::Rival(Box::new(Better::new(bounds))),
            PathPolicy::Local | PathPolicy::Remote | PathPolicy::Ratio(_) => return,
        };
        if let Learns::Seed { .. } = learns {
            let (shared, seed) = (Arc::clone(&self.shared), self.seed);
            // Where there are no threads left the network stays as it is.
            let trainer = thread::Builder::new().spawn(move || shared.train(seed));
            self.trainer = trainer.ok();
        }
        *locked(&self.shared.learns) = Some(learns);
    }

    /// Local requests take so long at least as if they shared so many bytes a second; 0 is no limit.
    pub fn limit_local(&self, bytes_per_second: u64) {
        self.local.set(bytes_per_second);
    }

    pub fn counting(&self) -> Counting {
        Counting(Arc::clone(&self.shared))
    }

    /// Does a request of so many bytes the way that is chosen for it.
    pub fn run<T, E>(
        &self,
        kind: Kind,
        bytes: u64,
        work: impl FnOnce(Mode) -> Result<T, E>,
    ) -> Result<T, E> {
        let request = Request { kind, bytes };
        let work = |mode: Mode| {
            self.shared.counts[kind as usize][mode as usize].fetch_add(1, Ordering::Relaxed);
            let begun = self.local.begin(mode, bytes);
            let result = work(mode);
            begun.end();
            result
        };
        let fixed = match self.path {
            PathPolicy::Local => return work(Mode::Local),
            PathPolicy::Remote => return work(Mode::Remote),
            PathPolicy::Ratio(percent) => Some(Fixed::new(percent.into())),
            _ => None,
        };
        let drawn = self.draws.fetch_add(1, Ordering::Relaxed);
        let draw = mix2(self.seed, drawn);
        if let Some(mut fixed) = fixed {
            return work(fixed.choose(&request, &mut Environment::default, draw).mode);
        }
        let begun_ns = self.now_ns();
        let choice = match &mut *locked(&self.shared.learns) {
            Some(learns) => {
                let mut environment = || self.environment(begun_ns);
                learns.policy().choose(&request, &mut environment, draw)
            }
            None => forebay_seed::Choice::plain(Mode::Local),
        };
        let chosen_ns = self.now_ns();
        let result = work(choice.mode);
        let now_ns = self.now_ns();
        if result.is_ok() {
            let record = Record {
                request,
                mode: choice.mode,
                latency_ns: (now_ns - chosen_ns).max(1),
            };
            locked(&self.own_log()).note(&record, now_ns);
            if let Some(learns) = &mut *locked(&self.shared.learns) {
                learns.done(&choice, &record, chosen_ns - begun_ns);
            }
        }
        result
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// What all threads have done last.
    fn environment(&self, now_ns: u64) -> Environment {
        let mut environment = Environment::default();
        let logs = self.logs.read().unwrap_or_else(PoisonError::into_inner);
        for log in logs.iter().filter_map(Weak::upgrade) {
            locked(&log).add_to(&mut environment, now_ns);
        }
        environment
    }

    /// The log of this thread, which lives as long as the thread.
    fn own_log(&self) -> Arc<Mutex<Log>> {
        thread_local! {
            static OWN: RefCell<Vec<OwnLog>> = const { RefCell::new(Vec::new()) };
        }
        OWN.with_borrow_mut(|own| {
            let is_this = |(of, _): &&OwnLog| of.as_ptr() == Arc::as_ptr(&self.shared);
            if let Some((_, log)) = own.iter().find(is_this) {
                return Arc::clone(log);
            }
            own.retain(|(of, _)| of.strong_count() > 0);
            let log = Arc::default();
            own.push((Arc::downgrade(&self.shared), Arc::clone(&log)));
            let mut logs = self.logs.write().unwrap_or_else(PoisonError::into_inner);
            logs.retain(|log| log.strong_count() > 0);
            logs.push(Arc::downgrade(&log));
            log
        })
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        *locked(&self.shared.is_over) = true;
        self.shared.ends.notify_all();
        if let Some(trainer) = self.trainer.take() {
            // If it has panicked, nothing was learnt from then on.
            let _ = trainer.join();
        }
    }
}

impl Learns {
    fn policy(&mut self) -> &mut dyn Policy {
        match self {
            Learns::Seed { chooser, .. } => &mut **chooser,
            Learns::Rival(rival) => &mut **rival,
        }
    }

    fn done(&mut self, choice: &forebay_seed::Choice, record: &Record, choosing_ns: u64) {
        self.policy().done(choice, record);
        if let Learns::Seed { chooser, pairs } = self
            && let Some(pair) = chooser.pair(choice, record)
        {
            chooser.inferred(choosing_ns);
            if pairs.len() < PAIRS {
                pairs.push(pair);
            }
        }
    }
}

impl Shared {
    /// Trains until it is over.
    fn train(&self, seed: u64) {
        let mut trainer = Trainer::new(seed);
        let mut pause = EPOCH_EVERY;
        loop {
            let is_over = locked(&self.is_over);
            let waited = self.ends.wait_timeout_while(is_over, pause, |over| !*over);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            let begun = Instant::now();
            if let Some(Learns::Seed { pairs, .. }) = &mut *locked(&self.learns) {
                let collected = std::mem::take(pairs);
                collected.into_iter().for_each(|pair| trainer.collect(pair));
            }
            if let Some(epoch) = trainer.epoch() {
                self.epochs.fetch_add(1, Ordering::Relaxed);
                if epoch.is_published
                    && let Some(network) = trainer.published().cloned()
                    && let Some(Learns::Seed { chooser, .. }) = &mut *locked(&self.learns)
                {
                    chooser.adopt(network);
                    self.published.fetch_add(1, Ordering::Relaxed);
                }
            }
            pause = EPOCH_EVERY.max(begun.elapsed() * EPOCH_SHARE);
        }
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes local requests as slow as a memory that they share: for measurements on hosts whose own memory is much faster than any network.
#[derive(Default)]
struct Limiter {
    bytes_per_second: AtomicU64,
    free: Mutex<Option<Instant>>,
}

/// A request that ends no earlier than that.
struct Limited(Option<Instant>);

impl Limiter {
    fn set(&self, bytes_per_second: u64) {
        self.bytes_per_second
            .store(bytes_per_second, Ordering::Relaxed);
    }

    fn begin(&self, mode: Mode, bytes: u64) -> Limited {
        let speed = self.bytes_per_second.load(Ordering::Relaxed);
        if speed == 0 || mode == Mode::Remote {
            return Limited(None);
        }
        let mut free = locked(&self.free);
        let now = Instant::now();
        let begins = free.map_or(now, |free| free.max(now));
        let ends = begins
            + Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(speed)) as u64);
        *free = Some(ends);
        Limited(Some(ends))
    }
}

impl Limited {
    fn end(self) {
        let rest = self
            .0
            .map(|ends| ends.saturating_duration_since(Instant::now()));
        if let Some(rest) = rest.filter(|rest| !rest.is_zero()) {
            thread::sleep(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(local_ns: u64, remote_ns: u64) -> Vec<Record> {
        let of = |kind, mode, bytes: u64| Record {
            request: Request { kind, bytes },
            mode,
            latency_ns: [local_ns, remote_ns][mode as usize] + bytes / 16,
        };
        let kinds = Kind::BOTH.into_iter();
        let both = kinds.flat_map(|kind| Mode::BOTH.map(|mode| (kind, mode)));
        both.flat_map(|(kind, mode)| [4096, 1 << 20].map(|bytes| of(kind, mode, bytes)))
            .collect()
    }

    fn modes(path: PathPolicy) -> Modes {
        let mut modes = Modes::new(path, 7);
        modes.learn(&alone(10_000, 20_000));
        modes
    }

    /// So many reads of 64 KiB that take so long; says how many went remote.
    fn reads(modes: &Modes, count: u64, [local, remote]: [Duration; 2]) -> u64 {
        let before = modes.counting().counts().reads[1];
        for _ in 0..count {
            let took = modes.run(Kind::Read, 64 << 10, |mode| {
                let begun = Instant::now();
                let time = [local, remote][mode as usize];
                while begun.elapsed() < time {
                    std::hint::spin_loop();
                }
                Ok::<(), ()>(())
            });
            took.unwrap();
        }
        modes.counting().counts().reads[1] - before
    }

    #[test]
    fn paths_are_read_and_written() {
        let all = [
            "seed",
            "seed:1",
            "seed:6",
            "seed:16",
            "paper",
            "table",
            "better",
            "local",
            "remote",
            "ratio:0",
            "ratio:40",
            "ratio:100",
        ];
        for text in all {
            let path = PathPolicy::try_from(text.to_string()).unwrap();
            assert_eq!(path.to_string(), text);
        }
        let same = PathPolicy::try_from("seed:3".to_string()).unwrap();
        assert_eq!(same.to_string(), "seed");
        for text in [
            "",
            "Seed",
            "seed:",
            "seed:0",
            "seed:17",
            "table:3",
            "ratio",
            "ratio:",
            "ratio:101",
            "ratio:-1",
            "40",
        ] {
            assert!(PathPolicy::try_from(text.to_string()).is_err(), "{text}");
        }
    }

    #[test]
    fn fixed_paths_are_kept() {
        let no_time = [Duration::ZERO; 2];
        assert_eq!(reads(&modes(PathPolicy::Local), 100, no_time), 0);
        assert_eq!(reads(&modes(PathPolicy::Remote), 100, no_time), 100);
        let remote = reads(&modes(PathPolicy::Ratio(40)), 2000, no_time);
        assert!((700..900).contains(&remote), "{remote}");
    }

    /// Whether a policy takes the faster way for the most part, and the other one once that is faster.
    fn finds_the_faster_way(path: PathPolicy) -> Result<(), String> {
        let (fast, slow) = (Duration::from_micros(100), Duration::from_millis(1));
        let modes = modes(path);
        reads(&modes, 100, [fast, slow]);
        let remote = reads(&modes, 200, [fast, slow]);
        if remote >= 60 {
            return Err(format!("{remote} of 200 went the slow way"));
        }
        reads(&modes, 400, [slow, fast]);
        let remote = reads(&modes, 200, [slow, fast]);
        match remote > 140 {
            true => Ok(()),
            false => Err(format!("{remote} of 200 went the fast way")),
        }
    }

    /// Times differ by ten, and what a busy machine makes of them decides one try and not five.
    #[test]
    fn every_policy_that_learns_finds_the_faster_way_and_finds_it_again() {
        for path in [
            PathPolicy::Seed(3),
            PathPolicy::Seed(6),
            PathPolicy::Table,
            PathPolicy::Better,
        ] {
            let mut wrong = Vec::new();
            while let Err(how) = finds_the_faster_way(path) {
                wrong.push(how);
                assert!(wrong.len() < 5, "{path}: {wrong:?}");
            }
        }
    }

    #[test]
    fn the_network_learns_beside_the_requests_and_ends_with_them() {
        let modes = modes(PathPolicy::Paper);
        let times = [Duration::from_micros(50), Duration::from_micros(100)];
        let begun = Instant::now();
        while modes.counting().counts().published == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never learns");
            reads(&modes, 100, times);
        }
        assert!(modes.counting().counts().epochs > 0);
        let shared = Arc::downgrade(&modes.shared);
        drop(modes);
        assert_eq!(shared.strong_count(), 0, "its thread goes on");
    }

    #[test]
    fn logs_go_with_their_threads() {
        let modes = modes(PathPolicy::Seed(3));
        thread::scope(|scope| {
            let thread = scope.spawn(|| reads(&modes, 1, [Duration::ZERO; 2]));
            // The scope ends with its threads' work, before what belongs to them has gone.
            thread.join().unwrap();
        });
        reads(&modes, 1, [Duration::ZERO; 2]);
        let logs = modes.logs.read().unwrap();
        let alive = logs.iter().filter(|log| log.strong_count() > 0);
        assert_eq!(alive.count(), 1);
    }

    #[test]
    fn what_fails_teaches_nothing() {
        let modes = modes(PathPolicy::Table);
        let failed = modes.run(Kind::Write, 4096, |_| Err::<(), ()>(()));
        assert!(failed.is_err());
        assert_eq!(modes.counting().counts().writes, [1, 0]);
        assert_eq!(modes.environment(modes.now_ns()), Environment::default());
    }

    #[test]
    fn a_limit_makes_local_requests_share_a_speed() {
        let modes = modes(PathPolicy::Local);
        modes.limit_local(100 << 20);
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let done = modes.run(Kind::Read, 1 << 20, |_| Ok::<(), ()>(()));
                    done.unwrap();
                });
            }
        });
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
