//! Machines drawn as directories of files: limits, usage and pressure of each.

use super::*;
use std::fs;
use tempfile::TempDir;

const MEMINFO: &str = "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n";
const GIB: u64 = 1 << 30;

/// Draws a machine from (path, content) pairs.
fn machine(files: &[(&str, &str)]) -> (TempDir, System) {
    let dir = TempDir::new().unwrap();
    for (path, content) in files {
        write(dir.path(), path, content);
    }
    let system = System::at(dir.path());
    (dir, system)
}

fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

const V2: &str = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

#[test]
fn no_cgroup_is_the_machine() {
    let (_dir, system) = machine(&[("/proc/meminfo", MEMINFO)]);
    let limits = system.limits();
    assert_eq!(limits.total_bytes, 8 * GIB);
    assert_eq!((limits.cgroup_limit, limits.cgroup_used), (None, None));
    assert_eq!(limits.source, "MemTotal");
    assert_eq!(system.headroom(), Some(6 * GIB));
}

#[test]
fn nothing_readable_is_nothing() {
    let (_dir, system) = machine(&[]);
    assert_eq!(system.limits().total_bytes, 0);
    assert_eq!(Watch::new(system).pressure(), Pressure::None);
}

#[test]
fn the_tightest_of_nested_v2_groups() {
    let (_dir, system) = machine(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/a/b\n"),
        ("/proc/self/mountinfo", V2),
        ("/sys/fs/cgroup/a/memory.max", "2147483648\n"),
        ("/sys/fs/cgroup/a/memory.high", "1073741824\n"),
        ("/sys/fs/cgroup/a/memory.current", "536870912\n"),
        (
            "/sys/fs/cgroup/a/memory.stat",
            "anon 1\ninactive_file 268435456\n",
        ),
        ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
        ("/sys/fs/cgroup/a/b/memory.high", "max\n"),
        ("/sys/fs/cgroup/a/b/memory.current", "4096\n"),
    ]);
    let limits = system.limits();
    assert_eq!(limits.total_bytes, GIB);
    assert_eq!(limits.cgroup_limit, Some(GIB));
    assert_eq!(limits.cgroup_used, Some(GIB / 4));
    assert_eq!(limits.source, "/sys/fs/cgroup/a/memory.high");
    assert_eq!(system.headroom(), Some(GIB - GIB / 4));
}

#[test]
fn v1_without_limit_is_the_machine() {
    let (_dir, system) = machine(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "4:memory:/x\n0::/\n"),
        ("/proc/self/mountinfo", V1),
        (
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ]);
    assert_eq!(system.limits().source, "MemTotal");
    assert_eq!(system.limits().cgroup_limit, None);
}

#[test]
fn v1_nested_and_beyond_the_container() {
    let files = [
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "4:memory:/x/y\n0::/\n"),
        ("/proc/self/mountinfo", V1),
        (
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
            "3221225472\n",
        ),
        (
            "/sys/fs/cgroup/memory/x/memory.soft_limit_in_bytes",
            "4096\n",
        ),
        ("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1000\n"),
        (
            "/sys/fs/cgroup/memory/x/memory.stat",
            "total_inactive_file 100\n",
        ),
        (
            "/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ];
    let (dir, system) = machine(&files);
    let limits = system.limits();
    assert_eq!(
        (limits.total_bytes, limits.cgroup_used),
        (3 * GIB, Some(900))
    );
    let stat = "hierarchical_memory_limit 1073741824\n";
    write(dir.path(), "/sys/fs/cgroup/memory/x/y/memory.stat", stat);
    let limits = system.limits();
    assert_eq!(limits.total_bytes, GIB);
    assert_eq!(limits.source, "/sys/fs/cgroup/memory/x/y/memory.stat");
}

#[test]
fn a_hybrid_machine_takes_the_smaller_of_both() {
    let mounts = format!("{V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    let (_dir, system) = machine(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "4:memory:/x\n0::/y\n"),
        ("/proc/self/mountinfo", &mounts),
        (
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
            "2147483648\n",
        ),
        ("/sys/fs/cgroup/unified/y/cgroup.procs", "1\n"),
    ]);
    assert_eq!(system.limits().total_bytes, 2 * GIB);
}

#[test]
fn containers_whose_path_and_mount_disagree() {
    // (path in /proc/self/cgroup, root of the mount, directory of the limit under the mount)
    let table = [
        // A cgroup namespace, with the hierarchy mounted from outside it.
        ("/", "/docker/abc", ""),
        // No namespace: both count from the machine's root.
        ("/docker/abc", "/docker/abc", ""),
        ("/docker/abc/inner", "/docker/abc", "inner/"),
        // A process outside its namespace's root.
        ("/../other", "/", ""),
        // A hierarchy mounted by an outer namespace.
        ("/", "/..", ""),
        // The path is not there: a container that mounts another machine's view.
        ("/not/here", "/", ""),
    ];
    for (path, root, below) in table {
        let cgroup = format!("0::{path}\n");
        let mounts = format!("30 25 0:26 {root} /cg rw - cgroup2 cgroup2 rw\n");
        let file = format!("/cg/{below}memory.max");
        let (_dir, system) = machine(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", &cgroup),
            ("/proc/self/mountinfo", &mounts),
            (&file, "1073741824\n"),
        ]);
        assert_eq!(system.limits().total_bytes, GIB, "{path} under {root}");
    }
}

#[test]
fn pressure_grows_with_use_and_with_reclaim() {
    let (dir, system) = machine(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/a\n"),
        ("/proc/self/mountinfo", V2),
        ("/sys/fs/cgroup/a/memory.max", "1000\n"),
        ("/sys/fs/cgroup/a/memory.current", "500\n"),
        ("/sys/fs/cgroup/a/memory.events", "high 3\nmax 4\n"),
    ]);
    let set = |name: &str, text: &str| write(dir.path(), &format!("/sys/fs/cgroup/a/{name}"), text);
    let mut watch = Watch::new(system);
    assert_eq!(watch.pressure(), Pressure::None);
    set("memory.current", "800\n");
    assert_eq!(watch.pressure(), Pressure::Some(0.8));
    set("memory.events", "high 3\nmax 5\n");
    assert_eq!(watch.pressure(), Pressure::High);
    assert_eq!(
        watch.pressure(),
        Pressure::Some(0.8),
        "what was told once is over"
    );
    set(
        "memory.pressure",
        "some avg10=30.00 avg60=0 avg300=0 total=1\n",
    );
    assert_eq!(watch.pressure(), Pressure::High);
    set(
        "memory.pressure",
        "some avg10=0.00 avg60=0 avg300=0 total=1\n",
    );
    set("memory.current", "990\n");
    assert_eq!(watch.pressure(), Pressure::High);
}

#[test]
fn this_machine_has_memory() {
    if cfg!(miri) {
        return;
    }
    let limits = available();
    assert!(limits.total_bytes > 0, "{limits:?}");
    assert!(
        limits
            .cgroup_limit
            .is_none_or(|limit| limits.total_bytes <= limit)
    );
}
