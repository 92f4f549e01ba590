//! Bytes in pieces, that need not be copied to lie side by side.
//!
//! Copies of a rope, and parts of it, share its bytes. Two ropes are the same if their bytes are, however they are cut.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes in pieces.
#[derive(Clone, Debug, Default, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
pub struct Rope(Vec<Bytes>);

impl Rope {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.0
    }

    /// Puts a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.0.push(piece);
        }
    }

    /// Puts so many zeros at the end.
    pub fn push_zeros(&mut self, count: usize) {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut rest = count;
        while rest > 0 {
            let piece = rest.min(ZEROS.len());
            self.push(Bytes::from_static(&ZEROS[..piece]));
            rest -= piece;
        }
    }

    /// Puts `length` bytes of `from`, beginning at `at`, at the end. They must be there.
    pub fn push_part(&mut self, from: &Rope, at: usize, length: usize) {
        let (mut skip, mut rest) = (at, length);
        for piece in &from.0 {
            let taken = piece.len().saturating_sub(skip).min(rest);
            if taken > 0 {
                self.push(piece.slice(skip..skip + taken));
                rest -= taken;
            }
            skip = skip.saturating_sub(piece.len());
        }
        assert_eq!(rest, 0, "a part beyond the end");
    }

    /// `length` bytes, beginning at `at`, side by side. They must be there. Only bytes of several pieces are copied.
    pub fn part(&self, at: usize, length: usize) -> Bytes {
        let mut skip = at;
        for piece in &self.0 {
            if skip < piece.len() {
                if length <= piece.len() - skip {
                    return piece.slice(skip..skip + length);
                }
                break;
            }
            skip -= piece.len();
        }
        let mut part = Rope::default();
        part.push_part(self, at, length);
        match part.0.pop() {
            Some(only) if part.0.is_empty() => only,
            Some(last) => {
                part.0.push(last);
                part.into_vec().into()
            }
            None => Bytes::new(),
        }
    }

    /// Copies the bytes to the beginning of `into`, which has room for them, and says how many they are.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in &self.0 {
            into[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        at
    }

    /// The bytes side by side: without a copy, if they are one piece that nobody else has.
    pub fn into_vec(mut self) -> Vec<u8> {
        if self.0.len() == 1
            && let Some(piece) = self.0.pop()
        {
            return piece.into();
        }
        let mut all = Vec::with_capacity(self.len());
        self.0.iter().for_each(|piece| all.extend_from_slice(piece));
        all
    }
}

impl From<Vec<u8>> for Rope {
    fn from(bytes: Vec<u8>) -> Rope {
        Bytes::from(bytes).into()
    }
}

impl From<Bytes> for Rope {
    fn from(bytes: Bytes) -> Rope {
        let mut rope = Rope::default();
        rope.push(bytes);
        rope
    }
}

impl From<Rope> for Vec<u8> {
    fn from(rope: Rope) -> Vec<u8> {
        rope.into_vec()
    }
}

impl PartialEq for Rope {
    fn eq(&self, other: &Rope) -> bool {
        let bytes = |rope: &Rope| rope.clone().0.into_iter().flatten();
        self.len() == other.len() && bytes(self).eq(bytes(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_ropes_are_the_bytes_that_they_say() {
        let bytes: Vec<u8> = (0..30).collect();
        for (first, second) in [(0, 30), (7, 7), (7, 19), (10, 11)] {
            let mut rope = Rope::default();
            for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                rope.push(Bytes::copy_from_slice(piece));
            }
            assert_eq!(rope, bytes.clone().into());
            for (at, length) in [(0, 30), (0, 0), (30, 0), (5, 3), (5, 20), (19, 11)] {
                let mut part = Rope::default();
                part.push_part(&rope, at, length);
                part.push_zeros(5000);
                let mut expected = bytes[at..at + length].to_vec();
                expected.resize(length + 5000, 0);
                let mut copied = vec![1; expected.len() + 3];
                assert_eq!(part.copy_to(&mut copied), expected.len());
                assert_eq!(copied, [&expected[..], &[1; 3]].concat());
                assert_eq!(part.into_vec(), expected);
                assert_eq!(rope.part(at, length), bytes[at..at + length]);
            }
        }
        assert_ne!(Rope::from(vec![1, 2]), Rope::from(vec![1, 3]));
        assert_ne!(Rope::from(vec![1, 2]), Rope::from(vec![1]));
    }
}
