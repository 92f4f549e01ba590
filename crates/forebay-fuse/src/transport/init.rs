//! What the kernel and this process agree on before the first request: the protocol's version, what each can do, how much goes into one request.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::Unanswered;
use super::device::{Device, Memory, parsed};
use crate::contents::REQUEST_BYTES_MAX;
use crate::failed::Failed;
use crate::wire::{InitIn, InitOut, init, opcode};

/// The protocol that is spoken here.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// The oldest that is understood: that of Linux 3.15. Before it, answers had other lengths.
const MINOR_MIN: u32 = 23;
/// Requests that the kernel sends on its own account, not to make a program wait.
const BACKGROUND_MAX: u16 = 64;
/// So many of these and it holds back some of what it could send: three quarters, as by itself.
const CONGESTED: u16 = BACKGROUND_MAX / 4 * 3;
/// What kernels before version 7.36 know.
const OLD_BYTES: usize = 16;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// What was asked for and can be had.
    pub(crate) flags: u64,
    /// Bytes that one request has to write at most.
    pub(crate) max_write: usize,
    /// Pages that one request or one answer has at most, beside what is said of them.
    pub(crate) max_pages: u16,
}

/// What is answered to the kernel's first request.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Agreed(InitOut, Agreed),
    /// It speaks a later protocol, and is to ask once more in this one.
    Ours(InitOut),
    /// It speaks another one.
    TooOld,
}

/// Takes the kernel's first request and answers it. `wanted`: what is asked of it.
///
/// # Errors
/// Why there will be no mount.
pub(crate) fn agree(device: &Arc<Device>, wanted: u64) -> io::Result<Agreed> {
    let mut memory = Memory::new(REQUEST_BYTES_MAX as usize);
    let memory = memory.as_mut();
    loop {
        let len = device.read(memory)?;
        let len = len.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotConnected, "it was unmounted at once")
        })?;
        let asked = parsed(&memory[..len]);
        let asked = asked.ok_or_else(|| wrong("a request without a header"))?;
        let to = Unanswered::by_device(asked.header.unique, Arc::clone(device));
        if asked.header.opcode != opcode::INIT {
            to.fail(Failed(libc::EIO));
            return Err(wrong("the kernel has not introduced itself"));
        }
        let Some(theirs) = told(asked.operation) else {
            to.fail(Failed(libc::EIO));
            return Err(wrong("the kernel's introduction is cut short"));
        };
        match word(&theirs, wanted) {
            Word::Agreed(ours, agreed) => {
                to.send(&[IoSlice::new(&ours.bytes())]);
                return Ok(agreed);
            }
            Word::Ours(ours) => to.send(&[IoSlice::new(&ours.bytes())]),
            Word::TooOld => {
                to.fail(Failed(libc::EPROTO));
                let (major, minor) = (theirs.major, theirs.minor);
                let what = format!("the kernel's protocol {major}.{minor} is too old");
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
        }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What the kernel says, the older ones less of it.
fn told(bytes: &[u8]) -> Option<InitIn> {
    let mut all = [0; InitIn::SIZE];
    let len = bytes.len().min(all.len());
    all[..len].copy_from_slice(&bytes[..len]);
    (len >= OLD_BYTES).then(|| InitIn::parse(&all))?
}

fn word(theirs: &InitIn, wanted: u64) -> Word {
    let version = InitOut {
        major: MAJOR,
        minor: MINOR,
        ..InitOut::default()
    };
    if theirs.major > MAJOR {
        return Word::Ours(version);
    }
    if (theirs.major, theirs.minor) < (MAJOR, MINOR_MIN) {
        return Word::TooOld;
    }
    let mut able = u64::from(theirs.flags);
    if able & init::INIT_EXT != 0 {
        able |= u64::from(theirs.flags2) << 32;
    }
    let flags = able & (wanted | init::INIT_EXT);
    // Also where the kernel reads further ahead: one answer has no more.
    let pages = REQUEST_BYTES_MAX.div_ceil(rustix::param::page_size() as u32);
    let max_pages = u16::try_from(pages).unwrap_or(u16::MAX);
    let ours = InitOut {
        max_readahead: theirs.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTED,
        max_write: REQUEST_BYTES_MAX,
        time_gran: 1,
        max_pages,
        ..version
    };
    let agreed = Agreed {
        flags,
        max_write: REQUEST_BYTES_MAX as usize,
        max_pages,
    };
    Word::Agreed(ours, agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: u64 = init::BIG_WRITES | init::MAX_PAGES | init::DIRECT_IO_ALLOW_MMAP;

    fn kernel(minor: u32, flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 128 << 10,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        }
    }

    #[test]
    fn what_both_can_is_agreed_on() {
        // A kernel of today: it has all that is wanted, and more.
        let able = WANTED | init::INIT_EXT | init::ASYNC_READ | 1 << 41;
        let Word::Agreed(ours, agreed) = word(&kernel(45, able), WANTED) else {
            panic!("agreed");
        };
        assert_eq!(agreed.flags, WANTED | init::INIT_EXT);
        assert_eq!(u64::from(ours.flags), agreed.flags & 0xffff_ffff);
        assert_eq!(u64::from(ours.flags2), agreed.flags >> 32);
        assert_eq!((ours.major, ours.minor), (7, 45));
        assert_eq!((ours.max_write, ours.max_readahead), (1 << 20, 128 << 10));
        assert_eq!((ours.max_background, ours.congestion_threshold), (64, 48));
        assert_eq!(ours.time_gran, 1);
        let page = rustix::param::page_size();
        assert_eq!(usize::from(agreed.max_pages) * page, 1 << 20);
        let far = InitIn {
            max_readahead: 16 << 20,
            ..kernel(45, able)
        };
        let Word::Agreed(ours, _) = word(&far, WANTED) else {
            panic!("agreed");
        };
        assert_eq!(ours.max_pages, agreed.max_pages);
    }

    #[test]
    fn a_kernel_without_the_upper_half_is_not_told_of_it() {
        let able = init::BIG_WRITES | init::DIRECT_IO_ALLOW_MMAP;
        let Word::Agreed(ours, agreed) = word(&kernel(31, able), WANTED) else {
            panic!("agreed");
        };
        assert_eq!(agreed.flags, init::BIG_WRITES);
        assert_eq!(ours.flags2, 0);
    }

    #[test]
    fn other_protocols_are_spoken_or_refused() {
        let theirs = InitIn {
            major: 8,
            ..kernel(0, WANTED)
        };
        let Word::Ours(ours) = word(&theirs, WANTED) else {
            panic!("asked once more");
        };
        assert_eq!((ours.major, ours.minor, ours.max_write), (7, 45, 0));
        assert_eq!(word(&kernel(22, WANTED), WANTED), Word::TooOld);
        assert!(matches!(
            word(&kernel(23, WANTED), WANTED),
            Word::Agreed(..)
        ));
        let theirs = InitIn {
            major: 6,
            ..kernel(45, WANTED)
        };
        assert_eq!(word(&theirs, WANTED), Word::TooOld);
    }

    #[test]
    fn old_kernels_say_less_and_no_kernel_says_nothing() {
        let whole = kernel(31, init::BIG_WRITES).bytes();
        assert_eq!(told(&whole[..16]), Some(kernel(31, init::BIG_WRITES)));
        assert_eq!(told(&whole), InitIn::parse(&whole));
        for len in 0..16 {
            assert_eq!(told(&whole[..len]), None);
        }
    }
}
