//! How busy each device is: bytes of writes in flight, by everybody (WSBuffer 3.4, "SSD busyness awareness").
//!
//! A small table in the arena, by device number; a device that finds no place counts as never busy. Counts are
//! rebuilt from headers after a death. Beside the count stand the measured speeds that `route::auto` predicts from.

use crate::flush::speeds::Speeds;
use crate::memory::superblock::{DeviceWords, Superblock};
use crate::sync::Ordering;

/// The device's words; takes a free place for a device seen for the first time.
pub fn words(superblock: &Superblock, device: u64) -> Option<&DeviceWords> {
    let key = device.wrapping_add(1);
    for words in &superblock.devices {
        let seen = words.key.load(Ordering::Acquire);
        let taken = seen == 0
            && words
                .key
                .compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if seen == key || taken || words.key.load(Ordering::Acquire) == key {
            return Some(words);
        }
    }
    None
}

/// Adds bytes that are about to be submitted.
pub fn begin(superblock: &Superblock, device: u64, bytes: u64) {
    if let Some(words) = words(superblock, device) {
        words.inflight_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Takes away bytes that have completed.
pub fn end(superblock: &Superblock, device: u64, bytes: u64) {
    if let Some(words) = words(superblock, device) {
        let word = &words.inflight_bytes;
        let mut seen = word.load(Ordering::Relaxed);
        // A repair may have counted anew without these.
        while let Err(now) = word.compare_exchange(
            seen,
            seen.saturating_sub(bytes),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            seen = now;
        }
    }
}

/// Bytes in flight now.
pub fn inflight_bytes(superblock: &Superblock, device: u64) -> u64 {
    words(superblock, device).map_or(0, |w| w.inflight_bytes.load(Ordering::Relaxed))
}

/// The measured speeds.
pub fn speeds(superblock: &Superblock, device: u64) -> Speeds {
    let Some(words) = words(superblock, device) else {
        return Speeds::from_words([0; Speeds::WORDS]);
    };
    let mut values = [0; Speeds::WORDS];
    for (value, word) in values.iter_mut().zip(&words.speeds) {
        *value = word.load(Ordering::Relaxed);
    }
    Speeds::from_words(values)
}

/// Notes a direct write that began while others were under way: their queue is in its time, so that it tells something only
/// where it was faster than expected.
pub fn observe_write_beside(superblock: &Superblock, device: u64, bytes: u64, ns: u64) {
    update(superblock, device, |speeds| {
        if ns < speeds.expected_write_ns(bytes) {
            speeds.observe_write(bytes, ns);
        }
    });
}

/// Notes a direct write: bytes and nanoseconds. Updates of several threads may overwrite one another; each is an
/// average by itself, so nothing is lost but a sample.
pub fn observe_write(superblock: &Superblock, device: u64, bytes: u64, ns: u64) {
    update(superblock, device, |speeds| speeds.observe_write(bytes, ns));
}

/// Notes a copy into memory: bytes and nanoseconds.
pub fn observe_copy(superblock: &Superblock, device: u64, bytes: u64, ns: u64) {
    update(superblock, device, |speeds| speeds.observe_copy(bytes, ns));
}

/// Notes a copy into memory that is written right after: bytes and nanoseconds.
pub fn observe_bounce(superblock: &Superblock, device: u64, bytes: u64, ns: u64) {
    update(superblock, device, |speeds| {
        speeds.observe_bounce(bytes, ns);
    });
}

fn update(superblock: &Superblock, device: u64, change: impl FnOnce(&mut Speeds)) {
    let Some(words) = words(superblock, device) else {
        return;
    };
    let mut speeds = speeds(superblock, device);
    change(&mut speeds);
    for (value, word) in speeds.to_words().iter().zip(&words.speeds) {
        word.store(*value, Ordering::Relaxed);
    }
}
