//! Typed indices into the arena. Shared memory holds no pointers, only these (arena rule 1).
//!
//! An index read from the arena is not trusted: it is bound-checked where it is turned into a
//! reference (`Arena::header` and its siblings), so that a client's bug cannot become the keeper's
//! crash (4.4.7).

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(transparent)]
        pub struct $name(pub u32);
        impl $name {
            /// The index as it is used to address an array.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(
    /// A frame: 256 KiB of the arena.
    FrameId
);
index!(
    /// A small frame: 4 KiB, one of the 64 parts of a carved frame (`frame * 64 + part`).
    SmallId
);
index!(
    /// A scrap page's header: describes one block of one file.
    HeaderId
);
index!(
    /// A node of a file's slot tree.
    NodeId
);
index!(
    /// A stream: a run of consecutive blocks of one file.
    StreamId
);
index!(
    /// An entry of the file table: one inode.
    FileId
);
index!(
    /// A block of a file: `offset / 256 KiB`.
    BlockIndex
);
index!(
    /// A thread's slot in the client table. Zero is nobody, so that zeroed memory is unowned.
    ThreadId
);

impl ThreadId {
    /// No thread: an unlocked lock, an unowned frame.
    pub const NOBODY: ThreadId = ThreadId(0);
}

impl BlockIndex {
    /// The block that holds the byte at `offset`.
    #[inline]
    pub fn of(offset: u64) -> Self {
        BlockIndex((offset / crate::limits::BLOCK_BYTES as u64) as u32)
    }

    /// Offset in the file of the block's first byte.
    #[inline]
    pub fn start(self) -> u64 {
        u64::from(self.0) * crate::limits::BLOCK_BYTES as u64
    }
}
