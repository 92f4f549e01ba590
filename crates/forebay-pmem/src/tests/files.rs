//! Stores in real files: locks, sizes, what is no store, threads.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use super::drive::by;
use crate::check::check;
use crate::errno::OpenError;
use crate::medium::Durability;
use crate::store::{Store, create, create_with, information, is_store};
use crate::types::{CreateOptions, OpenOptions, ROOT};

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    (folder, path)
}

#[test]
fn a_store_in_a_file_is_there_when_it_is_opened_again() {
    let (_folder, path) = place();
    assert!(!is_store(&path));
    create(&path, Some(8 << 20)).expect("made");
    assert!(is_store(&path));
    assert!(
        matches!(create(&path, Some(8 << 20)), Err(OpenError::Occupied(_))),
        "nobody said to overwrite"
    );
    let store = Store::open(&path, OpenOptions::default()).expect("opens");
    assert!(matches!(
        store.durability(),
        Durability::Fdatasync | Durability::Dax
    ));
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.write(file, 3, &[5; 3_000_000]), Ok(3_000_000));
    assert!(matches!(
        Store::open(&path, OpenOptions::default()),
        Err(OpenError::Busy)
    ));
    assert!(matches!(check(&path), Err(OpenError::Busy)));
    assert_eq!(store.fsync(file), Ok(()));
    assert_eq!(store.close(), Ok(()));
    let report = check(&path).expect("can be checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!((report.files, report.directories), (1, 1));
    assert!(report.stretches <= 3, "{} stretches", report.stretches);
    let information = information(&path).expect("can be looked at");
    assert_eq!((information.records, information.damage.len()), (0, 0));
    let store = Store::open(&path, OpenOptions::default()).expect("opens again");
    let mut bytes = vec![0; 3_000_003];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(3_000_003));
    assert!(bytes[3..].iter().all(|byte| *byte == 5) && bytes[..3] == [0; 3]);
}

#[test]
fn nobody_else_reads_a_store() {
    let (_folder, path) = place();
    create(&path, Some(8 << 20)).expect("made");
    let mode = std::fs::metadata(&path).expect("there").mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_is_no_store_is_told_apart() {
    let (_folder, path) = place();
    let open = || Store::open(&path, OpenOptions::default()).err();
    assert!(matches!(open(), Some(OpenError::System { .. })));
    std::fs::write(&path, b"").expect("written");
    assert!(matches!(open(), Some(OpenError::NotAStore(_))));
    std::fs::write(&path, vec![7; 100_000]).expect("written");
    assert!(matches!(open(), Some(OpenError::NotAStore(_))));
    let small = create(&path, Some(10_000));
    assert!(
        matches!(small, Err(OpenError::TooSmall { size: 10_000, .. })),
        "{small:?}"
    );
    assert_eq!(
        std::fs::read(&path).map(|bytes| bytes.len()).ok(),
        Some(100_000),
        "nothing was touched"
    );
    create_with(
        &path,
        &CreateOptions {
            size: Some(1 << 20),
            sparse: true,
            force: true,
            ..CreateOptions::default()
        },
    )
    .expect("made");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opens");
    file.set_len(500_000).expect("cut");
    assert!(matches!(open(), Some(OpenError::Damaged(_))));
    assert!(check(&path).is_err());
}

#[test]
fn another_files_content_is_not_overwritten_unless_that_is_said() {
    let (_folder, path) = place();
    let options = |force| CreateOptions {
        size: Some(1 << 20),
        sparse: true,
        force,
        ..CreateOptions::default()
    };
    // Behind the new store's end too, and behind a hole.
    for at in [0, 5000, 3 << 20] {
        let file = std::fs::File::create(&path).expect("made");
        file.write_all_at(b"x", at).expect("written");
        file.set_len(4 << 20).expect("made longer");
        let before = std::fs::read(&path).expect("read");
        let made = create_with(&path, &options(false));
        let told = matches!(&made, Err(OpenError::Occupied(_)));
        assert!(told, "a byte at {at}: {made:?}");
        let told = made.err().map(|error| error.to_string());
        assert!(told.is_some_and(|told| told.contains("--force")));
        assert!(std::fs::read(&path).expect("read") == before, "untouched");
        create_with(&path, &options(true)).expect("made");
        assert!(is_store(&path));
    }
    // An empty one and one of zeros are nobody's.
    for length in [0, 2 << 20] {
        std::fs::write(&path, vec![0; length]).expect("written");
        create_with(&path, &options(false)).expect("made");
    }
    // One that is in use is told to be, and keeps its length.
    let store = Store::open(&path, OpenOptions::default()).expect("opens");
    let busy = create_with(&path, &options(true));
    assert!(matches!(busy, Err(OpenError::Busy)), "{busy:?}");
    assert_eq!(store.close(), Ok(()));
}

#[test]
fn every_size_from_the_smallest_on_makes_a_store_or_is_refused() {
    let (_folder, path) = place();
    for blocks in [
        1, 63, 64, 65, 100, 255, 256, 1000, 1023, 1024, 1025, 40_000, 300_000,
    ] {
        let size = Some(blocks * 4096 + 5);
        let made = create_with(
            &path,
            &CreateOptions {
                size,
                sparse: true,
                force: true,
                ..CreateOptions::default()
            },
        );
        assert_eq!(made.is_ok(), blocks >= 64, "{blocks} blocks: {made:?}");
        if made.is_ok() {
            let store = Store::open(&path, OpenOptions::default()).expect("opens");
            let file = store.create(ROOT, b"f", by(0o644)).expect("made");
            assert_eq!(store.write(file.inode, 0, b"bytes"), Ok(5));
            assert_eq!(store.close(), Ok(()));
            assert!(
                check(&path).expect("can be checked").is_clean(),
                "{blocks} blocks"
            );
        }
    }
}

#[test]
fn threads_write_read_and_sync_at_once() {
    let (_folder, path) = place();
    create(&path, Some(32 << 20)).expect("made");
    let options = OpenOptions {
        flush_interval: Some(Duration::from_millis(10)),
        read_only: false,
    };
    let store = Store::open(&path, options).expect("opens");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                let name = format!("file{thread}");
                let file = store
                    .create(ROOT, name.as_bytes(), by(0o644))
                    .map(|is| is.inode)
                    .expect("made");
                for turn in 0..30u8 {
                    let bytes = vec![thread * 40 + turn; 50_000];
                    assert_eq!(
                        store.write(file, 1000 * u64::from(turn), &bytes),
                        Ok(50_000)
                    );
                    let mut read = vec![0; 50_000];
                    assert_eq!(
                        store.read(file, 1000 * u64::from(turn), &mut read),
                        Ok(50_000)
                    );
                    assert!(read == bytes, "thread {thread}, turn {turn}");
                    if turn % 10 == 3 {
                        assert_eq!(store.fsync(file), Ok(()));
                        let other = format!("{name}.{turn}");
                        let done = store.link(file, ROOT, other.as_bytes()).map(|is| is.links);
                        assert!(done.is_ok(), "{done:?}");
                    }
                }
            });
        }
    });
    assert_eq!(store.close(), Ok(()));
    let report = check(&path).expect("can be checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
#[ignore = "long: a million files"]
fn a_store_of_a_million_files_opens_in_moments_after_a_crash() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let options = CreateOptions {
        size: Some(64 << 30),
        sparse: true,
        ..CreateOptions::default()
    };
    create_with(&path, &options).expect("made");
    let store = Store::open(&path, OpenOptions::default()).expect("opens");
    let begun = std::time::Instant::now();
    for directory in 0..1000 {
        let name = directory.to_string();
        let made = store.mkdir(ROOT, name.as_bytes(), by(0o755));
        let directory = made.map(|is| is.inode).expect("made");
        for file in 0..1000 {
            let name = file.to_string();
            assert!(store.create(directory, name.as_bytes(), by(0o644)).is_ok());
        }
    }
    eprintln!("1,000,000 files made in {:?}", begun.elapsed());
    assert_eq!(store.sync(), Ok(()));
    // What a crash leaves: the log is as it is, and nobody has closed the store.
    let done = std::process::Command::new("cp")
        .arg("--sparse=always")
        .args([&path, &copy])
        .status();
    assert!(done.is_ok_and(|status| status.success()));
    let records = information(&copy).expect("can be looked at").records;
    let begun = std::time::Instant::now();
    let crashed = Store::open(&copy, OpenOptions::default()).expect("opens");
    let took = begun.elapsed();
    eprintln!("opened in {took:?}, {records} records");
    assert!(took < Duration::from_secs(20), "{took:?}");
    let last = crashed
        .lookup(ROOT, b"999")
        .map(|is| is.inode)
        .expect("is there");
    assert!(crashed.lookup(last, b"999").is_ok());
}
