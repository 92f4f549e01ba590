//! What `/sys` says about the block device under a file system.
//!
//! A file system on no block device, or on several (overlay, btrfs, network), has an anonymous
//! device number and no entry here. Nothing here fails: what is not known is `None`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One setting of a device's queue. A partition has no queue of its own; its parent's holds.
fn queue_setting(major: u32, minor: u32, name: &str) -> Option<u64> {
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let own = device.join("queue").join(name);
    let parent = device.join("../queue").join(name);
    let text = fs::read_to_string(own)
        .or_else(|_| fs::read_to_string(parent))
        .ok()?;
    text.trim().parse().ok()
}

/// Whether the device number is a block device's.
pub fn exists(major: u32, minor: u32) -> bool {
    fs::exists(format!("/sys/dev/block/{major}:{minor}")).unwrap_or(false)
}

/// Whether pages must not change while the device writes them. Kernels without the attribute have
/// no way to ask for it that user space could see: `None`.
pub fn stable_writes(major: u32, minor: u32) -> Option<bool> {
    queue_setting(major, minor, "stable_writes").map(|value| value != 0)
}

/// Whether pages may have to stay as they are while the device writes them: it says so, or is no block device. An answer is good for a
/// second: it takes five system calls, and a program that makes many files makes them on one device.
pub fn may_need_stable_pages(major: u32, minor: u32) -> bool {
    /// The device's number, the second of the answer, and the answer; 0: none. Threads may answer at the same time.
    static LAST: AtomicU64 = AtomicU64::new(0);
    // The kernel's own device numbers have so many bits.
    let device = u64::from(major << 20 | minor & 0xf_ffff);
    let asked = device << 32 | (second() & 0x7fff_ffff) << 1;
    let last = LAST.load(Relaxed);
    if last & !1 == asked {
        return last & 1 != 0;
    }
    let stable = !exists(major, minor) || stable_writes(major, minor).unwrap_or(false);
    LAST.store(asked | u64::from(stable), Relaxed);
    stable
}

/// Seconds since the machine began, 1 at least.
fn second() -> u64 {
    // SAFETY: plain numbers, for which zero is a value.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the target is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64 + 1
}

/// Logical block size in bytes: what `BLKSSZGET` says.
pub fn logical_block_bytes(major: u32, minor: u32) -> Option<u32> {
    let bytes = queue_setting(major, minor, "logical_block_size")?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_has_no_settings() {
        assert!(!exists(0, 4095));
        assert_eq!(stable_writes(0, 4095), None);
        assert_eq!(logical_block_bytes(0, 4095), None);
    }

    #[test]
    fn a_symbolic_parent_is_followed_for_partitions() {
        // Entries of /sys/dev/block are links: `..` must be taken after the link, not before.
        let Ok(entries) = fs::read_dir("/sys/dev/block") else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().into_string().expect("numbers");
            let (major, minor) = name.split_once(':').expect("major:minor");
            let bytes = logical_block_bytes(major.parse().unwrap(), minor.parse().unwrap());
            assert!(bytes.is_some_and(|bytes| bytes >= 512), "{name}: {bytes:?}");
        }
    }
}
