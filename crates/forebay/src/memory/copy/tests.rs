//! Copies by hand: the right bytes and no others, for lengths around those where another loop takes over and for places of
//! the two ranges in their pages between which the instruction is chosen; and no such place is a slow one.

use std::time::{Duration, Instant};

use super::guarded::copy_without_avx2;
use super::{try_copy, try_pass, try_stream};

const PAGE: usize = 4096;

type Copy = unsafe fn(*const u8, *mut u8, usize) -> bool;

/// `len` bytes, `place` bytes into a page, with a page at least before and behind them.
struct Range {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Range {
    fn new(place: usize, len: usize) -> Range {
        let memory = vec![0xa5; len + 4 * PAGE];
        let start = memory.as_ptr().align_offset(PAGE) + PAGE + place;
        Range { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn fill(&mut self) {
        for (at, byte) in self.memory[self.start..][..self.len].iter_mut().enumerate() {
            *byte = (at.wrapping_mul(2_654_435_761) >> 13) as u8;
        }
    }

    fn others_are_as_they_were(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.start);
        let behind = &rest[self.len..];
        before.iter().chain(behind).all(|byte| *byte == 0xa5)
    }

    fn take(&mut self, copy: Copy, source: &Range) {
        let target = self.memory[self.start..][..self.len].as_mut_ptr();
        // SAFETY: two ranges of vectors that this test alone has, of the same length, initialised.
        assert!(unsafe { copy(source.bytes().as_ptr(), target, self.len) });
    }
}

#[test]
fn bytes_come_whole_and_no_others_change() {
    let lengths = (0..300).chain([
        4095, 4096, 4097, 4223, 8192, 12_345, 24_575, 24_576, 65_536, 65_664, 70_001,
    ]);
    let places = [0, 1, 15, 16, 31, 32, 63, 64, 100, 2048, 4080, 4095];
    for (len, from) in lengths.flat_map(|len| [(len, 0), (len, 16)]) {
        let mut source = Range::new(from, len);
        source.fill();
        for to in places {
            for copy in [try_copy, try_stream, try_pass, copy_without_avx2] as [Copy; 4] {
                let mut target = Range::new(to, len);
                target.take(copy, &source);
                assert!(
                    target.bytes() == source.bytes(),
                    "{len} bytes from {from} to {to}"
                );
                assert!(
                    target.others_are_as_they_were(),
                    "{len} bytes from {from} to {to}"
                );
            }
        }
    }
}

/// The least time of many copies from a page's start to `place` in a page.
fn least(place: usize, len: usize) -> Duration {
    let mut source = Range::new(0, len);
    source.fill();
    let mut target = Range::new(place, len);
    let mut time = || {
        let start = Instant::now();
        target.take(try_copy, &source);
        start.elapsed()
    };
    (0..200).map(|_| time()).min().expect("copies were made")
}

/// Where the processor's string instruction is slow, it is five times as slow and more.
#[test]
fn no_place_in_a_page_is_a_slow_one() {
    let len = 64 * 1024;
    let elsewhere = least(256, len);
    for place in [1, 8, 15, 16, 17, 31, 4080] {
        let here = least(place, len);
        assert!(
            here < elsewhere * 3,
            "at {place}: {here:?}, elsewhere {elsewhere:?}"
        );
    }
}
