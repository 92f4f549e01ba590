//! A simulated file whose calls take steps: others go on between their parts, as on a device.

use std::io;
use std::sync::Arc;

use forebay::device::{Caps, DeviceFile, DeviceStat, Done, Piece, Queue, Request, RequestKind};
use forebay::sim;
use forebay::sim::device::SimFile;

use crate::explore::dice;

/// Bytes that a transfer moves at once.
const STEP_BYTES: usize = 64 * 1024;
/// Turns given away in a quick step, and at most in a slow one.
const TURNS: u64 = 3;
const TURNS_SLOW: u64 = 500;

pub struct Stepped(pub Arc<SimFile>);

/// Most steps are quick; now and then one takes so long that others get far.
fn turn() {
    if !sim::exploring() {
        return;
    }
    let dice = dice();
    let turns = if dice.is_multiple_of(8) {
        dice / 8 % TURNS_SLOW
    } else {
        TURNS
    };
    (0..turns).for_each(|_| sim::point());
}

/// The parts of a transfer.
fn steps(pieces: &[Piece], offset: u64) -> Vec<(Piece, u64)> {
    let mut steps = Vec::new();
    let mut at = offset;
    for piece in pieces {
        let mut done = 0;
        while done < piece.len {
            let len = (piece.len - done).min(STEP_BYTES);
            // SAFETY: `done` is less than the piece's length.
            steps.push((
                Piece {
                    // SAFETY: `done` is less than the piece's length.
                    ptr: unsafe { piece.ptr.add(done) },
                    len,
                },
                at,
            ));
            done += len;
            at += len as u64;
        }
    }
    steps
}

impl Stepped {
    fn write(
        &self,
        pieces: &[Piece],
        offset: u64,
        write: impl Fn(&[Piece], u64) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut written = 0;
        for (piece, at) in steps(pieces, offset) {
            turn();
            written += write(&[piece], at)?;
        }
        turn();
        Ok(written)
    }
}

impl DeviceFile for Stepped {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        let mut read = 0;
        for (part, at) in steps(&[piece], offset) {
            turn();
            let n = self.0.read_direct(part, at)?;
            read += n;
            if n < part.len {
                break;
            }
        }
        turn();
        Ok(read)
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.write(pieces, offset, |pieces, at| self.0.write_direct(pieces, at))
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.write(pieces, offset, |pieces, at| {
            self.0.write_buffered(pieces, at)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        turn();
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        turn();
        self.0.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        turn();
        self.0.set_len(len)?;
        turn();
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        turn();
        self.0.reserve(offset, len)
    }

    fn trim(&self) -> io::Result<()> {
        self.0.trim()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        turn();
        self.0.punch(offset, len)?;
        turn();
        Ok(())
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        self.0.allocated_to(offset, end)
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.0.is_allocated(offset, len)
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        self.0.stat()
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        turn();
        self.0.wait_in_flight()
    }
}

/// A queue that carries requests out when it is polled, the last one first: much happens between a submission
/// and its end.
#[derive(Default)]
pub struct Late(Vec<Request>);

impl Queue for Late {
    fn submit(&mut self, request: Request) {
        self.0.push(request);
    }

    fn poll(&mut self, _wait: bool, done: &mut Vec<Done>) {
        while let Some(Request {
            file,
            kind,
            pieces,
            offset,
            token,
        }) = self.0.pop()
        {
            let result = match kind {
                RequestKind::Read => file.read_direct(pieces[0], offset),
                RequestKind::Write => file.write_direct(&pieces, offset),
                RequestKind::WriteBuffered => file.write_buffered(&pieces, offset),
            };
            done.push(Done { token, result });
        }
    }

    fn in_flight(&self) -> usize {
        self.0.len()
    }

    fn name(&self) -> &'static str {
        "late"
    }
}
