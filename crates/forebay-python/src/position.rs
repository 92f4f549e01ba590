//! Where a file's next read or write by position goes.
//!
//! A call that looks at the position and moves it is one step, as the kernel has it for threads that share a descriptor: of two threads that read, each gets
//! bytes of its own. The step lies in one native call, without the GIL: no handler of Python's for a signal runs in the middle of it, and nobody who waits for
//! it holds up the others.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A position, of a file that this process has opened.
#[derive(Default)]
pub struct Position(Mutex<u64>);

/// From where an offset counts, as `io.SEEK_SET` and its siblings number it.
#[derive(Clone, Copy)]
pub enum From {
    Begin,
    Here,
    End,
}

impl From {
    pub fn of(whence: i32) -> PyResult<Self> {
        match whence {
            0 => Ok(From::Begin),
            1 => Ok(From::Here),
            2 => Ok(From::End),
            _ => Err(PyValueError::new_err(format!("invalid whence: {whence}"))),
        }
    }
}

impl Position {
    fn step<R>(&self, work: impl FnOnce(&mut u64) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads or writes at the position, and goes on by as many bytes as that says.
    pub fn advance<E>(&self, work: impl FnOnce(u64) -> Result<usize, E>) -> Result<usize, E> {
        self.step(|at| {
            let count = work(*at)?;
            *at = at.saturating_add(count as u64);
            Ok(count)
        })
    }

    /// Writes at the file's end, wherever that is, and goes to behind that. `append` says where and how many bytes.
    pub fn follow<E>(&self, append: impl FnOnce() -> Result<(u64, usize), E>) -> Result<usize, E> {
        self.step(|at| {
            let (from, count) = append()?;
            *at = from.saturating_add(count as u64);
            Ok(count)
        })
    }

    /// Moves, and says where to. `None`: before the file's begin, or beyond the largest offset; nothing has moved.
    pub fn seek<E>(
        &self,
        offset: i64,
        from: From,
        size: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<u64>, E> {
        self.step(|at| {
            let begin = match from {
                From::Begin => 0,
                From::Here => *at,
                From::End => size()?,
            };
            let to = begin.checked_add_signed(offset);
            let to = to.filter(|to| i64::try_from(*to).is_ok());
            if let Some(to) = to {
                *at = to;
            }
            Ok(to)
        })
    }
}
