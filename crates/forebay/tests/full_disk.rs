//! Disks that are really full, and quotas that are really used up: the write that asks for the space fails, everything
//! acknowledged before it survives, and writing goes on when there is room again.
//!
//! Needs root, for loop devices; each test says so where it cannot run.
#![cfg(feature = "sim")]

mod common;
mod disks;
mod here;
mod workers;

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use disks::Disk;
use forebay::device::{DeviceFile, RealFile};
use forebay::{File, OpenOptions, Session};
use forebay_model::{Op, Outcome, SplitMix64, fill};
use workers::{Spec, Work, Worker, answer, config, session_name};

/// Sizes from a few bytes to what goes to the device at once, ragged and not.
const SIZES: [usize; 7] = [100, 4096, 5000, 65_536, 262_144, 1 << 20, 3_333_333];

fn session() -> Session {
    Session::open(config(&session_name("full"))).expect("a session")
}

fn open(session: &Session, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.open_file(path, &options).expect("a file");
    assert_eq!(file.kernel_reason(), None);
    file
}

/// Writes one after the other until one fails; what was acknowledged.
fn fill_up(file: &File, size: usize, seed: u32, errno: i32) -> u64 {
    let mut bytes = vec![0; size];
    let mut at = file.len().expect("a length");
    loop {
        fill(seed, at, &mut bytes);
        match file.write_at(&bytes, at) {
            Ok(0) => panic!("a write of {size} bytes wrote nothing and did not say why"),
            Ok(written) => at += written as u64,
            Err(error) => {
                assert_eq!(error.errno(), errno, "{error}");
                return at;
            }
        }
    }
}

/// The file holds what was acknowledged, for the engine and for the kernel.
fn assert_holds(file: &File, path: &Path, seed: u32, len: u64) {
    file.sync_all()
        .expect("what was acknowledged can be written");
    assert_eq!(file.len().expect("a length"), len);
    let mut expected = vec![0; len as usize];
    fill(seed, 0, &mut expected);
    assert!(
        fs::read(path).expect("the file") == expected,
        "bytes of {len} are not on the disk"
    );
    let mut found = vec![0; len as usize];
    assert_eq!(file.read_at(&mut found, 0).expect("reads") as u64, len);
    assert!(found == expected, "bytes of {len} are not read back");
}

fn until_full(kind: &str) {
    let disk = match Disk::new(kind, 64, "") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    for (index, size) in SIZES.into_iter().enumerate() {
        let session = session();
        let seed = index as u32 + 1;
        let ballast = disk.dir().join("ballast");
        fs::write(&ballast, vec![1; 24 << 20]).expect("room for ballast");
        let path = disk.dir().join(format!("file-{size}"));
        let file = open(&session, &path);
        let full = fill_up(&file, size, seed, libc::ENOSPC);
        assert!(full > 1 << 20, "{kind}: only {full} bytes by {size}");
        assert_holds(&file, &path, seed, full);
        // Overwriting what there is needs no space.
        let mut bytes = vec![0; size.min(full as usize)];
        fill(seed, 0, &mut bytes);
        assert_eq!(
            file.write_at(&bytes, 0).expect("space that is there"),
            bytes.len()
        );
        fs::remove_file(&ballast).expect("removed");
        let more = fill_up(&file, size, seed, libc::ENOSPC);
        assert!(
            more > full + (8 << 20),
            "{kind}: {more} after {full} by {size}"
        );
        assert_holds(&file, &path, seed, more);
        file.close().expect("closed");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn writes_until_an_xfs_is_full() {
    until_full("xfs");
}

#[test]
fn writes_until_an_ext4_is_full() {
    until_full("ext4");
}

/// Bytes that anybody may still use.
fn free_bytes(dir: &Path) -> u64 {
    let dir = std::ffi::CString::new(dir.to_str().expect("plain")).expect("plain");
    // SAFETY: plain numbers, for which zero is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated string and our own variable, both alive through the call.
    let done = unsafe { libc::statvfs(dir.as_ptr(), &raw mut stat) };
    assert_eq!(done, 0, "statvfs");
    stat.f_bavail * stat.f_frsize
}

/// What several files have reserved ahead and do not use is there for whoever needs it: a disk is full when its space is
/// used, not when it is promised.
fn space_ahead_is_given_back(kind: &str, hosts: bool) {
    let disk = match Disk::new(kind, 320, "") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    let free = free_bytes(disk.dir());
    let session_name = session_name("ahead");
    let session = Session::open(config(&session_name)).expect("a session");
    // File 0 grows in another process, which has it open all the while.
    let work = Work::Commands { files: 1 };
    let mut other = Worker::ready(&Spec::new(&session_name, disk.dir(), hosts, work));
    let path = |index: u32| disk.dir().join(format!("file-{index}"));
    let files: Vec<File> = (1..4).map(|index| open(&session, &path(index))).collect();
    let size = 1 << 20;
    // Just after a large step ahead.
    let grown = 38;
    let mut bytes = vec![0; size as usize];
    for at in (0..grown).map(|piece| piece * u64::from(size)) {
        let (file, handle, offset, len, seed) = (0, 0, at, size, 1);
        other.run(&Op::Write {
            file,
            handle,
            offset,
            len,
            seed,
        });
        for (file, seed) in files.iter().zip(2..) {
            fill(seed, at, &mut bytes);
            assert_eq!(
                file.write_at(&bytes, at).expect("there is space"),
                bytes.len()
            );
        }
    }
    let last = open(&session, &path(9));
    let full = fill_up(&last, size as usize, 9, libc::ENOSPC);
    let used = full + 4 * grown * u64::from(size);
    let used_mib = used >> 20;
    assert!(
        used > free / 32 * 31,
        "{kind}: full with {used_mib} MiB of {} used",
        free >> 20
    );
    assert_holds(&last, &path(9), 9, full);
    for (index, file) in (1..).zip(&files) {
        assert_holds(file, &path(index), index + 1, grown * u64::from(size));
    }
    // Whoever has lost what was reserved asks for it again, and is told.
    files[0].set_len(0).expect("a length");
    let (file, handle, offset, len, seed) = (0, 0, grown * u64::from(size), size, 1);
    let answered = other.run(&Op::Write {
        file,
        handle,
        offset,
        len,
        seed,
    });
    assert_eq!(answered, answer(&Outcome::Wrote(u64::from(size))));
    other.run(&Op::SyncAll { file, handle });
    other.finish();
    let mut expected = vec![0; ((grown + 1) * u64::from(size)) as usize];
    fill(1, 0, &mut expected);
    assert!(
        fs::read(path(0)).expect("the file") == expected,
        "{kind}: the other's bytes"
    );
}

#[test]
fn space_ahead_is_given_back_on_xfs() {
    space_ahead_is_given_back("xfs", false);
}

#[test]
fn space_ahead_is_given_back_on_ext4() {
    space_ahead_is_given_back("ext4", true);
}

/// Two files take turns at random places of files with holes: each write has its space or fails.
fn holes_until_full(kind: &str) -> Result<(), String> {
    let disk = Disk::new(kind, 64, "")?;
    let session = session();
    let path = disk.dir().join("sparse");
    let file = open(&session, &path);
    let len = 256u64 << 20;
    file.set_len(len).expect("a length");
    let mut random = SplitMix64::new(7);
    let mut written: Vec<(u64, usize)> = Vec::new();
    let mut failures = 0;
    while failures < 5 {
        let size = SIZES[random.below(5) as usize];
        let at = random.below(len - size as u64);
        let mut bytes = vec![0; size];
        fill(3, at, &mut bytes);
        match file.write_at(&bytes, at) {
            Ok(n) => written.push((at, n)),
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                failures += 1;
            }
        }
    }
    assert!(written.len() > 20, "{kind}: {} writes", written.len());
    file.sync_all()
        .expect("what was acknowledged can be written");
    let image = fs::File::open(&path).expect("the file");
    for (at, n) in written {
        let mut expected = vec![0; n];
        fill(3, at, &mut expected);
        let mut found = vec![0; n];
        std::os::unix::fs::FileExt::read_exact_at(&image, &mut found, at).expect("reads");
        assert!(found == expected, "{kind}: {n} bytes at {at}");
    }
    Ok(())
}

#[test]
fn holes_are_filled_until_the_disk_is_full() {
    for kind in ["xfs", "ext4"] {
        if let Err(reason) = holes_until_full(kind) {
            return here::skipped(reason);
        }
    }
}

/// A repair waits for what the dead have under way by a call that needs no space, and of which XFS says that there is none.
#[test]
fn a_full_disk_can_be_waited_for() {
    for kind in ["xfs", "ext4"] {
        let disk = match Disk::new(kind, 64, "") {
            Ok(disk) => disk,
            Err(reason) => return here::skipped(reason),
        };
        let path = disk.dir().join("file");
        fs::write(&path, vec![7; 1 << 20]).expect("space");
        let plain = fs::OpenOptions::new().read(true).write(true).open(&path);
        let plain = plain.expect("a file");
        plain.sync_all().expect("synced");
        let file = RealFile::reopen(plain.as_fd()).expect("managed");
        let ballast = fs::File::create(disk.dir().join("ballast")).expect("a file");
        disks::take_all(&ballast);
        let answer = disks::allocate(&plain, 0, 1);
        let errno = answer.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno, (kind == "xfs").then_some(libc::ENOSPC), "{kind}");
        file.wait_in_flight().expect(kind);
    }
}

/// Overwrites a file, piece by piece, on a disk that is full: each piece has its space or is refused, and nothing that was
/// acknowledged is missing. How many were refused.
fn overwrite(session: &Session, path: &Path, len: u64, size: usize) -> usize {
    let file = open(session, path);
    let mut written = Vec::new();
    let mut refused = 0;
    let mut bytes = vec![0; size];
    for at in (0..len).step_by(size) {
        fill(5, at, &mut bytes);
        match file.write_at(&bytes, at) {
            Ok(n) => written.push((at, n)),
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                refused += 1;
            }
        }
    }
    file.sync_all()
        .expect("what was acknowledged can be written");
    let image = fs::read(path).expect("the file");
    for (at, n) in written {
        fill(5, at, &mut bytes);
        assert!(image[at as usize..][..n] == bytes[..n], "{n} bytes at {at}");
    }
    refused
}

/// Writes of less and of more than goes to memory without further ado.
const PIECES: [usize; 3] = [4096, 65_536, 1 << 20];

#[test]
fn a_clones_space_is_asked_for_before_it_is_promised() {
    let disk = match Disk::new("xfs", 64, "") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    let len = 8 << 20;
    for size in PIECES {
        let path = disk.dir().join(format!("original-{size}"));
        fs::write(&path, vec![7; len]).expect("space");
        let clone = disk.dir().join(format!("clone-{size}"));
        let (from, to) = (
            path.to_str().expect("plain"),
            clone.to_str().expect("plain"),
        );
        if let Err(reason) = disk.tool("cp", &["--reflink=always", from, to]) {
            return here::skipped(reason);
        }
        disks::fill_up(&disk, "ballast");
        assert!(
            overwrite(&session(), &path, len as u64, size) > 0,
            "pieces of {size}"
        );
        assert!(fs::read(&clone).expect("the clone") == vec![7; len]);
        for name in ["ballast".into(), path, clone] {
            fs::remove_file(disk.dir().join(name)).expect("removed");
        }
    }
}

/// What the session knows of a file that nobody has open says nothing of a clone: that changes none of the file's times.
#[test]
fn a_clone_of_a_file_that_was_closed_is_seen_when_it_is_opened_again() {
    let disk = match Disk::new("xfs", 64, "") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    let session = session();
    let len = 4u64 << 20;
    let text = |name: String| {
        let path = disk.dir().join(name);
        path.to_str().expect("plain").to_owned()
    };
    for size in PIECES {
        let path = text(format!("original-{size}"));
        let file = open(&session, path.as_ref());
        file.write_at(&vec![7; len as usize], 0).expect("space");
        file.sync_all().expect("synced");
        file.close().expect("closed");
        let clone = text(format!("clone-{size}"));
        if let Err(reason) = disk.tool("cp", &["--reflink=always", &path, &clone]) {
            return here::skipped(reason);
        }
    }
    disks::fill_up(&disk, "ballast");
    // Longer than the guard takes somebody for being there who has come.
    std::thread::sleep(std::time::Duration::from_secs(6));
    for size in PIECES {
        let path = text(format!("original-{size}"));
        let refused = overwrite(&session, path.as_ref(), len, size);
        assert!(refused > 0, "pieces of {size}");
        let clone = fs::read(text(format!("clone-{size}"))).expect("the clone");
        assert!(clone == vec![7; len as usize]);
    }
}

/// Where a page lies in several blocks, some of them may have no space.
#[test]
fn blocks_smaller_than_a_page_are_the_kernels() {
    for kind in ["ext4-1k", "xfs-1k"] {
        let disk = match Disk::new(kind, 64, "") {
            Ok(disk) => disk,
            Err(reason) => return here::skipped(reason),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let session = session();
        let file = session.open_file(disk.dir().join("file"), &options);
        let reason = file.expect("a file").kernel_reason().expect(kind);
        assert!(reason.to_string().contains("block"), "{kind}: {reason}");
    }
}

/// A file that grows leaves most of the space that nobody uses to the others, those outside the session among them.
#[test]
fn space_ahead_leaves_others_theirs() {
    for kind in ["xfs", "ext4"] {
        let disk = match Disk::new(kind, 320, "") {
            Ok(disk) => disk,
            Err(reason) => return here::skipped(reason),
        };
        let free = free_bytes(disk.dir());
        let session = session();
        let file = open(&session, &disk.dir().join("log"));
        let bytes = vec![1; 16 << 10];
        let mut written = 0;
        while written < free / 4 * 3 {
            written += file.write_at(&bytes, written).expect("space") as u64;
            let (left, unused) = (free_bytes(disk.dir()), free - written);
            assert!(left > unused / 4 * 3, "{kind}: {left} of {unused} bytes");
        }
    }
}

/// Space beyond the end makes up for a hole in what the file's space adds up to.
#[test]
fn a_hole_is_not_hidden_by_space_beyond_the_end() {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    for kind in ["xfs", "ext4"] {
        let disk = match Disk::new(kind, 64, "") {
            Ok(disk) => disk,
            Err(reason) => return here::skipped(reason),
        };
        let len = 8u64 << 20;
        for size in PIECES {
            let path = disk.dir().join(format!("file-{size}"));
            let file = fs::File::create(&path).expect("a file");
            file.set_len(len).expect("a length");
            file.write_all_at(&[7; 1 << 20], 0).expect("space");
            let (mode, beyond) = (libc::FALLOC_FL_KEEP_SIZE, len as i64);
            // SAFETY: the call takes no memory.
            let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, beyond, beyond) };
            assert_eq!(done, 0, "{kind}");
            file.sync_all().expect("synced");
            drop(file);
            disks::fill_up(&disk, "ballast");
            assert!(
                overwrite(&session(), &path, len, size) > 0,
                "{kind}: pieces of {size}"
            );
            for name in ["ballast".into(), path] {
                fs::remove_file(disk.dir().join(name)).expect("removed");
            }
        }
    }
}

/// A quota counts for who is not root, so the writing is done by a worker of another user.
#[test]
fn a_quota_that_is_used_up_is_an_error_of_the_write() {
    let disk = match Disk::new("xfs", 320, "prjquota") {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    let dir = disk.dir().join("project");
    fs::create_dir(&dir).expect("a directory");
    let on = disk.dir().to_str().expect("plain").to_owned();
    let project = format!("project -s -p {} 42", dir.display());
    let limits = [project.as_str(), "limit -p bhard=16m 42"];
    for command in limits {
        if let Err(reason) = disk.tool(
            "xfs_quota",
            &[
                "-x",
                "-D",
                "/dev/null",
                "-P",
                "/dev/null",
                "-c",
                command,
                &on,
            ],
        ) {
            return here::skipped(reason);
        }
    }
    let session = session();
    for (index, size) in SIZES.into_iter().enumerate() {
        let seed = index as u32 + 1;
        let path = dir.join(format!("file-{size}"));
        let file = open(&session, &path);
        // A project that is full looks like a disk that is full; a user's quota says EDQUOT.
        let full = fill_up(&file, size, seed, libc::ENOSPC);
        assert!(
            (1 << 20..=16 << 20).contains(&full),
            "{full} bytes by {size}"
        );
        assert_holds(&file, &path, seed, full);
        file.close().expect("closed");
        fs::remove_file(&path).expect("removed");
    }
}
