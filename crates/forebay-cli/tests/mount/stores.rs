//! Mounted stores, where they are unlike directories: what is durable when, their room, their process's death.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

use forebay_fuse::points::State;
use forebay_pool::home::{Directory, Home};
use forebay_pool::ids::{File as FileNumber, Version};
use forebay_pool::message::Block;
use rustix::fs::{SeekFrom, seek, statvfs};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::scene::{Scene, wait_until};

const MIB: u64 = 1 << 20;

#[test]
fn what_was_done_is_there_when_it_is_mounted_again() {
    let Some(mut scene) = Scene::begin_store("again", "32MiB", &[]) else {
        return;
    };
    fs::create_dir(scene.point.join("dir")).expect("made");
    fs::write(scene.point.join("dir/file"), vec![7; 300_000]).expect("written");
    fs::hard_link(scene.point.join("dir/file"), scene.point.join("link")).expect("linked");
    let told = fs::metadata(scene.point.join("link")).expect("known");
    scene.umount();
    scene.await_end(0);
    scene.check_store();
    scene.mount(&["--read-only"]);
    let again = fs::metadata(scene.point.join("dir/file")).expect("known");
    let of = |meta: &fs::Metadata| {
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime());
        (meta.ino(), meta.nlink(), meta.len(), meta.blocks(), times)
    };
    assert_eq!(of(&again), of(&told));
    assert_eq!(
        fs::read(scene.point.join("link")).expect("read"),
        vec![7; 300_000]
    );
    let refused = fs::write(scene.point.join("new"), "bytes").expect_err("refused");
    assert_eq!(refused.raw_os_error(), Some(30));
    scene.end();
}

#[test]
fn a_killed_mount_keeps_what_was_synced_and_is_in_order() {
    let Some(mut scene) = Scene::begin_store("killed", "64MiB", &["--flush-interval", "10ms"])
    else {
        return;
    };
    let synced = File::create(scene.point.join("synced")).expect("made");
    synced.write_all_at(&[1; 50_000], 0).expect("written");
    synced.sync_all().expect("synced");
    let working = scene.point.clone();
    // Files come, change their names and go, until nobody answers any more. What comes later is never there without what came before.
    let writer = std::thread::spawn(move || {
        for round in 0u64.. {
            let (new, old) = (working.join("new"), working.join(format!("{}", round % 50)));
            let done = fs::write(&new, round.to_le_bytes().repeat(2000))
                .and_then(|()| fs::rename(&new, &old));
            if done.is_err() {
                return round;
            }
        }
        0
    });
    wait_until("it works", || scene.point.join("49").exists());
    scene.process.take().expect("mounted").kill();
    let last = writer.join().expect("it ends");
    assert_eq!(scene.state(), State::Dead);
    assert_eq!(scene.run(&["umount"], &scene.point).code, 0);
    scene.check_store();
    scene.mount(&[]);
    let back = fs::read(scene.point.join("synced")).expect("read");
    assert_eq!(back, vec![1; 50_000]);
    // Calls are there in their order: each file is whole, and no round is there without those before it.
    let mut newest = Vec::new();
    for name in 0..50 {
        let Ok(bytes) = fs::read(scene.point.join(name.to_string())) else {
            continue;
        };
        assert_eq!(bytes.len(), 16_000, "{name}");
        let round = u64::from_le_bytes(*bytes.first_chunk().expect("bytes"));
        assert!(bytes == round.to_le_bytes().repeat(2000), "{name}: torn");
        assert_eq!(round % 50, name);
        newest.push(round);
    }
    newest.sort_unstable();
    let follow = newest.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert!(follow && newest.last() <= Some(&last), "{newest:?}");
    scene.end();
}

#[test]
fn a_full_store_says_so_and_can_be_emptied() {
    let Some(scene) = Scene::begin_store("full", "8MiB", &[]) else {
        return;
    };
    let before = statvfs(&scene.point).expect("known");
    let (path, fixed) = (scene.point.join("large"), scene.point.join("fixed"));
    fs::write(&fixed, vec![1; 100_000]).expect("written");
    let file = File::create(&path).expect("made");
    let mut end = 0;
    let error = loop {
        match file.write_at(&[2; 64 << 10], end) {
            Ok(n) => end += n as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(28));
    assert!(end > 2 * MIB && end < 8 * MIB, "{end}");
    assert_eq!(statvfs(&scene.point).expect("known").f_bavail, 0);
    // Bytes in place of bytes, and less of them.
    let other = File::options().write(true).open(&fixed).expect("opened");
    other.write_all_at(&[3; 100_000], 0).expect("written over");
    other.sync_all().expect("synced");
    assert_eq!(fs::read(&fixed).expect("read"), vec![3; 100_000]);
    assert_eq!(fs::metadata(&path).expect("known").len(), end);
    drop((file, other));
    fs::remove_file(&path).expect("removed");
    fs::remove_file(&fixed).expect("removed");
    wait_until("the room is back", || {
        // What is removed is free when its removal is durable.
        let root = File::open(&scene.point).expect("opened");
        root.sync_all().expect("synced");
        // But for some of metadata, which wait until the log is empty.
        statvfs(&scene.point).expect("known").f_bfree + 16 >= before.f_bfree
    });
    fs::write(&path, vec![4; MIB as usize]).expect("written");
    scene.end();
}

/// The kernel writes mapped pages by large requests, of which the first part has room: whoever syncs hears of the rest.
#[test]
fn a_mapping_that_a_full_store_has_no_room_for_fails_at_its_sync() {
    let Some(scene) = Scene::begin_store("mapped", "8MiB", &[]) else {
        return;
    };
    const LEFT: u64 = 400 << 10;
    let large = scene.point.join("large");
    let fill = File::create(&large).expect("made");
    let room = || {
        let told = statvfs(&scene.point).expect("known");
        told.f_bavail * told.f_bsize
    };
    let mut end = 0;
    while room() > LEFT {
        fill.write_all_at(&[2; 16 << 10], end).expect("written");
        end += 16 << 10;
    }
    fill.sync_all().expect("synced");
    let path = scene.point.join("mapped");
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.expect("made");
    file.set_len(MIB).expect("set");
    let (n, how) = (MIB as usize, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping of a file that is open.
    let map = unsafe {
        let (at, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        libc::mmap(at, n, how, libc::MAP_SHARED, fd, 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    let sync = |byte: u8| {
        // SAFETY: the mapping is so long, may be written, and is nobody else's.
        let synced = unsafe {
            map.cast::<u8>().write_bytes(byte, n);
            libc::msync(map, n, libc::MS_SYNC)
        };
        match synced {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error())),
        }
    };
    let without_room = sync(b'A');
    drop(fill);
    fs::remove_file(&large).expect("removed");
    let root = File::open(&scene.point).expect("opened");
    wait_until("the room is back", || {
        root.sync_all().expect("synced");
        room() > 3 * MIB
    });
    let with_room = sync(b'B');
    let read = fs::read(&path).expect("read");
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { libc::munmap(map, n) }, 0);
    assert_eq!(without_room, Err(Some(Errno::NOSPC)));
    assert_eq!(with_room, Ok(()));
    assert!(read == vec![b'B'; n], "other bytes");
    drop((file, root));
    scene.end();
}

#[test]
fn sparse_files_have_up_to_a_tebibyte_and_more() {
    let Some(scene) = Scene::begin_store("sparse", "32MiB", &[]) else {
        return;
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(scene.point.join("file"))
        .expect("made");
    const TIB: u64 = 1 << 40;
    file.set_len(TIB).expect("set");
    for at in [0, TIB / 3, TIB - 5] {
        file.write_all_at(b"bytes", at).expect("written");
        let mut back = [0; 5];
        file.read_exact_at(&mut back, at).expect("read");
        assert_eq!(&back, b"bytes");
    }
    let page = TIB / 3 / 4096 * 4096;
    assert_eq!(seek(&file, SeekFrom::Data(4096)), Ok(page));
    assert_eq!(seek(&file, SeekFrom::Hole(page)), Ok(page + 4096));
    let known = file.metadata().expect("known");
    assert_eq!(known.len(), TIB);
    assert!(known.blocks() < 200, "{}", known.blocks());
    file.set_len(100).expect("cut");
    drop(file);
    scene.end();
}

/// A directory of a hundred thousand names, each tenth as long as a name may be, most of them links to a few files.
#[test]
fn a_hundred_thousand_names_are_in_one_directory() {
    let Some(mut scene) = Scene::begin_store("many", "2GiB", &[]) else {
        return;
    };
    const NAMES: usize = 100_000;
    let directory = scene.point.join("directory");
    fs::create_dir(&directory).expect("made");
    let name = |number: usize| match number % 10 {
        0 => format!("{number:n<255}"),
        _ => format!("{number}"),
    };
    let by_four = |work: &(dyn Fn(usize) + Sync)| {
        std::thread::scope(|scope| {
            for first in 0..4 {
                scope.spawn(move || (first..NAMES).step_by(4).for_each(work));
            }
        });
    };
    by_four(&|number| {
        File::create(directory.join(name(number))).expect("made");
    });
    let list = || {
        let listed = fs::read_dir(&directory).expect("listed");
        let listed = listed.map(|entry| entry.expect("an entry").file_name().into_string());
        listed.map(|name| name.expect("a name")).collect::<Vec<_>>()
    };
    let whole = |numbers: &mut dyn Iterator<Item = usize>| {
        let mut listed = list();
        listed.sort_unstable();
        let mut names: Vec<_> = numbers.map(name).collect();
        names.sort_unstable();
        assert!(listed == names, "{} of {}", listed.len(), names.len());
    };
    whole(&mut (0..NAMES));
    by_four(&|number| {
        if number % 4 == 0 {
            fs::remove_file(directory.join(name(number))).expect("removed");
        }
    });
    scene.umount();
    scene.await_end(0);
    scene.mount(&[]);
    whole(&mut (0..NAMES).filter(|number| number % 4 != 0));
    assert!(directory.join(name(1)).exists() && !directory.join(name(0)).exists());
    scene.end();
}

#[test]
fn privileges_end_with_a_change() {
    for scene in Scene::each("privileges", &[]) {
        privileges_end(scene);
    }
}

fn privileges_end(scene: Scene) {
    if !rustix::process::geteuid().is_root() {
        return crate::here::skipped("only root gives files away");
    }
    let plain = scene.directory.join("file");
    let path = scene.point.join("file");
    let mut modes = Vec::new();
    for path in [&plain, &path] {
        for mode in [0o6755, 0o6745, 0o755] {
            fs::write(path, "bytes").expect("written");
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
            std::os::unix::fs::chown(path, Some(7), None).expect("given");
            modes.push(fs::metadata(path).expect("known").mode());
        }
    }
    let (of_plain, of_store) = modes.split_at(3);
    assert_eq!(of_plain, of_store);
    // Also with calls of which the kernel does not say that they write.
    let to = File::options().write(true).open(&path).expect("opened");
    for call in ["copy", "allocate"] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("set");
        match call {
            "copy" => {
                let other = scene.point.join("other");
                fs::copy(&plain, &other).expect("copied");
                let other = File::open(other).expect("opened");
                rustix::fs::copy_file_range(&other, None, &to, None, 3).expect("copied");
            }
            _ => rustix::fs::fallocate(&to, rustix::fs::FallocateFlags::empty(), 0, 9000)
                .expect("allocated"),
        }
        let mode = fs::metadata(&path).expect("known").mode();
        assert_eq!(mode & 0o7777, 0o755, "{call}");
    }
    drop(to);
    scene.end();
}

#[test]
fn a_store_is_mounted_once_and_nothing_else_is_one() {
    let Some(mut scene) = Scene::begin_store("once", "32MiB", &[]) else {
        return;
    };
    let other = scene.place.file("other");
    fs::create_dir(&other).expect("a directory");
    let twice = scene.mount_behind(&[], &scene.store, &other);
    assert!(
        twice.code == 1 && twice.stderr.contains("open in another process"),
        "{twice:?}"
    );
    let plain = scene.place.file("plain");
    fs::write(&plain, vec![0; 1 << 20]).expect("written");
    let none = scene.mount_behind(&[], &plain, &other);
    assert!(
        none.code == 1 && none.stderr.contains("no store"),
        "{none:?}"
    );
    // A signal unmounts, and what was written is durable.
    fs::write(scene.point.join("file"), "bytes").expect("written");
    scene
        .process
        .as_mut()
        .expect("mounted")
        .signal(Signal::TERM);
    scene.await_end(0);
    assert_eq!(scene.state(), State::Free);
    scene.check_store();
    // In the background too.
    let run = scene.mount_behind(&[], &scene.store, &scene.point);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(
        fs::read_to_string(scene.point.join("file")).expect("read"),
        "bytes"
    );
    scene.umount();
    wait_until("its process lets go", || {
        scene.run(&["pmem", "check"], &scene.store).code == 0
    });
}

#[test]
fn programs_are_executed_from_a_store() {
    let Some(scene) = Scene::begin_store("programs", "32MiB", &[]) else {
        return;
    };
    let program = scene.point.join("program");
    fs::copy("/bin/sh", &program).expect("copied");
    let output = Command::new(&program).args(["-c", "echo it runs"]).output();
    assert_eq!(output.expect("it runs").stdout, b"it runs\n");
    scene.end();
}

#[test]
fn streams_write_to_a_store_by_requests_of_two_pages() {
    let Some(scene) = Scene::begin_store("streams", "32MiB", &[]) else {
        return;
    };
    let path = scene.point.join("file");
    let name = CString::new(path.as_os_str().as_bytes()).expect("a name");
    const PIECE: [u8; 1000] = [7; 1000];
    // SAFETY: the stream is this function's until it is closed; the strings and the pieces live as long as the calls.
    unsafe {
        let stream = libc::fopen(name.as_ptr(), c"w".as_ptr());
        assert!(!stream.is_null());
        // Less than 8 KiB, and more than a page.
        for _ in 0..8 {
            assert_eq!(libc::fwrite(PIECE.as_ptr().cast(), 1, 1000, stream), 1000);
        }
        let told = fs::metadata(&path).expect("known");
        assert_eq!((told.blksize(), told.len()), (8 << 10, 0));
        assert_eq!(libc::fclose(stream), 0);
    }
    assert_eq!(fs::metadata(&path).expect("known").len(), 8000);
    // A directory's lists are no streams.
    let root = fs::metadata(&scene.point).expect("known");
    assert_eq!(root.blksize(), 4096);
    scene.end();
}

#[test]
fn absent_names_are_there_once_they_are_made() {
    let Some(scene) = Scene::begin_store("absent", "32MiB", &[]) else {
        return;
    };
    let (name, other) = (scene.point.join("name"), scene.point.join("other"));
    fs::write(&other, "bytes").expect("written");
    type Make = fn(&std::path::Path, &std::path::Path) -> std::io::Result<()>;
    let makings: [Make; 5] = [
        |name, _| fs::write(name, "bytes"),
        |name, _| fs::create_dir(name),
        |name, other| fs::hard_link(other, name),
        |name, _| std::os::unix::fs::symlink("target", name),
        |name, other| fs::rename(other, name),
    ];
    for make in makings {
        for _ in 0..2 {
            let absent = fs::symlink_metadata(&name).expect_err("absent");
            assert_eq!(absent.raw_os_error(), Some(2));
            assert!(File::open(&name).is_err());
        }
        make(&name, &other).expect("made");
        let made = fs::symlink_metadata(&name).expect("there");
        let listed = fs::read_dir(&scene.point).expect("listed");
        let listed = listed.map(|entry| entry.expect("read").file_name());
        assert!(listed.into_iter().any(|entry| entry == "name"));
        match made.is_dir() {
            true => fs::remove_dir(&name).expect("removed"),
            false => fs::remove_file(&name).expect("removed"),
        }
    }
    scene.end();
}

#[test]
fn a_damaged_store_is_refused_or_says_what_it_cannot() {
    damage_in_turn("damaged", Some(24));
}

#[test]
#[ignore = "long: a mount for each block"]
fn a_store_that_is_damaged_anywhere_is_refused_or_says_what_it_cannot() {
    damage_in_turn("damaged-anywhere", None);
}

/// Each block that is in use in turn, or so many of them.
fn damage_in_turn(name: &str, most: Option<usize>) {
    let Some(mut scene) = Scene::begin_store(name, "16MiB", &[]) else {
        return;
    };
    fs::create_dir(scene.point.join("dir")).expect("made");
    for number in 0..40 {
        let name = format!("dir/{number}");
        fs::write(scene.point.join(name), vec![7; 9000]).expect("written");
    }
    scene.umount();
    scene.await_end(0);
    let whole = fs::read(&scene.store).expect("read");
    let used = |block: &usize| whole[block * 4096..][..4096].iter().any(|byte| *byte != 0);
    let blocks: Vec<usize> = (0..whole.len() / 4096).filter(used).collect();
    let (mut refused, mut served) = (0, 0);
    let step = most.map_or(1, |most| blocks.len().div_ceil(most));
    for block in blocks.iter().step_by(step) {
        let mut damaged = whole.clone();
        damaged[block * 4096..][..4096].fill(0xa5);
        fs::write(&scene.store, damaged).expect("damaged");
        if !scene.is_served_behind(&format!("block {block}")) {
            refused += 1;
            continue;
        }
        served += 1;
        for number in 0..40 {
            // Bytes have no checksums, and may be the damage.
            match fs::read(scene.point.join(format!("dir/{number}"))) {
                Ok(read) => assert_eq!(read.len(), 9000, "block {block}"),
                Err(error) => {
                    let errno = Errno::from_io_error(&error);
                    assert_eq!(errno, Some(Errno::IO), "block {block}");
                }
            }
        }
        let _ = fs::write(scene.point.join("new"), "bytes");
        let _ = fs::remove_file(scene.point.join("dir/3"));
        assert_eq!(scene.state(), State::Alive, "block {block}");
        scene.umount();
        scene.await_store();
    }
    println!("{refused} refused, {served} served");
    assert!(served > 0);
}

/// Nothing is durable there that nobody syncs.
const NEVER: &[&str] = &["--flush-interval", "1h"];

/// The mount's process is killed, and the store mounted again.
fn die(scene: &mut Scene) {
    scene.process.take().expect("mounted").kill();
    assert_eq!(scene.run(&["umount"], &scene.point).code, 0);
    scene.mount(NEVER);
}

#[test]
fn a_pools_home_on_a_store_is_durable_once_it_is_synced() {
    let Some(mut scene) = Scene::begin_store("home", "32MiB", NEVER) else {
        return;
    };
    let path = scene.point.join("home");
    fs::create_dir(&path).expect("made");
    let open = || Directory::of_anybody(&path, 1).expect("a home");
    let home = open();
    let block = |number| Block {
        place: (FileNumber(7), number),
        version: Version {
            epoch: 1,
            stamp: 1,
            change: 1,
        },
        bytes: vec![5; 4096].into(),
    };
    for number in 0..3 {
        assert!(home.store(&block(number), &|| true).expect("stored"));
    }
    home.sync().expect("synced");
    drop(home);
    die(&mut scene);
    let home = open();
    for number in 0..3 {
        let found = home.load((FileNumber(7), number)).expect("in order");
        assert!(found.is_some(), "block {number} is lost");
    }
    drop(home);
    scene.end();
}

#[test]
fn what_is_copied_to_a_description_that_syncs_is_durable() {
    for flag in [libc::O_SYNC, libc::O_DSYNC] {
        let Some(mut scene) = Scene::begin_store("copy", "32MiB", NEVER) else {
            return;
        };
        let bytes = vec![7; 100_000];
        fs::write(scene.point.join("from"), &bytes).expect("written");
        let from = File::open(scene.point.join("from")).expect("opened");
        let open = |name: &str| {
            let mut options = File::options();
            options.write(true).create(true).custom_flags(flag);
            options.open(scene.point.join(name)).expect("opened")
        };
        let to = open("to");
        let mut at = 0;
        while at < bytes.len() as u64 {
            let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, 1 << 20);
            assert!(copied.expect("copied") > 0);
        }
        drop((from, to));
        die(&mut scene);
        assert!(fs::read(scene.point.join("to")).expect("read") == bytes);
        let room = {
            let mut options = File::options();
            options.write(true).create(true).custom_flags(flag);
            options.open(scene.point.join("room")).expect("opened")
        };
        rustix::fs::fallocate(&room, rustix::fs::FallocateFlags::empty(), 0, 9000)
            .expect("allocated");
        drop(room);
        die(&mut scene);
        let told = fs::metadata(scene.point.join("room")).expect("known");
        assert_eq!(told.len(), 9000);
        scene.end();
    }
}
