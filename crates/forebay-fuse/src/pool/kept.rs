//! What the kernel keeps of a pool's files (`--cache`), and how it comes to forget it.
//!
//! *Attributes*: it may believe them for half of what is left of this host's term, so it asks in time where this process stands still or is cut off. Before
//! a grant of the file goes the kernel is told to ask again. What was answered earlier and it takes later does not count then, since it knows
//! which questions are older. That holds for files that it has: of others it could not be told, so it may believe nothing of them until it asks by their number.
//!
//! That call waits for nothing: the pool's lock is held during it, and requests may wait for that. To take pages from the kernel by such a call would mean to wait for
//! requests that are under way, which may wait for the grant that is to go. So pages go when a file is opened.
//!
//! *Names*: the same, where the kernel takes back all names of a mount at once, which waits for nothing either (Linux 6.16).
//!
//! *Pages*: the kernel drops all pages of a file when it opens it, unless the answer says that they may stay. They may, if nothing of the file has been given back or
//! written here since they were dropped last. The kernel has done that by the time at which it reads by the opening that was answered so.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_pool::ids::File;

use crate::transport::device::Device;
use crate::wire::{InvalInodeOut, notify};

/// A moment among those that count here.
type Moment = u64;

/// What is known of a file that the kernel has.
struct Known {
    /// Since then nothing of it has been given back or written here.
    same_since: Moment,
    /// The kernel has no pages from before.
    emptied: Option<Moment>,
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Looked {
    at: Moment,
    /// The kernel's pages are as the file is.
    pub(super) keeps: bool,
}

#[derive(Default)]
struct Inner {
    device: Option<Device>,
    /// Names can be taken back from the kernel.
    keeps_names: bool,
    last: Moment,
    files: HashMap<File, Known>,
}

impl Inner {
    fn next(&mut self) -> Moment {
        self.last += 1;
        self.last
    }

    fn known(&mut self, file: File) -> &mut Known {
        let now = self.next();
        self.files.entry(file).or_insert(Known {
            same_since: now,
            emptied: None,
        })
    }
}

/// What the kernel keeps.
#[derive(Default)]
pub(super) struct Kept(Mutex<Inner>);

impl Kept {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told by this from now on.
    pub(super) fn tell_by(&self, device: OwnedFd) {
        let device = Device::new(device);
        let mut inner = self.inner();
        inner.keeps_names = device.tell(notify::INC_EPOCH, &[]).is_ok();
        inner.device = Some(device);
    }

    /// Whether it may believe names: it can be told that they are true no longer.
    pub(super) fn keeps_names(&self) -> bool {
        self.inner().keeps_names
    }

    /// The kernel asks for something by the file's number: so it has the file.
    pub(super) fn met(&self, file: File) {
        self.inner().known(file);
    }

    /// Whether it has, as far as is known. Where it has forgotten a file and looks it up at once, that may not be known for a moment.
    pub(super) fn has_met(&self, file: File) -> bool {
        self.inner().files.contains_key(&file)
    }

    /// The kernel has no such file any more, or has it anew.
    pub(super) fn forgotten(&self, file: File) {
        self.inner().files.remove(&file);
    }

    /// It is being opened.
    pub(super) fn looked(&self, file: File) -> Looked {
        let mut inner = self.inner();
        let known = inner.known(file);
        Looked {
            at: known.same_since,
            keeps: known.emptied == Some(known.same_since),
        }
    }

    /// The kernel reads by an opening: it has dropped by then what it had when it was opened, or it was to keep that.
    pub(super) fn reads(&self, file: File, by: Looked) {
        if let Some(known) = self.inner().files.get_mut(&file) {
            known.emptied = known.emptied.max(Some(by.at));
        }
    }

    /// It was written here.
    pub(super) fn changed(&self, file: File) {
        let mut inner = self.inner();
        let now = inner.next();
        if let Some(known) = inner.files.get_mut(&file) {
            known.same_since = now;
        }
    }

    /// Others may change it when this returns.
    pub(super) fn goes(&self, file: File) {
        self.changed(file);
        let inner = self.inner();
        let Some(device) = &inner.device else {
            return;
        };
        if file == File::NAMES {
            if inner.keeps_names {
                // It was taken once.
                let _ = device.tell(notify::INC_EPOCH, &[]);
            }
            return;
        }
        let what = InvalInodeOut {
            ino: file.0,
            // No pages: that would be waited for.
            off: -1,
            len: 0,
        };
        // An error: the kernel does not have it.
        let _ = device.tell(notify::INVAL_INODE, &what.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File = File(7);

    #[test]
    fn pages_stay_once_all_of_them_are_from_after_the_last_change() {
        let kept = Kept::default();
        let first = kept.looked(FILE);
        assert!(!first.keeps, "whose pages they are is not known");
        // Whether the kernel has dropped them is not known before it reads.
        assert!(!kept.looked(FILE).keeps);
        kept.reads(FILE, first);
        let second = kept.looked(FILE);
        assert!(second.keeps);
        kept.changed(FILE);
        assert!(!kept.looked(FILE).keeps, "they are from before the change");
        // By openings from before it as well.
        kept.reads(FILE, first);
        kept.reads(FILE, second);
        assert!(!kept.looked(FILE).keeps);
        let third = kept.looked(FILE);
        kept.goes(FILE);
        kept.reads(FILE, third);
        assert!(!kept.looked(FILE).keeps, "others may have changed it");
        kept.reads(FILE, kept.looked(FILE));
        // What comes late of the kernel's earlier reads changes nothing.
        kept.reads(FILE, first);
        assert!(kept.looked(FILE).keeps);
    }

    #[test]
    fn of_a_file_that_the_kernel_has_forgotten_nothing_is_known() {
        let kept = Kept::default();
        assert!(!kept.has_met(FILE));
        kept.met(FILE);
        let before = kept.looked(FILE);
        kept.reads(FILE, before);
        assert!(kept.has_met(FILE) && kept.looked(FILE).keeps);
        kept.forgotten(FILE);
        assert!(!kept.has_met(FILE));
        kept.reads(FILE, before);
        kept.changed(FILE);
        assert!(!kept.has_met(FILE));
        assert!(!kept.looked(FILE).keeps);
        kept.reads(FILE, before);
        assert!(!kept.looked(FILE).keeps, "it may have changed meanwhile");
    }
}
