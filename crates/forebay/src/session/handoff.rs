//! Handing a file's descriptors to the keeper before its first byte is acknowledged.
//!
//! A client whose keeper is another process connects to the session's socket and sends, for each file that it
//! manages, the two descriptors its device file has, and the number of descriptions it has open; the keeper answers
//! with one byte. A keeper that is stopped answers nobody, and nobody waits for it (`line`). When the connection ends the
//! client is gone, and the counts of what it had open are corrected by what the kernel knows of its openers (`session::opens`). The socket's
//! other end is checked by uid. A keeper in the client's own process needs no socket.

mod desk;
mod lanes;
mod line;

use std::path::{Path, PathBuf};

use crate::ids::FileId;
pub use desk::Desk;
#[cfg(feature = "sim")]
pub use desk::heed;
pub use lanes::KeptLanes;
pub use line::{Handed, Line, is_silent};

/// Message: file, what, the session's random name.
const MESSAGE_BYTES: usize = 16;
const MANAGE: u32 = 1;
const RELEASE: u32 = 2;
/// The same for descriptions that only read, without descriptors.
const MANAGE_READER: u32 = 3;
const RELEASE_READER: u32 = 4;
/// Whatever the file owes shall be written.
const FLUSH: u32 = 5;
/// The keeper shall have one description of the file instead of two.
const UNITE: u32 = 6;
/// As [`RELEASE`], of a file with a lease on it, and without an answer.
const LEFT: u32 = 7;
/// After [`MANAGE_READER`], with descriptors that can only be read by.
const LEND: u32 = 8;
/// The keeper shall see who opens the file that comes with it.
const WATCH: u32 = 9;
/// Does a program outside the session use it?
const LOOK: u32 = 10;
/// As [`RELEASE`], of a description that this keeper has not been handed.
const UNUSED: u32 = 11;
/// The keeper shall have the receiving end of a lane.
const LANE: u32 = 12;
/// The keeper shall take what is in lanes.
const TAKE: u32 = 13;
/// As [`FLUSH`], and the device shall have made it durable.
const SYNC: u32 = 14;
/// Beside a message that changes what the keeper counts: nobody waits for an answer, and there is none.
const QUIETLY: u32 = 1 << 31;
const DONE: u8 = b'+';
const REFUSED: u8 = b'-';

fn encode(file: FileId, what: u32, session: u64) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&file.0.to_le_bytes());
    message[4..8].copy_from_slice(&what.to_le_bytes());
    message[8..].copy_from_slice(&session.to_le_bytes());
    message
}

fn decode(message: &[u8; MESSAGE_BYTES]) -> (FileId, u32, u64) {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| message[at + i]));
    let session = u64::from(word(8)) | (u64::from(word(12)) << 32);
    (FileId(word(0)), word(4), session)
}

/// The socket of the session whose arena is at `arena`.
pub fn socket_path(arena: &Path) -> PathBuf {
    arena.with_extension("sock")
}
