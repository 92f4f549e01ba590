//! The calls that are passed on, and what is done before each. `calls/wrapped.txt` says what they are.

use std::arch::naked_asm;

use super::{
    Args, Onward, Real, actions, asynchronous, common, confined, control, environment, identity,
    names, pass, print, programs, raw_call, sockets, stdio, threads, transfer,
};
use crate::symbols::Name;

macro_rules! pass {
    ($($symbol:ident: $before:path;)*) => {
        $(
            #[allow(non_snake_case)]
            pub mod $symbol {
                use super::*;

                pub static REAL: Real = Real::new();
                pub const NAME: Name = Name::new(concat!(stringify!($symbol), "\0"));

                fn before(args: &Args) -> usize {
                    $before(args).address()
                }

                extern "C-unwind" fn step(args: &Args) -> usize {
                    pass(args, before, NAME, &REAL)
                }

                /// # Safety
                /// As the function of that name.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $symbol() {
                    naked_asm!(
                        "lea r11, [rip + {step}]",
                        "jmp {common}",
                        step = sym step,
                        common = sym common,
                    )
                }
            }
        )*

        /// Looks at all of them. No list: that would be addresses, too.
        pub fn each(mut look: impl FnMut(Name, &Real)) {
            $(look($symbol::NAME, &$symbol::REAL);)*
        }
    };
}

pass! {
    fclose: stdio::close;
    _IO_fclose: stdio::close;
    pclose: stdio::close;
    dprintf: print::variadic;
    vdprintf: print::listed;
    __dprintf_chk: print::variadic_checked;
    __vdprintf_chk: print::listed_checked;
    backtrace_symbols_fd: print::trace;
    __backtrace_symbols_fd: print::trace;

    system: programs::run;
    wordexp: programs::run;
    execve: environment::execve;
    execv: environment::execv;
    execvp: environment::execvp;
    execvpe: environment::execvpe;
    execl: programs::replace;
    execle: programs::replace;
    execlp: programs::replace;
    fexecve: environment::fexecve;
    execveat: environment::execveat;
    posix_spawn: environment::posix_spawn;
    posix_spawnp: environment::posix_spawnp;
    posix_spawn_file_actions_init: actions::forget;
    posix_spawn_file_actions_destroy: actions::forget;
    posix_spawn_file_actions_adddup2: actions::duplicate;
    posix_spawn_file_actions_addopen: actions::open;
    posix_spawn_file_actions_addchdir_np: actions::enter;
    posix_spawn_file_actions_addfchdir_np: actions::enter_descriptor;
    clone: programs::cloned;
    __clone: programs::cloned;
    login_tty: programs::login;

    mmap: transfer::map;
    mmap64: transfer::map;
    munmap: transfer::unmap;
    mremap: transfer::remap;
    vmsplice: transfer::give_to_pipe;
    flock: transfer::lock;
    lockf: transfer::lock;
    lockf64: transfer::lock;

    ioctl: control::ioctl;

    umount: names::mount;
    umount2: names::mount;
    mount: names::mount;
    name_to_handle_at: names::handle;
    inotify_add_watch: names::watch;
    dlopen: names::load;
    dlmopen: names::load_elsewhere;

    aio_read: asynchronous::one;
    aio_read64: asynchronous::one;
    aio_write: asynchronous::one;
    aio_write64: asynchronous::one;
    aio_fsync: asynchronous::sync;
    aio_fsync64: asynchronous::sync;
    lio_listio: asynchronous::list;
    lio_listio64: asynchronous::list;
    io_submit: asynchronous::submit_by_library;
    io_uring_setup: asynchronous::ring_by_library;
    io_uring_queue_init: asynchronous::ring_by_library;
    io_uring_queue_init_params: asynchronous::ring_by_library;
    io_uring_queue_init_mem: asynchronous::ring_by_library;
    io_uring_queue_init_try_nosqarr: asynchronous::ring_by_library;

    sendmsg: sockets::one;
    sendmmsg: sockets::many;
    send: sockets::bytes;
    __send: sockets::bytes;
    sendto: sockets::bytes;
    pidfd_getfd: sockets::steal;

    setuid: identity::user;
    seteuid: identity::user;
    setreuid: identity::users;
    setresuid: identity::users;
    setfsuid: identity::user;
    setgid: identity::group;
    setegid: identity::group;
    setregid: identity::groups;
    setresgid: identity::groups;
    setfsgid: identity::group;
    capset: identity::capabilities;
    setgroups: identity::other;
    initgroups: identity::other;
    chroot: identity::other;
    pivot_root: identity::other;
    setns: identity::other;
    unshare: identity::unshare;

    prctl: confined::control;

    pthread_create: threads::create;
    thrd_create: threads::create;
    pthread_sigmask: threads::mask;
    sigprocmask: threads::mask;
    sigblock: threads::mask;
    sigsetmask: threads::mask;
    sighold: threads::mask;
    sigrelse: threads::mask;
    pthread_setcanceltype: threads::cancel_type;

    syscall: raw_call::syscall;
}
