//! Telling a forked child from the process that has made something.
//!
//! A child that was forked has copies of everything and owns nothing of it: its threads are gone but one, and what stands in
//! the arena in its name is its parent's. [`Owned`] gives what it holds to the process that made it alone. Forks are counted
//! by libc's own hook (`pthread_atfork`): a child made by the bare system call is not noticed.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    fn a_child_has_nothing_of_it_and_drops_nothing() {
        let drops = AtomicU32::new(0);
        let owned = Owned::new(Told(&drops)).expect("forks are watched");
        // SAFETY: the child looks at its own copy, and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let had = owned.get().is_some();
            drop(owned);
            let wrong = had || drops.load(Relaxed) != 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(wrong)) };
        }
        let mut status = 0;
        // SAFETY: the target is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has its parent's value");
        assert!(owned.get().is_some(), "the parent has lost it");
    }
}
