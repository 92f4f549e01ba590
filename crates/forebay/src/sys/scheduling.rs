//! Whether this process has a share of the processors of its own.
//!
//! The scheduler shares processors out among groups first, and a group's share among its threads. A group is a cgroup with the controller `cpu`; of the
//! processes outside all of these each session (`setsid`) is a group, where that is switched on (`sched_autogroup_enabled`). In a group of its own a
//! process's idle threads ([`make_idle`](super::priority::make_idle)) wait for its other threads only, and for nobody else's.

use std::path::{Path, PathBuf};

use super::cgroups::{Level, System, Version};
use super::liveness::words_of_stat;

/// Whether this process, and nobody else, is a group.
pub fn is_own_group() -> bool {
    let (own, session) = own_and_session();
    is_group(&System::here(), own, own == session)
}

/// Whether this process is a group as a session's only process. Nobody but its children comes into the session later; into a cgroup others can be put.
pub fn is_own_session() -> bool {
    let (own, session) = own_and_session();
    own == session && is_session(&System::here(), own)
}

/// This process and its session.
fn own_and_session() -> (i32, i32) {
    // SAFETY: asks for numbers of this process; no memory of ours.
    unsafe { (libc::getpid(), libc::getsid(0)) }
}

/// Whether the sessions of processes that are where this one is are groups.
pub fn has_session_groups() -> bool {
    are_sessions_groups(&System::here())
}

/// Whether `own` is one, which leads a session.
fn is_session(system: &System, own: i32) -> bool {
    are_sessions_groups(system) && is_alone(system, own)
}

/// Whether no other process is of the session that `own` leads.
fn is_alone(system: &System, own: i32) -> bool {
    let Ok(all) = std::fs::read_dir(system.real(Path::new("/proc"))) else {
        return false;
    };
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let mut others = pids.filter(|pid| *pid != own);
    // One that has just ended has none.
    !others.any(|pid| session(system, pid) == Some(own))
}

/// The session of a process.
fn session(system: &System, pid: i32) -> Option<i32> {
    let stat = system.read(&PathBuf::from(format!("/proc/{pid}/stat")))?;
    // State, parent, process group, session.
    words_of_stat(stat.as_bytes()).nth(3)?.parse().ok()
}

fn is_group(system: &System, own: i32, leads_session: bool) -> bool {
    match cgroup(system) {
        Some(dir) => has_only(system, &dir, own),
        None => leads_session && are_sessions_groups(system),
    }
}

/// A cgroup that shares out processors comes before sessions.
fn are_sessions_groups(system: &System) -> bool {
    let switch = system.read(Path::new("/proc/sys/kernel/sched_autogroup_enabled"));
    let is_on = switch.is_some_and(|text| text.trim() == "1");
    is_on && cgroup(system).is_none() && system.sees_own("cpu")
}

/// The cgroup that shares out processors to this process; `None` if it is in none but the first.
fn cgroup(system: &System) -> Option<PathBuf> {
    let is_one = |level: &&Level| match level.version {
        // The first has no weight, and neither has one whose controller is not on: then the next one above counts.
        Version::Two => system.real(&level.dir.join("cpu.weight")).exists(),
        // Only the first says who is told when one becomes empty.
        Version::One => level.is_own && !system.real(&level.dir.join("release_agent")).exists(),
    };
    let levels = system.levels("cpu");
    levels.iter().find(is_one).map(|level| level.dir.clone())
}

/// Whether nobody but `own` is in a cgroup or in one below it.
fn has_only(system: &System, dir: &Path, own: i32) -> bool {
    let Some(list) = system.read(&dir.join("cgroup.procs")) else {
        return false;
    };
    let mut all = list.lines();
    let Ok(entries) = std::fs::read_dir(system.real(dir)) else {
        return false;
    };
    let below = entries.filter_map(Result::ok);
    let mut below = below.filter(|entry| entry.path().is_dir());
    all.all(|line| line.trim().parse() == Ok(own))
        && below.all(|entry| has_only(system, &dir.join(entry.file_name()), own))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ONE: &str = "33 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
    const TWO: &str = "25 24 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    const SWITCH: (&str, &str) = ("proc/sys/kernel/sched_autogroup_enabled", "1\n");

    /// What is said of a machine of these files.
    fn of_machine<T>(files: &[(&str, &str)], said: impl FnOnce(&System) -> T) -> T {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        }
        said(&System::at(dir.path()))
    }

    /// Whether process 7 is a group there, as a session's leader and as another one.
    fn group_in(files: &[(&str, &str)]) -> [bool; 2] {
        of_machine(files, |system| {
            [true, false].map(|leads| is_group(system, 7, leads))
        })
    }

    #[test]
    fn without_cgroups_a_session_is_a_group() {
        assert_eq!(group_in(&[SWITCH]), [true, false]);
        assert_eq!(group_in(&[(SWITCH.0, "0\n")]), [false, false]);
        assert_eq!(group_in(&[]), [false, false]);
        let in_the_first = [
            SWITCH,
            ("proc/self/cgroup", "2:cpu,cpuacct:/\n0::/\n"),
            ("proc/self/mountinfo", ONE),
            ("sys/fs/cgroup/cpu/cgroup.procs", "1\n7\n"),
            ("sys/fs/cgroup/cpu/release_agent", ""),
        ];
        assert_eq!(group_in(&in_the_first), [true, false]);
        // It cannot be seen who shares that one: its hierarchy is not mounted.
        for own in ["0::/own\n", "2:cpu:/own\n0::/\n"] {
            let unseen = group_in(&[SWITCH, ("proc/self/cgroup", own)]);
            assert_eq!(unseen, [false, false], "{own}");
        }
    }

    /// A container sees its own directory as the first one, and not who shares those above it.
    #[test]
    fn in_a_container_nobody_can_tell() {
        let first = ("proc/self/cgroup", "0::/\n");
        let mounted = ("proc/self/mountinfo", TWO);
        assert_eq!(group_in(&[SWITCH, first, mounted]), [true, false]);
        let events = ("sys/fs/cgroup/cgroup.events", "populated 1\n");
        assert_eq!(group_in(&[SWITCH, first, mounted, events]), [false, false]);
        for (namespace, is_group) in [
            ("cgroup:[4026531835]", true),
            ("cgroup:[4026532242]", false),
        ] {
            of_machine(&[SWITCH, first], |system| {
                let dir = system.real(Path::new("/proc/self/ns"));
                fs::create_dir(&dir).expect("made");
                std::os::unix::fs::symlink(namespace, dir.join("cgroup")).expect("made");
                assert_eq!(super::is_group(system, 7, true), is_group, "{namespace}");
            });
        }
    }

    #[test]
    fn a_session_is_a_processs_own_where_nobody_else_is_in_it() {
        let own = ("proc/7/stat", "7 (forebay) S 1 7 7 0");
        let alone = |more: &[(&str, &str)]| {
            let files = [&[SWITCH, own], more].concat();
            of_machine(&files, |system| is_session(system, 7))
        };
        assert!(alone(&[]));
        assert!(!alone(&[(SWITCH.0, "0\n")]));
        assert!(alone(&[("proc/8/stat", "8 (a) b) S 7 7 1 0")]));
        assert!(!alone(&[("proc/8/stat", "8 (a) b) S 7 7 7 0")]));
        // Others may come into a cgroup later.
        let of_own = [
            ("proc/self/cgroup", "0::/own\n"),
            ("proc/self/mountinfo", TWO),
            ("sys/fs/cgroup/own/cpu.weight", "100\n"),
            ("sys/fs/cgroup/own/cgroup.procs", "7\n"),
        ];
        assert_eq!(group_in(&of_own), [true, true]);
        assert!(!alone(&of_own));
    }

    #[test]
    fn a_cgroup_with_nobody_else_is_a_group() {
        let one = |own: &'static str, below: &'static str| {
            group_in(&[
                SWITCH,
                ("proc/self/cgroup", "2:cpu,cpuacct:/mounts\n0::/\n"),
                ("proc/self/mountinfo", ONE),
                ("sys/fs/cgroup/cpu/release_agent", ""),
                ("sys/fs/cgroup/cpu/mounts/cgroup.procs", own),
                ("sys/fs/cgroup/cpu/mounts/below/cgroup.procs", below),
            ])
        };
        assert_eq!(one("7\n", ""), [true, true]);
        assert_eq!(one("7\n8\n", ""), [false, false]);
        assert_eq!(one("7\n", "8\n"), [false, false]);
        let two = |weight: &'static str, beside: &'static str| {
            group_in(&[
                SWITCH,
                ("proc/self/cgroup", "0::/system/a\n"),
                ("proc/self/mountinfo", TWO),
                (weight, "100\n"),
                ("sys/fs/cgroup/system/a/cgroup.procs", "7\n"),
                ("sys/fs/cgroup/system/cgroup.procs", ""),
                ("sys/fs/cgroup/system/b/cgroup.procs", beside),
            ])
        };
        let own = "sys/fs/cgroup/system/a/cpu.weight";
        let above = "sys/fs/cgroup/system/cpu.weight";
        assert_eq!(two(own, "8\n"), [true, true]);
        assert_eq!(two(above, "8\n"), [false, false]);
        assert_eq!(two(above, ""), [true, true]);
        // The controller is on nowhere.
        assert_eq!(two("sys/fs/cgroup/elsewhere", "8\n"), [true, false]);
    }
}
