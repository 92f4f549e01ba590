//! Rings of this kernel, with a file system that knows what it is asked and from where. They need root and a switch:
//! `echo Y > /sys/module/fuse/parameters/enable_uring`.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::*;
use crate::failed::Failed;
use crate::transport::threads::Threads;
use crate::transport::{Request, Unanswered};
use crate::wire::{self, Attr, AttrOut, EntryOut, OpenOut, ReadIn, StatfsOut, init, opcode};

const PATIENCE: Duration = Duration::from_secs(30);
const FILE: u64 = 2;
const FILE_BYTES: u64 = 3 << 20;

/// What was asked: `STATFS` from where; names that begin with "wait" wait until they are let go.
#[derive(Default)]
struct Asked {
    /// Processors that answered, and whether by rings.
    answered_by: Mutex<BTreeSet<(u32, bool)>>,
    waiting: Mutex<Vec<Unanswered>>,
    count: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The byte at a place of the file.
fn byte_at(offset: u64) -> u8 {
    (offset / 509) as u8 ^ offset as u8
}

fn attributes(number: u64) -> Attr {
    Attr {
        ino: number,
        mode: if number == FILE { 0o100_644 } else { 0o40_755 },
        size: if number == FILE { FILE_BYTES } else { 0 },
        nlink: 1,
        ..Attr::default()
    }
}

impl Asked {
    fn let_go(&self) {
        for waiting in locked(&self.waiting).drain(..) {
            waiting.fail(Failed(libc::ENOENT));
        }
    }

    fn look_up(&self, name: &[u8], to: Unanswered) {
        match name {
            b"file\0" => to.send(&[io::IoSlice::new(
                &EntryOut {
                    nodeid: FILE,
                    attr: attributes(FILE),
                    ..EntryOut::default()
                }
                .bytes(),
            )]),
            b"panic\0" => panic!("a request that nobody expects"),
            name if name.starts_with(b"wait") => locked(&self.waiting).push(to),
            _ => to.fail(Failed(libc::ENOENT)),
        }
    }
}

impl Answers for Asked {
    fn answer(&self, request: Request<'_>, to: Unanswered) {
        self.count.fetch_add(1, Ordering::Relaxed);
        match request.header.opcode {
            opcode::GETATTR => {
                let attr = attributes(request.header.nodeid);
                let out = AttrOut {
                    attr,
                    ..AttrOut::default()
                };
                to.send(&[io::IoSlice::new(&out.bytes())]);
            }
            opcode::STATFS => {
                let is_ring = thread::current()
                    .name()
                    .is_some_and(|name| name.starts_with("ring-"));
                locked(&self.answered_by).insert((forebay::sys::cpu::current(), is_ring));
                to.send(&[io::IoSlice::new(&StatfsOut::default().bytes())]);
            }
            opcode::LOOKUP => self.look_up(request.payload, to),
            opcode::OPEN => {
                let out = OpenOut {
                    open_flags: wire::opened::DIRECT_IO,
                    ..OpenOut::default()
                };
                to.send(&[io::IoSlice::new(&out.bytes())]);
            }
            opcode::READ => {
                let asked = ReadIn::parse(request.operation).expect("whole");
                to.fill(asked.size as usize, |memory| {
                    let all = FILE_BYTES
                        .saturating_sub(asked.offset)
                        .min(asked.size.into());
                    let memory = &mut memory[..all as usize];
                    for (offset, byte) in (asked.offset..).zip(&mut *memory) {
                        *byte = byte_at(offset);
                    }
                    Ok(memory.len())
                });
            }
            // Its answer is made while its name is still being looked at.
            opcode::GETXATTR => to.fill(16, |memory| {
                let name = request.payload;
                memory.fill(b'x');
                assert!(name.starts_with(b"user.wanted\0"), "{name:?}");
                Ok(16)
            }),
            opcode::FORGET | opcode::BATCH_FORGET => to.none(),
            _ => to.fail(Failed(libc::ENOSYS)),
        }
    }
}

/// Mounts something that nobody serves yet.
fn attach(point: &Path) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd();
    let data = CString::new(format!("fd={number},rootmode=40000,user_id=0,group_id=0"))?;
    mount("rings", point, "fuse", MountFlags::empty(), &*data)?;
    Ok(device.into())
}

/// A mount by rings.
struct Mounted {
    point: tempfile::TempDir,
    asked: Arc<Asked>,
    threads: Option<Threads>,
}

impl Mounted {
    /// `None`, and said so, where there can be none.
    fn begin() -> Option<Self> {
        if is_switched_on() != Some(true) {
            forebay_model::skipped(
                "this kernel sends no requests by io_uring, or it is switched off",
            );
            return None;
        }
        let point = tempfile::tempdir().expect("a directory");
        let device = match attach(point.path()) {
            Ok(device) => device,
            Err(why) => {
                forebay_model::skipped(format!("nothing can be mounted: {why}"));
                return None;
            }
        };
        let asked = Arc::new(Asked::default());
        let wanted = init::MAX_PAGES | init::BIG_WRITES | init::PARALLEL_DIROPS;
        let answers = Arc::clone(&asked);
        let threads = Threads::begin(device, wanted, Ring::Always, answers);
        Some(Mounted {
            point,
            asked,
            threads: Some(threads.expect("served")),
        })
    }

    fn path(&self) -> &Path {
        self.point.path()
    }

    /// Unmounts, and waits until whoever answered is gone.
    fn end(mut self) {
        unmount(self.path(), UnmountFlags::DETACH).expect("unmounted");
        let threads = self.threads.take().expect("served");
        within("nobody answers any more", move || {
            threads.join().expect("the mount's end is the end");
        });
        assert_eq!(Arc::strong_count(&self.asked), 1);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.threads.is_some() {
            // By force: this process could not end while it waits for itself.
            let _ = unmount(self.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

/// Does something in a thread, which must not take long.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tells, told) = channel();
    thread::spawn(move || tells.send(work()));
    let result = told.recv_timeout(PATIENCE);
    result.unwrap_or_else(|why| panic!("in vain ({why}): {what}"))
}

fn stay_on(processor: usize) {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).expect("a processor of this machine");
}

fn online() -> Vec<usize> {
    let parts = processors("online").expect("a list");
    parts.into_iter().flatten().map(usize::from).collect()
}

#[test]
fn requests_are_answered_on_the_processor_that_asks() {
    let Some(mounted) = Mounted::begin() else {
        return;
    };
    for processor in online() {
        locked(&mounted.asked.answered_by).clear();
        let path = mounted.path().to_owned();
        within("rooms are told", move || {
            stay_on(processor);
            for _ in 0..200 {
                statvfs(&path).expect("a room");
            }
        });
        let answered = locked(&mounted.asked.answered_by).clone();
        assert_eq!(answered, BTreeSet::from([(processor as u32, true)]));
    }
    mounted.end();
}

#[test]
fn answers_that_wait_hold_up_nobody_on_their_processor() {
    let Some(mounted) = Mounted::begin() else {
        return;
    };
    let processor = online()[0];
    let waiters: Vec<_> = (0..PLACES_MAX - 1)
        .map(|number| {
            let path = mounted.path().join(format!("wait{number}"));
            thread::spawn(move || {
                stay_on(processor);
                fs::metadata(path).map(drop)
            })
        })
        .collect();
    let begun = Instant::now();
    while locked(&mounted.asked.waiting).len() < waiters.len() {
        assert!(begun.elapsed() < PATIENCE, "not all are asked for");
        thread::sleep(Duration::from_millis(1));
    }
    let path = mounted.path().to_owned();
    within("others are answered", move || {
        stay_on(processor);
        for _ in 0..200 {
            statvfs(&path).expect("a room");
        }
    });
    // They are answered by another thread than the one that got the request.
    mounted.asked.let_go();
    for waiter in waiters {
        let answered = within("those that wait are answered", || waiter.join());
        let error = answered.expect("it ends").expect_err("no such name");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
    mounted.end();
}

#[test]
fn bytes_and_names_come_whole() {
    let Some(mounted) = Mounted::begin() else {
        return;
    };
    let path = mounted.path().join("file");
    let wanted = path.clone();
    let (bytes, value) = within("a file is read", move || {
        let mut bytes = Vec::new();
        let mut file = File::open(&path).expect("opened");
        file.read_to_end(&mut bytes).expect("read");
        let mut value = [0; 64];
        let count = rustix::fs::getxattr(&path, "user.wanted", &mut value[..]);
        (bytes, value[..count.expect("a value")].to_vec())
    });
    assert_eq!(bytes.len() as u64, FILE_BYTES);
    let wrong = { bytes.iter().zip(0..) }.find(|(byte, offset)| **byte != byte_at(*offset));
    assert_eq!(wrong, None);
    assert_eq!(value, [b'x'; 16]);
    // What fails fails alone.
    let missing = wanted.with_file_name("panic");
    let error = within("a panic is an error", move || fs::metadata(missing));
    assert_eq!(error.expect_err("failed").raw_os_error(), Some(libc::EIO));
    let error = within("what is not there is not", move || {
        fs::metadata(wanted.with_file_name("missing"))
    });
    assert_eq!(error.expect_err("none").kind(), io::ErrorKind::NotFound);
    mounted.end();
}

#[test]
fn a_mount_ends_under_load_and_leaves_nothing() {
    for _ in 0..5 {
        let Some(mounted) = Mounted::begin() else {
            return;
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let programs: Vec<_> = (0..8)
            .map(|number| {
                let (path, is_over) = (mounted.path().to_owned(), Arc::clone(&is_over));
                // Held open, the mount goes on without its name; then it is cut off.
                let directory = File::open(&path).expect("opened");
                thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let name = format!("missing{number}");
                        let found =
                            rustix::fs::statat(&directory, name, rustix::fs::AtFlags::empty());
                        if found.err() == Some(rustix::io::Errno::NOTCONN) {
                            return;
                        }
                    }
                })
            })
            .collect();
        let before = mounted.asked.count.load(Ordering::Relaxed);
        let begun = Instant::now();
        while mounted.asked.count.load(Ordering::Relaxed) < before + 500 {
            assert!(begun.elapsed() < PATIENCE, "no load");
            thread::sleep(Duration::from_millis(1));
        }
        // Requests that are under way fail. In use, it is mounted still.
        let _ = unmount(mounted.path(), UnmountFlags::FORCE);
        mounted.end();
        is_over.store(true, Ordering::Relaxed);
        for program in programs {
            within("programs go on", || program.join()).expect("no panic");
        }
    }
}

#[test]
fn lists_of_processors_are_read() {
    assert_eq!(parsed("0-3,5\n"), Some(vec![0..=3, 5..=5]));
    assert_eq!(parsed("0\n"), Some(vec![0..=0]));
    assert_eq!(parsed(""), None);
}
