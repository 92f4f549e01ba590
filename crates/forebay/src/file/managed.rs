//! An open file that the engine serves: what one description has beyond what the inode has.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::by_kernel::{advise_kernel, append_all_by_kernel, append_by_kernel};
use super::settle;
#[cfg(feature = "sim")]
use super::{closing, hasten};
use crate::error::Result;
use crate::file::append;
use crate::file::core::{Core, Halt};
use crate::file::quick::{self, Recent};
use crate::file::read::advise::{Advise, advise};
use crate::file::write::Intent;
#[cfg(feature = "sim")]
use crate::member::table;
use crate::memory::threads::Me;
use crate::route::Route;

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
    /// The route of its path, looked up once.
    pub(super) route: Arc<dyn Route>,
    pub(super) recent: Recent,
}

impl Managed {
    /// Before a byte is acknowledged, the keeper has what it needs to write it.
    #[inline]
    pub(super) fn hand_over(&self, me: Me<'_>) {
        settle::hand_over(&self.core, me, &self.handed);
    }

    /// Heeds what the program says about its reads.
    pub(super) fn advise(&self, offset: u64, len: u64, advice: Advise) -> Result<()> {
        let core = &self.core;
        let me = core.shared.me()?;
        if core.entry().kernel_reason.load(Relaxed) != 0 {
            return advise_kernel(&self.file, offset, len, advice);
        }
        advise(core, me, &self.recent, &self.handed, (offset, len), advice);
        Ok(())
    }

    /// What a write of this description knows beyond its bytes.
    pub(super) fn intent(&self, me: Me<'_>, sequential: bool) -> Intent<'_> {
        Intent::new(self.route.as_ref(), &self.recent, me, sequential)
    }

    /// Writes all bytes at the end; where.
    pub(super) fn append_all(&self, bytes: &[u8]) -> Result<u64> {
        let core = &self.core;
        let (me, sequential) = match self.append_at_once(bytes)? {
            Ok(at) => return Ok(at),
            Err(later) => later,
        };
        let intent = self.begin_append(me, sequential);
        // SAFETY: a slice is valid for its length.
        let appended =
            match unsafe { append::append_all(core, me, bytes.as_ptr(), bytes.len(), intent) } {
                Err(Halt::Kernel) => return append_all_by_kernel(&self.file, bytes),
                result => result.map_err(Core::ended)?,
            };
        match appended.stopped {
            None => {}
            Some(Halt::Kernel) => {
                append_all_by_kernel(&self.file, &bytes[appended.written..])?;
            }
            Some(halt) => return Err(Core::ended(halt)),
        }
        Ok(appended.offset)
    }

    /// Appends where that can be done at once: where. `Err`: nothing was done.
    #[inline]
    fn append_at_once(&self, bytes: &[u8]) -> Result<std::result::Result<u64, (Me<'_>, bool)>> {
        let core = &self.core;
        let me = core.shared.me()?;
        let (stream, source, len) = (self.recent.stream(me), bytes.as_ptr(), bytes.len());
        let is_short = (len as u64) < self.route.quick_scrap_below();
        let may = is_short && core.shared.is_handed(&self.handed);
        // SAFETY: a slice is valid for its length.
        let at = unsafe { quick::append(core, me, stream, source, len, may) };
        Ok(at.map_err(|sequential| (me, sequential)))
    }

    fn begin_append(&self, me: Me<'_>, sequential: bool) -> Intent<'_> {
        self.hand_over(me);
        self.intent(me, sequential)
    }

    /// Returns where, and the bytes written, as `write` on a description that appends does.
    pub(super) fn append(&self, bytes: &[u8]) -> Result<(u64, usize)> {
        let core = &self.core;
        let (me, sequential) = match self.append_at_once(bytes)? {
            Ok(at) => return Ok((at, bytes.len())),
            Err(later) => later,
        };
        let intent = self.begin_append(me, sequential);
        // SAFETY: a slice is valid for its length.
        match unsafe { append::append(core, me, bytes.as_ptr(), bytes.len(), intent) } {
            Err(Halt::Kernel) => append_by_kernel(&self.file, bytes),
            result => result.map_err(Core::ended),
        }
    }
}

#[cfg(feature = "sim")]
impl super::File {
    /// Closes as the preload library does: what is owed is left to the keeper where that goes. `own` closes the program's own descriptor.
    ///
    /// # Errors
    /// As for [`super::File::close`], where it had to be waited for.
    #[doc(hidden)]
    pub fn close_behind(mut self, own: impl FnOnce()) -> Result<()> {
        let super::Kind::Managed(managed) = &self.kind else {
            return self.close();
        };
        self.closed = true;
        let Managed {
            core, handed, seen, ..
        } = managed.as_ref();
        let me = core.shared.me()?;
        if let Some(prepared) = closing::prepare(core, me, handed, seen) {
            own();
            return closing::leave(core, me, handed, seen, &prepared);
        }
        let _ = hasten::begin(core, handed);
        let closed = settle::close(core, me, settle::Durability::Kernel, seen);
        core.shared.closed(core.id, &core.device);
        core.shared.released(core.id, handed);
        table::forget_closed(&core.shared, me, core.id);
        own();
        closed
    }
}
