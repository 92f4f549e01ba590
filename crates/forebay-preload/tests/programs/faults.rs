//! A device that fails under a real program: the n-th call on its file, for each n, of the program and of the keeper together.
//!
//! The program looks at each answer. Whenever a sync says 0, the file holds what was written, by a read of the kernel's that the library
//! does not see; and a sync of the device's that failed is told.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use forebay::sim::faults::{Call, Orders, obey, orders};

use crate::scene::Scene;
use crate::sys::*;

/// The longest that the file becomes.
const LEN: usize = 700_000;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "writes-and-syncs" => Writer::open(dir).write_and_sync(),
        "cuts-and-appends" => Writer::open(dir).cut_and_append(),
        "closes-and-opens" => Writer::open(dir).close_and_open(argument),
        "opens-to-cut" => open_to_cut(dir),
        "hears-of-a-sync" => hear_of_a_sync(&dir.join("a"), argument),
        _ => return false,
    }
    true
}

/// A file that is opened to be cut is cut, or was not opened.
fn open_to_cut(dir: &Path) {
    let path = dir.join("a");
    let long = open(&path, libc::O_RDWR).expect("open");
    for _ in 0..4 {
        let _ = pwrite(long, &pattern(3, 50_000), 0);
        match open(&path, libc::O_RDWR | libc::O_TRUNC) {
            Ok(fd) => {
                assert_eq!(write(fd, b"short"), Ok(5));
                // SAFETY: takes no memory.
                if unsafe { libc::fsync(fd) } == 0 {
                    assert!(in_kernel(fd) == b"short");
                }
                let _ = close(fd);
            }
            Err(errno) => assert_eq!(errno, libc::EIO),
        }
    }
    let _ = close(long);
}

/// A description that was opened while nobody used the file, and is managed only when it is synced, hears of a sync of another one that has failed
/// in between.
fn hear_of_a_sync(path: &Path, argument: &str) {
    // SAFETY: takes no memory.
    let sync = |fd: i32| unsafe { libc::fsync(fd) };
    let write_many = || {
        let fd = open(path, libc::O_RDWR).expect("open");
        for part in 0..1500 {
            assert_eq!(
                pwrite(fd, &pattern(part as u8, 1000), part * 1000),
                Ok(1000)
            );
        }
        let synced = sync(fd);
        let _ = close(fd);
        synced
    };
    if write_many() != 0 {
        return;
    }
    let early = open(path, libc::O_RDWR).expect("open");
    assert_eq!(pread(early, 10, 0), Ok(pattern(0, 10)));
    if argument == "again" {
        // It has heard of a failed sync by now, perhaps; what comes later is news.
        let _ = sync(early);
    }
    let synced = write_many();
    assert!(sync(early) != 0 || synced == 0, "nobody heard of it");
    let _ = close(early);
}

/// The file as the kernel has it now, by a call that the library does not see.
fn in_kernel(fd: i32) -> Vec<u8> {
    let mut bytes = vec![0u8; LEN + 1];
    let result: isize;
    // SAFETY: the kernel's calling convention; it writes to memory of ours.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_pread64 as isize => result,
            in("rdi") fd, in("rsi") bytes.as_mut_ptr(), in("rdx") bytes.len(), in("r10") 0,
            lateout("rcx") _, lateout("r11") _);
    }
    assert!(result >= 0, "a read: {result}");
    bytes.truncate(result as usize);
    bytes
}

/// A program that writes to a file and knows what must be in it.
struct Writer {
    dir: std::path::PathBuf,
    fd: i32,
    known: Vec<u8>,
    /// Which bytes may be otherwise, since a call on them has failed.
    doubtful: Vec<bool>,
    /// So may the length.
    ragged: bool,
    seed: u8,
    errors: u32,
}

impl Writer {
    fn open(dir: &Path) -> Writer {
        Writer {
            dir: dir.to_owned(),
            fd: open(&dir.join("a"), libc::O_RDWR).expect("open"),
            known: Vec::new(),
            doubtful: Vec::new(),
            ragged: false,
            seed: 1,
            errors: 0,
        }
    }

    fn doubt(&mut self, from: usize, to: usize) {
        self.doubtful.resize(self.doubtful.len().max(to), false);
        self.doubtful[from..to].fill(true);
    }

    fn write(&mut self, at: usize, len: usize) {
        self.seed = self.seed.wrapping_mul(29).wrapping_add(7);
        let bytes = pattern(self.seed, len);
        match pwrite(self.fd, &bytes, at as i64) {
            Ok(done) => {
                let end = at + done;
                self.known.resize(self.known.len().max(end), 0);
                self.known[at..end].copy_from_slice(&bytes[..done]);
            }
            Err(_) => {
                self.errors += 1;
                self.ragged |= at + len > self.known.len();
                self.doubt(at, at + len);
            }
        }
    }

    fn cut(&mut self, len: usize) {
        // SAFETY: takes no memory.
        if unsafe { libc::ftruncate(self.fd, len as i64) } == 0 {
            self.known.resize(len, 0);
            self.ragged = false;
        } else {
            self.errors += 1;
            self.ragged = true;
            self.doubt(len.min(self.known.len()), LEN);
        }
    }

    /// A sync that says 0 has said so of everything.
    fn sync(&mut self) {
        // SAFETY: takes no memory.
        if unsafe { libc::fsync(self.fd) } != 0 {
            self.errors += 1;
            return;
        }
        let found = in_kernel(self.fd);
        self.compare(&found, "in the kernel, synced");
    }

    fn compare(&self, found: &[u8], place: &str) {
        if !self.ragged {
            assert_eq!(found.len(), self.known.len(), "the length {place}");
        }
        let doubtful = |at: usize| self.doubtful.get(at).copied().unwrap_or(false);
        let common = found.len().min(self.known.len());
        let wrong = (0..common).find(|&at| found[at] != self.known[at] && !doubtful(at));
        assert_eq!(wrong, None, "a byte {place} is another");
    }

    /// What the program reads is what it has written, whatever the device does; where that fails, it says so.
    fn read(&mut self) {
        match pread(self.fd, LEN + 1, 0) {
            Ok(found) => self.compare(&found, "read"),
            Err(_) => self.errors += 1,
        }
    }

    /// Nothing was said to be synced that the device has refused, and in the end everything can be.
    fn end(mut self) {
        // More than fail in a row.
        for _ in 0..8 {
            self.sync();
        }
        let orders = orders().expect("orders");
        let failed = orders.failed.load(SeqCst);
        orders.countdown.store(0, SeqCst);
        orders.more.store(0, SeqCst);
        if failed == Call::Sync as u32 {
            assert_ne!(self.errors, 0, "a sync has failed, and nobody heard of it");
        }
        self.read();
        // SAFETY: takes no memory.
        let synced = unsafe { libc::fsync(self.fd) };
        assert_eq!(synced, 0, "a device that works again");
        self.compare(&in_kernel(self.fd), "in the end");
        if close(self.fd).is_err() {
            self.errors += 1;
        }
        println!("{} errors", self.errors);
    }

    fn write_and_sync(mut self) {
        for piece in 0..12 {
            self.write(piece * 20_000, 20_000);
        }
        self.sync();
        for at in [5, 4096, 70_000, 239_990] {
            self.write(at, 100);
        }
        self.sync();
        self.write(300_000, 262_144);
        self.read();
        self.sync();
        self.end();
    }

    fn cut_and_append(mut self) {
        self.write(0, 300_000);
        self.cut(123_457);
        self.sync();
        for _ in 0..5 {
            self.write(self.known.len(), 9_999);
        }
        self.cut(150_000);
        self.write(200_000, 5_000);
        self.sync();
        self.cut(10);
        self.read();
        self.write(4_000, 4_000);
        self.end();
    }

    fn close_and_open(mut self, argument: &str) {
        for round in 0..3 {
            self.write(round * 50_000, 140_001);
            if argument == "forks" {
                in_child(|| drop(std::fs::metadata("/")));
            }
            if close(self.fd).is_err() {
                self.errors += 1;
            }
            self.fd = open(&self.dir.join("a"), libc::O_RDWR).expect("open");
            self.read();
        }
        // Somebody else reads it by way of the kernel, which a switch must not lie about.
        // SAFETY: a plain call, without memory.
        if unsafe { libc::flock(self.fd, libc::LOCK_EX) } == 0 {
            self.compare(&in_kernel(self.fd), "given to the kernel");
        } else {
            self.errors += 1;
        }
        self.end();
    }
}

/// This process's orders: its keepers obey them. One test at a time has them.
fn own_orders() -> (&'static Path, &'static Orders) {
    static ORDERS: OnceLock<(tempfile::TempPath, &'static Orders)> = OnceLock::new();
    let (path, orders) = ORDERS.get_or_init(|| {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.into_temp_path();
        let orders = obey(&path).expect("orders");
        (path, orders)
    });
    (path, orders)
}

/// How a device fails.
#[derive(Clone, Copy)]
struct Fault {
    /// Of these calls, or of all.
    only: Option<Call>,
    /// The first that fails, from 1 on, and how many after it.
    first: u64,
    more: u64,
    errno: i32,
    /// A mistake that the program has.
    bug: Option<&'static str>,
}

/// Plays a role with a device that fails. Whether it did.
///
/// # Errors
/// What the program has found to be wrong.
fn suffer(role: &str, argument: &str, fault: Fault) -> Result<bool, String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (path, orders) = own_orders();
    let scene = Scene::with("faults", 0, |config| {
        // A keeper that is at it, too.
        let [after, interval] = if fault.bug.is_some() {
            [9000; 2]
        } else {
            [1, 2]
        };
        config.flush_after = Some(Duration::from_millis(after));
        config.flush_interval = Some(Duration::from_millis(interval));
    });
    std::fs::write(scene.path("a"), "").expect("a file");
    let inode =
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(scene.path("a")).expect("it"));
    orders.inode.store(inode, SeqCst);
    orders.errno.store(fault.errno as u32, SeqCst);
    orders
        .only
        .store(fault.only.map_or(0, |call| call as u32), SeqCst);
    orders.failed.store(0, SeqCst);
    orders.calls.store(0, SeqCst);
    orders.more.store(fault.more, SeqCst);
    orders.countdown.store(fault.first, SeqCst);
    let mut program = scene.role(role, argument);
    let program = program.env("FOREBAY__SIM_FAULT", path);
    if role == "hears-of-a-sync" {
        // By default files begin by what the kernel's calls have taken.
        program.env("FOREBAY_SMALL_FILE_BYTES", "1MiB");
    }
    if let Some(bug) = fault.bug {
        program.env("FOREBAY__SIM_BUG", bug);
    }
    let output = program.output().expect("a program");
    let failed = orders.failed.load(SeqCst);
    orders.inode.store(0, SeqCst);
    if output.status.success() {
        return Ok(failed != 0);
    }
    Err(format!(
        "{role} {argument}: call {} of {} fails ({failed}) with {}, and {} more: {}\n{}\n{}",
        fault.first,
        orders.calls.load(SeqCst),
        fault.errno,
        fault.more,
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}

const ROLES: [(&str, &str); 4] = [
    ("writes-and-syncs", ""),
    ("cuts-and-appends", ""),
    ("closes-and-opens", ""),
    ("closes-and-opens", "forks"),
];

fn suffer_all(from: u64, stride: usize) {
    let mut count = 0;
    for (role, argument) in ROLES {
        for (more, errno) in [(0, libc::EIO), (3, libc::EIO), (1, libc::ENOSPC)] {
            let (only, bug) = (None, None);
            let fault = |first| Fault {
                only,
                first,
                more,
                errno,
                bug,
            };
            let each = (1 + from % stride as u64..).step_by(stride);
            let met = |&first: &u64| {
                suffer(role, argument, fault(first)).unwrap_or_else(|what| panic!("{what}"))
            };
            count += each.take_while(met).count();
        }
    }
    println!("{count} programs on a device that failed");
    assert!(count > 8, "only {count} met a fault");
}

#[test]
fn who_has_opened_an_idle_file_hears_of_a_failed_sync() {
    let fault = |first| Fault {
        only: Some(Call::Sync),
        first,
        more: 0,
        errno: libc::EIO,
        bug: None,
    };
    for argument in ["", "again"] {
        let met = |&first: &u64| {
            let suffered = suffer("hears-of-a-sync", argument, fault(first));
            suffered.unwrap_or_else(|what| panic!("{what}"))
        };
        assert!((1..).take_while(met).count() >= 2, "no second sync");
    }
}

#[test]
fn no_open_lies_about_a_cut_that_has_failed() {
    let fault = |first| Fault {
        only: Some(Call::SetLen),
        first,
        more: 0,
        errno: libc::EIO,
        bug: None,
    };
    let met = |&first: &u64| {
        let suffered = suffer("opens-to-cut", "", fault(first));
        suffered.unwrap_or_else(|what| panic!("{what}"))
    };
    let count = (1..).take_while(met).count();
    assert!(count > 2, "only {count} met a fault");
}

/// A program that has a mistake: its device fails, one call of a kind after the other. What it finds to be wrong.
fn found(only: Call, bug: Option<&'static str>) -> Option<String> {
    for first in 1..30 {
        let fault = Fault {
            only: Some(only),
            first,
            more: 0,
            errno: libc::EIO,
            bug,
        };
        match suffer("writes-and-syncs", "", fault) {
            Err(what) => return Some(what),
            Ok(true) => {}
            Ok(false) => break,
        }
    }
    None
}

/// The suite can fail: of a write, and of a sync, that the device refuses the program does not hear.
#[test]
fn errors_that_are_swallowed_are_found() {
    let mistakes = [
        (Call::WriteDirect, "SwallowFlushError", "a byte"),
        (Call::Sync, "SwallowSyncError", "nobody heard of it"),
    ];
    for (only, bug, sign) in mistakes {
        let what = found(only, Some(bug));
        let what = what.unwrap_or_else(|| panic!("{bug} was planted, and nothing went wrong"));
        assert!(what.contains(sign), "{bug}: {what}");
        // It is the mistake that is found.
        assert_eq!(found(only, None), None);
    }
}

#[test]
fn no_sync_lies_about_a_device_that_fails() {
    suffer_all(forebay_model::fresh_seed(), 9);
}

#[test]
#[ignore = "minutes"]
fn no_sync_lies_whichever_call_fails() {
    suffer_all(0, 1);
}
