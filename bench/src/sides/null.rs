//! Sides that are not competitors but rulers: what the loop costs, what the copy costs.

use std::hint::black_box;
use std::io;
use std::path::Path;

use super::Side;
use crate::memory::Mapping;

/// Takes the request and does nothing: the loop itself.
pub struct Null;

impl Side for Null {
    fn open(&mut self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    #[inline]
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        black_box((bytes, offset));
        Ok(())
    }

    #[inline]
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        black_box((bytes, offset));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies the bytes to and from memory as large as the file: the least that any cache must do.
pub struct Copy {
    memory: Mapping,
}

impl Copy {
    /// A "file" of `len` bytes, all touched.
    pub fn new(len: u64) -> io::Result<Self> {
        let mut memory = Mapping::new(len as usize)?;
        memory.touch();
        Ok(Copy { memory })
    }
}

impl Side for Copy {
    fn open(&mut self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    #[inline]
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let start = offset as usize;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let start = offset as usize;
        bytes.copy_from_slice(&self.memory[start..start + bytes.len()]);
        black_box(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asks the kernel a question with no work in it: what crossing into it costs.
pub struct Syscall;

impl Side for Syscall {
    fn open(&mut self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    #[inline]
    fn write_at(&mut self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        // SAFETY: takes no argument and cannot fail.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        Ok(())
    }

    fn read_at(&mut self, _bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.write_at(&[], offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
