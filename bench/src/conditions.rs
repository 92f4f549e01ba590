//! Under which conditions figures were taken: without them a figure means nothing.

use std::fs;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::place::memory_total;

/// The machine and the moment.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// Release of the running kernel.
    pub kernel: String,
    /// All memory, in bytes.
    pub memory_bytes: u64,
    /// Cores this process may use.
    pub cores: usize,
    /// The setting of transparent huge pages.
    pub huge_pages: String,
    /// Day and minute, UTC.
    pub date: String,
    /// Runs of each side.
    pub runs: usize,
    /// Whether all caches could be dropped (root), or only the measured file's.
    pub drops_all_caches: bool,
    /// Whether the program was built without optimisation: such figures are worth nothing.
    pub debug_build: bool,
}

impl Conditions {
    /// As they are now.
    pub fn now(runs: usize) -> Self {
        let line = |path| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |past| past.as_secs());
        let drop_caches = fs::OpenOptions::new()
            .write(true)
            .open("/proc/sys/vm/drop_caches");
        Conditions {
            kernel: line("/proc/sys/kernel/osrelease"),
            memory_bytes: memory_total(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get()),
            huge_pages: chosen(&line("/sys/kernel/mm/transparent_hugepage/enabled")),
            date: utc(seconds),
            runs,
            drops_all_caches: drop_caches.is_ok(),
            debug_build: cfg!(debug_assertions),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let gib = self.memory_bytes as f64 / (1u64 << 30) as f64;
        let caches = if self.drops_all_caches {
            "all caches"
        } else {
            "only the file's pages"
        };
        let debug = if self.debug_build {
            "; DEBUG BUILD, figures are worth nothing"
        } else {
            ""
        };
        format!(
            "kernel {}, {} cores, {gib:.1} GiB, huge pages {}, {}; {} runs of each side, {caches} \
             dropped before each{debug}",
            self.kernel, self.cores, self.huge_pages, self.date, self.runs,
        )
    }
}

/// The bracketed word of a setting such as `always [madvise] never`.
fn chosen(setting: &str) -> String {
    let inside = setting
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or_else(|| "unknown".to_owned(), |(word, _)| word.to_owned())
}

/// `2026-01-31 23:59 UTC`, by the calendar of Hinnant's `civil_from_days`.
fn utc(seconds: u64) -> String {
    let (days, in_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (in_day / 3600, in_day / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::{chosen, utc};

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_767_225_600), "2026-01-01 00:00 UTC");
    }

    #[test]
    fn the_setting_in_brackets_is_chosen() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen(""), "unknown");
    }
}
