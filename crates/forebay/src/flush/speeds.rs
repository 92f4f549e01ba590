//! How fast this machine copies and its device writes, learnt from what was done anyway: the facts
//! that `route::auto` compares (WSBuffer 3.3 fixes them in one threshold, found by hand).
//!
//! Both are lines: a fixed time and a time per byte. Short observations (at most 64 KiB) teach the
//! fixed part, long ones (a block and more) the slope, each after subtracting what the other part
//! explains; those in between tell neither well and are passed over. Copies pay the fixed part once
//! for each block, device writes once.
//!
//! An estimate moves an eighth of the way to an observation, and an observation counts as at most
//! twice and at least a quarter of the estimate: one preempted copy moves it by an eighth, while a
//! device that really changed is followed within a few dozen requests. Everything stays within
//! bounds, also what is read back from shared memory ([`Speeds::from_words`]), which is not trusted.
//!
//! What not to feed: writes begun while the device was busy (they measure the queue), failed or
//! short ones, and first touches of fresh memory.

use crate::limits::BLOCK_BYTES;

const MEBI: u64 = 1 << 20;
/// Weight of one observation: an eighth.
const WEIGHT_DIVISOR: u64 = 8;
/// Longest observation that teaches a fixed time.
const SHORT_BYTES_MAX: u64 = 64 * 1024;
/// Shortest observation that teaches a time per byte.
const LONG_BYTES_MIN: u64 = BLOCK_BYTES as u64;
/// The bytes of a long observation took at least its time over this.
const TRANSFER_SHARE_DIVISOR: u64 = 8;
/// A fixed time is between a nanosecond and a second.
const FIXED_NS: (u64, u64) = (1, 1_000_000_000);
/// A time per MiB is between a microsecond (about 1 TB/s) and ten seconds (about 0.1 MB/s).
const NS_PER_MIB: (u64, u64) = (1_000, 10_000_000_000);

/// How fast the device takes direct writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpeed {
    /// Bytes per second of a large write, without its latency. 0 counts as 1.
    pub write_bytes_per_second: u64,
    /// Nanoseconds a write takes however small it is.
    pub write_latency_ns: u64,
}

/// How fast user memory is copied into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpeed {
    /// Bytes per second of the copying alone. 0 counts as 1.
    pub bytes_per_second: u64,
    /// Nanoseconds to find, lock, publish and unlock one block's frame.
    pub per_block_ns: u64,
    /// Bytes per second of copying into the few frames through which a device gets memory that it does not take as it is.
    pub bounce_bytes_per_second: u64,
}

/// Running estimates. Five plain integers, so that they can be kept as words of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Nanoseconds of a copy for each block it touches, beside the bytes.
    pub copy_ns_per_block: u64,
    /// Nanoseconds to copy 1 MiB.
    pub copy_ns_per_mib: u64,
    /// Nanoseconds of a direct write, beside the bytes.
    pub write_latency_ns: u64,
    /// Nanoseconds to write 1 MiB directly.
    pub write_ns_per_mib: u64,
    /// Nanoseconds to copy 1 MiB into memory that stays in the processor's cache.
    pub bounce_ns_per_mib: u64,
}

impl Default for Speeds {
    /// Before anything was seen: memory of 8 GB/s, of 32 in the cache, a device of 6 GB/s, the storage that this is built for. Until the device
    /// has been seen, large requests go to it directly, as by the paper's fixed threshold, and so teach how fast it is: a disk
    /// of 150 MB/s is known for one after three of them. Believed slow, a fast device would be fed through memory, and
    /// flushes, many at a time, teach little.
    fn default() -> Self {
        Speeds {
            copy_ns_per_block: 500,
            copy_ns_per_mib: 131_072,
            write_latency_ns: 20_000,
            write_ns_per_mib: 174_763,
            bounce_ns_per_mib: 32_768,
        }
    }
}

impl Speeds {
    /// Words in the stored form.
    pub const WORDS: usize = 5;

    /// The estimates as words, in the order of the fields.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        [
            self.copy_ns_per_block,
            self.copy_ns_per_mib,
            self.write_latency_ns,
            self.write_ns_per_mib,
            self.bounce_ns_per_mib,
        ]
    }

    /// Estimates from stored words. A word of 0 was never written and stands for the default; any
    /// other is brought within bounds.
    pub fn from_words(words: [u64; Self::WORDS]) -> Self {
        let default = Self::default().to_words();
        let [per_block, copy_slope, latency, write_slope, bounce_slope] =
            std::array::from_fn(|i| if words[i] == 0 { default[i] } else { words[i] });
        Speeds {
            copy_ns_per_block: within(per_block, FIXED_NS),
            copy_ns_per_mib: within(copy_slope, NS_PER_MIB),
            write_latency_ns: within(latency, FIXED_NS),
            write_ns_per_mib: within(write_slope, NS_PER_MIB),
            bounce_ns_per_mib: within(bounce_slope, NS_PER_MIB),
        }
    }

    /// Learns from `bytes` copied into frames in `ns` nanoseconds, locks and lookups included.
    pub fn observe_copy(&mut self, bytes: u64, ns: u64) {
        let line = Line {
            fixed_ns: self.copy_ns_per_block,
            ns_per_mib: self.copy_ns_per_mib,
        };
        let line = line.after(bytes, bytes.div_ceil(BLOCK_BYTES as u64), ns);
        (self.copy_ns_per_block, self.copy_ns_per_mib) = (line.fixed_ns, line.ns_per_mib);
    }

    /// Learns from one direct write of `bytes` that took `ns` nanoseconds on a device that was not
    /// busy when it began.
    pub fn observe_write(&mut self, bytes: u64, ns: u64) {
        let line = Line {
            fixed_ns: self.write_latency_ns,
            ns_per_mib: self.write_ns_per_mib,
        };
        let line = line.after(bytes, 1, ns);
        (self.write_latency_ns, self.write_ns_per_mib) = (line.fixed_ns, line.ns_per_mib);
    }

    /// What a direct write of `bytes` is expected to take, nanoseconds.
    pub fn expected_write_ns(&self, bytes: u64) -> u64 {
        let transfer = saturating_ratio(self.write_ns_per_mib, bytes, MEBI);
        self.write_latency_ns.saturating_add(transfer)
    }

    /// Learns from `bytes` copied in `ns` nanoseconds into memory that is written right after.
    pub fn observe_bounce(&mut self, bytes: u64, ns: u64) {
        let line = Line {
            fixed_ns: 0,
            ns_per_mib: self.bounce_ns_per_mib,
        };
        if bytes >= LONG_BYTES_MIN {
            self.bounce_ns_per_mib = line.after(bytes, 0, ns).ns_per_mib;
        }
    }

    /// The copy's speed, as a situation holds it.
    pub fn copy(&self) -> CopySpeed {
        CopySpeed {
            bytes_per_second: bytes_per_second(self.copy_ns_per_mib),
            per_block_ns: self.copy_ns_per_block,
            bounce_bytes_per_second: bytes_per_second(self.bounce_ns_per_mib),
        }
    }

    /// The device's speed, as a situation holds it.
    pub fn device(&self) -> DeviceSpeed {
        DeviceSpeed {
            write_bytes_per_second: bytes_per_second(self.write_ns_per_mib),
            write_latency_ns: self.write_latency_ns,
        }
    }
}

fn bytes_per_second(ns_per_mib: u64) -> u64 {
    1_000_000_000 * MEBI / ns_per_mib.max(1)
}

/// A time that grows with size: `fixed_ns` for each unit of work, `ns_per_mib` for the bytes.
#[derive(Clone, Copy)]
struct Line {
    fixed_ns: u64,
    ns_per_mib: u64,
}

impl Line {
    /// The line after `bytes` in `units` units of work took `ns`. Nothing is learnt from nothing.
    fn after(self, bytes: u64, units: u64, ns: u64) -> Self {
        if bytes == 0 || ns == 0 {
            self
        } else if bytes <= SHORT_BYTES_MAX {
            self.after_short(bytes, units, ns)
        } else if bytes >= LONG_BYTES_MIN {
            self.after_long(bytes, units, ns)
        } else {
            self
        }
    }

    fn after_short(self, bytes: u64, units: u64, ns: u64) -> Self {
        let transfer = saturating_ratio(self.ns_per_mib, bytes, MEBI);
        self.with_fixed(ns.saturating_sub(transfer) / units)
    }

    /// Each part is taken to have needed some of the time, lest a fixed part believed too large make
    /// the bytes free, and so is brought down to what this request leaves room for.
    fn after_long(self, bytes: u64, units: u64, ns: u64) -> Self {
        let fixed = self.fixed_ns.saturating_mul(units);
        let transfer_min = ns / TRANSFER_SHARE_DIVISOR;
        let transfer = ns.saturating_sub(fixed).max(transfer_min);
        let observed = saturating_ratio(transfer, MEBI, bytes);
        let ns_per_mib = moved(self.ns_per_mib, observed, NS_PER_MIB);
        let line = Line { ns_per_mib, ..self };
        let fixed_max = ns - transfer_min;
        if fixed > fixed_max {
            line.with_fixed(fixed_max / units)
        } else {
            line
        }
    }

    fn with_fixed(self, observed: u64) -> Self {
        Line {
            fixed_ns: moved(self.fixed_ns, observed, FIXED_NS),
            ..self
        }
    }
}

/// `estimate` moved an eighth of the way to `observed`, by at least 1 so that it arrives.
fn moved(estimate: u64, observed: u64, bounds: (u64, u64)) -> u64 {
    let estimate = within(estimate, bounds);
    let observed = observed.clamp(estimate / 4, estimate * 2);
    let step = estimate.abs_diff(observed).div_ceil(WEIGHT_DIVISOR);
    let next = if observed > estimate {
        estimate + step
    } else {
        estimate - step
    };
    within(next, bounds)
}

fn within(value: u64, (min, max): (u64, u64)) -> u64 {
    value.clamp(min, max)
}

/// `a * b / c` without overflow on the way.
fn saturating_ratio(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}
