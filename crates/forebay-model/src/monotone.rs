//! Time must not run backwards: a worker that has read a byte must not read an older one later, and
//! must read its own writes. For each byte the reader remembers the newest version it has seen.
//!
//! A byte's value does not always tell versions apart (one in 255 agrees by chance); then the oldest
//! version that explains it is assumed, so that nothing is reported that could be right.

use crate::mismatch::SAMPLE_BYTES;
use crate::{Guess, Mismatch, Op, Origin, PartitionPlan, Place, Stripe, byte_at};

/// Checks what one reader sees of the files of a [`PartitionPlan`].
pub struct MonotoneReader<'a> {
    plan: &'a PartitionPlan,
    worker: Option<usize>,
    /// By stripe and byte: one more than the index of the newest version seen, or 0.
    seen: Vec<Vec<u32>>,
    /// By stripe: how many of its versions this reader has written itself.
    written: Vec<usize>,
}

impl<'a> MonotoneReader<'a> {
    /// For a reader that writes nothing.
    pub fn new(plan: &'a PartitionPlan) -> Self {
        let bytes = |stripe: &Stripe| vec![0; (stripe.end - stripe.start) as usize];
        MonotoneReader {
            plan,
            worker: None,
            seen: plan.stripes.iter().map(bytes).collect(),
            written: vec![0; plan.stripes.len()],
        }
    }

    /// For a worker, whose own stripes must be exactly what it wrote.
    pub fn for_worker(plan: &'a PartitionPlan, worker: usize) -> Self {
        MonotoneReader {
            worker: Some(worker),
            ..MonotoneReader::new(plan)
        }
    }

    /// The worker has written this operation of its list; the next in order of its stripe.
    pub fn wrote(&mut self, op: &Op) {
        let (&Op::Write { file, offset, .. } | &Op::WriteVectored { file, offset, .. }) = op else {
            return;
        };
        let holds = |s: &Stripe| s.file == file && (s.start..s.end).contains(&offset);
        let index = self
            .plan
            .stripes
            .iter()
            .position(holds)
            .expect("stripes cover the files");
        let stripe = &self.plan.stripes[index];
        let version = stripe.versions[self.written[index]];
        self.written[index] += 1;
        let range = (version.start - stripe.start) as usize..(version.end - stripe.start) as usize;
        self.seen[index][range].fill(self.written[index] as u32);
    }

    /// Bytes have been read from `offset`.
    pub fn observe(&mut self, file: u8, offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let end = offset + bytes.len() as u64;
        for (index, stripe) in self.plan.stripes.iter().enumerate() {
            if stripe.file != file || stripe.start >= end || stripe.end <= offset {
                continue;
            }
            let is_own = self.worker == Some(stripe.owner);
            for at in stripe.start.max(offset)..stripe.end.min(end) {
                let found = &bytes[(at - offset) as usize..];
                let seen = &mut self.seen[index][(at - stripe.start) as usize];
                match oldest_version(stripe, at, found[0], *seen, is_own) {
                    Some(version) => *seen = version,
                    None => return Err(refusal(stripe, at, found, *seen)),
                }
            }
        }
        Ok(())
    }
}

/// The oldest version, not older than `seen`, that puts `byte` at `at`.
fn oldest_version(stripe: &Stripe, at: u64, byte: u8, seen: u32, is_own: bool) -> Option<u32> {
    if value(stripe, at, seen) == Some(byte) {
        return Some(seen);
    }
    let newer = seen + 1..=stripe.versions.len() as u32;
    newer
        .filter(|_| !is_own)
        .find(|&version| value(stripe, at, version) == Some(byte))
}

/// What version `version` (0: before the first) puts at `at`, if it reaches there.
fn value(stripe: &Stripe, at: u64, version: u32) -> Option<u8> {
    let Some(index) = version.checked_sub(1) else {
        return Some(0);
    };
    let version = stripe.versions[index as usize];
    (version.start..version.end)
        .contains(&at)
        .then(|| byte_at(version.seed, at))
}

/// A report: operations are numbered as versions of the stripe.
fn refusal(stripe: &Stripe, at: u64, found: &[u8], seen: u32) -> Mismatch {
    let agreeing = |version: u32| {
        let sample = found.iter().take(SAMPLE_BYTES).zip(at..);
        sample
            .take_while(|&(&b, at)| value(stripe, at, version) == Some(b))
            .count()
    };
    let best = (1..=stripe.versions.len() as u32)
        .max_by_key(|&v| agreeing(v))
        .unwrap_or(0);
    let seed_of = |version: u32| stripe.versions[version as usize - 1].seed;
    let actual_from = match agreeing(best) {
        _ if found[0] == 0 => Guess::Zeros,
        0 => Guess::Unknown,
        agreeing => Guess::Written {
            op: best as usize,
            seed: seed_of(best),
            agreeing,
        },
    };
    let expected_from = match seen {
        0 => Origin::Hole,
        seen => Origin::Written {
            op: seen as usize,
            seed: seed_of(seen),
        },
    };
    let what = format!(
        "a reader went back, or saw what nobody wrote: stripe {}..{} of worker {}, version {seen} \
         of {} seen before (operations are numbered within the stripe)",
        stripe.start,
        stripe.end,
        stripe.owner,
        stripe.versions.len()
    );
    let expected = value(stripe, at, seen).unwrap_or(0);
    let actual = found[0];
    Mismatch::plain(what, Some(stripe.file)).at(Place {
        offset: at,
        expected,
        actual,
        expected_from,
        actual_from,
    })
}
