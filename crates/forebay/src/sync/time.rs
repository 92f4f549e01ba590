//! The one door to time: the system's clock and sleep, or those of a simulation.

#[cfg(not(feature = "sim"))]
pub use std::{thread::sleep, time::Instant};

#[cfg(feature = "sim")]
pub use simulated::{Instant, sleep};

#[cfg(feature = "sim")]
mod simulated {
    use std::sync::OnceLock;
    use std::time::Duration;

    use crate::sim::tasks;

    /// A moment: as the system's, or of the simulation that this thread has. The two are never compared.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Instant(Duration);

    impl Instant {
        /// Now.
        pub fn now() -> Self {
            static BASE: OnceLock<std::time::Instant> = OnceLock::new();
            if tasks::has_clock() {
                return Instant(tasks::now());
            }
            Instant(BASE.get_or_init(std::time::Instant::now).elapsed())
        }

        /// Time since then.
        pub fn elapsed(&self) -> Duration {
            Self::now().0.saturating_sub(self.0)
        }

        /// Time from an earlier moment to this one; none, if it was later.
        pub fn duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// As [`Instant::duration_since`].
        pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }

    impl std::ops::Add<Duration> for Instant {
        type Output = Self;

        fn add(self, time: Duration) -> Self {
            Instant(self.0 + time)
        }
    }

    impl std::ops::Sub for Instant {
        type Output = Duration;

        fn sub(self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }

    /// Sleeps.
    pub fn sleep(time: Duration) {
        if tasks::is_on() {
            tasks::sleep(time);
        } else {
            std::thread::sleep(time);
        }
    }
}
