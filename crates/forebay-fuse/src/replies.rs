//! Answers to the kernel's requests, by their kinds.

use std::time::{Duration, SystemTime};

use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use rustix::fs::StatVfs;

use crate::contents::{SET_GROUP, SET_USER};
use crate::failed::{Answer, Failed, guarded};
use crate::names::is_dots;
use crate::served::Served;

/// Numbers are not used for another file as long as the kernel knows them.
pub(crate) const ONLY: Generation = Generation(0);
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
pub(crate) fn absent() -> FileAttr {
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

pub(crate) fn entry(served: &impl Served, answer: Answer<FileAttr>, reply: ReplyEntry) {
    match answer {
        Ok(told) => reply.entry(&believed(served, &told), &told, ONLY),
        Err(failed) => reply.error(failed.into()),
    }
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

pub(crate) fn written(answer: Answer<u32>, reply: ReplyWrite) {
    match answer {
        Ok(n) => reply.written(n),
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
pub(crate) fn list_with_attributes(
    served: &impl Served,
    (number, handle): (u64, u64),
    from: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Answer<()> {
    let (mut listed, mut failed) = (0, None);
    served.list(handle, from, |entry| {
        listed += 1;
        if is_dots(entry.name) {
            // Of these two the kernel takes the name alone.
            let told = served.attributes(number);
            let inode = INodeNo(entry.inode);
            return told.is_ok_and(|told| {
                let believed = believed(served, &told);
                reply.add(inode, entry.next, entry.name, &believed, &told, ONLY)
            });
        }
        let told = match served.look_up(number, entry.name) {
            Ok(told) => told,
            // It has gone since.
            Err(Failed(libc::ENOENT)) => return false,
            // The list ends before it, and the next one begins with the error.
            Err(why) => {
                failed = Some(why).filter(|_| listed == 1);
                return true;
            }
        };
        let believed = believed(served, &told);
        let is_full = reply.add(told.ino, entry.next, entry.name, &believed, &told, ONLY);
        if is_full {
            served.forget(told.ino.0, 1);
        }
        is_full
    })?;
    failed.map_or(Ok(()), Err)
}
