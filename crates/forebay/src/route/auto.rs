//! `auto`: the way with the least predicted time. WSBuffer's threshold (3.3) is where its authors'
//! devices began to beat its scrap buffer; this computes that point for the machine at hand.
//!
//! Only the middle (M bytes of whole blocks) is in question: ragged ends go to memory either way.
//! A request without a whole block goes to memory. All times in nanoseconds:
//!
//! ```text
//! copy    C = blocks * per_block + M / copy bandwidth          first = C / blocks
//! device  D = latency + (Q + M) / device bandwidth             Q = 4 MiB if busy, else 0
//! bounce  B = M / bounce bandwidth if user memory is unaligned, else 0
//! wait    w = 0 below 7/8 of the dirty limit, rising to 1 at it; times the share of M that is not
//!             dirty in memory already;  1 for writes that are or will be synced
//! provide P = what giving memory takes to as much of the request as finds no frame ready; 0 where there are enough
//!
//! scrap   = first + max(C - first, w * D) + P  the device drains while the writer copies
//! direct  = D + B                              (+ latency, if synchronous with ragged ends)
//! ```
//!
//! Direct is taken if `direct + C/8 < scrap`; in a hurry (from 7/8 of the dirty limit on, or
//! where this request would pass them, for synchronous writes, and for sparse holes) if `direct <= scrap + C/8`: equal predictions leave
//! memory and the keeper's core free where these are short, and the device idle where they are not. From 1 MiB of blocks on
//! (the paper's threshold) it is taken if `direct <= scrap + C`: bytes in memory must still go to the device, at the cost of a
//! core and of memory, so the copy has to give the caller back at least half of its time to be worth that; and in a hurry if
//! `direct <= scrap + 4 C`, since the device is then what everybody waits for. Margins are shares of C, not of the difference,
//! so that a faster device never turns direct into scrap.
//!
//! What goes to memory is written eagerly in a hurry only. Else it is left to the keeper's own times, the limits, a sync and the
//! close, as the kernel leaves it: what is in flight holds up a thread that reserves space or closes the file, and what is
//! removed soon need not be written at all (decision 0021).
//!
//! On a mounted store a flush and its sync are two requests to another process, and a direct write and its sync five. There a synchronous request of up to
//! 2 MiB goes to memory, whatever the times say: they tell nothing of the sync (decision 0094).
//!
//! A bounce copy costs less than one into frames that stay: it goes to memory that is in the processor's cache, and needs no
//! header. That is why it has a bandwidth of its own.
//!
//! Each way teaches its own speed only, so a rule that has been put off one would never learn better. One large request in
//! sixteen, the first to begin with, goes to memory all the same where that is ready and nobody is in a hurry, and one to the device
//! where that is out by less than twice.
//!
//! Frames that nobody has given memory yet are no quicker than the device: what gives it (touching, collapsing) clears each page
//! before the copy, and waits for other processors. So a session that has just begun, or had given its memory back, sends large
//! requests to the device once what was ready is used up, and does not have the caller wait.
//!
//! Copies are measured by the clients, device writes by the thread that completes them, both into
//! [`super::Speeds`]; what memory costs `member::provision`; pressure, busyness and cached bytes come from the session's counters, size and
//! space from the file table. Left out: allocating space (`extends`, `hole`), which either way pays
//! once; the flush's share of a core; later reads of the bytes; other writers to come; and the
//! kernel route, of whose speed nothing is known here.

use super::{Plan, Pressure, Route, Situation, Way, WriteRequest, aligned_middle};
use crate::limits::{BLOCK_BYTES, BUSY_BYTES, DIRECT_BYTES_MIN};

/// Below this many 1024ths of the dirty limit writers do not reckon with waiting for memory. By default the keeper begins to write
/// back at half of the limit, and up to here it always has something to write (decision 0086).
const WAIT_FROM: u16 = Pressure::WHOLE / 8 * 7;
/// The margin of a decision is the copy's time over this: smaller than what predictions miss by.
const MARGIN_DIVISOR: u64 = 8;

/// By how many times its copy a large request may take longer past memory: while there is room, and in a hurry.
const COPIES: (u64, u64) = (1, 4);

/// The longest synchronous request that goes to memory where a flush syncs as well: the copy of one of so many bytes takes no longer than the requests that it
/// spares. None of it is written eagerly: a block would be a request.
const FLUSHED_BYTES_MAX: u64 = 2 << 20;

/// One large request in so many tries the other way.
const TRIED_ONE_IN: u64 = 16;

/// The rule; it has no settings.
#[derive(Clone, Copy, Debug)]
pub struct Auto;

impl Route for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn plan(&self, request: &WriteRequest, situation: &Situation) -> Plan {
        let Some((start, end)) = aligned_middle(request) else {
            return Plan::whole(request, Way::SCRAP);
        };
        if situation.sync && situation.flush_syncs && request.len <= FLUSHED_BYTES_MAX {
            return Plan::whole(request, Way::SCRAP);
        }
        let times = predict(request, situation, end - start);
        let hurry = is_in_a_hurry(situation);
        let direct = if end - start < DIRECT_BYTES_MIN as u64 {
            times.direct_wins(hurry)
        } else {
            let copies = if hurry { COPIES.1 } else { COPIES.0 };
            let worth_flushing = is_worth_flushing(request, situation);
            if times.direct_wins_large(copies) {
                hurry || situation.provide_ns > 0 || !worth_flushing || !is_turn(situation, 0)
            } else {
                worth_flushing
                    && is_turn(situation, TRIED_ONE_IN / 2)
                    && times.direct_is_near(copies)
            }
        };
        if direct {
            return Plan::split(request).expect("a request with a middle splits");
        }
        let eager = hurry && is_worth_flushing(request, situation);
        Plan::whole(request, Way::Scrap { eager })
    }

    fn quick_scrap_below(&self) -> u64 {
        BLOCK_BYTES as u64
    }
}

/// The predicted times of a middle, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    scrap: u64,
    direct: u64,
    margin: u64,
    copy: u64,
}

impl Times {
    fn direct_wins(&self, preferred: bool) -> bool {
        if preferred {
            self.direct <= self.scrap.saturating_add(self.margin)
        } else {
            self.direct.saturating_add(self.margin) < self.scrap
        }
    }

    /// Whether memory would give the caller back less than so many copies take.
    fn direct_wins_large(&self, copies: u64) -> bool {
        self.direct <= self.scrap.saturating_add(self.copy.saturating_mul(copies))
    }

    fn direct_is_near(&self, copies: u64) -> bool {
        self.direct / 2 <= self.scrap.saturating_add(self.copy.saturating_mul(copies))
    }
}

/// Whether this is the one large request of so many that goes the other way.
fn is_turn(situation: &Situation, which: u64) -> bool {
    situation.turn % TRIED_ONE_IN == which
}

fn predict(request: &WriteRequest, situation: &Situation, middle: u64) -> Times {
    let copy = copy_ns(situation, middle);
    let device = device_ns(situation, middle);
    Times {
        scrap: scrap_ns(
            copy,
            blocks_in(middle),
            share(device, wait_parts(situation, middle)),
        )
        .saturating_add(situation.provide_ns),
        direct: device
            .saturating_add(bounce_ns(request, situation, middle))
            .saturating_add(ragged_sync_ns(request, situation, middle)),
        margin: copy / MARGIN_DIVISOR,
        copy,
    }
}

/// Whether memory gains little: where it is short, so that the keeper is writing back, where the device must be waited for
/// anyway, and where the device's own answer on a full disk saves a call to reserve space.
fn is_in_a_hurry(situation: &Situation) -> bool {
    let sparse = situation.hole && !situation.extends;
    let pressure = situation.memory_pressure.max(situation.pressure_after);
    pressure.parts() >= WAIT_FROM || situation.sync || sparse
}

/// Bytes that are mostly dirty already are being written again and again: flushing them at once
/// would send each version to the device.
fn is_worth_flushing(request: &WriteRequest, situation: &Situation) -> bool {
    situation.sync || situation.cached_bytes < request.len / 2
}

fn copy_ns(situation: &Situation, bytes: u64) -> u64 {
    let lookup = situation.copy.per_block_ns.saturating_mul(blocks_in(bytes));
    lookup.saturating_add(transfer_ns(bytes, situation.copy.bytes_per_second))
}

fn device_ns(situation: &Situation, bytes: u64) -> u64 {
    let queued = if situation.device_busy { BUSY_BYTES } else { 0 };
    let bytes = bytes.saturating_add(queued);
    let transfer = transfer_ns(bytes, situation.device.write_bytes_per_second);
    situation.device.write_latency_ns.saturating_add(transfer)
}

fn bounce_ns(request: &WriteRequest, situation: &Situation, bytes: u64) -> u64 {
    if request.memory_aligned {
        return 0;
    }
    transfer_ns(bytes, situation.copy.bounce_bytes_per_second)
}

/// Ragged ends of a synchronous request need a device write of their own, after the middle's.
fn ragged_sync_ns(request: &WriteRequest, situation: &Situation, middle: u64) -> u64 {
    if situation.sync && middle < request.len {
        situation.device.write_latency_ns
    } else {
        0
    }
}

/// The keeper starts on the first frame once it is copied, and from then on works beside the copy.
fn scrap_ns(copy: u64, blocks: u64, wait: u64) -> u64 {
    let first = copy / blocks;
    first.saturating_add(wait.max(copy - first))
}

/// The part of the device's time that a writer to memory waits for, in 1024ths.
fn wait_parts(situation: &Situation, middle: u64) -> u64 {
    if situation.sync {
        return u64::from(Pressure::WHOLE);
    }
    let above = situation.memory_pressure.parts().saturating_sub(WAIT_FROM);
    let rising = u128::from(above) * u128::from(Pressure::WHOLE / (Pressure::WHOLE - WAIT_FROM));
    let fresh = middle.saturating_sub(situation.cached_bytes);
    (rising * u128::from(fresh) / u128::from(middle)) as u64
}

fn share(ns: u64, parts: u64) -> u64 {
    let shared = u128::from(ns) * u128::from(parts) / u128::from(Pressure::WHOLE);
    u64::try_from(shared).unwrap_or(u64::MAX)
}

fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn blocks_in(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES as u64
}
