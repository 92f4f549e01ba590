//! Entries that nobody needs any more.

use std::sync::Arc;

use super::{lock, search, unlock};
use crate::evict;
use crate::frame::slots;
use crate::ids::FileId;
use crate::member::closed;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::files::{
    ABSENT, CLOSING, FOREIGN, GONE, LEASED, LIVE, TOLD, UNHEARD, UNSYNCED, VANISHED,
};
use crate::memory::threads::{Me, stop_file};
use crate::stream::tracking;
use crate::sync::Ordering;

/// Drops entries that are idle and owe nothing; `empty`: only those of files of which nothing is in memory. The caller is in no operation.
pub(super) fn reclaim(shared: &Arc<Shared>, me: Me<'_>, empty: bool) {
    for id in (0..me.arena.counts().files).map(FileId) {
        if is_idle(shared, id) && (!empty || is_empty(me, id)) {
            drop_idle(shared, me, id);
        }
    }
}

/// Whether nothing of a file is in memory.
fn is_empty(me: Me<'_>, id: FileId) -> bool {
    // In an operation, so that no rebuild is under way: it makes trees anew.
    let entry = me.arena.file_unchecked(id);
    me.enter(id)
        .is_ok_and(|_operation| slots::next_linked(me.arena, entry, 0).is_none())
}

fn is_idle(shared: &Shared, id: FileId) -> bool {
    let entry = shared.arena.file_unchecked(id);
    entry.state.load(Ordering::Acquire) == LIVE
        && !shared.is_open(id)
        && !entry.owes()
        && entry.flags.load(Ordering::Acquire) & (CLOSING | LEASED) == 0
}

/// Takes an idle file out of memory, and its entry out of the table. Best effort.
fn drop_idle(shared: &Arc<Shared>, me: Me<'_>, id: FileId) {
    let entry = me.arena.file_unchecked(id);
    evict::evict_file(me, id);
    if !lock(me) {
        return;
    }
    // As in `is_empty`.
    if let Some(_stop) = stop_file(me, id)
        && let Ok(_operation) = me.enter_stopped(id)
        && is_idle(shared, id)
        && slots::next_linked(me.arena, entry, 0).is_none()
    {
        entry.stock.shrink(me, |_| 0);
        slots::drop_tree(me.arena, entry);
        tracking::forget(me, id);
        shared.drop_device(id);
        entry.state.store(GONE, Ordering::Release);
        entry.assert_entry();
        search::dropped(me.arena);
        end_searches(me.arena, id);
    }
    unlock(me);
}

/// A search that comes to a dropped entry goes on, though behind it there may be none. Those are as if they had never been. Under the
/// table lock: a thread that enters a file takes the first that is vacant.
fn end_searches(arena: &Arena, dropped: FileId) {
    let count = arena.counts().files;
    let state = |at: u32| &arena.file_unchecked(FileId(at)).state;
    let mut at = dropped.0;
    if state((at + 1) % count).load(Ordering::Acquire) != ABSENT {
        return;
    }
    while state(at).load(Ordering::Acquire) == GONE {
        state(at).store(ABSENT, Ordering::Release);
        at = (at + count - 1) % count;
    }
}

/// A file that nobody has open has lost its last name: what of it is in memory is let go, and its entry, which would be in the way of every
/// search. Of one that owes something it is seen to later ([`crate::member::gone`]). The caller is in no operation.
pub fn forget_removed(shared: &Arc<Shared>, me: Me<'_>, id: FileId) {
    if is_idle(shared, id) {
        drop_idle(shared, me, id);
    }
}

/// What the session knows of a file that has been closed and of which nothing is in memory is forgotten, where the device file says as
/// much: entries that nobody needs would be in the way of every search. The caller is in no operation.
pub fn forget_closed(shared: &Arc<Shared>, me: Me<'_>, id: FileId) {
    const SAYS: u32 = CLOSING | LEASED | UNHEARD | FOREIGN | VANISHED | TOLD | UNSYNCED;
    let entry = me.arena.file_unchecked(id);
    let says_nothing = entry.error.load(Ordering::Acquire) == 0
        && closed::time(entry).is_none()
        && entry.kernel_reason.load(Ordering::Acquire) == 0
        && entry.flags.load(Ordering::Acquire) & SAYS == 0
        && entry.small_syncs() == 0;
    if says_nothing && is_idle(shared, id) && is_empty(me, id) {
        drop_idle(shared, me, id);
    }
}
