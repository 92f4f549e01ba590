//! An open file that the engine serves: what one description has beyond what the inode has.

use std::fs;
use std::sync::atomic::AtomicU32;

use crate::file::core::Core;
use crate::file::quick::Recent;

pub(super) struct Managed {
    pub(super) core: Core,
    /// The descriptor that the program asked for; kernel mode and errors of its own use it, flushes never do.
    pub(super) file: fs::File,
    /// The keeper (its epoch) that has the file's descriptors from this description.
    pub(super) handed: AtomicU32,
    /// Error sequence that this description has reported.
    pub(super) seen: AtomicU32,
    /// Writes shorter than this may try the short way. 0: none may.
    pub(super) quick_write_below: u64,
    pub(super) recent: Recent,
}

impl Managed {
    /// Before a byte is acknowledged, the keeper has what it needs to write it.
    #[inline]
    pub(super) fn hand_over(&self) {
        let Core { shared, id, device } = &self.core;
        shared.hand_over(*id, device.as_ref(), &self.handed);
    }
}
