//! The bitmaps in the medium: reading them all, and changing runs of bits.

use crate::errno::Result;
use crate::layout::{BITS, Kind};
use crate::pages::Pages;
use crate::space::{Run, Space};

/// Frees in `space` what a bitmap has free; answers the blocks of it that are damaged, whose numbers stay in use.
pub(super) fn load_bits(
    pages: &Pages,
    space: &mut Space,
    first: u64,
    kind: Kind,
    numbers: std::ops::Range<u64>,
) -> Vec<u64> {
    let mut damaged = Vec::new();
    for page in numbers.start / BITS..numbers.end.div_ceil(BITS) {
        let loaded = pages.with(first + page, kind, |bytes| {
            let from = (page * BITS).max(numbers.start);
            for number in from..((page + 1) * BITS).min(numbers.end) {
                let bit = number % BITS;
                if bytes[(bit / 8) as usize] & (1 << (bit % 8)) == 0 {
                    space.release(number);
                }
            }
        });
        if loaded.is_err() {
            damaged.push(first + page);
        }
    }
    damaged
}

/// Sets or clears bits; answers how many were not so before.
pub(super) fn set_bits(
    pages: &mut Pages,
    first: u64,
    kind: Kind,
    run: Run,
    set: bool,
) -> Result<u64> {
    let mut number = run.start;
    let end = run.start + run.length;
    let mut changed = 0;
    while number < end {
        let page = number / BITS;
        let until = end.min((page + 1) * BITS);
        let (low, high) = ((number % BITS) as usize, ((until - 1) % BITS) as usize);
        // Mostly it is one bit or 2 MiB, and memory need not be asked for.
        let (mut few, mut many) = ([0; 72], Vec::new());
        let length = high / 8 - low / 8 + 1;
        let bytes = match few.get_mut(..length) {
            Some(bytes) => bytes,
            None => {
                many.resize(length, 0);
                &mut many[..]
            }
        };
        pages.read(first + page, kind, low / 8, bytes)?;
        for (index, byte) in bytes.iter_mut().enumerate() {
            let first = if index == 0 { low % 8 } else { 0 };
            let last = if index == length - 1 { high % 8 } else { 7 };
            let mask = (0xff_u8 << first) & (0xff >> (7 - last));
            let others = mask & if set { !*byte } else { *byte };
            changed += u64::from(others.count_ones());
            *byte ^= others;
        }
        pages.write(first + page, kind, low / 8, bytes)?;
        number = until;
    }
    Ok(changed)
}
