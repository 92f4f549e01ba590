//! The functions that install signal handlers. See `signals`.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, sighandler_t};

use crate::inside;
use crate::raw;
use crate::signals::{Action, install};

/// Signals whose `signal()` handlers interrupt system calls (`siginterrupt`), a bit each.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// The disposition of `sigset` that blocks the signal.
const SIG_HOLD: sighandler_t = 2;

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null or an action.
    let new = (!new.is_null()).then(|| unsafe { Action::read(new) });
    match install(signal, new) {
        Ok(was) => {
            if !old.is_null() {
                // SAFETY: the caller's.
                unsafe { old.write(was.to_libc()) };
            }
            0
        }
        Err(failed) => failed,
    }
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { sigaction(signal, new, old) }
}

fn bit(signal: c_int) -> u64 {
    match signal {
        1..=64 => 1 << (signal - 1),
        _ => 0,
    }
}

/// Installs a handler as the old functions do; `SIG_ERR` and `errno` if it cannot be.
fn set(signal: c_int, handler: sighandler_t, flags: c_int, mask: u64) -> sighandler_t {
    if handler == libc::SIG_ERR || bit(signal) == 0 {
        raw::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let action = Action {
        handler,
        flags,
        mask,
    };
    install(signal, Some(action)).map_or(libc::SIG_ERR, |was| was.handler)
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
    let flags = if interrupts { 0 } else { libc::SA_RESTART };
    set(signal, handler, flags, bit(signal))
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's.
    unsafe { signal(number, handler) }
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's.
    unsafe { signal(number, handler) }
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupt = 0x2000_0000;
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER | interrupt;
    set(signal, handler, flags, 0)
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's.
    unsafe { __sysv_signal(signal, handler) }
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if set(signal, libc::SIG_IGN, 0, 0) == libc::SIG_ERR {
        -1
    } else {
        0
    }
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let Ok(mut action) = install(signal, None) else {
        return -1;
    };
    if interrupts != 0 {
        INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
        action.flags &= !libc::SA_RESTART;
    } else {
        INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
        action.flags |= libc::SA_RESTART;
    }
    install(signal, Some(action)).map_or(-1, |_| 0)
}

/// # Safety
/// As the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    if disposition == libc::SIG_ERR || bit(signal) == 0 {
        raw::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let how = if disposition == SIG_HOLD {
        libc::SIG_BLOCK
    } else {
        libc::SIG_UNBLOCK
    };
    let was = if disposition == SIG_HOLD {
        install(signal, None).map_or(libc::SIG_ERR, |is| is.handler)
    } else {
        set(signal, disposition, 0, 0)
    };
    if was == libc::SIG_ERR {
        return was;
    }
    let (set, mut before) = (bit(signal), 0u64);
    let (from, to) = ((&raw const set).addr(), (&raw mut before).addr());
    inside::ask_again();
    // SAFETY: the kernel reads one word and writes another.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, [how as usize, from, to, 8, 0, 0]) };
    if before & set != 0 { SIG_HOLD } else { was }
}
