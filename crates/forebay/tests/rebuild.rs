//! What others see while a session is rebuilt.

mod here;

use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use forebay::device::RealFile;
use forebay::file::core::Core;
use forebay::file::settle::{self, Durability};
use forebay::flush::errors;
use forebay::keeper::repair;
use forebay::memory::files::{EXCEEDING, HOLEY, TRUNCATING};
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

/// The same file, as a program has it that has opened it to read, and finds no keeper to ask.
fn opened_to_read(file: &File, dir: &TempDir) -> Core {
    let [direct, buffered] = [libc::O_DIRECT, 0].map(|flags| {
        let mut options = std::fs::File::options();
        let opened = options.read(true).custom_flags(flags);
        OwnedFd::from(opened.open(dir.path().join("data")).expect("the file"))
    });
    let core = file.core().expect("a managed file");
    let device = RealFile::from_descriptors_for_reading(direct, buffered);
    Core {
        shared: Arc::clone(&core.shared),
        id: core.id,
        device: Arc::new(device.expect("a file of the same kind")),
    }
}

/// Somebody has died in a truncation, and the keeper does not answer.
#[test]
fn who_only_reads_finishes_what_a_death_has_left() {
    let Some((session, dir, file)) = one_file("half-cut") else {
        return;
    };
    file.write_at(&[7; 100_000], 0).expect("written");
    file.sync_all().expect("synced");
    let reader = opened_to_read(&file, &dir);
    let me = session.shared().me().expect("a slot");
    let entry = reader.entry();
    entry.truncating.store(50_000 + 1, Ordering::Release);
    entry.flags.fetch_or(TRUNCATING, Ordering::AcqRel);
    assert_eq!(reader.size(me).ok(), Some(50_000));
    assert_eq!(entry.flags.load(Ordering::Acquire) & TRUNCATING, 0);
    assert_eq!(file.len().expect("a size"), 50_000);
}

/// Somebody has died while it made the device file longer: who may only read cannot cut it, and syncs all the same.
#[test]
fn who_only_reads_syncs_what_a_death_has_left_longer() {
    let Some((session, dir, file)) = one_file("left-longer") else {
        return;
    };
    file.write_at(&[7; 100_000], 0).expect("written");
    file.sync_all().expect("synced");
    let core = file.core().expect("a managed file");
    let reader = opened_to_read(&file, &dir);
    let me = session.shared().me().expect("a slot");
    let longer = core.change(me, |device| device.set_len(200_000));
    longer.expect("longer");
    core.entry().flags.fetch_or(EXCEEDING, Ordering::AcqRel);
    let seen = AtomicU32::new(errors::sequence(core.entry()));
    settle::settle(&reader, me, Durability::All, &seen).expect("synced");
    let on_disk = std::fs::metadata(dir.path().join("data")).expect("the file");
    assert_eq!(on_disk.len(), 100_000);
}
