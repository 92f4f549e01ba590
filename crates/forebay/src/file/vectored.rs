//! Requests of several pieces.

use std::io::{IoSlice, IoSliceMut};

use super::File;
use super::by_kernel::{gathered, not_open_for};
use crate::error::Result;

impl File {
    /// Writes several buffers one after the other at `offset`, as `pwritev` does; through a description that appends, all of
    /// them at the end, without anything between.
    ///
    /// # Errors
    /// As for [`File::write_at`].
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        if !self.writable {
            return Err(not_open_for("write"));
        }
        if self.appends {
            // One append: somebody else's must not come between the buffers.
            return self.write_at(&gathered(buffers), offset);
        }
        let mut done = 0;
        for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
            match self.write_at(buffer, offset + done as u64) {
                Ok(n) if n == buffer.len() => done += n,
                Ok(n) => return Ok(done + n),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads into several buffers one after the other from `offset`, as `preadv` does.
    ///
    /// # Errors
    /// As for [`File::read_at`].
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        if !self.readable {
            return Err(not_open_for("read"));
        }
        let mut done = 0;
        for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
            match self.read_at(buffer, offset + done as u64) {
                Ok(n) if n == buffer.len() => done += n,
                Ok(n) => return Ok(done + n),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
