//! Making files as the program would that asks for them: a mount of root's that others use gives them owners by that.
//!
//! The kernel has checked by then what the caller may do ([`crate::mount`] has it do so); what is left to the file system is whose a new file is,
//! which group it gets in a directory that gives its own, and which bits of its mode it keeps. So the thread takes the caller's
//! user, group and further groups, as the file system sees them, for one call.

use std::fs;

use crate::failed::{Answer, Failed};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// Whose files this process makes.
pub(crate) struct Creators {
    /// This process is root, and its own further groups are these. `None`: whatever it makes is its own.
    own_groups: Option<Vec<libc::gid_t>>,
}

impl Creators {
    pub(crate) fn new() -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Creators {
            own_groups: is_root.then(|| groups_in(&status_of("self"))),
        }
    }

    /// Carries out a call that makes something, as the caller.
    pub(crate) fn make<T>(&self, caller: &Caller, call: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let Some(own_groups) = &self.own_groups else {
            return call();
        };
        if (caller.uid, caller.gid) == (0, 0) {
            return call();
        }
        let groups = groups_in(&status_of(&caller.pid.to_string()));
        let _back = Disguise::put_on(caller.uid, caller.gid, &groups, own_groups)?;
        call()
    }
}

/// A thread that is somebody else to file systems, until it is dropped.
struct Disguise<'a> {
    own_group: u32,
    own_groups: &'a [libc::gid_t],
}

impl<'a> Disguise<'a> {
    fn put_on(
        uid: u32,
        gid: u32,
        groups: &[libc::gid_t],
        own_groups: &'a [libc::gid_t],
    ) -> Answer<Self> {
        set_groups(groups)?;
        // From here on there is something to undo, and what could change the groups can change them back.
        let disguise = Disguise {
            own_group: rustix::process::getegid().as_raw(),
            own_groups,
        };
        // The user last: without root's the others cannot be set.
        set_group(gid)?;
        set_user(uid)?;
        Ok(disguise)
    }
}

impl Drop for Disguise<'_> {
    fn drop(&mut self) {
        let back = set_user(0)
            .and_then(|()| set_group(self.own_group))
            .and_then(|()| set_groups(self.own_groups));
        if back.is_err() {
            // A thread that serves everybody must not be anybody's.
            std::process::abort();
        }
    }
}

fn set_user(uid: u32) -> Answer<()> {
    // SAFETY: takes no memory; it is about this thread alone, and does not fail but by staying what it was, which the second call tells.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX)
    };
    if now as u32 == uid {
        Ok(())
    } else {
        Err(Failed(libc::EPERM))
    }
}

fn set_group(gid: u32) -> Answer<()> {
    // SAFETY: as above.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX)
    };
    if now as u32 == gid {
        Ok(())
    } else {
        Err(Failed(libc::EPERM))
    }
}

/// Libc's own function is about all threads of the process.
fn set_groups(groups: &[libc::gid_t]) -> Answer<()> {
    // SAFETY: the kernel reads as many numbers as the slice has.
    let set = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if set == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().into())
    }
}

fn status_of(process: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default()
}

/// A process that cannot be seen from here has none.
fn groups_in(status: &str) -> Vec<libc::gid_t> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let words = line.unwrap_or("").split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has lost a right of its process: 6 is `CAP_SETGID`, 7 is `CAP_SETUID`.
    fn without(right: u32, work: impl FnOnce() + Send) {
        let lose = || {
            // `_LINUX_CAPABILITY_VERSION_3`, this thread; then two words each of rights in force, permitted and inherited.
            let (mut head, mut rights) = ([0x2008_0522_u32, 0], [0_u32; 6]);
            // SAFETY: the kernel has two words and six for itself, which are this function's; it is about this thread alone.
            let lost = unsafe {
                let read = libc::syscall(libc::SYS_capget, head.as_mut_ptr(), rights.as_mut_ptr());
                rights[0] &= !(1 << right);
                read | libc::syscall(libc::SYS_capset, head.as_mut_ptr(), rights.as_ptr())
            };
            assert_eq!(lost, 0);
            work();
        };
        std::thread::scope(|scope| scope.spawn(lose).join().expect("it ends"));
    }

    #[test]
    fn what_cannot_be_put_on_is_an_error_and_leaves_the_thread_as_it_was() {
        for right in [6, 7] {
            without(right, || {
                let own = groups_in(&status_of("thread-self"));
                let put_on = Disguise::put_on(4711, 4712, &[4713], &own);
                assert_eq!(put_on.map(drop), Err(Failed(libc::EPERM)));
                assert_eq!(groups_in(&status_of("thread-self")), own);
            });
        }
    }

    #[test]
    fn groups_are_read() {
        assert_eq!(
            groups_in("Name:\tx\nGroups:\t4 24 27 \nNStgid:\t1\n"),
            [4, 24, 27]
        );
        assert_eq!(groups_in("Groups:\t\n"), [] as [u32; 0]);
        assert_eq!(groups_in(""), [] as [u32; 0]);
    }
}
