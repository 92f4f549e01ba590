//! The engine's descriptors in a program, and programs that close all numbers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 100_000;
const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "numbers-writes" => {
            let fd = open(&dir.join("b"), RDWR).expect("open");
            write(fd, &pattern(2, LEN)).expect("write");
            println!("@");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("input");
            close(fd).expect("close");
        }
        "numbers-closes" => closes_all(dir),
        "numbers-begins" => begins_beside(dir),
        _ => return false,
    }
    true
}

/// Gives what another process has written to the kernel, without the keeper's help, and closes every number that there is.
fn closes_all(dir: &Path) {
    let name = c(&dir.join("b"));
    // What the program has from elsewhere.
    for number in 3..2000 {
        let _ = close(number);
    }
    for _ in 0..2 {
        let mut bytes = vec![0; LEN];
        // SAFETY: strings and bytes of ours.
        unsafe {
            let stream = libc::fopen(name.as_ptr(), c"r".as_ptr());
            assert!(!stream.is_null());
            assert_eq!(libc::fread(bytes.as_mut_ptr().cast(), 1, LEN, stream), LEN);
            assert_eq!(libc::fclose(stream), 0);
        }
        assert!(bytes == pattern(2, LEN));
        for number in 3..2000 {
            assert_eq!(close(number), Err(libc::EBADF), "{number}");
        }
    }
    let fd = open(&dir.join("a"), RDWR).expect("open");
    write(fd, &pattern(1, LEN)).expect("write");
    // Numbers of the engine's are taken.
    let numbers = std::fs::read_dir("/proc/self/fd").expect("readable");
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let taken: Vec<i32> = numbers.filter(|number| *number > 500).collect();
    assert!(!taken.is_empty());
    for number in taken {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::dup2(fd, number) }, -1);
        assert_eq!(close(number), Err(libc::EBADF));
    }
    close(fd).expect("close");
}

/// Threads that begin to manage files, files of each, and the number from which on all are closed meanwhile.
const THREADS: usize = 4;
const FILES: usize = 40;
const FIRST: i32 = 300;

/// Threads begin to manage files while another one closes all numbers beyond the program's, again and again.
fn begins_beside(dir: &Path) {
    let open_all = |thread| {
        let paths = (0..FILES).map(|file| dir.join(format!("{thread}-{file}")));
        let opened = paths.map(|path| open(&path, RDWR).expect("open"));
        opened.collect::<Vec<_>>()
    };
    let files: Vec<_> = (0..THREADS).map(open_all).collect();
    // The connection to the keeper, and all lanes that there may be, are made before.
    let early = open_all(THREADS);
    let begin = |&fd: &i32| assert_eq!(write(fd, &pattern(fd as u8, 3000)), Ok(3000));
    early.iter().for_each(begin);
    let null = |_| open(Path::new("/dev/null"), libc::O_RDONLY).expect("open");
    let is_last = |number| number >= FIRST - 1;
    assert!((0..FIRST).map(null).any(is_last), "a number is free below");
    let at_work = AtomicUsize::new(THREADS);
    std::thread::scope(|scope| {
        for files in &files {
            let at_work = &at_work;
            scope.spawn(move || {
                files.iter().for_each(begin);
                at_work.fetch_sub(1, Relaxed);
            });
        }
        while at_work.load(Relaxed) != 0 {
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::close_range(FIRST as u32, u32::MAX, 0) }, 0);
        }
    });
    for &fd in files.iter().flatten() {
        assert_eq!(pread(fd, 4000, 0), Ok(pattern(fd as u8, 3000)));
    }
}

#[test]
fn a_file_that_begins_loses_no_descriptor() {
    for _ in 0..3 {
        let scene = Scene::new("begins-beside", 0);
        scene.play("numbers-begins", "");
        assert_eq!(
            scene.bytes_to_memory(),
            ((THREADS + 1) * FILES * 3000) as u64
        );
    }
}

#[test]
fn what_nobody_handed_over_is_out_of_reach_too() {
    let scene = Scene::new("numbers", 0);
    let mut writer = scene
        .role("numbers-writes", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program");
    let lines = BufReader::new(writer.stdout.take().expect("output")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with('@')), "written");
    // Whoever comes now cannot ask the keeper, and opens by himself what is owed.
    let session = scene.session.as_ref().expect("a session");
    let arena = session.place().expect("a place").path.expect("an arena");
    std::fs::remove_file(arena.with_extension("sock")).expect("a socket");
    scene.play("numbers-closes", "");
    drop(writer.stdin.take());
    assert!(writer.wait().expect("an end").success());
    assert!(std::fs::read(scene.path("a")).expect("a file") == pattern(1, LEN));
}
