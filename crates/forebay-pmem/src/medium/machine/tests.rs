//! The instructions by what they do: every alignment and length, and each line that has to be flushed.

use std::cell::RefCell;

use super::{
    FlushBy, LINE, crc32c, crc32c_table, flush, flush_by, lines_of, load, stream, stream_unflushed,
};

std::thread_local! {
    /// What this thread has flushed: where the first line begins, and how many there were.
    pub(super) static FLUSHED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn flushed_lines_are_those_that_have_a_byte_and_no_others() {
    for at in 4096..4096 + 2 * LINE {
        for length in 1..=4 * LINE {
            let (first, lines) = lines_of(at, length);
            let touched = (at..at + length).map(|byte| byte / LINE);
            let expected: std::collections::BTreeSet<_> = touched.collect();
            assert_eq!(first % LINE, 0);
            assert!(
                (first / LINE..first / LINE + lines).eq(expected),
                "{at} {length}"
            );
        }
    }
}

/// A streaming store goes past the caches; whatever of a copy is none is flushed. (Elsewhere than on x86-64 all of it is.)
#[cfg(target_arch = "x86_64")]
#[test]
fn what_a_stream_stores_beside_whole_lines_is_flushed() {
    let bytes = [0x5a_u8; 4 * LINE];
    let mut memory = vec![0_u8; 8 * LINE];
    let begin = memory.as_ptr().addr().next_multiple_of(LINE) - memory.as_ptr().addr();
    for offset in 0..LINE {
        for length in 0..=bytes.len() {
            let to = &mut memory[begin + offset..][..length];
            let (at, end) = (to.as_ptr().addr(), to.as_ptr().addr() + length);
            FLUSHED.take();
            // SAFETY: the vector is this test's own, and large enough.
            unsafe { stream(to.as_mut_ptr(), &bytes[..length], flush_by()) };
            let flushed = FLUSHED.take();
            for line in at / LINE..end.div_ceil(LINE) {
                let is_whole = line * LINE >= at && (line + 1) * LINE <= end;
                let holds = |(first, lines): &(usize, usize)| {
                    (first / LINE..first / LINE + lines).contains(&line)
                };
                assert!(
                    length == 0 || is_whole != flushed.iter().any(holds),
                    "{offset} {length}"
                );
            }
        }
    }
}

#[test]
fn nothing_is_flushed_where_the_kernel_writes_back() {
    FLUSHED.take();
    // SAFETY: the array lives.
    unsafe { flush([0_u8; 10].as_ptr(), 10, FlushBy::Nothing) };
    assert!(FLUSHED.take().is_empty());
}

#[test]
fn the_checksum_is_crc32c_by_either_way() {
    assert_eq!(crc32c_table(0, b"123456789"), 0xe306_9283);
    let bytes: Vec<u8> = (0..1000u32).map(|n| (n * 7 + n / 3) as u8).collect();
    for length in [0, 1, 7, 8, 9, 63, 64, 1000] {
        let bytes = &bytes[..length];
        assert_eq!(crc32c(5, bytes), crc32c_table(5, bytes));
    }
    let (first, second) = bytes.split_at(333);
    assert_eq!(crc32c(crc32c(0, first), second), crc32c(0, &bytes));
}

#[test]
fn streams_of_any_alignment_arrive_whole() {
    type Stream = unsafe fn(*mut u8, &[u8]);
    /// # Safety
    /// As [`stream`].
    unsafe fn flushed(to: *mut u8, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { stream(to, bytes, flush_by()) };
        super::fence();
    }
    let bytes: Vec<u8> = (0..700u32).map(|n| (n * 31 + n / 5) as u8).collect();
    for stream in [flushed, stream_unflushed] as [Stream; 2] {
        for offset in [0, 1, 8, 63, 64, 65] {
            for length in [0, 1, 62, 63, 64, 65, 129, 700] {
                let mut memory = vec![0xeeu8; 1024];
                // SAFETY: the vector is this test's own, and large enough.
                unsafe { stream(memory.as_mut_ptr().add(offset), &bytes[..length]) };
                assert_eq!(&memory[offset..offset + length], &bytes[..length]);
                assert!(memory[..offset].iter().all(|byte| *byte == 0xee));
                assert!(memory[offset + length..].iter().all(|byte| *byte == 0xee));
            }
        }
    }
}

#[test]
fn loads_to_any_place_in_a_page_arrive_whole() {
    let bytes: Vec<u8> = (0..16_384u32).map(|n| (n * 31 + n / 5) as u8).collect();
    let mut memory = vec![0u8; 3 * 4096 + 8192];
    let page = bytes.as_ptr().addr() % 4096;
    let begin = (page + 4096 - memory.as_ptr().addr() % 4096) % 4096;
    for after in [0, 1, 8, 16, 31, 32, 4095] {
        for length in [0, 1, 2047, 2048, 2049, 2111, 4096, 8000] {
            memory.fill(0xee);
            let place = begin + after;
            // SAFETY: the vector is this test's own, and longer.
            unsafe { load(bytes.as_ptr(), &mut memory[place..place + length]) };
            assert_eq!(memory[place..place + length], bytes[..length]);
            assert!(memory[..place].iter().all(|byte| *byte == 0xee));
            assert!(memory[place + length..].iter().all(|byte| *byte == 0xee));
        }
    }
}
