//! The table's lock: to add and to remove entries, and to mark one that nobody is to drop meanwhile.

use std::time::Duration;

use crate::ids::ThreadId;
use crate::memory::threads::{self, Me, Waiting};
use crate::sync::Ordering;

/// How long a close waits for the lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the lock is this thread's now.
pub(super) fn lock(me: Me<'_>) -> bool {
    let word = &me.arena.superblock().table_lock;
    match word.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(holder) => {
            if threads::is_gone(me.arena, ThreadId(holder)) {
                // What it was entering is dropped by the repair that its death calls for, which opens the lock.
                me.arena.rescue(me);
            }
            false
        }
    }
}

/// `false`: its holder does not go on.
pub(super) fn await_lock(me: Me<'_>) -> bool {
    await_lock_for(me, Waiting::begin())
}

fn await_lock_for(me: Me<'_>, mut waiting: Waiting) -> bool {
    let mut round = 0;
    while !lock(me) {
        if is_in_vain(me, &mut waiting) {
            return false;
        }
        round += 1;
        me.wait(round);
    }
    true
}

/// Whether the holder of the table's lock does not go on.
pub(super) fn is_in_vain(me: Me<'_>, waiting: &mut Waiting) -> bool {
    let holder = me.arena.superblock().table_lock.load(Ordering::Acquire);
    waiting.is_in_vain(me.arena, ThreadId(holder))
}

pub(super) fn unlock(me: Me<'_>) {
    me.arena.superblock().table_lock.store(0, Ordering::Release);
}

/// Carries out what must not come between others' looks at an entry and their dropping it: nobody drops one meanwhile. `false`: the table's lock is
/// not to be had, and nothing was done. A close is not held up for longer than a second: it may have a lease of the kernel's, which the kernel
/// gives to others after 45 s.
pub fn under_lock(me: Me<'_>, act: impl FnOnce()) -> bool {
    let is_locked = await_lock_for(me, Waiting::at_most(PATIENCE));
    if is_locked {
        act();
        unlock(me);
    }
    is_locked
}
