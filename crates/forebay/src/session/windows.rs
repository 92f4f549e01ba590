//! Where windows come from.

use crate::error::Result;
use crate::file::Window;
use crate::session::Session;

impl Session {
    /// A window of `bytes` zeros. Its memory counts as the session's, together with what views hold: at most half of the memory. What does not
    /// go into that, or cannot be had without waiting for a device, is memory of the process's own, and commits of it are copies
    /// ([`Window::attached_bytes`]). So it is where the session's memory cannot be mapped by blocks (hugetlbfs).
    ///
    /// A process that was forked has none of its parent's windows.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::Error::InvalidInput) for no bytes, or more than a file can have; [`Session`](crate::Error::Session) when the calling thread finds no slot; `ENOMEM`
    /// when there are no such addresses.
    pub fn window(&self, bytes: usize) -> Result<Window> {
        Window::of(self.shared(), bytes)
    }
}
