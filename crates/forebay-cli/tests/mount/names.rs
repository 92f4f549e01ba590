//! Names, and what is known of files besides their bytes.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags, renameat_with,
};
use rustix::io::Errno;

use crate::place::{Process, is_managed};
use crate::scene::{Scene, can_mount, wait_until};

#[test]
fn files_are_renamed_linked_and_removed() {
    for scene in Scene::each("names", &[]) {
        let (a, a_there) = scene.both("a");
        let b = scene.point.join("b");
        fs::write(&a, "a").expect("written");
        fs::write(&b, "b").expect("written");
        let rename = |flags| renameat_with(CWD, &a, CWD, &b, flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(RenameFlags::EXCHANGE).expect("exchanged");
        assert_eq!(fs::read_to_string(&a).expect("read"), "b");
        assert_eq!(fs::read_to_string(&a_there).expect("read"), "b");
        fs::rename(&a, &b).expect("replaced");
        assert!(!a.exists() && !a_there.exists());
        fs::hard_link(&b, &a).expect("linked");
        let (one, other) = (
            fs::metadata(&a).expect("known"),
            fs::metadata(&b).expect("known"),
        );
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
        assert_eq!(one.ino(), fs::metadata(&a_there).expect("known").ino());
        symlink("a", scene.point.join("link")).expect("linked");
        assert_eq!(
            fs::read_link(scene.below("link")).expect("read").to_str(),
            Some("a")
        );
        assert_eq!(
            fs::read_to_string(scene.point.join("link")).expect("read"),
            "b"
        );
        fs::create_dir(scene.point.join("sub")).expect("made");
        fs::rename(&a, scene.point.join("sub/a")).expect("moved");
        assert_eq!(
            fs::remove_dir(scene.point.join("sub"))
                .expect_err("not empty")
                .raw_os_error(),
            Some(39)
        );
        fs::remove_file(scene.below("sub/a")).expect("removed");
        fs::remove_dir(scene.point.join("sub")).expect("removed");
        scene.end();
    }
}

#[test]
fn open_files_go_on_without_their_names() {
    for scene in Scene::each("open", &[]) {
        let (path, there) = scene.both("file");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("made");
        let back = |file: &mut File| {
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).expect("sought");
            file.read_to_string(&mut text).expect("read");
            text
        };
        file.write_all(b"first").expect("written");
        fs::rename(&path, scene.point.join("other")).expect("renamed");
        file.write_all(b", second").expect("written");
        assert_eq!(back(&mut file), "first, second");
        // Behind the mount's back.
        fs::rename(scene.below("other"), &there).expect("renamed");
        assert_eq!(file.metadata().expect("known").len(), 13);
        fs::remove_file(&path).expect("removed");
        file.write_all(b", third").expect("written");
        assert_eq!(back(&mut file), "first, second, third");
        assert_eq!(file.metadata().expect("known").nlink(), 0);
        drop(file);
        assert!(!there.exists());
        scene.end();
    }
}

#[test]
fn times_before_1970_have_the_second_that_was_set() {
    for scene in Scene::each("old-times", &[]) {
        let (path, there) = scene.both("file");
        let file = File::create(&path).expect("made");
        // The first second that there is the file system may not have.
        let first = Timespec {
            tv_sec: i64::MIN,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: first,
            last_modification: first,
        };
        rustix::fs::futimens(&file, &times).expect("set");
        for (seconds, nanoseconds) in [(-2, 500_000_000), (-1, 999_999_999), (-3, 0), (0, 5)] {
            let time = Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::futimens(&file, &times).expect("set");
            for path in [&path, &there] {
                let is = fs::metadata(path).expect("known");
                let modified = (is.mtime(), is.mtime_nsec());
                assert_eq!(modified, (seconds, nanoseconds), "{path:?}");
                let accessed = (is.atime(), is.atime_nsec());
                assert_eq!(accessed, (seconds, nanoseconds), "{path:?}");
            }
        }
        drop(file);
        scene.end();
    }
}

#[test]
fn modes_times_and_attributes_are_the_directorys() {
    for scene in Scene::each("modes", &[]) {
        let (path, there) = scene.both("file");
        let mut file = File::create(&path).expect("made");
        file.write_all(b"bytes").expect("written");
        // Set while bytes are owed: writing these later must not move it.
        let time = Timespec {
            tv_sec: 1_000_000,
            tv_nsec: 5,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::futimens(&file, &times).expect("set");
        drop(file);
        for path in [&path, &there] {
            let is_right = || {
                let meta = fs::metadata(path).expect("known");
                meta.modified().expect("a time") == UNIX_EPOCH + Duration::new(1_000_000, 5)
            };
            // The kernel tells of a last close after the program has gone on: space is given back then, and a time moves for an instant.
            let begun = Instant::now();
            while !is_right() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(is_right(), "{path:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4750)).expect("set");
        assert_eq!(fs::metadata(&there).expect("known").mode() & 0o7777, 0o4750);
        rustix::fs::setxattr(&path, "user.colour", b"red", XattrFlags::CREATE).expect("set");
        let again = rustix::fs::setxattr(&path, "user.colour", b"red", XattrFlags::CREATE);
        assert_eq!(again, Err(Errno::EXIST));
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(&there, "user.colour", &mut value[..]).expect("there");
        assert_eq!(&value[..len], b"red");
        rustix::fs::removexattr(&path, "user.colour").expect("removed");
        assert_eq!(
            rustix::fs::getxattr(&path, "user.colour", &mut value[..]),
            Err(Errno::NODATA)
        );
        let pipe = scene.point.join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o640), 0)
            .expect("made");
        assert!(fs::metadata(&pipe).expect("known").file_type().is_fifo());
        let (here, there) = (
            rustix::fs::statvfs(&scene.point),
            rustix::fs::statvfs(scene.below("")),
        );
        assert_eq!(
            here.expect("known").f_blocks,
            there.expect("known").f_blocks
        );
        scene.end();
    }
}

/// A `struct vfs_cap_data` of the second version: it is in effect, and allows to bind to low ports.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The kernel takes privileges from what is written by whoever may not give them, as the mount of a user may not.
#[test]
fn a_file_keeps_privileges_that_it_got_while_it_owed_bytes() {
    let mut scene = Scene::unmounted("privileges");
    if !can_mount() || !is_managed(&scene.directory) {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    let program = env!("CARGO_BIN_EXE_forebay");
    let without = ["setpriv", "--bounding-set", "-fsetid"];
    let words: Vec<_> = without[if is_root { 0 } else { 3 }..]
        .iter()
        .chain(&[program, "mount", "--linger", "0.3"])
        .copied()
        .collect();
    let mut command = scene.place.in_place(Command::new(words[0]), &words[1..]);
    command.arg(&scene.directory).arg(&scene.point);
    let child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut process = Process::new(child);
    let said = process.first_line();
    assert!(said.contains(", session "), "{said}");
    scene.process = Some(process);
    for mode in [0o4644, 0o6655, 0o2610] {
        let (path, there) = scene.both(&format!("{mode:o}"));
        let mut file = File::create(&path).expect("made");
        file.write_all(b"bytes").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        drop(file);
        let is = fs::metadata(&there).expect("known").mode() & 0o7777;
        assert_eq!(is, mode, "{is:o}");
        assert_eq!(fs::read(&there).expect("read"), b"bytes");
    }
    if is_root {
        let (path, there) = scene.both("capable");
        let mut file = File::create(&path).expect("made");
        file.write_all(b"bytes").expect("written");
        let name = "security.capability";
        rustix::fs::setxattr(&path, name, &CAPABILITY, XattrFlags::empty()).expect("set");
        drop(file);
        let mut value = [0; 20];
        let len = rustix::fs::getxattr(&there, name, &mut value[..]);
        assert_eq!((len, value), (Ok(20), CAPABILITY));
        assert_eq!(fs::read(&there).expect("read"), b"bytes");
    }
    scene.end();
}

#[test]
fn names_are_as_long_as_the_file_systems() {
    for scene in Scene::each("long", &[]) {
        let longest = "n".repeat(255);
        let (path, there) = scene.both(&longest);
        fs::write(&path, "bytes").expect("written");
        assert_eq!(fs::read_to_string(there).expect("read"), "bytes");
        let longer = fs::write(scene.point.join("n".repeat(256)), "bytes");
        assert_eq!(longer.expect_err("too long").raw_os_error(), Some(36));
        scene.end();
    }
}

/// Opens as many as can be had; what the next one has failed with.
fn opened_until_refused<T>(mut open: impl FnMut(usize) -> std::io::Result<T>) -> (Vec<T>, i32) {
    let mut all = Vec::new();
    loop {
        match open(all.len()) {
            Ok(one) => all.push(one),
            Err(error) => return (all, error.raw_os_error().expect("a number")),
        }
    }
}

#[test]
fn names_are_known_however_many_files_are_open() {
    if !can_mount() {
        return;
    }
    let scene = Scene::unmounted("many-open");
    for name in ["before", "after"] {
        fs::create_dir(scene.directory.join(name)).expect("made");
        fs::write(scene.directory.join(name).join("file"), name).expect("written");
    }
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=1024", env!("CARGO_BIN_EXE_forebay")]);
    let arguments = ["mount", "--daemon", "--linger", "0.3"];
    let mut limited = scene.place.in_place(limited, &arguments);
    let mounted = limited.arg(&scene.directory).arg(&scene.point).status();
    assert!(mounted.expect("prlimit runs").success());
    let point = |name: &str| scene.point.join(name);
    fs::metadata(point("before/file")).expect("known");

    let (mut files, error) =
        opened_until_refused(|number| File::create(point(&format!("{number}"))));
    assert_eq!(
        (files.len(), error),
        (128, 23),
        "the system has too many open"
    );
    assert!(!scene.directory.join("128").exists(), "nothing was made");
    let (mut listings, error) = opened_until_refused(|_| fs::read_dir(point("before")));
    assert_eq!((listings.len(), error), (64, 23));
    for name in ["before", "after"] {
        fs::metadata(point(name).join("file")).expect("known");
        fs::rename(point(name).join("file"), point(name).join("renamed")).expect("renamed");
    }
    files[0].write_all(b"bytes").expect("written");
    files.pop();
    listings.pop();
    // The kernel tells of a last close after the program has gone on.
    wait_until("a file can be opened", || {
        File::open(point("after/renamed")).is_ok()
    });
    wait_until("a directory can be listed", || {
        fs::read_dir(point("after")).is_ok()
    });
    drop((files, listings));
    assert_eq!(fs::read(scene.directory.join("0")).expect("read"), b"bytes");
    scene.umount();
    scene.await_daemon();
}

#[test]
fn large_directories_are_listed_whole() {
    for scene in Scene::each("listed", &[]) {
        const NAMES: usize = 3000;
        for name in 0..NAMES {
            let name = format!("a name of some length, number {name}");
            File::create(scene.below(&name)).expect("made");
        }
        let list = || {
            let entries = fs::read_dir(&scene.point).expect("a directory");
            let names = entries.map(|entry| entry.expect("an entry"));
            let mut names: Vec<_> = names
                .map(|entry| (entry.file_name(), entry.metadata().expect("known").ino()))
                .collect();
            names.sort();
            names
        };
        let mut listed = list();
        assert_eq!(listed, list());
        assert_eq!(listed.len(), NAMES);
        listed.dedup();
        assert_eq!(listed.len(), NAMES);
        for (name, inode) in listed {
            assert_eq!(
                fs::metadata(scene.below(&name.to_string_lossy()))
                    .expect("known")
                    .ino(),
                inode
            );
        }
        scene.end();
    }
}

#[test]
fn a_mount_that_may_not_change_anything_does_not() {
    let Some(scene) = Scene::begin("only", &["--read-only", "--believe", "0"]) else {
        return;
    };
    fs::write(scene.directory.join("file"), "bytes").expect("written");
    let path = scene.point.join("file");
    assert_eq!(fs::read_to_string(&path).expect("read"), "bytes");
    let refused = [
        fs::write(&path, "more").expect_err("refused"),
        fs::remove_file(&path).expect_err("refused"),
        fs::create_dir(scene.point.join("sub")).expect_err("refused"),
    ];
    for error in refused {
        assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    }
    assert!(
        rustix::fs::accessat(CWD, &path, rustix::fs::Access::WRITE_OK, AtFlags::empty()).is_err()
    );
    scene.end();
}

#[test]
fn a_directory_that_is_taken_away_leaves_errors() {
    let Some(scene) = Scene::begin("away", &["--believe", "0"]) else {
        return;
    };
    fs::create_dir(scene.point.join("sub")).expect("made");
    fs::write(scene.point.join("sub/file"), "bytes").expect("written");
    let mut open = File::open(scene.point.join("sub/file")).expect("opened");
    fs::remove_dir_all(&scene.directory).expect("removed");
    assert_eq!(
        fs::read(scene.point.join("sub/file"))
            .expect_err("gone")
            .raw_os_error(),
        Some(2)
    );
    assert_eq!(
        fs::create_dir(scene.point.join("new"))
            .expect_err("gone")
            .raw_os_error(),
        Some(2)
    );
    assert_eq!(fs::read_dir(&scene.point).expect("listed").count(), 0);
    let mut text = String::new();
    open.read_to_string(&mut text).expect("read");
    assert_eq!(text, "bytes");
    drop(open);
    scene.end();
}
