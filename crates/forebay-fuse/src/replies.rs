//! Answers to the kernel's requests, by their kinds.

use std::time::{Duration, SystemTime};

use forebay::sys::extents::STORE_SPACE;
use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr,
};
use rustix::fs::StatVfs;

use crate::contents::{Part, SET_GROUP, SET_USER};
use crate::failed::{Answer, Failed, guarded};
use crate::names::is_dots;
use crate::served::Served;

/// What tells a file from earlier ones of the same number; the kernel makes file handles of both.
pub(crate) fn generation<F: Served>(told: &FileAttr) -> Generation {
    let since = told.crtime.duration_since(SystemTime::UNIX_EPOCH);
    Generation(match F::ALONE && told.ino != INodeNo::ROOT {
        true => since.map_or(0, |since| since.as_nanos() as u64),
        // Numbers are not used for another file as long as the kernel knows them.
        false => 0,
    })
}
/// The longest value of an extended attribute, and the longest list of names.
const ATTRIBUTE_BYTES_MAX: u32 = 64 << 10;

/// How long the kernel may believe this. It does not know that a program has lost its privileges by being written to.
pub(crate) fn believed(served: &impl Served, told: &FileAttr) -> Duration {
    let has_privileges = u32::from(told.perm) & (SET_USER | SET_GROUP) != 0;
    match told.kind == FileType::RegularFile && has_privileges {
        true => Duration::ZERO,
        false => served.believed(),
    }
}

/// What the kernel takes for a name that is not there, and believes.
fn absent() -> FileAttr {
    let never = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub(crate) fn entry<F: Served>(served: &F, answer: Answer<FileAttr>, reply: ReplyEntry) {
    match answer {
        Ok(told) => reply.entry(&believed(served, &told), &told, generation::<F>(&told)),
        Err(failed) => reply.error(failed.into()),
    }
}

/// What a lookup has found. That a name is not there is believed like one that is, where nobody else makes any.
pub(crate) fn found_or_absent<F: Served>(served: &F, found: Answer<FileAttr>, reply: ReplyEntry) {
    match found {
        Err(Failed(libc::ENOENT)) if F::ALONE => {
            let told = absent();
            reply.entry(&served.believed(), &told, generation::<F>(&told));
        }
        found => entry(served, found, reply),
    }
}

pub(crate) fn created<F: Served>(served: &F, told: &FileAttr, handle: u64, reply: ReplyCreate) {
    let (believed, generation) = (believed(served, told), generation::<F>(told));
    reply.created(
        &believed,
        told,
        generation,
        FileHandle(handle),
        F::AS_OPENED,
    );
}

pub(crate) fn attributes(served: &impl Served, answer: Answer<FileAttr>, reply: ReplyAttr) {
    match answer {
        Ok(told) => reply.attr(&believed(served, &told), &told),
        Err(failed) => reply.error(failed.into()),
    }
}

pub(crate) fn done(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(failed) => reply.error(failed.into()),
    }
}

pub(crate) fn opened(answer: Answer<u64>, flags: FopenFlags, reply: ReplyOpen) {
    match answer {
        Ok(handle) => reply.opened(FileHandle(handle), flags),
        Err(failed) => reply.error(failed.into()),
    }
}

/// Of a file. Who can only read has nothing to wait for when he closes.
pub(crate) fn opened_file<F: Served>(answer: Answer<u64>, flags: i32, reply: ReplyOpen) {
    let ways = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => F::AS_OPENED | FopenFlags::FOPEN_NOFLUSH,
        _ => F::AS_OPENED,
    };
    opened(answer, ways, reply);
}

pub(crate) fn written(answer: Answer<u32>, reply: ReplyWrite) {
    match answer {
        Ok(n) => reply.written(n),
        Err(failed) => reply.error(failed.into()),
    }
}

/// Answers the one `ioctl` that there is: how far a file has space, and of which store it is.
pub(crate) fn space(served: &impl Served, at: Part, asked: (u32, &[u8]), reply: ReplyIoctl) {
    let answer = guarded(|| match asked {
        (STORE_SPACE, range) if range.len() == 16 => {
            let [start, end] = [0, 8].map(|from| {
                let bytes = range[from..from + 8].try_into();
                u64::from_ne_bytes(bytes.expect("eight bytes"))
            });
            let at = Part {
                offset: start,
                ..at
            };
            Ok([served.allocated_to(at, end)?, served.store()])
        }
        _ => Err(Failed(libc::ENOTTY)),
    });
    match answer {
        Ok(range) => reply.ioctl(0, range.map(u64::to_ne_bytes).as_flattened()),
        Err(failed) => reply.error(failed.into()),
    }
}

/// What there is of room in a file system.
pub(crate) fn room(answer: Answer<StatVfs>, reply: ReplyStatfs) {
    match answer {
        Ok(found) => reply.statfs(
            found.f_blocks,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            found.f_bsize as u32,
            found.f_namemax as u32,
            found.f_frsize as u32,
        ),
        Err(failed) => reply.error(failed.into()),
    }
}

/// Asks for bytes of so many at most; where none are wanted, for their number.
pub(crate) fn told_bytes(size: u32, reply: ReplyXattr, ask: impl Fn(&mut [u8]) -> Answer<usize>) {
    let mut memory = vec![0; size.min(ATTRIBUTE_BYTES_MAX) as usize];
    match guarded(|| ask(&mut memory)) {
        Ok(len) if size == 0 => reply.size(len as u32),
        Ok(len) => reply.data(&memory[..len]),
        Err(failed) => reply.error(failed.into()),
    }
}

/// Lists an open directory (its number and its handle), each entry as a lookup would tell it.
pub(crate) fn list_with_attributes<F: Served>(
    served: &F,
    (number, handle): (u64, u64),
    from: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Answer<()> {
    let mut answered = Answered::default();
    let listed = served.list(handle, from, |entry| {
        // Of these two the kernel takes the name alone.
        let is_dots = is_dots(entry.name);
        let told = match is_dots {
            true => served.attributes(number),
            false => served.look_up(number, entry.name),
        };
        answered.take(told, |told| {
            let inode = match is_dots {
                true => INodeNo(entry.inode),
                false => told.ino,
            };
            let believed = believed(served, told);
            let generation = generation::<F>(told);
            let is_full = reply.add(inode, entry.next, entry.name, &believed, told, generation);
            if is_full && !is_dots {
                served.forget(told.ino.0, 1);
            }
            is_full
        })
    });
    answered.end(listed)
}

/// How far a listing with attributes has come.
#[derive(Default)]
struct Answered {
    any: bool,
    failed: Option<Failed>,
}

impl Answered {
    /// Takes what is told of the next name; `add` says whether there was no room for it. Whether the list ends here.
    fn take(&mut self, told: Answer<FileAttr>, add: impl FnOnce(&FileAttr) -> bool) -> bool {
        match told {
            Ok(told) => {
                let is_full = add(&told);
                self.any |= !is_full;
                is_full
            }
            // It has gone since.
            Err(Failed(libc::ENOENT)) => false,
            // The list ends before it.
            Err(why) => {
                self.failed = Some(why);
                true
            }
        }
    }

    /// An error after the first name is the next answer's, which begins with it: an empty one is the directory's end.
    fn end(self, listed: Answer<()>) -> Answer<()> {
        match self.any {
            true => Ok(()),
            false => listed.and(self.failed.map_or(Ok(()), Err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a listing answers of which this is told: how many names, or an error. There is room for so many.
    fn answer(told: &[Answer<()>], room: usize) -> Answer<usize> {
        let (mut answered, mut names) = (Answered::default(), 0);
        for told in told {
            let is_over = answered.take(told.map(|()| absent()), |_| {
                let is_full = names == room;
                names += usize::from(!is_full);
                is_full
            });
            if is_over {
                break;
            }
        }
        answered.end(Ok(())).map(|()| names)
    }

    #[test]
    fn an_answer_without_a_name_is_the_directorys_end_or_an_error() {
        let (gone, fails) = (Err(Failed(libc::ENOENT)), Err(Failed(libc::ESTALE)));
        assert_eq!(answer(&[], 9), Ok(0));
        assert_eq!(answer(&[gone, gone], 9), Ok(0));
        assert_eq!(answer(&[gone, Ok(()), gone, Ok(())], 9), Ok(2));
        // Every look-up fails, the first or a later one.
        assert_eq!(answer(&[fails, fails], 9), Err(Failed(libc::ESTALE)));
        assert_eq!(answer(&[gone, fails], 9), Err(Failed(libc::ESTALE)));
        // What there is is told first.
        assert_eq!(answer(&[Ok(()), fails, Ok(())], 9), Ok(1));
        assert_eq!(answer(&[Ok(()), Ok(()), fails], 1), Ok(1));
        let answered = Answered {
            any: true,
            failed: None,
        };
        assert_eq!(answered.end(Err(Failed(libc::EIO))), Ok(()));
        let failed = Answered::default().end(Err(Failed(libc::EIO)));
        assert_eq!(failed, Err(Failed(libc::EIO)));
    }
}
