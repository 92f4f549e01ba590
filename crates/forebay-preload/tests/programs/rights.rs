//! Programs that give their rights away, and with them everything that they had of the session.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::scene::Scene;
use crate::sys::*;

const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
pub const LEN: usize = 1 << 20;
const NOBODY: u32 = 65534;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "gives-rights-away" => gives_rights_away(argument, dir),
        "clones-into-a-namespace" => clones_into_a_namespace(dir),
        "a-child-gives-rights-away" => a_child_gives_rights_away(argument, dir),
        _ => return false,
    }
    true
}

/// Mappings that others share and that may be written.
pub fn shared_mappings() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
    let shared = maps.lines().filter(|line| line.contains(" rw-s "));
    shared.map(str::to_owned).collect()
}

/// What the process has open, and is not the program's.
pub fn descriptors(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc/self/fd").expect("descriptors");
    let paths = all.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let mut paths: Vec<_> = paths
        .filter(|path| !path.starts_with(dir) && !path.starts_with("/proc"))
        .collect();
    paths.sort();
    paths
}

unsafe extern "C" {
    fn capget(header: *mut u32, data: *mut u32) -> libc::c_int;
    fn capset(header: *mut u32, data: *const u32) -> libc::c_int;
}

/// Becomes somebody else; without the right to, what leaves the session all the same.
fn give_rights_away(how: &str) {
    // SAFETY: plain calls, and a string.
    unsafe {
        match (how, libc::geteuid()) {
            ("setuid", 0) => assert_eq!(libc::setuid(NOBODY), 0),
            ("number", 0) => assert_eq!(libc::syscall(libc::SYS_setresuid, 99, 99, 99), 0),
            ("capabilities", 0) => {
                // What it has already, and then nothing.
                let mut header = [0x2008_0522u32, 0];
                let mut data = [0u32; 6];
                assert_eq!(capget(header.as_mut_ptr(), data.as_mut_ptr()), 0);
                assert_eq!(capset(header.as_mut_ptr(), data.as_ptr()), 0);
                assert!(shared_mappings().len() >= 2, "nothing was given up");
                assert_eq!(capset(header.as_mut_ptr(), [0; 6].as_ptr()), 0);
            }
            ("groups", 0) => assert_eq!(libc::setgroups(0, std::ptr::null()), 0),
            _ => assert_eq!(libc::chroot(c"/nowhere".as_ptr()), -1),
        }
        // Else what is looked at would be root's.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
}

/// A managed file, written up to its first half.
pub fn half(dir: &Path, name: &str, seed: u8) -> i32 {
    let fd = open(&dir.join(name), NEW).expect("open");
    for part in pattern(seed, LEN)[..LEN / 2].chunks(4096) {
        assert_eq!(write(fd, part), Ok(part.len()));
    }
    fd
}

pub fn finish(fd: i32, seed: u8) {
    let bytes = pattern(seed, LEN);
    assert_eq!(write(fd, &bytes[LEN / 2..]), Ok(LEN / 2));
    assert_eq!(seek(fd, 0, libc::SEEK_SET), Ok(0));
    assert!(read(fd, LEN + 1).expect("read") == bytes);
    close(fd).expect("close");
}

/// One page after the other, round and round, each with the number of its round; read back at once.
fn write_until(fd: i32, ends: &AtomicBool, rounds: &AtomicU64) {
    let mut round = 0;
    while !ends.load(Ordering::SeqCst) {
        round += 1;
        for page in 0..64 {
            let bytes = [round as u8 ^ page as u8; 4096];
            assert_eq!(pwrite(fd, &bytes, page * 4096), Ok(4096));
            assert!(pread(fd, 4096, page * 4096).expect("read") == bytes);
        }
        rounds.store(round, Ordering::SeqCst);
    }
}

fn await_rounds(rounds: &AtomicU64, more: u64) {
    let (before, begun) = (rounds.load(Ordering::SeqCst), Instant::now());
    while rounds.load(Ordering::SeqCst) < before + more {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the thread is stuck"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn gives_rights_away(how: &str, dir: &Path) {
    let before = descriptors(dir);
    let fd = half(dir, "file", 1);
    let threads = [7, 8].map(|seed| half(dir, &format!("thread{seed}"), seed));
    assert!(
        shared_mappings().len() >= 2,
        "the program is in the session"
    );
    assert!(descriptors(dir).len() > before.len());
    let (ends, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    std::thread::scope(|scope| {
        for (fd, rounds) in threads.into_iter().zip(&rounds) {
            let ends = &ends;
            scope.spawn(move || write_until(fd, ends, rounds));
        }
        rounds.iter().for_each(|rounds| await_rounds(rounds, 2));
        give_rights_away(how);
        assert_eq!(shared_mappings(), [""; 0]);
        assert_eq!(descriptors(dir), before);
        rounds.iter().for_each(|rounds| await_rounds(rounds, 2));
        ends.store(true, Ordering::SeqCst);
    });
    finish(fd, 1);
    // What it makes from now on is the kernel's.
    if let Ok(fd) = open(&dir.join("late"), NEW) {
        assert_eq!(write(fd, &pattern(3, LEN)), Ok(LEN));
        close(fd).expect("close");
    }
    assert_eq!(in_child(|| assert!(shared_mappings().is_empty())), 0);
    println!("@left");
    std::io::stdout().flush().expect("output");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
}

/// The child has copies of everything; its parent goes on as a member.
fn a_child_gives_rights_away(how: &str, dir: &Path) {
    let fd = half(dir, "file", 1);
    let ended = in_child(|| {
        let before = descriptors(dir);
        let own = half(dir, "own", 2);
        assert!(descriptors(dir).len() > before.len() && shared_mappings().len() >= 2);
        give_rights_away(how);
        assert_eq!(shared_mappings(), [""; 0]);
        assert_eq!(descriptors(dir), before);
        finish(own, 2);
        assert_eq!(pread(fd, LEN, 0), Ok(pattern(1, LEN / 2)));
    });
    assert_eq!(ended, 0);
    assert!(shared_mappings().len() >= 2);
    finish(fd, 1);
    let again = half(dir, "again", 4);
    finish(again, 4);
}

const HOW: [&str; 5] = ["setuid", "number", "groups", "capabilities", "chroot"];

extern "C" fn looks_around(_: *mut libc::c_void) -> libc::c_int {
    shared_mappings().len() as libc::c_int
}

/// A child in a namespace of its own, as sandboxes and containers begin.
fn clones_into_a_namespace(dir: &Path) {
    let fd = half(dir, "file", 1);
    assert!(
        !shared_mappings().is_empty(),
        "the program is in the session"
    );
    let mut stack = vec![0u128; 1 << 16];
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::SIGCHLD;
    let mut status = 0;
    // SAFETY: the child has memory of its own and ends by the function; the stack's end is that of the vector's memory.
    unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let child = libc::clone(looks_around, top, flags, std::ptr::null_mut());
        if child == -1 {
            // Not allowed here.
            println!("@forbidden");
            return;
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!(status, 0, "mappings of the session's in the child");
    finish(fd, 1);
}

#[test]
fn a_child_in_a_namespace_of_its_own_has_nothing_of_the_session() {
    let scene = Scene::new("rights-clone", 0);
    let told = scene.play("clones-into-a-namespace", "");
    if told.contains("@forbidden") {
        return crate::here::skipped("namespaces of users are forbidden here");
    }
    assert!(fs::read(scene.path("file")).expect("a file") == pattern(1, LEN));
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn who_gives_rights_away_has_nothing_of_the_session() {
    for how in HOW {
        let scene = Scene::new("rights", 0);
        let place = scene.session.as_ref().expect("a session").place();
        let arena = place.expect("a place").path.expect("an arena");
        let mut program = scene.role("gives-rights-away", how);
        let mut program = program
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a program");
        let output = program.stdout.take().expect("output");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(output));
        let told = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("@left")));
        assert!(told.is_some(), "{how}: {:?}", program.wait());
        // It has no thread in the session any more, and lives.
        let seen = forebay::session::look::look(&arena).expect("an arena");
        let members = seen.expect("a session").members().processes;
        assert!(!members.contains(&program.id()), "{how}: {members:?}");
        drop(program.stdin.take());
        assert!(program.wait().expect("an end").success(), "{how}");
        assert!(fs::read(scene.path("file")).expect("a file") == pattern(1, LEN));
    }
}

#[test]
fn a_child_that_gives_rights_away_takes_nothing_from_its_parent() {
    for how in HOW {
        let scene = Scene::new("rights-child", 0);
        scene.play("a-child-gives-rights-away", how);
        for (name, seed) in [("file", 1), ("own", 2), ("again", 4)] {
            let bytes = fs::read(scene.path(name)).expect("a file");
            assert!(bytes == pattern(seed, LEN), "{how}: {name}");
        }
    }
}
