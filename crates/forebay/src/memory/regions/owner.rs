//! The owner of a frame or a small frame, in one word.

use crate::ids::{HeaderId, ThreadId};

/// What an owner word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No memory behind it.
    Unbacked,
    /// Anybody may take it.
    Free,
    /// In a thread's hands.
    Held(ThreadId),
    /// Holds bytes of a header's block.
    Linked(HeaderId),
    /// A frame whose 64 parts have owners of their own.
    Carved,
    /// No memory behind it that anybody may count on: a thread is giving it some, to it and the rest of its huge page, or takes it back.
    Giving(ThreadId),
    /// Of no header any more: views hold the bytes that it had (`memory::pins`).
    Viewed,
}

const KIND_BITS: u32 = 3;
const KIND_MASK: u32 = (1 << KIND_BITS) - 1;

impl Owner {
    /// As it is stored. Zeroed memory is unbacked.
    pub const fn pack(self) -> u32 {
        match self {
            Owner::Unbacked => 0,
            Owner::Free => 1,
            Owner::Held(thread) => 2 | (thread.0 << KIND_BITS),
            Owner::Linked(header) => 3 | (header.0 << KIND_BITS),
            Owner::Carved => 4,
            Owner::Giving(thread) => 5 | (thread.0 << KIND_BITS),
            Owner::Viewed => 6,
        }
    }

    /// From what is stored; an unknown word reads as unbacked, which no one may take.
    pub const fn unpack(word: u32) -> Self {
        let id = word >> KIND_BITS;
        match word & KIND_MASK {
            1 => Owner::Free,
            2 => Owner::Held(ThreadId(id)),
            3 => Owner::Linked(HeaderId(id)),
            4 => Owner::Carved,
            5 => Owner::Giving(ThreadId(id)),
            6 => Owner::Viewed,
            _ => Owner::Unbacked,
        }
    }
}
