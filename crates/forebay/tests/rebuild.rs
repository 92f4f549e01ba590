//! What others see while a session is rebuilt.

mod here;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay::keeper::repair;
use forebay::memory::files::{EXCEEDING, HOLEY};
use forebay::session::look::look;
use forebay::sync::Ordering;
use forebay::{Config, File, OpenOptions, Session};
use tempfile::TempDir;

/// A session, and a file in it. `None`: the file is the kernel's here.
fn one_file(name: &str) -> Option<(Session, TempDir, File)> {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.session = format!("test-{name}-{}", std::process::id());
    let session = Session::join(config).expect("a session");
    let dir = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a directory");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let file = session.open_file(dir.path().join("data"), options);
    let file = file.expect("a file");
    if let Some(reason) = file.kernel_reason() {
        here::skipped(reason);
        return None;
    }
    Some((session, dir, file))
}

/// Syncs look at what a file owes outside operations: for not one moment may a rebuild say that it owes nothing.
#[test]
fn a_file_owes_what_it_owes_throughout() {
    let Some((session, _dir, file)) = one_file("rebuild") else {
        return;
    };
    file.write_at(&[7; 100_000], 0).expect("written");
    let place = session.place().expect("a place");
    let path = place.path.expect("a file");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let shared = session.shared();
            let me = shared.me().expect("a slot");
            for _ in 0..300 {
                repair::after_death(shared, me).expect("nobody else repairs");
            }
            done.store(true, Relaxed);
        });
        let seen = look(&path).expect("an arena").expect("there");
        while !done.load(Relaxed) {
            let owed = seen.files()[0].owed_bytes;
            assert!(owed >= 100_000, "{owed} bytes owed");
        }
    });
    file.close().expect("closed");
}

/// Who has died may have been making a hole: what others have seen of the file's space, and are about to rely on, counts for nothing.
#[test]
fn what_was_seen_of_a_files_space_counts_for_nothing_afterwards() {
    let Some((session, _dir, file)) = one_file("seen-space") else {
        return;
    };
    let entry = file.core().expect("a managed file").entry();
    entry.note_solid(0, 1 << 20);
    assert!(entry.is_solid(0, 4096));
    let holes = entry.holes.load(Ordering::Acquire);
    let shared = session.shared();
    repair::after_death(shared, shared.me().expect("a slot")).expect("nobody else repairs");
    assert!(!entry.is_solid(0, 4096));
    assert_ne!(entry.holes.load(Ordering::Acquire), holes);
    file.close().expect("closed");
}

/// What the dead have left beyond the end is dropped when the file gets longer, and the space that was reserved there with it: nobody counts on
/// that afterwards.
#[test]
fn space_that_goes_with_what_the_dead_have_left_is_asked_for_again() {
    let Some((_session, _dir, file)) = one_file("beyond") else {
        return;
    };
    for at in (0..3 << 20).step_by(4096) {
        file.write_at(&[7; 4096], at).expect("written");
    }
    file.sync_all().expect("synced");
    let core = file.core().expect("a managed file");
    let entry = core.entry();
    let reserved = entry.reserved_end.load(Ordering::Acquire);
    assert!(reserved >= (3 << 20) + 65_536, "nothing is reserved ahead");
    entry.flags.fetch_or(EXCEEDING, Ordering::AcqRel);
    file.set_len(reserved).expect("longer");
    let is_promised = |at: u64| {
        let is_holey = entry.flags.load(Ordering::Acquire) & HOLEY != 0;
        at + 4096 <= entry.reserved_end.load(Ordering::Acquire)
            && (!is_holey || entry.is_solid(at, at + 4096))
    };
    for at in ((3 << 20)..reserved).step_by(4096) {
        let has_space = core.device.is_allocated(at, 4096).expect("a look");
        assert!(has_space || !is_promised(at), "no space at {at}");
    }
    file.close().expect("closed");
}
