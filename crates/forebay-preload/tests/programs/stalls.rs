//! A program that waits in a fault of its own memory in the middle of a read or a write (userfaultfd): others go on, also where it
//! reads or writes.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::here;
use crate::outsiders::Member;
use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 100_000;
const MEMORY: usize = 8 << 20;
/// More than goes into one block; so much that it goes past memory.
const MANY: usize = 600_000;
const HUGE: usize = 4 << 20;
/// Generous: it only has to be less than for ever.
const LONG: Duration = Duration::from_secs(40);

/// As in `linux/userfaultfd.h`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const MISSING: u64 = 1;

/// Memory in which whoever touches it waits for ever. `None`: it cannot be had here.
fn bottomless() -> Option<*const u8> {
    answerable().map(|(memory, _)| memory)
}

/// Memory in which whoever touches it waits until the descriptor that comes with it is asked for zeros ([`let_go_on`]).
fn answerable() -> Option<(*const u8, i32)> {
    // SAFETY: new memory, and calls that fill in variables of ours.
    unsafe {
        let faults = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
        if faults < 0 {
            return None;
        }
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let memory = libc::mmap(std::ptr::null_mut(), MEMORY, access, kind, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        let mut api = [UFFD_API, 0, 0];
        assert_eq!(libc::ioctl(faults, UFFDIO_API, api.as_mut_ptr()), 0);
        let mut range = [memory as u64, MEMORY as u64, MISSING, 0];
        assert_eq!(libc::ioctl(faults, UFFDIO_REGISTER, range.as_mut_ptr()), 0);
        Some((memory.cast(), faults))
    }
}

/// Whoever waits in the first page of the memory finds zeros there.
fn let_go_on(memory: *const u8, faults: i32) {
    let mut zeros = [memory as u64, 4096, 0, 0];
    // SAFETY: a variable of ours, and memory that was registered for it.
    check_ok(unsafe { libc::ioctl(faults, UFFDIO_ZEROPAGE, zeros.as_mut_ptr()) });
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "stalls" => stalls_in_a_write(argument, dir),
        "stalls-reading" => stalls_in_a_read(argument, dir),
        "stalls-and-opens" => {
            opens_beside_a_stalled_thread(dir);
            return true;
        }
        "stalls-and-closes" => {
            stalls_in_a_thread(argument, dir);
            return true;
        }
        _ => return false,
    }
    unreachable!("nobody answers");
}

fn stalls_in_a_write(way: &str, dir: &Path) {
    let append = if way == "append" { libc::O_APPEND } else { 0 };
    let fd = open(&dir.join("f"), libc::O_RDWR | libc::O_CREAT | append).expect("open");
    write(fd, &pattern(1, LEN)).expect("write");
    if way == "hole" {
        truncate(&dir.join("f"), MANY as i64).expect("longer");
    }
    let len = match way {
        "block" => MANY,
        "huge" => HUGE,
        _ => 3000,
    };
    let memory = bottomless().expect("a userfaultfd");
    std::fs::write(dir.join("begun"), "").expect("a mark");
    // SAFETY: it is mapped.
    unsafe {
        match way {
            "hole" => libc::pwrite(fd, memory.cast(), len, 300_000),
            "huge" => libc::pwrite(fd, memory.cast(), len, 0),
            _ => libc::write(fd, memory.cast(), len),
        }
    };
}

fn stalls_in_a_read(way: &str, dir: &Path) {
    let fd = open(&dir.join("f"), libc::O_RDWR | libc::O_CREAT).expect("open");
    let (len, least) = match way {
        "block" => (MANY, MANY),
        "huge" => (HUGE, HUGE),
        _ => (3000, LEN),
    };
    write(fd, &pattern(1, least)).expect("write");
    if way == "huge" {
        // Nothing of it stays in memory.
        // SAFETY: these take no memory.
        check_ok(unsafe { libc::fsync(fd) });
        // SAFETY: as above.
        check_ok(unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) });
    } else {
        pread(fd, len, 0).expect("read");
    }
    let memory = bottomless().expect("a userfaultfd").cast_mut();
    std::fs::write(dir.join("begun"), "").expect("a mark");
    let parts = [10, 3000].map(|len| libc::iovec {
        iov_base: memory.cast(),
        iov_len: len,
    });
    // SAFETY: it is mapped.
    unsafe {
        match way {
            "parts" => libc::preadv(fd, parts.as_ptr(), 2, 0),
            _ => libc::pread(fd, memory.cast(), len, 0),
        }
    };
}

/// One thread waits in its memory, another closes what that writes to, and the first one does the same with other files.
fn stalls_in_a_thread(way: &str, dir: &Path) {
    let fd = open(&dir.join("f"), libc::O_RDWR | libc::O_CREAT).expect("open");
    let owed = if way == "much" { 4 << 20 } else { LEN };
    for part in pattern(1, owed).chunks(LEN) {
        write(fd, part).expect("write");
    }
    let memory = bottomless().expect("a userfaultfd") as usize;
    let process = std::process::id();
    std::thread::spawn(move || {
        // SAFETY: it is mapped.
        unsafe { libc::pwrite(fd, memory as *const libc::c_void, 3000, 0) }
    });
    let begun = Instant::now();
    while !is_waiting(process) {
        assert!(begun.elapsed() < LONG, "it does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::spawn(move || close(fd));
    // Until it is likely to be at it.
    std::thread::sleep(Duration::from_millis(100));
    for turn in 0..100_u8 {
        let other = dir.join(format!("other{}", turn % 3));
        let fd = open(&other, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).expect("open");
        write(fd, &pattern(turn, 5000)).expect("write");
        assert!(pread(fd, 5000, 0).expect("read") == pattern(turn, 5000));
        close(fd).expect("close");
    }
    println!("@done");
    // SAFETY: what the others are at goes with the process.
    unsafe { libc::_exit(0) };
}

/// One thread waits in a write at its descriptor's offset. Another one closes that descriptor and opens another file: its offset is its own.
fn opens_beside_a_stalled_thread(dir: &Path) {
    const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
    let first = open(&dir.join("z"), RDWR).expect("open");
    write(first, &pattern(2, LEN)).expect("write");
    let fd = open(&dir.join("f"), RDWR).expect("open");
    write(fd, &pattern(1, LEN)).expect("write");
    // The file has two descriptors, so that its close waits for nobody.
    let kept = open(&dir.join("f"), libc::O_RDONLY).expect("open");
    pread(kept, 1, 0).expect("read");
    let (memory, faults) = answerable().expect("a userfaultfd");
    let address = memory as usize;
    let writer = std::thread::spawn(move || {
        // SAFETY: it is mapped.
        unsafe { libc::write(fd, address as *const libc::c_void, 3000) }
    });
    let begun = Instant::now();
    while !is_waiting(std::process::id()) {
        assert!(begun.elapsed() < LONG, "it does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    close(fd).expect("close");
    let others: Vec<_> = (0..4)
        .map(|_| {
            let other = open(&dir.join("z"), RDWR).expect("open");
            assert!(read(other, 10).expect("read") == pattern(2, LEN)[..10]);
            other
        })
        .collect();
    let_go_on(memory, faults);
    assert_eq!(writer.join().expect("a thread"), 3000);
    for other in others {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::lseek(other, 0, libc::SEEK_CUR) }, 10);
        close(other).expect("close");
    }
    assert_eq!(pread(kept, 3000, LEN as i64).expect("read"), [0; 3000]);
}

fn check_ok(result: i32) {
    assert_eq!(result, 0);
}

/// Whether a thread of a process waits for its memory.
fn is_waiting(process: u32) -> bool {
    let wchan = |task: &Path| std::fs::read_to_string(task.join("wchan")).unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("tasks");
    let mut tasks = tasks.flatten().map(|task| task.path());
    tasks.any(|task| wchan(&task).contains("userfault"))
}

/// Waits until a thread of a process waits for its memory.
fn begins_to_wait(scene: &Scene, child: &Child) {
    let begun = Instant::now();
    while !scene.path("begun").exists() || !is_waiting(child.id()) {
        assert!(begun.elapsed() < LONG, "it does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has others do something while a program waits in its memory, which is killed should they wait for it. Whether they did not.
fn others_go_on(scene: &Scene, mut stalled: Child, others: impl FnOnce()) -> bool {
    begins_to_wait(scene, &stalled);
    let process = stalled.id() as i32;
    let (done, over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let late = over.recv_timeout(LONG).is_err();
        if late {
            // SAFETY: takes no memory; a child that has not been waited for.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        late
    });
    others();
    let _ = done.send(());
    let late = watch.join().expect("a watch");
    let waits = stalled.try_wait().expect("a look").is_none();
    stalled.kill().expect("a kill");
    stalled.wait().expect("an end");
    assert!(late || waits, "it waits still");
    !late
}

#[test]
fn others_go_on_while_a_writer_waits_in_its_own_memory() {
    if bottomless().is_none() {
        here::skipped("no userfaultfd");
        return;
    }
    for way in ["quick", "block", "append", "hole", "huge"] {
        let scene = Scene::new("stalls", 0);
        let writer = scene.start("stalls", way);
        let go_on = others_go_on(&scene, writer, || {
            let mut member = Member::of(&scene);
            member.does("open other");
            member.does(&format!("write 2 {LEN}"));
            member.does("close");
            // The same bytes that the writer is about to write, and the end.
            member.does("open f");
            assert_eq!(member.does(&format!("holds 1 {LEN} 0")), "true");
            member.does(&format!("cut {LEN}"));
            member.does(&format!("write 3 {LEN}"));
            member.does("text more");
            member.does("close");
            member.does("log f");
            member.does("text end");
            member.ends();
            let session = scene.session.as_ref().expect("a session");
            session.settle_all().expect("settled");
        });
        assert!(go_on, "{way}: they wait for it");
        let mut wanted = pattern(3, LEN);
        wanted.extend(b"more\nend\n");
        let bytes = std::fs::read(scene.path("f")).expect("a file");
        assert!(bytes == wanted, "{way}");
    }
}

#[test]
fn others_go_on_while_a_reader_waits_in_its_own_memory() {
    if bottomless().is_none() {
        here::skipped("no userfaultfd");
        return;
    }
    for way in ["quick", "parts", "block", "huge"] {
        let scene = Scene::new("stalls-reading", 0);
        let reader = scene.start("stalls-reading", way);
        let go_on = others_go_on(&scene, reader, || {
            let mut member = Member::of(&scene);
            member.does("open f");
            // A cut waits for all that are at the file.
            member.does("cut 5");
            member.does("close");
            member.does("log f");
            member.does("text end");
            member.ends();
        });
        assert!(go_on, "{way}: they wait for it");
        let mut wanted = pattern(1, 5);
        wanted.extend(b"end\n");
        let bytes = std::fs::read(scene.path("f")).expect("a file");
        assert!(bytes == wanted, "{way}");
    }
}

#[test]
fn a_close_that_waits_for_a_thread_holds_up_no_other_file() {
    if bottomless().is_none() {
        here::skipped("no userfaultfd");
        return;
    }
    for way in ["little", "much"] {
        let scene = Scene::new("stalls-and-closes", 0);
        let mut program = scene.start("stalls-and-closes", way);
        let begun = Instant::now();
        let ended = loop {
            if let Some(status) = program.try_wait().expect("a look") {
                break Some(status);
            }
            if begun.elapsed() > LONG {
                program.kill().expect("a kill");
                program.wait().expect("an end");
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(
            ended.is_some_and(|status| status.success()),
            "{way}: {ended:?}"
        );
        for turn in 97..100_u8 {
            let bytes = std::fs::read(scene.path(&format!("other{}", turn % 3))).expect("a file");
            assert!(bytes == pattern(turn, 5000), "{way}");
        }
        let session = scene.session.as_ref().expect("a session");
        session.settle_all().expect("settled");
        let bytes = std::fs::read(scene.path("f")).expect("a file");
        assert!(bytes[..LEN] == pattern(1, LEN), "{way}");
    }
}

/// A description that a thread is in the middle of a call on is nobody else's, though its descriptor has been closed.
#[test]
fn who_closes_beside_a_stalled_writer_opens_files_with_offsets_of_their_own() {
    if bottomless().is_none() {
        here::skipped("no userfaultfd");
        return;
    }
    let scene = Scene::new("stalls-and-opens", 0);
    let status = scene.start("stalls-and-opens", "").wait();
    assert!(status.expect("an end").success());
}
