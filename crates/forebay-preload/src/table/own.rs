//! Descriptions that a process has for itself: of files that were open before the library came.
//!
//! Others share their offsets, by processes that nobody knows of, so they are never managed ([`FOREIGN`]) and nobody has to agree with relatives about
//! whose the offset is. What descriptions otherwise take, memory that relatives share and a slot there, most short programs need for nothing else. They
//! have the numbers beyond those of the others. A forked child has copies, with the counts that were its parent's, since its descriptors are; where another
//! thread closed one meanwhile a count stays too high, which does no harm: none is used again.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::{DESCRIPTIONS_MAX, Description, FOREIGN};
use crate::files::{INHERITED, Look};

/// As many as descriptors that are looked at.
const OWN: usize = INHERITED.end as usize;

static TABLE: [Description; OWN] = [const { Description::free() }; OWN];
/// Descriptors of each.
static COUNTS: [AtomicU32; OWN] = [const { AtomicU32::new(0) }; OWN];

/// Which of them has a number. `None`: it is none of theirs.
#[inline(always)]
fn number(index: u32) -> Option<usize> {
    let number = (index as usize).checked_sub(DESCRIPTIONS_MAX)?;
    Some(number % OWN)
}

/// The one with this number. `None`: it is none of theirs.
#[inline(always)]
pub fn description(index: u32) -> Option<&'static Description> {
    number(index).map(|number| &TABLE[number])
}

fn count(index: u32) -> Option<&'static AtomicU32> {
    number(index).map(|number| &COUNTS[number])
}

/// Takes one for an inherited descriptor; `flags` has [`FOREIGN`]. `None`: all have been used.
pub fn new_own_description(flags: u32, look: &Look) -> Option<u32> {
    debug_assert!(flags & FOREIGN != 0);
    let take = |count: &AtomicU32| count.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
    let number = COUNTS.iter().position(take)?;
    TABLE[number].begin_life(flags, look);
    Some((DESCRIPTIONS_MAX + number) as u32)
}

/// As [`super::holders::hold`]. `None`: it is none of these.
pub fn hold(index: u32) -> Option<bool> {
    let more = |count: u32| (count != 0).then_some(count + 1);
    Some(count(index)?.fetch_update(SeqCst, SeqCst, more).is_ok())
}

/// As [`super::holders::let_go`]. `None`: it is none of these.
pub fn let_go(index: u32) -> Option<bool> {
    let fewer = |count: u32| count.checked_sub(1);
    Some(count(index)?.fetch_update(SeqCst, SeqCst, fewer) == Ok(1))
}

/// Run by a forked child: threads of its parent's that were in calls are in none here.
pub fn in_child() {
    TABLE.iter().for_each(Description::unlock_in_child);
}
