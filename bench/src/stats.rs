//! Medians and spreads. No means of runs, no standard deviations: run times on a shared machine have
//! a long tail, and five of them say little more than a middle and two ends.

use serde::Serialize;

/// What several runs of one side said about one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle run, or the mean of the two middle ones.
    pub median: f64,
    /// The lowest run.
    pub min: f64,
    /// The highest run.
    pub max: f64,
}

impl Summary {
    /// Summary of the runs, or `None` if there was none.
    pub fn of(runs: &[f64]) -> Option<Self> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Summary { median, min, max })
    }

    /// Distance of the ends, as a share of the median: how far to trust the median.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.max - self.min) / self.median
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn nothing_has_no_summary() {
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn odd_takes_the_middle_and_even_the_mean_of_two() {
        let odd = Summary::of(&[9.0, 1.0, 3.0]).unwrap();
        assert_eq!(
            odd,
            Summary {
                median: 3.0,
                min: 1.0,
                max: 9.0
            }
        );
        let even = Summary::of(&[4.0, 1.0, 2.0, 100.0]).unwrap();
        assert_eq!(
            even,
            Summary {
                median: 3.0,
                min: 1.0,
                max: 100.0
            }
        );
    }

    #[test]
    fn spread_is_relative_to_the_median() {
        let summary = Summary::of(&[8.0, 10.0, 13.0]).unwrap();
        assert!((summary.spread() - 0.5).abs() < 1e-12);
        assert_eq!(Summary::of(&[0.0]).unwrap().spread(), 0.0);
    }
}
