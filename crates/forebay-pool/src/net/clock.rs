//! The clock by which terms and leases end. It goes on while the host sleeps: [`std::time::Instant`] does not, and who woke would believe for a moment
//! that a term lasts which others have ended long ago.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment, as the time since the host began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    /// This one.
    pub fn now() -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        // Neither is ever below zero.
        let (seconds, rest) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        Moment(Duration::from_secs(seconds) + Duration::from_nanos(rest))
    }

    /// How long it is after another one; nothing if it is before that.
    pub fn since(self, other: Moment) -> Duration {
        self.0.saturating_sub(other.0)
    }

    /// The same in milliseconds.
    pub fn millis_since(self, other: Moment) -> u64 {
        self.since(other).as_millis() as u64
    }

    /// How long ago it was.
    pub fn elapsed(self) -> Duration {
        Moment::now().since(self)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0 + by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_as_the_kernel_says_how_long_the_host_is_up() {
        let up = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
            Duration::from_secs_f64(seconds)
        };
        // The file has hundredths of a second.
        let rough = Duration::from_millis(20);
        let (before, now, after) = (up(), Moment::now(), up());
        assert!(
            before <= now.0 + rough && now.0 <= after + rough,
            "{before:?}, {now:?}, {after:?}"
        );
    }
}
