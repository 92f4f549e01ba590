//! What the kernel keeps of a pool's files (`--cache`), and how it comes to forget it.
//!
//! *Attributes*: it may believe them for half of what is left of this host's term, so it asks in time where this process stands still or is cut off. Before
//! a grant of the file goes the kernel is told to ask again. What was answered earlier and it takes later does not count then, since it knows
//! which questions are older. That holds for files that it has: of others it could not be told, so it may believe nothing of them until it asks by their number.
//!
//! That call waits for nothing: the pool's lock is held during it, and requests may wait for that. To take pages from the kernel by such a call would mean to wait for
//! requests that are under way, which may wait for the grant that is to go. So pages go when a file is opened.
//!
//! *Lengths*: a kernel that drops an answer so reads pages up to the length that it knew before, which may be less than what was there at the opening. So it is told to
//! ask again only where it believes something, an answer that was overtaken is not believed, and for a while after that whoever opens the file reads past the pages.
//!
//! *Pages*: the kernel drops all pages of a file when it opens it, unless the answer says that they may stay. They may, if nothing of the file has been given back or
//! written here since they were dropped last. The kernel has done that by the time at which it reads by the opening that was answered so.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_pool::ids::File;

use crate::transport::device::Device;
use crate::wire::{InvalInodeOut, notify};

/// For so long after the kernel may have dropped an answer its length of the file is not relied on: much longer than an opening takes from its last question of attributes on.
const DOUBTED: Duration = Duration::from_secs(1);

/// A moment among those that count here.
type Moment = u64;

/// What is known of a file that the kernel has.
struct Known {
    /// Since then nothing of it has been given back or written here.
    same_since: Moment,
    /// The kernel has no pages from before.
    emptied: Option<Moment>,
    /// When what is told of it has become another one last.
    gone: Moment,
    /// When an answer may have been dropped last.
    doubted: Option<Instant>,
    /// The kernel may believe something of it.
    is_believed: bool,
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
    last: Moment,
    /// Of all files, also of those of which nothing is known.
    gone: Moment,
    doubted: Option<Instant>,
    files: HashMap<File, Known>,
}

impl Inner {
    fn next(&mut self) -> Moment {
        self.last += 1;
        self.last
    }

    fn known(&mut self, file: File) -> &mut Known {
        let now = self.next();
        let (gone, doubted) = (self.gone, self.doubted);
        self.files.entry(file).or_insert(Known {
            same_since: now,
            emptied: None,
            gone,
            doubted,
            // It may have been forgotten late, after it was told of anew.
            is_believed: true,
        })
    }

    /// The kernel is to ask again.
    fn tell(&self, file: File) {
        let Some(device) = &self.device else {
            return;
        };
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

/// What the kernel keeps.
#[derive(Default)]
pub(super) struct Kept(Mutex<Inner>);

impl Kept {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told by this from now on.
    pub(super) fn tell_by(&self, device: OwnedFd) {
        self.inner().device = Some(Device::new(device));
    }

    /// There is no kernel to tell any more. Its side ends when nobody has the device.
    pub(super) fn stop(&self) {
        self.inner().device = None;
    }

    pub(super) fn now(&self) -> Moment {
        self.inner().last
    }

    /// Whether the kernel may believe what the pool has said of a file after `since`. `asks`: it has asked by the file's number, so it has the file; else it
    /// has if it has asked so before, as far as is known. Where it has forgotten a file and looks it up at once, that may not be known for a moment.
    pub(super) fn may_believe(&self, file: File, since: Moment, asks: bool) -> bool {
        let mut inner = self.inner();
        if asks {
            inner.known(file);
        }
        let Some(known) = inner.files.get_mut(&file) else {
            if inner.gone > since {
                inner.doubted = Some(Instant::now());
            }
            return false;
        };
        if known.gone > since {
            known.doubted = Some(Instant::now());
            return false;
        }
        known.is_believed = true;
        inner.device.is_some()
    }

    /// Whether something of it has been given back after `since`.
    pub(super) fn has_gone(&self, file: File, since: Moment) -> bool {
        let inner = self.inner();
        let known = inner.files.get(&file);
        known.map_or(inner.gone, |known| known.gone) > since
    }

    /// The kernel has no such file any more, or has it anew.
    pub(super) fn forgotten(&self, file: File) {
        self.inner().files.remove(&file);
    }

    /// It is being opened. `None`: not to be read by pages.
    pub(super) fn looked(&self, file: File) -> Option<Looked> {
        let mut inner = self.inner();
        let known = inner.known(file);
        let is_doubted = { known.doubted }.is_some_and(|since| since.elapsed() < DOUBTED);
        (!is_doubted).then_some(Looked {
            at: known.same_since,
            keeps: known.emptied == Some(known.same_since),
        })
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

    /// This mount has changed what is told of it without a call of the kernel's that says so.
    pub(super) fn take_back(&self, file: File) {
        let mut inner = self.inner();
        let now = inner.next();
        let Some(known) = inner.files.get_mut(&file) else {
            // Perhaps the kernel has it all the same.
            (inner.gone, inner.doubted) = (now, Some(Instant::now()));
            inner.tell(file);
            return;
        };
        known.gone = now;
        if std::mem::take(&mut known.is_believed) {
            known.doubted = Some(Instant::now());
            inner.tell(file);
        }
    }

    /// Others may change it when this returns.
    pub(super) fn goes(&self, file: File) {
        if file == File::NAMES {
            return;
        }
        let mut inner = self.inner();
        let now = inner.next();
        inner.gone = now;
        inner.doubted = Some(Instant::now());
        let doubted = inner.doubted;
        let is_believed = inner.files.get_mut(&file).is_none_or(|known| {
            (known.same_since, known.gone, known.doubted) = (now, now, doubted);
            std::mem::take(&mut known.is_believed)
        });
        if is_believed {
            inner.tell(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File = File(7);

    fn looked(kept: &Kept) -> Looked {
        kept.looked(FILE).expect("by pages")
    }

    /// Time passes.
    fn later(kept: &Kept) {
        let mut inner = kept.inner();
        inner.doubted = None;
        for known in inner.files.values_mut() {
            known.doubted = None;
        }
    }

    fn mounted() -> Kept {
        let kept = Kept::default();
        let device = std::fs::OpenOptions::new().write(true).open("/dev/null");
        kept.tell_by(device.expect("opened").into());
        kept
    }

    #[test]
    fn pages_stay_once_all_of_them_are_from_after_the_last_change() {
        let kept = mounted();
        let first = looked(&kept);
        assert!(!first.keeps, "whose pages they are is not known");
        // Whether the kernel has dropped them is not known before it reads.
        assert!(!looked(&kept).keeps);
        kept.reads(FILE, first);
        let second = looked(&kept);
        assert!(second.keeps);
        kept.changed(FILE);
        assert!(!looked(&kept).keeps, "they are from before the change");
        // By openings from before it as well.
        kept.reads(FILE, first);
        kept.reads(FILE, second);
        assert!(!looked(&kept).keeps);
        let third = looked(&kept);
        kept.goes(FILE);
        assert_eq!(
            kept.looked(FILE),
            None,
            "the kernel may not know its length"
        );
        later(&kept);
        kept.reads(FILE, third);
        assert!(!looked(&kept).keeps, "others may have changed it");
        kept.reads(FILE, looked(&kept));
        // What comes late of the kernel's earlier reads changes nothing.
        kept.reads(FILE, first);
        assert!(looked(&kept).keeps);
    }

    #[test]
    fn of_a_file_that_the_kernel_has_forgotten_nothing_is_known() {
        let kept = mounted();
        assert!(!kept.may_believe(FILE, kept.now(), false));
        assert!(kept.may_believe(FILE, kept.now(), true));
        let before = looked(&kept);
        kept.reads(FILE, before);
        assert!(kept.may_believe(FILE, kept.now(), false) && looked(&kept).keeps);
        kept.forgotten(FILE);
        assert!(!kept.may_believe(FILE, kept.now(), false));
        kept.reads(FILE, before);
        kept.changed(FILE);
        assert!(!kept.may_believe(FILE, kept.now(), false));
        assert!(!looked(&kept).keeps);
        kept.reads(FILE, before);
        assert!(!looked(&kept).keeps, "it may have changed meanwhile");
    }

    #[test]
    fn an_answer_that_is_overtaken_is_not_believed() {
        let kept = mounted();
        // Of a file that is not known yet, too.
        let since = kept.now();
        kept.goes(FILE);
        assert!(!kept.may_believe(FILE, since, true));
        for goes in [Kept::goes, Kept::take_back] {
            let since = kept.now();
            assert!(kept.may_believe(FILE, since, true));
            goes(&kept, FILE);
            later(&kept);
            assert!(kept.has_gone(FILE, since));
            assert!(!kept.may_believe(FILE, since, true));
            assert_eq!(kept.looked(FILE), None, "it may have been dropped");
            assert!(kept.may_believe(FILE, kept.now(), false));
        }
        kept.goes(File(8));
        assert!(kept.may_believe(FILE, kept.now(), false));
        kept.stop();
        assert!(!kept.may_believe(FILE, kept.now(), true));
    }
}
