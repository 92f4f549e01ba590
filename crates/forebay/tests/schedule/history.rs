//! What reads may have seen: every write and read with the times at which it began and ended.
//!
//! A byte may come from a write unless a later write had been acknowledged before the read began. Reads that
//! follow one another may not go back from a write to one that was there before.

use std::collections::HashMap;
use std::sync::Mutex;

use forebay_model::byte_at;

/// Bytes between positions that are looked at, beside the first and the last of a range; prime to everything.
const STRIDE: u64 = 509;
const NEVER: u64 = u64::MAX;

struct Write {
    begin: u64,
    ack: u64,
    start: u64,
    end: u64,
    /// 0 for zeros: what was there first, holes.
    seed: u32,
}

impl Write {
    fn byte(&self, at: u64) -> Option<u8> {
        let within = (self.start..self.end).contains(&at);
        within.then(|| {
            if self.seed == 0 {
                0
            } else {
                byte_at(self.seed, at)
            }
        })
    }
}

/// Which reader saw which write, from when until when.
struct Seen {
    begin: u64,
    end: u64,
    write: usize,
}

struct Log {
    clock: u64,
    writes: Vec<Write>,
    /// By position.
    seen: HashMap<u64, Vec<Seen>>,
}

/// The history of one file.
pub struct History(Mutex<Log>);

/// A write that has begun.
pub struct Begun(usize);

impl Log {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether a read that began at `begin` may see write `index` at `at`.
    fn may_see(&self, index: usize, at: u64, begin: u64) -> bool {
        let write = &self.writes[index];
        !self.writes.iter().any(|later| {
            write.ack < later.begin && later.ack < begin && (later.start..later.end).contains(&at)
        })
    }

    /// Whether seeing write `index` at `at` goes back behind what an earlier read saw.
    fn goes_back(&self, index: usize, at: u64, begin: u64) -> bool {
        let here = || self.seen.get(&at).into_iter().flatten();
        here()
            .filter(|seen| seen.end < begin && seen.write != index)
            .any(|earlier| {
                self.writes[index].ack < self.writes[earlier.write].begin
                    || here().any(|first| first.write == index && first.end < earlier.begin)
            })
    }

    fn describe(&self) -> String {
        let line = |(i, w): (usize, &Write)| {
            let ack = if w.ack == NEVER {
                "never".into()
            } else {
                w.ack.to_string()
            };
            format!(
                "\n  write {i}: {}..{} seed {} begun {} acknowledged {ack}",
                w.start, w.end, w.seed, w.begin
            )
        };
        self.writes.iter().enumerate().map(line).collect()
    }
}

impl History {
    /// Of a file of zeros.
    pub fn new() -> Self {
        let zeros = Write {
            begin: 0,
            ack: 0,
            start: 0,
            end: NEVER,
            seed: 0,
        };
        History(Mutex::new(Log {
            clock: 0,
            writes: vec![zeros],
            seen: HashMap::new(),
        }))
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.0.lock().expect("no panic under this lock goes on")
    }

    /// A write begins; `seed` 0 for zeros.
    pub fn begin(&self, start: u64, end: u64, seed: u32) -> Begun {
        let mut log = self.log();
        let begin = log.tick();
        log.writes.push(Write {
            begin,
            ack: NEVER,
            start,
            end,
            seed,
        });
        Begun(log.writes.len() - 1)
    }

    /// It has been acknowledged.
    pub fn ack(&self, begun: Begun) {
        let mut log = self.log();
        log.writes[begun.0].ack = log.clock + 1;
        log.tick();
    }

    /// The time, for [`History::saw`] and [`History::holds`].
    pub fn now(&self) -> u64 {
        self.log().tick()
    }

    /// A read that began at `begin` has ended with these bytes.
    pub fn saw(&self, begin: u64, offset: u64, bytes: &[u8]) {
        self.look(begin, offset, bytes, true, "a reader");
    }

    /// The device holds these bytes, and must have what was acknowledged before `begin`.
    pub fn holds(&self, begin: u64, offset: u64, bytes: &[u8]) {
        self.look(begin, offset, bytes, false, "the device");
    }

    fn look(&self, begin: u64, offset: u64, bytes: &[u8], remember: bool, who: &str) {
        let mut log = self.log();
        let end = log.tick();
        let len = bytes.len() as u64;
        let spots = (0..len.div_ceil(STRIDE))
            .map(|i| i * STRIDE)
            .chain(len.checked_sub(1));
        let mut verdict = Ok(());
        let mut news = Vec::new();
        for at in spots.map(|i| offset + i) {
            let byte = bytes[(at - offset) as usize];
            let from =
                |&i: &usize| log.writes[i].byte(at) == Some(byte) && log.writes[i].begin < end;
            let fits = |&i: &usize| {
                log.may_see(i, at, begin) && !(remember && log.goes_back(i, at, begin))
            };
            let origins: Vec<usize> = (0..log.writes.len()).filter(from).collect();
            let good: Vec<usize> = origins.iter().copied().filter(fits).collect();
            match good.as_slice() {
                [] => {
                    verdict = Err(format!(
                        "{who} found {byte:#x} at {at} ({begin}..{end}), written by {origins:?}:{}",
                        log.describe()
                    ));
                    break;
                }
                &[write] if remember => news.push((at, Seen { begin, end, write })),
                _ => {}
            }
        }
        for (at, seen) in news {
            log.seen.entry(at).or_default().push(seen);
        }
        drop(log);
        if let Err(what) = verdict {
            panic!("{what}");
        }
    }
}
