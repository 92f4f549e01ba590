//! Programs whose stack ends in the middle of a call, and that have a handler for that.

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::scene::Scene;
use crate::sys::*;

const STACK: usize = 128 * 1024;
const EXITED: i32 = 7;
static FILE: AtomicI32 = AtomicI32::new(-1);

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    if role == "overflow" {
        overflow(dir);
        return true;
    }
    false
}

/// A handler that leaves a last word, as those of crash reporters do, on a stack of its own.
extern "C" fn last_word(_signal: i32) {
    let fd = FILE.load(Relaxed);
    let _ = write(fd, b"it ends here");
    // SAFETY: calls that handlers may make.
    unsafe {
        libc::fsync(fd);
        libc::_exit(EXITED);
    }
}

/// Goes down until `left` bytes of the stack remain above `low`, and writes.
#[inline(never)]
fn deep(low: usize, left: usize) {
    let room = [0u8; 256];
    let here = std::hint::black_box(&room).as_ptr() as usize;
    if here > low + left {
        deep(low, left);
    } else {
        let fd = FILE.load(Relaxed);
        let _ = write(fd, b"from below");
        // SAFETY: takes no memory.
        unsafe { libc::fsync(fd) };
    }
    std::hint::black_box(&room);
}

extern "C" fn thread(left: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: an attribute of ours, filled by the call; the alternate stack stays.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let (mut low, mut len) = (std::ptr::null_mut(), 0);
        assert_eq!(
            libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes),
            0
        );
        libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut len);
        let other = Box::leak(vec![0u8; 1 << 20].into_boxed_slice());
        let stack = libc::stack_t {
            ss_sp: other.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: other.len(),
        };
        assert_eq!(libc::sigaltstack(&raw const stack, std::ptr::null_mut()), 0);
        deep(low as usize, left as usize);
    }
    std::ptr::null_mut()
}

/// A child's life: whether it exited by itself, or died of the fault, is all the same here.
fn die(left: usize) {
    // SAFETY: an action and attributes of ours; the thread is waited for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = last_word as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()),
            0
        );
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
        let mut it = 0;
        let begun = libc::pthread_create(
            &raw mut it,
            &raw const attributes,
            thread,
            left as *mut libc::c_void,
        );
        assert_eq!(begun, 0);
        libc::pthread_join(it, std::ptr::null_mut());
        libc::_exit(0);
    }
}

fn overflow(dir: &Path) {
    let fd = open(
        &dir.join("a"),
        libc::O_RDWR | libc::O_CREAT | libc::O_APPEND,
    )
    .expect("open");
    FILE.store(fd, Relaxed);
    for _ in 0..20 {
        write(fd, &[1; 10_000]).expect("write");
    }
    for left in (1..=40).map(|step| step * 1024) {
        // SAFETY: the child makes calls and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            die(left);
        }
        let begun = Instant::now();
        let mut status = 0;
        // SAFETY: a word of ours.
        while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
            if begun.elapsed() > Duration::from_secs(40) {
                // SAFETY: a child of ours.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                panic!("with {left} bytes of stack the program hangs");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let died = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
        let exited = libc::WIFEXITED(status) && [0, EXITED].contains(&libc::WEXITSTATUS(status));
        assert!(died || exited, "{left}: status {status:#x}");
        // And nobody waits for what it has left.
        assert_eq!(write(fd, b"after it"), Ok(8), "{left}");
    }
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fsync(fd) }, 0);
    close(fd).expect("close");
}

#[test]
fn a_stack_that_ends_in_the_middle_of_a_call_hangs_nobody() {
    Scene::new("overflow", 0).play("overflow", "");
}
