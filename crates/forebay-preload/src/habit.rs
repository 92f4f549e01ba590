//! What new files of this process come to: whether the next one is likely to take many small writes.
//!
//! A new file that takes many is worth being managed from its first few on; one that ends soon is not, and nobody can know which it is. So a
//! file is left to the kernel until it has shown that it goes on ([`crate::attach::is_large`]), and most of what it would have gained is lost.
//! A process that has just written such files writes more of them: logs, tables, parts of an archive. Each file's end says what managing it
//! from its beginning on would have gained, or has; where the average is a gain, the next ones are managed early.
//!
//! The figures are rough, and only their sum counts: a process whose files are alternately long and short goes on as before. What a change of
//! habit costs is bounded: a few files that end soon take the average below the bound.
//!
//! Source: no paper; docs/decisions/0049-habits.md.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use forebay::limits::LARGE_REQUEST_BYTES;

use crate::inodes;
use crate::table::{Kind, Word, Written};

/// What a small write to a new file gains by being managed, nanoseconds, and what a managed life takes beside its writes.
const WRITE_NS: i64 = 2_000;
const LIFE_NS: i64 = 500_000;
/// A file's calls count up to so many: one long file is no habit.
const CALLS_MAX: u64 = 1_000;
/// The average above which the next file is managed early.
const LEAST_NS: i64 = 250_000;
/// The average goes by the last four files, about.
const WEIGHT: i64 = 4;

/// The average gain of the last files, nanoseconds. Threads that close at once may lose one.
static GAIN_NS: AtomicI64 = AtomicI64::new(0);

/// Whether the next new file is likely to be worth it.
#[inline]
pub fn is_of_many_writes() -> bool {
    GAIN_NS.load(Relaxed) > LEAST_NS
}

/// A descriptor of this word is no more. What is written through others of its description counts for the next one.
pub fn ended(word: Word) {
    if !word.writes() {
        return;
    }
    let description = word.description();
    let Written { calls, bytes, .. } = description.take_written();
    if calls == 0 || !description.may_be_new() {
        return;
    }
    // Once a file is managed, nobody counts: it goes on as it began.
    let size = match word.kind() {
        Kind::Managed => inodes::size_of(word).max(bytes),
        _ => bytes,
    };
    let average = GAIN_NS.load(Relaxed);
    GAIN_NS.store(
        average + (gain(calls, bytes, size) - average) / WEIGHT,
        Relaxed,
    );
}

/// What a file of this size gains whose first `bytes` came by so many calls.
fn gain(calls: u64, bytes: u64, size: u64) -> i64 {
    let request = (bytes / calls).max(1);
    let gained = match request < LARGE_REQUEST_BYTES {
        true => (size / request).min(CALLS_MAX) as i64 * WRITE_NS,
        false => 0,
    };
    gained - LIFE_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn average(files: &[(u64, u64)]) -> i64 {
        let ended = |average: i64, &(calls, request): &(u64, u64)| {
            let bytes = calls * request;
            average + (gain(calls, bytes, bytes) - average) / WEIGHT
        };
        files.iter().fold(0, ended)
    }

    #[test]
    fn files_of_many_small_writes_are_a_habit_and_few_others_end_it() {
        let (long, short, large) = ((1_000, 4_000), (25, 4_000), (100, 1 << 20));
        assert!(average(&[long]) > LEAST_NS);
        assert!(average(&[(400, 137); 20]) > LEAST_NS);
        assert!(average(&[short; 20]) < 0 && average(&[large; 20]) < 0);
        assert!(average(&[long, short, long, short, short]) < LEAST_NS);
        let much = [[long; 20].as_slice(), &[short; 5]].concat();
        assert!(average(&much) < LEAST_NS);
    }
}
