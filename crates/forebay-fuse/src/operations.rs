//! The kernel's requests. Each is passed on to what does the work, and its answer given back; nothing is decided here but what is said once,
//! when the file system is mounted.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::AtFlags;

use crate::changes::Changes;
use crate::contents::{Manner, Part, REQUEST_BYTES_MAX};
use crate::failed::{Answer, Failed, guarded};
use crate::names::Special;
use crate::replies::{
    attributes, created, done, entry, found_or_absent, list_with_attributes, opened, opened_file,
    room, space, told_bytes, written,
};
use crate::served::Served;

/// Requests that the kernel sends on its own account, not to make a program wait.
const BACKGROUND_MAX: u16 = 64;

/// A file system that takes requests.
pub(crate) struct Serving<F>(pub(crate) Arc<F>);

impl<F: Served> Serving<F> {
    /// The handle that a request is about.
    fn handle(number: INodeNo, told: FileHandle) -> u64 {
        match F::ALONE {
            true => number.0,
            false => told.0,
        }
    }

    fn part(number: INodeNo, told: FileHandle, offset: u64) -> Part {
        let handle = Self::handle(number, told);
        Part { handle, offset }
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
}

impl<F: Served> Filesystem for Serving<F> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What this kernel does not have is done without. Not asked for is FUSE_ASYNC_DIO: the parts of one write that makes a file longer would come in
        // any order, and appends be mixed.
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ]
        .into_iter()
        .chain(F::ALSO.iter().copied())
        {
            let _ = config.add_capabilities(wanted);
        }
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = guarded(|| self.0.look_up(parent.0, name));
        found_or_absent(&*self.0, found, reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        self.0.forget(ino.0, lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        attributes(&*self.0, guarded(|| self.0.attributes(ino.0)), reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        len: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        fh: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_again: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let handle = fh.map(|handle| handle.0);
        let by_root = req.uid() == 0;
        let changes = Changes {
            mode,
            uid,
            gid,
            len,
            accessed,
            modified,
            handle,
            by_root,
        };
        attributes(&*self.0, guarded(|| self.0.change(ino.0, &changes)), reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match guarded(|| self.0.read_link(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(failed) => reply.error(failed.into()),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let special = Special { mode, device };
        let made = guarded(|| self.0.make_special(req, (parent.0, name), &special));
        entry(&*self.0, made, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = guarded(|| self.0.make_directory(req, (parent.0, name), mode));
        entry(&*self.0, made, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(
            guarded(|| self.0.unlink(parent.0, name, AtFlags::empty())),
            reply,
        );
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(
            guarded(|| self.0.unlink(parent.0, name, AtFlags::REMOVEDIR)),
            reply,
        );
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let made = guarded(|| self.0.make_symlink(req, (parent.0, name), target));
        entry(&*self.0, made, reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name), (newparent.0, newname));
        done(guarded(|| self.0.rename(from, to, flags.bits())), reply);
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        entry(
            &*self.0,
            guarded(|| self.0.link(ino.0, newparent.0, newname)),
            reply,
        );
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // Said once: the kernel tells of no opening from then on, and of no close.
        if F::ALONE {
            return reply.error(Errno::ENOSYS);
        }
        opened_file::<F>(guarded(|| self.0.open(ino.0, flags.0)), flags.0, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match guarded(|| self.0.create(req, (parent.0, name), mode, flags)) {
            Ok((told, handle)) => created(&*self.0, &told, handle, reply),
            Err(failed) => reply.error(failed.into()),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reply = Some(reply);
        let at = Self::part(ino, fh, offset);
        let read = guarded(|| {
            self.0.read(at, size, |bytes| {
                if let Some(reply) = reply.take() {
                    reply.data(bytes);
                }
            })
        });
        if let (Err(failed), Some(reply)) = (read, reply) {
            reply.error(failed.into());
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let how = Manner {
            flags: flags.0,
            mapped: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kills: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let at = Self::part(ino, fh, offset);
        written(guarded(|| self.write_all(at, data, how)), reply);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if F::ALONE {
            return reply.error(Errno::ENOSYS);
        }
        done(guarded(|| self.0.flush(fh.0)), reply);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let released = guarded(|| {
            self.0.release(fh.0);
            Ok(())
        });
        done(released, reply);
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        done(
            guarded(|| self.0.sync(Self::handle(ino, fh), datasync)),
            reply,
        );
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if F::ALONE {
            return reply.error(Errno::ENOSYS);
        }
        let handle = guarded(|| self.0.open_directory(ino.0));
        opened(handle, FopenFlags::empty(), reply);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = guarded(|| {
            self.0.list(Self::handle(ino, fh), offset, |entry| {
                reply.add(INodeNo(entry.inode), entry.next, entry.kind, entry.name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(failed) => reply.error(failed.into()),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = guarded(|| {
            list_with_attributes(&*self.0, (ino.0, Self::handle(ino, fh)), offset, &mut reply)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(failed) => reply.error(failed.into()),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.close_directory(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        done(
            guarded(|| self.0.sync_directory(Self::handle(ino, fh))),
            reply,
        );
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        room(guarded(|| self.0.room(ino.0)), reply);
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        done(
            guarded(|| self.0.set_attribute(ino.0, name, value, flags)),
            reply,
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        told_bytes(size, reply, |memory| self.0.attribute(ino.0, name, memory));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        told_bytes(size, reply, |memory| self.0.attribute_names(ino.0, memory));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(guarded(|| self.0.remove_attribute(ino.0, name)), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let at = Self::part(ino, fh, offset);
        done(guarded(|| self.0.allocate(at, length, mode)), reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel lets no negative one pass.
        let at = Self::part(ino, fh, offset.max(0) as u64);
        match guarded(|| self.0.seek(at, whence)) {
            Ok(found) => reply.offset(found as i64),
            Err(failed) => reply.error(failed.into()),
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        space(&*self.0, Self::part(ino, fh, 0), (cmd, in_data), reply);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        from: INodeNo,
        from_fh: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_fh: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = Self::part(from, from_fh, from_offset);
        let to = Self::part(to, to_fh, to_offset);
        written(guarded(|| self.0.copy(from, to, len)), reply);
    }
}
