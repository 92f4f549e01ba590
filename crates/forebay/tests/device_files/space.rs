//! Space: reserving, trimming, holes, full disks; and that none of it shows in size or times.

use crate::places::{self, Place, pattern, read, run, write};
use forebay::device::file_system::Nature;
use forebay::device::{DeviceFile, DeviceStat, RealFile};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Size and modification time, after long enough that a change would show.
fn visible(file: &RealFile) -> (u64, u64) {
    let DeviceStat { len, mtime_ns, .. } = file.stat().expect("stat");
    thread::sleep(Duration::from_millis(15));
    (len, mtime_ns)
}

#[test]
fn reserving_and_trimming_leave_size_and_times() {
    for place in places::managed() {
        let name = place.dir.display();
        for len in [0, 5000, 8192] {
            let (_own, file) = place.file();
            file.set_len(len).expect("size");
            let before = visible(&file);
            let allocated = file.stat().expect("stat").allocated;
            file.reserve(0, 4 * MIB).expect("space");
            assert_eq!(visible(&file), before, "{name}: reserved");
            assert!(file.stat().expect("stat").allocated >= 4 * MIB, "{name}");
            assert!(file.is_allocated(0, 4 * MIB).expect("extents"), "{name}");
            file.trim().expect("trim");
            assert_eq!(visible(&file), before, "{name}: trimmed");
            let left = file.stat().expect("stat").allocated;
            assert!(
                left <= allocated + len.next_multiple_of(65536),
                "{name}: {left} left"
            );
            file.trim().expect("nothing to trim");
        }
    }
}

#[test]
fn a_trim_with_nothing_to_give_back_changes_nothing() {
    for place in places::managed() {
        let (_own, file) = place.file();
        write(&*file, 0, &pattern(1, 8192)).expect("space");
        file.trim().expect("trim");
        // Btrfs counts what was written only once its own books are closed, a little later.
        let stat = || file.stat().expect("stat");
        let counted = Instant::now() + Duration::from_secs(10);
        while stat().allocated < 8192 && Instant::now() < counted {
            thread::sleep(Duration::from_millis(1));
        }
        let before = stat();
        thread::sleep(Duration::from_millis(15));
        file.trim().expect("trim");
        assert_eq!(
            file.stat().expect("stat"),
            before,
            "{}",
            place.dir.display()
        );
    }
}

#[test]
fn written_reserved_and_delayed_space_counts_and_holes_do_not() {
    for place in places::managed() {
        let name = place.dir.display();
        let (own, file) = place.file();
        file.set_len(8 * MIB).expect("size");
        assert!(!file.is_allocated(0, MIB).expect("extents"), "{name}: hole");
        write(&*file, MIB, &pattern(1, MIB as usize)).expect("space");
        file.reserve(2 * MIB, MIB).expect("space");
        own.write_all_at(&pattern(2, MIB as usize), 3 * MIB)
            .expect("space");
        for (what, offset, len, is) in [
            ("written", MIB, MIB, true),
            ("reserved", 2 * MIB, MIB, true),
            ("delayed", 3 * MIB, MIB, true),
            ("all three", MIB + 1, 3 * MIB - 1, true),
            ("hole after", 4 * MIB, 4096, false),
            ("hole before", MIB - 1, 2, false),
            ("over the edge", 3 * MIB, MIB + 1, false),
            ("nothing", 0, 0, true),
        ] {
            assert_eq!(
                file.is_allocated(offset, len).expect("extents"),
                is,
                "{name}: {what}"
            );
        }
        file.punch(MIB + 65536, 65536).expect("punch");
        assert!(
            !file.is_allocated(MIB, MIB).expect("extents"),
            "{name}: punched"
        );
        assert_eq!(
            read(&*file, MIB + 65536, 65536).expect("read"),
            vec![0; 65536]
        );
        assert_eq!(file.stat().expect("stat").len, 8 * MIB);
    }
}

#[test]
fn a_file_of_many_extents_is_seen_whole() {
    for place in places::managed() {
        let (_own, file) = place.file();
        for at in (0..200).rev() {
            write(&*file, at * 2 * 65536, &pattern(1, 4096)).expect("space");
        }
        for at in 0..200 {
            assert!(file.is_allocated(at * 2 * 65536, 4096).expect("extents"));
            assert!(
                !file
                    .is_allocated((at * 2 + 1) * 65536, 4096)
                    .expect("extents")
            );
        }
        assert!(!file.is_allocated(0, 400 * 65536).expect("extents"));
    }
}

#[test]
fn a_full_disk_fails_the_reservation_and_what_was_reserved_holds() {
    for place in places::managed().iter().filter(|place| place.may_be_filled) {
        let name = place.dir.display();
        let (_own, file) = place.file();
        file.reserve(0, MIB).expect("space for a little");
        let (_own, hog) = place.file();
        let mut at = 0;
        let error = loop {
            match hog.reserve(at, 8 * MIB) {
                Ok(()) => at += 8 * MIB,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{name}");
        write(&*file, 0, &pattern(1, MIB as usize)).expect("reserved");
        file.sync_all().expect("sync");
        assert_eq!(
            read(&*file, 0, MIB as usize).expect("read"),
            pattern(1, MIB as usize)
        );
        hog.trim().expect("trim");
    }
}

#[test]
fn waiting_leaves_size_times_and_bytes() {
    for place in places::managed() {
        let name = place.dir.display();
        let (_own, file) = place.file();
        file.wait_in_flight().expect("empty");
        assert_eq!(file.stat().expect("stat").len, 0);
        write(&*file, MIB, &pattern(1, 65536)).expect("space");
        file.reserve(4 * MIB, MIB).expect("space");
        let (before, space) = (visible(&file), file.stat().expect("stat").allocated);
        file.wait_in_flight().expect("wait");
        assert_eq!(visible(&file), before, "{name}");
        assert_eq!(file.stat().expect("stat").allocated, space, "{name}");
        assert!(
            file.is_allocated(4 * MIB, MIB).expect("extents"),
            "{name}: still reserved"
        );
        assert_eq!(read(&*file, MIB, 65536).expect("read"), pattern(1, 65536));
    }
}

/// A clone of a file that shares its space, where the file system can.
fn clone_of(place: &Place, source: &std::path::Path) -> Option<File> {
    let target = place.dir.join("clone");
    let source = source.to_str().expect("a plain name");
    run("cp", &["--reflink=always", source], &target)
        .then(|| File::open(&target).expect("the clone"))
}

#[test]
fn shared_space_is_not_ones_own_until_it_is_reserved() {
    for place in places::managed() {
        let name = place.dir.display();
        let path = place.dir.join("original");
        std::fs::write(&path, pattern(1, MIB as usize)).expect("space");
        let own = File::open(&path).expect("the file");
        own.sync_all().expect("sync");
        let file = RealFile::reopen(own.as_fd()).expect("managed");
        assert!(file.is_allocated(0, MIB).expect("extents"), "{name}");
        match clone_of(&place, &path) {
            None => println!("skip {name}: no clones"),
            Some(_) => {
                assert!(
                    !file.is_allocated(0, MIB).expect("extents"),
                    "{name}: shared"
                );
                match file.reserve(0, MIB) {
                    Ok(()) => assert!(file.is_allocated(0, MIB).expect("extents"), "{name}"),
                    Err(error) => {
                        let cannot = error.raw_os_error() == Some(libc::EOPNOTSUPP);
                        let btrfs = place.nature() == Nature::CopyOnWriteUnlessFlagged;
                        assert!(cannot && btrfs, "{name}: {error}");
                    }
                }
                std::fs::remove_file(place.dir.join("clone")).expect("removed");
            }
        }
        std::fs::remove_file(path).expect("removed");
    }
}
