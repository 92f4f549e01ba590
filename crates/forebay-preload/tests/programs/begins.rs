//! When the engine begins to manage a file: by what its writer does.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::scene::{Scene, said};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const MIB: usize = 1024 * 1024;

/// Writes `count` pieces of `len` bytes to a new file, and syncs after each, if asked to. `argument`: these three numbers.
pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let said = || -> Vec<usize> {
        let numbers = argument.split(' ');
        numbers
            .map(|text| text.parse().expect("a number"))
            .collect()
    };
    if role == "files" {
        files(&said(), dir);
        return true;
    }
    if role == "reopened" {
        reopened(&said(), dir);
        return true;
    }
    if role != "pieces" {
        return false;
    }
    let [count, len, syncs] = said()[..] else {
        panic!("three numbers");
    };
    let fd = open(&dir.join("a"), RDWR).expect("open");
    for piece in 0..count {
        write(fd, &pattern(piece as u8, len)).expect("write");
        if syncs != 0 {
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::fdatasync(fd) }, 0);
        }
    }
    for piece in 0..count {
        let at = (piece * len) as i64;
        assert!(
            pread(fd, len, at) == Ok(pattern(piece as u8, len)),
            "wrong bytes in piece {piece}"
        );
    }
    close(fd).expect("close");
    true
}

/// Writes new files, each by as many pieces of 4,000 bytes as the next number says, and reads them back.
fn files(counts: &[usize], dir: &Path) {
    for (index, &count) in counts.iter().enumerate() {
        let path = dir.join(format!("file-{index}"));
        let fd = open(&path, RDWR).expect("open");
        for piece in 0..count {
            write(fd, &pattern((index + piece) as u8, 4000)).expect("write");
        }
        close(fd).expect("close");
        let fd = open(&path, libc::O_RDONLY).expect("open");
        for piece in 0..count {
            let found = pread(fd, 4000, piece as i64 * 4000);
            assert!(
                found == Ok(pattern((index + piece) as u8, 4000)),
                "wrong bytes"
            );
        }
        close(fd).expect("close");
    }
}

/// Opens a long file so many times, and writes to it so many times each, 100 bytes at once.
fn reopened(numbers: &[usize], dir: &Path) {
    let path = dir.join("a");
    let mut bytes = pattern(0, 2 * MIB);
    std::fs::write(&path, &bytes).expect("a file");
    for open_ in 0..numbers[0] {
        let fd = open(&path, libc::O_RDWR).expect("open");
        for write in 0..numbers[1] {
            let at = (open_ * 7919 + write * 300) % (2 * MIB - 100);
            let part = pattern((open_ + write) as u8, 100);
            assert_eq!(pwrite(fd, &part, at as i64), Ok(100));
            bytes[at..at + 100].copy_from_slice(&part);
        }
        close(fd).expect("close");
    }
    assert!(std::fs::read(&path).expect("the file") == bytes);
}

/// How many bytes of such files the engine has had.
fn bytes_by_engine(counts: &[usize]) -> u64 {
    engine_bytes("files", counts)
}

/// How many bytes the engine has had where a program plays this role by default.
fn engine_bytes(role: &str, numbers: &[usize]) -> u64 {
    let scene = Scene::new("habits", MIB as u64);
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    let mut role = scene.role(role, &numbers.join(" "));
    role.env("FOREBAY_LARGE_FILE_BYTES", "1GiB");
    said(role.output().expect("a program"));
    let stats = scene.session.as_ref().expect("a session").stats();
    stats.scrap_bytes + stats.direct_bytes
}

#[test]
fn a_program_that_writes_long_files_is_expected_to_write_more() {
    let long = 600 * 4000;
    assert_eq!(bytes_by_engine(&[600]), 0);
    let had = bytes_by_engine(&[600; 8]);
    assert!(
        had > 4 * long,
        "after the first few all but their beginnings: {had}"
    );
    // Files that end soon are no reason, and end it.
    assert_eq!(bytes_by_engine(&[25; 40]), 0);
    assert_eq!(bytes_by_engine(&[600, 25, 25, 600, 25, 25, 600, 25, 25]), 0);
    let before = bytes_by_engine(&[600; 4]);
    let short = [25; 20];
    let had = bytes_by_engine(&[[600; 4].as_slice(), &short].concat());
    assert!(
        had >= before && had <= before + 6 * 25 * 4000,
        "{had} after {before}"
    );
}

/// Whether the engine has had anything of such a file, where `large` is the bound of files written by large requests.
fn is_managed(large: usize, count: usize, len: usize, syncs: bool) -> bool {
    let scene = Scene::new("begins", MIB as u64);
    let argument = format!("{count} {len} {}", u8::from(syncs));
    let mut role = scene.role("pieces", &argument);
    role.env("FOREBAY_LARGE_FILE_BYTES", large.to_string());
    said(role.output().expect("a program"));
    let expected: Vec<u8> = (0..count)
        .flat_map(|piece| pattern(piece as u8, len))
        .collect();
    let seen = std::fs::read(scene.path("a")).expect("a file");
    assert!(seen == expected, "wrong bytes outside");
    let stats = scene.session.as_ref().expect("a session").stats();
    stats.scrap_bytes + stats.direct_bytes > 0
}

#[test]
fn large_requests_begin_it_where_the_file_outgrows_the_bound() {
    assert!(!is_managed(8 * MIB, 64, MIB / 8, false));
    assert!(is_managed(4 * MIB, 64, MIB / 8, false));
}

#[test]
fn large_requests_begin_it_where_each_is_synced() {
    assert!(is_managed(8 * MIB, 16, MIB / 2, true));
}

#[test]
fn small_requests_begin_it_once_they_are_many_and_much() {
    assert!(is_managed(8 * MIB, 1100, 2000, false));
    assert!(!is_managed(8 * MIB, 1100, 200, false), "not much");
    assert!(!is_managed(8 * MIB, 1000, 4000, false), "not many");
    assert!(is_managed(MIB, 500, 4000, false), "more than the bound");
}

/// Files of which something is in memory are managed from their first call on: not one that has got the number of another, which is
/// gone.
/// A long file that is opened anew for each few writes costs a managed life each time, and gains nothing.
#[test]
fn few_writes_to_a_long_file_do_not_begin_it() {
    assert_eq!(engine_bytes("reopened", &[40, 16]), 0);
}

/// Once the kernel's writes have taken as long as managing the file does, it is managed.
#[test]
fn many_writes_to_a_long_file_begin_it() {
    assert!(engine_bytes("reopened", &[1, 20_000]) > 1_000_000);
}

#[test]
fn a_number_that_is_used_again_begins_anew() {
    let scene = Scene::new("again", MIB as u64);
    let path = scene.path("a");
    let number = |path: &Path| MetadataExt::ino(&std::fs::metadata(path).expect("a file"));
    let by_engine = || {
        let stats = scene.session.as_ref().expect("a session").stats();
        stats.scrap_bytes + stats.direct_bytes
    };
    scene.play("pieces", &format!("64 {} 0", MIB / 32));
    let (first, before) = (number(&path), by_engine());
    assert!(before > 0);
    std::fs::remove_file(&path).expect("removed");
    // The keeper may have it open for a while yet.
    let again = (0..200).find(|round| {
        let new = scene.path(&format!("new-{round}"));
        std::fs::write(&new, b"").expect("a file");
        std::thread::sleep(std::time::Duration::from_millis(10));
        number(&new) == first
    });
    let Some(again) = again else {
        return crate::here::skipped("this file system does not give the number again");
    };
    std::fs::rename(scene.path(&format!("new-{again}")), &path).expect("renamed");
    // Small, so that it is the kernel's.
    scene.play("pieces", &format!("2 {} 0", MIB / 32));
    assert_eq!(by_engine(), before);
    // As soon as it is large it is managed, and has its own bytes.
    scene.play("pieces", &format!("64 {} 0", MIB / 32));
    assert!(by_engine() > before);
}

#[test]
fn a_bound_of_nothing_leaves_nothing_to_the_kernel() {
    assert!(is_managed(0, 16, MIB / 8, false));
}
