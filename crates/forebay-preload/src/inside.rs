//! Whether the calling thread is inside the engine: then hooks pass what they are asked straight on, and handlers of signals
//! wait.

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering, Ordering::Relaxed, compiler_fence};

use forebay::session::standing::Place;
use libc::c_int;

use crate::real;
use crate::signals;

/// What every call looks at of its thread. Plain memory, zero at first ([`thread`]). What a handler of the thread's changes as well is
/// atomic.
#[repr(C)]
pub struct Thread {
    /// How many times the thread has gone in.
    depth: Cell<u32>,
    /// Whether the thread may go in at once. 0: it is not known whether the program has blocked signals of faults, or it has.
    ready: AtomicU8,
    /// [`HOLDS`] and its like: what is to be done once it is out.
    after: AtomicU8,
    /// Whether the thread has the lock of what is rare.
    pub is_rare: Cell<bool>,
    /// What is blocked otherwise, where all signals are blocked until it is out.
    mask: Cell<u64>,
    /// Signals of faults that the program has blocked, and that are not while it is inside.
    faults: Cell<u64>,
    /// The thread, as locks name it; 0: not known yet.
    pub who: Cell<u64>,
    /// Its record for calls of the kernel's.
    pub place: Place,
}

/// Bytes that the linker keeps for a [`Thread`]: one cache line.
const THREAD_BYTES: usize = 64;
const _: () = assert!(size_of::<Thread>() <= THREAD_BYTES && align_of::<Thread>() <= THREAD_BYTES);

// Thread-local memory whose offset is known once the library has been loaded ("initial exec"), as it can be for one that is loaded with
// the program. The compiler's own thread-local variables of a library ask a function for their address, in each use.
global_asm!(
    ".pushsection .tbss.forebay_preload_thread,\"awT\",@nobits",
    ".globl forebay_preload_thread",
    ".hidden forebay_preload_thread",
    ".type forebay_preload_thread, @object",
    ".size forebay_preload_thread, {bytes}",
    ".balign {bytes}",
    "forebay_preload_thread:",
    ".zero {bytes}",
    ".popsection",
    bytes = const THREAD_BYTES,
);

/// The calling thread's.
#[inline(always)]
pub fn thread() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: reads the thread's own address and an offset that the linker has filled in, and changes nothing. The memory is there as long
    // as the thread runs, and is not handed to another one: cells are not `Sync`. Zeros are good for each field.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + forebay_preload_thread@GOTTPOFF]",
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
        &*at
    }
}

/// A signal waits until the thread is out: all are blocked.
const HOLDS: u8 = 1;
/// Faults are to be blocked again.
const BLOCKS: u8 = 2;
/// A signal of a fault that was none waits.
const OWES: u8 = 4;
/// The thread has a slot in the session for a turn, which ends then.
const TURN: u8 = 8;

/// From its making to its end the thread is inside.
pub struct Inside(());

impl Inside {
    /// Goes in.
    #[inline(always)]
    pub fn enter() -> Self {
        let thread = thread();
        if thread.ready.load(Relaxed) == 0 {
            prepare(thread);
        }
        thread.depth.set(thread.depth.get() + 1);
        // A handler of this thread's sees it before it sees anything that the engine does.
        compiler_fence(Ordering::SeqCst);
        Inside(())
    }

    /// Whether the calling thread is inside.
    #[inline(always)]
    pub fn is() -> bool {
        thread().depth.get() != 0
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let thread = thread();
        thread.depth.set(thread.depth.get() - 1);
        compiler_fence(Ordering::SeqCst);
        if thread.after.load(Relaxed) != 0 {
            release(thread);
        }
    }
}

/// Makes sure that a fault in a copy comes to its handler.
#[cold]
fn prepare(thread: &Thread) {
    if thread.depth.get() != 0 {
        return;
    }
    if !signals::is_attached() || crate::attach::is_confined() {
        return;
    }
    let blocked = signals::blocked_faults();
    if blocked == 0 {
        thread.ready.store(1, Relaxed);
        return;
    }
    thread.faults.set(blocked);
    // First, so that a signal that has waited is not taken for one that the program lets through.
    thread.after.fetch_or(BLOCKS, Relaxed);
    compiler_fence(Ordering::SeqCst);
    signals::unblock_faults();
}

/// The program may have changed what is blocked.
pub fn ask_again() {
    thread().ready.store(0, Relaxed);
}

/// Whether any thread has ever been one that may be cancelled at any instruction.
static AT_ANY_TIME: AtomicU8 = AtomicU8::new(0);

/// There is one.
pub fn cancelled_at_any_time() {
    AT_ANY_TIME.store(1, Relaxed);
}

/// Whether there may be one. Our functions may be unwound where they call others, and nowhere else: so hooks begin with this
/// question, in frames that have nothing to clean up.
#[inline(always)]
pub fn at_any_time() -> bool {
    AT_ANY_TIME.load(Relaxed) != 0
}

/// The thread is cancelled where others are, until [`stop_deferring`]. How it was before.
pub fn defer_cancellation() -> c_int {
    let mut before = 0;
    // SAFETY: the target is ours.
    unsafe { real::pthread_setcanceltype(CANCEL_DEFERRED, &raw mut before) };
    before
}

/// The call is over. A thread that has been cancelled meanwhile ends here.
pub fn stop_deferring(before: c_int) {
    if before != CANCEL_DEFERRED {
        // SAFETY: no memory is asked for.
        unsafe { real::pthread_setcanceltype(before, std::ptr::null_mut()) };
    }
}

/// Whether signals of faults that were sent have to wait, as the handler of one asks.
pub fn keeps_faults() -> bool {
    let thread = thread();
    thread.depth.get() != 0 || thread.after.load(Relaxed) & BLOCKS != 0
}

/// Notes in a handler that signals are blocked until the thread is out, and what is blocked then.
pub fn hold_signals(mask: u64) {
    let thread = thread();
    thread.mask.set(mask);
    thread.after.fetch_or(HOLDS, Relaxed);
}

/// Notes in a handler that a signal of a fault, which was sent, waits until the thread is out.
pub fn owe_fault() {
    thread().after.fetch_or(OWES, Relaxed);
}

/// The thread, which is inside, has got a slot for a turn.
pub fn turns() {
    thread().after.fetch_or(TURN, Relaxed);
}

#[cold]
fn release(thread: &Thread) {
    if thread.depth.get() != 0 {
        return;
    }
    if thread.after.load(Relaxed) & TURN != 0 {
        thread.after.fetch_and(!TURN, Relaxed);
        // Inside: a handler that comes meanwhile waits. One that has come just before had the same slot, and may have given it back.
        thread.depth.set(1);
        compiler_fence(Ordering::SeqCst);
        crate::attach::end_turn();
        compiler_fence(Ordering::SeqCst);
        thread.depth.set(0);
    }
    let after = thread.after.swap(0, Relaxed);
    let faults = if after & BLOCKS != 0 {
        thread.faults.get()
    } else {
        0
    };
    if after & HOLDS != 0 {
        signals::unblock(thread.mask.get() | faults);
    } else if faults != 0 {
        signals::block(faults);
    }
    if after & OWES != 0 {
        signals::send_faults();
    }
}

/// Cancellation of the thread is held off: for whatever may reach a cancellation point.
pub struct NotCancelled(c_int);

impl NotCancelled {
    /// From here until it is dropped.
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the target is ours.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        NotCancelled(before)
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        // SAFETY: no memory is asked for.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

const CANCEL_DISABLE: c_int = 1;
const CANCEL_DEFERRED: c_int = 0;
/// Where a thread that has been cancelled ends, as it would in the kernel's call: nothing of ours is held, and the callers up to the
/// program are such as may be unwound.
#[inline(always)]
pub fn cancellation_point() {
    // SAFETY: takes nothing.
    unsafe { pthread_testcancel() };
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}
