//! The stand-in is not frozen with the session: it leaves the cgroups with which that may happen.

use std::fs::{self, OpenOptions};
use std::io::Write;

use crate::sys::mounts::{Mount, parse_mountinfo};

/// Moves a process to the top of each hierarchy of cgroups that can freeze. Best effort: in a container the top is the container's own
/// cgroup, or may not be written to.
pub fn leave(process: i32) {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mount in parse_mountinfo(&mountinfo).iter().filter(|m| freezes(m)) {
        let top = mount.point.join("cgroup.procs");
        if let Ok(mut top) = OpenOptions::new().write(true).open(top) {
            let _ = top.write_all(process.to_string().as_bytes());
        }
    }
}

fn freezes(mount: &Mount) -> bool {
    match mount.kind.as_str() {
        "cgroup2" => true,
        "cgroup" => mount.super_option("freezer").is_some(),
        _ => false,
    }
}
