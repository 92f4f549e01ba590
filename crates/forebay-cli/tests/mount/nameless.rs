//! Files that are made without a name (`O_TMPFILE`), and get one later or never.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

use rustix::fs::{AtFlags, CWD, statvfs};
use rustix::io::Errno;

use crate::pools::Hosts;
use crate::scene::{Kind, Scene, wait_until};
use crate::users::{FURTHER, GROUP, USER, has_users, open_to};

/// Bytes for which a store needs no block of a map: one that is freed comes back only when the log begins anew.
const BYTES: usize = 10 * 4096;
/// Nothing of a store is durable that nobody syncs.
const NEVER: &[&str] = &["--flush-interval", "1h"];

pub fn nameless(directory: &Path, flags: i32, mode: u32) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags(libc::O_TMPFILE | flags).mode(mode);
    options.open(directory)
}

/// Gives an open file a name.
pub fn name_it(file: &File, path: &Path) -> Result<(), Errno> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("listed").next().is_none()
}

#[test]
fn what_is_made_without_a_name_can_get_one() {
    for scene in Scene::each("nameless", &[]) {
        let file = nameless(&scene.point, 0, 0o600).expect("made");
        file.write_all_at(&[7; 100_000], 0).expect("written");
        let mut read = vec![0; 100_000];
        file.read_exact_at(&mut read, 0).expect("read");
        assert_eq!(read, [7; 100_000]);
        let told = file.metadata().expect("known");
        assert_eq!((told.nlink(), told.len()), (0, 100_000));
        assert!(is_empty(&scene.point) && is_empty(&scene.below("")));
        let (path, there) = scene.both("named");
        name_it(&file, &path).expect("named");
        assert_eq!(name_it(&file, &path), Err(Errno::EXIST));
        name_it(&file, &scene.point.join("more")).expect("named");
        // It is one file, by whichever way.
        file.write_all_at(&[8; 10], 99_995).expect("written");
        let told = [file.metadata(), fs::metadata(&path), fs::metadata(&there)];
        let told = told.map(|told| told.expect("known"));
        let of = |told: &fs::Metadata| (told.ino(), told.nlink(), told.len());
        assert_eq!(told[0].nlink(), 2);
        assert_eq!(told[0].len(), 100_005);
        assert_eq!(of(&told[1]), of(&told[0]));
        // Beside the mount a directory's file may not have got its length yet.
        assert_eq!((told[2].ino(), told[2].nlink()), (told[0].ino(), 2));
        drop(file);
        let expected = [vec![7; 99_995], vec![8; 10]].concat();
        assert!(fs::read(&path).expect("read") == expected);
        assert!(fs::read(&there).expect("read") == expected);
        scene.end();
    }
}

#[test]
fn what_is_made_never_to_have_a_name_gets_none() {
    for scene in Scene::each("exclusive", &[]) {
        let file = nameless(&scene.point, libc::O_EXCL, 0o600).expect("made");
        file.write_all_at(b"bytes", 0).expect("written");
        let refused = name_it(&file, &scene.point.join("named"));
        assert_eq!(refused, Err(Errno::NOENT));
        assert!(is_empty(&scene.point));
        drop(file);
        scene.end();
    }
}

/// Free blocks and files of a store, once what was removed is free.
fn free(scene: &Scene) -> (u64, u64) {
    let root = File::open(&scene.point).expect("opened");
    root.sync_all().expect("synced");
    let told = statvfs(&scene.point).expect("known");
    (told.f_bfree, told.f_ffree)
}

/// Files without a name that a process has open.
fn held(process: u32, directory: &Path) -> usize {
    let open = fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors");
    let targets = open.filter_map(|one| fs::read_link(one.ok()?.path()).ok());
    let gone = |target: &Path| target.to_string_lossy().ends_with(" (deleted)");
    let is_one = |target: &std::path::PathBuf| target.starts_with(directory) && gone(target);
    targets.filter(is_one).count()
}

#[test]
fn what_never_got_a_name_ends_with_its_close() {
    for mut scene in Scene::each("closed", &[]) {
        let process = scene.process.as_mut().expect("mounted").id();
        let before = free(&scene);
        let files: Vec<_> = (0..3)
            .map(|_| {
                let file = nameless(&scene.point, 0, 0o600).expect("made");
                file.write_all_at(&vec![7; BYTES], 0).expect("written");
                file.sync_all().expect("synced");
                file
            })
            .collect();
        match scene.kind {
            Kind::Store => {
                let now = free(&scene);
                assert!(before.0 - now.0 >= 3 * 10, "{before:?} {now:?}");
                assert_eq!(before.1 - now.1, 3);
            }
            Kind::Directory => assert!(held(process, &scene.directory) >= 3),
        }
        drop(files);
        // The kernel tells of a last close after the program has gone on.
        match scene.kind {
            Kind::Store => wait_until("its room is back", || free(&scene) == before),
            Kind::Directory => {
                wait_until("nothing is held", || held(process, &scene.directory) == 0);
            }
        }
        scene.end();
    }
}

#[test]
fn a_killed_mount_keeps_what_got_a_name_and_frees_what_got_none() {
    let scenes: [fn() -> Option<Scene>; 2] = [
        || Scene::begin("nameless-killed", &[]),
        || Scene::begin_store("nameless-killed", "96MiB", NEVER),
    ];
    for mut scene in scenes.iter().map_while(|begin| begin()) {
        fs::write(scene.point.join("other"), "bytes").expect("written");
        let before = free(&scene);
        let (lost, kept) = (
            nameless(&scene.point, 0, 0o600).expect("made"),
            nameless(&scene.point, 0, 0o600).expect("made"),
        );
        for file in [&lost, &kept] {
            file.write_all_at(&vec![7; BYTES], 0).expect("written");
        }
        name_it(&kept, &scene.point.join("named")).expect("named");
        lost.sync_all().expect("synced");
        kept.sync_all().expect("synced");
        if scene.kind == Kind::Directory {
            // What was not synced is the session's.
            kept.write_all_at(&[8; 10], 5).expect("written");
        }
        scene.process.take().expect("mounted").kill();
        drop((lost, kept));
        assert_eq!(scene.run(&["umount"], &scene.point).code, 0);
        if scene.kind == Kind::Store {
            scene.check_store();
        }
        scene.mount(&[]);
        let mut expected = vec![7; BYTES];
        if scene.kind == Kind::Directory {
            expected[5..15].fill(8);
        }
        assert!(fs::read(scene.point.join("named")).expect("read") == expected);
        if scene.kind == Kind::Store {
            fs::remove_file(scene.point.join("named")).expect("removed");
            wait_until("all room is back", || free(&scene) == before);
        }
        scene.end();
    }
}

/// Does something as a thread of a user's that has a umask of its own.
fn as_user<T: Send>(umask: u32, work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        // SAFETY: these calls take no memory but a list without entries. They are about the calling thread alone, once it shares no umask with the
        // others, and it ends with this function.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_FS), 0);
            libc::umask(umask);
            let none: *const libc::gid_t = std::ptr::null();
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, none), 0);
            libc::setfsgid(GROUP);
            libc::setfsuid(USER);
        }
        work()
    };
    thread::scope(|scope| scope.spawn(work).join().expect("it ends"))
}

#[test]
fn what_is_made_without_a_name_is_its_makers() {
    for scene in Scene::each("makers", &["--allow-other"]) {
        if !has_users(&scene) {
            scene.end();
            continue;
        }
        let directories = ["open", "shared", "closed"].map(|name| scene.below(name));
        for (directory, mode) in directories.iter().zip([0o777, 0o2777, 0o755]) {
            fs::create_dir(directory).expect("made");
            std::os::unix::fs::chown(directory, Some(0), Some(FURTHER)).expect("given");
            open_to(directory, mode);
        }
        let [open, shared, closed] =
            ["open", "shared", "closed"].map(|name| scene.point.join(name));
        as_user(0o027, || {
            for (directory, mode) in [(&open, 0o666), (&shared, 0o4770), (&open, 0)] {
                let file = nameless(directory, 0, mode).expect("made");
                file.write_all_at(b"bytes", 0).expect("written");
                name_it(&file, &directory.join(format!("{mode:o}"))).expect("named");
            }
            let refused = nameless(&closed, 0, 0o666).expect_err("refused");
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::ACCESS));
        });
        let owner = |name: &str| {
            let meta = fs::metadata(scene.below(name)).expect("made");
            (meta.uid(), meta.gid(), meta.mode() & 0o7777)
        };
        assert_eq!(owner("open/666"), (USER, GROUP, 0o640));
        // Who writes to it as somebody else than root takes the bit away.
        assert_eq!(owner("shared/4770"), (USER, FURTHER, 0o750));
        assert_eq!(owner("open/0"), (USER, GROUP, 0));
        scene.end();
    }
}

#[test]
fn a_mount_that_may_not_change_anything_makes_none() {
    for mut scene in Scene::each("nameless-read", &[]) {
        scene.umount();
        scene.await_end(0);
        scene.mount(&["--read-only"]);
        let refused = nameless(&scene.point, 0, 0o600).expect_err("refused");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::ROFS));
        scene.end();
    }
}

#[test]
fn a_pool_makes_none() {
    let Some(mut hosts) = Hosts::begin("nameless-pool", 7601) else {
        return;
    };
    for point in hosts.points() {
        let refused = nameless(&point, 0, 0o600).expect_err("refused");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::OPNOTSUPP));
    }
    hosts.umount(1);
    hosts.umount(0);
}
