//! Evidence of life that the kernel keeps: a robust futex in shared memory, held for as long as a thread lives.
//!
//! When the thread ends without letting go, in whatever way, the kernel walks its list of robust futexes and marks the
//! word: the owner has died. Each process that maps the word sees it, in any process and any pid namespace, and no
//! time-out is involved (arena rule 4). The mark comes after the thread's last instruction.
//!
//! The kernel wants the list's nodes beside the words, so they lie in shared memory, where anybody in the session may have overwritten
//! them. Nothing here follows a pointer out of there, as libc's mutexes do when they are unlocked: our nodes are the last of
//! the thread's list, so what comes after each is known without looking, and the way to the first of them leads through
//! the program's own mutexes alone. libc puts its own in front.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, compiler_fence};

use super::raw;
use crate::sync::{AtomicU32, Ordering};

// Elsewhere the node may lie at another place in a mutex, or the list have another form.
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!(
    "whether a thread lives is read from the robust futexes of Linux, as 64-bit glibc lists them"
);

/// A futex and the node of a list, laid out as a mutex of glibc's: both share the thread's list.
#[repr(C, align(8))]
#[derive(Debug, Default)]
pub struct Word {
    futex: AtomicU32,
    unused: [AtomicU32; 5],
    /// Written by libc, when it takes a neighbour out of the list; read by nobody.
    previous: AtomicU64,
    /// For the kernel.
    next: AtomicU64,
}

/// How far a node is from its futex, bytes.
const NODE_AT: usize = 32;
const _: () = assert!(std::mem::offset_of!(Word, next) == NODE_AT && size_of::<Word>() == 40);

/// The kernel's mark in a futex word whose owner has died, and where the owner's number is (`linux/futex.h`).
const OWNER_DIED: u32 = 0x4000_0000;
const OWNER: u32 = 0x3fff_ffff;
/// The owner of a word that is held for a simulated thread: no number of a thread's.
pub const SIMULATED: u32 = OWNER;
/// Set in the address of a node whose mutex hands its priority on.
const FLAG: usize = 1;
/// Mutexes of the program's that are looked through for ours, at most; the kernel stops sooner.
const STEPS_MAX: usize = 1 << 16;
/// Words that a thread may hold: one for each session that it is in, and one for its process.
const MINE_MAX: usize = 32;

/// A thread's list (`struct robust_list_head`).
#[repr(C)]
struct Head {
    next: usize,
    futex_offset: isize,
    pending: usize,
}

thread_local! {
    /// This thread's nodes, in the order of the list, up to the first 0.
    static MINE: Cell<[usize; MINE_MAX]> = const { Cell::new([0; MINE_MAX]) };
}

/// For whom a word is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The calling thread.
    Thread,
    /// One of which the kernel knows nothing: it lives until somebody says that it does not ([`mark`]).
    Simulated,
}

/// How a [`claim`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The word is the caller's.
    Won,
    /// Somebody else has it.
    Lost,
    /// The kernel would not mark it.
    Refused,
}

/// Holds the word for the calling thread's life. The caller owns the slot that the word is in, so nobody else changes it. `false`: the
/// kernel would not mark it.
pub fn hold(word: &Word) -> bool {
    let take = || {
        word.futex.store(this_thread(), Ordering::Release);
        true
    };
    enlist(word, take).is_some()
}

/// Takes a word that nobody has, or the dead had, before anybody else does. It counts as a dead one's until [`bring_to_life`]; should the
/// holder die, it is one's again.
pub fn claim(word: &Word, holder: Holder) -> Claim {
    let take = |owner: u32| {
        let seen = word.futex.load(Ordering::Acquire);
        seen & OWNER == 0 && change(word, seen, owner | OWNER_DIED)
    };
    let taken = match holder {
        Holder::Thread => enlist(word, || take(this_thread())),
        Holder::Simulated => Some(take(SIMULATED)),
    };
    match taken {
        Some(true) => Claim::Won,
        Some(false) => Claim::Lost,
        None => Claim::Refused,
    }
}

/// The word that the caller has claimed is a living one's from now on.
pub fn bring_to_life(word: &Word) {
    let owner = holder(word);
    change(word, owner | OWNER_DIED, owner);
}

/// Has the thread's end marked in a word that it takes now. What `take` returns; `None`: the kernel would not mark it.
fn enlist(word: &Word, take: impl FnOnce() -> bool) -> Option<bool> {
    let list = List::of_this_thread()?;
    let mut mine = list.mine();
    let node = word.node();
    if mine.contains(&node) {
        return Some(take());
    }
    let free = mine.iter().position(|&node| node == 0)?;
    let before = match free {
        0 => list.find(list.end())?,
        _ => mine[free - 1],
    };
    list.set_pending(node);
    let taken = take();
    if taken {
        word.next.store(list.end() as u64, Ordering::Relaxed);
        mine[free] = node;
        MINE.set(mine);
        list.link(before, node);
    }
    list.set_pending(0);
    Some(taken)
}

/// Lets go: the thread leaves in good order. Only the thread that holds the word may call this.
pub fn let_go(word: &Word) {
    leave(word, 0);
}

/// Lets go of a word that the caller has claimed: it is a dead one's again.
pub fn put_back(word: &Word) {
    leave(word, OWNER_DIED);
}

fn leave(word: &Word, to: u32) {
    if holder(word) == SIMULATED {
        return word.free(SIMULATED, to);
    }
    let node = word.node();
    if let Some(list) = List::of_this_thread() {
        let mut mine = list.mine();
        if let Some(at) = mine.iter().position(|&known| known == node) {
            let before = match at {
                0 => list.find(node),
                _ => Some(mine[at - 1]),
            };
            let after = match mine.get(at + 1) {
                Some(&next) if next != 0 => next,
                _ => list.end(),
            };
            list.set_pending(node);
            if let Some(before) = before {
                list.link(before, after);
            }
            mine.copy_within(at + 1.., at);
            mine[MINE_MAX - 1] = 0;
            MINE.set(mine);
            word.free(this_thread(), to);
            list.set_pending(0);
            return;
        }
    }
    word.free(this_thread(), to);
}

/// Opens a word for another thread, `owner`, which lives and has done with it. Not if it is somebody else's by now.
pub fn open_for(word: &Word, owner: u32) {
    change(word, owner, 0);
}

/// Says of a word what the kernel would, of an owner whose end it does not see.
pub fn mark(word: &Word) {
    word.futex.store(OWNER_DIED, Ordering::Release);
}

/// As [`mark`], if the word is the living `owner`'s still.
pub fn mark_if_of(word: &Word, owner: u32) {
    change(word, owner, OWNER_DIED);
}

fn change(word: &Word, from: u32, to: u32) -> bool {
    let (way, else_way) = (Ordering::AcqRel, Ordering::Relaxed);
    let changed = word.futex.compare_exchange(from, to, way, else_way);
    changed.is_ok()
}

fn this_thread() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { raw::call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Whether a process is stopped, by a signal or a debugger. One that cannot be seen from here is not, as far as is known.
pub fn is_stopped(process: u32) -> bool {
    process != 0
        && std::fs::read(format!("/proc/{process}/stat")).is_ok_and(|text| tells_of_a_stop(&text))
}

/// The same, by what `/proc/PID/stat` says, or its first bytes.
pub(super) fn tells_of_a_stop(stat: &[u8]) -> bool {
    matches!(words_of_stat(stat).next(), Some("T" | "t"))
}

/// The words of `/proc/PID/stat` after the name, which may have anything in it: state, parent, process group, session and so on, as
/// `proc_pid_stat(5)` has them from the third on.
pub fn words_of_stat(stat: &[u8]) -> impl Iterator<Item = &str> {
    let end = stat.iter().rposition(|&byte| byte == b')');
    let rest = end.and_then(|end| std::str::from_utf8(&stat[end + 1..]).ok());
    rest.unwrap_or_default().split_ascii_whitespace()
}

/// Whether the kernel has marked the owner as dead.
pub fn owner_died(word: &Word) -> bool {
    word.futex.load(Ordering::Acquire) & OWNER_DIED != 0
}

/// Whether a thread holds the word that has not been marked as dead.
pub fn is_held(word: &Word) -> bool {
    let value = word.futex.load(Ordering::Acquire);
    value & OWNER != 0 && value & OWNER_DIED == 0
}

/// Whether nobody has the word, and no dead one had it last.
pub fn is_nobodys(word: &Word) -> bool {
    word.futex.load(Ordering::Acquire) & (OWNER | OWNER_DIED) == 0
}

/// Whether the word can be claimed now.
pub fn is_open(word: &Word) -> bool {
    holder(word) == 0
}

/// The number of the thread that has the word, 0 for none.
pub fn holder(word: &Word) -> u32 {
    word.futex.load(Ordering::Acquire) & OWNER
}

/// Whether the word is held for the calling thread, or for a simulated one.
pub fn is_ours(word: &Word) -> bool {
    is_held_by(word, this_thread()) || is_simulated(word)
}

/// Whether the word is held for a simulated thread.
pub fn is_simulated(word: &Word) -> bool {
    is_held_by(word, SIMULATED)
}

/// Whether this thread holds the word, and has not been marked as dead.
pub fn is_held_by(word: &Word, thread: u32) -> bool {
    thread != 0 && word.futex.load(Ordering::Acquire) & (OWNER | OWNER_DIED) == thread
}

/// What tells the pid namespace of the calling process from others, whose numbers say nothing here; 0 where the system does not tell.
pub fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |seen| seen.ino())
}

/// Whether there is no such thread in a process of the caller's pid namespace.
pub fn is_no_thread_of(process: u32, thread: u32) -> bool {
    // SAFETY: takes no memory; no signal is sent, only asked whether one could be.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

impl Word {
    fn node(&self) -> usize {
        (&raw const self.next).addr()
    }

    /// Not the owner's any more, unless it is another thread's by now.
    fn free(&self, owner: u32, to: u32) {
        let value = self.futex.load(Ordering::Acquire);
        if value & OWNER == owner {
            change(self, value, to);
        }
    }
}

/// The list that the kernel walks when the calling thread ends.
struct List(*mut Head);

impl List {
    fn of_this_thread() -> Option<Self> {
        let mut head: *mut Head = std::ptr::null_mut();
        let mut len: usize = 0;
        let (to, len_to) = (&raw mut head, &raw mut len);
        let (to, len_to) = (to.expose_provenance(), len_to.expose_provenance());
        // SAFETY: the kernel writes two words of ours.
        let rc = unsafe { raw::call(libc::SYS_get_robust_list, [0, to, len_to, 0, 0, 0]) };
        if rc != 0 {
            return None;
        }
        if head.is_null() {
            return Self::new();
        }
        // SAFETY: the list that this thread has registered; libc's lives in the thread's own record.
        let offset = unsafe { (&raw const (*head).futex_offset).read() };
        let known = len == size_of::<Head>() && offset == -(NODE_AT as isize);
        known.then_some(Self(head))
    }

    /// For a thread that libc knows nothing of, the child of a bare `clone`.
    fn new() -> Option<Self> {
        let head = Box::leak(Box::new(Head {
            next: 0,
            futex_offset: -(NODE_AT as isize),
            pending: 0,
        }));
        head.next = (&raw const head.next).addr();
        let head: *mut Head = head;
        // SAFETY: leaked, so that it is there when the thread ends.
        let rc = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
        (rc == 0).then_some(Self(head))
    }

    /// What the last node's pointer holds.
    fn end(&self) -> usize {
        self.0.addr()
    }

    /// This thread's nodes, if they are in the list: a forked child begins with an empty one.
    fn mine(&self) -> [usize; MINE_MAX] {
        let mine = MINE.get();
        match mine[0] != 0 && self.find(mine[0]).is_some() {
            true => mine,
            false => [0; MINE_MAX],
        }
    }

    /// The place whose pointer leads to `wanted`, through nodes that are not ours.
    fn find(&self, wanted: usize) -> Option<usize> {
        let first_of_ours = MINE.get()[0];
        let mut at = self.end();
        for _ in 0..STEPS_MAX {
            // SAFETY: the list's head, or a node that libc has put there and nobody else changes while this thread runs here; never one
            // of ours, which come last.
            let next = unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() };
            if next & !FLAG == wanted {
                return Some(at);
            }
            at = next & !FLAG;
            if at == 0 || at == self.end() || at == first_of_ours {
                return None;
            }
        }
        None
    }

    fn link(&self, before: usize, after: usize) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the list's head, a node of libc's in front of ours, or one of ours, which is mapped while this thread holds it; only this
        // thread changes its list.
        unsafe { std::ptr::with_exposed_provenance_mut::<usize>(before).write_volatile(after) };
        compiler_fence(Ordering::SeqCst);
    }

    /// A death from now on marks this node as well, in the list or not.
    fn set_pending(&self, node: usize) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the registered head, which this thread alone writes.
        unsafe { (&raw mut (*self.0).pending).write_volatile(node) };
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
