//! Calls of the kernel's on files that nobody manages, and those that begin to manage one: each sees the other.
//!
//! A thread that asks the kernel says at which inode it is in a record of its own (`memory::standers`), and then looks whether somebody
//! is making an entry for the file; a thread that makes one says so first, and then looks at the records. So the length that an entry
//! begins with is the file's.
//!
//! Neither waits for ever, and none goes on because it has waited. Where a call takes long, its thread alive, the file is left to the
//! kernel. Where the maker of an entry takes long, the call is made as one that reaches the file past the engine ([`reached`]), which
//! that one sees when the entry is made. The dead are not waited for.

use std::cell::Cell;
use std::sync::atomic::{self, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::ids::ThreadId;
use crate::member::reached;
use crate::memory::arena::Arena;
use crate::memory::standers::{self, STANDERS, Stander};
use crate::memory::superblock::{NEWCOMERS, Superblock};
use crate::memory::threads::{self, Me, Waiting};
use crate::sync::time::Instant;
use crate::sync::{AtomicU32, Ordering, relax};

/// How long either waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a call that somebody has waited for in vain.
const SHORT: Duration = Duration::from_millis(1);

/// How often a thread that has got no record goes without before it asks again.
const WITHOUT: u32 = 1000;

/// Where a thread notes its record. The caller keeps it in memory of the thread's own; zeros are good.
#[derive(Default)]
pub struct Place {
    /// The arena in which the thread has a record; 0: none.
    arena: Cell<usize>,
    /// The record's number + 1; 0: none.
    record: Cell<u32>,
    /// How often it goes without then.
    without: Cell<u32>,
}

/// Run by a forked child, with the place of its thread: the records are its parent's.
pub fn forget(place: &Place) {
    place.arena.set(0);
    // A word that is written is a page that is copied, in every child.
    if OWN_IN.load(SeqCst) != 0 {
        OWN_IN.store(0, SeqCst);
    }
}

/// The arena in which this process's threads have records, and what the state of each was when it was taken; 0: another's.
static OWN_IN: AtomicUsize = AtomicUsize::new(0);
static OWN: [atomic::AtomicU32; STANDERS] = [const { atomic::AtomicU32::new(0) }; STANDERS];

/// The process leaves: all records of its threads are free.
pub fn give_up(arena: &Arena) {
    let superblock = arena.superblock();
    if OWN_IN.load(SeqCst) != std::ptr::from_ref(superblock).addr() {
        return;
    }
    for (state, record) in OWN.iter().zip(&superblock.standers) {
        match state.swap(0, SeqCst) {
            0 => {}
            state => standers::give_up(record, state),
        }
    }
}

/// A call of the kernel's, until it is dropped.
pub struct Call<'a> {
    way: Way<'a>,
}

enum Way<'a> {
    Recorded(&'a Stander),
    Reaches(&'a Superblock, u64),
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.way {
            Way::Recorded(record) => record.end(),
            Way::Reaches(superblock, hash) => reached::end(superblock, hash),
        }
    }
}

fn word(superblock: &Superblock, inode: u64) -> &AtomicU32 {
    &superblock.newcomers[inode as usize % NEWCOMERS]
}

/// The calling thread's record. `None`: it has to go without.
#[inline]
fn record(arena: &'static Arena, place: &Place) -> Option<&'static Stander> {
    let superblock = arena.superblock();
    let (record, without) = (place.record.get(), place.without.get());
    let is_known = place.arena.get() == std::ptr::from_ref(superblock).addr();
    if !is_known || record == 0 && without == 0 {
        return take(superblock, place);
    }
    if record == 0 {
        place.without.set(without - 1);
    }
    superblock.standers.get(record.wrapping_sub(1) as usize)
}

#[cold]
fn take(superblock: &'static Superblock, place: &Place) -> Option<&'static Stander> {
    let record = standers::take(superblock);
    let of = std::ptr::from_ref(superblock).addr();
    place.arena.set(of);
    place
        .record
        .set(record.map_or(0, |(index, _)| index as u32 + 1));
    place.without.set(WITHOUT);
    if let Some((index, record)) = record {
        if OWN_IN.swap(of, SeqCst) != of {
            OWN.iter().for_each(|own| own.store(0, SeqCst));
        }
        OWN[index].store(record.state(), SeqCst);
    }
    record.map(|(_, record)| record)
}

/// A call of the kernel's on a file that is not known begins. Whether it is known is to be looked at again. The arena is one that is
/// never unmapped: the kernel follows the thread's list of robust mutexes into it. The place is the thread's.
#[inline]
pub fn begin(arena: &'static Arena, place: &Place, (device, inode): (u64, u64)) -> Call<'static> {
    let superblock = arena.superblock();
    if let Some(record) = record(arena, place)
        && record.begin(inode)
        && (word(superblock, inode).load(Ordering::SeqCst) == 0 || retry(arena, record, inode))
    {
        return Call {
            way: Way::Recorded(record),
        };
    }
    let hash = reached::hash(device, inode);
    reached::begin(superblock, hash);
    Call {
        way: Way::Reaches(superblock, hash),
    }
}

/// Goes back while somebody makes an entry. `false`: that takes long, and the record says nothing.
#[cold]
fn retry(arena: &Arena, record: &Stander, inode: u64) -> bool {
    let word = word(arena.superblock(), inode);
    let begun = Instant::now();
    loop {
        record.end();
        if !await_newcomer(arena, word, begun) {
            return false;
        }
        record.begin(inode);
        if word.load(Ordering::SeqCst) == 0 {
            return true;
        }
    }
}

/// Waits until the thread that makes an entry has done so, or has died. `false`: it takes long, or it is stopped.
fn await_newcomer(arena: &Arena, word: &AtomicU32, begun: Instant) -> bool {
    let (mut round, mut waiting) = (0, Waiting::begin());
    loop {
        let seen = word.load(Ordering::SeqCst);
        if seen == 0 {
            return true;
        }
        if threads::is_gone(arena, ThreadId(seen)) {
            let _ = word.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
            continue;
        }
        if begun.elapsed() > PATIENCE || waiting.is_in_vain(arena, ThreadId(seen)) {
            return false;
        }
        round += 1;
        relax(round);
    }
}

/// The thread that makes an entry for a file that nobody manages: calls of the kernel's on it wait.
pub struct Newcomer<'a> {
    word: &'a AtomicU32,
    me: Me<'a>,
}

impl<'a> Newcomer<'a> {
    /// Waits until no call of the kernel's is under way. `None`: one takes long, and the file is not to be managed.
    pub fn come(me: Me<'a>, inode: u64) -> Option<Self> {
        let superblock = me.arena.superblock();
        let word = word(superblock, inode);
        let begun = Instant::now();
        while word
            .compare_exchange(0, me.id.0, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            if !await_newcomer(me.arena, word, begun) {
                return None;
            }
        }
        let newcomer = Newcomer { word, me };
        await_calls(superblock, inode).then_some(newcomer)
    }
}

impl Drop for Newcomer<'_> {
    fn drop(&mut self) {
        let mine = self.me.id.0;
        let _ = self
            .word
            .compare_exchange(mine, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

fn await_calls(superblock: &Superblock, inode: u64) -> bool {
    let begun = Instant::now();
    let mut round = 0;
    while let Some(call) = standers::find(superblock, inode) {
        let patience = if call.is_in_vain() { SHORT } else { PATIENCE };
        if begun.elapsed() > patience {
            call.note_in_vain();
            return false;
        }
        round += 1;
        relax(round);
    }
    true
}

#[cfg(test)]
mod tests;
