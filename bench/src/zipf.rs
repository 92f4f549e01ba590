//! Places drawn by a Zipf distribution, as YCSB draws them (Gray and others, SIGMOD 1994), shuffled over the file so that what is
//! drawn often does not lie together.

use crate::memory::Random;

/// A distribution over `count` places.
pub struct Zipf {
    count: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// `theta` below 1: the nearer, the more often the same few are drawn.
    pub fn new(count: u64, theta: f64) -> Self {
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let zeta = zeta_of(count);
        Zipf {
            count,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta: (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - zeta_of(2) / zeta),
        }
    }

    /// The next place.
    pub fn draw(&self, random: &mut Random) -> u64 {
        const STEPS: u64 = 1 << 52;
        let uniform = random.below(STEPS) as f64 / STEPS as f64;
        let scaled = uniform * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            let share = (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
            (self.count as f64 * share) as u64
        };
        // Any odd factor without a divisor in common with the count moves each rank to a place of its own.
        rank.min(self.count - 1).wrapping_mul(0x9E37_79B1) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_is_drawn_most_and_all_are_places() {
        let (count, draws) = (1000, 100_000);
        let zipf = Zipf::new(count, 0.99);
        let mut random = Random::new(1);
        let mut often = vec![0u32; count as usize];
        for _ in 0..draws {
            often[zipf.draw(&mut random) as usize] += 1;
        }
        // 1 / zeta(1000) is 13 %.
        assert!((11_000..16_000).contains(&often[0]), "{}", often[0]);
        let met = often.iter().filter(|&&times| times > 0).count();
        assert!(met > 900, "{met} of {count} places");
    }
}
