//! Ways in turn, and their medians.

use std::fmt;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;

/// What a way took.
#[derive(Clone, Copy)]
pub struct Took {
    pub median: f64,
    least: f64,
    most: f64,
}

impl Took {
    /// In another unit.
    pub fn times(self, factor: f64) -> Self {
        Took {
            median: self.median * factor,
            least: self.least * factor,
            most: self.most * factor,
        }
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} ({:.1} to {:.1})",
            self.median, self.least, self.most
        )
    }
}

/// A way, with its name. It says how long what counts of it took.
pub type Way<'a> = (&'a str, &'a mut dyn FnMut() -> Duration);

/// Runs ways in turn, one round more than counts. Milliseconds.
pub fn in_turn<const N: usize>(ways: &mut [Way<'_>; N]) -> [Took; N] {
    let mut times: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for round in 0..=ROUNDS {
        for ((_, way), times) in ways.iter_mut().zip(&mut times) {
            let took = way().as_secs_f64() * 1e3;
            if round > 0 {
                times.push(took);
            }
        }
    }
    times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        Took {
            median: times[ROUNDS / 2],
            least: times[0],
            most: times[ROUNDS - 1],
        }
    })
}

/// The same, printed by lines; `factor` makes another unit of milliseconds.
pub fn compare<const N: usize>(what: &str, factor: f64, mut ways: [Way<'_>; N]) -> [Took; N] {
    let took = in_turn(&mut ways).map(|took| took.times(factor));
    println!("{what}");
    for ((name, _), each) in ways.iter().zip(&took) {
        let ratio = took[0].median / each.median;
        println!("    {name:34} {each}  x{ratio:.2}");
    }
    took
}

pub fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

/// The sum of all words, so that each byte is read.
pub fn sum(bytes: &[u8]) -> u64 {
    // SAFETY: any bytes are numbers.
    let (_, words, _) = unsafe { bytes.align_to::<u64>() };
    std::hint::black_box(words.iter().fold(0, |sum, word| sum.wrapping_add(*word)))
}
