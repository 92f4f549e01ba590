//! What a thread is at work on, by its slot and by the words that name it.

use super::{PARKED, SETTLING, is_gone};
use crate::ids::{FileId, ThreadId};
use crate::memory::arena::Arena;
use crate::memory::files::ENTERING;
use crate::sync::{AtomicU32, Ordering};

/// Whether a dead thread was in the middle of an operation or a flush, or had a gate or a lock, so that a rebuild is owed.
pub fn died_working(arena: &Arena, id: ThreadId) -> bool {
    arena.thread(id).is_some_and(|slot| {
        slot.op.load(Ordering::Acquire) != 0
            || slot.flushing.load(Ordering::Acquire) != 0
            || is_named(arena, id)
    })
}

/// Whether a living thread is at something, in the life of its slot that is `life`.
pub fn is_working(arena: &Arena, id: ThreadId, life: u32) -> bool {
    super::life(arena, id) == Some(life) && died_working(arena, id)
}

/// Whether a word outside of headers says that the thread holds it. Such words are held outside of operations, too; a
/// slot that was freed under them would leave them held by whoever takes it next.
pub fn is_named(arena: &Arena, id: ThreadId) -> bool {
    let superblock = arena.superblock();
    let names = |word: &AtomicU32| word.load(Ordering::Acquire) == id.0;
    let entering = ENTERING | (id.0 << 3);
    names(&superblock.gate)
        || names(&superblock.table_lock)
        || names(&arena.stream_lists().lock)
        || superblock.newcomers.iter().any(names)
        || (0..arena.counts().files)
            .filter_map(|file| arena.file(FileId(file)))
            .any(|entry| {
                names(&entry.gate)
                    || names(&entry.append_lock)
                    || entry.state.load(Ordering::Acquire) == entering
            })
}

/// Whether the session is stopped by somebody who is gone: what its rebuild has left is not to be entered before another
/// rebuild has gone over it.
pub fn gate_is_abandoned(arena: &Arena) -> bool {
    let holder = arena.superblock().gate.load(Ordering::Acquire);
    holder != 0 && is_gone(arena, ThreadId(holder))
}

/// The file that a thread is at work on, by its operation word.
pub fn works_on(arena: &Arena, id: ThreadId) -> Option<FileId> {
    let word = arena.thread(id)?.op.load(Ordering::Acquire);
    ((word & !PARKED) as u32).checked_sub(1).map(FileId)
}

/// The file that a thread flushes, in or between operations.
pub fn flushes(arena: &Arena, id: ThreadId) -> Option<FileId> {
    let word = arena.thread(id)?.flushing.load(Ordering::Acquire);
    word.checked_sub(1).filter(|_| word != SETTLING).map(FileId)
}
