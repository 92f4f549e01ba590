//! Requests and answers by `/dev/fuse`: one `read` brings a request, one `writev` takes an answer.

use std::cell::RefCell;
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::follow::{Follow, Follower};
use super::{Answers, Request, Unanswered};
use crate::wire::{self, InHeader, OutHeader};

pub(crate) const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::c_ulong = 0x8004_e500;
const PAGE: usize = 4096;
/// A huge page, where the processor has them.
const HUGE: usize = 2 << 20;
/// Requests from this length on are worth huge pages.
const LONG: usize = 256 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Memory of the thread's own.
pub(crate) fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        work(&mut buffer[..len])
    })
}

/// An open `/dev/fuse` of a mount.
pub(crate) struct Device(OwnedFd);

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Device(fd)
    }

    /// Another descriptor for the same mount, with a queue of its own for what it reads.
    ///
    /// # Errors
    /// The system's: this user may not open the device, for one.
    pub(crate) fn cloned(&self) -> io::Result<Self> {
        let another = fs::OpenOptions::new().read(true).write(true).open(PATH)?;
        let of = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads a number that lives on this stack until the call returns, and writes nothing.
        match unsafe { libc::ioctl(another.as_raw_fd(), CLONE, &raw const of) } {
            0 => Ok(Device(another.into())),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for the next request, and says how long it is; `None` when the mount has ended.
    pub(crate) fn read(&self, memory: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *memory) {
                Ok(len) => return Ok(Some(len)),
                // A request that was withdrawn while it was read, or a signal.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the mount has ended.
    pub(crate) fn is_over(&self) -> bool {
        let mut asked = [PollFd::new(&self.0, PollFlags::empty())];
        let at_once = Timespec::default();
        poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().contains(PollFlags::ERR)
    }

    /// Sends an answer. One that the kernel does not take has nobody who waits for it any more.
    pub(crate) fn send(&self, unique: u64, errno: i32, parts: &[IoSlice<'_>]) {
        let _ = self.write(unique, -errno, parts);
    }

    /// Tells the kernel something that it has not asked for (`FUSE_NOTIFY_...`).
    ///
    /// # Errors
    /// The kernel's: it does not know what this is about, for one.
    pub(crate) fn tell(&self, what: u32, bytes: &[u8]) -> io::Result<()> {
        // No request.
        self.write(0, what as i32, &[IoSlice::new(bytes)])
    }

    fn write(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let header = OutHeader {
            len: (OutHeader::SIZE + bytes) as u32,
            error,
            unique,
        };
        let header = header.bytes();
        let mut all = Vec::with_capacity(1 + parts.len());
        all.push(IoSlice::new(&header));
        all.extend_from_slice(parts);
        rustix::io::writev(&self.0, &all)?;
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Memory for requests with up to so many bytes to write. These bytes begin with a page, so that they can go to a device from there.
pub(crate) struct Memory {
    all: Vec<u8>,
    /// Where its huge pages begin, and how many bytes they have. The first page of these holds what comes before the bytes to write.
    huge: usize,
    room: usize,
    is_huge: bool,
}

impl Memory {
    const HEADS: usize = InHeader::SIZE + wire::WriteIn::SIZE;

    pub(crate) fn new(max_write: usize) -> Self {
        let room = (PAGE + max_write).next_multiple_of(HUGE);
        // Nothing is touched that no request needs.
        let all = vec![0; HUGE + room];
        Memory {
            huge: all.as_ptr().align_offset(HUGE) % HUGE,
            all,
            room,
            is_huge: false,
        }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.all[self.huge..][..self.room][PAGE - Self::HEADS..]
    }

    /// A request of so many bytes has come. With the first long one huge pages are asked for: the kernel looks up each page that it copies to.
    pub(crate) fn has_taken(&mut self, len: usize) {
        if self.is_huge || len < LONG {
            return;
        }
        self.is_huge = true;
        let huge = &mut self.all[self.huge..][..self.room];
        // SAFETY: memory of this thread's alone, which lives during the call; its bytes stay as they are. Where there are no huge pages, so does the rest.
        unsafe { libc::madvise(huge.as_mut_ptr().cast(), huge.len(), libc::MADV_COLLAPSE) };
    }
}

/// Takes a request apart; `None` if it has not even a header.
pub(crate) fn parsed(bytes: &[u8]) -> Option<Request<'_>> {
    let header = InHeader::parse(bytes)?;
    let rest = &bytes[InHeader::SIZE..];
    let own = wire::own_bytes(header.opcode).min(rest.len());
    let (operation, payload) = rest.split_at(own);
    Some(Request {
        header,
        operation,
        payload,
    })
}

/// Answers requests until the mount ends.
///
/// # Errors
/// Why the kernel brings no more of them, though the mount has not ended.
pub(crate) fn serve(
    device: &Arc<Device>,
    max_write: usize,
    answers: &impl Answers,
    follow: Option<&Follow>,
) -> io::Result<()> {
    let mut memory = Memory::new(max_write);
    let mut follower = Follower::new(follow);
    while let Some(len) = device.read(memory.as_mut())? {
        let Some(request) = parsed(&memory.as_mut()[..len]) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a request without a header",
            ));
        };
        let to = Unanswered::by_device(request.header.unique, Arc::clone(device));
        if request.header.opcode == wire::opcode::DESTROY {
            to.send(&[]);
            break;
        }
        follower.hears(&request);
        answers.answer(request, to);
        memory.has_taken(len);
        follower.moves();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_to_write_begin_with_a_page() {
        let mut memory = Memory::new(1 << 20);
        let memory = memory.as_mut();
        let heads = InHeader::SIZE + wire::WriteIn::SIZE;
        assert_eq!(memory[heads..].as_ptr().addr() % PAGE, 0);
        // The kernel reads to no less.
        assert!(memory.len() >= heads + (1 << 20));
        assert!(Memory::new(0).as_mut().len() >= heads);
    }
}
