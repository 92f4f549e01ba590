//! Private mappings of files whose bytes the session has in memory, made of the arena's frames.
//!
//! They are mappings of the kernel's of an open description of the arena's file ([`Holder`]), private: the kernel copies a page that the
//! program stores into. The frames are pinned in the holder's name. Where this process alone has a mapping, its end takes the pins back.
//! At a fork the child gets the mappings as well: from then on nobody counts them but the kernel, whose mappings keep the holder's
//! description, and the pins end with the last of them, here or there. What is mapped after that has another holder.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, Ordering::AcqRel, Ordering::Relaxed,
};

use forebay::file::view::attached::{Attached, Piece};
use forebay::member::viewers::Holder;
use libc::c_int;

use super::{Lock, What};
use crate::attach;
use crate::hooks::pass::transfer::plain;
use crate::inside::{Inside, NotCancelled};
use crate::raw::{self, KeepErrno};
use crate::serve::{self, Answer, Turn};
use crate::table;

/// Views at most.
const VIEWS: usize = 512;
/// Mappings of the kernel's that all views together consist of at most; it gives a process 65,530.
const PIECES_MAX: usize = 8192;
/// What the kernel does with a private mapping of a file it does with one of the arena's.
const FLAGS: c_int = libc::MAP_PRIVATE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_LOCKED
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_32BIT;

/// The pins of a view.
pub(super) type Pinned = Box<Attached>;

/// The holder of the table's lock changes a view.
struct View {
    /// Ranges of the table that are parts of it; 0: free.
    ranges: AtomicU32,
    pieces: AtomicUsize,
    /// Null: nobody here counts it, or it is free.
    attached: AtomicPtr<Attached>,
}

static TABLE: [View; VIEWS] = [const {
    View {
        ranges: AtomicU32::new(0),
        pieces: AtomicUsize::new(0),
        attached: AtomicPtr::new(std::ptr::null_mut()),
    }
}; VIEWS];
/// Those in use.
static USED: AtomicU32 = AtomicU32::new(0);
static PIECES: AtomicUsize = AtomicUsize::new(0);
/// What new mappings are made of: a counted reference, or null.
static HOLDER: AtomicPtr<Holder> = AtomicPtr::new(std::ptr::null_mut());
/// Pages may be in use when nothing maps them any more: no view is made.
static ENDED: AtomicBool = AtomicBool::new(false);
/// Threads that are about to fork: what is mapped now a child may have, and nobody would know.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// How often one was.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A call of `mmap`.
pub struct Request {
    /// Where.
    pub at: usize,
    /// How much.
    pub len: usize,
    /// `PROT_READ` and its like.
    pub access: c_int,
    /// `MAP_PRIVATE` and its like.
    pub flags: c_int,
    /// Of which file.
    pub fd: c_int,
    /// From where on.
    pub offset: usize,
}

/// Whether a mapping can be a view, as far as the call and a look at the descriptor tell.
pub fn may_be_view(access: c_int, flags: c_int, fd: c_int) -> bool {
    let word = table::word(fd);
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & !FLAGS == 0
        && access & libc::PROT_EXEC == 0
        && word.is_file()
        && word.reads()
        && !word.writes()
}

impl Request {
    /// Whether it takes the place of what is mapped there, which the program may use meanwhile.
    fn replaces(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
    }
}

/// Maps a file as the call says, or says how that fails. `None`: the kernel is to do so, and nothing is mapped where nothing was.
pub fn map(request: &Request) -> Option<Result<usize, c_int>> {
    let _errno = KeepErrno::new();
    let Turn::Managed(word) = serve::turn(request.fd) else {
        return None;
    };
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    let holder = holder()?;
    let len = request.len.checked_next_multiple_of(super::PAGE_BYTES)?;
    let answer = serve::with(request.fd, word, |using, _| {
        let start = request.offset as u64;
        using.inode.attach(using.me, &holder, start, len)
    });
    let Answer::Done(Some(attached)) = answer else {
        return None;
    };
    let pieces = attached.pieces();
    let lock = Lock::take();
    let view = TABLE
        .iter()
        .position(|view| view.ranges.load(Relaxed) == 0)?;
    if ENDED.load(Relaxed) {
        return None;
    }
    let is_too_much = PIECES.load(Relaxed) + pieces.len() > PIECES_MAX;
    if is_too_much || forks().is_none() || !super::has_room() {
        return None;
    }
    let rest = attached.rest();
    if request.replaces() && rest > 0 {
        // A thread that looks there meanwhile would see what is to be cleared.
        return None;
    }
    let begin = if request.replaces() && pieces.len() > 1 {
        let Some(begin) = show_over(request, &holder, &pieces) else {
            // Some of its pieces may be there, for as long as nothing takes their place.
            attached.leave_to_holder();
            return None;
        };
        begin
    } else {
        match show(request, len, &holder, &pieces) {
            None if !request.replaces() && raw::errno() == libc::EEXIST => {
                return Some(Err(libc::EEXIST));
            }
            begin => begin?,
        }
    };
    if rest > 0 && !clear(begin + len, rest, request.access) {
        plain::unmap(begin, len);
        return None;
    }
    let gone = super::end_locked(&lock, begin, len);
    USED.fetch_add(1, Relaxed);
    PIECES.fetch_add(pieces.len(), Relaxed);
    let of = &TABLE[view];
    of.pieces.store(pieces.len(), Relaxed);
    of.attached
        .store(Box::into_raw(Box::new(attached)), Relaxed);
    of.ranges.store(1, Relaxed);
    super::enter(begin, begin + len, What::View(view), false);
    lock.free(gone);
    Some(Ok(begin))
}

/// What new mappings are made of.
fn holder() -> Option<Arc<Holder>> {
    let session = attach::joined()?;
    let me = session.shared().me().ok()?;
    let _lock = Lock::take();
    let known = HOLDER.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: a counted reference, which is taken back under the lock that this thread has.
        unsafe {
            Arc::increment_strong_count(known);
            return Some(Arc::from_raw(known));
        }
    }
    let made = Arc::new(session.shared().holder(me, attach::relocate)?);
    let kept = Arc::into_raw(Arc::clone(&made)).cast_mut();
    HOLDER.store(kept, Ordering::Release);
    Some(made)
}

/// Maps the pieces side by side.
fn show(request: &Request, len: usize, holder: &Holder, pieces: &[Piece]) -> Option<usize> {
    let fd = holder.file().as_raw_fd();
    let one = |at: usize, flags: c_int, piece: &Piece| {
        plain::map(at, piece.len, request.access, flags, fd, piece.offset)
    };
    if let [piece] = pieces {
        let begin = one(request.at, request.flags, piece);
        return (begin != -1).then_some(begin as usize);
    }
    let flags = request.flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED);
    let (nothing, place) = (libc::PROT_NONE, flags | libc::MAP_ANONYMOUS);
    let begin = plain::map(request.at, len, nothing, place, -1, 0);
    if begin == -1 {
        return None;
    }
    let flags = request.flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    for piece in pieces {
        if one(begin as usize + piece.at, flags, piece) == -1 {
            plain::unmap(begin as usize, len);
            return None;
        }
    }
    Some(begin as usize)
}

/// Maps the pieces over what the program has mapped there, and may be looking at: each page is at any time what it was or what it is to be.
/// The last one is first: addresses that nobody may have are refused before anything is replaced. What has been replaced where there is no
/// room for the others the kernel's mapping replaces in turn.
fn show_over(request: &Request, holder: &Holder, pieces: &[Piece]) -> Option<usize> {
    let fd = holder.file().as_raw_fd();
    let flags = request.flags & !(libc::MAP_POPULATE | libc::MAP_LOCKED);
    for piece in pieces.iter().rev() {
        let at = request.at.checked_add(piece.at)?;
        if plain::map(at, piece.len, request.access, flags, fd, piece.offset) == -1 {
            return None;
        }
    }
    Some(request.at)
}

/// Makes the last bytes before `end` zeros, in a copy of the process's.
fn clear(end: usize, rest: usize, access: c_int) -> bool {
    let page = end - super::PAGE_BYTES;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let allow = |access: c_int| {
        let page = std::ptr::with_exposed_provenance_mut(page);
        // SAFETY: a page of the mapping that was made just now; the program does not know it yet.
        unsafe { libc::mprotect(page, super::PAGE_BYTES, access) == 0 }
    };
    if !allow(both) {
        return false;
    }
    // SAFETY: the same page: mapped, writable, private to the process.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(end - rest).write_bytes(0, rest) };
    access & both == both || allow(access)
}

/// One more range is a part of a view.
pub(super) fn one_more(view: usize) {
    TABLE[view].ranges.fetch_add(1, Relaxed);
}

/// One range less. What is to be dropped once the table's lock is free: the pins of a view of which nothing is left.
pub(super) fn one_fewer(view: usize) -> Option<Pinned> {
    let of = &TABLE[view];
    if of.ranges.fetch_sub(1, Relaxed) != 1 {
        return None;
    }
    USED.fetch_sub(1, Relaxed);
    PIECES.fetch_sub(of.pieces.load(Relaxed), Relaxed);
    let attached = of.attached.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: made by a box in `map`, and taken once.
    (!attached.is_null()).then(|| unsafe { Box::from_raw(attached) })
}

/// Children may have all that is mapped now: nobody here counts it any more. With the table's lock.
pub(super) fn leave_to_the_kernel(is_child: bool) {
    if USED.load(Relaxed) == 0 {
        // A holder of nothing stays with the process that has made it; the child's descriptor is closed with the engine's others.
        if is_child {
            HOLDER.store(std::ptr::null_mut(), Relaxed);
        }
        return;
    }
    leave_to_holder(is_child);
    let holder = take_holder();
    if is_child {
        std::mem::forget(holder);
    }
}

/// Nobody here counts the views' pins any more: they are the holder's. With the table's lock.
fn leave_to_holder(is_child: bool) {
    for view in &TABLE {
        let attached = view.attached.swap(std::ptr::null_mut(), AcqRel);
        if attached.is_null() || is_child {
            // What a child has of its parent's is never freed.
            continue;
        }
        // SAFETY: made by a box in `map`, and taken once.
        unsafe { Box::from_raw(attached) }.leave_to_holder();
    }
}

/// From now on the kernel may use pages of the program's memory after they are unmapped (a ring's requests, packets that are made of them).
/// No view is made any more, and those that there are stay pinned until the process ends.
pub fn outlive() {
    if ENDED.load(Relaxed) {
        return;
    }
    let _lock = Lock::take();
    ENDED.store(true, Relaxed);
    leave_to_holder(false);
    // Nobody closes its description: it ends with the process.
    std::mem::forget(take_holder());
}

/// What new mappings are no longer made of. Mappings keep its description.
fn take_holder() -> Option<Arc<Holder>> {
    let holder = HOLDER.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: the counted reference that `holder` has left there, taken once.
    (!holder.is_null()).then(|| unsafe { Arc::from_raw(holder) })
}

/// Has all views show memory of the process's own, with what they show now: nothing of the arena stays mapped.
///
/// # Errors
/// The system's. What has not been replaced stays as it is.
pub fn make_own() -> io::Result<()> {
    let lock = Lock::take();
    let mut gone = Vec::new();
    if USED.load(Relaxed) != 0 {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let memory = File::open("/proc/self/mem")?;
        for range in super::all() {
            let Some((begin, end)) = range.of_view() else {
                continue;
            };
            for (from, to, access) in maps.lines().filter_map(mapping) {
                let (from, to) = (from.max(begin), to.min(end));
                if from < to {
                    copy(&memory, from, to - from, access)?;
                }
            }
            gone.append(&mut super::end_locked(&lock, begin, end - begin));
        }
    }
    let holder = take_holder();
    lock.free(gone);
    drop(holder);
    Ok(())
}

/// A line of `/proc/self/maps`: from where, to where, and what may be done there.
fn mapping(line: &str) -> Option<(usize, usize, c_int)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    let bits = [
        ('r', libc::PROT_READ),
        ('w', libc::PROT_WRITE),
        ('x', libc::PROT_EXEC),
    ];
    let allowed = rest.get(..3)?;
    let access = bits.iter().filter(|(letter, _)| allowed.contains(*letter));
    Some((
        number(from)?,
        number(to)?,
        access.fold(0, |all, (_, bit)| all | bit),
    ))
}

/// Replaces a part of a view, at once for a thread that looks there meanwhile. What is stored there meanwhile may be lost.
fn copy(memory: &File, begin: usize, len: usize, access: c_int) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let own = plain::map(0, len, both, flags, -1, 0);
    if own == -1 {
        return Err(io::Error::last_os_error());
    }
    let own = own as usize;
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(own);
    // SAFETY: mapped just now, zeros, and nobody else knows of it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at, len) };
    let both = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let replaced = memory.read_exact_at(bytes, begin as u64).and_then(|()| {
        // SAFETY: the same memory; the slice is used no more.
        let allowed = unsafe { libc::mprotect(at.cast(), len, access) } == 0;
        let is_done = allowed && plain::remap(own, len, len, both, begin) != -1;
        is_done.then_some(()).ok_or_else(io::Error::last_os_error)
    });
    if replaced.is_err() {
        plain::unmap(own, len);
    }
    replaced
}

/// While it lives no view is made.
pub struct Forking(());

impl Forking {
    /// Somebody is about to fork.
    pub fn begin() -> Self {
        FORKING.fetch_add(1, Ordering::SeqCst);
        FORKS.fetch_add(1, Ordering::SeqCst);
        Forking(())
    }
}

impl Drop for Forking {
    fn drop(&mut self) {
        FORKING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many forks have begun. `None`: one is under way.
pub fn forks() -> Option<u32> {
    let forks = FORKS.load(Ordering::SeqCst);
    (FORKING.load(Ordering::SeqCst) == 0).then_some(forks)
}

/// A child forks nothing yet.
pub(super) fn in_child() {
    if FORKING.load(Ordering::SeqCst) != 0 {
        FORKING.store(0, Ordering::SeqCst);
    }
}
