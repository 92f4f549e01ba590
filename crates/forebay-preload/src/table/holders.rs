//! Which processes have a description open: what a forked child inherits, and what the dead leave behind.
//!
//! A process counts its own descriptors of each description in memory of its own, and is one holder of the description as long as there
//! are any. In the memory that relatives share each process has a slot with a bit for each description that it holds. A child's slot is
//! filled before it is forked; what other threads open meanwhile is added ([`opened`]), so that the slot has at least what the child has
//! inherited when it first looks. The child lets go of the rest ([`in_child`]). The slot of a process that has ended, or that has executed
//! another program, is emptied by a process that needs one. All counts err on the side of what is not used again.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering, Ordering::Relaxed, Ordering::SeqCst};

use libc::c_int;

// All words and lives come by way of the parent: `tests/holders` explores this file under a parent of its own, where each access of a
// word is a place at which others may get their turn.
use super::{
    AtomicU32, AtomicU64, DESCRIPTIONS_MAX, NEXT_FREE, REACHED, STICKS, Word, description,
    liveness, replace, shared_files,
};
use crate::{files, foreign, raw};

/// Slots: processes that live at once, of one family.
const PROCESSES: usize = 1024;
/// Words of bits of each.
const WORDS: usize = DESCRIPTIONS_MAX / 64;
/// Slots that are taken before anybody asks which of their processes live.
const FEW: u32 = 32;
/// Threads that fork at once, and know what the others open meanwhile.
const FORKS: usize = 8;

/// Among the holders of a description: its last one is letting go.
const ENDING: u32 = 1 << 31;

const FREE: u64 = 0;
/// In the hands of the process that fills or empties it.
const CLAIMED: u64 = 1;
/// For a child that has not been there yet; of its parent until then.
const RESERVED: u64 = 2;
const TAKEN: u64 = 3;
const KIND_MASK: u64 = 3;
/// Added to a slot's state with each life.
const LIFE: u64 = 4;

#[repr(C, align(64))]
struct Process {
    /// A kind, and the life above it.
    state: AtomicU64,
    /// Number of the process's pid namespace; 0: not known. To ask for it takes longer than all else here, so a process of one thread does not: of
    /// that one `mutex` tells.
    namespace: AtomicU64,
    pid: AtomicU32,
    /// Whether the process has had several threads, so that the end of the one that holds `mutex` says nothing; or cannot hold it.
    threads: AtomicU32,
    /// Words below this one have had bits.
    end: AtomicU32,
    mutex: liveness::Word,
}

/// What all relatives have in common beside the descriptions.
#[repr(C)]
pub struct Family {
    processes: [Process; PROCESSES],
    bits: [[AtomicU64; WORDS]; PROCESSES],
    /// Slots below this one are taken without asking which processes live; less than [`FEW`]: so many.
    limit: AtomicU32,
}

/// Set before the first description is made, and not changed.
pub static FAMILY: AtomicPtr<Family> = AtomicPtr::new(std::ptr::null_mut());
/// Descriptors of each description in this process; a child finds zeros.
pub static OWN: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The process's slot, plus one; 0: it has none.
pub(super) static SELF: AtomicU32 = AtomicU32::new(0);
/// Whether the process has had another thread.
pub(super) static THREADS: AtomicU32 = AtomicU32::new(0);
/// Slots of children that are being forked, plus one.
pub(super) static CHILDREN: [AtomicU32; FORKS] = [const { AtomicU32::new(0) }; FORKS];
/// How many of these there are.
pub(super) static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The slot that this thread's next child is to have, plus one, and its state.
    pub(super) static GIVEN: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

fn family() -> Option<&'static Family> {
    let family = FAMILY.load(Ordering::Acquire);
    // SAFETY: mapped for good once it is not null; all atomics, for which zeros are good.
    (!family.is_null()).then(|| unsafe { &*family })
}

fn own(index: u32) -> &'static AtomicU32 {
    // SAFETY: mapped for good before there was the first description; as many as these.
    unsafe { &*OWN.load(Relaxed).add(index as usize % DESCRIPTIONS_MAX) }
}

impl Family {
    fn set_bit(&self, slot: u32, index: u32) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        self.processes[slot as usize]
            .end
            .fetch_max(word + 1, Relaxed);
        self.bits[slot as usize][word as usize].fetch_or(bit, SeqCst) & bit == 0
    }

    fn clear_bit(&self, slot: u32, index: u32) -> bool {
        let bit = 1 << (index % 64);
        self.bits[slot as usize][index as usize / 64].fetch_and(!bit, SeqCst) & bit != 0
    }

    /// The slot's process holds the description as well, whichever process that is.
    fn hold_for(&self, slot: u32, index: u32) {
        description(index).holders.fetch_add(1, SeqCst);
        if !self.set_bit(slot, index) {
            drop_holder(index);
        }
    }

    /// Lets go of what a slot holds and `keeps` does not want.
    fn empty(&self, slot: u32, keeps: impl Fn(u32) -> bool) {
        let end = self.processes[slot as usize].end.load(Relaxed);
        for word in 0..end.min(WORDS as u32) {
            let mut bits = self.bits[slot as usize][word as usize].load(SeqCst);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if !keeps(index) && self.clear_bit(slot, index) {
                    drop_holder(index);
                }
            }
        }
    }

    /// Takes a free slot; it is claimed then.
    fn claim(&self) -> Option<u32> {
        self.claim_below(self.limit()).or_else(|| {
            let limit = (FEW + 2 * self.sweep()).min(PROCESSES as u32);
            self.limit.fetch_max(limit, SeqCst);
            self.claim_below(self.limit())
        })
    }

    /// All slots that have ever been taken are below this.
    fn limit(&self) -> u32 {
        self.limit.load(SeqCst).clamp(FEW, PROCESSES as u32)
    }

    fn claim_below(&self, limit: u32) -> Option<u32> {
        (0..limit).find(|&slot| {
            let state = &self.processes[slot as usize].state;
            let free = state.load(Relaxed);
            free & KIND_MASK == FREE && change(state, free, (free + LIFE) | CLAIMED)
        })
    }

    /// Says whose a claimed slot is.
    fn give(&self, slot: u32, kind: u64) {
        let process = &self.processes[slot as usize];
        let several = kind == RESERVED || THREADS.load(Relaxed) != 0;
        process.pid.store(raw::process_id(), Relaxed);
        // Where it cannot be held, it tells of an earlier life of the slot, if of any.
        let tells = !several && liveness::hold(&process.mutex);
        process
            .namespace
            .store(if tells { 0 } else { raw::pid_namespace() }, Relaxed);
        process.threads.store((!tells).into(), Relaxed);
        let life = process.state.load(Relaxed) & !KIND_MASK;
        process.state.store(life | kind, Ordering::Release);
    }

    /// Empties the slots of those that have ended. How many have not.
    fn sweep(&self) -> u32 {
        let here = raw::pid_namespace();
        let mut living = 0;
        for slot in 0..self.limit() {
            let process = &self.processes[slot as usize];
            let state = process.state.load(Ordering::Acquire);
            if !matches!(state & KIND_MASK, RESERVED | TAKEN) {
                continue;
            }
            // What was seen is of this life only if the state still is.
            if process.has_ended(here)
                && change(&process.state, state, state & !KIND_MASK | CLAIMED)
            {
                self.empty(slot, |_| false);
                self.make_free(slot);
            } else {
                living += 1;
            }
        }
        living
    }

    fn make_free(&self, slot: u32) {
        let process = &self.processes[slot as usize];
        process.end.store(0, Relaxed);
        let life = process.state.load(Relaxed) & !KIND_MASK;
        process.state.store(life | FREE, Ordering::Release);
    }
}

impl Process {
    /// Whether the process has ended for certain, or executed another program, as seen from a pid namespace.
    fn has_ended(&self, here: u64) -> bool {
        if self.threads.load(Ordering::Acquire) == 0 && liveness::owner_died(&self.mutex) {
            return true;
        }
        let args = [self.pid.load(Relaxed) as usize, 0, 0, 0, 0, 0];
        // SAFETY: no signal is sent, only asked whether one could be.
        here != 0
            && self.namespace.load(Relaxed) == here
            && unsafe { raw::call(libc::SYS_kill, args) } == -(libc::ESRCH as isize)
    }
}

fn change(state: &AtomicU64, from: u64, to: u64) -> bool {
    state.compare_exchange(from, to, SeqCst, Relaxed).is_ok()
}

/// One holder fewer. Whether it was the last.
fn drop_holder(index: u32) -> bool {
    let it = description(index);
    let fewer = |holders| match holders {
        0 => None,
        1 => Some(ENDING),
        more => Some(more - 1),
    };
    if it.holders.fetch_update(SeqCst, SeqCst, fewer) != Ok(1) {
        return false;
    }
    // Once for each file: a process that begins to hold it now has seen a word that is there no more, and lets go again.
    let flags = it.flags.swap(0, SeqCst);
    if flags & REACHED != 0 && flags & STICKS == 0 {
        foreign::reach_no_more(it.device.load(Relaxed), it.inode.load(Relaxed));
    }
    // Until the one that takes it says whose it is, it is nobody's: a child that comes late must not take it for what it was.
    it.inode.store(0, Relaxed);
    let last = it.holders.fetch_sub(ENDING, SeqCst) == ENDING;
    NEXT_FREE.fetch_min(index as usize, Relaxed);
    last
}

/// The first description of this process, and of those that it will fork, is about to be made.
pub fn begin() {
    if let Some(family) = family()
        && let Some(slot) = family.claim()
    {
        family.give(slot, TAKEN);
        SELF.store(slot + 1, SeqCst);
    }
}

/// The process is about to have another thread.
pub fn several_threads() {
    if THREADS.swap(1, SeqCst) == 0
        && let (Some(family), slot @ 1..) = (family(), SELF.load(Relaxed))
    {
        let process = &family.processes[slot as usize - 1];
        process.namespace.store(raw::pid_namespace(), Relaxed);
        process.threads.store(1, SeqCst);
    }
}

/// Takes a free description for a descriptor of this process's.
pub fn take(index: u32) -> bool {
    let holders = &description(index).holders;
    let taken = holders.load(Relaxed) == 0
        && holders
            .compare_exchange(0, 1, Ordering::AcqRel, Relaxed)
            .is_ok();
    if taken {
        own(index).store(1, SeqCst);
        note(index);
    }
    taken
}

/// What the process holds is its slot's.
fn note(index: u32) {
    if let (Some(family), slot @ 1..) = (family(), SELF.load(Relaxed)) {
        family.set_bit(slot - 1, index);
    }
}

/// One more descriptor of a description. `false`: the process has none of it any more.
pub fn hold(index: u32) -> bool {
    let more = |own| if own == 0 { None } else { Some(own + 1) };
    own(index).fetch_update(SeqCst, Relaxed, more).is_ok()
}

/// One descriptor fewer. Whether it was the last of all.
pub fn let_go(index: u32) -> bool {
    let fewer = |own: u32| own.checked_sub(1);
    if own(index).fetch_update(SeqCst, Relaxed, fewer) != Ok(1) {
        return false;
    }
    if let (Some(family), slot @ 1..) = (family(), SELF.load(Relaxed)) {
        family.clear_bit(slot - 1, index);
    }
    drop_holder(index)
}

/// Whether nobody else has a description open: no other descriptor, no other process that lives.
pub fn is_only(index: u32) -> bool {
    let alone = || description(index).holders.load(SeqCst) <= 1;
    own(index).load(SeqCst) <= 1
        && (alone() || {
            let_the_dead_go();
            alone()
        })
}

/// The descriptions of the relative with this number; of several, where one of them is in another pid namespace and has not asked in which.
pub fn of_process(pid: u32) -> impl Iterator<Item = u32> {
    let here = raw::pid_namespace();
    let slots = family().map(|family| family.processes.iter().zip(&family.bits));
    slots.into_iter().flatten().flat_map(move |(it, bits)| {
        let is_it = it.pid.load(Relaxed) == pid && [0, here].contains(&it.namespace.load(Relaxed));
        let end = it.end.load(Relaxed).min(WORDS as u32) * 64;
        let end = if is_it { end } else { 0 };
        (0..end).filter(|at| bits[*at as usize / 64].load(SeqCst) >> (at % 64) & 1 != 0)
    })
}

/// All descriptions are in use: those of the dead are not any more.
pub fn let_the_dead_go() {
    if let Some(family) = family() {
        family.sweep();
    }
}

/// The process has no slot any more that it could see. Descriptions that it may have had are below this.
pub(super) fn part(relatives: &Family) -> usize {
    let Some(slot) = SELF.swap(0, SeqCst).checked_sub(1) else {
        return 0;
    };
    let end = relatives.processes[slot as usize].end.load(Relaxed);
    (end as usize).min(WORDS) * 64
}

/// A descriptor has got a word. Children that are being forked may have it, or not.
#[inline]
pub fn opened(word: Word) {
    if word.is_shared() && UNDER_WAY.load(SeqCst) != 0 {
        opened_beside_forks(word.description_index());
    }
}

#[cold]
fn opened_beside_forks(index: u32) {
    let Some(family) = family() else { return };
    for child in &CHILDREN {
        let Some(slot) = child.load(SeqCst).checked_sub(1) else {
            continue;
        };
        // A child that has been there has looked for itself.
        let state = family.processes[slot as usize].state.load(SeqCst);
        if state & KIND_MASK == RESERVED {
            family.hold_for(slot, index);
        }
    }
}

/// Run by a parent before it forks: the child is to have a slot with what it inherits. `false`: it has to look for itself.
pub fn before_fork() -> bool {
    // A handler that is called within a fork may fork.
    let (Some(family), (0, _)) = (family(), GIVEN.get()) else {
        return false;
    };
    let Some(slot) = family.claim() else {
        return false;
    };
    family.give(slot, RESERVED);
    UNDER_WAY.fetch_add(1, SeqCst);
    let is_told = CHILDREN
        .iter()
        .any(|child| child.compare_exchange(0, slot + 1, SeqCst, Relaxed).is_ok());
    if !is_told {
        UNDER_WAY.fetch_sub(1, SeqCst);
        family.make_free(slot);
        return false;
    }
    let state = family.processes[slot as usize].state.load(SeqCst);
    GIVEN.set((slot + 1, state));
    // After others can see that there is to be a child: a thread that sets a word after this adds it.
    for (_, word) in shared_files() {
        family.hold_for(slot, word.description_index());
    }
    true
}

/// Run by a parent after a fork, which may have `failed`, if [`before_fork`] has said so.
pub fn after_fork(failed: bool) {
    let (given, state) = GIVEN.replace((0, 0));
    let (Some(family), Some(slot)) = (family(), given.checked_sub(1)) else {
        return;
    };
    for child in &CHILDREN {
        if child.compare_exchange(given, 0, SeqCst, Relaxed).is_ok() {
            UNDER_WAY.fetch_sub(1, SeqCst);
            break;
        }
    }
    let process = &family.processes[slot as usize];
    if failed && change(&process.state, state, state & !KIND_MASK | CLAIMED) {
        family.empty(slot, |_| false);
        family.make_free(slot);
    }
}

/// Run by a child: it takes the slot that its parent has filled, and counts what it has.
pub fn in_child() {
    let (given, state) = GIVEN.replace((0, 0));
    for word in CHILDREN.iter().chain([&UNDER_WAY, &SELF]) {
        if word.load(Relaxed) != 0 {
            word.store(0, Relaxed);
        }
    }
    let had_threads = THREADS.load(Relaxed) != 0;
    if had_threads {
        THREADS.store(0, Relaxed);
    }
    raw::forget_pid_namespace();
    let Some(family) = family() else { return };
    let claimed = state & !KIND_MASK | CLAIMED;
    let given = given
        .checked_sub(1)
        .filter(|&slot| change(&family.processes[slot as usize].state, state, claimed));
    let slot = given.or_else(|| family.claim());
    if let Some(slot) = slot {
        family.give(slot, TAKEN);
        SELF.store(slot + 1, Relaxed);
    }
    // Memory and descriptors are not copied at the same instant.
    let doubts = had_threads || given.is_none();
    for (fd, word) in shared_files() {
        if !inherits(fd, word, doubts) {
            replace(fd, word, Word::NONE);
        }
    }
    if let Some(slot) = slot {
        family.empty(slot, |index| own(index).load(Relaxed) != 0);
    }
}

/// Counts a descriptor that the child has inherited. `false`: it is not what its word says, or nobody has counted it in time.
fn inherits(fd: c_int, word: Word, doubts: bool) -> bool {
    let index = word.description_index();
    let it = description(index);
    let is_it = || {
        files::Look::at(fd).is_some_and(|look| {
            look.inode == it.inode.load(Relaxed) && look.device == it.device.load(Relaxed)
        })
    };
    if doubts && !is_it() {
        return false;
    }
    // A child finds this page wiped. One that is read first is mapped twice: so the look for a count is an exchange.
    let _ = own(index).compare_exchange(0, 0, Relaxed, Relaxed);
    if hold(index) {
        return true;
    }
    let more = |holders: u32| (holders != 0).then_some(holders + 1);
    if it.holders.fetch_update(SeqCst, Relaxed, more).is_err() {
        return false;
    }
    // Between the look and the count it may have been let go of and taken for another file.
    if doubts && !is_it() {
        drop_holder(index);
        return false;
    }
    own(index).store(1, Relaxed);
    let is_new = match (family(), SELF.load(Relaxed)) {
        (Some(family), slot @ 1..) => family.set_bit(slot - 1, index),
        _ => true,
    };
    if !is_new {
        // The parent has counted it.
        drop_holder(index);
    }
    true
}
