//! A client's process, or its part in one.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_seed::{self as seed, Kind, Record, Request};

use super::link::{self, Dialled, Dialler, Hello, PAUSE, Refusal};
use super::modes::{Counting, Counts, Modes};
use super::process::{self, Event, Machine, Process};
use super::security::Security;
use super::serving::keep_dialling;
use super::{Config, Ended, random};
use crate::client::{self, Answer, Client, Entry, Failure, Mode, Operation};
use crate::ids::{File, Node, PLACES};
use crate::rope::Rope;

/// Bytes of the requests that are measured when a client joins.
const MEASURED: (usize, usize) = (4 << 10, 1 << 20);
/// How many of each. The fastest counts.
const MEASURED_TIMES: usize = 5;

impl From<seed::Mode> for Mode {
    fn from(mode: seed::Mode) -> Mode {
        match mode {
            seed::Mode::Local => Mode::Local,
            seed::Mode::Remote => Mode::Remote,
        }
    }
}

/// A membership in a pool. Any number of threads may use it.
pub struct Pool {
    modes: Modes,
    block_bytes: u64,
    /// By its address a pool is known that has no name here.
    first: SocketAddr,
    process: Arc<Mutex<Process>>,
    inbox: Sender<Event>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Ended>>>,
}

impl Pool {
    /// Joins a pool: waits at most `patience` until somebody has given it a number, and as long again until it is in.
    pub fn join(config: &Config, patience: Duration) -> Result<Pool, Ended> {
        let until = Instant::now() + patience;
        loop {
            match Pool::join_once(config, until, patience) {
                // Who gave it a number died before the next one knew of it.
                Err(Ended::GivenUp) if config.etcd.is_some() && Instant::now() < until => {}
                result => return result,
            }
        }
    }

    fn join_once(config: &Config, until: Instant, patience: Duration) -> Result<Pool, Ended> {
        let hello = |birth, dialler| Hello {
            pool: config.mark(),
            birth,
            dialler,
        };
        let first = hello(0, Dialler::NewClient);
        let security = Security::of(config.tls.as_ref())?;
        let met = meet(config, &security, first, until);
        let met = met.ok_or(Ended::NoAnswer)?;
        // It has that long again to get in: who is silent may have taken the rest.
        let until = Instant::now() + patience;
        let host = met.map_err(|refusal| Ended::Refused(refusal.why))?;
        let (birth, you) = (host.birth, host.you);
        let Node::Client(me) = you else {
            return Err(Ended::Refused("it is not taken for a client".to_string()));
        };
        let machine = Machine::Client(Box::new(Client::new(me, of_client(config))));
        let is_in = Arc::new(AtomicBool::new(false));
        let keeper = Node::Server(host.me);
        let mut process = Process::new(
            (you, machine),
            None,
            keeper,
            Arc::clone(&is_in),
            config.term_ms,
        );
        process.learn(host.servers);
        let process = Arc::new(Mutex::new(process));
        let (inbox, events) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let hello = hello(birth, Dialler::Client(me));
        let (over, own) = (Arc::clone(&is_over), Arc::clone(&process));
        let (told, config_of_dials) = (inbox.clone(), config.clone());
        let thread = thread::spawn(move || {
            let dial = |place, to| {
                if config_of_dials.may_be_dialled(to) {
                    let told = (Arc::clone(&own), told.clone());
                    keep_dialling((place, to, security.clone()), hello, told, &over);
                }
            };
            let result = Process::run(&own, &events, &dial);
            over.store(true, Ordering::Relaxed);
            result
        });
        let mut pool = Pool {
            modes: Modes::new(config.path, random()?),
            block_bytes: config.block_bytes,
            first: config.servers[0],
            process,
            inbox,
            is_over,
            thread: Some(thread),
        };
        while !is_in.load(Ordering::Relaxed) {
            if process::locked(&pool.process).is_given_up() {
                return Err(Ended::GivenUp);
            }
            if Instant::now() >= until || pool.is_over.load(Ordering::Relaxed) {
                return Err(Ended::NoAnswer);
            }
            thread::sleep(Duration::from_millis(2));
        }
        if pool.modes.learns() {
            // A pool in which it cannot be measured fails for better reasons soon enough.
            let alone = pool.measure().unwrap_or_default();
            pool.modes.learn(&alone);
        }
        Ok(pool)
    }

    /// Bytes from an offset, up to the file's end, the way that is chosen for it.
    pub fn read(&self, file: File, offset: u64, length: u64) -> Result<Vec<u8>, Failure> {
        self.modes.run(Kind::Read, length, |mode| {
            let bytes = self.read_by(mode, file, offset, length)?;
            Ok(bytes.into_vec())
        })
    }

    /// The same into the caller's memory. Returns how many bytes: fewer than there is room for at the file's end only.
    pub fn read_into(&self, file: File, offset: u64, into: &mut [u8]) -> Result<usize, Failure> {
        let length = into.len() as u64;
        self.modes.run(Kind::Read, length, |mode| {
            let bytes = self.read_by(mode, file, offset, length)?;
            Ok(bytes.copy_to(into))
        })
    }

    /// Writes at an offset, the way that is chosen for it.
    pub fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.modes.run(Kind::Write, bytes.len() as u64, |mode| {
            self.write_by(mode, file, offset, bytes)
        })
    }

    /// Whether the pool has given this member up, or will not have it: no operation will succeed any more.
    pub fn is_over(&self) -> bool {
        let process = process::locked(&self.process);
        process.is_over || process.is_given_up()
    }

    /// From now on `watcher` is told of each file of which this member gives something back, or does not know any more that it is so: what an operation has answered
    /// before may be true no longer. It is told before anybody else may change the file, and keeps this member from all else meanwhile: it must
    /// not wait, nor do operations.
    pub fn watch(&self, watcher: impl Fn(File) + Send + 'static) {
        process::locked(&self.process).watch(Box::new(watcher));
    }

    /// For how long this member uses what it holds, if it hears nothing of the pool any more: then others may change that.
    pub fn term_left(&self) -> Duration {
        Duration::from_millis(process::locked(&self.process).term_left())
    }

    /// Which ways requests have gone, and how often SEED has learnt.
    pub fn counts(&self) -> Counts {
        self.counting().counts()
    }

    /// The same for later.
    pub fn counting(&self) -> Counting {
        self.modes.counting()
    }

    /// Makes local requests as slow as if they shared a memory of so many bytes a second, for measurements on hosts whose memory is always faster
    /// than their network; 0 ends that.
    pub fn limit_local(&self, bytes_per_second: u64) {
        self.modes.limit_local(bytes_per_second);
    }

    fn read_by(
        &self,
        mode: seed::Mode,
        file: File,
        offset: u64,
        length: u64,
    ) -> Result<Rope, Failure> {
        let read = Operation::Read {
            file,
            offset,
            length,
            mode: mode.into(),
        };
        match self.run(read)? {
            Answer::Bytes(bytes) => Ok(bytes),
            // A read's answer is always bytes.
            _ => Err(Failure::Lost),
        }
    }

    fn write_by(
        &self,
        mode: seed::Mode,
        file: File,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        // In pieces as blocks are, each with memory of its own: whole blocks stay as they are, and no small one keeps large ones.
        let mut rope = Rope::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = offset + (bytes.len() - rest.len()) as u64;
            let room = (self.block_bytes - at % self.block_bytes) as usize;
            let (piece, behind) = rest.split_at(room.min(rest.len()));
            rope.push(Bytes::copy_from_slice(piece));
            rest = behind;
        }
        let write = Operation::Write {
            file,
            offset,
            bytes: rope,
            mode: mode.into(),
        };
        self.run(write).map(drop)
    }

    /// What requests take on an idle pool: of two sizes, of each kind, each way, in a file that nobody else sees.
    fn measure(&self) -> Result<Vec<Record>, Failure> {
        let Answer::Made(Entry { file, .. }, _) = self.run(Operation::MakeNameless)? else {
            return Err(Failure::Lost);
        };
        let mut alone = Vec::new();
        let result = self.measure_in(file, &mut alone);
        self.run(Operation::Remove { file })?;
        result.map(|()| alone)
    }

    fn measure_in(&self, file: File, alone: &mut Vec<Record>) -> Result<(), Failure> {
        let bytes = vec![1; MEASURED.1];
        self.write_by(seed::Mode::Remote, file, 0, &bytes)?;
        for bytes in [&bytes[..MEASURED.0], &bytes] {
            let length = bytes.len() as u64;
            for mode in seed::Mode::BOTH {
                for kind in Kind::BOTH {
                    let request = Request {
                        kind,
                        bytes: length,
                    };
                    for _ in 0..MEASURED_TIMES {
                        let begun = Instant::now();
                        match kind {
                            // As mounts read: into memory of its own.
                            Kind::Read => drop(self.read_by(mode, file, 0, length)?.into_vec()),
                            Kind::Write => self.write_by(mode, file, 0, bytes)?,
                        }
                        alone.push(Record {
                            request,
                            mode,
                            latency_ns: begun.elapsed().as_nanos() as u64,
                        });
                    }
                }
                // Else the next one would find blocks that only this host has.
                self.run(Operation::sync(file))?;
            }
        }
        Ok(())
    }

    /// The number of the last loss that a sync has found, of any file.
    pub(crate) fn losses(&self) -> u64 {
        process::locked(&self.process).losses()
    }

    /// Does an operation, and waits for its end.
    pub fn run(&self, operation: Operation) -> Result<Answer, Failure> {
        // What is here is done by this thread, under the lock; the rest is waited for without it.
        let begun = process::locked(&self.process).begin(operation);
        begun.unwrap_or_else(|outcome| outcome.recv().unwrap_or(Err(Failure::GivenUp)))
    }
}

/// Asks those who may give it a number while there is time, all at once: one whose host is silent is waited for longer than there is.
fn meet(config: &Config, security: &Security, hello: Hello, until: Instant) -> Option<link::Met> {
    let (teller, answers) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let ask = |to| {
        let (teller, security, is_over) = (teller.clone(), security.clone(), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
                let (security, hello) = (&security, &hello);
                let met = link::dial_once(Dialled {
                    to,
                    security,
                    hello,
                });
                // At one address there may be a stranger: he is asked again, as those are who cannot say yet.
                if teller.send((to, met)).is_err() {
                    return;
                }
                thread::sleep(PAUSE);
            }
        });
    };
    let mut refusals: BTreeMap<SocketAddr, Option<Refusal>> = BTreeMap::new();
    let ask_new = |refusals: &mut BTreeMap<_, _>, to: SocketAddr| {
        let is_new = !refusals.contains_key(&to) && refusals.len() < 2 * PLACES;
        if is_new && config.may_be_dialled(to) {
            refusals.insert(to, None);
            ask(to);
        }
    };
    // With etcd any of them may be the one that gives numbers, and any of the others whom they know.
    let has_etcd = config.etcd.is_some();
    let givers = if has_etcd { config.servers.len() } else { 1 };
    let first = config.servers.iter().take(givers);
    first.for_each(|to| ask_new(&mut refusals, *to));
    let time = || until.saturating_duration_since(Instant::now());
    let mut found = None;
    while let Ok((to, met)) = answers.recv_timeout(time()) {
        match met {
            Ok(Err(why)) => _ = refusals.insert(to, Some(why)),
            Ok(met) => {
                found = Some(met);
                break;
            }
            Err(others) => {
                refusals.insert(to, None);
                let others = others.into_values().filter(|_| has_etcd);
                others.for_each(|to| ask_new(&mut refusals, to));
            }
        }
        if refusals.values().all(Option::is_some) {
            break;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    found.or_else(|| refusals.into_values().flatten().next_back().map(Err))
}

/// What a client is told of a pool's configuration.
fn of_client(config: &Config) -> client::Config {
    let term = config.term_ms;
    client::Config {
        block_bytes: config.block_bytes,
        copies: config.copies,
        // Clocks may differ by one in a hundred.
        term: term * 9 / 10,
        alive_every: config.alive_every(),
        cache_blocks: config.cache_blocks,
        flush_interval: config.flush_interval_ms,
        has_home: config.home.is_some(),
        wish_blocks: 16,
    }
}

impl Drop for Pool {
    /// Leaves the pool: others wait no term for what this client held. What was not synced is lost. Where the pool does not answer it says how much: at the
    /// end of a program nobody else may be there who does.
    fn drop(&mut self) {
        if let Some((files, bytes)) = process::locked(&self.process).unwritten() {
            // There may be no such stream.
            let _ = writeln!(
                std::io::stderr(),
                "forebay: the pool of {} does not answer: {bytes} bytes of {files} files are not written, or not synced, and may be lost",
                self.first
            );
        }
        // It may have ended already.
        let _ = self.inbox.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            // What it ended by, its operations have told.
            let _ = thread.join();
        }
        self.is_over.store(true, Ordering::Relaxed);
    }
}
