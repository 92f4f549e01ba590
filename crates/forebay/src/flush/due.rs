//! Whether a pass over a file would find anything whose time has come: a pass that finds nothing still asks the kernel how the file looks
//! now, for each file and each time.

use crate::flush::Scope;
use crate::flush::flusher::is_eligible;
use crate::frame::slots;
use crate::ids::FileId;
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// Blocks that are looked at in one operation: a thread that stops the session waits for its end.
const BLOCKS_AT_ONCE: usize = 256;

/// As far as a glance at the headers tells. The caller is in no operation.
pub fn is_any(me: Me<'_>, file: FileId, scope: &Scope) -> bool {
    let tick = me.arena.superblock().tick.load(Ordering::Relaxed);
    let mut at = scope.from;
    loop {
        // The thread that has stopped the file is not waited for here.
        let Ok(_operation) = me.enter(file) else {
            return true;
        };
        let entry = me.arena.file_unchecked(file);
        for _ in 0..BLOCKS_AT_ONCE {
            let owed = slots::next_owed(me.arena, entry, at);
            let Some((block, id)) = owed.filter(|(block, _)| u64::from(block.0) < scope.until)
            else {
                return false;
            };
            let header = me.arena.header(id);
            if header.is_some_and(|header| is_eligible(header, tick, scope)) {
                return true;
            }
            at = u64::from(block.0) + 1;
        }
    }
}
