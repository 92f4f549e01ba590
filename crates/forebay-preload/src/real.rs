//! The functions behind ours: each is found when it is first called.
//!
//! Until then its pointer is null, and a stand-in looks for it ([`symbols`]). Other libraries' constructors may run before ours, and
//! then that finds nothing: where there is a raw system call that does the same it is made, else the linker is asked. Pointers that began
//! as addresses would have to be written by the linker, in each process.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::Relaxed};

use libc::{
    c_char, c_int, c_long, c_uint, c_void, gid_t, iovec, mode_t, off_t, pid_t,
    posix_spawn_file_actions_t, posix_spawnattr_t, rlimit, size_t, ssize_t, stat as Stat,
    statx as StatX, timespec, timeval, uid_t, utimbuf,
};

use crate::symbols::{self, Name};

/// Set once a fork has been.
static FOUND: AtomicBool = AtomicBool::new(false);

/// Finds them before the first fork: else each child would, with memory to be copied or mapped for it.
pub fn before_fork() {
    // Looked at first: to write copies the page, for each fork once more.
    if !FOUND.load(Relaxed) && !FOUND.swap(true, Relaxed) {
        find_all();
        crate::hooks::pass::before_fork();
    }
}

/// Keeps what was found, if anything was.
fn store(pointer: &AtomicPtr<c_void>, found: *mut c_void) -> bool {
    if !found.is_null() {
        pointer.store(found, Relaxed);
    }
    !found.is_null()
}

/// Declares real functions: `fn name(args) -> type = stand-in;` where the stand-in is `sys NUMBER (arguments)` or `missing
/// VALUE`, what the call answers where libc has no such function.
macro_rules! real {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty = $how:ident $what:tt;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for the function of that name.
            #[inline(always)]
            #[allow(non_snake_case)]
            pub unsafe fn $name($($arg: $type),*) -> $out {
                let pointer = pointers::$name.load(Relaxed);
                if pointer.is_null() {
                    // SAFETY: the caller's promise.
                    return unsafe { stand_ins::$name($($arg),*) };
                }
                // SAFETY: the pointer is that of libc's function, which has this type.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($type),*) -> $out = std::mem::transmute(pointer);
                    function($($arg),*)
                }
            }
        )*

        /// Where the functions are.
        #[allow(non_upper_case_globals)]
        mod pointers {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        #[allow(non_snake_case)]
        mod stand_ins {
            use super::*;
            $(
                /// # Safety
                /// As for the function of that name.
                #[cold]
                pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $out {
                    const NAME: Name = Name::new(concat!(stringify!($name), "\0"));
                    if store(&pointers::$name, symbols::find(NAME)) {
                        // SAFETY: the caller's promise.
                        return unsafe { super::$name($($arg),*) };
                    }
                    real!(@$how NAME $what ($($arg: $type),*) -> $out)
                }
            )*
        }

        /// Finds them all now.
        #[cold]
        pub fn find_all() {
            $(
                let name = const { Name::new(concat!(stringify!($name), "\0")) };
                store(&pointers::$name, symbols::find_anywhere(name));
            )*
        }
    };
    (@sys $name:ident ($number:expr, [$($value:expr),*]) ($($arg:ident: $type:ty),*) -> $out:ty) => {{
        let values = [$($value as usize),*];
        let mut args = [0usize; 6];
        args[..values.len()].copy_from_slice(&values);
        // SAFETY: the caller's arguments are what the call takes.
        unsafe { crate::raw::call_errno($number, args) as $out }
    }};
    (@sys_unit $name:ident ($number:expr, [$($value:expr),*]) ($($arg:ident: $type:ty),*) -> $out:ty) => {{
        real!(@sys $name ($number, [$($value),*]) ($($arg: $type),*) -> isize);
    }};
    (@missing $name:ident ($value:expr) ($($arg:ident: $type:ty),*) -> $out:ty) => {{
        let found = symbols::find_anywhere($name);
        if found.is_null() {
            crate::raw::set_errno(libc::ENOSYS);
            return $value;
        }
        // SAFETY: libc's function of this name has this type.
        unsafe {
            let function: unsafe extern "C-unwind" fn($($type),*) -> $out = std::mem::transmute(found);
            function($($arg),*)
        }
    }};
}

real! {
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = sys (libc::SYS_open, [path, flags, mode]);
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = sys (libc::SYS_openat, [dir, path, flags, mode]);
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int = missing (-1);
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t = sys (libc::SYS_read, [fd, to, len]);
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = sys (libc::SYS_write, [fd, from, len]);
    fn pread64(fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t = sys (libc::SYS_pread64, [fd, to, len, at]);
    fn pwrite64(fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t = sys (libc::SYS_pwrite64, [fd, from, len, at]);
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = sys (libc::SYS_readv, [fd, parts, count]);
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = sys (libc::SYS_writev, [fd, parts, count]);
    fn preadv64(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t = sys (libc::SYS_preadv, [fd, parts, count, at, 0]);
    fn pwritev64(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t = sys (libc::SYS_pwritev, [fd, parts, count, at, 0]);
    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t = sys (libc::SYS_preadv2, [fd, parts, count, at, 0, flags]);
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t = sys (libc::SYS_pwritev2, [fd, parts, count, at, 0, flags]);
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t = sys (libc::SYS_lseek, [fd, offset, whence]);
    fn close(fd: c_int) -> c_int = sys (libc::SYS_close, [fd]);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = sys (libc::SYS_close_range, [first, last, flags]);
    fn dup(fd: c_int) -> c_int = sys (libc::SYS_dup, [fd]);
    fn dup2(from: c_int, to: c_int) -> c_int = sys (libc::SYS_dup2, [from, to]);
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int = sys (libc::SYS_dup3, [from, to, flags]);
    fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int = sys (libc::SYS_fcntl, [fd, command, argument]);
    fn fsync(fd: c_int) -> c_int = sys (libc::SYS_fsync, [fd]);
    fn fdatasync(fd: c_int) -> c_int = sys (libc::SYS_fdatasync, [fd]);
    fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int = sys (libc::SYS_sync_file_range, [fd, offset, len, flags]);
    fn syncfs(fd: c_int) -> c_int = sys (libc::SYS_syncfs, [fd]);
    fn ftruncate64(fd: c_int, len: off_t) -> c_int = sys (libc::SYS_ftruncate, [fd, len]);
    fn truncate64(path: *const c_char, len: off_t) -> c_int = sys (libc::SYS_truncate, [path, len]);
    fn fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int = sys (libc::SYS_fallocate, [fd, mode, offset, len]);
    fn posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int = missing (libc::ENOSYS);
    fn posix_fadvise64(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int = missing (libc::ENOSYS);
    fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t = sys (libc::SYS_readahead, [fd, offset, count]);
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = sys (libc::SYS_sendfile, [to, from, offset, count]);
    fn copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint) -> ssize_t = sys (libc::SYS_copy_file_range, [from, from_at, to, to_at, count, flags]);
    fn splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint) -> ssize_t = sys (libc::SYS_splice, [from, from_at, to, to_at, count, flags]);
    fn pipe2(ends: *mut c_int, flags: c_int) -> c_int = sys (libc::SYS_pipe2, [ends, flags]);
    fn fstat64(fd: c_int, to: *mut Stat) -> c_int = sys (libc::SYS_fstat, [fd, to]);
    fn stat64(path: *const c_char, to: *mut Stat) -> c_int = sys (libc::SYS_stat, [path, to]);
    fn lstat64(path: *const c_char, to: *mut Stat) -> c_int = sys (libc::SYS_lstat, [path, to]);
    fn fstatat64(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int = sys (libc::SYS_newfstatat, [dir, path, to, flags]);
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut StatX) -> c_int = sys (libc::SYS_statx, [dir, path, flags, mask, to]);
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int = sys (libc::SYS_utimensat, [dir, path, times, flags]);
    fn futimens(fd: c_int, times: *const timespec) -> c_int = missing (-1);
    fn utimes(path: *const c_char, times: *const timeval) -> c_int = missing (-1);
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int = missing (-1);
    fn futimes(fd: c_int, times: *const timeval) -> c_int = missing (-1);
    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int = missing (-1);
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int = missing (-1);
    fn chmod(path: *const c_char, mode: mode_t) -> c_int = sys (libc::SYS_chmod, [path, mode]);
    fn fchmod(fd: c_int, mode: mode_t) -> c_int = sys (libc::SYS_fchmod, [fd, mode]);
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int = missing (-1);
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int = missing (-1);
    fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int = sys (libc::SYS_chown, [path, user, group]);
    fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int = sys (libc::SYS_lchown, [path, user, group]);
    fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int = sys (libc::SYS_fchown, [fd, user, group]);
    fn fchownat(dir: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int = sys (libc::SYS_fchownat, [dir, path, user, group, flags]);
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int = sys (libc::SYS_setxattr, [path, name, value, len, flags]);
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int = sys (libc::SYS_lsetxattr, [path, name, value, len, flags]);
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int = sys (libc::SYS_fsetxattr, [fd, name, value, len, flags]);
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int = sys (libc::SYS_removexattr, [path, name]);
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int = sys (libc::SYS_lremovexattr, [path, name]);
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int = sys (libc::SYS_fremovexattr, [fd, name]);
    fn link(from: *const c_char, to: *const c_char) -> c_int = sys (libc::SYS_link, [from, to]);
    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int = sys (libc::SYS_linkat, [from_dir, from, to_dir, to, flags]);
    fn unlink(path: *const c_char) -> c_int = sys (libc::SYS_unlink, [path]);
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int = sys (libc::SYS_unlinkat, [dir, path, flags]);
    fn remove(path: *const c_char) -> c_int = missing (-1);
    fn rename(from: *const c_char, to: *const c_char) -> c_int = sys (libc::SYS_rename, [from, to]);
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int = sys (libc::SYS_renameat, [from_dir, from, to_dir, to]);
    fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int = sys (libc::SYS_renameat2, [from_dir, from, to_dir, to, flags]);
    fn setrlimit64(resource: c_int, limit: *const rlimit) -> c_int = sys (libc::SYS_setrlimit, [resource, limit]);
    fn prlimit64(process: pid_t, resource: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int = sys (libc::SYS_prlimit64, [process, resource, limit, before]);
    fn ulimit(command: c_int, limit: c_long) -> c_long = missing (-1);
    fn vlimit(resource: c_int, limit: c_int) -> c_int = missing (-1);
    fn _exit(status: c_int) -> () = sys_unit (libc::SYS_exit_group, [status]);
    fn pthread_setcanceltype(new: c_int, before: *mut c_int) -> c_int = missing (-1);
    fn execvpe(name: *const c_char, arguments: *const *const c_char, list: *const *const c_char) -> c_int = missing (-1);
    fn fexecve(fd: c_int, arguments: *const *const c_char, list: *const *const c_char) -> c_int = missing (-1);
    fn execveat(directory: c_int, path: *const c_char, arguments: *const *const c_char, list: *const *const c_char, flags: c_int) -> c_int = sys (libc::SYS_execveat, [directory, path, arguments, list, flags]);
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *const c_char, list: *const *const c_char) -> c_int = missing (libc::ENOSYS);
    fn posix_spawnp(pid: *mut pid_t, name: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: *const *const c_char, list: *const *const c_char) -> c_int = missing (libc::ENOSYS);
    fn fork() -> pid_t = missing (-1);
    fn _Fork() -> pid_t = missing (-1);
}

/// Whether `renameat2` leads to where the others of its family do: a library behind ours that stands in for one may take paths for others.
pub fn is_one_library_for_renames() -> bool {
    const NAMES: [Name; 3] = [
        Name::new("rename\0"),
        Name::new("renameat\0"),
        Name::new("renameat2\0"),
    ];
    /// 0: not looked for yet.
    static IS_ONE: AtomicU8 = AtomicU8::new(0);
    match IS_ONE.load(Relaxed) {
        0 => {
            let is_one = symbols::are_of_one(&NAMES);
            IS_ONE.store(1 + u8::from(is_one), Relaxed);
            is_one
        }
        found => found == 2,
    }
}

extern "C" fn start() {
    // Debug builds compare everything with what the linker finds.
    if !symbols::at_start() || cfg!(debug_assertions) {
        find_all();
        crate::hooks::pass::find_all();
    }
    crate::attach::at_start();
    crate::files::hear_of_the_end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
