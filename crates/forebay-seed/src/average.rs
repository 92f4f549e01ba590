//! A moving average of what requests took, in which one request that waited for a processor decides nothing.
//!
//! A latest that is far above the average counts as [`OUTLIER`] times the average, if it is alone. Where another one came within the last [`ALONE`]
//! it counts as what it is: a path that stalls for one request in twenty is as slow as that makes it, and one that has become slow is known
//! to be with the second request.

/// Weight of the latest request.
const WEIGHT: f64 = 1.0 / 8.0;
/// The latest is far above the average when it is more than so many times as long.
const OUTLIER: f64 = 8.0;
/// So many requests between two that are far above the average, and each is alone.
const ALONE: u32 = 64;

/// A moving average of positive numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average {
    value: f64,
    /// Since one that was far above the average.
    calm: u32,
}

impl Average {
    pub const fn new(value: f64) -> Self {
        Average { value, calm: ALONE }
    }

    pub fn get(&self) -> f64 {
        self.value
    }

    /// Moves it towards the latest.
    pub fn follow(&mut self, latest: f64) {
        let far = self.value * OUTLIER;
        let is_far = latest > far;
        let counted = if is_far && self.calm >= ALONE {
            far
        } else {
            latest
        };
        self.calm = if is_far {
            0
        } else {
            self.calm.saturating_add(1)
        };
        self.value += (counted - self.value) * WEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(latest: impl IntoIterator<Item = f64>) -> f64 {
        let mut average = Average::new(1.0);
        latest.into_iter().for_each(|latest| average.follow(latest));
        average.get()
    }

    #[test]
    fn one_that_is_far_above_decides_nothing() {
        assert!(after([1_000.0]) < 2.0);
        assert!(after([1_000.0].into_iter().chain([1.0; 16])) < 1.2);
    }

    #[test]
    fn a_path_that_has_become_slow_is_known_to_be_with_the_second() {
        assert!(after([1_000.0; 2]) > 100.0);
    }

    #[test]
    fn rare_stalls_that_cost_more_than_all_else_count() {
        for share in [20, 50] {
            let latest = (1..=20 * share).map(|n| if n % share == 0 { 2_000.0 } else { 1.0 });
            let mut average = Average::new(1.0);
            let mut sum = 0.0;
            let count = latest.clone().count() as f64;
            for latest in latest {
                average.follow(latest);
                sum += average.get();
            }
            let true_mean = 2_000.0 / f64::from(share);
            assert!(sum / count > true_mean / 2.0, "{share}: {}", sum / count);
        }
    }
}
