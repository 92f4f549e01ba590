//! What the kernel offers: its version, io_uring, barriers in other processes, evidence of death, sight of outsiders.

use std::io;

use forebay::device::queue::Uring;
use forebay::sys::fanotify::Group;
use forebay::sys::inotify::Watcher;
use forebay::sys::{liveness, membarrier, version};
use rustix::io::Errno;

use super::{Check, text_of};

/// The oldest kernel that everything works on: alignment of direct I/O by `statx`, huge pages by `MADV_COLLAPSE`.
const WANTED: (u32, u32) = (6, 1);
/// The oldest one with what cannot be done without: io_uring may be missing, `statx` and global barriers may not.
const NEEDED: (u32, u32) = (4, 16);
/// `CAP_SYS_ADMIN` in the masks of `/proc/self/status`.
const CAP_SYS_ADMIN: u32 = 21;

/// All checks of this module.
pub fn all() -> Vec<Check> {
    vec![
        version(),
        io_uring(),
        barriers(),
        robust_futexes(),
        fanotify(),
        inotify(),
    ]
}

fn version() -> Check {
    let release = text_of("/proc/sys/kernel/osrelease").unwrap_or_default();
    let check = Check::ok(
        "kernel",
        "newer kernels tell the alignment of direct I/O and collapse memory into huge pages",
        format!("Linux {release}"),
    );
    match version::parsed(&release) {
        Some(version) if version < NEEDED => {
            check.fail(format!("run Linux {}.{} or newer", NEEDED.0, NEEDED.1))
        }
        Some(version) if version < WANTED => {
            check.warn(format!("run Linux {}.{} or newer", WANTED.0, WANTED.1))
        }
        Some(_) => check,
        None => check.warn("mount /proc"),
    }
}

/// The version of this machine's kernel.
pub fn release() -> Option<(u32, u32)> {
    version::parsed(&text_of("/proc/sys/kernel/osrelease")?)
}

fn io_uring() -> Check {
    const WHY: &str =
        "keeps many requests at a device with one thread; without it the keeper uses a few threads";
    let error = match Uring::new(32) {
        Ok(_) => return Check::ok("io_uring", WHY, "works"),
        Err(error) => error,
    };
    let check = Check::ok(
        "io_uring",
        WHY,
        format!("refused: {error}; the keeper will use threads"),
    );
    let disabled = text_of("/proc/sys/kernel/io_uring_disabled");
    match (error.kind(), disabled.as_deref()) {
        (_, Some("2")) => check.warn("`sysctl kernel.io_uring_disabled=0`"),
        (_, Some("1")) => {
            check.warn("`sysctl kernel.io_uring_disabled=0`, or join the group of kernel.io_uring_group")
        }
        (io::ErrorKind::PermissionDenied, _) => {
            check.warn("allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container")
        }
        (io::ErrorKind::OutOfMemory, _) => check.warn("raise the limit of locked memory (ulimit -l)"),
        _ => check.warn("use a kernel built with CONFIG_IO_URING"),
    }
}

fn barriers() -> Check {
    const WHY: &str = "makes entering an operation free of fences; a session started without it uses fences, and one \
                       that relies on it cannot be joined without it";
    if membarrier::register() {
        return Check::ok("membarrier", WHY, "global expedited barriers work");
    }
    Check::ok("membarrier", WHY, "refused")
        .warn("allow membarrier in the seccomp profile of the container")
}

/// Lets a thread die while it holds one, and looks for the kernel's mark.
fn robust_futexes() -> Check {
    const WHY: &str =
        "how the death of a program is noticed; without it what the dead held would stay locked";
    let word: &'static liveness::Word = Box::leak(Box::default());
    let held = std::thread::spawn(|| liveness::hold(word)).join();
    if held.is_ok_and(|held| held) && liveness::owner_died(word) {
        return Check::ok("robust_futex", WHY, "a death was seen");
    }
    Check::ok("robust_futex", WHY, "a thread died and the kernel did not mark its lock")
        .fail("allow set_robust_list, and run on Linux itself: some emulations of it have no robust futexes")
}

fn fanotify() -> Check {
    const WHY: &str = "with it (coherence strict) whoever opens a file of the session's waits until it has its newest bytes; \
                       without it the session goes after them (notify), or they see bytes after close, fsync or flush_interval";
    let check = |found: String| Check::ok("fanotify", WHY, found);
    let error = match Group::new() {
        Ok(_) => return check("permission events work".into()),
        Err(error) => error,
    };
    let effective = text_of("/proc/self/status").and_then(|status| effective_capabilities(&status));
    let initial = text_of("/proc/self/uid_map").is_some_and(|map| is_initial_user_namespace(&map));
    let has_right = effective.map(|mask| mask & (1 << CAP_SYS_ADMIN) != 0);
    let too_many = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
    match (has_right, too_many) {
        (None, _) => check("capabilities cannot be read".into()).warn("mount /proc"),
        (Some(false), _) => check("no CAP_SYS_ADMIN".into())
            .hint("run the daemon with CAP_SYS_ADMIN where outsiders must see bytes at once"),
        (Some(true), _) if !initial => {
            check("CAP_SYS_ADMIN in a user namespace is not enough".into())
                .hint("run the daemon outside the user namespace")
        }
        (Some(true), true) => check("no more groups may be made".into())
            .warn("`sysctl fs.fanotify.max_user_groups=1024`"),
        (Some(true), _) => check(format!("refused: {error}")).hint(
            "use a kernel built with CONFIG_FANOTIFY_ACCESS_PERMISSIONS, and allow fanotify_init in the seccomp profile \
             of the container",
        ),
    }
}

/// Files that are managed at once, each with a watch.
const WATCHES_WANTED: u64 = 4096;

fn inotify() -> Check {
    const WHY: &str = "how the session hears of programs outside it that open or change its files, without privilege; \
                       without it they see bytes after close, fsync or flush_interval, and what they write may not be seen";
    let watches = text_of("/proc/sys/fs/inotify/max_user_watches");
    let watches = watches.and_then(|n| n.parse::<u64>().ok());
    let check = |found: String| Check::ok("inotify", WHY, found);
    match (Watcher::new(), watches) {
        (Err(error), _) => {
            check(format!("refused: {error}")).warn("`sysctl fs.inotify.max_user_instances=1024`")
        }
        (Ok(_), Some(watches)) if watches < WATCHES_WANTED => {
            check(format!("works, for {watches} files of this user's")).warn(format!(
                "`sysctl fs.inotify.max_user_watches={}`",
                WATCHES_WANTED * 16
            ))
        }
        (Ok(_), Some(watches)) => check(format!("works, for {watches} files of this user's")),
        (Ok(_), None) => check("works".into()),
    }
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn is_initial_user_namespace(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_as_distributions_write_them() {
        assert_eq!(version::parsed("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version::parsed("5.4-rc1"), Some((5, 4)));
        assert_eq!(version::parsed("6+"), None);
        assert_eq!(version::parsed(""), None);
    }

    #[test]
    fn capabilities_and_namespaces() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_capabilities(status), Some(0x1ff_ffff_ffff));
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
        assert!(is_initial_user_namespace(
            "         0          0 4294967295"
        ));
        assert!(!is_initial_user_namespace(
            "         0       1000          1"
        ));
    }
}
