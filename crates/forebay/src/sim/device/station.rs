//! What the timed files of a disk have in common: how long calls take, what fails, and what is under way.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::call::{CallKind, Kinds};
use crate::sim::tasks;

/// How a device behaves.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The shortest and the longest that a usual call takes, ns.
    pub latency_ns: (u64, u64),
    /// One call in so many takes up to a hundred times as long; 0 for none.
    pub slow_rarity: u64,
    /// One call in so many fails; 0 for none.
    pub error_rarity: u64,
    /// One transfer in so many moves less than was asked for; 0 for none.
    pub short_rarity: u64,
    /// Bytes of a transfer that happen at one moment.
    pub part_bytes: usize,
}

/// What becomes of a transfer.
pub(super) enum Fate {
    Whole,
    /// So many bytes, and no error.
    Short(usize),
    /// So many bytes, and the error.
    Torn(usize, io::Error),
}

/// See the module's documentation.
pub struct Station {
    weather: Mutex<Weather>,
    /// Direct writes under way, by inode.
    writes: Mutex<BTreeMap<u64, u32>>,
    faults: AtomicU64,
    unstable: AtomicU64,
}

impl Station {
    /// Nothing is under way.
    pub fn new(weather: Weather) -> Self {
        Station {
            weather: Mutex::new(weather),
            writes: Mutex::default(),
            faults: AtomicU64::new(0),
            unstable: AtomicU64::new(0),
        }
    }

    /// Changes how the device behaves from now on.
    pub fn set_weather(&self, weather: Weather) {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// How the device behaves.
    pub fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that have failed, or done less than was asked for.
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Direct writes whose bytes have changed under way, where they must not.
    pub fn unstable_writes(&self) -> u64 {
        self.unstable.load(Relaxed)
    }

    pub(super) fn count_unstable(&self) {
        self.unstable.fetch_add(1, Relaxed);
    }

    fn writes(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_write(&self, inode: u64) {
        *self.writes().entry(inode).or_default() += 1;
    }

    pub(super) fn end_write(&self, inode: u64) {
        if let Some(count) = self.writes().get_mut(&inode) {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether direct writes of a file are under way.
    pub fn is_writing(&self, inode: u64) -> bool {
        self.writes().get(&inode).is_some_and(|&count| count > 0)
    }

    /// How long the next call takes.
    pub(super) fn draw_latency(&self) -> Duration {
        let weather = self.weather();
        let (least, most) = weather.latency_ns;
        let mut ns = least + tasks::below(most - least + 1);
        if happens(weather.slow_rarity) {
            ns *= 1 + tasks::below(100);
        }
        Duration::from_nanos(ns)
    }

    /// The error of a call that moves no bytes, if it fails.
    pub(super) fn draw_error(&self, kind: CallKind) -> io::Result<()> {
        if !happens(self.weather().error_rarity) {
            return Ok(());
        }
        self.faults.fetch_add(1, Relaxed);
        let full = Kinds::SPACE.contains(kind) && tasks::below(2) == 0;
        let errno = if full { libc::ENOSPC } else { libc::EIO };
        Err(io::Error::from_raw_os_error(errno))
    }

    /// What becomes of a transfer of `len` bytes, in multiples of `align`.
    pub(super) fn draw_fate(&self, kind: CallKind, len: usize, align: usize) -> Fate {
        let part = |len: usize| tasks::below(len as u64 + 1) as usize / align * align;
        if let Err(error) = self.draw_error(kind) {
            return Fate::Torn(part(len), error);
        }
        if happens(self.weather().short_rarity) {
            let less = part(len);
            if less > 0 && less < len {
                self.faults.fetch_add(1, Relaxed);
                return Fate::Short(less);
            }
        }
        Fate::Whole
    }
}

fn happens(rarity: u64) -> bool {
    rarity != 0 && tasks::below(rarity) == 0
}
