//! Mappings on the heap, which Miri checks too, and on files of /dev/shm.

use super::*;
use std::os::unix::fs::MetadataExt;

const MIB: usize = 1 << 20;

/// A nameless file on /dev/shm.
fn shm_file() -> File {
    tempfile::tempfile_in("/dev/shm").unwrap()
}

fn fill(mapping: &Mapping, offset: usize, len: usize, byte: u8) {
    // SAFETY: tests touch only what they backed, on one thread, while the mapping lives.
    unsafe { mapping.base().add(offset).write_bytes(byte, len) }
}

fn byte(mapping: &Mapping, offset: usize) -> u8 {
    // SAFETY: as in `fill`.
    unsafe { mapping.base().add(offset).read() }
}

#[test]
fn the_heap_is_zeroed_aligned_and_rounded_up() {
    let mapping = Mapping::heap(3 * MIB);
    assert_eq!(mapping.len(), 4 * MIB);
    assert_eq!(mapping.base() as usize % HUGE_BYTES, 0);
    assert_eq!((byte(&mapping, 0), byte(&mapping, 4 * MIB - 1)), (0, 0));
    mapping.back(0, MIB).unwrap();
    fill(&mapping, 4096, 8192, 7);
    mapping.release(4096, 4096).unwrap();
    assert_eq!((byte(&mapping, 8191), byte(&mapping, 8192)), (0, 7));
    assert!(!mapping.collapse(0, 2 * MIB).unwrap());
    assert!(mapping.file().is_none());
}

#[test]
fn ranges_outside_are_refused() {
    let mapping = Mapping::heap(1);
    for (offset, len) in [
        (0, 0),
        (0, 2 * MIB + 1),
        (2 * MIB, 1),
        (usize::MAX, 2),
        (1, usize::MAX),
    ] {
        let error = mapping.back(offset, len).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{offset} {len}");
    }
    assert!(mapping.release(100, 4096).is_err(), "not whole pages");
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn only_backed_memory_is_held() {
    let file = shm_file();
    let mapping = Mapping::create(file.try_clone().unwrap(), 64 * MIB).unwrap();
    let held = || file.metadata().unwrap().blocks() * 512;
    assert_eq!(held(), 0);
    mapping.back(8 * MIB, 4 * MIB).unwrap();
    assert_eq!(held(), 4 * MIB as u64);
    fill(&mapping, 8 * MIB, 4 * MIB, 9);
    mapping.back(8 * MIB, 4 * MIB).unwrap();
    assert_eq!(byte(&mapping, 9 * MIB), 9, "backing again keeps the bytes");
    mapping.release(8 * MIB, 2 * MIB).unwrap();
    assert_eq!(held(), 2 * MIB as u64);
    assert_eq!(byte(&mapping, 11 * MIB), 9);
    mapping.back(8 * MIB, 1).unwrap();
    assert_eq!(
        byte(&mapping, 8 * MIB),
        0,
        "what was released comes back as zeros"
    );
    assert_eq!(held(), 2 * MIB as u64 + 4096);
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn two_mappings_of_one_file_are_one_memory() {
    let file = shm_file();
    let keeper = Mapping::create(file.try_clone().unwrap(), 2 * MIB).unwrap();
    let client = Mapping::attach(file).unwrap();
    assert_ne!(keeper.base(), client.base());
    keeper.back(0, MIB).unwrap();
    client.populate(0, MIB);
    fill(&client, 5, 1, 3);
    assert_eq!(byte(&keeper, 5), 3);
    keeper.release(0, MIB).unwrap();
    keeper.back(0, MIB).unwrap();
    assert_eq!(byte(&client, 5), 0);
    drop(keeper);
    fill(&client, 5, 1, 4);
    assert_eq!(
        byte(&client, 5),
        4,
        "the other mapping's end is not this one's"
    );
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn a_child_process_sees_the_same_bytes() {
    let mapping = Mapping::create(shm_file(), 2 * MIB).unwrap();
    mapping.back(0, 4096).unwrap();
    // SAFETY: the child writes one byte of shared memory and leaves at once, without allocating.
    let child = unsafe { libc::fork() };
    if child == 0 {
        fill(&mapping, 0, 1, 42);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for the child that was just made; no status is asked for.
    let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(waited, child);
    assert_eq!(byte(&mapping, 0), 42);
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn what_is_no_arena_is_not_mapped() {
    let file = shm_file();
    assert_eq!(
        Mapping::attach(file.try_clone().unwrap())
            .unwrap_err()
            .kind(),
        io::ErrorKind::InvalidInput
    );
    file.set_len(4096).unwrap();
    assert_eq!(
        Mapping::attach(file.try_clone().unwrap())
            .unwrap_err()
            .kind(),
        io::ErrorKind::InvalidInput
    );
    assert!(Mapping::create(file, 0).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn memory_is_collapsed_under_its_bytes() {
    let mapping = Mapping::create(shm_file(), 4 * MIB).unwrap();
    mapping.back(0, 4 * MIB).unwrap();
    fill(&mapping, 0, 4 * MIB, 5);
    assert!(
        !mapping.collapse(4096, MIB).unwrap(),
        "there is no whole huge page in it"
    );
    if !mapping.collapse(0, 4 * MIB).unwrap() {
        eprintln!("not tested: this kernel cannot collapse shared memory");
        return;
    }
    assert_eq!((byte(&mapping, 0), byte(&mapping, 4 * MIB - 1)), (5, 5));
    assert_eq!(
        crate::memory::place::huge_bytes(&mapping).unwrap(),
        4 * MIB as u64
    );
}

/// What is backed a piece at a time lies on huge pages from the start, whatever part of it had memory before.
#[test]
#[cfg_attr(miri, ignore = "needs files")]
fn backing_makes_huge_pages_around_what_is_there() {
    let file = shm_file();
    let mapping = Mapping::create(file.try_clone().unwrap(), 8 * MIB).unwrap();
    mapping.back(3 * MIB, 4096).unwrap();
    fill(&mapping, 3 * MIB, 4096, 6);
    mapping.back(2 * MIB, 3 * MIB).unwrap();
    for (at, expected) in [
        (2 * MIB, 0),
        (3 * MIB, 6),
        (3 * MIB + 4095, 6),
        (3 * MIB + 4096, 0),
    ] {
        assert_eq!(byte(&mapping, at), expected, "byte {at}");
    }
    assert_eq!(file.metadata().unwrap().blocks() * 512, 3 * MIB as u64);
    if !mapping.collapse(2 * MIB, 2 * MIB).unwrap() {
        eprintln!("not tested: this kernel cannot collapse shared memory");
        return;
    }
    // The whole piece, and not the half.
    let huge = crate::memory::place::huge_bytes(&mapping).unwrap();
    assert_eq!(huge, 2 * MIB as u64);
}
