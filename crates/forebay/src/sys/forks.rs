//! Telling a forked child from the process that has made something.
//!
//! A child that was forked has copies of everything and owns nothing of it: its threads are gone but one, and what stands in
//! the arena in its name is its parent's. [`Owned`] gives what it holds to the process that made it alone. Forks are counted
//! by libc's own hook (`pthread_atfork`): a child made by the bare system call is not noticed. [`Lock`] is for threads of one process:
//! a plain lock that another thread holds at the moment of a fork would be held for ever in the child.

use std::io;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// Has forks counted from here on. The result of the first call holds for all.
fn watch() -> io::Result<()> {
    static WATCHING: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler stays where it is for as long as its library is loaded, and only adds to a number.
    let errno = *WATCHING.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) });
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Something of the process that made it. In a forked child it cannot be had, and is never dropped.
pub struct Owned<T> {
    value: ManuallyDrop<T>,
    made_after: u32,
}

impl<T> Owned<T> {
    /// Of this process.
    ///
    /// # Errors
    /// `ENOMEM` when forks cannot be watched.
    pub fn new(value: T) -> io::Result<Self> {
        watch()?;
        Ok(Owned {
            value: ManuallyDrop::new(value),
            made_after: FORKS.load(Relaxed),
        })
    }

    /// Whether this process has made it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.made_after == FORKS.load(Relaxed)
    }

    /// The value; `None` in a child of the process that made it.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&*self.value)
    }

    /// The value, to be changed; `None` in a child of the process that made it.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.is_ours().then_some(&mut *self.value)
    }

    /// The value, for good; `None` in a child of the process that made it, where it stays as it is.
    pub fn take(mut self) -> Option<T> {
        if !self.is_ours() {
            return None;
        }
        // SAFETY: taken once, as `self` is forgotten and its drop does not run.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        std::mem::forget(self);
        Some(value)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here; `take` forgets what it has taken from.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A lock among the threads of one process. A child begins with one that is free.
pub struct Lock(AtomicPtr<Made>);

/// The lock of a process; it stays for as long as the process, and in its children, which make their own.
struct Made {
    after: u32,
    lock: Mutex<()>,
}

impl Lock {
    /// Free.
    pub const fn new() -> Self {
        Lock(AtomicPtr::new(null_mut()))
    }

    /// Takes it.
    ///
    /// # Errors
    /// `ENOMEM` when forks cannot be watched.
    pub fn lock(&self) -> io::Result<MutexGuard<'static, ()>> {
        watch()?;
        let lock = &self.of_this_process().lock;
        Ok(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn of_this_process(&self) -> &'static Made {
        let now = FORKS.load(Relaxed);
        loop {
            let found = self.0.load(Acquire);
            // SAFETY: made of a box below, and never freed.
            if let Some(made) = unsafe { found.as_ref() }
                && made.after == now
            {
                return made;
            }
            let lock = Mutex::new(());
            let made = Box::into_raw(Box::new(Made { after: now, lock }));
            if self
                .0
                .compare_exchange(found, made, AcqRel, Relaxed)
                .is_err()
            {
                // SAFETY: of this call, which nobody else has seen.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a forked child of this process finds that `what` is so. It ends then, or after a minute.
#[cfg(test)]
pub fn in_child(what: impl FnOnce() -> bool) -> bool {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // SAFETY: the child runs `what`, which libc's memory is fit for after a fork, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a plain number.
        unsafe { libc::alarm(60) };
        let said = catch_unwind(AssertUnwindSafe(what)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!said)) };
    }
    let mut status = 0;
    // SAFETY: the target is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Told<'a>(&'a AtomicU32);

    impl Drop for Told<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn what_is_ours_is_had_and_dropped_once() {
        let drops = AtomicU32::new(0);
        let owned = Owned::new(Told(&drops)).expect("forks are watched");
        assert!(owned.get().is_some());
        drop(owned.take());
        assert_eq!(drops.load(Relaxed), 1);
        drop(Owned::new(Told(&drops)).expect("forks are watched"));
        assert_eq!(drops.load(Relaxed), 2);
    }

    #[test]
    fn a_lock_is_held_by_one() {
        let (lock, held) = (Lock::new(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _turn = lock.lock().expect("forks are watched");
                        assert_eq!(held.fetch_add(1, Relaxed), 0);
                        held.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn a_child_takes_a_lock_that_its_parent_holds() {
        let lock = Lock::new();
        let _turn = lock.lock().expect("forks are watched");
        let takes = in_child(|| lock.lock().is_ok());
        assert!(takes, "the child waits for its parent's thread");
    }

    #[test]
    fn a_child_has_nothing_of_it_and_drops_nothing() {
        let drops = AtomicU32::new(0);
        let mut owned = Some(Owned::new(Told(&drops)).expect("forks are watched"));
        let has_nothing = in_child(|| {
            let had = owned.as_ref().is_some_and(|owned| owned.get().is_some());
            owned = None;
            !had && drops.load(Relaxed) == 0
        });
        assert!(has_nothing, "the child has its parent's value");
        let owned = owned.expect("the parent's");
        assert!(owned.get().is_some(), "the parent has lost it");
    }
}
