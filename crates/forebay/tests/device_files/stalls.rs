//! Waiting for direct writes that are held up in the device.
//!
//! `FOREBAY_TEST_STALLS` names pairs `directory=floor`, separated by colons: the directory's file
//! system lies in a file on `floor`, so freezing the floor holds up every write to the device, for as
//! long as one likes.

use crate::disks;
use crate::places::{pattern, run, write};
use forebay::device::queue::Uring;
use forebay::device::{DeviceFile, Queue, RealFile, Request, RequestKind};
use forebay::sys::memory::AlignedBytes;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Long enough that a call that does not wait has returned.
const MOMENT: Duration = Duration::from_millis(300);
const LEN: usize = 256 * 1024;

/// A file system that stands still until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(floor: &Path) -> Self {
        let frozen = Self(floor.to_owned());
        assert!(
            run("fsfreeze", &["--freeze"], floor),
            "cannot freeze {}",
            floor.display()
        );
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze"], &self.0);
    }
}

/// Where the write that is held up goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    Written,
    Reserved,
    Beyond,
    /// As `Written`, on a file system that is full but for the file itself.
    Full,
}

fn prepare(dir: &Path, target: Target) -> Arc<RealFile> {
    let own = tempfile::tempfile_in(dir).expect("a file");
    let file = RealFile::reopen(own.as_fd()).expect("managed");
    let len = 1 << 20;
    write(&file, 0, &pattern(1, len)).expect("space");
    match target {
        Target::Written | Target::Full => Ok(()),
        Target::Reserved => file
            .punch(0, len as u64)
            .and_then(|()| file.reserve(0, len as u64)),
        Target::Beyond => file.set_len(4096),
    }
    .expect("space");
    file.sync_all().expect("sync");
    Arc::new(file)
}

/// Whether waiting ends while the device stands still and nothing is under way. Without this, a wait
/// that merely needs the device would look like one that waits for the write.
fn ends_at_once_when_idle(dir: &Path, floor: &Path) -> bool {
    let file = prepare(dir, Target::Written);
    let frozen = Frozen::freeze(floor);
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || sender.send(file.wait_in_flight()));
    let early = receiver.recv_timeout(MOMENT);
    drop(frozen);
    let ended = early.is_ok();
    early
        .or_else(|_| receiver.recv())
        .expect("an answer")
        .expect("waiting does not fail");
    thread.join().expect("no panic").expect("somebody listens");
    ended
}

/// Starts a write, holds it up, and sees whether `wait` ends before it does.
fn waits_for_a_write(dir: &Path, floor: &Path, target: Target) -> bool {
    let file = prepare(dir, target);
    let ballast = tempfile::tempfile_in(dir).expect("a file");
    if matches!(target, Target::Full) {
        disks::take_all(&ballast);
        ballast.sync_all().expect("sync");
    }
    let memory = AlignedBytes::copy_of(&pattern(2, LEN), 4096);
    let mut queue = Uring::new(2).expect("io_uring");
    let frozen = Frozen::freeze(floor);
    let (shared, kind) = (Arc::clone(&file), RequestKind::Write);
    let pieces = vec![memory.piece()];
    queue.submit(Request {
        file: shared,
        kind,
        pieces,
        offset: 512 * 1024,
        token: 0,
    });
    std::thread::sleep(MOMENT);
    let mut done = Vec::new();
    queue.poll(false, &mut done);
    assert!(done.is_empty(), "the write was to be held up: {done:?}");

    let (sender, receiver) = channel();
    let waiter = Arc::clone(&file);
    let thread = std::thread::spawn(move || sender.send(waiter.wait_in_flight()));
    let early = receiver.recv_timeout(MOMENT);
    drop(frozen);
    let waited = matches!(early, Err(RecvTimeoutError::Timeout));
    let result = early.or_else(|_| receiver.recv());
    result.expect("an answer").expect("waiting does not fail");
    thread.join().expect("no panic").expect("somebody listens");

    let back = AlignedBytes::new(LEN, 4096);
    let seen = file.read_direct(back.piece(), 512 * 1024).expect("read");
    queue.poll(true, &mut done);
    assert_eq!(done[0].result.as_ref().expect("written"), &LEN);
    waited && seen == LEN && back.to_vec() == pattern(2, LEN)
}

#[test]
fn waiting_ends_after_writes_that_the_device_holds_up() {
    let stalls = std::env::var("FOREBAY_TEST_STALLS").unwrap_or_default();
    if stalls.is_empty() {
        return crate::here::skipped(
            "FOREBAY_TEST_STALLS names no file system that can be held up",
        );
    }
    for stall in stalls.split(':').filter(|stall| !stall.is_empty()) {
        let (dir, floor) = stall.split_once('=').expect("directory=floor");
        let (dir, floor) = (Path::new(dir), Path::new(floor));
        assert!(
            ends_at_once_when_idle(dir, floor),
            "{}: waits for nothing",
            dir.display()
        );
        for target in [Target::Written, Target::Reserved, Target::Beyond] {
            let waited = waits_for_a_write(dir, floor, target);
            let answer = if waited { "waits" } else { "does not wait" };
            println!("{}: {target:?}: {answer}", dir.display());
            assert!(waited, "{}: {target:?}", dir.display());
        }
        // Where no space is left, XFS says so when the call has waited.
        let waited = waits_for_a_write(dir, floor, Target::Full);
        assert!(waited, "{}: full", dir.display());
    }
}
