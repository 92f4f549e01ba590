//! Views that may be written: their bytes begin as the file's at a moment, and what is stored to is a copy of the process's own.
//!
//! The frames are pinned as for any view, and mapped privately (`MAP_PRIVATE`): the system copies a page when it is first stored to, so that no
//! store reaches a frame. The view's own addresses are all that shows the copies. They are never addresses of the arena itself, which would
//! show, and take, everything: where the frames cannot be mapped, the view is a copy.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use super::View;
use crate::error::Result;
use crate::file::File;
use crate::limits::PAGE_BYTES;
use crate::memory::mapping::Mapping;
use crate::sync::planted;
use crate::sys::addresses::Access;

/// The bytes of a range of a file as they were when the view was taken, to be written: what is stored stays in the view, and reaches neither the
/// file nor anybody else.
///
/// ```
/// # fn main() -> forebay::error::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let session = forebay::Session::open(forebay::Config::tiny())?;
/// let file = session.open_file(&path, forebay::OpenOptions::new().read(true).write(true).create(true))?;
/// file.write_at(b"as it was", 0)?;
/// let mut view = file.view_private(3..100)?;
/// view[..2].copy_from_slice(b"IT");
/// assert_eq!(&view[..], b"IT was");
/// assert_eq!(&file.view(0..100)?[..], b"as it was");
/// # drop(view);
/// # file.close()
/// # }
/// ```
pub struct PrivateView(View);

impl File {
    /// As [`File::view`], of bytes that may be written. The system copies each page (4 KiB) when it is first stored to: that memory is the
    /// process's own, beside the session's, which the view holds as any other does.
    ///
    /// A process that was forked has the view as it was at the fork, for as long as its parent has it, and may store to it: what each of them
    /// stores, the other does not see.
    ///
    /// # Errors
    /// As for [`File::view`].
    pub fn view_private(&self, range: Range<u64>) -> Result<PrivateView> {
        let access = match planted!(OpenView) {
            true => Access::Shared,
            false => Access::Inherited,
        };
        self.view_with(range, access).map(PrivateView)
    }
}

/// Whether an arena's frames can be mapped privately. Of huge pages that must be found beforehand (hugetlbfs) there may be none when one is
/// stored to, which ends the process.
pub(super) fn can_be_shown(mapping: &Mapping) -> bool {
    mapping.file().is_some() && mapping.page_bytes() == PAGE_BYTES
}

impl PrivateView {
    /// Whether it has been copied as a whole: see [`View::is_copy`].
    pub fn is_copy(&self) -> bool {
        self.0.is_copy()
    }
}

impl Deref for PrivateView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for PrivateView {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: as for `View::deref`; the bytes are a copy that this view alone has, or are mapped for writing, privately, at addresses that
        // are this view's alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.bytes.cast_mut(), self.0.len) }
    }
}

impl AsRef<[u8]> for PrivateView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PrivateView {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for PrivateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PrivateView");
        out.field("len", &self.len())
            .field("is_copy", &self.is_copy());
        out.finish_non_exhaustive()
    }
}
