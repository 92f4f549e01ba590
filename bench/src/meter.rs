//! The clocks: time, CPU of this process and of the whole machine, bytes written to the device.
//!
//! CPU is counted machine-wide as well, because flusher threads, loop workers and keepers work for
//! somebody. `/proc/stat` counts in hundredths of a second, and whatever else runs is in it.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

/// CPU seconds spent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    /// By this process, user and system, all threads.
    pub process: f64,
    /// By everything on the machine.
    pub machine: f64,
}

impl Cpu {
    fn now() -> io::Result<Self> {
        Ok(Cpu {
            process: process_cpu()?,
            machine: machine_cpu(&fs::read_to_string("/proc/stat")?),
        })
    }
}

fn process_cpu() -> io::Result<f64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills the whole structure if it succeeds, which is checked before it is read.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// Busy seconds of all cores from the text of `/proc/stat`: all but idle, iowait, steal and guest
/// time (which is in user time already).
fn machine_cpu(stat: &str) -> f64 {
    let fields = stat.lines().next().unwrap_or("").split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6]
        .iter()
        .filter_map(|&index| ticks.get(index))
        .sum::<u64>();
    // SAFETY: asks for a constant of the system.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    busy as f64 / ticks_per_second as f64
}

/// Bytes that a block device has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceBytes {
    /// From the device.
    pub read: u64,
    /// To the device.
    pub written: u64,
}

impl DeviceBytes {
    /// From the text of a block device's `stat`, which counts sectors of 512 bytes on any device.
    fn parse(stat: &str) -> Option<Self> {
        let field = |index| stat.split_whitespace().nth(index)?.parse::<u64>().ok();
        Some(DeviceBytes {
            read: field(2)? * 512,
            written: field(6)? * 512,
        })
    }
}

/// Where a block device counts, if there is one behind the directory.
#[derive(Clone, Debug, Default)]
pub struct DeviceCounter(pub Option<PathBuf>);

impl DeviceCounter {
    /// What the device has moved since it exists.
    pub fn read(&self) -> Option<DeviceBytes> {
        DeviceBytes::parse(&fs::read_to_string(self.0.as_ref()?).ok()?)
    }
}

/// The kernel's memory for file bytes and for what it needs to find them; memory of tmpfs is not
/// counted (a loop device's backing grows when it is written).
pub fn kernel_file_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let field = |name: &str| meminfo_bytes(&text, name).unwrap_or(0);
    let file_bytes = field("Cached").saturating_sub(field("Shmem"));
    Ok(file_bytes + field("Buffers") + field("Slab"))
}

/// A field of `/proc/meminfo` in bytes.
pub fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// Started before the timed region.
pub struct Meter {
    device: DeviceCounter,
    device_before: Option<DeviceBytes>,
    cpu_before: Cpu,
    start: Instant,
}

/// What the timed region cost, up to the moment it was read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// CPU spent.
    pub cpu: Cpu,
    /// Bytes moved by the device.
    pub device: Option<DeviceBytes>,
}

impl Meter {
    /// Notes all counters, the clock last.
    pub fn start(device: &DeviceCounter) -> io::Result<Self> {
        let device_before = device.read();
        let cpu_before = Cpu::now()?;
        Ok(Meter {
            device: device.clone(),
            device_before,
            cpu_before,
            start: Instant::now(),
        })
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Reads the counters.
    pub fn read(&self) -> io::Result<Reading> {
        let now = Cpu::now()?;
        let device = self.device.read().zip(self.device_before);
        Ok(Reading {
            cpu: Cpu {
                process: now.process - self.cpu_before.process,
                machine: now.machine - self.cpu_before.machine,
            },
            device: device.map(|(after, before)| DeviceBytes {
                read: after.read - before.read,
                written: after.written - before.written,
            }),
        })
    }
}

/// Empties the kernel's caches of what is durable already: of everything if we may, else of this
/// file.
pub fn drop_caches(path: &Path) -> io::Result<()> {
    if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok(());
    }
    if let Ok(file) = fs::File::open(path) {
        use std::os::fd::AsRawFd;
        // SAFETY: an open descriptor; the call moves no memory of ours.
        let code =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
    }
    Ok(())
}

/// Keeps the calling thread on one core while it lives. Only the timed loop is pinned: threads that
/// a side starts earlier stay free to use the other cores.
pub struct Pinned(libc::cpu_set_t);

impl Pinned {
    /// Pins the calling thread to `core`.
    pub fn to(core: usize) -> io::Result<Self> {
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: a cpu_set_t is a plain bit map for which zeros are valid; the calls read and write
        // exactly the two sets given. `core` is below the set's 1024 bits.
        unsafe {
            assert!(core < 8 * size, "core {core} is beyond a cpu_set_t");
            let mut before: libc::cpu_set_t = std::mem::zeroed();
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut one);
            if libc::sched_getaffinity(0, size, &mut before) != 0
                || libc::sched_setaffinity(0, size, &one) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(Pinned(before))
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the set that the kernel gave us.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_steal_are_not_work() {
        let stat = "cpu  100 20 30 9999 8888 5 6 7777 50 0\ncpu0 1 1 1\n";
        assert!((machine_cpu(stat) - 1.61).abs() < 1e-9);
    }

    #[test]
    fn a_device_counts_sectors() {
        let stat = "  10 0 80 5 7 0 24 9 0 0 0 0 0 0 0 0 0";
        assert_eq!(
            DeviceBytes::parse(stat),
            Some(DeviceBytes {
                read: 40960,
                written: 12288
            })
        );
        assert_eq!(DeviceBytes::parse(""), None);
    }

    #[test]
    fn meminfo_names_are_whole_words() {
        let text = "SwapCached: 7 kB\nCached:   12 kB\n";
        assert_eq!(meminfo_bytes(text, "Cached"), Some(12 * 1024));
        assert_eq!(meminfo_bytes(text, "Shmem"), None);
    }
}
