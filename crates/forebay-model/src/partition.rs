//! Several workers on the same files, with a result that does not depend on who came first.
//!
//! Files are cut into stripes of ragged lengths, so that neighbours share pages and blocks; each
//! stripe belongs to one worker, which alone writes it. Everybody reads everything. So the contents at
//! the end are known, each worker knows exactly what its own bytes are at any time, and of foreign
//! bytes it knows which values they may have and in which order ([`MonotoneReader`]).
//!
//! Workers may be threads, or processes that make the same plan from the same seed.

use crate::generate::Decoder;
use crate::{
    BLOCK_BYTES, Driver, Mismatch, MonotoneReader, Op, Outcome, PAGE_BYTES, Profile, SplitMix64,
    Target,
};

/// Longest read of a worker: checking costs more than reading.
const READ_BYTES_MAX: u32 = 64 * 1024;

/// Reads look at this many writes back.
const RECENT_WRITES: usize = 4;

/// One write to a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The write's seed.
    pub seed: u32,
}

/// A range of a file that one worker writes.
#[derive(Clone, Debug)]
pub struct Stripe {
    /// The file.
    pub file: u8,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Its writer.
    pub owner: usize,
    /// Every write to it, in the order in which the owner makes them.
    pub versions: Vec<Version>,
}

/// The writers and what each does.
#[derive(Clone, Debug)]
pub struct PartitionPlan {
    /// To be done by somebody before anybody starts: gives the files their lengths.
    pub prepare: Vec<Op>,
    /// One list for each worker.
    pub workers: Vec<Vec<Op>>,
    /// All stripes, by file and offset; together they cover the files.
    pub stripes: Vec<Stripe>,
}

impl PartitionPlan {
    /// A plan for `workers` workers of `n` operations each, the same for the same arguments. The
    /// profile has one base, and only kinds that neither change lengths nor punch, such as
    /// [`Profile::PARTITION`]'s.
    pub fn new(seed: u64, profile: &Profile, workers: usize, n: usize) -> Self {
        assert!(profile.bases == [0] && workers > 0);
        let mut random = SplitMix64::new(seed);
        let prepare = |file| Op::SetLen {
            file,
            handle: 0,
            len: profile.window,
        };
        let stripes = cut(profile, workers, &mut random);
        let mut planner = Planner {
            stripes,
            random,
            recent: Vec::new(),
        };
        let mut decoder = Decoder::new(profile);
        let mut lists = vec![Vec::new(); workers];
        // Round robin, so that seeds are unique among all workers.
        for i in 0..n * workers {
            let op = decoder.decode(planner.random.dice());
            lists[i % workers].push(planner.assign(i % workers, op));
        }
        PartitionPlan {
            prepare: (0..profile.files).map(prepare).collect(),
            workers: lists,
            stripes: planner.stripes,
        }
    }

    /// Carries out one worker's part, comparing as it goes. `target` is the worker's own way to the
    /// files, with one handle each; the plan has been prepared.
    pub fn drive_worker(&self, worker: usize, target: &mut dyn Target) -> Result<(), Mismatch> {
        let mut reader = MonotoneReader::for_worker(self, worker);
        for (index, op) in self.workers[worker].iter().enumerate() {
            let outcome = target.run(op);
            let verdict = match (op, &outcome) {
                (&Op::Read { file, offset, .. }, Outcome::Bytes(bytes)) => {
                    if bytes.len() as u64 == self.readable(op) {
                        reader.observe(file, offset, bytes)
                    } else {
                        Err(Mismatch::plain(
                            format!("short read: {outcome:?}"),
                            Some(file),
                        ))
                    }
                }
                (_, Outcome::Wrote(n)) if *n == op.payload_len() => {
                    reader.wrote(op);
                    Ok(())
                }
                (_, Outcome::Done) => Ok(()),
                _ => Err(Mismatch::plain(
                    format!("unexpected answer: {outcome:?}"),
                    op.file(),
                )),
            };
            verdict.map_err(|mismatch| mismatch.by_worker(worker, index, op))?;
        }
        Ok(())
    }

    /// How many bytes a read must give: lengths do not change.
    fn readable(&self, op: &Op) -> u64 {
        let &Op::Read {
            file, offset, len, ..
        } = op
        else {
            return 0;
        };
        let stripes = self.stripes.iter().filter(|stripe| stripe.file == file);
        let end = stripes.map(|stripe| stripe.end).max().unwrap_or(0);
        u64::from(len).min(end.saturating_sub(offset))
    }

    /// A driver whose model has every worker's work in it: [`Driver::finish`] compares the files once
    /// all workers are done, and its model says what must survive if some have died.
    pub fn finished(&self) -> Driver {
        let mut driver =
            Driver::for_ops(&[self.prepare.as_slice(), &self.workers.concat()].concat());
        for op in self.prepare.iter().chain(self.workers.iter().flatten()) {
            driver.model_mut().apply(op);
        }
        driver
    }
}

/// Hands operations to workers.
struct Planner {
    stripes: Vec<Stripe>,
    random: SplitMix64,
    /// File and offset of the last writes, oldest first.
    recent: Vec<(u8, u64)>,
}

impl Planner {
    /// The operation as one that the worker may do: writes go to a stripe of its own, reads mostly
    /// to where somebody is writing about now.
    fn assign(&mut self, worker: usize, op: Op) -> Op {
        match op {
            Op::Read {
                file,
                handle,
                offset,
                len,
            } => {
                let usual = (file, offset);
                let choice = self.random.below(2 * RECENT_WRITES as u64) as usize;
                let (file, offset) = self.recent.get(choice).copied().unwrap_or(usual);
                Op::Read {
                    file,
                    handle,
                    offset,
                    len: len.clamp(1, READ_BYTES_MAX),
                }
            }
            Op::Write { seed, .. } | Op::WriteVectored { seed, .. } => {
                let (file, Version { start, end, .. }) =
                    self.own_write(worker, seed, op.payload_len());
                let (handle, offset, len) = (0, start, (end - start) as u32);
                if matches!(op, Op::Write { .. }) {
                    return Op::Write {
                        file,
                        handle,
                        offset,
                        len,
                        seed,
                    };
                }
                let lens = vec![len / 3, len - len / 3];
                Op::WriteVectored {
                    file,
                    handle,
                    offset,
                    lens,
                    seed,
                }
            }
            Op::SetLen { .. } | Op::Append { .. } | Op::Punch { .. } | Op::Reopen { .. } => {
                panic!("{op:?} cannot be shared out: see PartitionPlan::new")
            }
            op => op,
        }
    }

    /// Chooses where in a stripe of the worker a write of about `len` bytes goes: the whole stripe,
    /// an end of it, or a part.
    fn own_write(&mut self, worker: usize, seed: u32, len: u64) -> (u8, Version) {
        let is_own = |&i: &usize| self.stripes[i].owner == worker;
        let own: Vec<_> = (0..self.stripes.len()).filter(is_own).collect();
        let stripe = &mut self.stripes[own[self.random.below(own.len() as u64) as usize]];
        let room = stripe.end - stripe.start;
        let len = len.clamp(1, room);
        let within = match self.random.below(4) {
            0 => 0,
            1 => room - len,
            _ => self.random.below(room - len + 1),
        };
        let start = stripe.start + within;
        let version = Version {
            start,
            end: start + len,
            seed,
        };
        stripe.versions.push(version);
        if self.recent.len() == RECENT_WRITES {
            self.recent.remove(0);
        }
        self.recent.push((stripe.file, start));
        (stripe.file, version)
    }
}

/// Cuts every file into stripes from a few bytes to three blocks long; owners take turns.
fn cut(profile: &Profile, workers: usize, random: &mut SplitMix64) -> Vec<Stripe> {
    let mut stripes = Vec::new();
    for file in 0..profile.files {
        let mut start = 0;
        while start < profile.window {
            let len = match random.below(6) {
                0 => 1 + random.below(100),
                1 => PAGE_BYTES,
                2 => 1 + random.below(3 * PAGE_BYTES),
                3 => BLOCK_BYTES - start % BLOCK_BYTES,
                4 => PAGE_BYTES - start % PAGE_BYTES,
                _ => 1 + random.below(BLOCK_BYTES / 2),
            };
            let end = (start + len).min(profile.window);
            let owner = stripes.len() % workers;
            stripes.push(Stripe {
                file,
                start,
                end,
                owner,
                versions: Vec::new(),
            });
            start = end;
        }
    }
    assert!(stripes.len() >= workers, "more workers than stripes");
    stripes
}
