//! What a program says about its reads (`posix_fadvise`).

use std::sync::atomic::AtomicU32;

use super::follow::ask;
use crate::evict;
use crate::file::core::Core;
use crate::file::quick::Recent;
use crate::limits::BLOCK_BYTES;
use crate::memory::asks::ASKS;
use crate::memory::threads::Me;
use crate::stream::pattern::{Advice, Run};
use crate::sync::Ordering;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advise {
    /// Nothing in particular, from now on.
    Normal,
    /// Reads will come one after the other: what comes next is read ahead from the first one on.
    Sequential,
    /// Reads will come anywhere: nothing is read ahead.
    Random,
    /// The range will be read: it is read ahead, as much of it as is asked for at once.
    WillNeed,
    /// What is read will not be read again soon: it counts as used once, however often it is, until something else is said.
    NoReuse,
    /// The range will not be read: blocks that lie in it, and owe nothing, leave memory.
    DontNeed,
}

/// Blocks that are asked for at once: half of what there is room for.
const BLOCKS_MAX: u64 = ASKS as u64 / 2;

/// Heeds what is said of `len` bytes at `offset`; a length of 0 is to the end.
pub fn advise(
    core: &Core,
    me: Me<'_>,
    recent: &Recent,
    handed: &AtomicU32,
    (offset, len): (u64, u64),
    advice: Advise,
) {
    let block = BLOCK_BYTES as u64;
    let end = if len == 0 {
        u64::MAX
    } else {
        offset.saturating_add(len)
    };
    if advice == Advise::Normal {
        recent.pass_by(false);
    }
    let ahead = &recent.ahead;
    match advice {
        Advise::Normal => ahead.set_advice(Advice::Normal),
        Advise::NoReuse => recent.pass_by(true),
        Advise::Sequential => ahead.set_advice(Advice::Sequential),
        Advise::Random => ahead.set_advice(Advice::Random),
        Advise::WillNeed if core.shared.config.read_ahead > 0 => {
            let end = end.min(core.entry().size.load(Ordering::Acquire));
            let first = offset / block;
            let count = end.div_ceil(block).saturating_sub(first).min(BLOCKS_MAX);
            let run = Run::Blocks {
                first: first as u32,
                count: count as u32,
                down: false,
            };
            ask(core, me, ahead, handed, &run);
        }
        Advise::WillNeed => {}
        Advise::DontNeed => {
            let size = core.entry().size.load(Ordering::Acquire);
            // The block with the end is whole if the range reaches the end.
            let until = if end >= size { u64::MAX } else { end / block };
            let blocks = offset.div_ceil(block)..until;
            core.entry().asks.withdraw(blocks.start, blocks.end);
            evict::evict_blocks(me, core.id, blocks);
        }
    }
}
