//! Where operations come from: one decoder that turns dice into operations, and two sources of dice,
//! a seeded generator for long runs and proptest for runs that shrink by themselves. Fuzzers may
//! bring a third.
//!
//! Smaller numbers on the dice give simpler operations: the first kind of the profile, file 0, the
//! beginning of the file, few bytes. So to shrink the dice is to shrink the operations.

use proptest::collection::SizeRange;
use proptest::strategy::Strategy;

use crate::{Access, BLOCK_BYTES, Kind, Op, PAGE_BYTES, Profile, Sizes};

/// A small generator of random numbers: splitmix64, the same on every machine and for ever, so that
/// a seed in a report stays good.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Equal seeds, equal numbers.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Dice for one operation.
    pub fn dice(&mut self) -> Dice {
        std::array::from_fn(|_| self.next_u64() as u32)
    }
}

/// What decides one operation: kind, file and handle, place (two), length (two).
pub type Dice = [u32; 6];

/// `n` operations, the same for the same seed and profile.
pub fn generate(seed: u64, profile: &Profile, n: usize) -> Vec<Op> {
    let mut random = SplitMix64::new(seed);
    let mut decoder = Decoder::new(profile);
    (0..n).map(|_| decoder.decode(random.dice())).collect()
}

/// Lists of operations for proptest.
pub fn ops(profile: Profile, len: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(proptest::arbitrary::any::<Dice>(), len).prop_map(move |dice| {
        let mut decoder = Decoder::new(&profile);
        dice.into_iter().map(|dice| decoder.decode(dice)).collect()
    })
}

/// `die` as a number below `bound`, small for small.
fn scale(die: u32, bound: u64) -> u64 {
    ((u128::from(die) * u128::from(bound)) >> 32) as u64
}

/// The lower bits of a die as a die of their own.
fn low(die: u32) -> u32 {
    die << 16
}

/// Turns dice into operations. It keeps an account of lengths and of the last changes, so that many
/// operations meet where mistakes show: near the end of a file, and where something has just been
/// changed. Writes are numbered from 1: no two of a list have one seed.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    profile: &'a Profile,
    lens: Vec<u64>,
    /// By file: where the last changes began and ended, newest first.
    changed: Vec<[(u64, u64); 4]>,
    writes: u32,
}

impl<'a> Decoder<'a> {
    /// For empty files.
    pub fn new(profile: &'a Profile) -> Self {
        let files = profile.files as usize;
        Decoder {
            profile,
            lens: vec![0; files],
            changed: vec![[(0, 0); 4]; files],
            writes: 0,
        }
    }

    /// The next operation.
    pub fn decode(&mut self, dice: Dice) -> Op {
        let [kind, who, .., size_shape, size] = dice;
        let file = scale(who, u64::from(self.profile.files)) as u8;
        let handle = scale(low(who), u64::from(self.profile.handles)) as u8;
        let offset = self.place(file, dice);
        let len = self.length(offset, size_shape, size);
        match pick(self.profile.weights, kind) {
            Kind::Read => self.read(file, handle, dice),
            Kind::Write => self.write(file, handle, offset, len),
            Kind::WriteVectored => self.write_vectored(file, handle, offset, len, low(size)),
            Kind::Append => self.append(file, handle, offset, len),
            Kind::SetLen => self.set_len(file, handle, offset, size),
            Kind::Punch => {
                let len = u64::from(len);
                self.note_change(file, offset, offset + len);
                Op::Punch {
                    file,
                    handle,
                    offset,
                    len,
                }
            }
            Kind::SyncData => Op::SyncData { file, handle },
            Kind::SyncAll => Op::SyncAll { file, handle },
            Kind::Len => Op::Len { file, handle },
            Kind::Reopen => self.reopen(file, handle, size_shape),
            Kind::CloseAll => Op::CloseAll { file },
            Kind::Evict => Op::Evict { file },
            Kind::KeeperStep => Op::KeeperStep {
                steps: 1 + scale(size, 16) as u16,
            },
        }
    }

    fn next_seed(&mut self) -> u32 {
        self.writes += 1;
        self.writes
    }

    fn note_change(&mut self, file: u8, start: u64, end: u64) {
        let changed = &mut self.changed[file as usize];
        changed.rotate_right(1);
        changed[0] = (start, end);
    }

    fn written(&mut self, file: u8, offset: u64, len: u32) {
        let end = offset + u64::from(len);
        self.note_change(file, offset, end);
        let len = &mut self.lens[file as usize];
        *len = (*len).max(end);
    }

    fn write(&mut self, file: u8, handle: u8, offset: u64, len: u32) -> Op {
        self.written(file, offset, len);
        Op::Write {
            file,
            handle,
            offset,
            len,
            seed: self.next_seed(),
        }
    }

    /// A read; most lie across an end of a recent change, where mistakes show.
    fn read(&self, file: u8, handle: u8, dice: Dice) -> Op {
        let [.., die, size_shape, size] = dice;
        let changed = self.changed[file as usize][(die >> 4) as usize % 4];
        let place = match size % 4 {
            0 | 1 => self.place(file, dice),
            2 => changed.0,
            _ => changed.1,
        };
        let len = self.length(place, size_shape, size).max(2);
        let before = if size % 4 == 0 { 0 } else { u64::from(len / 2) };
        Op::Read {
            file,
            handle,
            offset: place.saturating_sub(before),
            len,
        }
    }

    /// The same bytes in two to five pieces, of which some may be empty.
    fn write_vectored(&mut self, file: u8, handle: u8, offset: u64, len: u32, die: u32) -> Op {
        let pieces = 2 + scale(die, 4) as u32;
        let mut lens = vec![len / pieces; pieces as usize];
        let ragged = (die >> 8) % (len / pieces + 1);
        lens[0] -= ragged;
        lens[1] += ragged + len % pieces;
        self.written(file, offset, len);
        Op::WriteVectored {
            file,
            handle,
            offset,
            lens,
            seed: self.next_seed(),
        }
    }

    /// An append, unless the file would leave its window for good.
    fn append(&mut self, file: u8, handle: u8, offset: u64, len: u32) -> Op {
        let at = self.lens[file as usize];
        let last_base = self.profile.bases.last().copied().unwrap_or(0);
        if at + u64::from(len) > last_base + self.profile.window {
            return self.write(file, handle, offset, len);
        }
        self.written(file, at, len);
        Op::Append {
            file,
            handle,
            len,
            seed: self.next_seed(),
        }
    }

    /// Half of the cuts go anywhere below the place: files that stay full never grow again.
    fn set_len(&mut self, file: u8, handle: u8, offset: u64, die: u32) -> Op {
        let len = if die.is_multiple_of(2) {
            offset
        } else {
            scale(die, offset + 1)
        };
        self.note_change(file, len, self.lens[file as usize]);
        self.lens[file as usize] = len;
        Op::SetLen { file, handle, len }
    }

    fn reopen(&mut self, file: u8, handle: u8, die: u32) -> Op {
        let access = match scale(die, 8) {
            0..=3 => Access::ReadWrite,
            4 => Access::ReadOnly,
            5 => Access::WriteOnly,
            _ => Access::Append,
        };
        let writable = matches!(access, Access::ReadWrite | Access::WriteOnly);
        let truncate = writable && low(die) >= 3 << 30;
        if truncate {
            self.lens[file as usize] = 0;
        }
        Op::Reopen {
            file,
            handle,
            access,
            truncate,
        }
    }

    /// An offset in one of the profile's windows: mostly where pages, blocks or the file end.
    fn place(&self, file: u8, dice: Dice) -> u64 {
        let [_, who, shape, die, ..] = dice;
        let Profile { bases, window, .. } = *self.profile;
        let base = bases[scale(low(who.rotate_right(8)), bases.len() as u64) as usize];
        let block = scale(die, window / BLOCK_BYTES) * BLOCK_BYTES;
        let page = scale(die, window / PAGE_BYTES) * PAGE_BYTES;
        let end = self.lens[file as usize];
        let changed = self.changed[file as usize][(die >> 4) as usize % 4];
        let step = |at: u64| (at + u64::from(die % 3)).saturating_sub(1);
        match scale(shape, 11) {
            0 => base + block,
            1 => base + page,
            2 => base + step(block),
            3 => base + step(page),
            4 => end,
            5 => step(end),
            6 => changed.0,
            7 => step(changed.1),
            8 => changed.1.saturating_sub(1 + scale(die, PAGE_BYTES)),
            _ => base + scale(die, window),
        }
    }

    /// A length for an operation at `offset`, cut where its window ends; now and then zero.
    fn length(&self, offset: u64, shape: u32, die: u32) -> u32 {
        let ragged = u64::from(die % 3);
        let len = match self.profile.sizes {
            Sizes::Mixed => match scale(shape, 8) {
                0 => scale(die, 64),
                1 | 2 => 1 + scale(die, PAGE_BYTES),
                3 => PAGE_BYTES - 1 + ragged,
                4 => PAGE_BYTES * (1 + scale(die, 8)),
                5 => PAGE_BYTES * (1 + scale(die, 70)) - 1 + ragged,
                6 => BLOCK_BYTES - 1 + ragged,
                _ => 1 + scale(die, 2 * BLOCK_BYTES),
            },
            Sizes::Large => match scale(shape, 4) {
                0 => (1 << 20) - 1 + ragged,
                1 => BLOCK_BYTES * (4 + scale(die, 13)),
                _ => (1 << 20) + scale(die, 3 << 20),
            },
        };
        let window = self.profile.window;
        let base = self
            .profile
            .bases
            .iter()
            .rev()
            .find(|&&base| base <= offset);
        let end = base.copied().unwrap_or(0) + window;
        // An offset beyond the window (the end of a grown file) keeps a short length.
        len.min(if end > offset { end - offset } else { 100 }) as u32
    }
}

fn pick(weights: &[(Kind, u32)], die: u32) -> Kind {
    let total: u32 = weights.iter().map(|&(_, weight)| weight).sum();
    let mut left = scale(die, u64::from(total)) as u32;
    for &(kind, weight) in weights {
        if left < weight {
            return kind;
        }
        left -= weight;
    }
    unreachable!("weights add up to the total")
}
