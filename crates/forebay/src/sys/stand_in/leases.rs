//! Leases of a process that does not answer: given up in its stead, where somebody waits for their end.
//!
//! A lease belongs to an open description. So a process that has a descriptor of the description may give the lease up, and the kernel gives out
//! descriptors of another process (`pidfd_getfd`), stopped or not. Each is held for one moment: what stays here would be in the way of a program
//! that executes the file, and of the next lease. Where the kernel refuses it, those that wait do so for as long as the kernel lets them.
//!
//! Nothing here allocates or takes a lock: the caller is a copy of one thread of a process that had several.

use std::ffi::CStr;
use std::os::fd::RawFd;

use super::open_in_proc;

/// The leases of one process.
pub(super) struct Leases {
    /// `pidfd_open` of it; negative: not to be had.
    process: RawFd,
    /// Its `/proc/PID/fd`.
    numbers: RawFd,
}

impl Leases {
    /// Of a process that lives. Its descriptors are kept until the caller ends.
    pub fn of(process: libc::pid_t) -> Self {
        Leases {
            // SAFETY: takes no memory.
            process: unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as RawFd,
            // SAFETY: called as that one must be, in a copy with one thread.
            numbers: unsafe {
                open_in_proc(
                    process,
                    b"fd",
                    libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
                )
            },
        }
    }

    /// Gives up all leases that somebody waits for.
    pub fn end_wanted(&mut self) {
        let mut entries = [0u64; 512];
        // SAFETY: takes no memory.
        unsafe { libc::lseek(self.numbers, 0, libc::SEEK_SET) };
        loop {
            let (target, len) = (entries.as_mut_ptr(), size_of_val(&entries));
            // SAFETY: the target is ours, as long as said.
            let got = unsafe { libc::syscall(libc::SYS_getdents64, self.numbers, target, len) };
            let Some(got) = usize::try_from(got).ok().filter(|&got| got > 0) else {
                return;
            };
            // SAFETY: so many bytes of it are initialised, all of them from the beginning; any bytes are good.
            let bytes = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), got) };
            for_each_number(bytes, |number| self.end_if_wanted(number));
        }
    }

    fn end_if_wanted(&self, number: RawFd) {
        // SAFETY: these calls take no memory. The descriptor is ours alone, and closed here.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_getfd, self.process, number, 0) as RawFd;
            if fd < 0 {
                return;
            }
            // As soon as somebody waits, a lease is told as what it is to become.
            if libc::fcntl(fd, libc::F_GETLEASE) != libc::F_WRLCK {
                libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
            }
            libc::close(fd);
        }
    }
}

/// The numbers among the names of directory entries, as `getdents64` tells them.
fn for_each_number(entries: &[u8], mut act: impl FnMut(RawFd)) {
    /// Where an entry has its length, two bytes, and where its name begins.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut rest = entries;
    while rest.len() > NAME {
        let len = usize::from(u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]]));
        if len <= NAME || len > rest.len() {
            return;
        }
        let name = CStr::from_bytes_until_nul(&rest[NAME..len]).ok();
        let number = name.and_then(|name| name.to_str().ok()?.parse().ok());
        if let Some(number) = number {
            act(number);
        }
        rest = &rest[len..];
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::{Leases, for_each_number};
    use crate::sys::lease;

    #[test]
    fn a_lease_ends_that_somebody_waits_for_and_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let files =
            ["wanted", "quiet"].map(|name| File::create(dir.path().join(name)).expect("a file"));
        for file in &files {
            lease::hear_of_waiters(file.as_fd()).expect("a signal that ends nobody");
            if let Err(why) = lease::take(file.as_fd()) {
                return forebay_model::skipped(format!("no leases here: {why}"));
            }
        }
        let mut leases = Leases::of(std::process::id() as i32);
        leases.end_wanted();
        for file in &files {
            assert!(lease::is_held_in_peace(file.as_fd()).expect("a lease"));
        }
        let (opened, told) = mpsc::channel();
        let path = dir.path().join("wanted");
        let opener = thread::spawn(move || opened.send(File::open(path).is_ok()));
        while lease::is_held_in_peace(files[0].as_fd()).expect("a lease") {
            thread::sleep(Duration::from_millis(1));
        }
        leases.end_wanted();
        assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(true));
        opener.join().expect("an end").expect("told");
        assert!(lease::is_held_in_peace(files[1].as_fd()).expect("a lease"));
        let mut other = File::options();
        let other = other.read(true).custom_flags(libc::O_NONBLOCK);
        let refused = other.open(dir.path().join("quiet"));
        assert_eq!(
            refused.expect_err("a lease").raw_os_error(),
            Some(libc::EWOULDBLOCK)
        );
    }

    #[test]
    fn numbers_of_descriptors_are_found_among_names() {
        let mut entries = Vec::new();
        for name in [".", "..", "0", "17", "4294967296999", "x1"] {
            let len = (19 + name.len() + 1).next_multiple_of(8);
            let mut entry = vec![0; len];
            entry[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
            entry[19..19 + name.len()].copy_from_slice(name.as_bytes());
            entries.extend(entry);
        }
        let mut found = Vec::new();
        for_each_number(&entries, |number| found.push(number));
        assert_eq!(found, [0, 17]);
        // Damaged ones end the search.
        for end in 0..entries.len() {
            for_each_number(&entries[..end], |number| assert!([0, 17].contains(&number)));
        }
    }
}
