//! Modes, owners, times, lengths and extended attributes.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay::member::given;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};

use crate::attributes::{FileAttr, NewTime};
use crate::directory::{Directory, modified, path_of};
use crate::failed::Answer;

/// An attribute that the kernel takes from whatever is written.
const CAPABILITY: &str = "security.capability";

/// What is to be changed; `None` stays as it is.
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) len: Option<u64>,
    pub(crate) accessed: Option<NewTime>,
    pub(crate) modified: Option<NewTime>,
    /// By which handle.
    pub(crate) handle: Option<u64>,
    /// Whether the bits go that make a program somebody else. A kernel that does not say so sets the mode itself.
    pub(crate) kills: bool,
}

impl Directory {
    pub(crate) fn change(&self, number: u64, changes: &Changes) -> Answer<FileAttr> {
        let fd = self.nodes.fd(number)?;
        if let Some(mode) = changes.mode {
            if given::is_due_before_mode(mode) {
                self.leave(number, given::MADE_EXECUTABLE)?;
            }
            let mode = Mode::from_raw_mode(mode);
            let _mark = self.session.mark(fd.as_fd());
            rustix::fs::chmodat(CWD, path_of(&fd), mode, AtFlags::empty())?;
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            let (uid, gid) = (
                changes.uid.map(Uid::from_raw),
                changes.gid.map(Gid::from_raw),
            );
            let _mark = self.session.mark(fd.as_fd());
            rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(len) = changes.len {
            self.truncate(number, changes.handle, len, changes.kills)?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            self.set_times(&fd, changes)?;
        }
        self.attributes(number)
    }

    /// Sets times, which stay. A keeper that does not get on is not waited for: if it has still to give the file the time of its close, it gives it
    /// this one.
    fn set_times(&self, fd: &Arc<OwnedFd>, changes: &Changes) -> Answer<()> {
        let stat = rustix::fs::fstat(fd)?;
        let file = (stat.st_dev, stat.st_ino);
        // What is owed is written first, so that writing it does not move them afterwards.
        self.session.flush_known(file.0, file.1);
        let times = Timestamps {
            last_access: timespec(changes.accessed),
            last_modification: timespec(changes.modified),
        };
        let set = || rustix::fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH);
        let _mark = self.session.mark(fd.as_fd());
        let is_to_get_time = changes.modified.is_some() && self.session.is_to_get_time(file);
        set()?;
        if is_to_get_time {
            let stat = rustix::fs::fstat(fd)?;
            if !self.session.time_is_set(file, modified(&stat).ns()) {
                set()?;
            }
        }
        Ok(())
    }

    /// Gives a file to the kernel, should the session manage it.
    fn leave(&self, number: u64, reason: u32) -> Answer<()> {
        let fd = self.nodes.fd(number)?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok(self
            .session
            .give_to_kernel(stat.st_dev, stat.st_ino, reason)?)
    }

    /// The value's length; the value itself where there is memory for it.
    pub(crate) fn attribute(&self, number: u64, name: &OsStr, memory: &mut [u8]) -> Answer<usize> {
        Ok(rustix::fs::getxattr(
            path_of(&self.nodes.fd(number)?),
            name,
            memory,
        )?)
    }

    pub(crate) fn attribute_names(&self, number: u64, memory: &mut [u8]) -> Answer<usize> {
        Ok(rustix::fs::listxattr(
            path_of(&self.nodes.fd(number)?),
            memory,
        )?)
    }

    pub(crate) fn set_attribute(
        &self,
        number: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Answer<()> {
        if name == CAPABILITY {
            self.leave(number, given::MADE_EXECUTABLE)?;
        }
        let flags = XattrFlags::from_bits_retain(flags as u32);
        let fd = self.nodes.fd(number)?;
        let _mark = self.session.mark(fd.as_fd());
        Ok(rustix::fs::setxattr(path_of(&fd), name, value, flags)?)
    }

    pub(crate) fn remove_attribute(&self, number: u64, name: &OsStr) -> Answer<()> {
        let fd = self.nodes.fd(number)?;
        let _mark = self.session.mark(fd.as_fd());
        Ok(rustix::fs::removexattr(path_of(&fd), name)?)
    }
}

fn timespec(time: Option<NewTime>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(NewTime::Now) => special(UTIME_NOW),
        Some(NewTime::At(time)) => Timespec {
            tv_sec: time.seconds,
            tv_nsec: time.nanoseconds.into(),
        },
    }
}
