//! What a simulated file holds, and what a power failure may leave of it.
//!
//! Two states: *now*, which reads see, and *durable*, which the last sync promised. Between them lie
//! the versions that each sector went through, and a journal of the changes to size and space. A power
//! failure keeps a prefix of the journal, as journalling file systems do, and for each sector, on its
//! own, any of the versions that are possible with that prefix. This is harsher than a disk: it also
//! forgets direct writes that had completed, as a device with a volatile cache does.
//!
//! Bytes are never torn within a sector.

use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// The unit of space in bytes.
pub const UNIT_BYTES: u64 = 4096;

/// Versions remembered of one sector; beyond that the newest replaces the one before it.
const VERSIONS_MAX: usize = 8;

/// A change of size or space.
#[derive(Clone, Debug)]
enum Change {
    Grow(u64),
    SetLen(u64),
    Allocate(BTreeSet<u64>),
    Punch { first: u64, end: u64 },
}

/// What a sector held for a while.
#[derive(Clone, Debug)]
struct Version {
    bytes: Box<[u8]>,
    /// The journal entry that brought it; durable exactly if that is. `None` for written data.
    journal_entry: Option<usize>,
}

/// Size, space and bytes at one time. Bytes beyond the size are zero or not there.
#[derive(Clone, Debug, Default)]
struct State {
    len: u64,
    bytes: Vec<u8>,
    units: BTreeSet<u64>,
}

impl State {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Grow(len) => self.len = self.len.max(*len),
            Change::SetLen(len) => {
                self.len = *len;
                self.units.split_off(&len.div_ceil(UNIT_BYTES));
            }
            Change::Allocate(units) => self.units.extend(units),
            Change::Punch { first, end } => self.units.retain(|unit| !(first..end).contains(&unit)),
        }
    }

    fn sector(&self, start: usize, len: usize) -> Box<[u8]> {
        let mut sector = vec![0; len];
        let there = self.bytes.len().saturating_sub(start).min(len);
        if there > 0 {
            sector[..there].copy_from_slice(&self.bytes[start..start + there]);
        }
        sector.into()
    }

    fn put(&mut self, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(bytes);
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Image {
    sector_bytes: usize,
    now: State,
    durable: State,
    versions: BTreeMap<usize, Vec<Version>>,
    journal: Vec<Change>,
}

impl Image {
    /// An empty file that is written in sectors of this many bytes.
    pub fn new(sector_bytes: usize) -> Self {
        let (now, durable) = (State::default(), State::default());
        Self {
            sector_bytes,
            now,
            durable,
            versions: BTreeMap::new(),
            journal: Vec::new(),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.now.len
    }

    /// Units that have space.
    pub fn units(&self) -> u64 {
        self.now.units.len() as u64
    }

    /// Units of a byte range that have no space, in order.
    pub fn missing(&self, offset: u64, len: u64) -> BTreeSet<u64> {
        let units = offset / UNIT_BYTES..(offset + len).div_ceil(UNIT_BYTES);
        units
            .filter(|unit| !self.now.units.contains(unit))
            .collect()
    }

    /// Gives space to units.
    pub fn allocate(&mut self, units: BTreeSet<u64>) {
        if !units.is_empty() {
            self.change(Change::Allocate(units));
        }
    }

    /// Bytes from `offset` on, at most `len` and none beyond the end.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = self.now.len.saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            Vec::new()
        } else {
            self.now.sector(offset as usize, len).into()
        }
    }

    /// Writes bytes, whose space must be there, and lets the file grow.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        assert!(
            self.missing(offset, bytes.len() as u64).is_empty(),
            "written without space"
        );
        self.now.put(offset as usize, bytes);
        self.remember(offset, end, None);
        if end > self.now.len {
            self.change(Change::Grow(end));
        }
    }

    /// Cuts or lengthens the file; space beyond the new end is given back.
    pub fn set_len(&mut self, len: u64) {
        let old = self.now.len;
        self.change(Change::SetLen(len));
        if len < old {
            self.zero(len, old);
        }
    }

    /// Makes a hole: bytes become zero, units that lie inside lose their space.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let (first, last) = (offset.div_ceil(UNIT_BYTES), end / UNIT_BYTES);
        self.change(Change::Punch {
            first,
            end: last.max(first),
        });
        self.zero(offset, end.min(self.now.bytes.len() as u64));
    }

    /// Gives back the space of units beyond the end.
    pub fn trim(&mut self) {
        let first = self.now.len.div_ceil(UNIT_BYTES);
        self.change(Change::Punch {
            first,
            end: u64::MAX,
        });
    }

    /// Makes everything durable.
    pub fn sync(&mut self) {
        for &sector in self.versions.keys() {
            let start = sector * self.sector_bytes;
            self.durable
                .put(start, &self.now.sector(start, self.sector_bytes));
        }
        self.durable.len = self.now.len;
        if !self.journal.is_empty() {
            self.durable.units = self.now.units.clone();
        }
        self.versions.clear();
        self.journal.clear();
    }

    /// The power fails and comes back.
    pub fn crash(&mut self, random: &mut Random) {
        let kept = random.below(self.journal.len() + 1);
        let mut left = self.durable.clone();
        self.journal[..kept]
            .iter()
            .for_each(|change| left.apply(change));
        for (&sector, versions) in &self.versions {
            let start = sector * self.sector_bytes;
            let survivor = choose(versions, kept, random);
            if let (Some(version), true) = (survivor, (start as u64) < left.len) {
                left.put(start, &version.bytes);
                left.units.insert(start as u64 / UNIT_BYTES);
            }
        }
        left.bytes.truncate(left.len as usize);
        self.durable = left.clone();
        self.now = left;
        self.versions.clear();
        self.journal.clear();
    }

    fn change(&mut self, change: Change) {
        self.now.apply(&change);
        self.journal.push(change);
    }

    /// Zeroes a range on behalf of the newest entry of the journal.
    fn zero(&mut self, start: u64, end: u64) {
        let there = (self.now.bytes.len() as u64).min(end);
        if start >= there {
            return;
        }
        self.now.bytes[start as usize..there as usize].fill(0);
        self.remember(start, there, Some(self.journal.len() - 1));
    }

    /// Notes the versions that the sectors of a range have now.
    fn remember(&mut self, start: u64, end: u64, journal_entry: Option<usize>) {
        let size = self.sector_bytes;
        for sector in start as usize / size..(end as usize).div_ceil(size) {
            let version = Version {
                bytes: self.now.sector(sector * size, size),
                journal_entry,
            };
            let versions = self.versions.entry(sector).or_default();
            let both_data = |last: &Version| last.journal_entry.or(journal_entry).is_none();
            if versions.len() >= VERSIONS_MAX && versions.last().is_some_and(both_data) {
                versions.pop();
            }
            versions.push(version);
        }
    }
}

/// A version that may be on the device when the first `kept` entries of the journal are; `None` for
/// the durable one.
fn choose<'a>(versions: &'a [Version], kept: usize, random: &mut Random) -> Option<&'a Version> {
    let is_kept = |version: &Version| version.journal_entry.is_some_and(|entry| entry < kept);
    let settled = versions.iter().rposition(is_kept);
    let later = &versions[settled.map_or(0, |at| at + 1)..];
    let data: Vec<_> = later
        .iter()
        .filter(|version| version.journal_entry.is_none())
        .collect();
    match random.below(data.len() + 1) {
        0 => settled.map(|at| &versions[at]),
        n => Some(data[n - 1]),
    }
}
