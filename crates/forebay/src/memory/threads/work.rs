//! What a thread is at work on, by its slot and by the words that name it.

use super::{PARKED, SETTLING, is_gone};
use crate::frame::slots::visit;
use crate::ids::{FileId, HeaderId, ThreadId};
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
/// slot that was freed under them would leave them held by the thread that takes it next.
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
                entry.gate.closer() == id
                    || names(&entry.append_lock)
                    || entry.state.load(Ordering::Acquire) == entering
            })
}

/// Whether a word for which somebody may wait for ever was written over: a lock that no thread has, since nobody of that number lives, or
/// it is in no operation, in which alone headers are held; or a slot that leads to no header of its block. No death explains either where
/// nobody has died. Looks at all headers and trees.
pub fn is_written_over(arena: &Arena) -> bool {
    let is_left = |holder: &dyn Fn() -> u32| {
        let id = holder();
        // A thread that has gone in good order gave it back before.
        id != 0 && is_gone(arena, ThreadId(id)) && holder() == id
    };
    let is_nobodys = |word: &AtomicU32| is_left(&|| word.load(Ordering::Acquire));
    let superblock = arena.superblock();
    // A rebuild locks headers, and is in no operation.
    let rebuilds = superblock.rebuilds.load(Ordering::Acquire);
    let is_rebuilt = || {
        superblock.gate.load(Ordering::Acquire) != 0
            || superblock.rebuilds.load(Ordering::Acquire) != rebuilds
    };
    let headers = (0..superblock.headers_backed.load(Ordering::Acquire)).map(HeaderId);
    let cannot_hold = |id| is_gone(arena, id) || !is_in_operation(arena, id);
    let found = is_nobodys(&superblock.table_lock)
        || is_nobodys(&arena.stream_lists().lock)
        || (0..arena.counts().files)
            .filter_map(|file| arena.file(FileId(file)))
            .any(|entry| is_left(&|| entry.gate.closer().0) || is_nobodys(&entry.append_lock))
        || headers
            .map_while(|id| arena.header(id))
            .any(|header| header.is_held_by_nobody(cannot_hold))
        || visit::leads_astray(arena);
    found && !is_rebuilt()
}

fn is_in_operation(arena: &Arena, id: ThreadId) -> bool {
    let word = arena.thread_unchecked(id).op.load(Ordering::Acquire);
    word != 0 && word & PARKED == 0
}

/// Whether the session is stopped by a thread that is gone: what its rebuild has left is not to be entered before another
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
