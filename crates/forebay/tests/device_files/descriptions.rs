//! One description of a file, or two: when the second one comes, and that no request suffers while there is one.

use crate::disks::{Hollow, hear_of_all, lose};
use crate::here;
use crate::places::{self, pattern, read, write};
use forebay::device::{DeviceFile, Piece, RealFile};
use forebay::sys::file::is_one_description;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

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

/// The first description was there when the kernel could not write something back, and whoever else has heard of that has not done so for it.
#[test]
fn a_second_description_does_not_hide_what_the_first_has_to_tell() {
    let hollow = match Hollow::new(MIB) {
        Ok(hollow) => hollow,
        Err(why) => return here::skipped(&why),
    };
    let open = || File::options().read(true).write(true).open(hollow.path());
    let (own, other) = (open().expect("open"), open().expect("open"));
    let file = RealFile::reopen(own.as_fd()).expect("managed");
    lose(&own, MIB);
    hear_of_all(&other);
    let end = pattern(1, 10);
    file.write_buffered(&[piece_of(&end)], 0).expect("buffered");
    assert!(!is_one(&file));
    assert!(file.sync_all().is_err(), "it is told that all is there");
    file.sync_all().expect("it has been told");
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
