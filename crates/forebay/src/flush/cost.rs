//! Fill a whole block, or write its pieces? The cheaper of two estimates.
//!
//! WSBuffer 3.4 always fills and always writes whole scrap pages, because its large writes have left little else
//! behind. Random small overwrites would be amplified 64 times by that. So both ways are estimated: bytes moved, plus
//! a constant for each request, expressed in bytes: a request costs a fast device about as much as 32 KiB more in one
//! that is under way already (8 µs at 4 GB/s).

use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::scrap::split::runs_of;

/// What one request costs, in bytes moved.
const REQUEST_BYTES: usize = 32 * 1024;

/// How a block with ragged pages is made ready for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Read only the ragged pages; write only what is dirty.
    Pages,
    /// Read every page that is not in memory; write the block in one request.
    Block,
}

/// Chooses for a block in a frame. `ragged` pages need bytes from the device, `dirty` must be written (ragged ones
/// among them), `valid` are whole in memory.
pub fn choose(ragged: u64, dirty: u64, valid: u64) -> Fill {
    let pages = bytes_moved(ragged) + bytes_moved(dirty);
    let block = bytes_moved(!valid) + BLOCK_BYTES + REQUEST_BYTES;
    if ragged != 0 && block < pages {
        Fill::Block
    } else {
        Fill::Pages
    }
}

/// Cost of moving the pages of a mask, one request a run, in bytes.
fn bytes_moved(pages: u64) -> usize {
    pages.count_ones() as usize * PAGE_BYTES + runs_of(pages).count() * REQUEST_BYTES
}

/// Pages to add to a write so that runs a small gap apart become one request: valid pages that are clean, where
/// writing them again costs less than another request.
pub fn bridge(wanted: u64, valid: u64) -> u64 {
    let gap_pages_max = (REQUEST_BYTES / PAGE_BYTES) as u32;
    let mut bridged = wanted;
    let mut last_end = None;
    for run in runs_of(wanted) {
        if let Some(end) = last_end
            && run.start - end < gap_pages_max
        {
            let gap = crate::scrap::split::mask(end..run.start);
            if gap & !valid == 0 {
                bridged |= gap;
            }
        }
        last_end = Some(run.end);
    }
    bridged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_ragged_page_is_read_alone() {
        assert_eq!(choose(1, 1, 0), Fill::Pages);
    }

    #[test]
    fn a_block_of_ragged_pages_apart_is_filled_whole() {
        let every_second = 0x5555_5555_5555_5555;
        assert_eq!(choose(every_second, every_second, 0), Fill::Block);
    }

    #[test]
    fn whole_pages_never_ask_for_a_fill() {
        assert_eq!(choose(0, u64::MAX, u64::MAX), Fill::Pages);
    }

    #[test]
    fn bridges_join_close_runs_over_valid_pages_only() {
        assert_eq!(bridge(0b1001, 0b1111), 0b1111);
        assert_eq!(bridge(0b1001, 0b1011), 0b1001);
        assert_eq!(bridge(1 | 1 << 40, u64::MAX), 1 | 1 << 40);
    }
}
