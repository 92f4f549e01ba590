//! Who has been told of which losses.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Error, Files, Result};
use crate::client::{Failure, Operation};
use crate::ids::File;

/// What an opening of a file has been told of losses.
#[derive(Debug)]
pub struct Heard(AtomicU64);

impl Files {
    /// For a new opening.
    pub fn heard(&self) -> Heard {
        Heard(AtomicU64::new(self.pool.losses()))
    }

    /// As [`Files::sync`], for an opening: each loss is told once to each of them, and whoever asks first is told in any case.
    ///
    /// # Errors
    /// As there.
    pub fn sync_for(&self, file: File, heard: &Heard) -> Result<()> {
        let asks = Some(heard.0.load(Ordering::Relaxed));
        let synced = self.done(Operation::Sync { file, heard: asks });
        if synced == Err(Error::Pool(Failure::Lost)) {
            // One that was found meanwhile concerns what was written before this returns, as this one does.
            heard.0.fetch_max(self.pool.losses(), Ordering::Relaxed);
        }
        synced
    }

    /// As [`Files::sync`], where nobody has asked for it: whoever does later is told of the same losses.
    ///
    /// # Errors
    /// As there.
    pub fn sync_unasked(&self, file: File) -> Result<()> {
        self.done(Operation::Sync { file, heard: None })
    }
}
