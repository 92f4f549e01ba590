//! How stores end: whoever closes one hears of what could not be made durable, and nothing is acknowledged behind its back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::drive::{by, clock, open, small_store};
use super::sim::Simulated;
use super::watched::Watched;
use crate::errno::{Errno, Result};
use crate::medium::{Durability, For, Medium};
use crate::store::Store;
use crate::types::{OpenOptions, ROOT};

/// A medium whose syncs fail once it is told so.
struct Failing(Arc<Simulated>, AtomicBool);

impl Medium for Failing {
    fn length(&self) -> u64 {
        self.0.length()
    }
    fn durability(&self) -> Durability {
        self.0.durability()
    }
    fn address(&self, at: u64, length: usize, writable: bool) -> *mut u8 {
        self.0.address(at, length, writable)
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        self.0.read(at, into);
    }
    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }
    fn stream(&self, at: u64, bytes: &[u8], what: For) {
        self.0.stream(at, bytes, what);
    }
    fn flush(&self, at: u64, length: u64, what: For) {
        self.0.flush(at, length, what);
    }
    fn fence(&self, what: For) {
        self.0.fence(what);
    }
    fn sync(&self, what: For) -> Result<()> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(Errno::EIO),
            false => self.0.sync(what),
        }
    }
}

/// The flusher has met the error, and nobody has synced since.
#[test]
fn a_close_tells_of_a_commit_in_the_background_that_has_failed() {
    let simulated = Simulated::new(small_store(), Durability::Fdatasync);
    let medium = Arc::new(Failing(simulated, AtomicBool::new(false)));
    let options = OpenOptions {
        flush_interval: Some(Duration::from_millis(10)),
        read_only: false,
    };
    let shared = Arc::clone(&medium) as Arc<dyn Medium>;
    let store = Store::open_medium(shared, options, clock).expect("opens");
    let file = store.create(ROOT, b"file", by(0o644)).expect("made").inode;
    store.sync().expect("synced");
    medium.1.store(true, Ordering::Relaxed);
    assert_eq!(store.write(file, 0, &[7; 5000]), Ok(5000));
    let begun = Instant::now();
    while store.write(file, 0, &[8]).is_ok() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.close(), Err(Errno::EIO));
}

#[test]
fn a_window_that_is_committed_beside_a_close_is_durable_or_refused() {
    let medium = Watched::new(Simulated::new(small_store(), Durability::Dax));
    let store = open(&medium).expect("opens");
    let file = store.create(ROOT, b"file", by(0o644)).expect("made").inode;
    let mut window = store.window(file, 0, 4096).expect("a window");
    window.fill(9);
    let (tell, told) = std::sync::mpsc::channel();
    medium.at_commit(Some(Box::new(move || {
        tell.send(window.commit()).expect("somebody listens");
    })));
    store.close().expect("closed");
    let committed = told.recv().expect("it was asked");
    let again = open(&medium).expect("opens again");
    let size = again.getattr(file).expect("there").size;
    assert_eq!(
        committed.is_ok(),
        size == 4096,
        "{committed:?}, {size} bytes"
    );
}

#[test]
fn a_panic_of_a_commit_is_an_error_of_all_syncs_and_of_the_close() {
    let planted = || -> Option<Box<dyn FnOnce() + Send>> { Some(Box::new(|| panic!("planted"))) };
    let medium = Watched::new(Simulated::new(small_store(), Durability::Dax));
    let store = open(&medium).expect("opens");
    store.create(ROOT, b"file", by(0o644)).expect("made");
    medium.at_commit(planted());
    let sync = || store.sync();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(sync));
    assert!(unwound.is_err(), "{unwound:?}");
    assert_eq!(store.sync(), Err(Errno::EIO));
    assert_eq!(store.close(), Err(Errno::EIO));
    // And in the background.
    let options = OpenOptions {
        flush_interval: Some(Duration::from_millis(10)),
        read_only: false,
    };
    let shared = Arc::clone(&medium) as Arc<dyn Medium>;
    let store = Store::open_medium(shared, options, clock).expect("opens again");
    medium.at_commit(planted());
    let made = |number| store.create(ROOT, format!("{number}").as_bytes(), by(0o644));
    let begun = Instant::now();
    let mut number = 0;
    while made(number).is_ok() && begun.elapsed() < Duration::from_secs(60) {
        number += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.close(), Err(Errno::EIO));
}
