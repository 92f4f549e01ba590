//! Whether a thread that comes to open a file is a member of the session, and comes by its library.
//!
//! A member may make system calls by an instruction of its own, as Go's runtime and some libraries do. The kernel says where the
//! instruction is by which a thread that waits has called (`/proc/TID/syscall`): the library's calls, and those that it sees, are
//! made by its own code or libc's. A thread that calls by other code is an outsider in this, the loader among them. A member without the preload
//! library, the keeper's own process among them, is one in everything but the engine's openings, which say so ([`crate::sys::opening`]). Where there is
//! no descriptor to read all that with, the engine's openings of the keeper's own process are members', and all others outsiders': the guard's worker
//! opens files too, and nobody would let it in.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::who;
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::memory::threads;
use crate::sync::{Ordering, relax};
use crate::sys::{numbers, opening};

/// Members and threads that are remembered at most; a thread takes a descriptor.
const MEMBERS_MAX: usize = 1024;
const THREADS_MAX: usize = 64;
/// How often a thread is looked at that is on its way into its wait, and gets no processor, or that was let in by somebody else: for some
/// 300 ms. A copy of the keeper answers in its place after 800 ms ([`crate::sys::stand_in`]).
const LOOKS: u32 = 930;
/// From this round on [`relax`] gives the processor away.
const GIVES_WAY: u32 = 64;

/// Members that have been seen.
pub struct Members {
    /// What members without the preload library open is let in, by whatever code they open it.
    trusts: bool,
    processes: HashMap<i32, Process>,
    threads: HashMap<i32, Thread>,
}

/// A member, and a thread of its own: as long as that lives, nobody has to look again. Executing another program ends it.
struct Process {
    thread: ThreadId,
    life: u32,
    code: Code,
}

/// By which code a process's calls are to be made. Those that are members without the preload library have none: the engine's calls say so.
struct Code(Option<Vec<Range<u64>>>);

/// A thread that has been seen, for as long as it lives: what its descriptor leads to is no other one's.
struct Thread {
    process: i32,
    call: File,
}

impl Members {
    /// None yet. `trusts`: whatever members without the preload library open is the engine's.
    pub fn new(trusts: bool) -> Self {
        Members {
            trusts: trusts || !opening::SAYS_SO,
            processes: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    /// Whether a thread that waits to open a file, by its number in `/proc`, does so as a member.
    pub fn open(&mut self, arena: &Arena, thread: i32, inode: (u64, u64)) -> bool {
        if thread <= 0 {
            return false;
        }
        for _ in 0..2 {
            let seen = match self.thread(thread) {
                Ok(seen) => seen,
                Err(_) => return opening::is_under_way_by(thread as u32),
            };
            let is_engines = || threads::opens_for_the_engine(arena, thread as u32);
            let (process, at) = (seen.process, seen.calls_from(is_engines));
            match at {
                Ok(at) => return self.may_call(arena, process, inode, at),
                // It has ended, and another one has its number.
                Err(_) => self.threads.remove(&thread),
            };
        }
        false
    }

    /// Gives the descriptors back that threads take.
    pub fn forget_threads(&mut self) {
        self.threads.clear();
    }

    /// # Errors
    /// There is none of this number, or no descriptor to look with.
    fn thread(&mut self, thread: i32) -> io::Result<&Thread> {
        if self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&thread) {
            self.threads.clear();
        }
        match self.threads.entry(thread) {
            Entry::Occupied(seen) => Ok(seen.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(Thread::of(thread)?)),
        }
    }

    /// Whether a process is a member, and calls from this address as one.
    fn may_call(&mut self, arena: &Arena, pid: i32, inode: (u64, u64), at: Option<u64>) -> bool {
        if let Some(known) = self.processes.get(&pid)
            && threads::life(arena, known.thread) == Some(known.life)
        {
            return known.code.permits(at, self.trusts);
        }
        let Ok(mapped) = who::mapped_by(pid as u32, inode) else {
            return false;
        };
        if !mapped.is_member {
            return false;
        }
        let code = Code(mapped.library.map(|_| mapped.code));
        let permits = code.permits(at, self.trusts);
        self.remember(arena, pid, code);
        permits
    }

    fn remember(&mut self, arena: &Arena, pid: i32, code: Code) {
        if self.processes.len() >= MEMBERS_MAX {
            self.processes.clear();
        }
        let its = |id: &ThreadId| {
            let slot = arena.thread(*id);
            slot.is_some_and(|slot| slot.pid.load(Ordering::Relaxed) == pid as u32)
        };
        let slots = (1..arena.counts().threads).map(ThreadId).filter(its);
        let alive = slots.filter_map(|id| Some((id, threads::life(arena, id)?)));
        if let Some((thread, life)) = alive.last() {
            self.processes.insert(pid, Process { thread, life, code });
        }
    }
}

impl Code {
    /// Whether a call from this address is the library's, or one that it knows of. What cannot be told is.
    fn permits(&self, at: Option<u64>, trusts: bool) -> bool {
        match (&self.0, at) {
            (Some(code), Some(at)) => code.iter().any(|range| range.contains(&at)),
            (None, Some(_)) => trusts,
            (_, None) => true,
        }
    }
}

impl Thread {
    fn of(thread: i32) -> io::Result<Self> {
        let turn = numbers::in_turn();
        let call = File::open(format!("/proc/{thread}/syscall"))?;
        let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
        drop(turn);
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let process = process.and_then(|process| process.trim().parse().ok());
        let process = process.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Thread { process, call })
    }

    /// Where the instruction is by which the thread, which waits in a system call, has made it. 0: it does not come to wait. `None`: this
    /// process may not know, or need not, since the call is the engine's.
    ///
    /// # Errors
    /// It has ended.
    fn calls_from(&self, is_engines: impl Fn() -> bool) -> io::Result<Option<u64>> {
        let mut text = [0; 256];
        for round in 0..LOOKS {
            let read = match self.call.read_at(&mut text, 0) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(error),
                Err(_) => return Ok(None),
                Ok(read) => &text[..read],
            };
            // It comes to wait after it has been told of, and is awake whenever another one has been let in.
            if !read.starts_with(b"running") {
                return Ok(address_in(read));
            }
            if is_engines() {
                return Ok(None);
            }
            relax(GIVES_WAY + round);
        }
        Ok(Some(0))
    }
}

/// `NUMBER ARGUMENTS STACK ADDRESS`, or `-1 STACK ADDRESS`. `None`: the engine's call, or none that can be read.
fn address_in(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line)
        .ok()
        .filter(|line| !opening::says_so(line))?;
    let address = line.split_ascii_whitespace().next_back()?;
    u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::memory::threads::Opening;
    use crate::session::Session;
    use crate::sys::forks::in_child;
    use crate::sys::limits;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

    #[test]
    fn where_a_thread_calls_from_is_read() {
        let line = b"257 0xffffff9c 0x55e6 0x0 0x0 0x0 0x0 0x7ffcc97c5530 0x7fa9f3189011\n";
        assert_eq!(address_in(line), Some(0x7fa9_f318_9011));
        assert_eq!(address_in(b"-1 0x7ffc 0x7fa9\n"), Some(0x7fa9));
        assert_eq!(address_in(b""), None);
        let code = Code(Some(vec![16..32, 48..64]));
        assert_eq!(
            [15, 16, 31, 32, 63].map(|at| code.permits(Some(at), true)),
            [false, true, true, false, true]
        );
        assert!(code.permits(None, false) && Code(None).permits(None, false));
        assert!(Code(None).permits(Some(1), true) && !Code(None).permits(Some(1), false));
    }

    #[test]
    fn a_thread_says_that_it_opens_for_the_engine() {
        let session = Session::open(Config::tiny()).expect("a session");
        let arena = &session.shared().arena;
        let id = threads::take(arena, true).expect("a slot");
        let me = threads::Me { arena, id };
        let this = number_of_this_thread();
        let opens = || threads::opens_for_the_engine(arena, this as u32);
        assert!(!opens());
        let opening = Opening::begin(me);
        assert!(opens() && !threads::opens_for_the_engine(arena, this as u32 + 1));
        drop(opening);
        assert!(!opens());
        threads::release(me);
    }

    #[test]
    fn who_is_awake_is_not_waited_for_where_the_call_is_the_engines() {
        let (number, asked) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                number.store(number_of_this_thread(), SeqCst);
                while !asked.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
            while number.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let mut members = Members::new(false);
            let seen = members.thread(number.load(SeqCst)).expect("the thread");
            let at = seen.calls_from(|| true);
            asked.store(true, SeqCst);
            assert_eq!(at.expect("it lives"), None);
        });
    }

    /// Such a guard would wait for its own worker: what outsiders wait for opens the file as well.
    #[test]
    fn a_guard_without_descriptors_knows_openings_of_its_own_process() {
        let session = Session::open(Config::tiny()).expect("a session");
        let arena = &session.shared().arena;
        let knows = in_child(|| {
            let this = number_of_this_thread();
            limits::no_descriptors();
            let is_member = || Members::new(false).open(arena, this, (0, 0));
            !is_member() && opening::noting(is_member) && !is_member()
        });
        assert!(knows, "taken for an outsider, or an outsider for it");
    }

    fn number_of_this_thread() -> i32 {
        let link = std::fs::read_link("/proc/thread-self").expect("a link");
        let name = link.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.parse().ok()).expect("a number")
    }

    #[test]
    fn a_thread_that_waits_is_told_from_one_that_has_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let mut members = Members::new(false);
        let seen = members.thread(child.id() as i32).expect("its thread");
        assert_eq!(seen.process, child.id() as i32);
        assert!(seen.calls_from(|| false).expect("it lives").is_some());
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert!(seen.calls_from(|| false).is_err());
    }
}
