//! Where this process stands among the cgroups, which limit memory and share out processors.
//!
//! Inside a container the path in `/proc/self/cgroup` and the mounted hierarchy may disagree: then the mount's own directory is taken, which is what the
//! container's cgroup is mounted as. A test draws a system as a directory of files and passes it to [`System::at`]. Nothing here fails: what cannot be read is not there.

use std::path::{Path, PathBuf};

use super::mounts::{Mount, parse_mountinfo};

/// Version of a cgroup hierarchy: the files have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller, or for some together.
    One,
    /// One hierarchy.
    Two,
}

/// A directory of the hierarchy that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Which version.
    pub version: Version,
    /// It, as this process sees it.
    pub dir: PathBuf,
    /// The process's own, below all others of its hierarchy.
    pub is_own: bool,
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

    /// The directories from this process's cgroup up to the top of what is mounted, of version 2 first and then of version 1's hierarchy with
    /// that controller (`memory`, `cpu`). A hybrid system has the controller in one of them.
    pub fn levels(&self, controller: &str) -> Vec<Level> {
        let paths = self
            .read(Path::new("/proc/self/cgroup"))
            .map(|text| parse_cgroup(&text, controller));
        let CgroupPaths { v1, v2 } = paths.unwrap_or_default();
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
            .find(|mount| mount.kind == "cgroup" && mount.super_option(controller).is_some());
        if let (Some(path), Some(mount)) = (v1, v1_mount) {
            levels.extend(self.climb(Version::One, &path, mount));
        }
        levels
    }

    /// Whether all directories that this process is in can be seen. In a container the ones above its own cannot, and have the controller perhaps.
    pub(crate) fn sees_own(&self, controller: &str) -> bool {
        let text = self.read(Path::new("/proc/self/cgroup"));
        let CgroupPaths { v1, v2 } =
            text.map_or_else(CgroupPaths::default, |text| parse_cgroup(&text, controller));
        let levels = self.levels(controller);
        [(v1, Version::One), (v2, Version::Two)]
            .into_iter()
            .all(|(path, version)| {
                let highest = levels.iter().rfind(|level| level.version == version);
                match (path, highest) {
                    (None, _) => true,
                    (Some(path), None) => path == Path::new("/") && self.has_first_namespace(),
                    (Some(_), Some(highest)) => self.is_first(highest),
                }
            })
    }

    /// Whether a directory is the first of its hierarchy, which lacks what all others have, or has what they lack.
    fn is_first(&self, level: &Level) -> bool {
        let has = |name| self.real(&level.dir.join(name)).exists();
        match level.version {
            Version::One => has("release_agent"),
            Version::Two => !has("cgroup.events"),
        }
    }

    /// Whether paths of cgroups begin at the first one: this process is in the first namespace of cgroups, or the kernel has none.
    fn has_first_namespace(&self) -> bool {
        /// As the kernel numbers it (`PROC_CGROUP_INIT_INO`).
        const FIRST: &str = "cgroup:[4026531835]";
        let own = std::fs::read_link(self.real(Path::new("/proc/self/ns/cgroup")));
        own.map_or(true, |own| own == Path::new(FIRST))
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

    /// A file's text; `None` if it cannot be read.
    pub(crate) fn read(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(self.real(path)).ok()
    }

    /// Whether a directory is there.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.real(path).is_dir()
    }

    /// Where it lies: in a test's tree, or as it is called.
    pub(crate) fn real(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Where a process stands in the hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CgroupPaths {
    /// Path in version 1's hierarchy with the controller asked for.
    v1: Option<PathBuf>,
    /// Path in version 2's hierarchy.
    v2: Option<PathBuf>,
}

/// Reads `/proc/self/cgroup`: lines of `id:controllers:path`.
fn parse_cgroup(text: &str, controller: &str) -> CgroupPaths {
    let mut paths = CgroupPaths::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        // A cgroup that was removed under a process says so after its path.
        let path = PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path));
        if id == "0" && controllers.is_empty() {
            paths.v2 = Some(path);
        } else if controllers.split(',').any(|name| name == controller) {
            paths.v1 = Some(path);
        }
    }
    paths
}

/// The directory of the cgroup `path` under the mount, as far as names can tell.
///
/// `path` is relative to the root of this process's cgroup namespace, the mount's root to that of
/// the process that mounted it. Equal prefixes mean that both count from the same root. A path of `/`
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
mod tests {
    use super::*;

    #[test]
    fn cgroup_paths() {
        let v1 = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n";
        let table: [(&str, Option<&str>, Option<&str>); 6] = [
            (v1, Some("/a/b"), Some("/")),
            (
                "0::/user.slice/x.scope\n",
                None,
                Some("/user.slice/x.scope"),
            ),
            ("0::/gone (deleted)\n", None, Some("/gone")),
            ("7:memory:/with:colon\n", Some("/with:colon"), None),
            ("7:memory_not:/x\nnonsense\n", None, None),
            ("", None, None),
        ];
        for (text, v1_path, v2) in table {
            let expected = CgroupPaths {
                v1: v1_path.map(PathBuf::from),
                v2: v2.map(PathBuf::from),
            };
            assert_eq!(parse_cgroup(text, "memory"), expected, "{text}");
        }
    }
}
