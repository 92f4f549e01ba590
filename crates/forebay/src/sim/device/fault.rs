//! Failing the n-th call, for every n.
//!
//! A plan counts the calls of all files that share it. A test first runs with a plan that only
//! counts, then once for each n up to [`FaultPlan::calls`]:
//!
//! ```ignore
//! let calls = { let plan = FaultPlan::counting(Kinds::ALL); run(&plan); plan.calls() };
//! for n in 0..calls {
//!     run(&FaultPlan::nth(n, Kinds::ALL, Outcome::Errno(libc::EIO), Repeat::Once));
//! }
//! ```

use super::call::{Call, CallKind, Kinds};
use super::wrapped::{Before, Verdict};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What happens to the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fails with this error number and has no effect.
    Errno(i32),
    /// A transfer is cut to half its bytes, rounded down to the file's alignment; where that is
    /// nothing, and for other calls, it proceeds.
    Short,
    /// As `Short`, but it reports this error: what lies on the device afterwards is not known to
    /// the caller. For other calls than transfers the same as `Errno`.
    Torn(i32),
    /// It has no effect and reports success: a planted bug, for tests of tests.
    Swallow,
}

/// How often it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// To the n-th call.
    Once,
    /// To the n-th call and all after it.
    ForEver,
}

/// Which calls fail and how. Only calls of the plan's kinds are counted.
#[derive(Debug)]
pub struct FaultPlan {
    kinds: Kinds,
    /// Number of the call that fails first, counting from 0; `u64::MAX` for none.
    first: u64,
    outcome: Outcome,
    repeat: Repeat,
    calls: AtomicU64,
    tripped: AtomicU64,
}

impl FaultPlan {
    /// Fails nothing, counts calls of these kinds.
    pub fn counting(kinds: Kinds) -> Arc<Self> {
        Self::nth(u64::MAX, kinds, Outcome::Short, Repeat::Once)
    }

    /// The `n`-th call of these kinds, counting from 0, ends with `outcome`.
    pub fn nth(n: u64, kinds: Kinds, outcome: Outcome, repeat: Repeat) -> Arc<Self> {
        let (calls, tripped) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self {
            kinds,
            first: n,
            outcome,
            repeat,
            calls,
            tripped,
        })
    }

    /// Calls of the plan's kinds so far, by all files that share it.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// How many of them the plan has failed.
    pub fn tripped(&self) -> u64 {
        self.tripped.load(Relaxed)
    }

    fn applies_to(&self, number: u64) -> bool {
        match self.repeat {
            Repeat::Once => number == self.first,
            Repeat::ForEver => number >= self.first,
        }
    }
}

impl Before for FaultPlan {
    fn before(&self, call: &Call) -> Verdict {
        if !self.kinds.contains(call.kind) {
            return Verdict::Proceed;
        }
        // Numbers need only be unique; nothing else is ordered by them.
        let number = self.calls.fetch_add(1, Relaxed);
        if !self.applies_to(number) {
            return Verdict::Proceed;
        }
        self.tripped.fetch_add(1, Relaxed);
        match self.outcome {
            Outcome::Errno(errno) => Verdict::Fail(io::Error::from_raw_os_error(errno)),
            Outcome::Swallow => Verdict::Pretend,
            Outcome::Short => match half_of(call) {
                0 => Verdict::Proceed,
                half => Verdict::Shorten(half),
            },
            Outcome::Torn(errno) => {
                let error = io::Error::from_raw_os_error(errno);
                match half_of(call) {
                    0 => Verdict::Fail(error),
                    half => Verdict::Tear(half, error),
                }
            }
        }
    }
}

/// Half the bytes of a transfer, rounded down to what the device moves at once; 0 for other calls.
fn half_of(call: &Call) -> usize {
    let direct = matches!(call.kind, CallKind::ReadDirect | CallKind::WriteDirect);
    let align = if direct { u64::from(call.align) } else { 1 };
    let transfer = Kinds::READS.contains(call.kind) || Kinds::WRITES.contains(call.kind);
    if transfer {
        (call.len / 2 / align * align) as usize
    } else {
        0
    }
}
