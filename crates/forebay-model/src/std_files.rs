//! The kernel's own answer: a target over plain files. It shows that the model agrees with Linux,
//! and, run inside the preloaded library or on a FUSE mount, it is the target of those.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Access, Op, Outcome, Target, fill};

/// Files `0`, `1`, ... of a directory, through `std::fs` and system calls of the same names.
pub struct StdFiles {
    directory: PathBuf,
    /// By file and handle.
    handles: Vec<Vec<File>>,
}

impl StdFiles {
    /// Creates or empties the files, and opens every handle read-write.
    pub fn new(directory: &Path, files: usize, handles: usize) -> io::Result<Self> {
        for file in 0..files {
            File::create(directory.join(file.to_string()))?;
        }
        StdFiles::join(directory, files, handles)
    }

    /// Opens files that exist already as they are: for further workers, and after a death.
    pub fn join(directory: &Path, files: usize, handles: usize) -> io::Result<Self> {
        let directory = directory.to_path_buf();
        let mut target = StdFiles {
            directory,
            handles: Vec::new(),
        };
        for file in 0..files as u8 {
            let open = |_| target.open(file, Access::ReadWrite, false);
            let opened = (0..handles).map(open).collect::<io::Result<_>>()?;
            target.handles.push(opened);
        }
        Ok(target)
    }

    /// Where a file lies.
    pub fn path(&self, file: u8) -> PathBuf {
        self.directory.join(file.to_string())
    }

    fn open(&self, file: u8, access: Access, truncate: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        match access {
            Access::ReadWrite => options.read(true).write(true),
            Access::ReadOnly => options.read(true),
            Access::WriteOnly => options.write(true),
            Access::Append => options.read(true).append(true),
        };
        options.truncate(truncate).open(self.path(file))
    }

    fn answer(&mut self, op: &Op) -> io::Result<Outcome> {
        if let (Some(file), Some(handle)) = (op.file(), op.handle())
            && !matches!(op, Op::Reopen { .. })
        {
            return self.answer_through(&self.handles[file as usize][handle as usize], op);
        }
        match *op {
            Op::Reopen {
                file,
                handle,
                access,
                truncate,
            } => {
                let opened = self.open(file, access, truncate)?;
                self.handles[file as usize][handle as usize] = opened;
            }
            Op::CloseAll { file } => {
                let count = std::mem::take(&mut self.handles[file as usize]).len();
                let open = |_| self.open(file, Access::ReadWrite, false);
                let opened = (0..count).map(open).collect::<io::Result<_>>()?;
                self.handles[file as usize] = opened;
            }
            // The kernel's cache may do what it wants at any time.
            _ => {}
        }
        Ok(Outcome::Done)
    }

    fn answer_through(&self, file: &File, op: &Op) -> io::Result<Outcome> {
        match *op {
            Op::Write {
                offset, len, seed, ..
            } => {
                let at = write_position(file, offset)?;
                let mut buf = vec![0; len as usize];
                fill(seed, at, &mut buf);
                Ok(Outcome::Wrote(file.write_at(&buf, offset)? as u64))
            }
            Op::WriteVectored {
                offset,
                ref lens,
                seed,
                ..
            } => {
                let at = write_position(file, offset)?;
                Ok(Outcome::Wrote(write_vectored(
                    file, offset, lens, seed, at,
                )?))
            }
            Op::Append { len, seed, .. } => append(file, len, seed).map(Outcome::AppendedAt),
            Op::Read { offset, len, .. } => {
                let mut buf = vec![0; len as usize];
                let n = file.read_at(&mut buf, offset)?;
                buf.truncate(n);
                Ok(Outcome::Bytes(buf))
            }
            Op::SetLen { len, .. } => file.set_len(len).map(|()| Outcome::Done),
            Op::Punch { offset, len, .. } => punch(file, offset, len).map(|()| Outcome::Done),
            Op::SyncData { .. } => file.sync_data().map(|()| Outcome::Done),
            Op::SyncAll { .. } => file.sync_all().map(|()| Outcome::Done),
            Op::Len { .. } => Ok(Outcome::Length(file.metadata()?.len())),
            _ => unreachable!("{op:?} has no handle"),
        }
    }
}

impl Target for StdFiles {
    fn run(&mut self, op: &Op) -> Outcome {
        self.answer(op)
            .unwrap_or_else(|error| Outcome::from_error(&error))
    }
}

/// Where a positional write will go: elsewhere if the handle appends.
fn write_position(file: &File, offset: u64) -> io::Result<u64> {
    // SAFETY: F_GETFL reads flags of a descriptor that `file` keeps open; no memory is passed.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let appends = flags >= 0 && flags & libc::O_APPEND != 0;
    if appends {
        Ok(file.metadata()?.len())
    } else {
        Ok(offset)
    }
}

/// `pwritev` by hand: std has none that takes an offset.
fn write_vectored(file: &File, offset: u64, lens: &[u32], seed: u32, at: u64) -> io::Result<u64> {
    let mut buf = vec![0; lens.iter().map(|&len| len as usize).sum()];
    fill(seed, at, &mut buf);
    let mut rest = buf.as_slice();
    let mut pieces = Vec::new();
    for &len in lens {
        let (piece, after) = rest.split_at(len as usize);
        pieces.push(IoSlice::new(piece));
        rest = after;
    }
    let (fd, count) = (file.as_raw_fd(), pieces.len() as i32);
    // SAFETY: IoSlice has the layout of iovec; pieces and the buffer that they point into outlive
    // the call, which only reads them.
    let n = unsafe { libc::pwritev(fd, pieces.as_ptr().cast(), count, offset as i64) };
    u64::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Appends with the file's own offset, as a program without `O_APPEND` does.
fn append(mut file: &File, len: u32, seed: u32) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut buf = vec![0; len as usize];
    fill(seed, end, &mut buf);
    if buf.is_empty() {
        // `write_all` of nothing makes no call, and so would not notice a read-only handle.
        file.write_at(&buf, end)?;
    }
    file.write_all(&buf).map(|()| end)
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a descriptor that `file` keeps open, and numbers; no memory is passed.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
