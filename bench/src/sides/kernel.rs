//! The kernel's page cache: plain calls, and `RWF_DONTCACHE`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Side, not_open};

/// From the kernel's `uapi/linux/fs.h`, since 6.14: write back at once, then drop the pages.
const RWF_DONTCACHE: libc::c_int = 0x80;

fn open_buffered(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// `pwrite` and `pread`.
#[derive(Default)]
pub struct Kernel {
    file: Option<File>,
}

impl Kernel {
    #[inline]
    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(not_open)
    }
}

impl Side for Kernel {
    fn open(&mut self, path: &Path) -> io::Result<()> {
        self.file = Some(open_buffered(path)?);
        Ok(())
    }

    #[inline]
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file()?.write_all_at(bytes, offset)
    }

    #[inline]
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
}

/// `pwritev2` with `RWF_DONTCACHE`; all else as [`Kernel`].
#[derive(Default)]
pub struct DontCache {
    plain: Kernel,
}

impl Side for DontCache {
    fn open(&mut self, path: &Path) -> io::Result<()> {
        self.plain.open(path)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = self.plain.file()?;
        let piece = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: one piece, which the call only reads, borrowed for its duration; open descriptor.
        let written = unsafe {
            libc::pwritev2(
                file.as_raw_fd(),
                &piece,
                1,
                offset as libc::off_t,
                RWF_DONTCACHE,
            )
        };
        match usize::try_from(written) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => self.write_at(&bytes[count..], offset + count as u64),
        }
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.plain.read_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.plain.sync()
    }

    fn close(&mut self) -> io::Result<()> {
        self.plain.close()
    }
}
