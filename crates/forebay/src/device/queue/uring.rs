//! A queue over io_uring.
//!
//! A request's life: *backlog* (more were submitted than the ring is deep) -> *slot* (with the
//! kernel; the slot owns the pieces and a reference to the file until the completion) -> *ready* ->
//! handed back. A file without descriptors of its own (simulated, or wrapped to inject faults) is
//! called at once and goes straight to *ready*.
//!
//! Each submission enters the kernel at once: a request that waited for the next poll would leave the
//! device idle. One thread owns the ring, but which one may change, so `SINGLE_ISSUER` is not used.
//! Files are not registered: that would keep writable descriptors open after the last close.

use super::perform_to_done;
use crate::device::{Done, Queue, Request, RequestKind};
use crate::sys::file::{CALL_BYTES_MAX, PIECES_MAX, as_iovecs};
use io_uring::{IoUring, Probe, opcode, squeue, types::Fd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;

/// The longest ring asked for; more requests than that wait their turn here.
const DEPTH_MAX: usize = 1024;

/// See the module's documentation.
pub struct Uring {
    ring: IoUring,
    /// Requests with the kernel, by the `user_data` of their entries.
    slots: Vec<Option<Request>>,
    /// Slots that are `None`.
    free: Vec<usize>,
    backlog: VecDeque<Request>,
    ready: Vec<Done>,
}

impl Uring {
    /// A ring for up to `depth` requests at once. Errors are those of `io_uring_setup`, and
    /// `ENOSYS` where the kernel lacks an operation: sandboxes refuse with `EPERM` or `ENOSYS`.
    pub fn new(depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let mut ring = IoUring::new(depth as u32)?;
        try_out(&mut ring)?;
        Ok(Self {
            ring,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: VecDeque::new(),
            ready: Vec::new(),
        })
    }

    fn with_kernel(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Moves requests from the backlog to free slots and tells the kernel.
    fn start(&mut self) {
        let mut started = false;
        while let Some(&slot) = self.free.last() {
            let Some(request) = self.backlog.pop_front() else {
                break;
            };
            self.free.pop();
            self.slots[slot] = Some(request);
            self.push(slot);
            started = true;
        }
        if started {
            self.enter(0);
        }
    }

    /// Writes the submission entry of a slot.
    fn push(&mut self, slot: usize) {
        let request = self.slots[slot].as_ref().expect("just filled");
        let entry = entry_of(request).user_data(slot as u64);
        // SAFETY: the entry points at pieces, and at an array of pieces, that the slot keeps until
        // the completion has been taken; the maker of the pieces promised that they stay mapped;
        // for writes they are initialised. Others may change the bytes, which only tears them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring is as deep as there are slots");
    }

    /// Submits what is written and waits for `wanted` completions.
    fn enter(&mut self, wanted: usize) {
        loop {
            let Err(error) = self.ring.submit_and_wait(wanted) else {
                return;
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // The kernel is short of memory or of room for completions; entries that were not
                // taken stay in the ring. Taking completions helps, so let the caller do that.
                Some(libc::EAGAIN | libc::EBUSY) if wanted == 0 => return,
                Some(libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                // Nothing that a working ring answers. The kernel may still own the memory of
                // requests, so there is no way on.
                _ => panic!("io_uring_enter: {error}"),
            }
            if !self.ring.completion().is_empty() {
                return;
            }
        }
    }

    /// Takes completions from the ring.
    fn take(&mut self) {
        let completions: Vec<_> = self
            .ring
            .completion()
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        let mut again = false;
        for (slot, result) in completions {
            let slot = slot as usize;
            if matches!(-result, libc::EINTR | libc::EAGAIN) {
                self.push(slot);
                again = true;
                continue;
            }
            let request = self.slots[slot].take().expect("one completion per slot");
            self.free.push(slot);
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            self.ready.push(Done {
                token: request.token,
                result,
            });
        }
        if again {
            self.enter(0);
        }
    }
}

/// The kernel's form of a request. One piece takes the plain operation; more than the kernel takes
/// in one call are cut, and the request comes back short.
fn entry_of(request: &Request) -> squeue::Entry {
    let (direct, _) = request
        .file
        .descriptors()
        .expect("files without are called directly");
    let (offset, pieces) = (request.offset, &request.pieces);
    let fd = Fd(direct.as_raw_fd());
    let writes = request.kind != RequestKind::Read;
    if let [piece] = pieces[..] {
        let len = piece.len.min(CALL_BYTES_MAX) as u32;
        return match writes {
            true => opcode::Write::new(fd, piece.ptr, len)
                .offset(offset)
                .build(),
            false => opcode::Read::new(fd, piece.ptr, len).offset(offset).build(),
        };
    }
    let (iovecs, count) = (as_iovecs(pieces), pieces.len().min(PIECES_MAX) as u32);
    match writes {
        true => opcode::Writev::new(fd, iovecs, count)
            .offset(offset)
            .build(),
        false => opcode::Readv::new(fd, iovecs, count).offset(offset).build(),
    }
}

/// Whether a test has calls of real files fail: then it is these that carry out requests.
fn is_failing() -> bool {
    #[cfg(feature = "sim")]
    return crate::sim::faults::orders().is_some();
    #[cfg(not(feature = "sim"))]
    false
}

/// Asks for the operations we use and sends one request through: a sandbox may allow the set-up and
/// refuse the rest.
fn try_out(ring: &mut IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let used = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
    ];
    if !used.iter().all(|code| probe.is_supported(*code)) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let nothing = opcode::Nop::new().build();
    // SAFETY: the operation has no memory.
    unsafe { ring.submission().push(&nothing) }.expect("an empty ring has room");
    while ring.completion().is_empty() {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    ring.completion().next();
    Ok(())
}

impl Queue for Uring {
    fn submit(&mut self, request: Request) {
        // The file sees to it that what goes through the kernel's cache has a description for that.
        let by_file = request.kind == RequestKind::WriteBuffered;
        if by_file || request.file.descriptors().is_none() || is_failing() {
            self.ready.push(perform_to_done(request));
            return;
        }
        self.backlog.push_back(request);
        self.start();
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Done>) {
        self.take();
        if wait && self.ready.is_empty() {
            while self.with_kernel() > 0 && self.ready.is_empty() {
                self.enter(1);
                self.take();
            }
        }
        self.start();
        done.append(&mut self.ready);
    }

    fn in_flight(&self) -> usize {
        self.with_kernel() + self.backlog.len() + self.ready.len()
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            self.poll(true, &mut done);
            done.clear();
        }
    }
}
