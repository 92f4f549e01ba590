//! Changes of inodes that programs of the session make past the bytes, and a recovery after the death of everybody.

use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay::keeper::recover::{Saved, recover};

use crate::deaths;
use crate::scene::{Scene, config};
use crate::sys::*;

const LEN: usize = 5000;
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done to a file: its path, another path that leads nowhere, and a descriptor of it.
type Change = fn(&CString, &CString, i32) -> i32;

macro_rules! changes {
    ($($name:literal: |$path:pat_param, $other:pat_param, $fd:pat_param| $call:expr;)*) => {
        &[$(($name, |$path: &CString, $other: &CString, $fd: i32| {
            // SAFETY: strings of ours, and numbers.
            unsafe { $call }
        })),*]
    };
}

const HERE: i32 = libc::AT_FDCWD;

fn me() -> (u32, u32) {
    // SAFETY: takes nothing.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// By number, since not every libc has it; a kernel before 6.6 has not either, and changes what is asked for by another call.
///
/// # Safety
/// A string.
unsafe fn fchmodat2(dir: i32, path: *const libc::c_char, mode: u32, flags: i32) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        let done = libc::syscall(libc::SYS_fchmodat2, dir, path, mode, flags) as i32;
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOSYS) if done != 0 && *path == 0 => libc::fchmod(dir, mode),
            Some(libc::ENOSYS) if done != 0 => libc::chmod(path, mode),
            _ => done,
        }
    }
}

/// Gives another file new names, each of which nobody had, and at last the second one that a file has.
///
/// # Safety
/// Safe; called as what needs promises is.
unsafe fn replaced_after_new_names(path: &CString, other: &CString) -> i32 {
    let fresh = c(&Path::new(path.to_str().expect("text")).with_extension("fresh"));
    let name = c(&Path::new(path.to_str().expect("text")).with_extension("name"));
    let fd = open(
        Path::new(fresh.to_str().expect("text")),
        libc::O_WRONLY | libc::O_CREAT,
    );
    // SAFETY: strings of ours, and a descriptor of ours.
    unsafe {
        let mut failed = libc::close(fd.expect("made")) | libc::link(path.as_ptr(), other.as_ptr());
        for _ in 0..3 {
            failed |= libc::rename(fresh.as_ptr(), name.as_ptr());
            failed |= libc::rename(name.as_ptr(), fresh.as_ptr());
        }
        // Times go by ticks of the kernel's.
        std::thread::sleep(Duration::from_millis(20));
        failed | libc::rename(fresh.as_ptr(), other.as_ptr())
    }
}

const CHANGES: &[(&str, Change)] = changes! {
    "chmod": |path, _, _| libc::chmod(path.as_ptr(), 0o600);
    "fchmod": |_, _, fd| libc::fchmod(fd, 0o600);
    "fchmodat": |path, _, _| libc::fchmodat(HERE, path.as_ptr(), 0o600, 0);
    "fchmodat2": |path, _, _| fchmodat2(HERE, path.as_ptr(), 0o600, 0);
    "fchmodat2-empty": |_, _, fd| fchmodat2(fd, c"".as_ptr(), 0o600, libc::AT_EMPTY_PATH);
    "chmod-by-number": |path, _, _| libc::syscall(libc::SYS_chmod, path.as_ptr(), 0o600) as i32;
    "chown": |path, _, _| libc::chown(path.as_ptr(), me().0, me().1);
    "lchown": |path, _, _| libc::lchown(path.as_ptr(), me().0, me().1);
    "fchown": |_, _, fd| libc::fchown(fd, me().0, me().1);
    "fchownat": |path, _, _| libc::fchownat(HERE, path.as_ptr(), me().0, me().1, 0);
    "fchownat-empty": |_, _, fd| libc::fchownat(fd, c"".as_ptr(), me().0, me().1, libc::AT_EMPTY_PATH);
    "utimensat": |path, _, _| libc::utimensat(HERE, path.as_ptr(), std::ptr::null(), 0);
    "futimens": |_, _, fd| libc::futimens(fd, std::ptr::null());
    "utimes": |path, _, _| libc::utimes(path.as_ptr(), std::ptr::null());
    "link": |path, other, _| libc::link(path.as_ptr(), other.as_ptr());
    "linkat": |path, other, _| libc::linkat(HERE, path.as_ptr(), HERE, other.as_ptr(), 0);
    "link-unlink": |path, other, _| libc::link(path.as_ptr(), other.as_ptr()) | libc::unlink(other.as_ptr());
    "link-remove": |path, other, _| libc::link(path.as_ptr(), other.as_ptr()) | libc::remove(other.as_ptr());
    "rename": |path, other, _|
        libc::rename(path.as_ptr(), other.as_ptr()) | libc::rename(other.as_ptr(), path.as_ptr());
    "renameat2": |path, other, _|
        libc::renameat2(HERE, path.as_ptr(), HERE, other.as_ptr(), libc::RENAME_NOREPLACE)
            | libc::renameat(HERE, other.as_ptr(), HERE, path.as_ptr());
    "replaced": |path, other, _| replaced_after_new_names(path, other);
    "fallocate": |_, _, fd| libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 20);
    "setxattr": |path, _, _|
        libc::setxattr(path.as_ptr(), c"user.test".as_ptr(), c"1".as_ptr().cast(), 1, 0);
    "fsetxattr-fremovexattr": |_, _, fd|
        libc::fsetxattr(fd, c"user.test".as_ptr(), c"1".as_ptr().cast(), 1, 0)
            | libc::fremovexattr(fd, c"user.test".as_ptr());
};

fn bytes(number: usize) -> Vec<u8> {
    pattern(number as u8 + 1, 2 * LEN)
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        // Changes each file in its own way between two writes.
        "changes" => {
            for (number, (name, change)) in CHANGES.iter().enumerate() {
                let path = dir.join(name);
                let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
                assert_eq!(write(fd, &bytes(number)[..LEN]), Ok(LEN));
                let result = change(&c(&path), &c(&dir.join("other")), fd);
                let error = std::io::Error::last_os_error();
                assert_eq!(result, 0, "{name}: {error}");
                // So that the other name can be used again; an inode of two names is left in one case.
                let _ = std::fs::rename(dir.join("other"), dir.join("second"));
                assert_eq!(write(fd, &bytes(number)[LEN..]), Ok(LEN));
            }
            println!("@done");
            std::thread::sleep(PATIENCE);
        }
        // Gives a file another name, for good.
        "renames" => {
            let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
            assert_eq!(write(fd, &bytes(0)), Ok(2 * LEN));
            // Times go by ticks of the kernel's.
            std::thread::sleep(Duration::from_millis(50));
            std::fs::rename(dir.join("a"), dir.join(argument)).expect("renamed");
            println!("@done");
            std::thread::sleep(PATIENCE);
        }
        "links" => give_link(argument, dir),
        "far-away" => go_far_away(argument, dir),
        "allocates" => reserve(dir),
        "read-only" => {
            let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
            assert_eq!(write(fd, &bytes(0)), Ok(2 * LEN));
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::fchmod(fd, 0o444) }, 0);
            println!("@done");
            std::thread::sleep(PATIENCE);
        }
        "privileges" => PRIVILEGES.iter().for_each(|it| keep_privilege(dir, it)),
        _ => return false,
    }
    true
}

/// Gives a file another name, and takes one away: by itself, or by programs that have nothing else to do with it.
fn give_link(argument: &str, dir: &Path) {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
    let fd = open(&dir.join("a"), flags).expect("open");
    assert_eq!(write(fd, &bytes(0)), Ok(2 * LEN));
    let (how, removed) = argument.split_once(' ').expect("two words");
    // Times go by ticks of the kernel's.
    std::thread::sleep(Duration::from_millis(50));
    if how == "by-programs" {
        run(Command::new("ln").args(["a", "b"]));
        run(Command::new("rm").arg(removed));
    } else {
        std::fs::hard_link(dir.join("a"), dir.join("b")).expect("linked");
        if how == "later" {
            // The keeper looks at names meanwhile.
            std::thread::sleep(Duration::from_millis(1500));
        }
        std::fs::remove_file(dir.join(removed)).expect("removed");
    }
    println!("@done");
    std::thread::sleep(PATIENCE);
}

fn run(program: &mut Command) {
    assert!(program.status().expect("a program").success());
}

/// Has a file at a path that is longer than what is kept of each: from the beginning on, or once it has been renamed.
fn go_far_away(argument: &str, dir: &Path) {
    let far = far_away(dir);
    std::fs::create_dir_all(far.parent().expect("a directory")).expect("made");
    let near = argument != "opened";
    let path = if near { dir.join("a") } else { far.clone() };
    let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
    assert_eq!(write(fd, &bytes(0)), Ok(2 * LEN));
    match argument {
        "renamed" => std::fs::rename(path, far).expect("renamed"),
        "linked" => {
            std::fs::hard_link(&path, far).expect("linked");
            std::fs::remove_file(path).expect("removed");
        }
        _ => {}
    }
    println!("@done");
    std::thread::sleep(PATIENCE);
}

/// A path of more than 1024 bytes.
fn far_away(dir: &Path) -> PathBuf {
    let mut path = dir.to_owned();
    path.extend(std::iter::repeat_n("d".repeat(200), 6));
    path.join("a")
}

fn reserve(dir: &Path) {
    let path = dir.join("a");
    let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
    assert_eq!(write(fd, &bytes(0)), Ok(2 * LEN));
    for mode in [libc::FALLOC_FL_KEEP_SIZE, 0] {
        set_times(&path, 1000).expect("a time");
        allocate(fd, mode, 0, 1 << 20).expect("space");
        assert!(modified(&path) > 1000, "mode {mode}");
    }
}

/// What a file may be given that the kernel takes from it at the next write, and whether only root may do so.
const PRIVILEGES: &[(&str, bool, Change)] = &[
    ("chmod", false, |path, _, _| {
        // SAFETY: a string of ours.
        unsafe { libc::chmod(path.as_ptr(), 0o6644) }
    }),
    ("fchmod", false, |_, _, fd| {
        // SAFETY: takes no memory.
        unsafe { libc::fchmod(fd, 0o4600) }
    }),
    ("fchmodat2", false, |path, _, _| {
        // SAFETY: a string of ours.
        unsafe { fchmodat2(HERE, path.as_ptr(), 0o4600, 0) }
    }),
    ("fchmodat2-empty", false, |_, _, fd| {
        // SAFETY: the same.
        unsafe { fchmodat2(fd, c"".as_ptr(), 0o4600, libc::AT_EMPTY_PATH) }
    }),
    ("setxattr", true, |path, _, _| {
        // SAFETY: strings and bytes of ours.
        unsafe {
            libc::setxattr(
                path.as_ptr(),
                CAPABILITY.as_ptr(),
                SOME.as_ptr().cast(),
                SOME.len(),
                0,
            )
        }
    }),
    ("fsetxattr", true, |_, _, fd| {
        // SAFETY: the same.
        unsafe { libc::fsetxattr(fd, CAPABILITY.as_ptr(), SOME.as_ptr().cast(), SOME.len(), 0) }
    }),
];
const CAPABILITY: &std::ffi::CStr = c"security.capability";
/// A `struct vfs_cap_data` of the second version: it is in effect, and allows to bind to low ports.
const SOME: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A file that owes bytes, open or closed, is given a privilege: it has that afterwards, and the bytes.
fn keep_privilege(dir: &Path, &(name, is_roots, change): &(&str, bool, Change)) {
    if is_roots && me().0 != 0 {
        return;
    }
    for is_open in [true, false] {
        let path = dir.join(format!("{name}-{is_open}"));
        let mut fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
        let written = pattern(7, 4 << 20);
        for part in written.chunks(LEN) {
            assert_eq!(write(fd, part), Ok(part.len()));
        }
        if !is_open {
            close(fd).expect("close");
            fd = open(&path, libc::O_RDONLY).expect("open");
        }
        assert_eq!(change(&c(&path), &c(&path), fd), 0, "{name}");
        close(fd).expect("close");
        // SAFETY: takes nothing.
        unsafe { libc::sync() };
        let mode = std::fs::metadata(&path).expect("the file").mode();
        let mut value = [0u8; 20];
        // SAFETY: strings of ours, and room for a value of this size.
        let len = unsafe {
            libc::getxattr(
                c(&path).as_ptr(),
                CAPABILITY.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        };
        let is_kept = if is_roots {
            len == 20 && value == SOME
        } else {
            mode & 0o4000 != 0
        };
        assert!(
            is_kept,
            "{name}, open: {is_open}: mode {mode:o}, {len} bytes of capabilities"
        );
        assert!(
            std::fs::read(&path).expect("the file") == written,
            "{name}: other bytes"
        );
    }
}

/// Plays a role up to its end, kills program and keeper at once, and recovers.
fn recover_after(scene: &mut Scene, role: &str, argument: &str) -> Vec<Saved> {
    let arena = scene.session.as_ref().and_then(|s| s.place().ok()?.path);
    let arena = arena.expect("an arena");
    drop(scene.session.take());
    let mut keeper = deaths::keeper_process(&scene.name);
    let program = scene.role(role, argument).stdout(Stdio::piped()).spawn();
    let mut program = program.expect("a program");
    let mut lines = BufReader::new(program.stdout.take().expect("output")).lines();
    while !lines
        .next()
        .expect("a line")
        .expect("text")
        .ends_with("@done")
    {}
    keeper.kill().expect("a kill");
    program.kill().expect("a kill");
    program.wait().expect("an end");
    keeper.wait().expect("an end");
    let report = recover(&arena, &config(&scene.name)).expect("a recovery");
    assert!(report.removed, "{report:?}");
    report.files
}

#[test]
fn a_recovery_knows_what_the_session_has_changed_past_the_bytes() {
    let mut scene = Scene::new("changed", 0);
    let saved = recover_after(&mut scene, "changes", "");
    let others: Vec<_> = saved
        .iter()
        .filter(|saved| !matches!(saved, Saved::Written { .. }))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    assert_eq!(saved.len(), CHANGES.len());
    for (number, (name, _)) in CHANGES.iter().enumerate() {
        assert!(
            std::fs::read(scene.path(name)).expect("a file") == bytes(number),
            "{name}"
        );
    }
    assert_eq!(
        std::fs::metadata(scene.path("chmod"))
            .expect("a file")
            .mode()
            & 0o777,
        0o600
    );
}

#[test]
fn a_recovery_finds_what_the_session_has_renamed() {
    let mut scene = Scene::new("renamed", 0);
    // At once: before the keeper has looked.
    let saved = recover_after(&mut scene, "renames", "b");
    assert!(matches!(&saved[..], [Saved::Written { .. }]), "{saved:?}");
    assert!(std::fs::read(scene.path("b")).expect("a file") == bytes(0));
}

#[test]
fn a_recovery_finds_what_the_session_has_linked() {
    for (how, removed, left) in [
        ("at-once", "a", "b"),
        ("at-once", "b", "a"),
        ("later", "a", "b"),
        ("later", "b", "a"),
        ("by-programs", "a", "b"),
    ] {
        let mut scene = Scene::new("linked", 0);
        let saved = recover_after(&mut scene, "links", &format!("{how} {removed}"));
        let written = matches!(&saved[..], [Saved::Written { .. }]);
        assert!(written, "{how}, {removed} removed: {saved:?}");
        assert!(std::fs::read(scene.path(left)).expect("a file") == bytes(0));
    }
}

/// No recovery would find it.
#[test]
fn a_file_whose_path_is_too_long_owes_nothing() {
    for way in ["opened", "renamed", "linked"] {
        let mut scene = Scene::new("far-away", 0);
        let saved = recover_after(&mut scene, "far-away", way);
        assert!(saved.is_empty(), "{way}: {saved:?}");
        let path = far_away(scene.dir.path());
        assert!(std::fs::read(path).expect("a file") == bytes(0));
    }
}

#[test]
fn space_that_is_reserved_dates_a_file() {
    let scene = Scene::new("allocates", 0);
    scene.play("allocates", "");
    assert!(scene.bytes_to_memory() > 0);
}

/// Only root could open it again to write what it owes.
#[test]
fn a_file_that_is_made_read_only_owes_nothing() {
    let mut scene = Scene::new("read-only", 0);
    let saved = recover_after(&mut scene, "read-only", "");
    assert!(saved.is_empty(), "{saved:?}");
    assert!(std::fs::read(scene.path("a")).expect("a file") == bytes(0));
}

#[test]
fn a_file_keeps_privileges_that_it_got_while_it_owed_bytes() {
    let scene = Scene::new("privileges", 0);
    scene.play("privileges", "");
    assert!(scene.bytes_to_memory() > 0);
}
