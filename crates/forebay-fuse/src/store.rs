//! The file system: a store in persistent memory.
//!
//! A file's number is the store's own, and so is its handle: the store knows nothing of openings. What the kernel has looked up is
//! held, so that it stays when its last name goes.
//!
//! Nobody but this process changes a store, and only by the kernel's requests. So the kernel may keep what it has read, and believe
//! what it knows, for as long as it likes: its page cache is the tier in DRAM that programs read from. Writes come here at
//! once, in the order in which they were made, and that is the order in which they become durable.

mod served;

use forebay_pmem::{Attributes, BLOCK, Creator, SetTime, Store, Time};

use crate::attributes::{self, FileAttr, NewTime};
use crate::caller::Caller;
use crate::changes::Changes;
use crate::contents::without_privileges;
use crate::failed::{Answer, Failed};

/// Rights that a program has when it is executed.
const CAPABILITIES: &[u8] = b"security.capability";

/// A store that is served.
pub(crate) struct Stored {
    store: Store,
}

impl Stored {
    pub(crate) fn new(store: Store) -> Self {
        Stored { store }
    }

    /// Everything that was done is durable when this returns.
    pub(crate) fn sync_all(&self) -> Answer<()> {
        Ok(self.store.sync()?)
    }

    /// Syncs and closes.
    pub(crate) fn close(self) -> Answer<()> {
        Ok(self.store.close()?)
    }

    /// A program that runs as somebody else, or with rights of its own, does so no longer once it has been changed.
    fn kill_privileges(&self, number: u64) -> Answer<()> {
        let mode = self.store.getattr(number)?.mode;
        let killed = without_privileges(mode);
        if killed != mode {
            let changes = forebay_pmem::Changes {
                mode: Some(killed & 0o7777),
                ..Default::default()
            };
            self.store.setattr(number, &changes)?;
        }
        self.drop_capabilities(number)
    }

    fn drop_capabilities(&self, number: u64) -> Answer<()> {
        match self.store.getxattr(number, CAPABILITIES) {
            Ok(_) => Ok(self.store.removexattr(number, CAPABILITIES)?),
            Err(_) => Ok(()),
        }
    }

    fn changed(&self, number: u64, changes: &Changes) -> Answer<FileAttr> {
        let mut mode = changes.mode;
        if changes.kills {
            let now = self.store.getattr(number)?.mode;
            let kept = without_privileges(now);
            if kept != now {
                mode = mode.or(Some(kept & 0o7777));
            }
        }
        if changes.uid.is_some() || changes.gid.is_some() || changes.len.is_some() {
            self.drop_capabilities(number)?;
        }
        let changes = forebay_pmem::Changes {
            mode,
            uid: changes.uid,
            gid: changes.gid,
            size: changes.len,
            accessed: changes.accessed.map(set_time),
            modified: changes.modified.map(set_time),
        };
        Ok(told(&self.store.setattr(number, &changes)?))
    }
}

fn set_time(time: NewTime) -> SetTime {
    match time {
        NewTime::Now => SetTime::Now,
        NewTime::At(time) => SetTime::To(Time {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        }),
    }
}

/// The maker of a file; the kernel has taken the umask off.
fn creator(by: &Caller, mode: u32) -> Creator {
    Creator {
        uid: by.uid,
        gid: by.gid,
        mode,
    }
}

fn told(of: &Attributes) -> FileAttr {
    let at = |moment: Time| attributes::Time {
        seconds: moment.seconds,
        nanoseconds: moment.nanoseconds,
    };
    FileAttr {
        number: of.inode,
        size: of.size,
        blocks: of.blocks,
        accessed: at(of.accessed),
        modified: at(of.modified),
        changed: at(of.changed),
        born: Some(at(of.born)),
        mode: of.mode,
        links: of.links,
        uid: of.uid,
        gid: of.gid,
        device: of.device,
        block_size: attributes::advised(of.mode, BLOCK as u32),
        believed: None,
    }
}

impl From<forebay_pmem::Errno> for Failed {
    fn from(error: forebay_pmem::Errno) -> Self {
        Failed(error.0)
    }
}
