//! Whether this process has a share of the processors of its own.
//!
//! The scheduler shares processors out among groups first, and a group's share among its threads. A group is a cgroup with the controller `cpu`; of the
//! processes outside all of these each session (`setsid`) is a group, where that is switched on (`sched_autogroup_enabled`). In a group of its own a
//! process's idle threads ([`make_idle`](super::priority::make_idle)) wait for its other threads only, and for nobody else's.

use std::path::{Path, PathBuf};

use super::cgroups::{Level, System, Version};

/// Whether this process, and nobody else, is a group.
pub fn is_own_group() -> bool {
    // SAFETY: asks for numbers of this process; no memory of ours.
    let (own, session) = unsafe { (libc::getpid(), libc::getsid(0)) };
    is_group(&System::here(), own, own == session)
}

fn is_group(system: &System, own: i32, leads_session: bool) -> bool {
    match cgroup(system) {
        Some(dir) => has_only(system, &dir, own),
        None => leads_session && has_session_groups(system),
    }
}

fn has_session_groups(system: &System) -> bool {
    let switch = system.read(Path::new("/proc/sys/kernel/sched_autogroup_enabled"));
    switch.is_some_and(|text| text.trim() == "1")
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

    /// A machine of these files, and whether process 7 is a group there, as a session's leader and as another one.
    fn group_in(files: &[(&str, &str)]) -> [bool; 2] {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        }
        let system = System::at(dir.path());
        [true, false].map(|leads| is_group(&system, 7, leads))
    }

    #[test]
    fn without_cgroups_a_session_is_a_group() {
        let switch = "proc/sys/kernel/sched_autogroup_enabled";
        assert_eq!(group_in(&[(switch, "1\n")]), [true, false]);
        assert_eq!(group_in(&[(switch, "0\n")]), [false, false]);
        assert_eq!(group_in(&[]), [false, false]);
        let in_the_first = [
            (switch, "1\n"),
            ("proc/self/cgroup", "2:cpu,cpuacct:/\n0::/\n"),
            ("proc/self/mountinfo", ONE),
            ("sys/fs/cgroup/cpu/cgroup.procs", "1\n7\n"),
            ("sys/fs/cgroup/cpu/release_agent", ""),
        ];
        assert_eq!(group_in(&in_the_first), [true, false]);
    }

    #[test]
    fn a_cgroup_with_nobody_else_is_a_group() {
        let switch = ("proc/sys/kernel/sched_autogroup_enabled", "1\n");
        let one = |own: &'static str, below: &'static str| {
            group_in(&[
                switch,
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
                switch,
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
