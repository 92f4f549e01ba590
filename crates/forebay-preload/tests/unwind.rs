//! The library's unwinder, by itself: this test program uses it for its own panics.

#[path = "../src/unwind.rs"]
mod unwind;

#[path = "library/mod.rs"]
mod library;

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

fn is_loaded() -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("readable");
    maps.contains("libgcc_s")
}

struct Counts<'a>(&'a Cell<u32>);

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[inline(never)]
fn deep(levels: u32, dropped: &Cell<u32>) -> u32 {
    let _counts = Counts(dropped);
    assert!(levels > 0, "at the bottom");
    deep(levels - 1, dropped) + 1
}

#[test]
fn it_is_found_when_something_panics() {
    assert!(!is_loaded(), "nothing has been unwound yet");
    let dropped = Cell::new(0);
    for round in 1..=3 {
        let panicked = catch_unwind(AssertUnwindSafe(|| deep(20, &dropped)));
        let said = panicked.expect_err("a panic");
        assert_eq!(said.downcast_ref(), Some(&"at the bottom"));
        assert_eq!(dropped.get(), 21 * round);
    }
    assert!(is_loaded());
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    assert!(
        trace.contains("it_is_found_when_something_panics"),
        "{trace}"
    );
}

#[test]
fn the_library_loads_nothing_into_a_program_but_itself() {
    let loaded = |library: &str| {
        let said = Command::new("/bin/true")
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .env("LD_PRELOAD", library)
            .output()
            .expect("the dynamic linker says what it would load");
        String::from_utf8_lossy(&said.stdout).lines().count()
    };
    let library = library::built();
    let library = library.to_str().expect("a path in UTF-8");
    assert_eq!(loaded(library), loaded("") + 1);
}
