//! The crash points themselves: a check on the checker that all crash tests rely on.
//!
//! If counting missed an access, a test that kills a client before every access would be green
//! and prove nothing.
#![cfg(feature = "sim")]

use forebay::sim;
use forebay::sync::{AtomicU64, Ordering};

/// One access of every kind, each leaving a trace of its own.
fn every_kind_of_access(word: &AtomicU64) {
    word.store(1, Ordering::Relaxed);
    word.swap(2, Ordering::Relaxed);
    let _ = word.compare_exchange(2, 4, Ordering::Relaxed, Ordering::Relaxed);
    word.fetch_add(4, Ordering::Relaxed);
    word.fetch_or(16, Ordering::Relaxed);
    word.fetch_and(16, Ordering::Relaxed);
    word.fetch_sub(8, Ordering::Relaxed);
    word.fetch_max(64, Ordering::Relaxed);
    word.load(Ordering::Relaxed);
}

/// The word after 0, 1, 2... accesses.
const TRACES: [u64; 9] = [0, 1, 2, 4, 8, 24, 16, 8, 64];

#[test]
fn every_access_is_counted() {
    let word = AtomicU64::new(0);
    let before = sim::count();
    every_kind_of_access(&word);
    assert_eq!(sim::count() - before, 9);
}

#[test]
fn a_client_dies_before_its_nth_access() {
    for (n, trace) in (0..).zip(TRACES) {
        let word = AtomicU64::new(0);
        let result = sim::crash_after(n, || every_kind_of_access(&word));
        assert!(result.is_none(), "access {n} was not reached");
        assert_eq!(
            word.load(Ordering::Relaxed),
            trace,
            "killed before access {n}"
        );
    }
}

#[test]
fn a_client_that_finishes_first_lives() {
    let word = AtomicU64::new(0);
    assert_eq!(
        sim::crash_after(9, || every_kind_of_access(&word)),
        Some(())
    );
    word.load(Ordering::Relaxed);
}

#[test]
fn a_failed_assertion_is_no_crash() {
    let panics = std::panic::catch_unwind(|| sim::crash_after(100, || panic!("a real failure")));
    assert!(
        panics.is_err(),
        "the panic of a test must not be taken for a simulated death"
    );
}

#[test]
fn guards_see_that_the_client_is_dead() {
    struct Guard<'a>(&'a mut bool);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            *self.0 = sim::crashed();
        }
    }
    let mut seen = false;
    let word = AtomicU64::new(0);
    sim::crash_after(0, || {
        let _guard = Guard(&mut seen);
        word.store(1, Ordering::Relaxed);
    });
    assert!(seen && !sim::crashed());
}
