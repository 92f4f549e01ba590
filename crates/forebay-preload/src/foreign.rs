//! Inodes that this process reaches by ways which pass no hook, for as long as it has them: streams of stdio, shared mappings,
//! descriptors that other programs have as well.
//!
//! No descriptor of theirs becomes managed in this process: what the stream or the mapping shows is the kernel's. A table of
//! words, without locks and without memory to be asked for; should it ever be full, nothing becomes managed any more. The
//! session's other processes learn of it by the arena (`forebay::member::reached`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay::member::reached::hash;
use forebay::session::glance::Glance;
use libc::c_int;

use crate::attach;
use crate::files;
use crate::kernel;
use crate::raw::KeepErrno;
use crate::{real, serve};

/// A power of two.
const WORDS: usize = 16384;
/// Places that an inode may be at, from its hash on.
const WINDOW: usize = 64;
/// A word is a hash of the inode above its count.
const COUNT_BITS: u32 = 16;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

static TABLE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Whether there ever was one: else the table is not looked at, each page of which costs the first that does.
static ANY: AtomicBool = AtomicBool::new(false);
static FULL: AtomicBool = AtomicBool::new(false);

fn places(hash: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let begin = (hash >> 48) as usize;
    (0..WINDOW).map(move |step| &TABLE[(begin + step) % WORDS])
}

fn count_of(word: u64, hash: u64) -> u64 {
    let same = word >> COUNT_BITS == hash & (u64::MAX >> COUNT_BITS);
    if same { word & COUNT_MAX } else { 0 }
}

/// Whether an inode is one of them.
pub fn has(device: u64, inode: u64) -> bool {
    if !ANY.load(Ordering::Acquire) {
        return false;
    }
    let hash = hash(device, inode);
    FULL.load(Ordering::Acquire)
        || places(hash).any(|place| count_of(place.load(Ordering::Acquire), hash) > 0)
}

/// One more use of an inode.
fn add(device: u64, inode: u64) {
    let hash = hash(device, inode);
    let key = hash << COUNT_BITS;
    ANY.store(true, Ordering::SeqCst);
    // Where it is already, then where there is room.
    for known in [true, false] {
        for place in places(hash) {
            let changed = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let count = count_of(word, hash);
                if known {
                    (count > 0).then_some(key | (count + 1).min(COUNT_MAX))
                } else {
                    (word & COUNT_MAX == 0).then_some(key | 1)
                }
            });
            if changed.is_ok() {
                return;
            }
        }
    }
    FULL.store(true, Ordering::Release);
}

/// One use less. A count that has reached its end stays there.
fn remove(device: u64, inode: u64) {
    let hash = hash(device, inode);
    let key = hash << COUNT_BITS;
    for place in places(hash) {
        let changed =
            place.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                match count_of(word, hash) {
                    0 | COUNT_MAX => None,
                    count => Some(key | (count - 1)),
                }
            });
        if changed.is_ok() {
            return;
        }
    }
}

/// The inode behind a descriptor, if it is a regular file.
pub fn regular(fd: c_int) -> Option<(u64, u64)> {
    let look = files::Look::at(fd).filter(files::Look::is_regular)?;
    Some(look.identity())
}

/// A file, as the kernel names it.
#[derive(Clone, Copy)]
pub struct File {
    /// Its device's number.
    pub device: u64,
    /// Its inode's.
    pub inode: u64,
}

/// A descriptor's file is used so from now on. Should the session have come to manage it meanwhile, it is the kernel's after this, or the use
/// must not begin.
pub fn begin(fd: c_int, why: files::Why) -> Result<Option<File>, c_int> {
    let Some((device, inode)) = regular(fd) else {
        return Ok(None);
    };
    add(device, inode);
    reach(device, inode);
    kernel::note_left(fd, (device, inode), why);
    let file = File { device, inode };
    match files::give_inode_to_kernel(device, inode, why) {
        Ok(()) => Ok(Some(file)),
        Err(errno) => {
            end_of(file, true);
            Err(errno)
        }
    }
}

/// A descriptor that has come by a way that passes no hook: what is done with it is the kernel's, however long it is open. So is what is done with
/// this process's others of its file, one of which may be of the same description: to the session they were one, and the offset is the engine's
/// until it is put back. Where that cannot be it is closed. Returns the descriptor, or -1.
pub fn received(fd: c_int, why: files::Why) -> c_int {
    let errno = KeepErrno::new();
    let given = regular(fd).map_or(Ok(()), |(device, inode)| {
        reach(device, inode);
        files::give_inode_to_kernel(device, inode, why)?;
        kernel::leave_all((device, inode));
        Ok(())
    });
    let Err(failed) = given else { return fd };
    // SAFETY: takes no memory; the program has not seen the descriptor.
    unsafe { real::close(fd) };
    drop(errno);
    serve::fail(failed) as c_int
}

/// One more use of a file that is used so; `told`: the arena hears of it.
pub fn begin_again(file: File, told: bool) {
    add(file.device, file.inode);
    if told {
        reach(file.device, file.inode);
    }
}

/// The use ends.
pub fn end(fd: c_int) {
    if let Some((device, inode)) = regular(fd)
        && has(device, inode)
    {
        end_of(File { device, inode }, true);
    }
}

/// A use of a file ends; `told`: the arena hears of it.
pub fn end_of(file: File, told: bool) {
    remove(file.device, file.inode);
    if told {
        reach_no_more(file.device, file.inode);
    }
}

/// From now on, and nobody hears when it ends, somebody reaches a file past this process's hooks.
pub fn reach(device: u64, inode: u64) {
    if let Some(glance) = attach::glance() {
        glance.begin_reach(hash(device, inode));
    }
}

/// That has ended. Asks for no memory: a forked child may have to say so.
pub fn reach_no_more(device: u64, inode: u64) {
    if let Some(glance) = attach::known_glance() {
        glance.end_reach(hash(device, inode));
    }
}

/// There is another arena: it learns what this process has.
pub fn tell(glance: &Glance) {
    if !ANY.load(Ordering::SeqCst) {
        return;
    }
    for place in &TABLE {
        let word = place.load(Ordering::Acquire);
        for _ in 0..word & COUNT_MAX {
            glance.begin_reach(word >> COUNT_BITS);
        }
    }
}
