//! Bytes of files, by calls that the model does not make.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::scene::{Scene, can_mount, closes_without_a_question};

fn new(path: &std::path::Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    options.open(path).expect("a file")
}

#[test]
fn appends_of_several_programs_are_whole() {
    for scene in Scene::each("appends", &[]) {
        let path = scene.point.join("log");
        let script =
            r#"i=0; while [ $i -lt 200 ]; do echo "$1 $i of this program" >&3; i=$((i+1)); done"#;
        let programs: Vec<_> = (0..3)
            .map(|number| {
                let mut command = Command::new("sh");
                command.args([
                    "-c",
                    &format!("exec 3>>\"$2\"; {script}"),
                    "sh",
                    &number.to_string(),
                ]);
                command.arg(&path).spawn().expect("sh runs")
            })
            .collect();
        for mut program in programs {
            assert!(program.wait().expect("ended").success());
        }
        let text = fs::read_to_string(scene.below("log")).expect("read");
        let mut lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.ends_with(" of this program")));
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 600);
        scene.end();
    }
}

/// A file system in memory over a directory, until it is dropped.
struct Little<'a>(&'a Path);

impl<'a> Little<'a> {
    fn over(directory: &'a Path) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "forebay-tests"]);
        let mounted = mount.arg(directory).status().expect("it runs");
        assert!(mounted.success(), "{mounted}");
        Little(directory)
    }
}

impl Drop for Little<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy"]).arg(self.0).status();
    }
}

/// Appends until two calls in a row have failed. What the calls have answered.
fn appended_until_full(path: &Path) -> Vec<Result<usize, Option<i32>>> {
    let mut options = File::options();
    let mut file = options.append(true).create(true).open(path).expect("a log");
    let mut answers = Vec::new();
    while !matches!(answers[..], [.., Err(_), Err(_)]) {
        let written = file.write(&[b'x'; 100_000]);
        answers.push(written.map_err(|error| error.raw_os_error()));
    }
    answers
}

/// Of an append for which the disk has room for a part only that part is written, and the call says so.
#[test]
fn an_append_to_a_full_disk_says_how_much_it_has_written() {
    if !can_mount() {
        return;
    }
    let mut scene = Scene::unmounted("full");
    let directory = scene.directory.clone();
    let little = Little::over(&directory);
    scene.mount(&[]);
    let (ours, plain) = scene.both("log");
    let expected = appended_until_full(&plain);
    assert!(expected.iter().flatten().any(|&part| part < 100_000));
    fs::remove_file(&plain).expect("removed");
    assert_eq!(appended_until_full(&ours), expected);
    let written: usize = expected.iter().flatten().sum();
    let len = fs::metadata(&ours).expect("a length").len();
    assert_eq!(len, written as u64);
    scene.end();
    drop(little);
}

#[test]
fn space_is_reserved_punched_and_found() {
    for scene in Scene::each("space", &[]) {
        let file = new(&scene.point.join("file"));
        let same = new(&scene.directory.join("same"));
        let mut places = Vec::new();
        for file in [&file, &same] {
            let fallocate = |mode, offset, len| rustix::fs::fallocate(file, mode, offset, len);
            file.write_all_at(&[7; 3 << 20], 0).expect("written");
            fallocate(
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                1 << 20,
                1 << 20,
            )
            .expect("punched");
            fallocate(FallocateFlags::empty(), 0, 4 << 20).expect("reserved");
            fallocate(FallocateFlags::KEEP_SIZE, 4 << 20, 1 << 20).expect("reserved");
            fallocate(FallocateFlags::ZERO_RANGE, 0, 4096).expect("made zeros");
            file.set_len(5 << 20).expect("set");
            let bytes = {
                let mut bytes = vec![1; 6 << 20];
                let n = file.read_at(&mut bytes, 0).expect("read");
                bytes.truncate(n);
                bytes
            };
            let seek = |from| rustix::fs::seek(file, from);
            places.push((
                seek(rustix::fs::SeekFrom::Data(4096)),
                seek(rustix::fs::SeekFrom::Data((2 << 20) + 1)),
                seek(rustix::fs::SeekFrom::Data(1 << 40)),
                // A place before the file's beginning.
                [
                    seek(rustix::fs::SeekFrom::Data(u64::MAX)),
                    seek(rustix::fs::SeekFrom::Hole(1 << 63)),
                ],
                file.metadata().expect("known").len(),
                bytes,
            ));
        }
        drop((file, same));
        let (here, there) = (&places[0], &places[1]);
        assert_eq!(
            (here.0, here.1, here.2, here.3, here.4),
            (there.0, there.1, there.2, there.3, there.4)
        );
        let differs = forebay_model::first_difference(&here.5, &there.5);
        assert_eq!((here.5.len(), differs), (there.5.len(), None));
        // The kernel takes nothing out of a mount's files.
        let file = File::options()
            .write(true)
            .open(scene.point.join("file"))
            .expect("opened");
        let collapsed = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 1 << 18);
        assert_eq!(collapsed, Err(Errno::OPNOTSUPP));
        drop(file);
        scene.end();
    }
}

#[test]
fn ranges_are_copied_from_file_to_file() {
    for scene in Scene::each("copied", &[]) {
        let (from, to) = (new(&scene.point.join("from")), new(&scene.point.join("to")));
        let bytes: Vec<u8> = (0..3_000_000).map(|at| (at / 251) as u8).collect();
        from.write_all_at(&bytes, 0).expect("written");
        let (mut offset_in, mut offset_out) = (5, 100);
        while offset_in < bytes.len() as u64 {
            let n = rustix::fs::copy_file_range(
                &from,
                Some(&mut offset_in),
                &to,
                Some(&mut offset_out),
                1 << 30,
            );
            assert!(n.expect("copied") > 0);
        }
        let copied = fs::read(scene.point.join("to")).expect("read");
        assert!(copied[..100] == [0; 100] && copied[100..] == bytes[5..]);
        drop((from, to));
        scene.end();
    }
}

#[test]
fn what_is_copied_to_a_description_that_syncs_is_the_devices() {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(scene) = Scene::begin("copied-synced", &[]) else {
        return;
    };
    let from = new(&scene.point.join("from"));
    from.write_all_at(&[7; 100_000], 0).expect("written");
    for (name, flag) in [("plain", 0), ("data", libc::O_DSYNC), ("all", libc::O_SYNC)] {
        let mut options = File::options();
        options.write(true).create(true).custom_flags(flag);
        let to = options.open(scene.point.join(name)).expect("opened");
        let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &to, None, 100_000);
        assert_eq!(copied.expect("copied"), 100_000);
        // Nobody opens it: the session would hand it over.
        let there = std::fs::metadata(scene.directory.join(name)).expect("known");
        assert!(
            flag == 0 || there.len() == 100_000,
            "{name}: {}",
            there.len()
        );
        println!(
            "{name}: {} bytes, {} sectors",
            there.len(),
            std::os::unix::fs::MetadataExt::blocks(&there)
        );
    }
    drop(from);
    scene.end();
}

#[test]
fn mappings_and_calls_see_one_another() {
    for scene in Scene::each("mapped", &[]) {
        let path = scene.point.join("file");
        // Python has mappings, and these tests have none.
        let script = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"x" * 10000)
shared = mmap.mmap(fd, 10000)
shared[5000:5005] = b"by it"
assert os.pread(fd, 5, 5000) == b"by it"
os.pwrite(fd, b"by us", 6000)
assert shared[6000:6005] == b"by us"
private = mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE)
private[0:4] = b"mine"
assert os.pread(fd, 4, 0) == b"xxxx" and private[6000:6005] == b"by us"
shared[9990:10000] = b"at the end"
shared.flush()
shared.close()
os.close(fd)
"#;
        let output = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .output();
        let Ok(output) = output else {
            return crate::here::skipped("python3 is missing");
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("No such device") {
            return crate::here::skipped(
                "this kernel maps nothing of a mount for others to see (Linux 6.6 does)",
            );
        }
        assert!(output.status.success(), "{said}");
        let bytes = fs::read(scene.below("file")).expect("read");
        assert_eq!(
            (&bytes[5000..5005], &bytes[6000..6005], &bytes[9990..]),
            (&b"by it"[..], &b"by us"[..], &b"at the end"[..])
        );
        scene.end();
    }
}

#[test]
fn locks_hold_among_programs_of_the_mount() {
    for scene in Scene::each("locks", &[]) {
        let path = scene.point.join("file");
        let (one, other) = (new(&path), new(&path));
        let lock = |file: &File, how| rustix::fs::flock(file, how);
        lock(&one, FlockOperation::LockExclusive).expect("locked");
        assert_eq!(
            lock(&other, FlockOperation::NonBlockingLockExclusive),
            Err(Errno::AGAIN)
        );
        drop(one);
        lock(&other, FlockOperation::NonBlockingLockExclusive).expect("locked");
        rustix::fs::fcntl_lock(&other, FlockOperation::NonBlockingLockExclusive).expect("locked");
        drop(other);
        scene.end();
    }
}

/// What a watch of a directory has been told: which names, and how.
fn told(watch: &mut inotify::Reader<'_, OwnedFd>) -> Vec<(String, ReadFlags)> {
    let mut all = Vec::new();
    loop {
        match watch.next() {
            Ok(event) => {
                let name = event.file_name().unwrap_or_default().to_string_lossy();
                all.push((name.into_owned(), event.events()));
            }
            Err(Errno::AGAIN) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn who_watches_hears_of_what_is_done_by_the_mount() {
    for scene in Scene::each("watch", &[]) {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("a watch");
        inotify::add_watch(&watch, &scene.point, WatchFlags::ALL_EVENTS).expect("watched");
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut watch = inotify::Reader::new(watch, &mut buffer);
        let (one, two) = (scene.point.join("one"), scene.point.join("two"));
        fs::write(&one, "bytes").expect("written");
        fs::rename(&one, &two).expect("renamed");
        fs::set_permissions(&two, fs::Permissions::from_mode(0o600)).expect("changed");
        assert_eq!(fs::read(&two).expect("read"), b"bytes");
        fs::remove_file(&two).expect("removed");
        // A process that another test has just forked has descriptors of this one: what it closes last is told later.
        let (begun, mut all) = (Instant::now(), Vec::new());
        let closed = |all: &[(String, ReadFlags)]| {
            let how = |event| {
                all.iter()
                    .any(|(_, how): &(String, ReadFlags)| how.contains(event))
            };
            how(ReadFlags::CLOSE_WRITE) && how(ReadFlags::CLOSE_NOWRITE)
        };
        while !closed(&all) && begun.elapsed() < Duration::from_secs(60) {
            all.extend(told(&mut watch));
        }
        let told = all;
        for (name, event) in [
            ("one", ReadFlags::CREATE),
            ("one", ReadFlags::MODIFY),
            ("one", ReadFlags::MOVED_FROM),
            ("two", ReadFlags::MOVED_TO),
            ("two", ReadFlags::ATTRIB),
            ("two", ReadFlags::ACCESS),
            ("two", ReadFlags::CLOSE_NOWRITE),
            ("two", ReadFlags::DELETE),
        ] {
            let is_told = { told.iter() }.any(|(of, how)| of == name && how.contains(event));
            assert!(is_told, "{event:?} of {name} is not among {told:?}");
        }
        // By the one name or the other: whoever closes it last may do so after the move.
        let is_told = { told.iter() }.any(|(_, how)| how.contains(ReadFlags::CLOSE_WRITE));
        assert!(is_told, "{told:?}");
        drop(watch);
        scene.end();
    }
}

#[test]
fn openings_of_all_kinds() {
    for scene in Scene::each("kinds", &[]) {
        let (path, there) = scene.both("file");
        fs::write(&path, "old bytes").expect("written");
        let mut file = File::options()
            .write(true)
            .truncate(true)
            .open(&path)
            .expect("opened");
        assert_eq!(file.metadata().expect("known").len(), 0);
        assert_eq!(
            file.read_at(&mut [0], 0)
                .expect_err("not for reading")
                .raw_os_error(),
            Some(9)
        );
        file.write_all(b"new").expect("written");
        assert!(
            File::options()
                .write(true)
                .create_new(true)
                .open(&path)
                .is_err()
        );
        // Durable, and so in the file, when the write has been acknowledged.
        for (flag, byte) in [
            (libc_flag(OFlags::SYNC), b's'),
            (libc_flag(OFlags::DSYNC), b'd'),
        ] {
            let synced = File::options()
                .write(true)
                .custom_flags(flag)
                .open(&path)
                .expect("opened");
            synced.write_all_at(&[byte], 1).expect("written");
            assert_eq!(fs::read(&there).expect("read"), [b'n', byte, b'w']);
        }
        let mut appending = File::options().append(true).open(&path).expect("opened");
        appending.write_all(b"er").expect("written");
        appending.seek(SeekFrom::Start(0)).expect("sought");
        appending.write_all(b"!").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"ndwer!");
        // A file that its maker may write, and nobody else.
        let guarded = scene.point.join("guarded");
        let mut maker = File::options()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&guarded)
            .expect("made");
        maker.write_all(b"once").expect("written");
        drop(maker);
        assert_eq!(fs::read(scene.below("guarded")).expect("read"), b"once");
        drop((file, appending));
        scene.end();
    }
}

fn libc_flag(flag: OFlags) -> i32 {
    flag.bits() as i32
}

#[test]
fn a_thousand_files_are_open_at_once() {
    for scene in Scene::each("thousand", &[]) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("raised");
        if limit.maximum.is_some_and(|limit| limit < 8192) {
            return crate::here::skipped("this user may not have so many descriptors");
        }
        let files: Vec<_> = (0..1000)
            .map(|number| {
                let file = new(&scene.point.join(number.to_string()));
                file.write_all_at(format!("file {number}").as_bytes(), 0)
                    .expect("written");
                assert!(file.as_raw_fd() >= 0);
                file
            })
            .collect();
        for (number, file) in files.iter().enumerate() {
            let mut bytes = vec![0; 32];
            let n = file.read_at(&mut bytes, 0).expect("read");
            assert_eq!(bytes[..n], *format!("file {number}").as_bytes());
        }
        drop(files);
        assert_eq!(
            fs::read_to_string(scene.below("999")).expect("read"),
            "file 999"
        );
        assert_eq!(fs::metadata(scene.below("0")).expect("known").size(), 6);
        scene.end();
    }
}

#[test]
fn what_was_read_is_closed_without_a_question() {
    let Some(mut scene) = Scene::begin("closes", &[]) else {
        return;
    };
    let file = scene.point.join("file");
    fs::write(&file, b"bytes").expect("written");
    let process = scene.process.as_mut().expect("mounted").id();
    closes_without_a_question(process, &file);
    scene.end();
}

/// A file that may only grow (`chattr +a`) is opened by those who append, and by no others who write.
#[test]
fn files_that_may_only_grow_are_appended_to() {
    let Some(scene) = Scene::begin("grows", &[]) else {
        return;
    };
    let (path, below) = scene.both("log");
    fs::write(&path, "one\n").expect("written");
    let chattr = |flag: &str| Command::new("chattr").arg(flag).arg(&below).status();
    if !chattr("+a").is_ok_and(|status| status.success()) {
        crate::here::skipped("no file here may only grow (chattr)");
        return scene.end();
    }
    let appended = File::options().append(true).open(&path);
    let appended = appended.and_then(|mut file| file.write_all(b"two\n"));
    let over = File::options().write(true).open(&path);
    let refused = over.map(drop).map_err(|error| error.raw_os_error());
    assert!(chattr("-a").expect("chattr runs").success());
    appended.expect("appended");
    assert_eq!(refused, Err(Some(libc::EPERM)));
    assert_eq!(fs::read(&below).expect("read"), b"one\ntwo\n");
    scene.end();
}
