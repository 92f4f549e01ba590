//! How busy each device is: bytes of writes in flight, by everybody (WSBuffer 3.4, "SSD busyness awareness").
//!
//! A small table in the arena, by device number; a device that finds no place counts as never busy. After a death counts
//! begin anew. Beside the count stand the measured speeds that `route::auto` predicts from.

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

/// Bits of a device's word that count bytes; those above count the rebuilds.
const BYTES_BITS: u32 = 44;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

/// Bytes that count as in flight until [`end`].
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "what has begun ends"]
pub struct Flight {
    bytes: u64,
    rebuilds: u64,
}

/// Adds bytes that are about to be submitted.
pub fn begin(superblock: &Superblock, device: u64, bytes: u64) -> Flight {
    let before = words(superblock, device).map_or(0, |words| {
        words.inflight_bytes.fetch_add(bytes, Ordering::Relaxed)
    });
    Flight {
        bytes,
        rebuilds: before >> BYTES_BITS,
    }
}

/// Takes away bytes that have completed, unless a rebuild has forgotten them.
pub fn end(superblock: &Superblock, device: u64, flight: Flight) {
    let Some(words) = words(superblock, device) else {
        return;
    };
    let word = &words.inflight_bytes;
    let mut seen = word.load(Ordering::Relaxed);
    while seen >> BYTES_BITS == flight.rebuilds {
        let left = (seen & BYTES_MASK).saturating_sub(flight.bytes);
        let next = seen & !BYTES_MASK | left;
        match word.compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Forgets what is in flight: a death has left bytes counted that nobody will take away. Those of the living count no
/// more either, until they have landed, since nobody can tell which of them are counted already.
pub fn forget(superblock: &Superblock) {
    for words in &superblock.devices {
        let word = &words.inflight_bytes;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let next = (seen >> BYTES_BITS).wrapping_add(1) << BYTES_BITS;
            match word.compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
    }
}

/// Bytes that a device's words count.
pub fn bytes_of(words: &DeviceWords) -> u64 {
    words.inflight_bytes.load(Ordering::Relaxed) & BYTES_MASK
}

/// Bytes in flight now.
pub fn inflight_bytes(superblock: &Superblock, device: u64) -> u64 {
    words(superblock, device).map_or(0, bytes_of)
}

/// Whether anybody has anything in flight to any device.
pub fn is_anything_in_flight(superblock: &Superblock) -> bool {
    superblock.devices.iter().any(|words| bytes_of(words) != 0)
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

/// Counts a large request for which a way is being chosen: how many there have been before.
pub fn count_choice(superblock: &Superblock, device: u64) -> u64 {
    words(superblock, device).map_or(1, |words| words.choices.fetch_add(1, Ordering::Relaxed))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use crate::memory::layout::{Counts, Layout};
    use crate::memory::mapping::Mapping;

    /// A writer that lived through a repair took away what the repair had counted, or it counted twice: then writers above
    /// the limit waited for ever for bytes that were not there.
    #[test]
    fn what_is_in_flight_across_a_rebuild_leaves_nothing_behind() {
        let counts = Counts {
            threads: 2,
            files: 1,
            nodes: 1,
            headers: 1,
            frames: 8,
        };
        let mapping = Mapping::heap(Layout::new(counts).len);
        let arena = Arena::create(
            mapping,
            counts,
            0,
            true,
            (crate::config::Allocator::default(), 2),
        )
        .expect("an arena");
        let superblock = arena.superblock();
        let early = begin(superblock, 7, 4096);
        forget(superblock);
        assert_eq!(inflight_bytes(superblock, 7), 0);
        let late = begin(superblock, 7, 8192);
        end(superblock, 7, early);
        assert_eq!(inflight_bytes(superblock, 7), 8192);
        end(superblock, 7, late);
        assert_eq!(inflight_bytes(superblock, 7), 0);
    }
}
