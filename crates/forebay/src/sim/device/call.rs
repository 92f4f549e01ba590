//! The calls of a device file as values, for hooks, faults and counts.

/// Which call of [`crate::device::DeviceFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CallKind {
    ReadDirect,
    WriteDirect,
    WriteBuffered,
    SyncData,
    SyncAll,
    SetLen,
    Reserve,
    Trim,
    Punch,
    IsAllocated,
    Stat,
    WaitInFlight,
}

/// One call, before it is made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which one.
    pub kind: CallKind,
    /// Inode of the file.
    pub inode: u64,
    /// First byte concerned, 0 where there is none; for `SetLen` 0.
    pub offset: u64,
    /// Bytes concerned, 0 where there are none; for `SetLen` the new length.
    pub len: u64,
    /// The file's alignment of direct requests, in bytes.
    pub align: u32,
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    /// Every call.
    pub const ALL: Self = Self(u16::MAX);
    /// The two writes.
    pub const WRITES: Self = Self::of(&[CallKind::WriteDirect, CallKind::WriteBuffered]);
    /// The read.
    pub const READS: Self = Self::of(&[CallKind::ReadDirect]);
    /// The two syncs.
    pub const SYNCS: Self = Self::of(&[CallKind::SyncData, CallKind::SyncAll]);
    /// Everything that may need space.
    pub const SPACE: Self = Self::of(&[
        CallKind::WriteDirect,
        CallKind::WriteBuffered,
        CallKind::Reserve,
    ]);

    /// The kinds in a list.
    pub const fn of(kinds: &[CallKind]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < kinds.len() {
            bits |= 1 << kinds[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// Whether a kind is in the set.
    pub const fn contains(self, kind: CallKind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }
}
