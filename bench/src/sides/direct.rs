//! `O_DIRECT`, one request at a time or several by io_uring: what the device does without a cache.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use io_uring::{IoUring, opcode, types};

use super::{Side, Writes, not_open};

/// Direct writes and reads. Offsets, lengths and memory must be page-aligned.
pub struct Direct {
    file: Option<File>,
    ring: Option<IoUring>,
    depth: u32,
}

impl Direct {
    /// A side that keeps `depth` writes in flight.
    pub fn new(depth: u32) -> io::Result<Self> {
        let ring = if depth > 1 {
            Some(IoUring::new(depth)?)
        } else {
            None
        };
        Ok(Direct {
            file: None,
            ring,
            depth,
        })
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(not_open)
    }
}

impl Side for Direct {
    fn open(&mut self, path: &Path) -> io::Result<()> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        self.file = Some(options.custom_flags(libc::O_DIRECT).open(path)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file()?.write_all_at(bytes, offset)
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file()?.read_exact_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_all()
    }

    fn close(&mut self) -> io::Result<()> {
        self.file = None;
        Ok(())
    }

    fn write_all(&mut self, writes: &Writes<'_>) -> io::Result<()> {
        let file = self.file.as_ref().ok_or_else(not_open)?;
        match &mut self.ring {
            Some(ring) => write_queued(ring, file, self.depth, writes),
            None => writes
                .iter()
                .try_for_each(|(bytes, at)| file.write_all_at(bytes, at)),
        }
    }
}

/// Writes everything with up to `depth` requests in flight. Returns with none in flight, even after
/// an error: the kernel must be done with the source before the borrow ends.
fn write_queued(
    ring: &mut IoUring,
    file: &File,
    depth: u32,
    writes: &Writes<'_>,
) -> io::Result<()> {
    let target = types::Fd(file.as_raw_fd());
    let (mut in_flight, mut outcome) = (0, Ok(()));
    for (bytes, offset) in writes.iter() {
        if in_flight == depth {
            reap(ring, &mut in_flight, &mut outcome);
        }
        if outcome.is_err() {
            break;
        }
        let len = bytes.len() as u32;
        let entry = opcode::Write::new(target, bytes.as_ptr(), len)
            .offset(offset)
            .build();
        // SAFETY: `bytes` is borrowed by `writes` for longer than this function, which reaps every
        // request before it returns; `file` stays open as long.
        let pushed = unsafe { ring.submission().push(&entry.user_data(u64::from(len))) };
        // The ring has room for `depth` entries and fewer are in flight.
        pushed.expect("submission queue has room");
        in_flight += 1;
        if let Err(error) = ring.submit() {
            outcome = Err(error);
        }
    }
    while in_flight > 0 {
        reap(ring, &mut in_flight, &mut outcome);
    }
    outcome
}

/// Waits for at least one completion and takes all there are.
fn reap(ring: &mut IoUring, in_flight: &mut u32, outcome: &mut io::Result<()>) {
    // An interrupted wait is no error: the loop around comes back.
    if let Err(error) = ring.submit_and_wait(1)
        && error.kind() != io::ErrorKind::Interrupted
    {
        // Requests may still be running on memory we are about to give back.
        eprintln!("io_uring cannot be waited for: {error}");
        std::process::abort();
    }
    for done in ring.completion() {
        *in_flight -= 1;
        if done.result() < 0 {
            *outcome = Err(io::Error::from_raw_os_error(-done.result()));
        } else if done.result() as u64 != done.user_data() {
            *outcome = Err(io::ErrorKind::WriteZero.into());
        }
    }
}
