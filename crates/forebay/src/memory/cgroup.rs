//! How much memory this process may use, and whether it is running short.
//!
//! Memory is a hard budget (promise 5), and the arena cannot be reclaimed by the kernel: so
//! the engine must know the limits around it and give memory back before the kernel must take some
//! by killing. [`available`] is asked when a session starts; a [`Watch`] is asked by the keeper's
//! loop.
//!
//! Limits are those of the machine and of every memory cgroup from this process's own up to the
//! root: `memory.max` and `memory.high` of version 2, `memory.limit_in_bytes` of version 1 (its soft
//! limit is a hint for the kernel and ignored here), in one hierarchy or both. Inside a container
//! the path in `/proc/self/cgroup` and the mounted hierarchy may disagree: then the mount's own
//! directory is taken, which is what the container's cgroup is mounted as. Limits above the
//! container are not visible, except through version 1's `hierarchical_memory_limit`.
//!
//! Text is parsed by pure functions ([`parse`]); a test draws a system as a directory of files and
//! passes it to [`System::at`]. Nothing here fails: what cannot be read sets no limit.

mod gauge;
pub mod parse;
mod watch;

pub use crate::sys::cgroups::System;
use crate::sys::cgroups::{Level, Version};
pub use gauge::{Gauge, Nearness, margin};
use parse::{parse_field, parse_limit, parse_meminfo};
use serde::Serialize;
use std::path::{Path, PathBuf};
pub use watch::{Pressure, Watch};

/// What this process may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes of memory that this process and its like may use together: the smallest of the
    /// machine's memory and all cgroup limits.
    pub total_bytes: u64,
    /// The smallest cgroup limit in bytes, where there is any.
    pub cgroup_limit: Option<u64>,
    /// Bytes in use in the cgroup with that limit, page cache that nobody has used lately left out.
    pub cgroup_used: Option<u64>,
    /// Which limit decides: "MemTotal", or the path of the file.
    pub source: String,
}

impl Limits {
    /// None that anybody has looked for.
    pub fn unknown() -> Self {
        Limits {
            total_bytes: u64::MAX,
            cgroup_limit: None,
            cgroup_used: None,
            source: String::new(),
        }
    }
}

/// The limits of this process now.
pub fn available() -> Limits {
    System::here().limits()
}

/// Bytes that this process could still take before the kernel must kill somebody: what is left under
/// the tightest limit, counting page cache that can be dropped, and of the machine's memory. `None`
/// when nothing can be read. Giving the arena memory beyond this is deadly, not an error
/// ([`Mapping::back`](super::mapping::Mapping::back)); others take memory too, so leave a margin.
pub fn headroom() -> Option<u64> {
    System::here().headroom()
}

impl System {
    /// The limits in force. Without any readable file: no memory at all, by "nothing readable".
    pub fn limits(&self) -> Limits {
        let machine = self
            .read(Path::new("/proc/meminfo"))
            .and_then(|text| parse_meminfo(&text));
        let (total, source) = match machine {
            Some(memory) => (memory.total, "MemTotal"),
            None => (0, "nothing readable"),
        };
        let tightest = self
            .levels("memory")
            .iter()
            .filter_map(|level| self.tightest(level))
            .min();
        let mut limits = Limits {
            total_bytes: total,
            cgroup_limit: tightest.as_ref().map(|limit| limit.bytes),
            cgroup_used: tightest.as_ref().and_then(|limit| self.used(&limit.level)),
            source: source.to_owned(),
        };
        if let Some(limit) = tightest.filter(|limit| machine.is_none() || limit.bytes < total) {
            limits.total_bytes = limit.bytes;
            limits.source = limit.file.display().to_string();
        }
        limits
    }

    /// See [`headroom`].
    pub fn headroom(&self) -> Option<u64> {
        let machine = self
            .read(Path::new("/proc/meminfo"))
            .and_then(|text| parse_meminfo(&text));
        let levels = self.levels("memory");
        let left = levels.iter().filter_map(|level| {
            Some(
                self.tightest(level)?
                    .bytes
                    .saturating_sub(self.used(level)?),
            )
        });
        left.chain(machine.map(|memory| memory.available)).min()
    }

    fn tightest(&self, level: &Level) -> Option<Limit> {
        let files: &[&str] = match level.version {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        };
        let own = files.iter().filter_map(|name| {
            let file = level.dir.join(name);
            let bytes = parse_limit(&self.read(&file)?)?;
            Some(Limit {
                bytes,
                file,
                level: level.clone(),
            })
        });
        own.chain(self.inherited(level)).min()
    }

    /// Version 1 tells the limits of cgroups that a container cannot see. The lowest level has them all, and is asked alone: the kernel
    /// adds up a cgroup's counts for it, 0.1 ms and more.
    fn inherited(&self, level: &Level) -> Option<Limit> {
        if level.version == Version::Two || !level.is_own {
            return None;
        }
        let file = level.dir.join("memory.stat");
        let text = self.read(&file)?;
        let bytes = parse_limit(&parse_field(&text, "hierarchical_memory_limit")?.to_string())?;
        Some(Limit {
            bytes,
            file,
            level: level.clone(),
        })
    }

    /// Bytes in use in a cgroup. Inactive page cache is left out: the kernel drops it for the
    /// asking, and a cgroup that has read a large file is not short of memory.
    fn used(&self, level: &Level) -> Option<u64> {
        self.used_but(level, &["inactive_file"])
    }

    /// As [`System::used`], without any page cache: the kernel kills nobody while it can drop some.
    fn held(&self, level: &Level) -> Option<u64> {
        self.used_but(level, &["inactive_file", "active_file"])
    }

    fn used_but(&self, level: &Level, parts: &[&str]) -> Option<u64> {
        let (usage, prefix) = match level.version {
            Version::One => ("memory.usage_in_bytes", "total_"),
            Version::Two => ("memory.current", ""),
        };
        let used: u64 = self.read(&level.dir.join(usage))?.trim().parse().ok()?;
        let stat = self
            .read(&level.dir.join("memory.stat"))
            .unwrap_or_default();
        let bytes_of = |part: &&str| parse_field(&stat, &format!("{prefix}{part}")).unwrap_or(0);
        Some(used.saturating_sub(parts.iter().map(bytes_of).sum()))
    }
}

/// A limit and where it stands. Ordered by bytes first; among equals the one nearest to the
/// machine's root wins, because more processes count against it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    bytes: u64,
    file: PathBuf,
    level: Level,
}

impl Ord for Limit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let depth = |limit: &Self| limit.level.dir.components().count();
        (self.bytes, depth(self)).cmp(&(other.bytes, depth(other)))
    }
}

impl PartialOrd for Limit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests;
