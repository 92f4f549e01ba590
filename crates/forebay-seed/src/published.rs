//! A network in shared memory: one writer, any number of readers, no lock (3.2.3 of the paper, where it is a file).
//!
//! ```text
//! word 0      sequence: odd while a writer is at work; even and not 0 where a network lies behind it
//! word 1      sum of the sequence and all weights
//! word 2 ...  weights, two a word
//! ```
//!
//! A reader keeps a network of its own and compares one word with each request; when that has changed it copies the words and looks
//! at the sequence again. A writer that dies in the middle leaves an odd sequence: readers keep the network that they have, until
//! the next writer is done. Nothing in the words is trusted: what the sum does not fit, or is no network, is not taken.
//!
//! Of the writers there may be one at a time; the caller sees to it (the keeper is one).

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::network::{Network, PARAMETERS};

const SEQUENCE: usize = 0;
const SUM: usize = 1;
const WEIGHTS: usize = 2;
/// Words that a network takes.
pub const WORDS: usize = WEIGHTS + PARAMETERS.div_ceil(2);

/// [`WORDS`] words of memory that others may write.
pub trait Words {
    /// The word of that index.
    fn load(&self, index: usize, ordering: Ordering) -> u64;
    /// Sets the word of that index.
    fn store(&self, index: usize, value: u64, ordering: Ordering);
}

impl Words for [AtomicU64; WORDS] {
    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self[index].load(ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        self[index].store(value, ordering);
    }
}

/// Publishes a network.
pub fn publish(words: &(impl Words + ?Sized), network: &Network) {
    let before = words.load(SEQUENCE, Ordering::Relaxed);
    // A writer that has died in the middle has left it odd already.
    words.store(SEQUENCE, before | 1, Ordering::Relaxed);
    // Pairs with the fence of `take`: a reader that copies a word of ours sees the odd sequence afterwards.
    fence(Ordering::Release);
    let next = (before | 1).wrapping_add(1).max(2);
    let mut sum = Sum::of(next);
    for (i, pair) in network.parameters().chunks(2).enumerate() {
        let high = pair.get(1).map_or(0, |weight| weight.to_bits());
        let word = u64::from(pair[0].to_bits()) | u64::from(high) << 32;
        sum.add(word);
        words.store(WEIGHTS + i, word, Ordering::Relaxed);
    }
    words.store(SUM, sum.0, Ordering::Relaxed);
    // Pairs with the first load of `take`.
    words.store(SEQUENCE, next, Ordering::Release);
}

/// Takes the network if it is another one than that of sequence `seen` (0: none was seen), and whole. Gives its sequence too.
pub fn take(words: &(impl Words + ?Sized), seen: u64) -> Option<(u64, Network)> {
    let sequence = words.load(SEQUENCE, Ordering::Acquire);
    if sequence == seen || sequence == 0 || sequence % 2 == 1 {
        return None;
    }
    let mut parameters = Box::new([0.0; PARAMETERS]);
    let mut sum = Sum::of(sequence);
    for (i, pair) in parameters.chunks_mut(2).enumerate() {
        let word = words.load(WEIGHTS + i, Ordering::Relaxed);
        sum.add(word);
        for (weight, bits) in pair.iter_mut().zip([word as u32, (word >> 32) as u32]) {
            *weight = f32::from_bits(bits);
        }
    }
    let is_right = words.load(SUM, Ordering::Relaxed) == sum.0;
    // Pairs with the fence of `publish`.
    fence(Ordering::Acquire);
    let is_same = words.load(SEQUENCE, Ordering::Relaxed) == sequence;
    if !(is_right && is_same) {
        return None;
    }
    Some((sequence, Network::from_parameters(parameters)?))
}

/// A sum that depends on the order of the words; it guards against accidents, not against malice.
struct Sum(u64);

impl Sum {
    fn of(first: u64) -> Self {
        let mut sum = Sum(0x9e37_79b9_7f4a_7c15);
        sum.add(first);
        sum
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::cell::Cell;
    use std::time::Duration;

    fn empty() -> Box<[AtomicU64; WORDS]> {
        Box::new([const { AtomicU64::new(0) }; WORDS])
    }

    fn network(seed: u64) -> Network {
        Network::untrained(&mut Random::new(seed))
    }

    #[test]
    fn what_is_published_is_taken_once() {
        let words = empty();
        assert!(take(&*words, 0).is_none(), "nothing is there yet");
        publish(&*words, &network(1));
        let (first, taken) = take(&*words, 0).unwrap();
        assert_eq!(taken, network(1));
        assert!(take(&*words, first).is_none(), "it is known");
        publish(&*words, &network(2));
        let (second, taken) = take(&*words, first).unwrap();
        assert!(second > first);
        assert_eq!(taken, network(2));
    }

    #[test]
    fn any_damaged_word_is_found() {
        let words = empty();
        publish(&*words, &network(1));
        for index in 1..WORDS {
            let right = words[index].load(Ordering::Relaxed);
            words[index].store(right ^ 1 << (index % 64), Ordering::Relaxed);
            assert!(take(&*words, 0).is_none(), "word {index}");
            words[index].store(right, Ordering::Relaxed);
        }
        assert!(take(&*words, 0).is_some());
    }

    /// A writer that dies before its n-th store.
    struct Dies<'a> {
        words: &'a [AtomicU64; WORDS],
        stores_left: Cell<usize>,
    }

    impl Words for Dies<'_> {
        fn load(&self, index: usize, ordering: Ordering) -> u64 {
            self.words.load(index, ordering)
        }

        fn store(&self, index: usize, value: u64, ordering: Ordering) {
            if self.stores_left.get() > 0 {
                self.stores_left.set(self.stores_left.get() - 1);
                self.words.store(index, value, ordering);
            }
        }
    }

    #[test]
    fn a_writer_that_dies_anywhere_leaves_a_whole_network_or_none() {
        let stores = WORDS + 1;
        for lived in 0..=stores {
            let words = empty();
            publish(&*words, &network(1));
            let stores_left = Cell::new(lived);
            let words_of_the_dead = Dies {
                words: &words,
                stores_left,
            };
            publish(&words_of_the_dead, &network(2));
            let taken = take(&*words, 0).map(|(_, network)| network);
            let expected = match lived {
                0 => Some(network(1)),
                _ if lived == stores => Some(network(2)),
                _ => None,
            };
            assert_eq!(taken, expected, "{lived} stores");
            publish(&*words, &network(3));
            assert_eq!(take(&*words, 0).unwrap().1, network(3));
        }
    }

    #[test]
    fn readers_beside_a_writer_see_whole_networks() {
        let words = empty();
        let networks: Vec<Network> = (0..4).map(network).collect();
        let reader = || {
            let (mut seen, mut taken) = (0, 0);
            while taken < 50 && seen < 4_000 {
                if let Some((sequence, network)) = take(&*words, seen) {
                    assert_eq!(network, networks[sequence as usize / 2 % 4]);
                    (seen, taken) = (sequence, taken + 1);
                }
            }
        };
        std::thread::scope(|scope| {
            let readers = [scope.spawn(reader), scope.spawn(reader)];
            let mut published = 0;
            while published < 2_000 || readers.iter().any(|reader| !reader.is_finished()) {
                published += 1;
                publish(&*words, &networks[published % 4]);
                // Readers need moments without a writer, on any machine.
                if published % 8 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
    }
}
