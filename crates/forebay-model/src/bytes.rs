//! What a write puts at each position: a function of the write's seed and of the position alone.
//!
//! Never zero, so that a lost write cannot hide in a hole. Eight neighbouring bytes identify the
//! seed among all writes of a run but for one chance in 2^64; a single byte but for one in 255.

/// The eight bytes at positions `8 * word ..`, with zero bytes made one.
#[inline]
fn word_at(seed: u32, word: u64) -> u64 {
    let mut x = word
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(seed).wrapping_mul(0xd1b5_4a32_d192_ed03));
    x = (x ^ (x >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 32;
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let zero_bytes = !(((x & LOW) + LOW) | x | LOW);
    x | (zero_bytes >> 7)
}

/// The byte that a write with this seed puts at position `offset` of a file. Never zero.
#[inline]
pub fn byte_at(seed: u32, offset: u64) -> u8 {
    word_at(seed, offset / 8).to_le_bytes()[(offset % 8) as usize]
}

/// Fills `buf` with what a write with this seed puts at positions `offset ..`.
pub fn fill(seed: u32, offset: u64, buf: &mut [u8]) {
    let ragged = ((8 - offset % 8) % 8).min(buf.len() as u64) as usize;
    let (head, rest) = buf.split_at_mut(ragged);
    for (i, byte) in head.iter_mut().enumerate() {
        *byte = byte_at(seed, offset + i as u64);
    }
    let first_word = (offset + ragged as u64) / 8;
    for (i, chunk) in rest.chunks_mut(8).enumerate() {
        let word = word_at(seed, first_word + i as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Index of the first byte that differs, of those that both have.
pub fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    let both = expected.len().min(found.len());
    let (expected, found) = (&expected[..both], &found[..both]);
    // First: they are the same nearly always, and a build for tests takes long to find that byte by byte.
    if expected == found {
        return None;
    }
    expected.iter().zip(found).position(|(a, b)| a != b)
}

/// [`fill`] into memory of its own.
pub(crate) fn filled(seed: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    fill(seed, offset, &mut buf);
    buf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_seed_and_position_alone_and_are_never_zero() {
        let whole = filled(7, 0, 10_000);
        assert!(whole.iter().all(|&b| b != 0));
        for (start, len) in [
            (0, 1),
            (1, 6),
            (3, 5),
            (7, 1),
            (8, 8),
            (13, 1000),
            (4095, 2),
        ] {
            assert_eq!(filled(7, start as u64, len), whole[start..start + len]);
            assert_eq!(byte_at(7, start as u64), whole[start]);
        }
        let other = filled(8, 0, 10_000);
        let equal = whole.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(
            equal < 100,
            "{equal} of 10,000 bytes equal: seeds cannot be told apart"
        );
    }
}
