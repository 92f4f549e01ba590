//! Whether the calling thread is inside the engine: then hooks pass what they are asked straight on, and handlers of signals
//! wait.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use libc::c_int;

use crate::signals;

/// Constant and without a destructor, so that it is plain memory.
struct Thread {
    /// How many times the thread has gone in.
    depth: Cell<u32>,
    /// A signal waits until it is out: all are blocked, and `mask` is what is blocked otherwise.
    holds: Cell<bool>,
    mask: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread { depth: Cell::new(0), holds: Cell::new(false), mask: Cell::new(0) }
    };
}

/// From its making to its end the thread is inside.
pub struct Inside(());

impl Inside {
    /// Goes in.
    #[inline(always)]
    pub fn enter() -> Self {
        THREAD.with(|thread| thread.depth.set(thread.depth.get() + 1));
        // A handler of this thread's sees it before it sees anything that the engine does.
        compiler_fence(Ordering::SeqCst);
        Inside(())
    }

    /// Whether the calling thread is inside.
    #[inline(always)]
    pub fn is() -> bool {
        THREAD.with(|thread| thread.depth.get() != 0)
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        THREAD.with(|thread| {
            thread.depth.set(thread.depth.get() - 1);
            compiler_fence(Ordering::SeqCst);
            if thread.holds.get() {
                release(thread);
            }
        });
    }
}

/// Notes in a handler that signals are blocked until the thread is out, and what is blocked then.
pub fn hold_signals(mask: u64) {
    THREAD.with(|thread| {
        thread.mask.set(mask);
        thread.holds.set(true);
    });
}

#[cold]
fn release(thread: &Thread) {
    if thread.depth.get() == 0 {
        thread.holds.set(false);
        signals::unblock(thread.mask.get());
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
