//! The turns of a place: the kernel is given it, a request comes, the answer goes back with it.
//!
//! Each place has a ring (io_uring) and a thread of its own. The kernel copies requests and answers in calls of that thread, and so on the processor that the
//! thread is kept on.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use super::super::Answers;
use super::super::device::Device;
use super::place::Place;
use crate::wire::RingCommand;

/// `FUSE_IO_URING_CMD_REGISTER`: a place is there. It has memory, which the entry names by two parts.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: an answer is in its place, which waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;
/// How long nothing must come before memory for large requests is given back.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(10);

/// A place with its ring.
pub(super) struct Turns {
    // Its calls are those in which the kernel copies into the place's memory and from there.
    ring: IoUring<Entry128>,
    place: Arc<Place>,
    /// The processor whose requests come here.
    processor: u16,
    /// A request has used memory that others do without.
    is_large: bool,
    /// What has come back already.
    come: Option<i32>,
}

impl Turns {
    /// To be called by the thread that takes the turns.
    ///
    /// # Errors
    /// The system's: io_uring is forbidden here, or there is no memory for it.
    pub(super) fn new(processor: u16, payload_bytes: usize) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // Nobody else submits, and nobody else is interrupted to take what has come.
        builder.setup_single_issuer().setup_defer_taskrun();
        Ok(Turns {
            ring: builder.build(1)?,
            place: Place::new(payload_bytes)?,
            processor,
            is_large: false,
            come: None,
        })
    }

    /// Gives the kernel the place.
    ///
    /// # Errors
    /// Why it does not take it.
    pub(super) fn register(&mut self, device: &Device) -> io::Result<()> {
        let parts = self.place.parts();
        self.push(with_parts(self.command(device, REGISTER, 0), &parts));
        while let Err(error) = self.ring.submit() {
            is_passing(&error).then_some(()).ok_or(error)?;
        }
        self.come = self.next();
        match self.come {
            None | Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// Answers requests until the mount ends.
    ///
    /// # Errors
    /// Why the kernel brings no more of them, though the mount has not ended.
    pub(super) fn take(mut self, device: &Device, answers: &impl Answers) -> io::Result<()> {
        loop {
            match self.await_request()? {
                0 => {}
                error if has_ended(-error) || device.is_over() => return Ok(()),
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
            // SAFETY: what was with the kernel has come back, and this is the place's thread.
            let answered = unsafe { self.place.answer(answers) };
            let (number, bytes) = answered.ok_or(io::ErrorKind::InvalidData)?;
            self.is_large |= Place::is_large(bytes);
            self.push(self.command(device, COMMIT_AND_FETCH, number));
        }
    }

    fn command(&self, device: &Device, operation: u32, number: u64) -> Entry128 {
        let own = RingCommand {
            flags: 0,
            commit_id: number,
            qid: self.processor,
            padding: [0; 3],
        };
        let mut command = [0; 80];
        command[..RingCommand::SIZE].copy_from_slice(&own.bytes());
        let file = Fd(device.as_fd().as_raw_fd());
        opcode::UringCmd80::new(file, operation)
            .cmd(command)
            .build()
    }

    /// Writes an entry. The kernel takes it when it is entered next.
    fn push(&mut self, entry: Entry128) {
        // SAFETY: the device is open while the thread takes turns. The kernel reads the parts of a place while [`Turns::register`] has it take the entry. The memory
        // that they name is mapped for as long as this thread makes calls on the ring, and nobody else has the kernel copy.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("one entry at a time is under way");
    }

    /// What has come back of the entry that was written last: 0 if a request has come, or an error.
    fn next(&mut self) -> Option<i32> {
        { self.ring.completion().next() }.map(|entry| entry.result())
    }

    /// Waits for that.
    fn await_request(&mut self) -> io::Result<i32> {
        let patience = Timespec::from(GIVE_BACK_AFTER);
        let patience = SubmitArgs::new().timespec(&patience);
        loop {
            if let Some(come) = self.come.take().or_else(|| self.next()) {
                return Ok(come);
            }
            let entered = match self.is_large {
                false => self.ring.submit_and_wait(1),
                true => self.ring.submitter().submit_with_args(1, &patience),
            };
            match entered {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                    self.is_large = false;
                    self.come = self.next();
                    if self.come.is_none() {
                        // SAFETY: nothing has come, and this is the place's thread.
                        unsafe { self.place.give_back() };
                    }
                }
                Err(error) => is_passing(&error).then_some(()).ok_or(error)?,
            }
        }
    }
}

/// Whether the kernel is to be asked once more: a signal has come, or it is short of memory.
fn is_passing(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EINTR) => true,
        Some(libc::EAGAIN | libc::EBUSY) => {
            std::thread::yield_now();
            true
        }
        _ => false,
    }
}

/// Whether an error says that the mount has ended.
fn has_ended(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECONNABORTED)
}

/// Names the parts of a place's memory in an entry: `addr` and `len` of `struct io_uring_sqe`, which the library has no way to set for commands.
fn with_parts(mut entry: Entry128, parts: &[libc::iovec; 2]) -> Entry128 {
    const ADDRESS: usize = 16;
    const LENGTH: usize = 24;
    const { assert!(size_of::<Entry128>() == 128) };
    let bytes = (&raw mut entry).cast::<u8>();
    // SAFETY: the entry is this function's, is numbers only, and lies in memory as the kernel's, which the library copies it to.
    unsafe {
        let address = bytes.add(ADDRESS).cast::<u64>();
        address.write_unaligned(parts.as_ptr() as u64);
        let length = bytes.add(LENGTH).cast::<u32>();
        length.write_unaligned(parts.len() as u32);
    }
    entry
}
