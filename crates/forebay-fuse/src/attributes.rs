//! What is told of a file, and what a time is.

use std::time::Duration;

use crate::wire;

const NS: i128 = 1_000_000_000;

/// A moment: whole seconds since 1970, or before it, and what has passed of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

impl Time {
    pub(crate) fn from_ns(ns: i128) -> Self {
        Time {
            seconds: ns.div_euclid(NS) as i64,
            nanoseconds: ns.rem_euclid(NS) as u32,
        }
    }

    pub(crate) fn ns(self) -> i128 {
        i128::from(self.seconds) * NS + i128::from(self.nanoseconds)
    }
}

/// A time that a file is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewTime {
    Now,
    At(Time),
}

/// What the kernel is told of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileAttr {
    pub(crate) number: u64,
    pub(crate) size: u64,
    /// Of 512 bytes each.
    pub(crate) blocks: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    /// When it was made, where that is known.
    pub(crate) born: Option<Time>,
    /// Its type and its rights.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Of a device: its number as the kernel packs it into 32 bits.
    pub(crate) device: u32,
    pub(crate) block_size: u32,
    /// How long the kernel may believe this, if not as long as all that it is told.
    pub(crate) believed: Option<Duration>,
}

/// The size of request that a regular file advises its users to make (`st_blksize`).
///
/// Each write is a request to another process, which takes several times as long as the copy of a page: so it had better be for more than one. libc's
/// streams take no more than 8 KiB. Python's files would take all, but read as much at each place that a program seeks, too.
const ADVISED: u32 = 8 << 10;

/// What a file of this mode advises; `block`: what all but regular files do.
pub(crate) fn advised(mode: u32, block: u32) -> u32 {
    if mode & libc::S_IFMT == libc::S_IFREG {
        ADVISED
    } else {
        block
    }
}

impl FileAttr {
    pub(crate) fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    pub(crate) fn to_wire(self) -> wire::Attr {
        wire::Attr {
            ino: self.number,
            size: self.size,
            blocks: self.blocks,
            atime: self.accessed.seconds,
            mtime: self.modified.seconds,
            ctime: self.changed.seconds,
            atimensec: self.accessed.nanoseconds,
            mtimensec: self.modified.nanoseconds,
            ctimensec: self.changed.nanoseconds,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device,
            blksize: self.block_size,
            flags: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_second_go_forward_also_before_1970() {
        for (ns, seconds, nanoseconds) in [
            (1_500_000_000, 1, 500_000_000),
            (-1_500_000_000, -2, 500_000_000),
            (-1, -1, 999_999_999),
        ] {
            let time = Time::from_ns(ns);
            assert_eq!((time.seconds, time.nanoseconds), (seconds, nanoseconds));
            assert_eq!(time.ns(), ns);
        }
        let first = Time {
            seconds: i64::MIN,
            nanoseconds: 9,
        };
        assert_eq!(Time::from_ns(first.ns()), first);
    }
}
