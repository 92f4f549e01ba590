//! A queue whose requests end later, in any order, and outlive their process.
//!
//! Writes from the arena take its bytes when they end, as a device that reads memory does: code that gives the memory
//! away too early is found out. What a dead process has submitted is carried out all the same; only nobody hears of it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::station::Station;
use crate::device::{Done, Piece, Queue, Request, RequestKind};
use crate::memory::arena::Arena;
use crate::sim::{crashed, tasks};
use crate::sys::memory::AlignedBytes;

/// How often a waiter looks.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Requests that have ended.
#[derive(Default)]
struct Landed {
    done: Vec<Done>,
    /// Nobody is there any more to hear of it; memory that is not the arena's is gone.
    is_dead: bool,
}

/// See the module's documentation.
pub struct TimedQueue {
    station: Arc<Station>,
    /// Stays mapped as long as anything is under way in it.
    arena: Arc<Arena>,
    landed: Arc<Mutex<Landed>>,
    in_flight: usize,
}

fn lock(landed: &Mutex<Landed>) -> MutexGuard<'_, Landed> {
    landed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TimedQueue {
    /// Of a process that has mapped the arena.
    pub fn new(station: Arc<Station>, arena: Arc<Arena>) -> Self {
        TimedQueue {
            station,
            arena,
            landed: Arc::default(),
            in_flight: 0,
        }
    }

    fn arena_addresses(&self) -> Range<usize> {
        let mapping = self.arena.mapping();
        let start = mapping.base().addr();
        start..start + mapping.len()
    }

    /// A request whose memory does not go away with its process, and the memory that it has of its own.
    fn outliving(&self, request: &Request) -> (Vec<Piece>, Vec<AlignedBytes>) {
        let shared = self.arena_addresses();
        let mut own = Vec::new();
        let pieces = request.pieces.iter().map(|piece| {
            if request.kind != RequestKind::Read && shared.contains(&piece.ptr.addr()) {
                return *piece;
            }
            // SAFETY: the caller promises that the memory is mapped and initialised.
            let bytes = unsafe { piece.copy_out() };
            let copy = AlignedBytes::copy_of(&bytes, 4096);
            let piece = copy.piece();
            own.push(copy);
            piece
        });
        (pieces.collect(), own)
    }
}

/// Carries a request out. A read goes to memory of its own first.
fn perform(request: &Request, pieces: &[Piece]) -> io::Result<usize> {
    match request.kind {
        RequestKind::Read => request.file.read_direct(pieces[0], request.offset),
        RequestKind::Write => request.file.write_direct(pieces, request.offset),
        RequestKind::WriteBuffered => request.file.write_buffered(pieces, request.offset),
    }
}

impl Queue for TimedQueue {
    fn submit(&mut self, request: Request) {
        self.in_flight += 1;
        let (pieces, own) = self.outliving(&request);
        let inode = request.file.caps().inode;
        let stable = request.file.caps().stable_writes && request.kind == RequestKind::Write;
        // SAFETY: as for the request itself.
        let submitted = stable.then(|| unsafe { pieces[0].copy_out() });
        let (station, landed) = (Arc::clone(&self.station), Arc::clone(&self.landed));
        let arena = Arc::clone(&self.arena);
        station.begin_write(inode);
        tasks::later(station.draw_latency(), move || {
            // SAFETY: the arena is mapped as long as this, and what is not in it is `own`.
            if submitted.is_some_and(|submitted| submitted != unsafe { pieces[0].copy_out() }) {
                station.count_unstable();
            }
            let result = perform(&request, &pieces);
            station.end_write(inode);
            let mut landed = lock(&landed);
            if landed.is_dead {
                return;
            }
            if let (RequestKind::Read, Ok(count)) = (request.kind, &result) {
                // SAFETY: the submitter lives and keeps the memory until it has heard of the end.
                unsafe {
                    let bytes = pieces[0].copy_out();
                    request.pieces[0].copy_in(&bytes[..*count]);
                }
            }
            let token = request.token;
            landed.done.push(Done { token, result });
            drop((own, arena));
        });
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Done>) {
        loop {
            let ended = std::mem::take(&mut lock(&self.landed).done);
            self.in_flight -= ended.len();
            let some = !ended.is_empty();
            done.extend(ended);
            if some || !wait || self.in_flight == 0 {
                return;
            }
            tasks::sleep(LOOK_EVERY);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn name(&self) -> &'static str {
        "inline"
    }
}

impl Drop for TimedQueue {
    fn drop(&mut self) {
        let mut rest = Vec::new();
        while !crashed() && self.in_flight > 0 {
            self.poll(true, &mut rest);
        }
        lock(&self.landed).is_dead = true;
    }
}
