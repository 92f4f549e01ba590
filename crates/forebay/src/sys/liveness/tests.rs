//! A thread's end, marked in words of its own, beside the program's mutexes and with spoilt pointers.

use super::{Word, hold, is_held, let_go, owner_died};
use std::sync::atomic::Ordering::Relaxed;

fn word() -> &'static Word {
    Box::leak(Box::default())
}

/// Does something in a thread that ends without letting go.
fn in_a_thread(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work).join().expect("no panic");
}

/// A mutex as programs have them, in the same list of the thread's.
struct Robust(libc::pthread_mutex_t);

impl Robust {
    fn new() -> &'static mut Self {
        // SAFETY: all zeros is a mutex; the attributes are initialised before they are used, by this thread alone.
        unsafe {
            let robust = Box::leak(Box::new(Robust(std::mem::zeroed())));
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(&raw mut robust.0, &raw const attributes);
            robust
        }
    }

    fn lock(&mut self) -> i32 {
        // SAFETY: initialised, and never moved.
        unsafe { libc::pthread_mutex_lock(&raw mut self.0) }
    }

    fn unlock(&mut self) {
        // SAFETY: initialised, and never moved.
        unsafe { libc::pthread_mutex_unlock(&raw mut self.0) };
    }
}

#[test]
fn a_death_is_marked_and_a_good_end_is_not() {
    let words: [_; 4] = std::array::from_fn(|_| word());
    in_a_thread(move || {
        for word in words {
            assert!(!is_held(word) && hold(word) && is_held(word));
        }
        let_go(words[1]);
        assert!(!is_held(words[1]));
        let_go(words[3]);
        let_go(words[0]);
        assert!(hold(words[1]));
    });
    let died = words.map(owner_died);
    assert_eq!(died, [false, true, true, false]);
    assert!(!is_held(words[2]), "the dead hold nothing");
}

/// A program that writes into the arena by mistake may write over nodes: a thread that lets go does not follow them.
#[test]
fn pointers_in_shared_memory_are_not_followed() {
    for wild in [0, 8, 1 << 46, u64::MAX] {
        let words: [_; 3] = std::array::from_fn(|_| word());
        in_a_thread(move || {
            let spoil = || {
                for word in words {
                    word.next.store(wild, Relaxed);
                    word.previous.store(wild, Relaxed);
                }
            };
            let own = Robust::new();
            assert_eq!(own.lock(), 0);
            for word in words {
                assert!(hold(word));
                spoil();
            }
            let more = Robust::new();
            assert_eq!(more.lock(), 0);
            let_go(words[1]);
            spoil();
            own.unlock();
            more.unlock();
            let_go(words[0]);
            let_go(words[2]);
            assert_eq!(own.lock(), 0);
            assert!(hold(words[0]));
        });
        assert!(owner_died(words[0]) && !owner_died(words[2]));
    }
}

/// What the program holds is marked as it would be without ours, wherever it is in the list.
#[test]
fn the_programs_own_mutexes_are_marked_too() {
    let ours = [word(), word()];
    let theirs: [_; 3] = std::array::from_fn(|_| Robust::new());
    let at = theirs.map(|robust| (&raw mut *robust).expose_provenance());
    let mutex = move |n: usize| {
        // SAFETY: leaked above; one thread after the other uses it.
        unsafe { &mut *std::ptr::with_exposed_provenance_mut::<Robust>(at[n]) }
    };
    in_a_thread(move || {
        assert_eq!(mutex(0).lock(), 0);
        assert!(hold(ours[0]));
        assert_eq!(mutex(1).lock(), 0);
        assert!(hold(ours[1]));
        assert_eq!(mutex(2).lock(), 0);
        mutex(1).unlock();
        let_go(ours[0]);
    });
    let found = [0, 1, 2].map(|n| mutex(n).lock());
    assert_eq!(found, [libc::EOWNERDEAD, 0, libc::EOWNERDEAD]);
    assert_eq!(ours.map(owner_died), [false, true]);
}

/// The child begins with an empty list, and this thread's account of what is in it.
#[test]
fn a_forked_child_holds_for_itself() {
    let words = [word(), word()];
    in_a_thread(move || {
        assert!(hold(words[0]));
        // SAFETY: the child makes system calls alone, touches memory of its own, and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = hold(words[1]);
            words[0].next.store(8, Relaxed);
            let_go(words[1]);
            // SAFETY: ends the child.
            unsafe { libc::_exit(if fine && hold(words[1]) { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our own variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(is_held(words[0]));
        let_go(words[0]);
    });
    assert!(!owner_died(words[0]));
}
