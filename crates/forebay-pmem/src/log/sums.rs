//! Checksums of any stretch of the log, from those of its beginnings.
//!
//! A log may be full of lines that look like heads of long records. To read each of those records would take the square of
//! the log's length; with these sums each takes some multiplications, and the log is read once.

use crate::medium::LINE;
use crate::medium::machine::{POLYNOMIAL, crc32c};

/// One, as a polynomial: bits are in reverse.
const ONE: u32 = 1 << 31;
const X: u32 = ONE >> 1;

/// Sums of a ring of lines.
pub struct Sums {
    /// Of the lines before each, and of all.
    before: Vec<u32>,
    /// What going on by 1, 2, 4 ... lines multiplies a sum by.
    steps: Vec<u32>,
}

impl Sums {
    /// Reads so many lines, one after the other.
    pub fn of(lines: u64, mut line: impl FnMut(u64) -> Vec<u8>) -> Self {
        let mut before = vec![0];
        for number in 0..lines {
            let sum = crc32c(before[number as usize], &line(number));
            before.push(sum);
        }
        // By one bit it is x; each square doubles the bits.
        let by_line = (0..(LINE * 8).ilog2()).fold(X, |by, _| multiply(by, by));
        let steps = std::iter::successors(Some(by_line), |by| Some(multiply(*by, *by)));
        Self {
            before,
            steps: steps.take(u64::BITS as usize).collect(),
        }
    }

    /// The sum of what `sum` is of, and of `count` lines after it, from line `first` of the ring on.
    pub fn go_on(&self, sum: u32, first: u64, count: u64) -> u32 {
        let lines = self.before.len() as u64 - 1;
        let first = first % lines;
        let until_end = count.min(lines - first);
        let sum = self.straight(sum, first, until_end);
        self.straight(sum, 0, count - until_end)
    }

    fn straight(&self, sum: u32, first: u64, count: u64) -> u32 {
        let (from, to) = (first as usize, (first + count) as usize);
        let steps = self.steps.iter().enumerate();
        let steps = steps.filter(|(bit, _)| count & (1 << bit) != 0);
        let moved = steps.fold(sum ^ self.before[from], |sum, (_, by)| multiply(*by, sum));
        moved ^ self.before[to]
    }
}

/// The product of two polynomials, modulo the checksum's.
fn multiply(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        if one & (1 << bit) != 0 {
            product ^= other;
        }
        let carried = POLYNOMIAL & (other & 1).wrapping_neg();
        other = (other >> 1) ^ carried;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_bytes() {
        const LINES: u64 = 37;
        let line = |number: u64| -> Vec<u8> {
            let bytes = 0..LINE as u64;
            bytes
                .map(|at| ((number * 64 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
                .collect()
        };
        let sums = Sums::of(LINES, line);
        for first in 0..LINES {
            for count in 0..=LINES {
                let begun = crc32c(0, b"what is before");
                let bytes = (first..first + count).flat_map(|number| line(number % LINES));
                let direct = crc32c(begun, &bytes.collect::<Vec<u8>>());
                assert_eq!(sums.go_on(begun, first, count), direct, "{first} {count}");
            }
        }
    }
}
