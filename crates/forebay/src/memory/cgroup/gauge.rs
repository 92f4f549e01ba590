//! What is left under the limits of cgroups, asked many times a second: files whose answers do not change are read once in a while.

use std::time::{Duration, Instant};

use super::{Level, System};

/// How long it is believed which limits there are.
const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// What shall be left at least: this part of a limit, and not more than so many bytes.
const MARGIN_PART: u64 = 8;
const MARGIN_MAX: u64 = 64 << 20;

/// What shall be left under a limit: what programs take while somebody makes room for more.
pub fn margin(limit: u64) -> u64 {
    (limit / MARGIN_PART).min(MARGIN_MAX)
}

/// Remembers the limits.
#[derive(Debug)]
pub struct Gauge {
    system: System,
    limits: Vec<(Level, u64)>,
    looked: Option<Instant>,
}

/// How near the nearest limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearness {
    /// Bytes that may be taken before no more than the margin is left.
    pub spare: u64,
    /// Bytes that are to be given back for the margin to be left.
    pub missing: u64,
}

impl Gauge {
    /// Of this system's limits.
    pub fn new(system: System) -> Self {
        Gauge {
            system,
            limits: Vec::new(),
            looked: None,
        }
    }

    /// How near the nearest limit is; `None` without one.
    pub fn look(&mut self) -> Option<Nearness> {
        let old = |at: Instant| at.elapsed() >= BELIEVED_FOR;
        if self.looked.is_none_or(old) {
            let levels = self.system.levels("memory").into_iter();
            let limited = |level: Level| {
                let bytes = self.system.tightest(&level)?.bytes;
                Some((level, bytes))
            };
            self.limits = levels.filter_map(limited).collect();
            self.looked = Some(Instant::now());
        }
        self.system.nearest(&self.limits)
    }
}

impl System {
    /// Bytes that this process could take without coming nearer to the limit of a cgroup than its margin. `None`: there is none.
    pub fn spare(&self) -> Option<u64> {
        Gauge::new(self.clone()).look().map(|near| near.spare)
    }

    fn nearest(&self, limits: &[(Level, u64)]) -> Option<Nearness> {
        let near = limits.iter().filter_map(|(level, limit)| {
            let (left, margin) = (limit.saturating_sub(self.held(level)?), margin(*limit));
            Some(Nearness {
                spare: left.saturating_sub(margin),
                missing: margin.saturating_sub(left),
            })
        });
        near.min_by_key(|near| (near.spare, u64::MAX - near.missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A system of one cgroup of version 1, inside another.
    fn draw(limits: [u64; 2], used: [u64; 2]) -> (tempfile::TempDir, System) {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
            std::fs::write(path, text).expect("a file");
        };
        write("proc/self/cgroup", "4:memory:/a/b\n");
        write(
            "proc/self/mountinfo",
            "33 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        );
        for ((level, limit), used) in ["a", "a/b"].into_iter().zip(limits).zip(used) {
            let at = |file: &str| format!("sys/fs/cgroup/memory/{level}/{file}");
            write(&at("memory.limit_in_bytes"), &limit.to_string());
            write(&at("memory.usage_in_bytes"), &(used + 10 * MIB).to_string());
            write(
                &at("memory.stat"),
                &format!(
                    "total_inactive_file {}\ntotal_active_file {}\n",
                    7 * MIB,
                    3 * MIB
                ),
            );
        }
        let system = System::at(dir.path());
        (dir, system)
    }

    #[test]
    fn the_nearest_limit_counts() {
        let table = [
            ([800, 400], [100, 100], (250, 0)),
            ([800, 400], [700, 100], (36, 0)),
            ([800, 400], [700, 360], (0, 10)),
            ([800, 400], [790, 360], (0, 54)),
            ([800, 400], [900, 360], (0, 64)),
        ];
        for (limits, used, (spare, missing)) in table {
            let (_dir, system) = draw(limits.map(|n| n * MIB), used.map(|n| n * MIB));
            let near = Gauge::new(system.clone()).look();
            let expected = Nearness {
                spare: spare * MIB,
                missing: missing * MIB,
            };
            assert_eq!(near, Some(expected), "{limits:?} {used:?}");
            assert_eq!(system.spare(), Some(spare * MIB));
        }
    }

    #[test]
    fn where_nothing_is_limited_nothing_is_near() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(Gauge::new(System::at(dir.path())).look(), None);
    }
}
