//! A hash of numbers, and numbers that a seed decides.
//!
//! The finisher of splitmix64 (Steele, Lea and Flood 2014), which spreads every bit of its input over all of its output.
//! Nothing here is secret: keys that must not be guessed come from elsewhere.

/// Spreads a number over 64 bits.
pub const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Spreads two numbers over 64 bits; their order counts.
pub const fn mix2(first: u64, second: u64) -> u64 {
    mix(mix(first) ^ second.rotate_left(32))
}

/// A sequence of numbers.
#[cfg(test)]
#[derive(Clone, Debug)]
pub struct Random(u64);

#[cfg(test)]
impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Random(mix(seed))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Whether something happens that happens `times` in a thousand.
    pub fn chance(&mut self, times: u64) -> bool {
        self.below(1000) < times
    }
}
