//! `syscall(number, ...)`: where a hook serves the call, and knows the descriptor, the hook; for others what their hooks do before.
//!
//! What is called here by libc's names are our own hooks.

use libc::{c_char, c_int, c_long, c_uint, c_void};

use super::{Args, asynchronous, fd, give_path, identity, programs};
use crate::files::{self, Why};
use crate::inside::Inside;

/// `syscall(number, ...)`.
pub fn syscall(args: &Args) -> usize {
    if Inside::is() {
        return 0;
    }
    let number = args[0] as c_long;
    match class(number) {
        Class::Other => 0,
        Class::Descriptor(at) if !files::is_known(fd(args[at])) => 0,
        Class::Descriptor(_) | Class::Always => by_hook as *const () as usize,
        Class::Before => {
            before(number, args);
            0
        }
    }
}

enum Class {
    /// Nothing to us.
    Other,
    /// A hook serves it for descriptors that are known; which argument of `syscall` the descriptor is.
    Descriptor(usize),
    /// A hook serves it.
    Always,
    /// Passed on, after something.
    Before,
}

fn class(number: c_long) -> Class {
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_lseek
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_syncfs
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fstat
        | libc::SYS_dup
        | libc::SYS_fcntl
        | libc::SYS_flock
        | libc::SYS_ioctl
        | libc::SYS_fchmod
        | libc::SYS_fadvise64
        | libc::SYS_readahead => Class::Descriptor(1),
        libc::SYS_mmap => Class::Descriptor(5),
        libc::SYS_close
        | libc::SYS_close_range
        | libc::SYS_dup2
        | libc::SYS_dup3
        | libc::SYS_open
        | libc::SYS_openat
        | libc::SYS_creat
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_truncate
        | libc::SYS_utimensat
        | libc::SYS_chmod
        | libc::SYS_fchmodat
        | libc::SYS_sendfile
        | libc::SYS_splice
        | libc::SYS_copy_file_range
        | libc::SYS_sendmsg => Class::Always,
        libc::SYS_openat2
        | libc::SYS_sendmmsg
        | libc::SYS_io_submit
        | libc::SYS_io_uring_setup
        | libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_setuid
        | libc::SYS_setreuid
        | libc::SYS_setresuid
        | libc::SYS_setgid
        | libc::SYS_setregid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_setns
        | libc::SYS_unshare
        | libc::SYS_rt_sigprocmask => Class::Before,
        _ => Class::Other,
    }
}

/// What the hooks of these do before. As system calls they are not the same as libc's functions: those change all threads.
fn before(number: c_long, args: &Args) {
    let [_, a, b, c, d, e] = *args;
    let args = &[a, b, c, d, e, 0];
    match number {
        libc::SYS_openat2 => give_path(fd(a), super::path(b), Why::RawCall),
        libc::SYS_sendmmsg => super::sockets::many(args),
        libc::SYS_io_submit => asynchronous::submit(args),
        libc::SYS_io_uring_setup => asynchronous::ring(args),
        libc::SYS_execve | libc::SYS_execveat => programs::run(args),
        libc::SYS_setuid => identity::user(args),
        libc::SYS_setreuid | libc::SYS_setresuid => identity::users(args),
        libc::SYS_setgid => identity::group(args),
        libc::SYS_setregid | libc::SYS_setresgid => identity::groups(args),
        libc::SYS_unshare => identity::unshare(args),
        libc::SYS_rt_sigprocmask => super::threads::mask(args),
        _ => identity::other(args),
    }
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
    // SAFETY: the caller's arguments, in the order of the system call, which is that of the function.
    unsafe {
        match number {
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2 => bytes(number, a as c_int, b, c, d as i64, f as c_int),
            libc::SYS_open
            | libc::SYS_openat
            | libc::SYS_creat
            | libc::SYS_stat
            | libc::SYS_lstat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_truncate
            | libc::SYS_utimensat
            | libc::SYS_chmod
            | libc::SYS_fchmodat => named(number, [a, b, c, d, e]),
            libc::SYS_mmap => libc::mmap64(at(a), b, c as c_int, d as c_int, e as c_int, f as i64)
                .addr() as c_long,
            libc::SYS_sendfile => libc::sendfile64(a as c_int, b as c_int, at(c), d) as c_long,
            libc::SYS_splice => {
                let (from, to) = (a as c_int, c as c_int);
                libc::splice(from, at(b), to, at(d), e, f as c_uint) as c_long
            }
            libc::SYS_copy_file_range => {
                let (from, to) = (a as c_int, c as c_int);
                libc::copy_file_range(from, at(b), to, at(d), e, f as c_uint) as c_long
            }
            libc::SYS_sendmsg => {
                libc::sendmsg(a as c_int, at::<libc::msghdr>(b), c as c_int) as c_long
            }
            _ => of_descriptor(number, a, b, c, d),
        }
    }
}

fn at<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

/// # Safety
/// As for [`by_hook`].
unsafe fn bytes(
    number: c_long,
    fd: c_int,
    b: usize,
    c: usize,
    offset: i64,
    flags: c_int,
) -> c_long {
    let (memory, parts, count): (*mut c_void, *const libc::iovec, _) = (at(b), at(b), c as c_int);
    // SAFETY: the caller's promise.
    let done = unsafe {
        match number {
            libc::SYS_read => libc::read(fd, memory, c),
            libc::SYS_write => libc::write(fd, memory, c),
            libc::SYS_pread64 => libc::pread64(fd, memory, c, offset),
            libc::SYS_pwrite64 => libc::pwrite64(fd, memory, c, offset),
            libc::SYS_readv => libc::readv(fd, parts, count),
            libc::SYS_writev => libc::writev(fd, parts, count),
            libc::SYS_preadv => libc::preadv64(fd, parts, count, offset),
            libc::SYS_pwritev => libc::pwritev64(fd, parts, count, offset),
            libc::SYS_preadv2 => libc::preadv64v2(fd, parts, count, offset, flags),
            _ => libc::pwritev64v2(fd, parts, count, offset, flags),
        }
    };
    done as c_long
}

/// # Safety
/// As for [`by_hook`].
unsafe fn named(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    let (path, path_in): (*const c_char, *const c_char) = (at(a), at(b));
    let dir = a as c_int;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_open => libc::open64(path, b as c_int, c as c_uint),
            libc::SYS_openat => libc::openat64(dir, path_in, c as c_int, d as c_uint),
            libc::SYS_creat => libc::creat64(path, b as c_uint),
            libc::SYS_stat => libc::stat64(path, at(b)),
            libc::SYS_lstat => libc::lstat64(path, at(b)),
            libc::SYS_newfstatat => libc::fstatat64(dir, path_in, at(c), d as c_int),
            libc::SYS_statx => libc::statx(dir, path_in, c as c_int, d as c_uint, at(e)),
            libc::SYS_truncate => libc::truncate64(path, b as i64),
            libc::SYS_utimensat => libc::utimensat(dir, path_in, at(c), d as c_int),
            libc::SYS_chmod => libc::chmod(path, b as c_uint),
            _ => libc::fchmodat(dir, path_in, c as c_uint, 0),
        }
    };
    c_long::from(result)
}

/// # Safety
/// As for [`by_hook`].
unsafe fn of_descriptor(number: c_long, a: usize, b: usize, c: usize, d: usize) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_lseek => return libc::lseek64(fd, b as i64, c as c_int),
            libc::SYS_close => libc::close(fd),
            libc::SYS_close_range => libc::close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_dup => libc::dup(fd),
            libc::SYS_dup2 => libc::dup2(fd, b as c_int),
            libc::SYS_dup3 => libc::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => libc::fcntl(fd, b as c_int, c),
            libc::SYS_fsync => libc::fsync(fd),
            libc::SYS_fdatasync => libc::fdatasync(fd),
            libc::SYS_sync_file_range => libc::sync_file_range(fd, b as i64, c as i64, d as c_uint),
            libc::SYS_syncfs => libc::syncfs(fd),
            libc::SYS_ftruncate => libc::ftruncate64(fd, b as i64),
            libc::SYS_fallocate => libc::fallocate64(fd, b as c_int, c as i64, d as i64),
            libc::SYS_fstat => libc::fstat64(fd, at(b)),
            libc::SYS_flock => libc::flock(fd, b as c_int),
            libc::SYS_ioctl => libc::ioctl(fd, b as libc::c_ulong, c),
            libc::SYS_fchmod => libc::fchmod(fd, b as c_uint),
            libc::SYS_readahead => libc::readahead(fd, b as i64, c) as c_int,
            libc::SYS_fadvise64 => {
                match libc::posix_fadvise64(fd, b as i64, c as i64, d as c_int) {
                    0 => 0,
                    errno => crate::serve::fail(errno) as c_int,
                }
            }
            _ => {
                crate::raw::set_errno(libc::ENOSYS);
                -1
            }
        }
    };
    c_long::from(result)
}
