//! How a file is opened, in the manner of `std::fs::OpenOptions`.

use std::fs;
use std::path::Path;

use crate::sys::file;

/// Options for `Session::open_file`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: Option<u32>,
    interruptible: bool,
}

impl OpenOptions {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading.
    pub fn read(&mut self, yes: bool) -> &mut Self {
        self.read = yes;
        self
    }

    /// For writing.
    pub fn write(&mut self, yes: bool) -> &mut Self {
        self.write = yes;
        self
    }

    /// Every write goes to the end.
    pub fn append(&mut self, yes: bool) -> &mut Self {
        self.append = yes;
        self
    }

    /// What is in the file is dropped.
    pub fn truncate(&mut self, yes: bool) -> &mut Self {
        self.truncate = yes;
        self
    }

    /// The file is made if it is not there.
    pub fn create(&mut self, yes: bool) -> &mut Self {
        self.create = yes;
        self
    }

    /// The file is made, and must not be there.
    pub fn create_new(&mut self, yes: bool) -> &mut Self {
        self.create_new = yes;
        self
    }

    /// The permissions of a file that is made, less the process's umask; 0o666 where nothing is said.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// A signal that is handled ends an opening that waits (for a pipe's other end, for a lease) with `EINTR`, instead of going on.
    pub fn interruptible(&mut self, yes: bool) -> &mut Self {
        self.interruptible = yes;
        self
    }

    pub(crate) fn reads(&self) -> bool {
        self.read
    }

    pub(crate) fn writes(&self) -> bool {
        self.write || self.append
    }

    pub(crate) fn appends(&self) -> bool {
        self.append
    }

    pub(crate) fn truncates(&self) -> bool {
        self.truncate
    }

    /// Opens the program's own descriptor. Truncation is left out: it goes through the engine, which may have bytes of the
    /// file in memory.
    pub(crate) fn open(&self, path: &Path) -> std::io::Result<fs::File> {
        let makes = self.create || self.create_new;
        if !self.writes() && (!self.read || makes) {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        let open = if self.interruptible {
            file::open_once
        } else {
            file::open
        };
        open(path, self.flags(), self.mode.unwrap_or(0o666)).map(fs::File::from)
    }

    fn flags(&self) -> libc::c_int {
        let access = match (self.read, self.writes()) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            _ => libc::O_RDONLY,
        };
        let made = match (self.create_new, self.create) {
            (true, _) => libc::O_CREAT | libc::O_EXCL,
            (false, true) => libc::O_CREAT,
            (false, false) => 0,
        };
        access | made
    }
}
