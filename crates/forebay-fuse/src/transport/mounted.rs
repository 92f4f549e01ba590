//! A mount of this kernel's with a file system that knows what it is asked and from where. It needs root.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::follow::Follow;
use super::ring::Ring;
use super::threads::Threads;
use super::{Answers, Request, Unanswered};
use crate::failed::Failed;
use crate::wire::{self, Attr, AttrOut, EntryOut, OpenOut, ReadIn, StatfsOut, init, opcode};

pub(super) const PATIENCE: Duration = Duration::from_secs(30);
const FILE: u64 = 2;
pub(super) const FILE_BYTES: u64 = 3 << 20;

/// What was asked: `STATFS` from where; names that begin with "wait" wait until they are let go.
#[derive(Default)]
pub(super) struct Asked {
    /// Where the threads that answered may run, and whether they are those of rings.
    pub(super) answered_by: Mutex<BTreeSet<(Vec<usize>, bool)>>,
    pub(super) waiting: Mutex<Vec<Unanswered>>,
    pub(super) count: AtomicU64,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The byte at a place of the file.
pub(super) fn byte_at(offset: u64) -> u8 {
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
    pub(super) fn let_go(&self) {
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
                locked(&self.answered_by).insert((may_run(), is_ring));
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

/// A mount.
pub(super) struct Mounted {
    point: tempfile::TempDir,
    pub(super) asked: Arc<Asked>,
    threads: Option<Threads>,
}

impl Mounted {
    /// `None`, and said so, where there can be none.
    pub(super) fn begin(ring: Ring, follow: Option<Follow>) -> Option<Self> {
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
        let threads = Threads::begin(device, wanted, ring, follow, answers);
        Some(Mounted {
            point,
            asked,
            threads: Some(threads.expect("served")),
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.point.path()
    }

    /// Unmounts, and waits until whoever answered is gone.
    pub(super) fn end(mut self) {
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
pub(super) fn within<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tells, told) = channel();
    thread::spawn(move || tells.send(work()));
    let result = told.recv_timeout(PATIENCE);
    result.unwrap_or_else(|why| panic!("in vain ({why}): {what}"))
}

/// The processors that the calling thread may run on.
pub(super) fn may_run() -> Vec<usize> {
    let all = sched_getaffinity(None).expect("a thread");
    (0..CpuSet::MAX_CPU)
        .filter(|number| all.is_set(*number))
        .collect()
}

pub(super) fn stay_on(processor: usize) {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).expect("a processor of this machine");
}
