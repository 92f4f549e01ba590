//! Threads that are at a device with a file. A thread that waits for a file sees by it whether a thread has the file in hand because the device
//! takes its time, or because the thread does not go on.

use super::{Me, is_dead, stops, works_on};
use crate::ids::{FileId, ThreadId};
use crate::memory::arena::Arena;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Calls that the thread has made, above; the file that it is at + 1, or 0, below.
const CALL: u64 = 1 << 32;

/// Has the thread at no file when it ends, also where the calls panic.
struct At<'a> {
    word: &'a AtomicU64,
    made: u64,
}

impl Drop for At<'_> {
    fn drop(&mut self) {
        self.word.store(self.made, Release);
    }
}

impl Me<'_> {
    /// Makes calls of the device's on a file.
    pub fn at_device<T>(self, file: FileId, calls: impl FnOnce() -> T) -> T {
        let word = &self.slot().at_device;
        let made = (word.load(Relaxed) & !(CALL - 1)).wrapping_add(CALL);
        word.store(made | (u64::from(file.0) + 1), Release);
        let _at = At { word, made };
        calls()
    }
}

/// A word that changes with each call that the thread makes.
pub fn calls_of(arena: &Arena, id: ThreadId) -> u64 {
    let slot = arena.thread(id);
    slot.map_or(0, |slot| slot.at_device.load(Acquire))
}

/// Whether the thread is at the device with the file, and its process is not seen to be stopped.
fn is_at_device(arena: &Arena, id: ThreadId, file: FileId) -> bool {
    let slot = arena.thread_unchecked(id);
    let at = slot.at_device.load(Acquire) & (CALL - 1);
    at == u64::from(file.0) + 1 && !is_dead(arena, id) && !stops::does_not_run(slot)
}

fn threads(arena: &Arena) -> impl Iterator<Item = ThreadId> {
    (1..arena.counts().threads).map(ThreadId)
}

/// Whether anybody is at the device with the file.
pub fn is_anybody_at_device(arena: &Arena, file: FileId) -> bool {
    threads(arena).any(|id| is_at_device(arena, id, file))
}

/// Whether somebody else has the file in hand, and is not at the device with it.
pub fn is_in_the_way(me: Me<'_>, file: FileId) -> bool {
    let entry = me.arena.file_unchecked(file);
    let holders = [
        entry.gate.closer(),
        ThreadId(entry.append_lock.load(crate::sync::Ordering::Acquire)),
    ];
    let has = |id| works_on(me.arena, id) == Some(file) || holders.contains(&id);
    threads(me.arena).any(|id| {
        id != me.id && has(id) && !is_dead(me.arena, id) && !is_at_device(me.arena, id, file)
    })
}
