//! The engine's descriptors in a program, and programs that close all numbers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

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
