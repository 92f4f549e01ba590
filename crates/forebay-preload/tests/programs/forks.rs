//! Forks in programs with threads: no file is mixed with another, nobody hangs, nothing is kept for the dead.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::scene::{Scene, said};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
const WRITERS: u64 = 8;
const BLOCK: usize = 3000;
const BLOCKS: u64 = 6;
/// How long a child may take that closes what it has and ends.
const PATIENCE: Duration = Duration::from_secs(180);

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "fork-beside-writers" => beside_writers(argument.parse().expect("a number"), dir),
        "fork-handlers" => opened_by_handlers(dir),
        "fork-dead" => kept_for_nobody(dir),
        "fork-inherits" => inherited_by_the_living(dir),
        "fork-leaves" => leaves_a_child(dir),
        _ => return false,
    }
    true
}

/// What a block of one round of one writer's has in it.
fn block(writer: u64, round: u64, number: u64) -> Vec<u8> {
    let text = format!("{writer} {round} {number};");
    text.bytes().cycle().take(BLOCK).collect()
}

/// Opens, writes, duplicates, looks and closes, and finds what it has written, where it has written it.
fn one_round(writer: u64, round: u64, dir: &Path) {
    let path = dir.join(format!("{writer}-{}", round % 3));
    let fd = open(&path, RDWR).expect("open");
    let mut same = fd;
    for number in 0..BLOCKS {
        let at = |number| Ok((number * BLOCK as u64) as i64);
        assert_eq!(
            seek(same, 0, libc::SEEK_CUR),
            at(number),
            "{path:?} {round}"
        );
        assert_eq!(write(same, &block(writer, round, number)), Ok(BLOCK));
        if number == BLOCKS / 2 {
            // SAFETY: takes no memory.
            same = unsafe { libc::dup(fd) };
            close(fd).expect("close");
        }
    }
    assert_eq!(
        size_of(same),
        (BLOCKS * BLOCK as u64) as i64,
        "{path:?} {round}"
    );
    for number in 0..BLOCKS {
        let found = pread(same, BLOCK, (number * BLOCK as u64) as i64).expect("read");
        assert!(
            found == block(writer, round, number),
            "{path:?} {round} {number}"
        );
    }
    close(same).expect("close");
}

/// Forks children that close everything, while others write files of their own.
fn beside_writers(forks: u64, dir: &Path) {
    let over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (over, rounds) = (&over, &rounds);
            scope.spawn(move || {
                let mut round = 0;
                while !over.load(Relaxed) {
                    one_round(writer, round, dir);
                    round += 1;
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        let forked = std::panic::catch_unwind(|| (0..forks).for_each(fork_and_close));
        over.store(true, Relaxed);
        forked.expect("the children end");
    });
    assert!(rounds.load(Relaxed) >= WRITERS);
}

/// A child that closes everything, in one of the ways that there are, and ends or executes something.
fn fork_and_close(way: u64) {
    let words = [c"/bin/true".as_ptr(), std::ptr::null()];
    // SAFETY: the child makes calls that need no lock, with memory that is there already, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe {
            if way.is_multiple_of(2) {
                libc::close_range(3, u32::MAX, 0);
            } else {
                (3..64).for_each(|fd| {
                    libc::close(fd);
                });
            }
            if way % 4 == 3 {
                libc::execv(words[0], words.as_ptr());
            }
            libc::_exit(0);
        }
    }
    assert!(pid > 0, "fork");
    assert_eq!(ended(pid), 0, "a child of way {way}");
}

/// The status of a child that must end.
fn ended(pid: i32) -> i32 {
    let begun = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the target is ours.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_micros(100)),
            0 => {
                // SAFETY: a child of ours.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                panic!("child {pid} does not end");
            }
            other => {
                assert_eq!(other, pid);
                return status;
            }
        }
    }
}

/// What an outsider finds when the program has ended: files of one round each, whole but for one that was being written.
fn look_at_files(scene: &Scene) {
    for writer in 0..WRITERS {
        for place in 0..3 {
            let path = scene.path(&format!("{writer}-{place}"));
            let Ok(bytes) = std::fs::read(&path) else {
                continue;
            };
            assert_eq!(bytes.len(), BLOCKS as usize * BLOCK, "{path:?}");
            let text = String::from_utf8_lossy(&bytes[..40]);
            let round = text.split(' ').nth(1).and_then(|round| round.parse().ok());
            let round = round.expect("a round");
            for (number, found) in bytes.chunks(BLOCK).enumerate() {
                assert!(
                    found == block(writer, round, number as u64),
                    "{path:?} {number}"
                );
            }
        }
    }
}

/// A directory that handlers of forks open files in, and what they have opened: before a fork, and after it in the child.
static HANDLERS_DIR: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
static BEFORE: AtomicI32 = AtomicI32::new(-1);
static IN_CHILD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn before_fork() {
    let dir = HANDLERS_DIR.get().expect("a directory");
    BEFORE.store(open(&dir.join("before"), RDWR).expect("open"), Relaxed);
}

extern "C" fn in_forked_child() {
    let dir = HANDLERS_DIR.get().expect("a directory");
    IN_CHILD.store(open(&dir.join("child"), RDWR).expect("open"), Relaxed);
}

/// What is opened after the library has looked, by the handlers that a fork calls, is as what any other thread opens then: the
/// child has it as well, and what it closes is nobody else's.
fn opened_by_handlers(dir: &Path) {
    HANDLERS_DIR.set(dir.to_owned()).expect("once");
    // SAFETY: functions that are there for good.
    let set = unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_forked_child)) };
    assert_eq!(set, 0);
    for round in 0..3 {
        // There are tables of descriptions that parent and child share, in which what comes next is looked for from here on.
        let first = open(&dir.join("first"), RDWR).expect("open");
        let status = in_child(|| {
            let (before, child) = (BEFORE.load(Relaxed), IN_CHILD.load(Relaxed));
            assert_eq!(write(child, &block(0, round, 0)), Ok(BLOCK));
            assert_eq!(write(before, &block(1, round, 0)), Ok(BLOCK));
            assert_eq!(pread(child, BLOCK, 0), Ok(block(0, round, 0)));
            for fd in [child, before, first] {
                close(fd).expect("close");
            }
        });
        assert_eq!(status, 0);
        let before = BEFORE.load(Relaxed);
        // What the child has let go of is not given to another file.
        close(first).expect("close");
        let another = open(&dir.join("another"), RDWR).expect("open");
        let other = open(&dir.join("other"), RDWR).expect("open");
        assert_eq!(write(other, &block(2, round, 0)), Ok(BLOCK));
        assert_eq!(seek(before, 0, libc::SEEK_CUR), Ok(BLOCK as i64), "{round}");
        assert_eq!(write(before, &block(1, round, 1)), Ok(BLOCK));
        assert_eq!(
            pread(other, 2 * BLOCK, 0),
            Ok(block(2, round, 0)),
            "{round}"
        );
        assert_eq!(seek(other, 0, libc::SEEK_CUR), Ok(BLOCK as i64), "{round}");
        let both = [block(1, round, 0), block(1, round, 1)].concat();
        assert_eq!(pread(before, 3 * BLOCK, 0), Ok(both), "{round}");
        for fd in [other, another, before] {
            close(fd).expect("close");
        }
    }
}

/// Descriptors of each round of [`kept_for_nobody`].
const MANY: usize = 3000;
/// So many that they are more descriptions than there are.
const ROUNDS: usize = (1 << 18) / MANY + 2;

/// Children end without a word, or execute something, with many files open: their descriptions are free again, and what is opened after
/// them all is managed.
fn kept_for_nobody(dir: &Path) {
    set_limit(libc::RLIMIT_NOFILE, MANY as u64 + 500, MANY as u64 + 500);
    let path = dir.join("many");
    let words = [c"/bin/true".as_ptr(), std::ptr::null()];
    for round in 0..ROUNDS {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        let all: Vec<_> = (0..MANY)
            .map(|_| open(&path, flags).expect("open"))
            .collect();
        // SAFETY: the child makes calls and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                match round % 3 {
                    0 => libc::kill(libc::getpid(), libc::SIGKILL),
                    1 => libc::execv(words[0], words.as_ptr()),
                    _ => 0,
                };
                libc::_exit(0);
            }
        }
        ended(pid);
        all.into_iter().for_each(|fd| close(fd).expect("close"));
    }
    let fd = open(&dir.join("last"), RDWR).expect("open");
    for number in 0..10 {
        assert_eq!(write(fd, &block(0, 0, number)), Ok(BLOCK));
    }
    close(fd).expect("close");
}

/// More children than are looked at one by one live at once, each with files that it has inherited: what they have is not given to
/// others, however many others have ended.
fn inherited_by_the_living(dir: &Path) {
    const CHILDREN: u64 = 70;
    let mut go = [0; 2];
    // SAFETY: two words of ours.
    assert_eq!(unsafe { libc::pipe(go.as_mut_ptr()) }, 0);
    let mut children = Vec::new();
    for child in 0..CHILDREN {
        let fd = open(&dir.join(format!("of-{child}")), RDWR).expect("open");
        assert_eq!(write(fd, &block(child, 0, 0)), Ok(BLOCK));
        // SAFETY: the children make calls and end.
        let pids = [unsafe { libc::fork() }, 0];
        if pids[0] == 0 {
            // SAFETY: as above.
            unsafe { libc::close(go[1]) };
            let mut byte = 0u8;
            // SAFETY: a byte of ours. The end of the pipe comes when the parent lets go.
            unsafe { libc::read(go[0], (&raw mut byte).cast(), 1) };
            let written = write(fd, &block(child, 0, 1)) == Ok(BLOCK);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!written)) };
        }
        assert!(pids[0] > 0, "fork");
        children.push(pids[0]);
        close(fd).expect("close");
        assert_eq!(in_child(|| ()), 0);
    }
    // Were one of the descriptions free, one of these would get it.
    let others: Vec<_> = (0..CHILDREN)
        .map(|other| {
            let fd = open(&dir.join(format!("other-{other}")), RDWR).expect("open");
            assert_eq!(write(fd, &block(other, 1, 0)), Ok(BLOCK));
            fd
        })
        .collect();
    close(go[1]).expect("close");
    for pid in children {
        assert_eq!(ended(pid), 0);
    }
    for (fd, other) in others.into_iter().zip(0..) {
        assert_eq!(seek(fd, 0, libc::SEEK_CUR), Ok(BLOCK as i64));
        assert_eq!(pread(fd, 2 * BLOCK, 0), Ok(block(other, 1, 0)));
        close(fd).expect("close");
    }
    for child in 0..CHILDREN {
        let fd = open(&dir.join(format!("of-{child}")), libc::O_RDONLY).expect("open");
        let both = [block(child, 0, 0), block(child, 0, 1)].concat();
        assert_eq!(pread(fd, 3 * BLOCK, 0), Ok(both), "{child}");
        close(fd).expect("close");
    }
}

/// Is killed with a file open. Its child, which has closed everything, lives on until it is told to end.
fn leaves_a_child(dir: &Path) {
    let fd = open(&dir.join("f"), RDWR).expect("open");
    for _ in 0..100 {
        write(fd, &[7; BLOCK]).expect("write");
    }
    let (ready, end) = (dir.join("ready"), dir.join("end"));
    // SAFETY: the program has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        for number in 3..1024 {
            let _ = close(number);
        }
        std::fs::write(&ready, "").expect("a mark");
        let begun = Instant::now();
        while !end.exists() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: nothing of this process's is needed any more.
        unsafe { libc::_exit(0) };
    }
    while !ready.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: takes no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn fork_beside_writers(forks: u64) {
    let scene = Scene::new("fork-beside-writers", 0);
    said(
        scene
            .role("fork-beside-writers", &forks.to_string())
            .output()
            .expect("a program"),
    );
    look_at_files(&scene);
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn children_close_everything_while_threads_write() {
    fork_beside_writers(200);
}

#[test]
#[ignore = "10,000 forks"]
fn ten_thousand_forks_while_threads_write() {
    fork_beside_writers(10_000);
}

/// `subprocess.run` from one thread of Python, while three write.
#[test]
fn python_runs_programs_while_threads_write() {
    let scene = Scene::new("fork-python", 0);
    let script = r#"
import os, subprocess, sys, threading
over = False
failed = []
def writes(name):
    number = 0
    while not over:
        number += 1
        want = (b"%s %d;" % (name.encode(), number)) * 1000
        with open(name, "w+b") as f:
            for at in range(0, len(want), 1000):
                if f.tell() != at: failed.append((name, number, "at", at, f.tell()))
                f.write(want[at:at + 1000]); f.flush()
        with open(name, "rb") as f:
            found = f.read()
        if found != want: failed.append((name, number, "read", len(want), len(found)))
threads = [threading.Thread(target=writes, args=("file-%d" % n,)) for n in range(3)]
for thread in threads: thread.start()
try:
    for n in range(15):
        subprocess.run(["/bin/true"], close_fds=True, check=True, timeout=300)
        subprocess.run(["/bin/true"], close_fds=True, check=True, timeout=300, preexec_fn=lambda: None)
finally:
    over = True
    for thread in threads: thread.join()
sys.exit(repr(failed[:5]) if failed else 0)
"#;
    said(
        scene
            .command("python3")
            .args(["-c", script])
            .output()
            .expect("a program"),
    );
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn what_is_opened_in_the_middle_of_a_fork_is_the_childs_as_well() {
    let scene = Scene::new("fork-handlers", 0);
    scene.play("fork-handlers", "");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn the_dead_keep_no_descriptions() {
    let scene = Scene::new("fork-dead", 0);
    scene.play("fork-dead", "");
    assert!(scene.bytes_to_memory() > 0, "nothing was managed");
}

/// A child that lives has its parent's memory, and nothing that its parent had open.
#[test]
fn what_a_dead_parent_had_open_is_open_no_more_while_its_child_lives() {
    let scene = Scene::new("fork-leaves", 0);
    let status = scene.role("fork-leaves", "").status();
    assert!(!status.expect("an end").success(), "it is killed");
    assert!(scene.bytes_to_memory() > 0);
    let session = scene.session.as_ref().expect("a session");
    let is_open = || {
        let files = session.files();
        let mut same = files.iter().filter(|file| file.path == scene.path("f"));
        same.any(|file| file.is_open)
    };
    let begun = Instant::now();
    while is_open() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let stays = is_open();
    std::fs::write(scene.path("end"), "").expect("a mark");
    assert!(!stays, "its child has it open");
}

#[test]
fn what_living_children_have_is_not_given_to_others() {
    let scene = Scene::new("fork-inherits", 0);
    scene.play("fork-inherits", "");
    assert!(scene.bytes_to_memory() > 0);
}
