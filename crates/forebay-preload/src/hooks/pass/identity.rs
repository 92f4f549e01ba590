//! The process becomes somebody else, or sees other files: it leaves the session, whose memory is its user's.

use super::Args;
use crate::files::{Given, Why};
use crate::inside::Inside;
use crate::{parting, program, raw};

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

/// `struct __user_cap_header_struct`: the version of the interface, and whose capabilities.
type CapHeader = [u32; 2];
/// `struct __user_cap_data_struct`: effective, permitted, inheritable.
type CapData = [u32; 3];
/// `_LINUX_CAPABILITY_VERSION_1`, whose only structure is of the first 32 capabilities; all later versions have two.
const VERSION_1: u32 = 0x1998_0330;
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;

/// `capset(header, data)`: a program that gives a capability up may be unable to open what the session has of other users' files.
/// One that is only inheritable, or bounds what is executed later, is nothing to us.
pub fn capabilities(args: &Args) -> Given {
    let [header, data] = [args[0] as usize, args[1] as usize];
    if Inside::is() {
        return Ok(());
    }
    let Some([version, _]) = program::peek::<CapHeader>(header) else {
        return Ok(());
    };
    let wanted = if version == VERSION_1 {
        program::peek::<CapData>(data).map(|low| [low, [0; 3]])
    } else {
        program::peek::<[CapData; 2]>(data)
    };
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let (mut own, mut had): (CapHeader, [CapData; 2]) = ([VERSION_3, 0], [[0; 3]; 2]);
    let at = [(&raw mut own).addr(), (&raw mut had).addr()];
    // SAFETY: the kernel reads one structure of ours and writes the other.
    unsafe { raw::call(libc::SYS_capget, [at[0], at[1], 0, 0, 0, 0]) };
    let goes = |had: &CapData, wanted: &CapData| (0..2).any(|i| had[i] & !wanted[i] != 0);
    if !had
        .iter()
        .zip(&wanted)
        .any(|(had, wanted)| goes(had, wanted))
    {
        return Ok(());
    }
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

/// Programs often ask to be what they are.
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
