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

use super::mounts::{Mount, parse_mountinfo};
pub use gauge::{Gauge, Nearness, margin};
use parse::{CgroupPaths, parse_cgroup, parse_field, parse_limit, parse_meminfo};
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

/// Version of a cgroup hierarchy: the files have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A directory of the hierarchy that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    version: Version,
    dir: PathBuf,
    /// The process's own, below all others of its hierarchy.
    is_own: bool,
}

/// The files of `/proc` and `/sys`, real or drawn by a test.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// This machine, as this process sees it.
    pub fn here() -> Self {
        Self::at(Path::new("/"))
    }

    /// A tree of files that stands for a machine.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

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
            .levels()
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
        let levels = self.levels();
        let left = levels.iter().filter_map(|level| {
            Some(
                self.tightest(level)?
                    .bytes
                    .saturating_sub(self.used(level)?),
            )
        });
        left.chain(machine.map(|memory| memory.available)).min()
    }

    /// The directories from this process's memory cgroup up to the top of what is mounted, of
    /// version 2 first and then of version 1. A hybrid system has the memory controller in one.
    fn levels(&self) -> Vec<Level> {
        let paths = self
            .read(Path::new("/proc/self/cgroup"))
            .map(|text| parse_cgroup(&text));
        let CgroupPaths { v1_memory, v2 } = paths.unwrap_or_default();
        let mountinfo = self
            .read(Path::new("/proc/self/mountinfo"))
            .unwrap_or_default();
        let mounts = parse_mountinfo(&mountinfo);
        let mut levels = Vec::new();
        let v2_mount = mounts.iter().find(|mount| mount.kind == "cgroup2");
        if let (Some(path), Some(mount)) = (v2, v2_mount) {
            levels.extend(self.climb(Version::Two, &path, mount));
        }
        let v1_mount = mounts
            .iter()
            .find(|mount| mount.kind == "cgroup" && mount.super_option("memory").is_some());
        if let (Some(path), Some(mount)) = (v1_memory, v1_mount) {
            levels.extend(self.climb(Version::One, &path, mount));
        }
        levels
    }

    fn climb(&self, version: Version, path: &Path, mount: &Mount) -> Vec<Level> {
        let own = own_dir(path, mount);
        let own = if self.exists(&own) {
            own
        } else {
            mount.point.clone()
        };
        own.ancestors()
            .take_while(|dir| dir.starts_with(&mount.point))
            .enumerate()
            .map(|(above, dir)| Level {
                version,
                dir: dir.to_owned(),
                is_own: above == 0,
            })
            .collect()
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

    fn read(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(self.real(path)).ok()
    }

    fn exists(&self, path: &Path) -> bool {
        self.real(path).is_dir()
    }

    fn real(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
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

/// The directory of the cgroup `path` under the mount, as far as names can tell.
///
/// `path` is relative to the root of this process's cgroup namespace, the mount's root to that of
/// whoever mounted it. Equal prefixes mean that both count from the same root. A path of `/`
/// under a mount of some other root is a container that sees its own cgroup as the mount's top.
fn own_dir(path: &Path, mount: &Mount) -> PathBuf {
    match path.strip_prefix(&mount.root) {
        Ok(below) if !escapes(below) => mount.point.join(below),
        _ => mount.point.clone(),
    }
}

/// Whether a path leaves its start by `..`: a process outside its namespace's root looks so.
fn escapes(path: &Path) -> bool {
    path.components()
        .any(|part| part == std::path::Component::ParentDir)
}

#[cfg(test)]
mod tests;
