//! The form that messages have between hosts.
//!
//! A connection begins with [`MARK`] from both sides, which names the version. Then come frames: the length of what follows, four bytes, the least
//! first, and a message as `postcard` writes it. Decision 0036 says why.
//!
//! Nothing from a wire is believed: a frame is at most [`FRAME_MAX`] long and holds one message and nothing else, runs of blocks are not empty and end
//! where files do, a wish holds its need, and blocks are at most [`BLOCK_MAX`] long.

#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

use crate::ids::SIZE_BLOCK;
use crate::message::{Block, Message, Place};

/// What a connection begins with; the last two bytes are the version, and go up whenever [`Message`] changes.
pub const MARK: [u8; 8] = *b"fbpool\x00\x02";

/// No frame is longer.
pub const FRAME_MAX: usize = 64 << 20;

/// No block is longer; blocks of names grow with the names.
pub const BLOCK_MAX: usize = 4 << 20;

/// Why something is no message.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The other side speaks another language.
    #[error("not a pool of this version: its mark is {0:02x?}")]
    Mark([u8; 8]),
    /// A frame is too long.
    #[error("a frame of {0} bytes")]
    Long(usize),
    /// A frame holds no message.
    #[error("not a message: {0}")]
    Form(#[from] postcard::Error),
    /// A message is followed by something.
    #[error("{0} bytes behind a message")]
    Rest(usize),
    /// A message says what cannot be.
    #[error("a message that cannot be: {0}")]
    Sense(&'static str),
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// A message as bytes, without its length.
pub fn encode(message: &Message) -> Result<Vec<u8>, Fault> {
    let bytes = postcard::to_stdvec(message)?;
    if bytes.len() > FRAME_MAX {
        return Err(Fault::Long(bytes.len()));
    }
    Ok(bytes)
}

/// A message from bytes.
pub fn decode(bytes: &[u8]) -> Result<Message, Fault> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if !rest.is_empty() {
        return Err(Fault::Rest(rest.len()));
    }
    check(&message)?;
    Ok(message)
}

/// Sends the mark.
pub fn send_mark(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&MARK)
}

/// Waits for the mark.
pub fn expect_mark(from: &mut impl Read) -> io::Result<()> {
    let mut mark = [0; 8];
    from.read_exact(&mut mark)?;
    if mark == MARK {
        return Ok(());
    }
    Err(Fault::Mark(mark).into())
}

/// Sends a frame.
pub fn send(to: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| Fault::Long(body.len()))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(body)
}

/// Waits for a frame; `None` if the other side has ended before one.
pub fn receive(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    from.by_ref().take(4).read_to_end(&mut head)?;
    let length = match <[u8; 4]>::try_from(head.as_slice()) {
        Ok(length) => u32::from_le_bytes(length) as usize,
        Err(_) if head.is_empty() => return Ok(None),
        Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    if length > FRAME_MAX {
        return Err(Fault::Long(length).into());
    }
    // Memory is taken as bytes come, and not for what the length promises.
    let mut body = Vec::new();
    from.by_ref().take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(body))
}

fn check(message: &Message) -> Result<(), Fault> {
    let sense = |makes: bool, what| {
        if makes {
            Ok(())
        } else {
            Err(Fault::Sense(what))
        }
    };
    let place = |(_, block): &Place| sense(*block <= SIZE_BLOCK, "a block beyond all files");
    let block = |block: &Block| {
        place(&block.place)?;
        sense(block.bytes.len() <= BLOCK_MAX, "a block that is too long")
    };
    match message {
        Message::Ask { need, wish, .. } => sense(wish.contains(*need), "a wish without its need"),
        Message::Read { place: at, .. } => place(at),
        Message::Discard { from, .. } => sense(*from <= SIZE_BLOCK, "a block beyond all files"),
        Message::Bytes { block: found, .. } => found.iter().try_for_each(block),
        Message::Write { blocks, .. } | Message::Give { blocks, .. } => {
            blocks.iter().try_for_each(block)
        }
        Message::Offer { blocks, .. } => blocks.iter().try_for_each(|(at, _)| place(at)),
        Message::Want { places, .. } => places.iter().try_for_each(place),
        _ => Ok(()),
    }
}

/// Bytes in one piece; without this each byte would be a number of its own.
pub(crate) mod bytes {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }

        from.deserialize_bytes(Bytes)
    }
}
