//! Whether the calling thread is inside the engine: then hooks pass what they are asked straight on, and handlers of signals
//! wait.

use std::cell::Cell;

use libc::c_int;

thread_local! {
    /// How many times the thread has gone in. Constant and without a destructor, so that it is a plain word.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// From its making to its end the thread is inside.
pub struct Inside(());

impl Inside {
    /// Goes in.
    #[inline(always)]
    pub fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Inside(())
    }

    /// Whether the calling thread is inside.
    #[inline(always)]
    pub fn is() -> bool {
        DEPTH.get() != 0
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
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

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
