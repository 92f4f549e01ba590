//! Handing a file's descriptors to the keeper before its first byte is acknowledged.
//!
//! A client whose keeper is another process connects to the session's socket and sends, for each file that it
//! manages, the two descriptors its device file has, and the number of descriptions it has open; the keeper answers
//! with one byte. A keeper that is stopped answers nobody, and nobody waits for it (`line`). When the connection ends the
//! client is gone, and the counts of what it had open are corrected by what the kernel knows of its openers (`member::opens`). The socket's
//! other end is checked by uid. A keeper in the client's own process needs no socket.

mod lanes;
mod line;
mod taking;

use std::path::{Path, PathBuf};

use crate::ids::FileId;
pub use lanes::KeptLanes;
pub use line::{Handed, Line, is_silent};
pub(crate) use taking::{is_of_entry, take_over};

/// Message: file, what, the session's random name.
pub(crate) const MESSAGE_BYTES: usize = 16;
pub(crate) const MANAGE: u32 = 1;
pub(crate) const RELEASE: u32 = 2;
/// The same for descriptions that only read, without descriptors.
pub(crate) const MANAGE_READER: u32 = 3;
pub(crate) const RELEASE_READER: u32 = 4;
/// Whatever the file owes shall be written.
pub(crate) const FLUSH: u32 = 5;
/// The keeper shall have one description of the file instead of two.
pub(crate) const UNITE: u32 = 6;
/// As [`RELEASE`], of a file with a lease on it, and without an answer.
pub(crate) const LEFT: u32 = 7;
/// After [`MANAGE_READER`], with descriptors that can only be read by.
pub(crate) const LEND: u32 = 8;
/// The keeper shall see who opens the file that comes with it.
pub(crate) const WATCH: u32 = 9;
/// Does a program outside the session use it?
pub(crate) const LOOK: u32 = 10;
/// As [`RELEASE`], of a description that this keeper has not been handed.
pub(crate) const UNUSED: u32 = 11;
/// The keeper shall have the receiving end of a lane.
pub(crate) const LANE: u32 = 12;
/// The keeper shall take what is in lanes.
pub(crate) const TAKE: u32 = 13;
/// As [`FLUSH`], and the device shall have made it durable.
pub(crate) const SYNC: u32 = 14;
/// Beside a message that changes what the keeper counts: nobody waits for an answer, and there is none.
pub(crate) const QUIETLY: u32 = 1 << 31;
pub(crate) const DONE: u8 = b'+';
pub(crate) const REFUSED: u8 = b'-';

pub(crate) fn encode(file: FileId, what: u32, session: u64) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&file.0.to_le_bytes());
    message[4..8].copy_from_slice(&what.to_le_bytes());
    message[8..].copy_from_slice(&session.to_le_bytes());
    message
}

pub(crate) fn decode(message: &[u8; MESSAGE_BYTES]) -> (FileId, u32, u64) {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| message[at + i]));
    let session = u64::from(word(8)) | (u64::from(word(12)) << 32);
    (FileId(word(0)), word(4), session)
}

/// The socket of the session whose arena is at `arena`.
pub fn socket_path(arena: &Path) -> PathBuf {
    arena.with_extension("sock")
}
