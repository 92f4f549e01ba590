//! Limits and pressure in a real memory cgroup of version 1 or 2.
//!
//! Making a cgroup needs root and a hierarchy with the memory controller; without, the test is skipped. The test runs itself again inside the cgroup.

mod here;

use forebay::memory::cgroup::{Pressure, System, Watch, available, headroom};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 128 * MIB;
/// Set in the process that runs in the cgroup.
const INSIDE: &str = "FOREBAY__TEST_LIMITED";

/// A cgroup that goes away with this value.
struct Group(PathBuf);

impl Group {
    /// Makes a cgroup with a limit; an error message where that cannot be done.
    fn new() -> Result<Self, String> {
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        let (top, file) = if version_1.is_dir() {
            (version_1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let dir = top.join(format!("forebay-test-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let group = Self(dir);
        group.write(file, &LIMIT.to_string())?;
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.0.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_real_cgroup_limits_and_presses() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => return here::skipped(format!("no memory cgroup can be made ({why})")),
    };
    // The shell joins the cgroup and becomes the test: nothing else of this process moves.
    let join = format!(
        "echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"",
        group.0.display()
    );
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(join)
        .arg(std::env::current_exe().unwrap());
    command.args(["--exact", "a_real_cgroup_limits_and_presses", "--nocapture"]);
    let status = command.env(INSIDE, "1").status().unwrap();
    drop(group);
    assert!(status.success(), "{status}");
}

fn inside() {
    let limits = available();
    assert_eq!(
        (limits.total_bytes, limits.cgroup_limit),
        (LIMIT, Some(LIMIT)),
        "{limits:?}"
    );
    assert!(limits.source.contains("forebay-test-"), "{limits:?}");
    assert!(headroom().unwrap() < LIMIT);
    let mut watch = Watch::new(System::here());
    assert_eq!(watch.pressure(), Pressure::None);
    let most = vec![1u8; (LIMIT * 8 / 10) as usize];
    std::hint::black_box(&most);
    assert!(
        matches!(watch.pressure(), Pressure::Some(_)),
        "{:?}",
        watch.pressure()
    );
    let nearly_all = vec![1u8; (LIMIT * 16 / 100) as usize];
    std::hint::black_box(&nearly_all);
    assert_eq!(watch.pressure(), Pressure::High);
    assert!(headroom().unwrap() < LIMIT / 10);
}
