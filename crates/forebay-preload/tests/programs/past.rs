//! Calls that reach a managed file past what the engine serves: libc's that write by themselves, openings that only name it,
//! requests about all of its file system, and the kernel's that wait.

use std::ffi::c_void;
use std::path::Path;

use crate::disks::Disk;
use crate::here;
use crate::outsiders::{Member, SHORT};
use crate::scene::{Scene, said};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
/// Lines of a log, and bytes of each.
const LINES: usize = 2000;
const LINE: usize = 100;
/// Frames of a stack that are written.
const FRAMES: usize = 8;

unsafe extern "C" {
    fn backtrace(frames: *mut *mut c_void, room: i32) -> i32;
    fn backtrace_symbols_fd(frames: *const *mut c_void, count: i32, fd: i32);
    fn __backtrace_symbols_fd(frames: *const *mut c_void, count: i32, fd: i32);
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "past-trace" => println!("@{}", trace(&dir.join("log"), argument)),
        "past-splice" => splice(&dir.join("d")),
        "past-whole" => whole(dir, argument),
        "past-frozen" => frozen(dir),
        "past-named" => named(&dir.join("a")),
        _ => return false,
    }
    true
}

fn lines() -> Vec<u8> {
    let line = |number| format!("{number:0width$}\n", width = LINE - 1);
    (0..LINES).map(line).collect::<String>().into_bytes()
}

/// A log into which a program writes its stack, as handlers of faults do. How many frames that were.
fn trace(log: &Path, function: &str) -> i32 {
    let fd = open(log, RDWR).expect("open");
    for line in lines().chunks(LINE) {
        assert_eq!(write(fd, line), Ok(LINE));
    }
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: as many frames as there is room for, and as were found.
    let count = unsafe {
        let count = backtrace(frames.as_mut_ptr(), FRAMES as i32);
        match function {
            "__backtrace_symbols_fd" => __backtrace_symbols_fd(frames.as_ptr(), count, fd),
            _ => backtrace_symbols_fd(frames.as_ptr(), count, fd),
        }
        count
    };
    let at = seek(fd, 0, libc::SEEK_CUR).expect("seek");
    assert!(at > (LINES * LINE) as i64, "{at}: nothing was written");
    assert_eq!(write(fd, b"end\n"), Ok(4));
    assert_eq!(size_of(fd), at + 4);
    close(fd).expect("close");
    count
}

#[test]
fn a_stack_is_written_into_a_managed_log() {
    for function in ["backtrace_symbols_fd", "__backtrace_symbols_fd"] {
        let scene = Scene::new("past-trace", 0);
        let said = scene.play("past-trace", function);
        assert!(scene.bytes_to_memory() > 0);
        let (_, count) = said.split_once('@').expect("an answer");
        let count: usize = count.lines().next().unwrap_or("").parse().expect("frames");
        assert!(count > 0, "there is no stack");
        let log = std::fs::read(scene.path("log")).expect("a file");
        let stack = log.strip_prefix(&lines()[..]).expect("all lines");
        let stack = stack.strip_suffix(b"end\n").expect("the end");
        let stack = String::from_utf8_lossy(stack);
        assert_eq!(stack.lines().count(), count, "{stack}");
        assert!(stack.lines().all(|line| line.contains("[0x")), "{stack}");
    }
}

/// Opens by `openat2`.
fn open_by_structure(path: &Path, flags: i32) -> Result<i32, Option<i32>> {
    let (path, how) = (c(path), [flags as u64, 0, 0]);
    let (dir, size) = (libc::AT_FDCWD, size_of_val(&how));
    // SAFETY: a string and a structure of ours.
    match unsafe { libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), how.as_ptr(), size) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error()),
        fd => Ok(fd as i32),
    }
}

/// A descriptor that only names a file is that whatever else the flags ask for.
fn named(path: &Path) {
    let fd = open(path, RDWR).expect("open");
    for part in lines().chunks(50_000) {
        assert_eq!(write(fd, part), Ok(part.len()));
    }
    let size = (LINES * LINE) as i64;
    let cut = libc::O_PATH | libc::O_TRUNC;
    let path_of_c = c(path);
    for flags in [cut, cut | libc::O_WRONLY, cut | libc::O_RDWR] {
        // SAFETY: a string of ours.
        let by_place = unsafe { libc::openat(libc::AT_FDCWD, path_of_c.as_ptr(), flags) };
        for named in [open(path, flags), Ok(by_place)] {
            let named = named.expect("open");
            assert!(named >= 0, "{}", std::io::Error::last_os_error());
            assert_eq!((size_of(named), size_of(fd)), (size, size));
            assert_eq!(write(named, b"x"), Err(libc::EBADF));
            close(named).expect("close");
        }
        assert_eq!(open_by_structure(path, flags), Err(Some(libc::EINVAL)));
    }
    let by_structure = open_by_structure(path, libc::O_PATH).expect("open");
    assert_eq!(size_of(by_structure), size);
    close(by_structure).expect("close");
    let none = path.with_extension("none");
    assert_eq!(open(&none, libc::O_PATH | libc::O_CREAT), Err(libc::ENOENT));
    assert_eq!(write(fd, b"more"), Ok(4));
    assert_eq!(size_of(fd), size + 4);
    close(fd).expect("close");
}

#[test]
fn a_file_that_is_only_named_is_not_cut() {
    let scene = Scene::new("past-named", 0);
    scene.play("past-named", "");
    assert!(scene.bytes_to_memory() > 0);
    let bytes = std::fs::read(scene.path("a")).expect("a file");
    assert!(bytes == [lines(), b"more".to_vec()].concat());
}

/// Requests of btrfs about all of a file system: a snapshot, two versions of it; a sync, and the beginning of one.
const WHOLE: [u64; 4] = [0x5000_9401, 0x5000_9417, 0x9408, 0x8008_9418];
const FIFREEZE: u64 = 0xc004_5877;
const FITHAW: u64 = 0xc004_5878;

/// Makes such a request of the file system that the directory is in, whether that knows it or not.
fn whole(dir: &Path, argument: &str) {
    let (way, request) = argument.split_once(' ').expect("two words");
    let request: u64 = request.parse().expect("a number");
    let fd = open(dir, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    let mut room = [0u8; 4096];
    // SAFETY: no request has more memory than there is.
    unsafe {
        match way {
            "ioctl" => drop(libc::ioctl(fd, request, room.as_mut_ptr())),
            _ => drop(libc::syscall(
                libc::SYS_ioctl,
                fd,
                request,
                room.as_mut_ptr(),
            )),
        }
    }
}

#[test]
fn requests_about_a_file_system_find_all_that_was_written() {
    let scene = Scene::new("past-whole", 0);
    let mut member = Member::of(&scene);
    let ways = ["ioctl", "syscall"];
    let all = ways
        .iter()
        .flat_map(|way| WHOLE.map(|request| (way, request)));
    for (turn, (way, request)) in all.enumerate() {
        let name = format!("f{turn}");
        member.does(&format!("open {name}"));
        member.does(&format!("write {turn} {SHORT}"));
        assert_eq!(size_at(&scene.path(&name)), 0, "it is in memory only");
        scene.play("past-whole", &format!("{way} {request}"));
        let on_the_device = std::fs::read(scene.path(&name)).expect("a file");
        assert!(
            on_the_device == pattern(turn as u8, SHORT),
            "{way} {request:x}"
        );
    }
    member.ends();
    assert!(scene.bytes_to_memory() > 0);
}

/// Freezes the directory's file system, looks at a file past the session, and thaws it.
fn frozen(dir: &Path) {
    let fd = open(dir, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    // SAFETY: requests without memory.
    let request = |request| unsafe { libc::ioctl(fd, request, 0) };
    assert_eq!(request(FIFREEZE), 0, "{}", std::io::Error::last_os_error());
    let mut outsider = std::process::Command::new("cat");
    let seen = outsider
        .arg(dir.join("a"))
        .env_remove("LD_PRELOAD")
        .output();
    // Whatever was seen: else nobody could unmount it.
    assert_eq!(request(FITHAW), 0, "{}", std::io::Error::last_os_error());
    let seen = seen.expect("cat");
    assert!(seen.status.success() && seen.stdout == pattern(1, SHORT));
}

#[test]
fn a_file_system_that_is_frozen_has_all_that_was_written() {
    let disk = match Disk::new("ext4", 64, "") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(&reason),
    };
    let mut scene = Scene::new("past-frozen", 0);
    scene.dir = tempfile::tempdir_in(disk.dir()).expect("a directory");
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    assert_eq!(size_at(&scene.path("a")), 0, "it is in memory only");
    let mut freezes = scene.role("past-frozen", "");
    said(freezes.output().expect("a program"));
    member.does(&format!("write 2 {SHORT}"));
    member.ends();
    let whole = [pattern(1, SHORT), pattern(2, SHORT)].concat();
    assert!(std::fs::read(scene.path("a")).expect("a file") == whole);
    assert!(scene.bytes_to_memory() > 0);
}

/// What goes through a pipe: as much as it has room for.
const PIPED: usize = 64 * 1024;

/// The kernel is at the file, and waits for a pipe until this program is told to write there.
fn splice(path: &Path) {
    let mut ends = [-1; 2];
    // SAFETY: the target is ours.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let file = open(path, libc::O_WRONLY | libc::O_CREAT).expect("open");
    std::thread::scope(|threads| {
        let (told, hear) = std::sync::mpsc::channel();
        let splices = threads.spawn(move || {
            // SAFETY: these take no memory but nulls.
            unsafe {
                told.send(libc::gettid()).expect("a listener");
                let (mut moved, none) = (0, std::ptr::null_mut());
                while moved < PIPED {
                    let some = libc::splice(ends[0], none, file, none, 1 << 20, 0);
                    assert!(some > 0, "{}", std::io::Error::last_os_error());
                    moved += some as usize;
                }
            }
        });
        await_sleep(hear.recv().expect("a thread"));
        println!("@begun");
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("input");
        assert_eq!(write(ends[1], &pattern(1, PIPED)), Ok(PIPED));
        splices.join().expect("an end");
    });
    assert_eq!(seek(file, 0, libc::SEEK_CUR), Ok(PIPED as i64));
    close(file).expect("close");
    println!("@done");
}

/// Until a thread has waited for something for a while.
fn await_sleep(thread: i32) {
    let mut looks = 0;
    while looks < 20 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        let sleeps = stat.is_ok_and(|stat| stat.contains(") S "));
        looks = if sleeps { looks + 1 } else { 0 };
    }
}

/// The kernel writes where the program's offset was when it called, over what has been appended since: as without the library.
#[test]
fn a_file_is_the_kernels_for_as_long_as_a_splice_waits() {
    const APPENDS: usize = 2000;
    const RECORD: usize = 4096;
    let scene = Scene::new("past-splice", 0);
    let mut splices = Member::from(scene.role("past-splice", ""));
    assert_eq!(splices.answers(), "begun");
    let mut appends = Member::of(&scene);
    appends.does("log d");
    let mut wanted = Vec::new();
    for turn in 0..APPENDS {
        let seed = turn as u8;
        appends.does(&format!("write {seed} {RECORD}"));
        wanted.extend(pattern(seed, RECORD));
    }
    assert_eq!(scene.bytes_to_memory(), 0, "it is managed beside the call");
    assert_eq!(splices.does("go on"), "done");
    appends.does("close");
    appends.ends();
    splices.ends();
    wanted[..PIPED].copy_from_slice(&pattern(1, PIPED));
    assert!(std::fs::read(scene.path("d")).expect("a file") == wanted);
    // And then it is a file like any other.
    let mut member = Member::of(&scene);
    member.does("open d");
    member.does(&format!("write 3 {SHORT}"));
    member.ends();
    assert!(scene.bytes_to_memory() > 0);
}
