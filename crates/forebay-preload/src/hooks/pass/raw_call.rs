//! `syscall(number, ...)`: where a hook serves the call, and knows the descriptor, the hook; for others what their hooks do before.
//!
//! What is called here by libc's names are our own hooks.

use libc::{c_int, c_long};

use super::{
    Args, Onward, asynchronous, confined, fd, identity, names, programs, sockets, threads,
};
use crate::files;
use crate::foreign;
use crate::hooks::{attributes, open, times};
use crate::inside::Inside;
use crate::program;

/// `syscall(number, ...)`.
pub fn syscall(args: &Args) -> usize {
    if Inside::is() {
        return 0;
    }
    match way(args[0] as c_long) {
        Way::Known(at, _) if !files::is_known(fd(args[at])) => 0,
        Way::Known(..) | Way::Always(_) => by_hook as *const () as usize,
        Way::Before(before) => {
            let [_, a, b, c, d, e] = *args;
            before(&[a, b, c, d, e, 0])
        }
        Way::Other => 0,
    }
}

/// A system call by the function of ours that stands for it.
type Call = unsafe fn([usize; 6]) -> c_long;

enum Way {
    /// Nothing to us.
    Other,
    /// A hook serves it for descriptors that are known; which argument of `syscall` the descriptor is.
    Known(usize, Call),
    /// A hook serves it.
    Always(Call),
    /// Passed on, after this.
    Before(fn(&Args) -> usize),
}

/// The call by its hook.
///
/// # Safety
/// As for the function that the number stands for.
unsafe extern "C-unwind" fn by_hook(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match way(number) {
        // SAFETY: the caller's arguments, in the order of the system call, which is that of the function.
        Way::Known(_, call) | Way::Always(call) => unsafe { call([a, b, c, d, e, f]) },
        Way::Before(_) | Way::Other => crate::serve::fail(libc::ENOSYS) as c_long,
    }
}

fn at<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Each number with its arguments and the call that they make; what is only done before has no arguments.
macro_rules! ways {
    (
        $(known($at:literal) { $($known:ident($($word:ident),*) => $call:expr;)* })*
        always { $($always:ident($($each:ident),*) => $hook:expr;)* }
        before { $($($number:ident)|+ => $before:expr;)* }
    ) => {
        fn way(number: c_long) -> Way {
            match number {
                $($(libc::$known => Way::Known($at, {
                    /// # Safety
                    /// As for [`by_hook`].
                    unsafe fn call([$($word,)* ..]: [usize; 6]) -> c_long {
                        // SAFETY: the caller's promise.
                        unsafe { ($call) as c_long }
                    }
                    call
                }),)*)*
                $(libc::$always => Way::Always({
                    /// # Safety
                    /// As for [`by_hook`].
                    unsafe fn call([$($each,)* ..]: [usize; 6]) -> c_long {
                        // SAFETY: the caller's promise.
                        unsafe { ($hook) as c_long }
                    }
                    call
                }),)*
                $($(libc::$number)|+ => Way::Before(|args| $before(args).address()),)*
                _ => Way::Other,
            }
        }
    };
}

ways! {
    known(1) {
        SYS_read(fd, to, len) => libc::read(fd as _, at(to), len);
        SYS_write(fd, from, len) => libc::write(fd as _, at(from), len);
        SYS_pread64(fd, to, len, offset) => libc::pread64(fd as _, at(to), len, offset as _);
        SYS_pwrite64(fd, from, len, offset) => libc::pwrite64(fd as _, at(from), len, offset as _);
        SYS_readv(fd, parts, count) => libc::readv(fd as _, at(parts), count as _);
        SYS_writev(fd, parts, count) => libc::writev(fd as _, at(parts), count as _);
        SYS_preadv(fd, parts, count, offset) => libc::preadv64(fd as _, at(parts), count as _, offset as _);
        SYS_pwritev(fd, parts, count, offset) => libc::pwritev64(fd as _, at(parts), count as _, offset as _);
        SYS_preadv2(fd, parts, count, offset, _high, flags) =>
            libc::preadv64v2(fd as _, at(parts), count as _, offset as _, flags as _);
        SYS_pwritev2(fd, parts, count, offset, _high, flags) =>
            libc::pwritev64v2(fd as _, at(parts), count as _, offset as _, flags as _);
        SYS_lseek(fd, offset, whence) => libc::lseek64(fd as _, offset as _, whence as _);
        SYS_fsync(fd) => libc::fsync(fd as _);
        SYS_fdatasync(fd) => libc::fdatasync(fd as _);
        SYS_sync_file_range(fd, offset, len, flags) => libc::sync_file_range(fd as _, offset as _, len as _, flags as _);
        SYS_ftruncate(fd, len) => libc::ftruncate64(fd as _, len as _);
        SYS_fallocate(fd, mode, offset, len) => libc::fallocate64(fd as _, mode as _, offset as _, len as _);
        SYS_fstat(fd, to) => libc::fstat64(fd as _, at(to));
        SYS_dup(fd) => libc::dup(fd as _);
        SYS_fcntl(fd, command, argument) => libc::fcntl(fd as _, command as _, argument);
        SYS_flock(fd, operation) => libc::flock(fd as _, operation as _);
        SYS_fchmod(fd, mode) => libc::fchmod(fd as _, mode as _);
        SYS_fchown(fd, user, group) => libc::fchown(fd as _, user as _, group as _);
        SYS_fsetxattr(fd, name, value, len, flags) => libc::fsetxattr(fd as _, at(name), at(value), len, flags as _);
        SYS_fremovexattr(fd, name) => libc::fremovexattr(fd as _, at(name));
        SYS_fadvise64(fd, offset, len, advice) =>
            match libc::posix_fadvise64(fd as _, offset as _, len as _, advice as _) {
                0 => 0,
                errno => crate::serve::fail(errno),
            };
        SYS_readahead(fd, offset, count) => libc::readahead(fd as _, offset as _, count);
    }
    known(5) {
        SYS_mmap(to, len, access, flags, fd, offset) =>
            libc::mmap64(at(to), len, access as _, flags as _, fd as _, offset as _).addr();
    }
    always {
        SYS_ioctl(fd, request, argument) => libc::ioctl(fd as _, request as _, argument);
        SYS_sync() => { libc::sync(); 0 };
        SYS_syncfs(fd) => libc::syncfs(fd as _);
        SYS_close(fd) => libc::close(fd as _);
        SYS_close_range(first, last, flags) => libc::close_range(first as _, last as _, flags as _);
        SYS_dup2(from, to) => libc::dup2(from as _, to as _);
        SYS_dup3(from, to, flags) => libc::dup3(from as _, to as _, flags as _);
        SYS_open(path, flags, mode) => libc::open64(at(path), flags as _, mode as libc::c_uint);
        SYS_openat(dir, path, flags, mode) => libc::openat64(dir as _, at(path), flags as _, mode as libc::c_uint);
        SYS_openat2(dir, path, how, size) => open_how(dir, path, how, size);
        SYS_creat(path, mode) => libc::creat64(at(path), mode as _);
        SYS_stat(path, to) => libc::stat64(at(path), at(to));
        SYS_lstat(path, to) => libc::lstat64(at(path), at(to));
        SYS_newfstatat(dir, path, to, flags) => libc::fstatat64(dir as _, at(path), at(to), flags as _);
        SYS_statx(dir, path, flags, mask, to) => libc::statx(dir as _, at(path), flags as _, mask as _, at(to));
        SYS_truncate(path, len) => libc::truncate64(at(path), len as _);
        SYS_utimensat(dir, path, times, flags) => libc::utimensat(dir as _, at(path), at(times), flags as _);
        SYS_utimes(path, times) => libc::utimes(at(path), at(times));
        SYS_utime(path, times) => libc::utime(at(path), at(times));
        SYS_futimesat(dir, path, times) => times::futimesat(dir as _, at(path), at(times));
        SYS_umount2(path, flags) => libc::umount2(at(path), flags as _);
        SYS_chmod(path, mode) => libc::chmod(at(path), mode as _);
        SYS_fchmodat(dir, path, mode) => libc::fchmodat(dir as _, at(path), mode as _, 0);
        SYS_fchmodat2(dir, path, mode, flags) => attributes::fchmodat2(dir as _, at(path), mode as _, flags as _);
        SYS_chown(path, user, group) => libc::chown(at(path), user as _, group as _);
        SYS_lchown(path, user, group) => libc::lchown(at(path), user as _, group as _);
        SYS_fchownat(dir, path, user, group, flags) =>
            libc::fchownat(dir as _, at(path), user as _, group as _, flags as _);
        SYS_setxattr(path, name, value, len, flags) =>
            libc::setxattr(at(path), at(name), at(value), len, flags as _);
        SYS_lsetxattr(path, name, value, len, flags) =>
            libc::lsetxattr(at(path), at(name), at(value), len, flags as _);
        SYS_removexattr(path, name) => libc::removexattr(at(path), at(name));
        SYS_lremovexattr(path, name) => libc::lremovexattr(at(path), at(name));
        SYS_link(from, to) => libc::link(at(from), at(to));
        SYS_linkat(from_dir, from, to_dir, to, flags) =>
            libc::linkat(from_dir as _, at(from), to_dir as _, at(to), flags as _);
        SYS_unlink(path) => libc::unlink(at(path));
        SYS_unlinkat(dir, path, flags) => libc::unlinkat(dir as _, at(path), flags as _);
        SYS_rename(from, to) => libc::rename(at(from), at(to));
        SYS_renameat(from_dir, from, to_dir, to) => libc::renameat(from_dir as _, at(from), to_dir as _, at(to));
        SYS_renameat2(from_dir, from, to_dir, to, flags) =>
            libc::renameat2(from_dir as _, at(from), to_dir as _, at(to), flags as _);
        SYS_sendfile(to, from, offset, count) => libc::sendfile64(to as _, from as _, at(offset), count);
        SYS_splice(from, from_at, to, to_at, count, flags) =>
            libc::splice(from as _, at(from_at), to as _, at(to_at), count, flags as _);
        SYS_copy_file_range(from, from_at, to, to_at, count, flags) =>
            libc::copy_file_range(from as _, at(from_at), to as _, at(to_at), count, flags as _);
        SYS_vmsplice(pipe, parts, count, flags) => libc::vmsplice(pipe as _, at(parts), count, flags as _);
        SYS_sendmsg(socket, message, flags) => libc::sendmsg(socket as _, at::<libc::msghdr>(message), flags as _);
        SYS_munmap(from, len) => libc::munmap(at(from), len);
        SYS_mremap(from, len, new_len, flags, to) => libc::mremap(at(from), len, new_len, flags as _, to);
        SYS_setrlimit(resource, limit) => libc::setrlimit(resource as _, at(limit));
        SYS_prlimit64(process, resource, limit, before) =>
            libc::prlimit(process as _, resource as _, at(limit), at(before));
        SYS_pidfd_getfd(process, fd, flags) => sockets::stolen(process as _, fd as _, flags as _);
    }
    before {
        SYS_sendmmsg => sockets::many;
        SYS_sendto => sockets::bytes;
        SYS_inotify_add_watch => names::watch;
        SYS_io_submit => asynchronous::submit;
        SYS_io_uring_setup => asynchronous::ring;
        SYS_execve | SYS_execveat => programs::replace;
        SYS_fork | SYS_vfork => programs::forked;
        SYS_clone => programs::cloned_raw;
        SYS_clone3 => programs::cloned_by_structure;
        SYS_setuid | SYS_setfsuid => identity::user;
        SYS_setreuid | SYS_setresuid => identity::users;
        SYS_setgid | SYS_setfsgid => identity::group;
        SYS_setregid | SYS_setresgid => identity::groups;
        SYS_capset => identity::capabilities;
        SYS_setgroups | SYS_chroot | SYS_pivot_root | SYS_setns => identity::other;
        SYS_unshare => identity::unshare;
        SYS_rt_sigprocmask => threads::mask;
        SYS_prctl => confined::control;
        SYS_seccomp => confined::filter;
        SYS_landlock_restrict_self => confined::restrict;
    }
}

/// `openat2`. A structure of another size than today's is the kernel's to look at.
///
/// # Safety
/// As for the call.
unsafe fn open_how(dir: usize, path: usize, how: usize, size: usize) -> c_int {
    let known = size_of::<[u64; 3]>();
    match program::peek::<[u64; 3]>(how) {
        // SAFETY: the caller's string.
        Some(how) if size == known => unsafe { open::openat2(dir as c_int, at(path), how) },
        _ => {
            // SAFETY: what the caller asks of the kernel.
            let fd =
                unsafe { crate::raw::call_errno(libc::SYS_openat2, [dir, path, how, size, 0, 0]) }
                    as c_int;
            if fd >= 0 {
                return foreign::received(fd, files::Why::RawCall);
            }
            fd
        }
    }
}
