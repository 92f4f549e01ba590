//! The form that messages have between hosts.
//!
//! A connection begins with [`MARK`] from both sides, which names the version. Then come frames: the length of what follows, four bytes, the least
//! first, and that. Decision 0036 says why.
//!
//! ```text
//! flags    a byte of the connection's own
//! length   of the head, four bytes, the least first
//! head     the message, and the lengths of its bytes, as `postcard` writes them
//! bytes    of the message's blocks, one behind the other
//! ```
//!
//! So the bytes of blocks go from where they lie into the socket, and from there to where they stay: nothing here copies them.
//!
//! Nothing from a wire is believed: a frame is at most [`FRAME_MAX`] long and holds one message and nothing else, runs of blocks are not empty and end
//! where files do, a wish holds its need, and blocks are at most [`BLOCK_MAX`] long, which is also the most memory that is taken for what has
//! not come yet.

#[cfg(test)]
mod tests;

use std::io::{self, IoSlice, Read, Write};

use bytes::{Buf, Bytes};

use crate::ids::SIZE_BLOCK;
use crate::message::{Block, Message, Place};
use crate::rope::Rope;

/// What a connection begins with; the last two bytes are the version, and go up whenever [`Message`] changes.
pub const MARK: [u8; 8] = *b"fbpool\x00\x0a";

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

/// Bytes of a frame before its head: its length, the flags, the head's length.
const BEFORE_HEAD: usize = 4 + 1 + 4;

/// A message on its way out, or what is left of it.
#[derive(Debug)]
pub struct Parcel(std::collections::VecDeque<Bytes>);

/// Pieces that one call hands to the kernel.
const PIECES: usize = 64;

impl Parcel {
    /// A message as a whole frame.
    pub fn of(message: &Message, flags: u8) -> Result<Parcel, Fault> {
        let pieces = bytes_of(message);
        let lengths: Vec<u32> = match message {
            Message::Bytes { bytes, .. } => vec![bytes.len() as u32],
            _ => pieces.iter().map(|piece| piece.len() as u32).collect(),
        };
        let head = postcard::to_stdvec(&(message, &lengths))?;
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let length = BEFORE_HEAD - 4 + head.len() + all;
        if length > FRAME_MAX {
            return Err(Fault::Long(length));
        }
        let mut first = Vec::with_capacity(BEFORE_HEAD + head.len());
        first.extend((length as u32).to_le_bytes());
        first.push(flags);
        first.extend((head.len() as u32).to_le_bytes());
        first.extend(head);
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        Ok(Parcel(
            [first.into()].into_iter().chain(pieces.cloned()).collect(),
        ))
    }

    /// How many bytes are left.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether all of it has gone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What goes next, in order.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let next = self.0.iter().take(PIECES);
        next.map(|piece| IoSlice::new(piece)).collect()
    }

    /// So many bytes have gone.
    pub fn advance(&mut self, gone: usize) {
        let mut gone = gone;
        while let Some(piece) = self.0.front_mut().filter(|_| gone > 0) {
            let part = gone.min(piece.len());
            piece.advance(part);
            gone -= part;
            if piece.is_empty() {
                self.0.pop_front();
            }
        }
    }
}

/// The bytes of a message's blocks.
fn bytes_of(message: &Message) -> Vec<&Bytes> {
    match message {
        Message::Bytes { bytes, .. } => bytes.pieces().iter().collect(),
        Message::Write { blocks, .. } | Message::Give { blocks, .. } => {
            blocks.iter().map(|block| &block.bytes).collect()
        }
        Message::Patch { parts, .. } => parts.iter().map(|(block, _)| &block.bytes).collect(),
        _ => Vec::new(),
    }
}

/// Gives a message the bytes of its blocks: as many pieces as it has places for them.
fn give(message: &mut Message, pieces: Vec<Bytes>) -> Result<(), Fault> {
    let wrong = Err(Fault::Sense("other bytes than blocks"));
    let mut pieces = pieces.into_iter();
    let mut fill = |block: &mut Block| pieces.next().map(|bytes| block.bytes = bytes).is_some();
    let all = match message {
        Message::Bytes { bytes, .. } => {
            let Some(only) = pieces.next() else {
                return wrong;
            };
            *bytes = Rope::from(only);
            true
        }
        Message::Write { blocks, .. } | Message::Give { blocks, .. } => {
            blocks.iter_mut().all(&mut fill)
        }
        Message::Patch { parts, .. } => parts.iter_mut().all(|(block, _)| fill(block)),
        _ => true,
    };
    if !all || pieces.next().is_some() {
        return wrong;
    }
    Ok(())
}

/// A message without its bytes, and how long these are: `behind` in all, as the frame says.
fn open(head: &[u8], behind: usize) -> Result<(Message, Vec<u32>), Fault> {
    let ((message, lengths), rest): ((Message, Vec<u32>), _) = postcard::take_from_bytes(head)?;
    if !rest.is_empty() {
        return Err(Fault::Rest(rest.len()));
    }
    if { lengths.iter() }.any(|length| *length as usize > BLOCK_MAX) {
        return Err(Fault::Sense("a block that is too long"));
    }
    let all: usize = lengths.iter().map(|length| *length as usize).sum();
    if all > behind {
        return Err(Fault::Sense("fewer bytes than it says"));
    }
    if all < behind {
        return Err(Fault::Rest(behind - all));
    }
    Ok((message, lengths))
}

/// A message as bytes: a frame without its length and flags.
pub fn encode(message: &Message) -> Result<Vec<u8>, Fault> {
    let parcel = Parcel::of(message, 0)?;
    let all: Vec<u8> = parcel.0.iter().flatten().copied().collect();
    Ok(all[5..].to_vec())
}

/// A message from bytes, as [`encode`] makes them.
pub fn decode(bytes: &[u8]) -> Result<Message, Fault> {
    let short = Fault::Form(postcard::Error::DeserializeUnexpectedEnd);
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Err(short);
    };
    let Some((head, behind)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else {
        return Err(short);
    };
    let (mut message, lengths) = open(head, behind.len())?;
    let mut from = Bytes::copy_from_slice(behind);
    let pieces = { lengths.into_iter() }
        .map(|length| from.split_to(length as usize))
        .collect();
    give(&mut message, pieces)?;
    check(&message)?;
    Ok(message)
}

/// Waits for a message, and says its flags; `None` if the other side has ended before one. `head` is memory that it uses.
pub fn hear(from: &mut impl Read, head: &mut Vec<u8>) -> io::Result<Option<(u8, Message)>> {
    let Some(length) = length(from)? else {
        return Ok(None);
    };
    let mut before = [0; BEFORE_HEAD - 4];
    from.read_exact(&mut before)?;
    let [flags, at @ ..] = before;
    let at = u32::from_le_bytes(at) as usize;
    let short = Fault::Form(postcard::Error::DeserializeUnexpectedEnd);
    let Some(behind) = length.checked_sub(before.len() + at) else {
        return Err(short.into());
    };
    // Memory is taken as bytes come, and not for what the length promises.
    head.clear();
    from.take(at as u64).read_to_end(head)?;
    if head.len() < at {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (mut message, lengths) = open(head, behind)?;
    let mut pieces = Vec::new();
    for length in lengths {
        let mut piece = vec![0; length as usize];
        from.read_exact(&mut piece)?;
        pieces.push(piece.into());
    }
    give(&mut message, pieces)?;
    check(&message)?;
    Ok(Some((flags, message)))
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
    let Some(length) = length(from)? else {
        return Ok(None);
    };
    // Memory is taken as bytes come, and not for what the length promises.
    let mut body = Vec::new();
    from.by_ref().take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(body))
}

fn length(from: &mut impl Read) -> io::Result<Option<usize>> {
    let mut head = Vec::with_capacity(4);
    from.by_ref().take(4).read_to_end(&mut head)?;
    let length = match <[u8; 4]>::try_from(head.as_slice()) {
        Ok(length) => u32::from_le_bytes(length) as usize,
        Err(_) if head.is_empty() => return Ok(None),
        Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    if length > FRAME_MAX {
        return Err(Fault::Long(length).into());
    }
    Ok(Some(length))
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
        Message::Read { parts, .. } => parts.iter().try_for_each(|part| place(&part.place)),
        Message::Discard { from, .. } => sense(*from <= SIZE_BLOCK, "a block beyond all files"),
        Message::Bytes { found, bytes, .. } => {
            let lengths = found.iter().flatten().map(|length| u64::from(*length));
            sense(
                lengths.sum::<u64>() == bytes.len() as u64,
                "other bytes than it found",
            )
        }
        Message::Patch { parts, .. } => parts.iter().try_for_each(|(what, at)| {
            block(what)?;
            sense(
                what.bytes.len() + *at as usize <= BLOCK_MAX,
                "bytes beyond a block",
            )
        }),
        Message::Write { blocks, .. } | Message::Give { blocks, .. } => {
            blocks.iter().try_for_each(block)
        }
        Message::Offer { blocks, .. } => blocks.iter().try_for_each(|(at, _)| place(at)),
        Message::Want { places, .. } | Message::Damaged { places, .. } => {
            places.iter().try_for_each(place)
        }
        _ => Ok(()),
    }
}
