//! What a change of some bytes changes in the checksum of their block.
//!
//! Without its first and last inversion a CRC is linear: the sums of two blocks differ by the sum of their difference, which is zeros but for the
//! bytes that change. Leading zeros do nothing, and so many zeros behind multiply by a power of x that depends on their number alone. So a few
//! words are summed instead of 4 KiB.

/// What the checksum of a block is to be combined with (by exclusive or) when `old`, at byte `at` of the payload, becomes `new`. `None`: this CPU has
/// no instructions for it, and the block has to be summed.
#[cfg(target_arch = "x86_64")]
pub fn of(at: usize, old: &[u8], new: &[u8]) -> Option<u32> {
    let has_both = std::arch::is_x86_feature_detected!("sse4.2")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    // SAFETY: the CPU has both.
    has_both.then(|| unsafe { product::change(at, old, new) })
}

/// The same for other CPUs.
#[cfg(not(target_arch = "x86_64"))]
pub fn of(_at: usize, _old: &[u8], _new: &[u8]) -> Option<u32> {
    None
}

#[cfg(target_arch = "x86_64")]
mod product {
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
    };

    use crate::layout::{PAYLOAD, SEALED};
    use crate::medium::machine::POLYNOMIAL;

    /// # Safety
    /// The CPU has SSE 4.2 and `pclmulqdq`.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub unsafe fn change(at: usize, old: &[u8], new: &[u8]) -> u32 {
        let (old_words, old_rest) = old.as_chunks::<8>();
        let (new_words, new_rest) = new.as_chunks::<8>();
        let mut crc = 0;
        for (old, new) in old_words.iter().zip(new_words) {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new));
        }
        let mut crc = crc as u32;
        for (old, new) in old_rest.iter().zip(new_rest) {
            crc = _mm_crc32_u8(crc, old ^ new);
        }
        // To the next whole word, and from there to the end by one multiplication, which the last instruction takes modulo the polynomial.
        let end = at + old.len();
        for _ in end..end.next_multiple_of(8) {
            crc = _mm_crc32_u8(crc, 0);
        }
        let power = POWERS[end.div_ceil(8)];
        let [one, other] = [crc, power].map(|factor| _mm_cvtsi64_si128(i64::from(factor)));
        let product = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(one, other));
        _mm_crc32_u64(0, product as u64) as u32
    }

    /// By what a sum is multiplied that ends before so many whole words of the block. It is the power of x by as many bits as are left, less the 33
    /// by which the reduction multiplies: 32 of its own, and one since the product of two numbers of 32 bits in reverse order has 63.
    static POWERS: [u32; PAYLOAD / 8 + 1] = powers();

    const fn powers() -> [u32; PAYLOAD / 8 + 1] {
        let mut powers = [0; PAYLOAD / 8 + 1];
        let mut words = PAYLOAD / 8;
        // One, as a polynomial: bits are in reverse.
        powers[words] = by_x(1 << 31, (SEALED - PAYLOAD) * 8 - 33);
        while words > 0 {
            powers[words - 1] = by_x(powers[words], 64);
            words -= 1;
        }
        powers
    }

    /// Multiplied by x, so many times.
    const fn by_x(mut power: u32, times: usize) -> u32 {
        let mut done = 0;
        while done < times {
            power = (power >> 1) ^ (POLYNOMIAL * (power & 1));
            done += 1;
        }
        power
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::of;
    use crate::layout::{BLOCK, PAYLOAD, checksum};
    use crate::tests::sim::Random;

    proptest! {
        #[test]
        fn a_sum_that_goes_along_is_the_sum(seed: u64, id: u64, at in 0..PAYLOAD, length in 0_usize..200) {
            let mut random = Random::new(seed);
            let mut bytes = [0; BLOCK];
            bytes.fill_with(|| random.below(256) as u8);
            let before = checksum(id, &bytes);
            let end = (at + length).min(PAYLOAD);
            let new: Vec<u8> = (at..end).map(|_| random.below(256) as u8).collect();
            // Without the instructions there is nothing to compare.
            if let Some(change) = of(at, &bytes[at..end], &new) {
                bytes[at..end].copy_from_slice(&new);
                prop_assert_eq!(before ^ change, checksum(id, &bytes));
            }
        }
    }
}
