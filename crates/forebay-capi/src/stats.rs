//! A session's counters as a structure that may grow.

use crate::border::Failure;

/// A session's counters at one moment. Bytes unless the name says otherwise. Later versions may add fields at the end, which `size` tells.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of this structure: what the caller has room for, then what the library has filled in.
    pub size: usize,
    /// Written into memory, to be flushed later.
    pub scrap_bytes: u64,
    /// Written straight to the device.
    pub direct_bytes: u64,
    /// Written through the kernel's cache.
    pub kernel_bytes: u64,
    /// Read by callers.
    pub read_bytes: u64,
    /// Read from devices: for readers and for fills.
    pub device_read_bytes: u64,
    /// Of that, read ahead into memory by the keeper.
    pub ahead_bytes: u64,
    /// Read ahead, in blocks that have been read since.
    pub ahead_used_bytes: u64,
    /// Read ahead, in blocks that were dropped before anybody read them.
    pub ahead_wasted_bytes: u64,
    /// Written to devices: flushed and direct.
    pub device_write_bytes: u64,
    /// Memory that the arena holds.
    pub memory_held_bytes: u64,
    /// Of that, frames that are free.
    pub memory_free_bytes: u64,
    /// Owed to devices now: pages that are dirty or in flight, whole pages counted.
    pub dirty_bytes: u64,
    /// Owed as the limits count it: a frame with anything dirty counts whole.
    pub owed_bytes: u64,
    /// Memory in use by what owes something.
    pub owed_memory_bytes: u64,
    /// Repairs after deaths of processes; a number.
    pub rebuilds: u64,
    /// Words that a repair found wrong and set right; a number.
    pub corruptions: u64,
    /// Nanoseconds that threads spent on changing device files.
    pub change_ns: u64,
    /// Files that became managed, once for each process; a number.
    pub files_managed: u64,
    /// Files left to the kernel by route or place; a number, as are the following ones.
    pub files_routed: u64,
    /// Left to the kernel because of their file system.
    pub files_of_file_system: u64,
    /// Left to the kernel because they cannot be opened for writing again.
    pub files_not_writable: u64,
    /// Left to the kernel because another session has them.
    pub files_claimed: u64,
    /// Left to the kernel for other reasons.
    pub files_other: u64,
    /// How often a close has left what its file owed to the keeper.
    pub closed_behind: u64,
    /// Left to the kernel because somebody reaches them past the engine.
    pub files_reached: u64,
    /// Files that were gone, so that what they owed was dropped.
    pub files_vanished: u64,
    /// Of the memory that the arena holds, what views hold, whole frames counted; at most half of the memory.
    pub viewed_bytes: u64,
    /// Of the memory that the arena holds, huge pages that hold 2 MiB of one file, in its order: a view of them is one huge page.
    pub run_bytes: u64,
}

/// The first version's size: no caller can have less.
const SIZE_MIN: usize = 27 * 8;
const _: () = assert!(size_of::<Stats>() >= SIZE_MIN);

/// Every counter of the engine's has a place: a new one there does not compile here.
impl From<&forebay::Stats> for Stats {
    fn from(stats: &forebay::Stats) -> Self {
        let forebay::Stats {
            scrap_bytes,
            direct_bytes,
            kernel_bytes,
            read_bytes,
            device_read_bytes,
            ahead_bytes,
            ahead_used_bytes,
            ahead_wasted_bytes,
            device_write_bytes,
            memory_held_bytes,
            memory_free_bytes,
            dirty_bytes,
            owed_bytes,
            owed_memory_bytes,
            rebuilds,
            corruptions,
            change_ns,
            files_managed,
            files_routed,
            files_of_file_system,
            files_not_writable,
            files_claimed,
            files_other,
            closed_behind,
            files_reached,
            files_vanished,
            viewed_bytes,
            run_bytes,
        } = *stats;
        Stats {
            size: size_of::<Stats>(),
            scrap_bytes,
            direct_bytes,
            kernel_bytes,
            read_bytes,
            device_read_bytes,
            ahead_bytes,
            ahead_used_bytes,
            ahead_wasted_bytes,
            device_write_bytes,
            memory_held_bytes,
            memory_free_bytes,
            dirty_bytes,
            owed_bytes,
            owed_memory_bytes,
            rebuilds: rebuilds.into(),
            corruptions: corruptions.into(),
            change_ns,
            files_managed,
            files_routed,
            files_of_file_system,
            files_not_writable,
            files_claimed,
            files_other,
            closed_behind,
            files_reached,
            files_vanished,
            viewed_bytes,
            run_bytes,
        }
    }
}

/// # Safety
/// `place` is `NULL`, or its size is set and it has room for that many bytes.
pub(crate) unsafe fn fill_in(place: *mut Stats, stats: &forebay::Stats) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid("the place for the counters is NULL"));
    }
    // SAFETY: the caller's promise; the size is its first word.
    let room = unsafe { place.cast::<usize>().read() };
    if room < SIZE_MIN {
        return Err(Failure::invalid(format!(
            "stats->size is {room}; set it to sizeof(struct forebay_stats)"
        )));
    }
    let mut filled = Stats::from(stats);
    filled.size = room.min(size_of::<Stats>());
    let (from, len) = ((&raw const filled).cast::<u8>(), filled.size);
    // SAFETY: no more than both have, and a value of ours is apart from the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, place.cast(), len) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_filled_in_than_there_is_room_for() {
        let counted = forebay::Stats {
            scrap_bytes: 7,
            files_vanished: 9,
            ..forebay::Stats::default()
        };
        let mut place = [Stats::default(); 2];
        place[0].size = size_of::<[Stats; 2]>();
        // SAFETY: there is room for two.
        assert!(unsafe { fill_in(place.as_mut_ptr(), &counted) }.is_ok());
        assert_eq!((place[0].scrap_bytes, place[0].files_vanished), (7, 9));
        assert_eq!(place[0].size, size_of::<Stats>());
        assert_eq!(place[1], Stats::default());
        for (room, fits) in [(0, false), (SIZE_MIN - 1, false), (SIZE_MIN, true)] {
            place[0].size = room;
            // SAFETY: there is more room than it says.
            let filled = unsafe { fill_in(place.as_mut_ptr(), &counted) };
            assert_eq!(filled.is_ok(), fits);
        }
    }
}
