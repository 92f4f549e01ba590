//! Taking a slot: a free one, or that of a thread that has ended without a word.

use std::ops::Range;

use super::claimed::Comer;
use super::{TAKEN, died_working};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::sync::Ordering;
use crate::sys::liveness::{self, Claim, Holder};

/// The slots by what becomes of them: the first are for all that come, the next are for turns, and the last are left to those that give
/// theirs back when they leave, keepers among them. See [`take_for_good`].
fn parts(arena: &Arena) -> [Range<u32>; 3] {
    let all = arena.counts().threads;
    let (turns, left) = (all - all / 4, all - all / 32);
    [1..turns, turns..left, left..all]
}

/// Takes a slot for the calling thread, which will give it back. `None` when all are taken.
///
/// With `real`, the slot's mutex is locked by the calling operating-system thread; without, the slot
/// lives until [`slay`](super::slay) or [`release`](super::release) (simulation).
pub fn take(arena: &Arena, real: bool) -> Option<ThreadId> {
    let comer = Comer {
        holder: holder(real),
        namespace: if real { liveness::namespace() } else { 0 },
    };
    let [first, turns, last] = parts(arena);
    let all = [first, last, turns];
    let free = all.iter().find_map(|part| take_free(arena, part, comer));
    let inherit = || all.iter().find_map(|part| inherit(arena, part, comer));
    free.or_else(|| real.then(inherit).flatten())
}

/// Takes a slot for a thread that will end without a word, so that as many of them may come as like: most keep theirs, and when
/// these are taken, the others take turns. Whether the slot is such a one, which is to be given back as soon as the thread is not
/// in the engine any more. `None`: all are in use at this moment. Such a thread gives its slot back before it executes a program.
pub fn take_for_good(arena: &Arena, real: bool) -> Option<(ThreadId, bool)> {
    let comer = Comer {
        holder: holder(real),
        namespace: 0,
    };
    let [kept, turns, _] = parts(arena);
    let mut ways = [(kept, false), (turns, true)].into_iter();
    ways.find_map(|(part, for_a_turn)| {
        let inherit = || inherit(arena, &part, comer);
        let id = take_free(arena, &part, comer).or_else(|| real.then(inherit).flatten())?;
        Some((id, for_a_turn))
    })
}

fn holder(real: bool) -> Holder {
    if real {
        Holder::Thread
    } else {
        Holder::Simulated
    }
}

/// Takes a slot that nobody has, or that a thread had that died at taking it or giving it back.
fn take_free(arena: &Arena, part: &Range<u32>, comer: Comer) -> Option<ThreadId> {
    for index in part.clone() {
        let slot = arena.thread(ThreadId(index))?;
        let state = slot.state.load(Ordering::Relaxed);
        if state & TAKEN != 0 || !liveness::is_open(&slot.mutex) {
            continue;
        }
        match slot.claim(state, comer.holder) {
            Ok(claimed) => {
                claimed.begin(comer);
                return Some(ThreadId(index));
            }
            Err(Claim::Refused) => return None,
            Err(_) => {}
        }
    }
    None
}

/// Takes over the slot of a thread that has died between operations and had nothing: threads of programs that the library
/// was loaded into end without giving their slots back. What it had counted stays counted.
fn inherit(arena: &Arena, part: &Range<u32>, comer: Comer) -> Option<ThreadId> {
    for index in part.clone() {
        let id = ThreadId(index);
        let slot = arena.thread(id)?;
        let Some(state) = slot.ended_life() else {
            continue;
        };
        if died_working(arena, id) {
            continue;
        }
        match slot.claim(state, comer.holder) {
            Ok(claimed) => {
                arena.superblock().resign(id);
                claimed.begin(comer);
                return Some(id);
            }
            Err(Claim::Refused) => return None,
            Err(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Me, release};
    use super::*;
    use crate::config::Config;
    use crate::session::Session;

    /// As many threads as like may come: most keep their slots, the others take turns; and those that give theirs back always get one.
    #[test]
    fn most_keep_their_slots_and_the_others_take_turns() {
        let session = Session::open(Config::tiny()).expect("a session");
        let arena = &*session.shared().arena;
        let [first, turns, last] = parts(arena);
        assert!(!first.is_empty() && !turns.is_empty() && !last.is_empty());
        let mut kept = 0;
        let turn = loop {
            match take_for_good(arena, false) {
                Some((_, false)) => kept += 1,
                other => break other.expect("a turn").0,
            }
        };
        // This session's own threads have some.
        assert!(kept > first.len() / 2 && kept <= first.len());
        let more = turns.clone().skip(1);
        assert!(
            more.into_iter()
                .all(|_| take_for_good(arena, false).is_some())
        );
        assert_eq!(take_for_good(arena, false), None);
        release(Me { arena, id: turn });
        assert_eq!(take_for_good(arena, false), Some((turn, true)));
        assert_eq!(take(arena, true), Some(ThreadId(last.start)));
    }
}
