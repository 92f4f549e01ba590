//! A program that waits in a fault of its own memory in the middle of a write (userfaultfd): others go on, also where it writes.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::here;
use crate::outsiders::Member;
use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 100_000;
const MEMORY: usize = 1 << 20;
/// Generous: it only has to be less than for ever.
const LONG: Duration = Duration::from_secs(40);

/// As in `linux/userfaultfd.h`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFD_API: u64 = 0xaa;
const MISSING: u64 = 1;

/// Memory in which whoever touches it waits for ever. `None`: it cannot be had here.
fn bottomless() -> Option<*const u8> {
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
        Some(memory.cast())
    }
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "stalls" {
        return false;
    }
    let append = if argument == "append" {
        libc::O_APPEND
    } else {
        0
    };
    let fd = open(&dir.join("f"), libc::O_RDWR | libc::O_CREAT | append).expect("open");
    write(fd, &pattern(1, LEN)).expect("write");
    let len = match argument {
        "block" => 600_000,
        _ => 3000,
    };
    let memory = bottomless().expect("a userfaultfd");
    std::fs::write(dir.join("begun"), "").expect("a mark");
    // SAFETY: it is mapped.
    unsafe { libc::write(fd, memory.cast(), len) };
    unreachable!("nobody answers");
}

/// Waits until a thread of a process waits for its memory.
fn begins_to_wait(scene: &Scene, child: &Child) {
    let begun = Instant::now();
    let wchan = |task: &Path| std::fs::read_to_string(task.join("wchan")).unwrap_or_default();
    let waits = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("tasks");
        let mut tasks = tasks.map(|task| task.expect("a task").path());
        tasks.any(|task| wchan(&task).contains("userfault"))
    };
    while !scene.path("begun").exists() || !waits() {
        assert!(begun.elapsed() < LONG, "it does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn others_go_on_while_a_writer_waits_in_its_own_memory() {
    if bottomless().is_none() {
        here::skipped("no userfaultfd");
        return;
    }
    for way in ["quick", "block", "append"] {
        let scene = Scene::new("stalls", 0);
        let mut writer = scene.start("stalls", way);
        begins_to_wait(&scene, &writer);
        let process = writer.id() as i32;
        let (done, over) = std::sync::mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            let late = over.recv_timeout(LONG).is_err();
            if late {
                // SAFETY: takes no memory; a child that has not been waited for.
                unsafe { libc::kill(process, libc::SIGKILL) };
            }
            late
        });
        let mut member = Member::of(&scene);
        member.does("open other");
        member.does(&format!("write 2 {LEN}"));
        member.does("close");
        // The same bytes that the writer is about to write, and the end.
        member.does("open f");
        assert_eq!(member.does(&format!("holds 1 {LEN} 0")), "true");
        member.does(&format!("write 3 {LEN}"));
        member.does("text more");
        member.does("close");
        member.does("log f");
        member.does("text end");
        member.ends();
        let session = scene.session.as_ref().expect("a session");
        session.settle_all().expect("settled");
        let _ = done.send(());
        assert!(!watch.join().expect("a watch"), "{way}: they wait for it");
        assert!(
            writer.try_wait().expect("a look").is_none(),
            "it waits still"
        );
        writer.kill().expect("a kill");
        writer.wait().expect("an end");
        let mut wanted = pattern(3, LEN);
        wanted.extend(b"more\nend\n");
        assert!(
            std::fs::read(scene.path("f")).expect("a file") == wanted,
            "{way}"
        );
    }
}
