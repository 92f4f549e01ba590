//! The process becomes somebody else, or sees other files: it leaves the session, whose memory is its user's.

use super::Args;
use crate::files::{Given, Why};
use crate::inside::Inside;
use crate::{parting, raw};

/// `setuid(user)` and its siblings with one argument.
pub fn user(args: &Args) -> Given {
    become_other(libc::SYS_getresuid, &args[..1])
}

/// `setreuid(real, effective)`, `setresuid(real, effective, saved)`.
pub fn users(args: &Args) -> Given {
    become_other(libc::SYS_getresuid, &args[..2])
}

/// `setgid(group)` and its siblings with one argument.
pub fn group(args: &Args) -> Given {
    become_other(libc::SYS_getresgid, &args[..1])
}

/// `setregid(real, effective)`, `setresgid(real, effective, saved)`.
pub fn groups(args: &Args) -> Given {
    become_other(libc::SYS_getresgid, &args[..2])
}

/// `setgroups`, `chroot`, `setns` and so on.
pub fn other(_args: &Args) -> Given {
    parting::leave(Why::Identity)
}

/// `unshare(flags)`.
pub fn unshare(args: &Args) -> Given {
    // Hosts' names, clocks, networks and semaphores are nothing to us.
    let nothing_to_us =
        libc::CLONE_NEWUTS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_SYSVSEM;
    if args[0] as libc::c_int & !nothing_to_us == 0 {
        return Ok(());
    }
    other(args)
}

/// Programs often ask to be who they are.
fn become_other(current: libc::c_long, wanted: &[u64]) -> Given {
    if Inside::is() {
        return Ok(());
    }
    let mut ids = [0u32; 3];
    let [real, effective, saved] = std::array::from_fn(|i| (&raw mut ids[i]).addr());
    // SAFETY: the kernel writes three words of ours.
    unsafe { raw::call(current, [real, effective, saved, 0, 0, 0]) };
    let same = |&id: &u64| id as u32 == u32::MAX || ids.iter().all(|&is| is == id as u32);
    if wanted.iter().all(same) {
        return Ok(());
    }
    parting::leave(Why::Identity)
}
