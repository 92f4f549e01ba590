//! Offsets and descriptors that are shared: by dup, by fork.

use std::path::Path;

use crate::scene::Scene;
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
const BLOCK: usize = 10_000;
/// Children that are killed while they write.
const KILLS: u64 = 300;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "share-fork" => share_by_fork(dir),
        "share-dup" => share_by_dup(dir),
        "share-before" => managed_in_a_child(dir),
        "share-standard" => standard_output(dir),
        "share-close-range" => close_range(dir),
        "share-flags" => append_mode(dir),
        "share-deaths" => children_die_in_calls(dir),
        "share-records" => children_die_in_records(dir),
        _ => return false,
    }
    true
}

/// Parent and children write through one description in turns and at once.
fn share_by_fork(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    write(fd, &pattern(0, BLOCK)).expect("write");
    for turn in 1..4u8 {
        let status = in_child(|| {
            assert_eq!(
                seek(fd, 0, libc::SEEK_CUR),
                Ok((2 * i64::from(turn) - 1) * BLOCK as i64)
            );
            write(fd, &pattern(turn, BLOCK)).expect("write");
        });
        assert_eq!(status, 0);
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    assert_eq!(seek(fd, 0, libc::SEEK_CUR), Ok(7 * BLOCK as i64));
    assert_eq!(size_of(fd), 7 * BLOCK as i64);
    for turn in 1..4u8 {
        let at = (2 * i64::from(turn) - 1) * BLOCK as i64;
        assert_eq!(pread(fd, BLOCK, at), Ok(pattern(turn, BLOCK)));
        assert_eq!(
            pread(fd, BLOCK, at + BLOCK as i64),
            Ok(pattern(turn, BLOCK))
        );
    }
    // At once: every block is somewhere, whole.
    seek(fd, 0, libc::SEEK_SET).expect("seek");
    let mut children = Vec::new();
    for writer in 10..14u8 {
        // SAFETY: the child makes calls and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for _ in 0..50 {
                assert_eq!(write(fd, &[writer; 1000]), Ok(1000));
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        children.push(pid);
    }
    for pid in children {
        // SAFETY: no memory is asked for.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    assert_eq!(seek(fd, 0, libc::SEEK_CUR), Ok(200 * 1000));
    let bytes = pread(fd, 200_000, 0).expect("read");
    let mut counts = [0; 4];
    for block in bytes.chunks(1000) {
        assert!(block.iter().all(|&b| b == block[0]), "a torn block");
        counts[usize::from(block[0] - 10)] += 1;
    }
    assert_eq!(counts, [50; 4]);
    close(fd).expect("close");
}

/// Children are killed in the middle of calls on the offset that they share, and are waited for only after the parent has used it.
fn children_die_in_calls(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    for round in 0..60 {
        // SAFETY: the child makes calls until it is killed.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                let _ = write(fd, b"child");
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(1000 + 100 * round));
        // SAFETY: a child of this process's.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        assert_eq!(write(fd, b"parent"), Ok(6));
        assert!(seek(fd, 0, libc::SEEK_CUR).expect("seek") >= 6);
        // SAFETY: no memory is asked for.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    }
    close(fd).expect("close");
}

/// Children are killed in the middle of writes; what the parent writes next comes after all that is there of their records.
fn children_die_in_records(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    let mut bad = 0;
    for round in 0..KILLS {
        let children = [(); 3].map(|()| {
            // SAFETY: the child makes calls until it is killed.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let record = vec![b'c'; [60, 50_000][round as usize % 2]];
                loop {
                    let _ = write(fd, &record);
                }
            }
            pid
        });
        std::thread::sleep(std::time::Duration::from_micros(500 + 7 * round));
        // SAFETY: children of this process's; no memory is asked for.
        unsafe {
            for pid in children {
                assert_eq!(libc::kill(pid, libc::SIGKILL), 0);
            }
            for pid in children {
                assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid);
            }
        }
        if round % 4 < 2 {
            assert_eq!(write(fd, b"parent"), Ok(6));
        }
        let at = seek(fd, 0, libc::SEEK_CUR).expect("seek");
        bad += i32::from(at != size_of(fd));
        // From the beginning, so that the file stays small.
        seek(fd, 0, libc::SEEK_SET).expect("seek");
        // SAFETY: no memory is asked for.
        assert_eq!(unsafe { libc::ftruncate(fd, 0) }, 0);
    }
    assert_eq!(bad, 0, "of {KILLS} records");
    close(fd).expect("close");
}

fn share_by_dup(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    // SAFETY: takes no memory.
    let other = unsafe { libc::dup(fd) };
    write(fd, &pattern(1, BLOCK)).expect("write");
    write(other, &pattern(2, BLOCK)).expect("write");
    // SAFETY: takes no memory.
    let third = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100) };
    assert!(third >= 100);
    write(third, &pattern(3, BLOCK)).expect("write");
    close(fd).expect("close");
    assert_eq!(write(fd, b"x"), Err(libc::EBADF));
    assert_eq!(seek(other, 0, libc::SEEK_CUR), Ok(3 * BLOCK as i64));
    seek(third, BLOCK as i64, libc::SEEK_SET).expect("seek");
    assert_eq!(read(other, BLOCK), Ok(pattern(2, BLOCK)));
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::dup2(other, third) }, third);
    assert_eq!(read(third, BLOCK), Ok(pattern(3, BLOCK)));
    // Another file over the descriptor of a managed one.
    let second = open(&dir.join("b"), RDWR).expect("open");
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::dup2(second, third) }, third);
    write(third, b"second").expect("write");
    assert_eq!(size_of(third), 6);
    assert_eq!(size_of(other), 3 * BLOCK as i64);
    close(other).expect("close");
    close(third).expect("close");
    close(second).expect("close");
}

/// The file becomes managed in a child first; the parent goes on where the child has left off.
fn managed_in_a_child(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    assert_eq!(
        in_child(|| {
            for turn in 0..20 {
                write(fd, &pattern(turn, BLOCK)).expect("write");
            }
        }),
        0
    );
    assert_eq!(seek(fd, 0, libc::SEEK_CUR), Ok(20 * BLOCK as i64));
    write(fd, &pattern(20, BLOCK)).expect("write");
    seek(fd, 0, libc::SEEK_SET).expect("seek");
    for turn in 0..21 {
        assert_eq!(read(fd, BLOCK), Ok(pattern(turn, BLOCK)), "{turn}");
    }
    close(fd).expect("close");
}

/// What `sh -c 'prog > file'` does.
fn standard_output(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    for turn in 0..20 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    let status = in_child(|| {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::dup2(fd, 1) }, 1);
        let (sh, script) = (c"/bin/sh", c"echo from the shell; head -c 5 /dev/zero");
        let words = [
            sh.as_ptr(),
            c"-c".as_ptr(),
            script.as_ptr(),
            std::ptr::null(),
        ];
        // SAFETY: strings of ours, and a null at the end.
        unsafe { libc::execv(sh.as_ptr(), words.as_ptr()) };
    });
    assert_eq!(status, 0);
    let at = seek(fd, 0, libc::SEEK_CUR);
    assert_eq!(at, Ok(20 * BLOCK as i64 + 15 + 5));
    write(fd, b"end").expect("write");
    let tail = pread(fd, 100, 20 * BLOCK as i64).expect("read");
    assert_eq!(tail, b"from the shell\n\0\0\0\0\0end".to_vec());
    close(fd).expect("close");
}

/// Programs that close everything leave the engine what it needs.
fn close_range(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    for turn in 0..20 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::close_range(fd as u32 + 1, u32::MAX, 0) }, 0);
    for number in 3..5000 {
        if number != fd {
            let _ = close(number);
        }
    }
    write(fd, &pattern(20, BLOCK)).expect("write");
    assert_eq!(pread(fd, BLOCK, 20 * BLOCK as i64), Ok(pattern(20, BLOCK)));
    close(fd).expect("close");
    let again = open(&dir.join("a"), libc::O_RDONLY).expect("open");
    assert_eq!(size_of(again), 21 * BLOCK as i64);
    assert_eq!(
        pread(again, BLOCK, 20 * BLOCK as i64),
        Ok(pattern(20, BLOCK))
    );
}

/// `O_APPEND` comes and goes.
fn append_mode(dir: &Path) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    for turn in 0..8 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    let before = flags(fd);
    assert_eq!(
        before & (libc::O_ACCMODE | libc::O_DIRECT | libc::O_APPEND),
        libc::O_RDWR
    );
    seek(fd, 5, libc::SEEK_SET).expect("seek");
    set_flags(fd, before | libc::O_APPEND).expect("flags");
    write(fd, b"tail").expect("write");
    assert_eq!(seek(fd, 0, libc::SEEK_CUR), Ok(8 * BLOCK as i64 + 4));
    assert_eq!(pwrite(fd, b"more", 0), Ok(4));
    assert_eq!(size_of(fd), 8 * BLOCK as i64 + 8);
    set_flags(fd, before).expect("flags");
    assert_eq!(pwrite(fd, b"head", 0), Ok(4));
    assert_eq!(pread(fd, 8, 8 * BLOCK as i64), Ok(b"tailmore".to_vec()));
    assert_eq!(pread(fd, 4, 0), Ok(b"head".to_vec()));
    close(fd).expect("close");
}

fn check(role: &str) -> Scene {
    let mut last = None;
    for small in [0, 64 * 1024] {
        let scene = Scene::new(role, small);
        scene.play(role, "");
        last = Some(scene);
    }
    last.expect("a scene")
}

#[test]
fn offsets_are_shared_over_fork() {
    assert!(check("share-fork").bytes_to_memory() > 0);
}

#[test]
fn offsets_are_shared_by_dup() {
    check("share-dup");
}

#[test]
fn a_child_manages_first() {
    assert!(check("share-before").bytes_to_memory() > 0);
}

#[test]
fn a_managed_file_as_the_standard_output_of_another_program() {
    check("share-standard");
}

#[test]
fn programs_that_close_everything() {
    assert!(check("share-close-range").bytes_to_memory() > 0);
}

#[test]
fn append_mode_comes_and_goes() {
    check("share-flags");
}

/// A killed child is a zombie until its parent waits for it, and its parent may be the one that waits for the offset.
#[test]
fn children_that_are_killed_in_calls_hold_nobody_up() {
    for small in [0, 1 << 30] {
        let scene = Scene::new("share-deaths", small);
        let mut program = scene.start("share-deaths", "");
        let begun = std::time::Instant::now();
        let ended = loop {
            if let Some(status) = program.try_wait().expect("a program") {
                break Some(status);
            }
            if begun.elapsed() > std::time::Duration::from_secs(240) {
                program.kill().expect("a kill");
                program.wait().expect("an end");
                break None;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

#[test]
fn a_record_comes_after_those_of_the_killed() {
    assert!(check("share-records").bytes_to_memory() > 0);
}
