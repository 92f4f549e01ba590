//! Records that several programs append to one file: whole, each once, in each writer's order.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::scene::{Scene, said};
use crate::sys::*;

const WRITERS: usize = 4;
const RECORDS: usize = 400;
/// Bytes of a line of a log that is cut, and how many there are.
const LINE: usize = 600_000;
const LINES: usize = 200;

fn record(writer: usize, number: usize) -> Vec<u8> {
    let len = 40 + (writer * 7 + number * 131) % 3000;
    let mut record = format!("<{writer} {number} {len} ").into_bytes();
    record.resize(len - 1, b'a' + (number % 26) as u8);
    record.push(b'>');
    record
}

/// Opened to append to.
fn log(path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true);
    options.open(path).expect("a log")
}

fn append(path: &Path, writer: usize) {
    let mut file = log(path);
    for number in 0..RECORDS {
        let record = record(writer, number);
        assert_eq!(file.write(&record).expect("a record"), record.len());
    }
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "append-parts" => parts_without_memory(dir),
        "append" => append(&dir.join("log"), argument.parse().expect("a number")),
        "append-forked" => {
            // One description for all: the offset is shared as well.
            let mut file = log(&dir.join("log"));
            let mut children = Vec::new();
            for writer in 0..WRITERS {
                // SAFETY: the child does nothing that needs other threads' locks but write.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    for number in 0..RECORDS {
                        let record = record(writer, number);
                        let written = file.write(&record).expect("a record");
                        assert_eq!(written, record.len());
                    }
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                children.push(child);
            }
            for child in children {
                let mut status = 0;
                // SAFETY: the target is ours.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(status, 0, "a child has failed");
            }
        }
        "append-cut" => {
            let mut file = log(&dir.join("log"));
            for _ in 0..argument.parse().expect("a number") {
                assert_eq!(file.write(&[b'x'; LINE]).expect("a line"), LINE);
            }
            std::fs::write(dir.join("done"), "").expect("a mark");
        }
        "cut" => cut(dir),
        _ => return false,
    }
    true
}

/// Cuts the log again and again, as rotation with `copytruncate` does, and looks what is in it each time.
fn cut(dir: &Path) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("log"))
        .expect("a log");
    let mut bytes = vec![0; 1 << 20];
    while !dir.join("done").exists() {
        file.set_len(0).expect("cut");
        let read = file.read_at(&mut bytes, 0).expect("bytes");
        let odd = bytes[..read].iter().position(|&byte| byte != b'x');
        assert_eq!(odd, None, "of {read} bytes after a cut");
    }
}

fn check(path: &Path) {
    let mut rest = std::fs::read(path).expect("the log");
    let mut next = [0; WRITERS];
    while !rest.is_empty() {
        let head: String = rest.iter().take(40).map(|&b| char::from(b)).collect();
        let mut words = head.trim_start_matches('<').split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
        let (Some(writer), Some(index)) = (number(), number()) else {
            panic!("no record: {head}");
        };
        assert_eq!(index, next[writer], "writer {writer}");
        next[writer] += 1;
        let expected = record(writer, index);
        assert!(
            rest.starts_with(&expected),
            "record {writer} {index} is torn"
        );
        rest.drain(..expected.len());
    }
    assert_eq!(next, [RECORDS; WRITERS]);
}

/// Appends 48 MiB in parts while the program may have 16 MiB more than it has.
fn parts_without_memory(dir: &Path) {
    const PART: usize = 1 << 20;
    const HEAD: usize = 4_096_000;
    let path = dir.join("parts");
    let fd = open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_APPEND).expect("open");
    for _ in 0..1000 {
        write(fd, &[b'a'; HEAD / 1000]).expect("write");
    }
    let reader = open(&path, libc::O_RDWR).expect("open");
    assert_eq!(pread(reader, 1, 0), Ok(b"a".to_vec()));
    let bytes = vec![b'B'; PART];
    let part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: PART,
    };
    let parts = [part; 48];
    let statm = std::fs::read_to_string("/proc/self/statm").expect("readable");
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|it| it.parse().ok())
        .expect("pages");
    set_limit(
        libc::RLIMIT_AS,
        pages * 4096 + (16 << 20),
        libc::RLIM_INFINITY,
    );
    // SAFETY: parts of ours.
    let appended = unsafe { libc::writev(fd, parts.as_ptr(), 48) };
    set_limit(libc::RLIMIT_AS, libc::RLIM_INFINITY, libc::RLIM_INFINITY);
    assert_eq!(appended, 48 * PART as isize);
    assert_eq!(pread(reader, 3, HEAD as i64 - 1), Ok(b"aBB".to_vec()));
    assert_eq!(write(fd, b"end"), Ok(3));
    close(reader).expect("close");
    close(fd).expect("close");
    let all = std::fs::read(&path).expect("a file");
    assert_eq!(all.len(), HEAD + 48 * PART + 3);
    assert!(all[..HEAD].iter().all(|&byte| byte == b'a'));
    assert!(all[HEAD..HEAD + 48 * PART].iter().all(|&byte| byte == b'B'));
    assert!(all.ends_with(b"end"));
}

#[test]
fn appends_of_several_programs() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("append", small);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scene.start("append", &writer.to_string()))
            .collect();
        for writer in writers {
            said(writer.wait_with_output().expect("a writer"));
        }
        assert!(scene.bytes_to_memory() > 0);
        check(&scene.path("log"));
    }
}

#[test]
fn appends_of_forked_children() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("append-forked", small);
        scene.play("append-forked", "");
        assert!(scene.bytes_to_memory() > 0);
        check(&scene.path("log"));
    }
}

/// An append finds the end after a cut: no zeros take the place of what was cut.
#[test]
fn a_log_that_is_cut_has_no_hole() {
    let scene = Scene::new("append-cut", 0);
    let writer = scene.start("append-cut", &LINES.to_string());
    let cutter = scene.start("cut", "");
    for program in [writer, cutter] {
        said(program.wait_with_output().expect("a program"));
    }
    assert!(scene.bytes_to_memory() > 0);
    let left = std::fs::read(scene.path("log")).expect("the log");
    assert!(left.iter().all(|&byte| byte == b'x'), "zeros in the log");
}

/// Where the parts of a long append could not be joined, since the program may have no more memory, they are appended all the same.
#[test]
fn an_append_of_parts_without_memory_is_whole() {
    let scene = Scene::new("append-parts", 1);
    scene.play("append-parts", "");
    assert!(scene.bytes_to_memory() > 0);
}
