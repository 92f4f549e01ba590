//! The inodes that this process manages: one engine file for each, however many descriptions the program has of it.
//!
//! Looked at without a lock by every call on a managed descriptor. The close of the last description must not free an engine file
//! under such a call: each thread says in a word of its own which one it is using, and the closer waits for the words
//! (`membarrier` in between, so that using costs no fence).

use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed, compiler_fence,
};

use forebay::Error;
use forebay::file::closing::Prepared;
use forebay::file::inode::Inode;
use forebay::file::settle::Durability;
use forebay::ids::ThreadId;
use forebay::memory::threads::{Gate, Inside, Me};
use forebay::session::adopt::Unmanaged;
use libc::c_int;

use crate::attach;
use crate::files;
use crate::rare::{Apart, Event, Passing, Rare};
use crate::table::{self, Description, Word};

/// Inodes at most; the session's file table has no more.
const SLOTS: usize = 4096;
/// The closer, for a thread that has no slot.
const CLOSER: ThreadId = ThreadId(USERS as u32);
/// Threads that say what they use; a session has no more slots for threads.
const USERS: usize = forebay::limits::THREADS_MAX as usize;

/// A line of its own: other threads look at the neighbours with each call.
#[repr(align(64))]
struct Slot {
    inode: AtomicPtr<Inode>,
    /// Which threads may be using it. Closed from the last close on, until that has seen that none is.
    gate: Gate,
    device: AtomicU64,
    number: AtomicU64,
    /// Descriptors of the process.
    descriptors: AtomicU32,
    /// Somebody begins to manage the file, without the lock.
    beginning: Event,
}

static INODES: [Slot; SLOTS] = [const {
    Slot {
        inode: AtomicPtr::new(std::ptr::null_mut()),
        gate: Gate::new(),
        device: AtomicU64::new(0),
        number: AtomicU64::new(0),
        descriptors: AtomicU32::new(0),
        beginning: Event::new(),
    }
}; SLOTS];
/// All slots in use are below this.
static END: AtomicU32 = AtomicU32::new(0);

#[repr(align(64))]
struct Using(AtomicU64);

static USING: [Using; USERS] = [const { Using(AtomicU64::new(0)) }; USERS];
/// All that have been used are below this: each page of the others would cost the first thread that looks.
static USING_END: AtomicUsize = AtomicUsize::new(0);

fn users() -> &'static [Using] {
    &USING[..USING_END.load(Ordering::SeqCst)]
}

/// A child begins with none. What the parent had is not freed: it may be in the middle of anything.
pub fn in_child() {
    for slot in INODES.iter().take(END.load(Relaxed) as usize) {
        slot.inode.store(std::ptr::null_mut(), Relaxed);
        slot.gate.open(CLOSER, false);
        slot.descriptors.store(0, Relaxed);
        if slot.beginning.is_on() {
            slot.beginning.end();
        }
    }
    for user in users() {
        if user.0.load(Relaxed) != 0 {
            user.0.store(0, Relaxed);
        }
    }
    if END.load(Relaxed) != 0 {
        END.store(0, Relaxed);
    }
}

/// The engine file of a slot.
pub fn get(_rare: &Rare, slot: u32) -> Option<&'static Inode> {
    let inode = INODES.get(slot as usize)?.inode.load(Ordering::Acquire);
    // SAFETY: freed under the lock that the caller has, and only when no descriptor has the slot.
    (!inode.is_null()).then(|| unsafe { &*inode })
}

/// The size of a managed descriptor's file, bytes; the caller counts as a descriptor of its slot.
pub fn size_of(word: Word) -> u64 {
    let inode = INODES[word.slot() % SLOTS].inode.load(Ordering::Acquire);
    if inode.is_null() {
        return 0;
    }
    // SAFETY: the caller counts as a descriptor of the slot, so nobody closes it.
    let inode = unsafe { &*inode };
    inode.core().entry().size.load(Relaxed)
}

/// Whether the process manages none.
pub fn are_none(rare: &Rare) -> bool {
    (0..END.load(Relaxed)).all(|slot| get(rare, slot).is_none())
}

/// One more descriptor of an inode.
pub fn use_again(_rare: &Rare, slot: usize) {
    INODES[slot].descriptors.fetch_add(1, Relaxed);
}

/// What has become of a file that was to be managed.
pub enum Taken {
    /// This slot has it, and one descriptor more.
    By(Rare, u32),
    /// Another thread of the process began to manage it just then: to be looked at again.
    Again,
    /// It stays with the kernel.
    Not,
}

/// A slot in which a file begins to be managed, without the lock. It has one descriptor; unless it has got an engine file it is free afterwards.
struct Beginning(&'static Slot);

impl Drop for Beginning {
    fn drop(&mut self) {
        let Beginning(slot) = self;
        slot.beginning.end();
        if slot.inode.load(Relaxed).is_null() {
            slot.descriptors.store(0, Ordering::Release);
        }
    }
}

/// A slot for the file behind a descriptor: the one it has in this process, or a new one. That takes the keeper's guard, so other threads
/// begin and end files meanwhile; those that come to the same file wait for it.
pub fn take(rare: Rare, fd: c_int, writes: bool, description: &Description) -> Taken {
    let device = description.device.load(Relaxed);
    let number = description.inode.load(Relaxed);
    let end = END.load(Relaxed);
    let mut same = (0..end).filter(|&index| {
        let slot = &INODES[index as usize];
        slot.number.load(Relaxed) == number && slot.device.load(Relaxed) == device
    });
    let is_good = |index| get(&rare, index).is_some_and(|inode| inode.is_writable() || !writes);
    if let Some(index) = same.clone().find(|&index| is_good(index)) {
        use_again(&rare, index as usize);
        return Taken::By(rare, index);
    }
    if let Some(index) = same.find(|&index| INODES[index as usize].beginning.is_on()) {
        drop(rare);
        INODES[index as usize].beginning.wait();
        return Taken::Again;
    }
    let is_free = |slot: &Slot| {
        slot.inode.load(Relaxed).is_null() && slot.descriptors.load(Ordering::Acquire) == 0
    };
    let free = (0..end).find(|&index| is_free(&INODES[index as usize]));
    let index = free.unwrap_or(end);
    let slot = INODES.get(index as usize);
    let Some((slot, session)) = slot.zip(attach::session()) else {
        return Taken::Not;
    };
    slot.number.store(number, Relaxed);
    slot.device.store(device, Relaxed);
    slot.descriptors.store(1, Relaxed);
    slot.beginning.begin();
    let begun = Beginning(slot);
    END.fetch_max(index + 1, Relaxed);
    let passing = Passing::begin(&rare);
    let apart = Apart::begin(rare);
    // SAFETY: the program's descriptor is open during its call.
    let fd = unsafe { files::borrow(fd) };
    let adopted = session.adopt(fd, writes, attach::relocate);
    drop(passing);
    let is_kept = keep(slot, adopted, (device, number));
    drop(begun);
    drop(apart);
    if is_kept {
        Taken::By(Rare::lock(), index)
    } else {
        Taken::Not
    }
}

/// Puts an engine file into its slot. `false`: there is none, or it is another file's, since the program has closed the descriptor meanwhile,
/// and opened another file there.
fn keep(slot: &Slot, adopted: Result<Inode, Unmanaged>, identity: (u64, u64)) -> bool {
    let inode = match adopted {
        Ok(inode) => inode,
        Err(reason) => {
            note(&reason);
            return false;
        }
    };
    if inode.core().entry().numbers() != identity {
        let seen = AtomicU32::new(inode.error_sequence());
        if let Some(session) = attach::joined()
            && let Ok(me) = session.shared().me()
        {
            let _ = inode.close(me, &seen);
        }
        return false;
    }
    let inode = Box::into_raw(Box::new(inode));
    slot.inode.store(inode, Ordering::Release);
    true
}

/// Why files stayed with the kernel, by kind; for the report.
pub static UNMANAGED: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

fn note(reason: &Unmanaged) {
    let kind = match reason {
        Unmanaged::Reason(_) => 0,
        Unmanaged::Route => 1,
        Unmanaged::Given(_) => 2,
        Unmanaged::Failed(_) => 3,
        Unmanaged::Reached | Unmanaged::Outside => 4,
    };
    UNMANAGED[kind].fetch_add(1, Relaxed);
}

/// Where the number of the descriptor is that an inode has been closed with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Kept for as long as the engine's file takes to close ([`files::close`]).
    Kept,
    /// Free, or another file's. Whatever is opened may come there, while other threads use it to hear that it is closed.
    Gone,
}

/// One descriptor fewer of a slot. With the last the engine's file is closed. Returns an error number, or 0.
pub fn give_back(rare: Rare, slot: usize, seen: &AtomicU32, number: Number) -> c_int {
    finish(rare, slot, |inode, me| {
        if number == Number::Gone {
            return inode.close(me, seen);
        }
        let (closed, watched) = inode.close_watched(me, seen);
        if let Some(watched) = watched {
            // Nobody closes all numbers meanwhile, nor gives rights away.
            let passing = Passing::begin(&Rare::lock());
            let unmarked = watched.take_mark_away();
            drop(passing);
            if let Some(unmarked) = unmarked {
                unmarked.look();
            }
        }
        closed
    })
}

/// Whether the only descriptor that a slot has may be closed without waiting for what its file owes: [`leave`] is to follow.
pub fn prepare_to_leave(rare: &Rare, slot: usize, seen: &AtomicU32) -> Option<Prepared> {
    if INODES[slot].descriptors.load(Relaxed) != 1 {
        return None;
    }
    let inode = get(rare, slot as u32)?;
    inode.prepare_to_leave(inode.me().ok()?, seen)
}

/// As [`give_back`], for the only descriptor, which the program does not have any more.
pub fn leave(rare: Rare, slot: usize, seen: &AtomicU32, prepared: &Prepared) -> c_int {
    finish(rare, slot, |inode, me| inode.leave(me, seen, prepared))
}

/// Takes one descriptor from a slot, and with the last its engine file, which is closed by `close`. A thread that uses it may be in the middle
/// of a call that does not end: no other opening or close waits for that.
fn finish(
    rare: Rare,
    slot: usize,
    close: impl FnOnce(Inode, Me<'_>) -> Result<(), Error>,
) -> c_int {
    let slot_of = &INODES[slot];
    // The last one stays until the slot may be used again. The count changes under the lock alone, but for that.
    let others = slot_of.descriptors.load(Relaxed).saturating_sub(1);
    if others != 0 {
        slot_of.descriptors.store(others, Relaxed);
        return 0;
    }
    let inode = slot_of.inode.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if inode.is_null() {
        slot_of.descriptors.store(0, Ordering::Release);
        return 0;
    }
    let _apart = Apart::begin(rare);
    let session = attach::joined();
    let me = session.map(|session| session.shared().me());
    let closer = match &me {
        Some(Ok(me)) => me.id,
        // No thread's slot.
        _ => CLOSER,
    };
    // Under the lock the last descriptor was this close's: nobody else closes it.
    if slot_of.gate.close(closer) != Some(Inside::Nobody) {
        await_users(slot);
    }
    slot_of.gate.open(closer, false);
    slot_of.descriptors.store(0, Ordering::Release);
    // SAFETY: made by a box in `take`; no descriptor has the slot, and no thread uses it.
    let inode = *unsafe { Box::from_raw(inode) };
    let closed = match me {
        None => return 0,
        Some(Ok(me)) => close(inode, me),
        Some(Err(error)) => Err(error),
    };
    closed.map_or_else(|error| error.errno(), |()| 0)
}

/// As long as a processor may hold back what a thread has stored, where it cannot be asked not to: it lets go of it within
/// microseconds, and with each interrupt.
const STORED: std::time::Duration = std::time::Duration::from_millis(20);

/// Waits until no thread uses a slot.
fn await_users(slot: usize) {
    if !barrier() {
        // The process has confined itself in a way that no hook saw.
        std::thread::sleep(STORED);
    }
    std::sync::atomic::fence(Ordering::SeqCst);
    for user in users() {
        let mut round = 0u32;
        while user.0.load(Ordering::Acquire) == slot as u64 + 1 {
            round += 1;
            if round < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// A barrier in every thread of the process. A member of a session is registered for barriers in all processes, which this is not.
pub fn barrier() -> bool {
    const PRIVATE_EXPEDITED: usize = 1 << 3;
    membarrier(PRIVATE_EXPEDITED) || prepare_barrier() && membarrier(PRIVATE_EXPEDITED)
}

/// Registers the process for it.
pub fn prepare_barrier() -> bool {
    const REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;
    membarrier(REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: usize) -> bool {
    // SAFETY: takes no memory.
    unsafe { crate::raw::call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) == 0 }
}

/// The use of a descriptor's inode by the calling thread.
pub struct Use<'a> {
    /// The engine's file.
    pub inode: &'a Inode,
    /// The thread in the session.
    pub me: Me<'a>,
    word: &'static AtomicU64,
}

impl Drop for Use<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
    }
}

/// Begins to use the inode of a managed descriptor. `None`: it is not managed by this word any more, or no thread slot is
/// to be had. The caller is inside, and in no other use.
#[inline(always)]
pub fn begin<'a>(fd: c_int, word: Word) -> Option<Use<'a>> {
    let session = attach::joined()?;
    let me = session.shared().me().ok()?;
    let index = me.id.index() % USERS;
    if index >= USING_END.load(Relaxed) {
        USING_END.fetch_max(index + 1, Ordering::SeqCst);
    }
    let using = &USING[index].0;
    using.store(word.slot() as u64 + 1, Relaxed);
    compiler_fence(Ordering::SeqCst);
    let slot = &INODES[word.slot() % SLOTS];
    let is_closing = slot.gate.pass(me.id).is_err();
    let inode = slot.inode.load(Ordering::Acquire);
    if is_closing || table::word(fd) != word || inode.is_null() {
        using.store(0, Ordering::Release);
        return None;
    }
    // SAFETY: the descriptor had this inode after this thread had said that it uses it: the closer waits.
    let inode = unsafe { &*inode };
    Some(Use {
        inode,
        me,
        word: using,
    })
}

/// Flushes for one description of a slot that its caller keeps from being closed. Returns an error number, or 0.
pub fn settle(word: Word, durability: Durability, seen: &AtomicU32) -> c_int {
    let inode = INODES[word.slot() % SLOTS].inode.load(Ordering::Acquire);
    if inode.is_null() {
        return 0;
    }
    // SAFETY: the caller counts as a descriptor of the slot, so nobody closes it.
    let inode = unsafe { &*inode };
    let settled = inode.me().and_then(|me| inode.settle(me, durability, seen));
    settled.map_or_else(|error| error.errno(), |()| 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_barrier_is_one() {
        assert!(super::barrier());
    }
}
