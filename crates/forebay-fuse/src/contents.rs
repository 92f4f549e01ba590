//! Bytes of files.
//!
//! Every read and every write comes here: the kernel keeps no copies (`FOPEN_DIRECT_IO`), but for mappings. So what a write has
//! been acknowledged lies in the session's memory, outlives this process, and is seen by the session's programs at once.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use forebay::file::Sought;
use forebay::{OpenOptions, SessionFault};
use rustix::fs::OFlags;

use crate::attributes::FileAttr;
use crate::caller::Caller;
use crate::directory::Directory;
use crate::failed::{Answer, Failed, there_already};
use crate::handles::Opened;
use crate::nodes::Found;
use crate::transport::device::with_buffer;

/// Bytes that one request moves at most.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Bytes that one request copies from file to file at most: the program asks again.
const COPY_BYTES_MAX: u64 = 16 << 20;
pub(crate) const SET_USER: u32 = 0o4000;
pub(crate) const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// How bytes are to be written.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// The flags of the opening, as they are now.
    pub(crate) flags: i32,
    /// They come from pages that were mapped, and each has its place.
    pub(crate) mapped: bool,
    /// Whoever writes may not keep the bits that make a program somebody else.
    pub(crate) kills: bool,
}

/// A part of a file.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
}

impl Directory {
    pub(crate) fn open(&self, number: u64, flags: i32) -> Answer<u64> {
        self.has_room_for_file()?;
        // Where bytes go and when they are durable is seen to at each write.
        let access = access(flags);
        let open = || match self.reopen(number, access) {
            // A file that may only grow (`chattr +a`). No session has it: the kernel appends.
            Err(Failed(libc::EPERM)) if flags & libc::O_APPEND != 0 => {
                self.reopen(number, access | OFlags::APPEND)
            }
            opened => opened,
        };
        self.serve(number, open, flags)
    }

    pub(crate) fn create(
        &self,
        by: &Caller,
        (parent, name): (u64, &OsStr),
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        self.has_room_for_file()?;
        let made = self.create_plain(by, (parent, name), access(flags), mode);
        let made = made.map_err(|failed| match failed {
            Failed(libc::EEXIST) => there_already(flags),
            failed => failed,
        })?;
        self.serve_made(made, flags)
    }

    /// Makes a file without a name.
    pub(crate) fn create_nameless(
        &self,
        by: &Caller,
        parent: u64,
        mode: u32,
        flags: i32,
    ) -> Answer<(FileAttr, u64)> {
        self.has_room_for_file()?;
        let made = self.create_plain_nameless(by, parent, access(flags), mode)?;
        self.serve_made(made, flags)
    }

    fn serve_made(&self, (fd, found): (OwnedFd, Found), flags: i32) -> Answer<(FileAttr, u64)> {
        let handle = self.serve(found.number, || Ok(fd), flags);
        let told = handle.and_then(|handle| Ok((self.attributes_of(&found)?, handle)));
        if told.is_err() {
            self.nodes.forget(found.number, 1);
            if let Ok(handle) = handle {
                self.release(handle);
            }
        }
        told
    }

    /// Serves a file. It counts as open before it is, so that it has a descriptor from then on.
    fn serve(
        &self,
        number: u64,
        open: impl FnOnce() -> Answer<OwnedFd>,
        flags: i32,
    ) -> Answer<u64> {
        self.nodes.opened(number);
        let served = open().and_then(|fd| self.serve_opened(number, fd, flags));
        if served.is_err() {
            self.nodes.closed(number);
        }
        served
    }

    fn serve_opened(&self, number: u64, fd: OwnedFd, flags: i32) -> Answer<u64> {
        let access = flags & libc::O_ACCMODE;
        let (reads, writes) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        let given = fs::File::from(fd);
        let plain = given.try_clone()?;
        let mut options = OpenOptions::new();
        options.read(reads).write(writes);
        let file = match self.session.open_given(given, &options) {
            // No room in the session's tables.
            Err(forebay::Error::Session {
                fault: SessionFault::Full | SessionFault::InUse,
                ..
            }) => self.session.open_unmanaged(plain.try_clone()?, &options)?,
            opened => opened?,
        };
        let opened = Opened {
            file,
            plain,
            node: number,
            writes,
            flags,
        };
        Ok(self.files.add(opened))
    }

    /// Fills memory with what there is; how much that is.
    pub(crate) fn read(&self, at: Part, memory: &mut [u8]) -> Answer<usize> {
        let opened = self.files.get(at.handle)?;
        // To the kernel's cache an answer that is short is the file's end, and the rest of its pages zeros: where a byte cannot be read, the
        // request fails whole.
        let mut read = 0;
        while read < memory.len() {
            match opened
                .file
                .read_at(&mut memory[read..], at.offset + read as u64)?
            {
                0 => break,
                more => read += more,
            }
        }
        Ok(read)
    }

    pub(crate) fn write(&self, at: Part, bytes: &[u8], how: Manner) -> Answer<u32> {
        let opened = self.files.get(at.handle)?;
        if how.kills {
            self.kill_privileges(&opened.plain);
        }
        let written = if how.flags & libc::O_APPEND != 0 && !how.mapped {
            opened.file.append_some(bytes)?.1
        } else {
            opened.file.write_at(bytes, at.offset)?
        };
        sync_as_opened(&opened.file, how.flags)?;
        Ok(written as u32)
    }

    /// A descriptor has been closed: what was written through it is the devices', or the program hears that it is not.
    pub(crate) fn flush(&self, handle: u64) -> Answer<()> {
        let opened = self.files.get(handle)?;
        if opened.writes {
            opened.file.flush()?;
        }
        Ok(())
    }

    pub(crate) fn sync(&self, handle: u64, data_only: bool) -> Answer<()> {
        let opened = self.files.get(handle)?;
        Ok(if data_only {
            opened.file.sync_data()
        } else {
            opened.file.sync_all()
        }?)
    }

    /// The last descriptor of an opening has been closed.
    pub(crate) fn release(&self, handle: u64) {
        let Some(opened) = self.files.take(handle) else {
            return;
        };
        let node = opened.node;
        // Errors were told by the flush before.
        drop(opened);
        self.nodes.closed(node);
    }

    pub(crate) fn truncate(
        &self,
        number: u64,
        handle: Option<u64>,
        len: u64,
        kills: bool,
    ) -> Answer<()> {
        let given = handle.and_then(|handle| self.files.get(handle).ok());
        let (opened, own) = match given.filter(|opened| opened.writes) {
            Some(opened) => (opened, None),
            None => {
                let handle = self.open(number, libc::O_WRONLY)?;
                (self.files.get(handle)?, Some(handle))
            }
        };
        if kills {
            self.kill_privileges(&opened.plain);
        }
        let cut = opened.file.set_len(len);
        drop(opened);
        if let Some(handle) = own {
            let flushed = self.flush(handle);
            self.release(handle);
            cut?;
            return flushed;
        }
        Ok(cut?)
    }

    pub(crate) fn allocate(&self, at: Part, len: u64, mode: i32) -> Answer<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let opened = self.files.get(at.handle)?;
        self.kill_privileges(&opened.plain);
        let file = &opened.file;
        match mode & !KEEP {
            0 => file.reserve(at.offset, len, mode & KEEP != 0)?,
            libc::FALLOC_FL_PUNCH_HOLE if mode & KEEP != 0 => file.punch(at.offset, len)?,
            libc::FALLOC_FL_ZERO_RANGE => {
                file.punch(at.offset, len)?;
                file.reserve(at.offset, len, mode & KEEP != 0)?;
            }
            // No kernel asks for what moves bytes about.
            _ => return Err(Failed(libc::EOPNOTSUPP)),
        }
        sync_as_opened(file, opened.flags)
    }

    pub(crate) fn seek(&self, at: Part, whence: i32) -> Answer<u64> {
        let sought = match whence {
            libc::SEEK_DATA => Sought::Data,
            libc::SEEK_HOLE => Sought::Hole,
            _ => return Err(Failed(libc::EINVAL)),
        };
        Ok(self.files.get(at.handle)?.file.seek(at.offset, sought)?)
    }

    /// Copies from file to file. Fewer bytes than asked for are no error.
    pub(crate) fn copy(&self, from: Part, to: Part, len: u64) -> Answer<u32> {
        let (source, target) = (self.files.get(from.handle)?, self.files.get(to.handle)?);
        self.kill_privileges(&target.plain);
        let copied = copy_pieces(len, |buffer, done| {
            let n = source.file.read_at(buffer, from.offset + done)?;
            Ok(match n {
                0 => 0,
                _ => target.file.write_at(&buffer[..n], to.offset + done)?,
            })
        })?;
        sync_as_opened(&target.file, target.flags)?;
        Ok(copied)
    }

    /// A program that runs as its owner, or its group, does so no longer once somebody else has changed it. A mount of root's would keep that.
    fn kill_privileges(&self, file: &fs::File) {
        let Ok(meta) = file.metadata() else { return };
        let mode = meta.mode();
        let killed = without_privileges(mode);
        if killed != mode {
            let _mark = self.session.mark(file.as_fd());
            // Where this process may not, the write is one that takes them away by itself.
            let _ = file.set_permissions(fs::Permissions::from_mode(killed & 0o7777));
        }
    }
}

/// For reading, for writing or for both.
fn access(flags: i32) -> OFlags {
    OFlags::from_bits_retain((flags & libc::O_ACCMODE) as u32)
}

/// What a description that was opened so owes to the device after each change. The kernel syncs nothing of a mount's by itself.
fn sync_as_opened(file: &forebay::File, flags: i32) -> Answer<()> {
    // O_SYNC has O_DSYNC's bit and one of its own.
    if flags & libc::O_SYNC == libc::O_SYNC {
        file.sync_all()?;
    } else if flags & libc::O_DSYNC != 0 {
        file.sync_data()?;
    }
    Ok(())
}

/// Copies piece by piece until all is copied, or there is no more: `piece` gets memory and how much is done, and says how
/// much more is. An error after the first piece is the next call's.
pub(crate) fn copy_pieces(
    len: u64,
    mut piece: impl FnMut(&mut [u8], u64) -> Answer<usize>,
) -> Answer<u32> {
    let len = len.min(COPY_BYTES_MAX);
    let mut done = 0;
    with_buffer(REQUEST_BYTES_MAX as usize, |buffer| {
        while done < len {
            let wanted = (len - done).min(u64::from(REQUEST_BYTES_MAX)) as usize;
            match piece(&mut buffer[..wanted], done) {
                Ok(0) => break,
                Ok(n) => done += n as u64,
                Err(_) if done > 0 => break,
                Err(failed) => return Err(failed),
            }
        }
        Ok(done as u32)
    })
}

/// A mode without what lets a program run as its owner or its group.
pub(crate) fn without_privileges(mode: u32) -> u32 {
    match mode & GROUP_EXECUTES {
        0 => mode & !SET_USER,
        _ => mode & !(SET_USER | SET_GROUP),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use forebay::{Config, Session};
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;
    use crate::directory::open_root;
    use crate::nodes::ROOT;

    #[test]
    fn what_is_about_to_be_open_keeps_its_descriptor() {
        let (arenas, files) = (tempfile::tempdir_in("/dev/shm"), tempfile::tempdir());
        let (arenas, files) = (arenas.expect("a directory"), files.expect("a directory"));
        let mut config = Config::builder().build().expect("defaults");
        config.session = "opening".into();
        config.arena_dir = Some(arenas.path().to_owned());
        config.memory = 32 << 20;
        let session = Session::open(config).expect("a session");
        let root = open_root(files.path()).expect("opened");
        let directory = Directory::new(session, root, Duration::ZERO, 64).expect("served");
        // Who opens a pipe waits for who writes to it.
        let path = files.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("made");
        let told = directory.look_up(ROOT, OsStr::new("pipe")).expect("found");
        let number = told.number;
        let other = files.path().join("other");
        thread::scope(|scope| {
            let opening = scope.spawn(|| directory.open(number, libc::O_RDONLY));
            thread::sleep(Duration::from_millis(100));
            fs::rename(&path, &other).expect("renamed");
            directory.nodes.give_back(0);
            let known = directory.nodes.fd(number).map(drop);
            let writes = fs::File::options().write(true).open(&other);
            drop(writes.expect("opened"));
            let opened = opening.join().expect("it ends");
            if let Ok(handle) = opened {
                directory.release(handle);
            }
            assert_eq!(known, Ok(()), "{opened:?}");
        });
        // It is closed again, or was never open.
        directory.nodes.give_back(0);
        let known = directory.nodes.fd(number).map(drop);
        assert_eq!(known, Err(Failed(libc::ESTALE)));
    }
}
