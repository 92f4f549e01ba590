//! One description of a file, or two: when the second one comes, and that no request suffers while there is one.

use crate::places::{self, pattern, read, write};
use forebay::device::{DeviceFile, Piece, RealFile};
use forebay::sys::file::is_one_description;
use forebay::sys::stat;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGE: usize = 4096;

fn is_one(file: &RealFile) -> bool {
    let (direct, buffered) = file.descriptors().expect("a real file");
    is_one_description(direct, buffered)
}

fn piece_of(bytes: &[u8]) -> Piece {
    Piece {
        ptr: bytes.as_ptr().cast_mut(),
        len: bytes.len(),
    }
}

fn content(own: &File, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    own.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

#[test]
fn the_second_description_comes_when_something_needs_it() {
    for place in places::managed() {
        let (own, file) = place.file();
        assert!(is_one(&file));
        write(file.as_ref(), 0, &pattern(1, 4 * PAGE)).expect("direct");
        file.set_len(5 * PAGE as u64).expect("longer");
        file.reserve(0, 8 * PAGE as u64).expect("space");
        file.sync_data().expect("synced");
        // What ends in the cache needs no other: bytes that are no whole pages, at any place.
        let ragged = pattern(2, 1001);
        assert_eq!(
            file.write_cached(&[piece_of(&ragged)], 777)
                .expect("cached"),
            1001
        );
        assert!(is_one(&file));
        assert_eq!(
            read(file.as_ref(), 0, PAGE).expect("read")[777..1778],
            ragged[..]
        );
        // What goes on to the device does.
        let end = pattern(3, 10);
        assert_eq!(
            file.write_buffered(&[piece_of(&end)], 4 * PAGE as u64 + 5)
                .expect("buffered"),
            10
        );
        assert!(!is_one(&file));
        let mut expected = pattern(1, 4 * PAGE);
        expected[777..1778].copy_from_slice(&ragged);
        expected.resize(5 * PAGE, 0);
        expected[4 * PAGE + 5..4 * PAGE + 15].copy_from_slice(&end);
        assert!(content(&own, 5 * PAGE) == expected);
        // For a lease it goes again, and does not come back.
        file.unite().expect("one");
        assert!(is_one(&file));
        assert_eq!(
            file.write_buffered(&[piece_of(&end)], 9).expect("buffered"),
            10
        );
        assert!(is_one(&file));
        assert!(content(&own, 19)[9..] == end[..]);
    }
}

/// Direct requests go on beside one that takes `O_DIRECT` away for a moment, and beside the arrival of the second description.
#[test]
fn requests_go_on_while_there_is_one() {
    const DIRECT: usize = 16 * PAGE;
    for place in places::managed() {
        let (own, file) = place.file();
        write(file.as_ref(), 0, &pattern(0, 2 * DIRECT)).expect("direct");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0u8.. {
                    write(file.as_ref(), 0, &pattern(round, DIRECT)).expect("direct");
                    assert!(
                        read(file.as_ref(), 0, DIRECT).expect("read") == pattern(round, DIRECT)
                    );
                    if stop.load(Relaxed) {
                        break;
                    }
                }
            });
            for round in 0..200u8 {
                let ragged = pattern(round, 3333);
                let at = (DIRECT + 99) as u64;
                if round < 150 {
                    file.write_cached(&[piece_of(&ragged)], at).expect("cached");
                } else {
                    file.write_buffered(&[piece_of(&ragged)], at)
                        .expect("buffered");
                }
                let mut found = vec![0; 3333];
                own.read_exact_at(&mut found, at).expect("read");
                assert!(found == ragged, "round {round}");
            }
            stop.store(true, Relaxed);
        });
        assert!(!is_one(&file));
    }
}

/// A pair of direct descriptors is taken for one description so far, as its sender has it.
#[test]
fn what_was_sent_as_one_is_one() {
    for place in places::managed() {
        let (own, file) = place.file();
        let Ok(file) = std::sync::Arc::try_unwrap(file) else {
            panic!("nobody else has it");
        };
        let (direct, buffered) = file.into_descriptors();
        let file = RealFile::from_descriptors(direct, buffered).expect("as it was made");
        assert!(is_one(&file));
        let bytes = pattern(4, 1234);
        file.write_buffered(&[piece_of(&bytes)], 0)
            .expect("buffered");
        assert!(!is_one(&file) && content(&own, 1234) == bytes);
    }
}

/// A file that is only borrowed has the program's description and no other, until bytes are to move to or from the device.
#[test]
fn what_is_borrowed_is_let_go_of_with_the_first_request() {
    for place in places::managed() {
        // For writing alone, and appending: nothing of that is the engine's.
        let path = place.dir.join("borrowed");
        let own = File::options().append(true).create_new(true).open(&path);
        let own = own.expect("a file");
        let asked = stat::stat(own.as_fd()).expect("stat");
        let borrowed = RealFile::borrow(own.as_fd(), &asked, &|fd| fd).expect("it is managed");
        let Some(file) = borrowed else {
            println!("skip {}: no alignment is told", path.display());
            continue;
        };
        let is_borrowed = || is_one_description(own.as_fd(), file.descriptors().expect("real").0);
        file.reserve(0, 4 * PAGE as u64).expect("space");
        file.set_modified(Some(1_000_000_000)).expect("a time");
        let bytes = pattern(5, 1234);
        let put = |at| file.write_cached(&[piece_of(&bytes)], at).expect("cached");
        assert_eq!((put(1234), put(0)), (1234, 1234));
        file.sync_data().expect("synced");
        file.trim().expect("trimmed");
        assert_eq!(file.stat().expect("stat").len, 2468);
        assert!(file.is_borrowed() && is_borrowed());
        // Neither is a direct description.
        let whole = read(&file, 0, PAGE).expect("read");
        assert!(whole[..1234] == bytes && whole[1234..2468] == bytes && whole.len() == 2468);
        assert!(!file.is_borrowed() && !is_borrowed() && is_one(&file));
        let page = pattern(6, PAGE);
        write(&file, 0, &page).expect("direct");
        put(10);
        let mut expected = page;
        expected[10..1244].copy_from_slice(&bytes);
        assert!(std::fs::read(&path).expect("read") == expected);
        std::fs::remove_file(&path).expect("removed");
    }
}

/// Whoever is handed what a program has opens the file for itself, and keeps nothing of the program's; and takes over another one's later.
#[test]
fn what_is_handed_over_borrowed_is_opened_at_once() {
    for place in places::managed() {
        let path = place.dir.join("handed");
        let own = File::create_new(&path).expect("a file");
        let copies = || [0, 1].map(|_| own.as_fd().try_clone_to_owned().expect("a copy"));
        let [direct, buffered] = copies();
        let file = RealFile::from_borrowed(direct, buffered).expect("it is managed");
        assert!(!file.is_borrowed());
        assert!(is_apart_from(&own, &file), "the program's is kept");
        let page = pattern(7, PAGE);
        write(&file, 0, &page).expect("direct");
        assert!(std::fs::read(&path).expect("read") == page);
        // Another process's takes its place, if it is one of this file.
        let other = RealFile::reopen(own.as_fd()).expect("it is managed");
        let sent = |file: &RealFile| {
            let (direct, _) = file.descriptors().expect("a real file");
            direct.try_clone_to_owned().expect("a copy")
        };
        let (_, strange) = place.file();
        assert!(file.share(sent(&strange)).is_err());
        file.share(sent(&other)).expect("the same file");
        let (a, b) = (file.descriptors().unwrap(), other.descriptors().unwrap());
        assert!(is_one_description(a.0, b.0) && is_one(&file));
        write(&file, 0, &pattern(8, PAGE)).expect("direct");
        // What its sender has opened meanwhile is taken as it is.
        let file = RealFile::from_borrowed(sent(&other), sent(&other)).expect("it is managed");
        assert!(is_one_description(file.descriptors().unwrap().0, b.0));
        let reading = File::open(&path).expect("a file");
        let [direct, buffered] = [0, 1].map(|_| reading.as_fd().try_clone_to_owned().unwrap());
        assert!(RealFile::from_borrowed(direct, buffered).is_err());
        std::fs::remove_file(&path).expect("removed");
    }
}

/// Whether neither of a file's descriptors is of this description.
fn is_apart_from(own: &File, file: &RealFile) -> bool {
    let (direct, buffered) = file.descriptors().expect("a real file");
    ![direct, buffered]
        .iter()
        .any(|fd| is_one_description(own.as_fd(), *fd))
}
