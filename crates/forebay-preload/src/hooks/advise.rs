//! What programs say about their reads to come.

use forebay::Advise;
use libc::{c_int, off_t, size_t, ssize_t};

use crate::inside::NotCancelled;
use crate::real;
use crate::serve::{self, Answer, Turn};
use crate::table::{self, Word};

export! {
    /// `posix_fadvise`: answers with the error number.
    fn posix_fadvise64 | posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
        // SAFETY: takes no memory.
        let real = || unsafe { real::posix_fadvise64(fd, offset, len, advice) };
        let heeded = match advice {
            _ if table::word(fd) == Word::NONE || len < 0 => return real(),
            libc::POSIX_FADV_NORMAL => Some(Advise::Normal),
            libc::POSIX_FADV_SEQUENTIAL => Some(Advise::Sequential),
            libc::POSIX_FADV_RANDOM => Some(Advise::Random),
            libc::POSIX_FADV_WILLNEED => Some(Advise::WillNeed),
            libc::POSIX_FADV_DONTNEED => Some(Advise::DontNeed),
            libc::POSIX_FADV_NOREUSE => Some(Advise::NoReuse),
            _ => None,
        };
        match heeded.map(|advise| tell(fd, offset, len, advise)) {
            Some(Told::Failed(errno)) => errno,
            // The kernel would read the same bytes once more.
            Some(Told::Heeded) if advice == libc::POSIX_FADV_WILLNEED => 0,
            // Should the file be the kernel's some day, it knows as well; and it drops what it has of it.
            _ => real(),
        }
    }

    /// `readahead`.
    fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t {
        // SAFETY: takes no memory.
        let real = || unsafe { real::readahead(fd, offset, count) };
        let word = table::word(fd);
        if word == Word::NONE || !word.reads() || offset < 0 {
            return real();
        }
        if count == 0 {
            return 0;
        }
        let len = off_t::try_from(count).unwrap_or(off_t::MAX);
        match tell(fd, offset, len, Advise::WillNeed) {
            Told::Failed(errno) => serve::fail(errno),
            Told::Heeded => 0,
            Told::KernelHasIt => real(),
        }
    }
}

/// What has become of a hint.
enum Told {
    Heeded,
    KernelHasIt,
    /// See [`Turn::Failed`].
    Failed(c_int),
}

fn tell(fd: c_int, offset: off_t, len: off_t, advise: Advise) -> Told {
    loop {
        match serve::turn(fd) {
            Turn::Real | Turn::Candidate(_) => return Told::KernelHasIt,
            Turn::Failed(errno) => return Told::Failed(errno),
            Turn::Managed(word) => {
                let told = serve::with(fd, word, |using, _| {
                    let _cancel = NotCancelled::new();
                    if let Ok(offset) = u64::try_from(offset) {
                        using.inode.advise(using.me, offset, len as u64, advise);
                    }
                    Ok(())
                });
                if matches!(told, Answer::Done(()) | Answer::Failed(_)) {
                    return Told::Heeded;
                }
            }
        }
    }
}
