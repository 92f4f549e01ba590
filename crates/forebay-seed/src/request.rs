//! What SEED knows of a request: its kind, its size class and the mode that served it.
//!
//! A [`Record`] is one request that has ended. It fits into one word, so that a thread publishes it with one store, and a reader in
//! another thread sees a whole one. Any word is a record or none.

/// Which path serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// This host's memory.
    Local = 0,
    /// Past it: another host's memory, or the device.
    Remote = 1,
}

impl Mode {
    /// Both, in the order of their numbers.
    pub const BOTH: [Mode; 2] = [Mode::Local, Mode::Remote];

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Mode::Local => Mode::Remote,
            Mode::Remote => Mode::Local,
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It reads.
    Read = 0,
    /// It writes.
    Write = 1,
}

impl Kind {
    /// Both, in the order of their numbers.
    pub const BOTH: [Kind; 2] = [Kind::Read, Kind::Write];
}

/// Size classes: up to 4 KiB, 16 KiB, 64 KiB, and so on by four; the last has all above 16 MiB.
pub const CLASSES: usize = 8;
/// Groups of requests that are counted apart: class, kind and mode.
pub const GROUPS: usize = CLASSES * 4;

/// The size class of so many bytes.
pub fn class_of(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(11) as usize / 2).min(CLASSES - 1)
}

/// A request for which a mode is to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub kind: Kind,
    /// How many bytes.
    pub bytes: u64,
}

impl Request {
    /// The group that it belongs to if that mode serves it.
    pub fn group(&self, mode: Mode) -> Group {
        Group((class_of(self.bytes) * 4 + self.kind as usize * 2 + mode as usize) as u8)
    }
}

/// Size class, kind and mode as one number below [`GROUPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(u8);

impl Group {
    /// The group's number.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The mode of its requests.
    pub fn mode(self) -> Mode {
        Mode::BOTH[self.index() % 2]
    }
}

/// Bits of a word that hold the latency; those above hold the bytes.
const LATENCY_BITS: u32 = 32;
/// Bits that hold the bytes; above them kind and mode.
const BYTES_BITS: u32 = 30;

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was asked.
    pub request: Request,
    /// What served it.
    pub mode: Mode,
    /// Nanoseconds that it took, at least 1.
    pub latency_ns: u64,
}

impl Record {
    /// The record as a word, which is not 0. Latencies stop at four seconds, sizes at a gibibyte.
    pub fn to_word(self) -> u64 {
        let latency = self.latency_ns.clamp(1, (1 << LATENCY_BITS) - 1);
        let bytes = self.request.bytes.min((1 << BYTES_BITS) - 1);
        latency
            | bytes << LATENCY_BITS
            | (self.request.kind as u64) << (LATENCY_BITS + BYTES_BITS)
            | (self.mode as u64) << (LATENCY_BITS + BYTES_BITS + 1)
    }

    /// The record in a word; none in a word without a latency.
    pub fn from_word(word: u64) -> Option<Self> {
        let latency_ns = word & ((1 << LATENCY_BITS) - 1);
        (latency_ns != 0).then(|| Record {
            request: Request {
                kind: Kind::BOTH[(word >> (LATENCY_BITS + BYTES_BITS) & 1) as usize],
                bytes: word >> LATENCY_BITS & ((1 << BYTES_BITS) - 1),
            },
            mode: Mode::BOTH[(word >> (LATENCY_BITS + BYTES_BITS + 1)) as usize],
            latency_ns,
        })
    }

    /// The group that it belongs to.
    pub fn group(&self) -> Group {
        self.request.group(self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_end_at_powers_of_four_pages() {
        for (class, end) in (12..)
            .step_by(2)
            .map(|bits| 1_u64 << bits)
            .enumerate()
            .take(7)
        {
            assert_eq!(class_of(end), class, "{end}");
            assert_eq!(class_of(end + 1), class + 1, "{end} + 1");
        }
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn every_group_has_its_number() {
        let mut seen = [false; GROUPS];
        for class in 0..CLASSES {
            for kind in Kind::BOTH {
                for mode in Mode::BOTH {
                    let bytes = 4096 << (2 * class);
                    let group = Request { kind, bytes }.group(mode);
                    assert_eq!(group.mode(), mode);
                    assert!(!std::mem::replace(&mut seen[group.index()], true));
                }
            }
        }
        assert_eq!(seen, [true; GROUPS]);
    }

    proptest! {
        #[test]
        fn any_word_is_a_record_or_none(word: u64) {
            match Record::from_word(word) {
                Some(record) => prop_assert_eq!(record.to_word(), word),
                None => prop_assert_eq!(word as u32, 0),
            }
        }

        #[test]
        fn a_record_comes_back_within_its_bounds(bytes: u64, latency_ns: u64, write: bool, remote: bool) {
            let request = Request { kind: Kind::BOTH[usize::from(write)], bytes };
            let record = Record { request, mode: Mode::BOTH[usize::from(remote)], latency_ns };
            let back = Record::from_word(record.to_word()).unwrap();
            prop_assert_eq!(back.group(), record.group());
            prop_assert_eq!(back.latency_ns, latency_ns.clamp(1, u64::from(u32::MAX)));
        }
    }
}
