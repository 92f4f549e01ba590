//! Giving a mapping up while others may still look at it.

use std::io;
use std::ops::Range;

use super::{Mapping, unmap};
use crate::limits::HUGE_BYTES;

impl Mapping {
    /// Gives the mapping up, for good, for a process whose threads may still look at it: instead there is memory of its own, which has the bytes
    /// of `kept` and else zeros, and from `tables` on, about, nothing that may be touched. What must be done while the bytes are still
    /// those of the others, and cannot be done twice, is done by `before`, when little can fail any more.
    ///
    /// # Errors
    /// What `mmap` and `mremap` return: the mapping is as it was, but for what is behind `tables`.
    pub fn give_up(
        &self,
        kept: Range<usize>,
        tables: usize,
        before: impl FnOnce(),
    ) -> io::Result<()> {
        let tables = tables.next_multiple_of(HUGE_BYTES).min(self.len);
        let own = |at: *mut u8, len, access, fixed| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
            // SAFETY: new addresses, or, where they are fixed, those of this mapping, behind what anybody may still look at.
            match unsafe { libc::mmap(at.cast(), len, access, flags, -1, 0) } {
                libc::MAP_FAILED => Err(io::Error::last_os_error()),
                made => Ok(made.cast::<u8>()),
            }
        };
        if tables < self.len {
            let rest = self.base().wrapping_add(tables);
            own(rest, self.len - tables, libc::PROT_NONE, libc::MAP_FIXED)?;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let instead = own(std::ptr::null_mut(), tables, access, 0)?;
        assert!(kept.start <= kept.end && kept.end <= tables, "{kept:?}");
        // SAFETY: within both, the tables have memory, and nobody knows of the new ones; others may change words meanwhile, each of which
        // is copied as it is at some moment.
        unsafe {
            let from = self.base().add(kept.start);
            instead
                .add(kept.start)
                .copy_from_nonoverlapping(from, kept.len());
        }
        before();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: memory made above takes the place of this mapping's, at one instant for those that look.
        let moved = unsafe {
            libc::mremap(
                instead.cast(),
                tables,
                tables,
                flags,
                self.base().cast::<u8>(),
            )
        };
        if moved == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            unmap(instead, tables);
            return Err(error);
        }
        Ok(())
    }
}
