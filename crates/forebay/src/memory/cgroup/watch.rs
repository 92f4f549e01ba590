//! Memory pressure, asked again and again by the keeper.
//!
//! Three signs, none of them enough alone: the share of the limit in use, which says nothing about
//! whether anyone suffers; counters of the kernel's attempts to stay under the limit, which also
//! grow when page cache alone fills a cgroup; and stall times, which come late. So the counters and
//! the stalls count only where much of the memory is in use that cannot simply be dropped.

use super::parse::{Stall, parse_field, parse_meminfo, parse_stall};
use super::{Level, System, Version};
use serde::Serialize;
use std::path::Path;

/// Below this share in use there is no pressure.
const NOTICE: f64 = 0.75;
/// From this share on the kernel will kill soon, whatever the other signs say.
const BRINK: f64 = 0.95;
/// Percent of time that tasks wait for memory from which on it hurts.
const STALL_PERCENT: f64 = 10.0;

/// How short memory is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pressure {
    /// Less than three quarters are in use, or nothing is known.
    None,
    /// The share in use, 0.75 to 0.95, of the limit or machine that is nearest to being full.
    Some(f64),
    /// The kernel is reclaiming, tasks are waiting, or nearly nothing is left: give memory back now.
    High,
}

/// Remembers the counters of the last question.
#[derive(Debug)]
pub struct Watch {
    system: System,
    /// The kernel's attempts to stay under the limits, all levels together.
    events: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(System::here())
    }
}

impl Watch {
    /// Starts watching. What happened before is not pressure.
    pub fn new(system: System) -> Self {
        let events = system.events(&system.levels("memory"));
        Self { system, events }
    }

    /// Pressure now; reclaim counts when it happened since the last call. A few dozen system calls,
    /// so once or twice a second is often enough.
    pub fn pressure(&mut self) -> Pressure {
        let levels = self.system.levels("memory");
        let events = self.system.events(&levels);
        // Levels may vanish when a process is moved, so the sum may fall as well.
        let reclaiming = events > self.events;
        self.events = events;
        judge(
            self.system.share_used(&levels),
            reclaiming,
            self.system.stall(&levels),
        )
    }
}

/// The decision, from the three signs.
fn judge(used: Option<f64>, reclaiming: bool, stall: Option<Stall>) -> Pressure {
    let Some(used) = used.filter(|&used| used >= NOTICE) else {
        return Pressure::None;
    };
    let stalled = stall.is_some_and(|stall| stall.some >= STALL_PERCENT);
    if used >= BRINK || reclaiming || stalled {
        Pressure::High
    } else {
        Pressure::Some(used)
    }
}

impl System {
    /// The largest share in use of the machine's memory and of any level's limit.
    fn share_used(&self, levels: &[Level]) -> Option<f64> {
        let machine = self
            .read(Path::new("/proc/meminfo"))
            .and_then(|text| parse_meminfo(&text));
        let machine = machine.map(|memory| 1.0 - share(memory.available, memory.total));
        let levels = levels.iter().filter_map(|level| {
            let limit = self.tightest(level)?.bytes;
            Some(share(self.used(level)?, limit))
        });
        levels.chain(machine).reduce(f64::max)
    }

    fn events(&self, levels: &[Level]) -> u64 {
        levels
            .iter()
            .map(|level| self.level_events(level).unwrap_or(0))
            .sum()
    }

    fn level_events(&self, level: &Level) -> Option<u64> {
        match level.version {
            Version::One => self
                .read(&level.dir.join("memory.failcnt"))?
                .trim()
                .parse()
                .ok(),
            Version::Two => {
                let text = self.read(&level.dir.join("memory.events"))?;
                Some(
                    ["high", "max"]
                        .iter()
                        .filter_map(|name| parse_field(&text, name))
                        .sum(),
                )
            }
        }
    }

    /// Stalls of this process's own cgroup, else of the machine.
    fn stall(&self, levels: &[Level]) -> Option<Stall> {
        let own = levels
            .first()
            .map(|level| level.dir.join("memory.pressure"));
        let own = own.and_then(|file| self.read(&file));
        parse_stall(&own.or_else(|| self.read(Path::new("/proc/pressure/memory")))?)
    }
}

/// A part of a whole, at most 1. A limit of nothing is used up.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        (part as f64 / whole as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_signs_make_one_answer() {
        let calm = Some(Stall::default());
        let waiting = Some(Stall {
            some: 12.0,
            full: 0.0,
        });
        let table = [
            (None, true, waiting, Pressure::None),
            (Some(0.5), true, waiting, Pressure::None),
            (Some(0.8), false, calm, Pressure::Some(0.8)),
            (Some(0.8), false, None, Pressure::Some(0.8)),
            (Some(0.8), true, calm, Pressure::High),
            (Some(0.8), false, waiting, Pressure::High),
            (Some(0.97), false, None, Pressure::High),
        ];
        for (used, reclaiming, stall, expected) in table {
            assert_eq!(
                judge(used, reclaiming, stall),
                expected,
                "{used:?} {reclaiming}"
            );
        }
    }

    #[test]
    fn shares() {
        assert_eq!(share(1, 4), 0.25);
        assert_eq!(share(0, 0), 1.0);
        assert_eq!(share(9, 3), 1.0);
    }
}
