//! The bitmaps in the medium: reading them all, and changing runs of bits.

use crate::errno::Result;
use crate::layout::{BITS, Kind, get64};
use crate::pages::Pages;
use crate::space::{Run, Space, words_of};

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
            let start = (page * BITS).max(numbers.start);
            let length = ((page + 1) * BITS).min(numbers.end) - start;
            // No word has bits of two pages.
            let first = (page * BITS / 64) as usize;
            for (word, mask) in words_of(Run { start, length }) {
                let taken = get64(bytes, (word - first) * 8);
                space.release_word(word, mask & !taken);
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

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::set_bits;
    use crate::layout::{BITS, Kind, PAYLOAD};
    use crate::medium::Durability;
    use crate::pages::{PageMap, Pages};
    use crate::space::Run;
    use crate::tests::sim::{Random, Simulated};

    /// Where the bitmap begins, and how many blocks it has.
    const FIRST: u64 = 3;
    const BLOCKS: u64 = 3;

    /// A bitmap that has these bytes.
    fn bitmap(bytes: &[u8]) -> Pages {
        let blocks = FIRST + BLOCKS;
        let medium = Simulated::new(vec![0; blocks as usize * 4096], Durability::Dax);
        let mut pages = Pages::new(medium, 1, blocks, PageMap::default());
        for (block, bytes) in (FIRST..).zip(bytes.chunks(PAYLOAD)) {
            pages.make(block, Kind::Blocks);
            assert_eq!(pages.write(block, Kind::Blocks, 0, bytes), Ok(()));
        }
        pages
    }

    fn content(pages: &Pages) -> Vec<u8> {
        let mut all = vec![0; BLOCKS as usize * PAYLOAD];
        for (block, bytes) in (FIRST..).zip(all.chunks_mut(PAYLOAD)) {
            assert_eq!(pages.read(block, Kind::Blocks, 0, bytes), Ok(()));
        }
        all
    }

    /// Bit by bit, what [`set_bits`] does.
    fn set_each(bytes: &mut [u8], numbers: Range<u64>, set: bool) -> u64 {
        let mut changed = 0;
        for number in numbers {
            let (byte, bit) = (&mut bytes[(number / 8) as usize], 1 << (number % 8));
            if (*byte & bit != 0) != set {
                *byte ^= bit;
                changed += 1;
            }
        }
        changed
    }

    fn numbers() -> impl Strategy<Value = (u64, u64)> {
        let all = BLOCKS * BITS;
        // Around where blocks of the bitmap meet more often than chance has it.
        let start = prop_oneof![
            0..all,
            (1..BLOCKS).prop_flat_map(|block| block * BITS - 70..block * BITS + 70)
        ];
        // A bit, some bytes, about as many as fit on the stack, any.
        let length = prop_oneof![1_u64..20, 1_u64..200, 560_u64..590, 1..all];
        (start, length).prop_map(move |(start, length)| (start, length.min(all - start)))
    }

    proptest! {
        #[test]
        fn runs_of_bits_are_set_as_bits_are_one_by_one(
            (start, length) in numbers(), set: bool, seed: u64, share in 0_usize..=4
        ) {
            let mut random = Random::new(seed);
            // From all clear to all set.
            let mut byte = || (0..8).fold(0, |byte, bit| byte | u8::from(random.below(4) < share) << bit);
            let mut expected: Vec<u8> = (0..BLOCKS as usize * PAYLOAD).map(|_| byte()).collect();
            let mut pages = bitmap(&expected);
            let changed = set_bits(&mut pages, FIRST, Kind::Blocks, Run { start, length }, set);
            let counted = set_each(&mut expected, start..start + length, set);
            prop_assert_eq!(changed, Ok(counted));
            let found = content(&pages);
            let differ = found.iter().zip(&expected).position(|(one, other)| one != other);
            prop_assert_eq!(differ, None, "the first byte that differs");
        }
    }
}
