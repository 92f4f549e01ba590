//! The kernel's requests. Each is passed on to what does the work, and its answer given back; nothing is decided here but what a mount asks of the kernel.

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use forebay::sys::extents::STORE_SYNC;
use rustix::fs::AtFlags;

use crate::attributes::{FileAttr, NewTime, Time};
use crate::changes::Changes;
use crate::contents::{Manner, Part};
use crate::failed::{Answer, Failed};
use crate::names::Special;
use crate::replies::{
    Entries, attributes, created, entry, found_or_absent, list_with_attributes, opened, reply,
    room, space, synced, told_bytes,
};
use crate::served::Served;
use crate::transport::{Answers, Request, Unanswered};
use crate::wire::opcode::*;
use crate::wire::{self, init};

mod asked;
#[cfg(test)]
mod tests;

use asked::Asked;

/// A file system that takes requests.
pub(crate) struct Serving<F>(pub(crate) Arc<F>);

/// What is asked of the kernel; what it does not have is done without. Not asked for is `FUSE_ASYNC_DIO`: the parts of one write that makes a file
/// longer would come in any order, and appends be mixed.
pub(crate) fn wanted(served: &impl Served) -> u64 {
    init::ASYNC_READ
        | init::BIG_WRITES
        | init::MAX_PAGES
        | init::PARALLEL_DIROPS
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::HANDLE_KILLPRIV_V2
        | served.also()
}

impl<F: Served> Answers for Serving<F> {
    fn answer(&self, request: Request<'_>, to: Unanswered) {
        let asked = Asked::new(&request);
        // A panic ends at its request, which fails: the thread goes on to serve others.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            self.answer_or_change(request.header.opcode, asked, to);
        }));
    }

    fn ended(&self) {
        self.0.ended();
    }
}

impl<F: Served> Serving<F> {
    fn answer_or_change(&self, operation: u32, asked: Asked<'_>, to: Unanswered) {
        match operation {
            LOOKUP => reply(to, self.look_up(asked)),
            GETATTR => reply(to, self.attributes(asked)),
            READLINK => match self.0.read_link(asked.number()) {
                Ok(target) => to.send(&[IoSlice::new(&target)]),
                Err(failed) => to.fail(failed),
            },
            READ => self.read(asked, to),
            READDIR => self.list(asked, false, to),
            READDIRPLUS => self.list(asked, true, to),
            GETXATTR => self.attribute(asked, to),
            LISTXATTR => self.attribute_names(asked, to),
            STATFS => reply(to, self.0.room(asked.number()).map(|found| room(&found))),
            LSEEK => reply(to, self.seek(asked)),
            IOCTL => self.about_store(asked, to),
            FORGET | BATCH_FORGET => {
                // Nobody could be told of a failure.
                let _ = self.forget(operation, asked);
                to.none();
            }
            _ => self.open_or_change(operation, asked, to),
        }
    }

    fn open_or_change(&self, operation: u32, asked: Asked<'_>, to: Unanswered) {
        match operation {
            OPEN => reply(to, self.open(asked)),
            OPENDIR => reply(to, self.open_directory(asked)),
            CREATE => reply(to, self.create(asked)),
            TMPFILE => reply(to, self.create_nameless(asked)),
            WRITE => reply(to, self.write(asked).map(written)),
            COPY_FILE_RANGE => reply(to, self.copy(asked).map(written)),
            FALLOCATE => reply(to, self.allocate(asked)),
            FLUSH => reply(to, self.flush(asked)),
            FSYNC => reply(to, self.sync(asked)),
            FSYNCDIR => reply(to, self.sync_directory(asked)),
            RELEASE => reply(to, self.release(asked)),
            RELEASEDIR => reply(to, self.release_directory(asked)),
            SETATTR => reply(to, self.told(self.change(asked))),
            MKNOD => reply(to, self.made(self.make_special(asked))),
            MKDIR => reply(to, self.made(self.make_directory(asked))),
            SYMLINK => reply(to, self.made(self.make_symlink(asked))),
            LINK => reply(to, self.made(self.link(asked))),
            UNLINK => reply(to, self.unlink(asked, AtFlags::empty())),
            RMDIR => reply(to, self.unlink(asked, AtFlags::REMOVEDIR)),
            RENAME => reply(to, self.rename(asked)),
            RENAME2 => reply(to, self.rename_with_flags(asked)),
            SETXATTR => reply(to, self.set_attribute(asked)),
            REMOVEXATTR => reply(to, self.remove_attribute(asked)),
            // Once, before all others.
            INIT => to.fail(Failed(libc::EIO)),
            _ => to.fail(Failed(libc::ENOSYS)),
        }
    }

    fn told(&self, answer: Answer<FileAttr>) -> Answer<wire::AttrOut> {
        Ok(attributes(&*self.0, &answer?))
    }

    fn made(&self, answer: Answer<FileAttr>) -> Answer<wire::EntryOut> {
        Ok(entry(&*self.0, &answer?))
    }

    /// The handle that a request is about.
    fn handle(number: u64, told: u64) -> u64 {
        match F::ALONE {
            true => number,
            false => told,
        }
    }

    fn part(number: u64, told: u64, offset: u64) -> Answer<Part> {
        match i64::try_from(offset) {
            Ok(_) => Ok(Part {
                handle: Self::handle(number, told),
                offset,
            }),
            Err(_) => Err(Failed(libc::EINVAL)),
        }
    }

    fn look_up(&self, mut asked: Asked<'_>) -> Answer<wire::EntryOut> {
        let name = asked.name()?;
        found_or_absent(&*self.0, self.0.look_up(asked.number(), name))
    }

    fn attributes(&self, asked: Asked<'_>) -> Answer<wire::AttrOut> {
        // By which handle does not matter.
        asked.own(wire::GetattrIn::parse)?;
        self.told(self.0.attributes(asked.number()))
    }

    fn forget(&self, operation: u32, mut asked: Asked<'_>) -> Answer<()> {
        if operation == FORGET {
            let wire::ForgetIn { nlookup } = asked.own(wire::ForgetIn::parse)?;
            self.0.forget(asked.number(), nlookup);
            return Ok(());
        }
        let all = asked.own(wire::BatchForgetIn::parse)?;
        for _ in 0..all.count {
            let one = asked.next(wire::ForgetOne::SIZE)?;
            if let Some(one) = wire::ForgetOne::parse(one) {
                self.0.forget(one.nodeid, one.nlookup);
            }
        }
        Ok(())
    }

    fn change(&self, asked: Asked<'_>) -> Answer<FileAttr> {
        let new = asked.own(wire::SetattrIn::parse)?;
        let is_set = |bit| new.valid & bit != 0;
        let time = |set, now, seconds, nanoseconds| {
            let at = Time {
                seconds,
                nanoseconds,
            };
            is_set(set).then_some(match is_set(now) {
                true => NewTime::Now,
                false => NewTime::At(at),
            })
        };
        use wire::set::*;
        let changes = Changes {
            mode: is_set(MODE).then_some(new.mode),
            uid: is_set(UID).then_some(new.uid),
            gid: is_set(GID).then_some(new.gid),
            len: is_set(SIZE).then_some(new.size),
            accessed: time(ATIME, ATIME_NOW, new.atime, new.atimensec),
            modified: time(MTIME, MTIME_NOW, new.mtime, new.mtimensec),
            handle: is_set(FH).then_some(new.fh),
            kills: is_set(KILL_SUIDGID),
        };
        self.0.change(asked.number(), &changes)
    }

    fn make_special(&self, mut asked: Asked<'_>) -> Answer<FileAttr> {
        let new = asked.own(wire::MknodIn::parse)?;
        let special = Special {
            mode: new.mode,
            device: new.rdev,
        };
        let place = (asked.number(), asked.name()?);
        self.0.make_special(asked.by(), place, &special)
    }

    fn make_directory(&self, mut asked: Asked<'_>) -> Answer<FileAttr> {
        let new = asked.own(wire::MkdirIn::parse)?;
        let place = (asked.number(), asked.name()?);
        self.0.make_directory(asked.by(), place, new.mode)
    }

    fn make_symlink(&self, mut asked: Asked<'_>) -> Answer<FileAttr> {
        let place = (asked.number(), asked.name()?);
        let target = Path::new(asked.name()?);
        self.0.make_symlink(asked.by(), place, target)
    }

    fn link(&self, mut asked: Asked<'_>) -> Answer<FileAttr> {
        let old = asked.own(wire::LinkIn::parse)?;
        let name = asked.name()?;
        self.0.link(old.oldnodeid, asked.number(), name)
    }

    fn unlink(&self, mut asked: Asked<'_>, flags: AtFlags) -> Answer<()> {
        let name = asked.name()?;
        self.0.unlink(asked.number(), name, flags)
    }

    fn rename(&self, asked: Asked<'_>) -> Answer<()> {
        let to = asked.own(wire::RenameIn::parse)?;
        self.rename_to(asked, to.newdir, 0)
    }

    fn rename_with_flags(&self, asked: Asked<'_>) -> Answer<()> {
        let to = asked.own(wire::Rename2In::parse)?;
        self.rename_to(asked, to.newdir, to.flags)
    }

    fn rename_to(&self, mut asked: Asked<'_>, directory: u64, flags: u32) -> Answer<()> {
        let from = (asked.number(), asked.name()?);
        let to = (directory, asked.name()?);
        self.0.rename(from, to, flags)
    }

    fn open(&self, asked: Asked<'_>) -> Answer<wire::OpenOut> {
        // Said once: the kernel tells of no opening from then on, and of no close.
        if F::ALONE {
            return Err(Failed(libc::ENOSYS));
        }
        let how = asked.own(wire::OpenIn::parse)?;
        let handle = self.0.open(asked.number(), how.flags)?;
        let ways = self.0.as_opened(handle);
        // Who can only read has nothing to wait for when he closes.
        let ways = match how.flags & libc::O_ACCMODE {
            libc::O_RDONLY => ways | wire::opened::NOFLUSH,
            _ => ways,
        };
        Ok(opened(handle, ways))
    }

    fn create(&self, mut asked: Asked<'_>) -> Answer<wire::CreateOut> {
        let new = asked.own(wire::CreateIn::parse)?;
        let place = (asked.number(), asked.name()?);
        let (told, handle) = self.0.create(asked.by(), place, new.mode, new.flags)?;
        Ok(created(&*self.0, &told, handle))
    }

    fn create_nameless(&self, mut asked: Asked<'_>) -> Answer<wire::CreateOut> {
        let new = asked.own(wire::CreateIn::parse)?;
        // The kernel's own for what has none.
        asked.name()?;
        let (told, handle) =
            self.0
                .create_nameless(asked.by(), asked.number(), new.mode, new.flags)?;
        Ok(created(&*self.0, &told, handle))
    }

    fn read(&self, asked: Asked<'_>, to: Unanswered) {
        let part = asked.own(wire::ReadIn::parse).and_then(|from| {
            let at = Self::part(asked.number(), from.fh, from.offset)?;
            Ok((at, asked::room(from.size)))
        });
        match part {
            Ok((at, len)) => self.0.read(at, len, to),
            Err(failed) => to.fail(failed),
        }
    }

    fn write(&self, mut asked: Asked<'_>) -> Answer<u32> {
        let from = asked.own(wire::WriteIn::parse)?;
        let bytes = asked.next(from.size as usize)?;
        let how = Manner {
            flags: from.flags,
            mapped: from.write_flags & wire::write::CACHE != 0,
            kills: from.write_flags & wire::write::KILL_SUIDGID != 0,
        };
        let at = Self::part(asked.number(), from.fh, from.offset)?;
        self.write_all(at, bytes, how)
    }

    /// Writes. What comes from mapped pages is written whole or fails: the kernel takes all of them for clean, however few bytes the answer names.
    fn write_all(&self, at: Part, bytes: &[u8], how: Manner) -> Answer<u32> {
        let mut done = self.0.write(at, bytes, how)? as usize;
        while how.mapped && done < bytes.len() {
            let rest = Part {
                offset: at.offset + done as u64,
                ..at
            };
            match self.0.write(rest, &bytes[done..], how)? {
                0 => return Err(Failed(libc::EIO)),
                more => done += more as usize,
            }
        }
        Ok(done as u32)
    }

    fn flush(&self, asked: Asked<'_>) -> Answer<()> {
        if F::ALONE {
            return Err(Failed(libc::ENOSYS));
        }
        self.0.flush(asked.own(wire::FlushIn::parse)?.fh)
    }

    fn release(&self, asked: Asked<'_>) -> Answer<()> {
        self.0.release(asked.own(wire::ReleaseIn::parse)?.fh);
        Ok(())
    }

    fn sync(&self, asked: Asked<'_>) -> Answer<()> {
        let how = asked.own(wire::FsyncIn::parse)?;
        let handle = Self::handle(asked.number(), how.fh);
        self.0
            .sync(handle, how.fsync_flags & wire::FSYNC_FDATASYNC != 0)
    }

    fn open_directory(&self, asked: Asked<'_>) -> Answer<wire::OpenOut> {
        if F::ALONE {
            return Err(Failed(libc::ENOSYS));
        }
        asked.own(wire::OpenIn::parse)?;
        Ok(opened(self.0.open_directory(asked.number())?, 0))
    }

    fn list(&self, asked: Asked<'_>, with_attributes: bool, to: Unanswered) {
        let from = match asked.own(wire::ReadIn::parse) {
            Ok(from) => from,
            Err(failed) => return to.fail(failed),
        };
        let handle = Self::handle(asked.number(), from.fh);
        to.fill(asked::room(from.size), |memory| {
            let mut entries = Entries::new(memory);
            if with_attributes {
                let directory = (asked.number(), handle);
                list_with_attributes(&*self.0, directory, from.offset, &mut entries)?;
            } else {
                self.0
                    .list(handle, from.offset, |listed| entries.add(listed, None))?;
            }
            Ok(entries.len())
        });
    }

    fn release_directory(&self, asked: Asked<'_>) -> Answer<()> {
        let how = asked.own(wire::ReleaseIn::parse)?;
        self.0.close_directory(how.fh);
        Ok(())
    }

    fn sync_directory(&self, asked: Asked<'_>) -> Answer<()> {
        let how = asked.own(wire::FsyncIn::parse)?;
        self.0.sync_directory(Self::handle(asked.number(), how.fh))
    }

    fn set_attribute(&self, mut asked: Asked<'_>) -> Answer<()> {
        let new = asked.own(wire::SetxattrIn::parse)?;
        let name = asked.name()?;
        let value = asked.next(new.size as usize)?;
        self.0.set_attribute(asked.number(), name, value, new.flags)
    }

    fn attribute(&self, mut asked: Asked<'_>, to: Unanswered) {
        let named = asked.own(wire::GetxattrIn::parse);
        match named.and_then(|how| Ok((how, asked.name()?))) {
            Ok((how, name)) => told_bytes(how.size, to, |memory| {
                self.0.attribute(asked.number(), name, memory)
            }),
            Err(failed) => to.fail(failed),
        }
    }

    fn attribute_names(&self, asked: Asked<'_>, to: Unanswered) {
        match asked.own(wire::GetxattrIn::parse) {
            Ok(how) => told_bytes(how.size, to, |memory| {
                self.0.attribute_names(asked.number(), memory)
            }),
            Err(failed) => to.fail(failed),
        }
    }

    fn remove_attribute(&self, mut asked: Asked<'_>) -> Answer<()> {
        let name = asked.name()?;
        self.0.remove_attribute(asked.number(), name)
    }

    fn allocate(&self, asked: Asked<'_>) -> Answer<()> {
        let how = asked.own(wire::FallocateIn::parse)?;
        let at = Self::part(asked.number(), how.fh, how.offset)?;
        i64::try_from(how.length).map_err(|_| Failed(libc::EINVAL))?;
        self.0.allocate(at, how.length, how.mode)
    }

    fn seek(&self, asked: Asked<'_>) -> Answer<wire::LseekOut> {
        let from = asked.own(wire::LseekIn::parse)?;
        let at = Self::part(asked.number(), from.fh, from.offset);
        // Before a file's beginning nothing is found, as elsewhere.
        let at = at.map_err(|_| Failed(libc::ENXIO))?;
        let offset = self.0.seek(at, from.whence)?;
        Ok(wire::LseekOut { offset })
    }

    fn about_store(&self, mut asked: Asked<'_>, to: Unanswered) {
        let number = asked.number();
        let mut parsed = || {
            let how = asked.own(wire::IoctlIn::parse)?;
            if how.flags & wire::IOCTL_UNRESTRICTED != 0 {
                return Err(Failed(libc::ENOSYS));
            }
            let at = Self::part(number, how.fh, 0)?;
            Ok((at, how.cmd, asked.next(how.in_size as usize)?))
        };
        match parsed() {
            Ok((at, STORE_SYNC, _)) => reply(to, synced(&*self.0, at.handle, number)),
            Ok((at, command, given)) => reply(to, space(&*self.0, at, (command, given))),
            Err(failed) => to.fail(failed),
        }
    }

    fn copy(&self, asked: Asked<'_>) -> Answer<u32> {
        let how = asked.own(wire::CopyFileRangeIn::parse)?;
        let from = Self::part(asked.number(), how.fh_in, how.off_in)?;
        let to = Self::part(how.nodeid_out, how.fh_out, how.off_out)?;
        self.0.copy(from, to, how.len)
    }
}

fn written(size: u32) -> wire::WriteOut {
    wire::WriteOut { size, padding: 0 }
}
