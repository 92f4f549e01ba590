//! Where the arena would lie, on what pages, and how large it could be.

use std::path::Path;

use forebay::Config;
use forebay::memory::cgroup;
use forebay::memory::place::{self, PlaceKind, Placement};

use super::{Check, text_of};
use crate::output::bytes;

const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// A session with less than this has little to hold.
const ARENA_SMALL: u64 = 64 << 20;
/// Of a memory limit, the part that should be left when the arena is full.
const LEFT_PARTS: u64 = 10;

/// All checks of this module.
pub fn all(config: &Config) -> Vec<Check> {
    let placement = place::place(config.arena_dir.as_deref(), config.memory);
    let placement = placement.map_err(|error| error.to_string());
    let mut checks = arena(config, &placement);
    checks.extend([shmem(), shared_memory(), limit(config)]);
    checks
}

fn arena(config: &Config, placement: &Result<Placement, String>) -> Vec<Check> {
    const SIZE: &str =
        "what the session can hold; writers slow down to the device's speed when it is full";
    const HUGE: &str =
        "a second program that first touches memory of the arena pays a hundredth on huge pages";
    let placement = match placement {
        Ok(placement) => placement,
        Err(why) => {
            return vec![Check::ok("arena", SIZE, "no place for an arena").fail(why.clone())];
        }
    };
    let shown = placement.path.display();
    let size = Check::ok(
        "arena",
        SIZE,
        format!(
            "{} ({} bytes) in {shown}",
            bytes(placement.bytes),
            placement.bytes
        ),
    );
    let size = if placement.bytes < config.memory.min(ARENA_SMALL) {
        size.warn(placement.reasons.join("; "))
    } else if placement.bytes < config.memory {
        size.hint(placement.reasons.join("; "))
    } else {
        size
    };
    let rung = match placement.kind {
        PlaceKind::Configured => "the configured directory",
        PlaceKind::Hugetlb => "hugetlbfs: huge pages for certain",
        PlaceKind::HugeTmpfs => "tmpfs with huge pages",
        PlaceKind::Plain => {
            "plain tmpfs: the keeper collapses memory into huge pages after touching it"
        }
    };
    let huge = Check::ok("huge_pages", HUGE, format!("{rung} ({shown})"));
    let higher = placement.reasons.join("; ");
    let huge = match placement.kind {
        PlaceKind::Plain if !higher.is_empty() => {
            huge.hint(format!("better, and why not: {higher}"))
        }
        _ if !higher.is_empty() => huge.hint(higher),
        _ => huge,
    };
    vec![size, huge]
}

fn shmem() -> Check {
    const WHY: &str = "whether the kernel makes huge pages of tmpfs";
    let Some(text) = text_of(SHMEM_ENABLED) else {
        return Check::ok(
            "shmem_enabled",
            WHY,
            "the kernel has no huge pages for tmpfs",
        )
        .warn("use a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or hugetlbfs");
    };
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    let chosen = chosen.map_or("unknown", |(word, _)| word);
    let check = Check::ok("shmem_enabled", WHY, chosen);
    match chosen {
        "deny" => check.warn(format!("`echo advise > {SHMEM_ENABLED}`")),
        "never" => check.hint("no matter: collapsing works all the same; `huge=advise` on /dev/shm makes them at once"),
        _ => check,
    }
}

fn shared_memory() -> Check {
    const WHY: &str =
        "arenas lie here unless there is a better place; a container has 64 MiB of it by default";
    let dir = Path::new("/dev/shm");
    let (stat, device) = match (rustix::fs::statvfs(dir), device_of(dir)) {
        (Ok(stat), Some(device)) => (stat, device),
        _ => {
            return Check::ok("dev_shm", WHY, "/dev/shm cannot be looked at")
                .warn("`mount -t tmpfs -o mode=1777 none /dev/shm`");
        }
    };
    if device_of(Path::new("/dev")) == Some(device) {
        return Check::ok("dev_shm", WHY, "nothing is mounted on /dev/shm")
            .warn("`mount -t tmpfs -o mode=1777 none /dev/shm`");
    }
    let (size, free) = (
        stat.f_blocks.saturating_mul(stat.f_frsize),
        stat.f_bavail.saturating_mul(stat.f_frsize),
    );
    let check = Check::ok(
        "dev_shm",
        WHY,
        format!("{} free of {}", bytes(free), bytes(size)),
    );
    if free < ARENA_SMALL {
        check.warn("make it larger: `mount -o remount,size=...`, or --shm-size for a container")
    } else {
        check
    }
}

fn device_of(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(std::fs::metadata(path).ok()?.dev())
}

fn limit(config: &Config) -> Check {
    const WHY: &str = "memory of an arena cannot be reclaimed: above the limit the kernel kills";
    let limits = cgroup::available();
    let headroom = cgroup::headroom();
    let limit = limits
        .cgroup_limit
        .map_or("no cgroup limit".to_owned(), |limit| {
            format!("cgroup limit {}", bytes(limit))
        });
    let left = headroom.map_or("unknown".to_owned(), bytes);
    let total = bytes(limits.total_bytes);
    let found = format!(
        "{total} by {}, {limit}, {left} could be taken now",
        limits.source
    );
    let check = Check::ok("memory_limit", WHY, found);
    let margin = limits.total_bytes / LEFT_PARTS;
    match headroom {
        None => check.warn("mount /proc"),
        Some(left) if left < config.memory.saturating_add(margin) => check.warn(format!(
            "the arena of {} would leave little: set memory to {} or less",
            bytes(config.memory),
            bytes(left.saturating_sub(margin).max(2 << 20))
        )),
        Some(_) => check,
    }
}
