//! Calls that the kernel must serve, on files that cannot be flushed: they fail, and nothing is lost.

use std::ffi::c_void;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::scene::{Scene, said};
use crate::sys::*;

const LEN: usize = 512 * 1024;
/// What the program may write to files by calls of the kernel's: so flushing fails, since there is no keeper to do it.
const LIMIT: u64 = 4096;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "cannot-switch" => cannot_switch(dir),
        _ => return false,
    }
    true
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// 0, or the error number of a call that says -1.
fn outcome(result: i32) -> i32 {
    if result == -1 { errno() } else { 0 }
}

/// The limit, set by a call of which the library knows nothing: to it the limit is none.
fn limit_the_kernel(to: u64) {
    let limit = libc::rlimit {
        rlim_cur: to,
        rlim_max: libc::RLIM_INFINITY,
    };
    let result: isize;
    // SAFETY: the kernel's calling convention; it reads one structure of ours.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_prlimit64 as isize => result,
            in("rdi") 0, in("rsi") libc::RLIMIT_FSIZE as usize, in("rdx") &raw const limit, in("r10") 0,
            lateout("rcx") _, lateout("r11") _);
    }
    assert_eq!(result, 0);
}

type Call = (&'static str, fn(i32) -> i32);

/// Each on a descriptor of a file that the engine serves and cannot flush. What each comes to: 0, or an error number.
const CALLS: [Call; 9] = [
    ("flock", |fd| {
        // SAFETY: a plain call, with memory of ours.
        outcome(unsafe { libc::flock(fd, libc::LOCK_EX) })
    }),
    ("lockf", |fd| {
        // SAFETY: a plain call, with memory of ours.
        outcome(unsafe { libc::lockf(fd, libc::F_TLOCK, 0) })
    }),
    ("fcntl", |fd| {
        // SAFETY: a plain call, with memory of ours.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        // SAFETY: a plain call, with memory of ours.
        outcome(unsafe { libc::fcntl(fd, libc::F_SETLK, &raw mut lock) })
    }),
    ("mmap", |fd| {
        let (access, none) = (libc::PROT_READ, std::ptr::null_mut::<c_void>());
        // SAFETY: a plain call, with memory of ours.
        let at = unsafe { libc::mmap(none, 4096, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED { errno() } else { 0 }
    }),
    ("sendmsg", |fd| {
        let mut ends = [0; 2];
        // SAFETY: a plain call, with memory of ours.
        unsafe {
            assert_eq!(
                libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()),
                0
            );
            let mut control = [0u64; 3];
            let mut byte = 0u8;
            let mut part = libc::iovec {
                iov_base: (&raw mut byte).cast(),
                iov_len: 1,
            };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(head).cast::<i32>().write_unaligned(fd);
            let done = outcome(libc::sendmsg(ends[0], &raw const message, 0) as i32);
            libc::close(ends[0]);
            libc::close(ends[1]);
            done
        }
    }),
    // SAFETY: a plain call, with memory of ours.
    ("execv", |fd| unsafe {
        libc::fcntl(fd, libc::F_SETFD, 0);
        let arguments = [c"true".as_ptr(), std::ptr::null()];
        outcome(libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()))
    }),
    // SAFETY: a plain call, with memory of ours.
    ("posix_spawn", |_| unsafe {
        let (mut child, arguments) = (0, [c"true".as_ptr().cast_mut(), std::ptr::null_mut()]);
        let none = (std::ptr::null(), std::ptr::null());
        let list = arguments.as_ptr();
        libc::posix_spawn(
            &raw mut child,
            c"/bin/true".as_ptr(),
            none.0,
            none.1,
            list,
            list,
        )
    }),
    // SAFETY: a plain call, with memory of ours.
    ("fchmod", |fd| outcome(unsafe { libc::fchmod(fd, 0o755) })),
    // The process leaves the session first. Last: it has nothing of it after that.
    ("unshare", |_| {
        // SAFETY: a plain call, without memory.
        outcome(unsafe { libc::unshare(libc::CLONE_FS) })
    }),
];

fn cannot_switch(dir: &Path) {
    let bytes = pattern(3, LEN);
    let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
    assert_eq!(write(fd, &bytes[..1000]), Ok(1000));
    std::fs::write(dir.join("joined"), "").expect("a mark");
    await_file(&dir.join("alone"));
    assert_eq!(write(fd, &bytes[1000..]), Ok(LEN - 1000));
    // SAFETY: nobody else sets handlers.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limit_the_kernel(LIMIT);
    for (name, call) in CALLS {
        assert_eq!(call(fd), libc::EFBIG, "{name}");
        assert_eq!(pread(fd, LEN + 1, 0).as_ref(), Ok(&bytes), "after {name}");
    }
    // SAFETY: takes no memory.
    assert_eq!(outcome(unsafe { libc::fsync(fd) }), libc::EFBIG);
    limit_the_kernel(libc::RLIM_INFINITY);
    for (name, call) in CALLS.iter().filter(|(name, _)| !name.starts_with("execv")) {
        assert_eq!(call(fd), 0, "{name}, once it can be");
    }
    // The kernel has it now.
    assert_eq!(pread(fd, LEN + 1, 0).as_ref(), Ok(&bytes));
    assert_eq!(pwrite(fd, b"newer", 100), Ok(5));
    // SAFETY: takes no memory.
    assert_eq!(outcome(unsafe { libc::fsync(fd) }), 0);
    close(fd).expect("close");
}

fn await_file(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "{} is not there",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_file_that_cannot_be_flushed_stays_managed() {
    let mut scene = Scene::new("switches", 0);
    let program = scene.start("cannot-switch", "");
    await_file(&scene.path("joined"));
    drop(scene.session.take());
    std::fs::write(scene.path("alone"), "").expect("a mark");
    said(program.wait_with_output().expect("an end"));
    let mut expected = pattern(3, LEN);
    expected[100..105].copy_from_slice(b"newer");
    let seen = std::fs::read(scene.path("a")).expect("a file");
    assert!(seen == expected, "other bytes");
}
