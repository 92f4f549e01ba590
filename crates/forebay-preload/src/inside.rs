//! Whether the calling thread is inside the engine.
//!
//! While it is, the program's signal handlers wait (`signals`), the thread cannot be cancelled, and a hook that is entered
//! was called by the engine itself, so it goes to the real function at once.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

use libc::c_int;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

struct Thread {
    depth: Cell<u32>,
    /// Whether `cancel_state` must be restored.
    uncancellable: Cell<bool>,
    cancel_state: Cell<c_int>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread { depth: Cell::new(0), uncancellable: Cell::new(false), cancel_state: Cell::new(0) }
    };
}

/// While it exists, its thread is inside.
#[must_use]
pub struct Inside(PhantomData<*const ()>);

impl Inside {
    /// Counts: a thread may enter again while it is inside.
    #[inline]
    pub fn enter() -> Inside {
        THREAD.with(|thread| {
            let depth = thread.depth.get();
            thread.depth.set(depth + 1);
            compiler_fence(Ordering::SeqCst);
            if depth == 0 {
                let mut old = 0;
                // SAFETY: writes the old state into a variable of ours; the thread's state is its own.
                unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old) };
                thread.cancel_state.set(old);
                thread.uncancellable.set(true);
            }
        });
        Inside(PhantomData)
    }

    /// Whether the calling thread is inside.
    #[inline]
    pub fn is() -> bool {
        THREAD.with(|thread| thread.depth.get() != 0)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        THREAD.with(|thread| {
            let depth = thread.depth.get() - 1;
            compiler_fence(Ordering::SeqCst);
            thread.depth.set(depth);
            compiler_fence(Ordering::SeqCst);
            if depth == 0 {
                restore_cancellation(thread);
            }
        });
    }
}

/// Also for a handler that runs between the end of an [`Inside`] and its restoring: it may never come back to it.
fn restore_cancellation(thread: &Thread) {
    if thread.uncancellable.get() {
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(thread.cancel_state.get(), std::ptr::null_mut()) };
        thread.uncancellable.set(false);
    }
}
