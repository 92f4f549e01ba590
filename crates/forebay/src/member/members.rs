//! Which slot the calling thread has in which session.
//!
//! A thread takes a slot when it first touches a session, and gives it back when it ends; should it be killed instead,
//! its robust mutex tells. What a forked child has of it is a copy. In a session that was joined for good (the preload library's,
//! one in a process) threads just end; when most slots are taken, those that come have one only while they are in the engine
//! ([`end_turn`]).

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, SessionFault};
use crate::ids::ThreadId;
use crate::limits;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::threads::{self, Me};

struct Membership {
    /// The process whose thread it is: a forked child has a copy, and gives nothing away that is its parent's.
    process: u32,
    instance: u64,
    id: ThreadId,
    /// Keeps the arena mapped: the kernel and libc follow this thread's list of robust mutexes into it.
    arena: Arc<Arena>,
    session: Weak<Shared>,
}

#[derive(Default)]
struct Memberships(RefCell<Vec<Membership>>);

fn end(membership: Membership) {
    if membership.process != std::process::id() {
        return;
    }
    threads::release(Me {
        arena: &membership.arena,
        id: membership.id,
    });
}

impl Drop for Memberships {
    fn drop(&mut self) {
        self.0.borrow_mut().drain(..).for_each(end);
        // Destructors that come after this one may use a session, and the slots are others' now.
        LAST.set((0, 0));
    }
}

/// The slots of a process that stays for good, for the case that it must leave all the same.
pub struct ForGood {
    /// Called by threads that have a slot for a turn; see [`end_turn`].
    turns: fn(),
    /// Threads that are about to take or to give back a slot.
    changing: AtomicU32,
    /// Nobody takes one any more.
    has_left: AtomicBool,
    /// By slot: which of its lives is one of this process's, with [`OURS`].
    lives: [AtomicU32; limits::THREADS_MAX as usize],
}

/// In the lower half of a life.
const OURS: u32 = 1;

impl ForGood {
    /// For a process that joins.
    pub fn boxed(turns: fn()) -> Box<Self> {
        Box::new(ForGood {
            turns,
            changing: AtomicU32::new(0),
            has_left: AtomicBool::new(false),
            lives: [const { AtomicU32::new(0) }; limits::THREADS_MAX as usize],
        })
    }

    /// Takes a slot, or gives one back, unless the process has left.
    fn change<T>(&self, change: impl FnOnce() -> Option<T>) -> Option<T> {
        self.changing.fetch_add(1, SeqCst);
        let changed = if self.has_left.load(SeqCst) {
            None
        } else {
            change()
        };
        self.changing.fetch_sub(1, SeqCst);
        changed
    }

    /// The slots that threads of this process have or had.
    fn slots(&self) -> impl Iterator<Item = (ThreadId, u32)> {
        let lives = self.lives.iter().zip(0..);
        lives.filter_map(|(life, id)| match life.load(SeqCst) {
            0 => None,
            life => Some((ThreadId(id), life & !OURS)),
        })
    }
}

/// How long a process that leaves waits for what its threads are at.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The process leaves a session that it has joined for good: nothing of the arena is mapped any more. Its caller has seen to it that none of its
/// files is managed and that nobody begins to manage one. Threads that are still about to give a slot back, or to take one, find none.
pub fn leave_for_good(session: &Shared, own: &ForGood) -> Result<()> {
    let arena = &*session.arena;
    own.has_left.store(true, SeqCst);
    let begun = Instant::now();
    let works = |(id, life)| threads::is_working(arena, id, life);
    while own.changing.load(SeqCst) != 0 || own.slots().any(works) {
        if begun.elapsed() > ENDS_WITHIN {
            own.has_left.store(false, SeqCst);
            return Err(SessionFault::InUse.error("threads of this process are busy in it"));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let give_slots_up = || {
        for (id, life) in own.slots() {
            threads::give_up(Me { arena, id }, life);
        }
    };
    let given = arena.give_up(give_slots_up);
    given.map_err(|e| Error::Arena(format!("its memory cannot be given up: {e}")))
}

thread_local! {
    /// The session used last and the slot in it: the hot path's only look.
    static LAST: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    /// It is for one turn, and given back after that.
    static TURN: Cell<bool> = const { Cell::new(false) };
    static ALL: Memberships = Memberships::default();
}

/// The calling thread's slot.
#[inline]
pub fn current(session: &Arc<Shared>) -> Result<ThreadId> {
    #[cfg(feature = "sim")]
    if crate::sim::tasks::is_on() {
        let take = || threads::take(&session.arena, false);
        let slot = crate::sim::tasks::slot(session.instance, &session.arena, take);
        return slot.ok_or_else(|| all_taken(session));
    }
    let (instance, id) = LAST.get();
    if instance == session.instance {
        return Ok(ThreadId(id));
    }
    find_or_take(session)
}

/// How long a thread waits for its turn. Turns end with the calls of others; a thread that waits for longer is told that something holds
/// all of these up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A slot for a thread that will end without a word: its robust mutex tells. No thread-local with a destructor is touched.
#[cold]
fn take_for_good(session: &Arc<Shared>, own: &ForGood) -> Result<ThreadId> {
    let taken = await_one(&session.arena, own, PATIENCE);
    let (id, for_a_turn) = taken.ok_or_else(|| all_taken(session))?;
    LAST.set((session.instance, id.0));
    TURN.set(for_a_turn);
    if for_a_turn {
        (own.turns)();
    }
    Ok(id)
}

fn await_one(arena: &Arena, own: &ForGood, patience: Duration) -> Option<(ThreadId, bool)> {
    let take = || {
        let taken = threads::take_for_good(arena, true)?;
        let life = threads::life(arena, taken.0)?;
        own.lives[taken.0.index() % own.lives.len()].store(life | OURS, SeqCst);
        Some(taken)
    };
    let mut begun = None;
    for round in 1u32.. {
        let taken = own.change(take);
        if taken.is_some() || own.has_left.load(SeqCst) {
            return taken;
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > patience {
            break;
        }
        std::thread::sleep(Duration::from_micros(100 * u64::from(round.min(20))));
    }
    None
}

/// Gives the calling thread's slot back, if it was for a turn: the thread is not in the engine any more.
pub fn end_turn(session: &Shared) {
    let (instance, id) = LAST.get();
    if instance == session.instance && TURN.replace(false) {
        LAST.set((0, 0));
        let me = Me {
            arena: &session.arena,
            id: ThreadId(id),
        };
        match &session.for_good {
            Some(own) => {
                own.change(|| {
                    own.lives[me.id.index() % own.lives.len()].store(0, SeqCst);
                    threads::release(me);
                    Some(())
                });
            }
            None => threads::release(me),
        }
    }
}

/// Gives the calling thread's slot back, for a turn or not. For a thread that is about to execute a program: unless it is the process's first one, the
/// kernel gives it that one's number before it looks at what it holds, and nothing would tell that the slot's thread has ended.
pub fn give_back(session: &Shared) {
    if LAST.get().0 == session.instance {
        TURN.set(true);
        end_turn(session);
    }
}

fn all_taken(session: &Shared) -> Error {
    SessionFault::Full.error(format!(
        "all {} thread slots are taken; end some threads, or start another session",
        session.arena.counts().threads - 1
    ))
}

#[cold]
fn find_or_take(session: &Arc<Shared>) -> Result<ThreadId> {
    if let Some(own) = &session.for_good {
        return take_for_good(session, own);
    }
    let found = ALL.try_with(|all| {
        let mut all = all.0.borrow_mut();
        // Sessions that this process has left meanwhile.
        all.extract_if(.., |m| m.session.strong_count() == 0)
            .for_each(end);
        let known = all
            .iter()
            .find(|m| m.instance == session.instance)
            .map(|m| m.id);
        let id = match known {
            Some(id) => id,
            None => {
                let real = !session.config.heap_backed;
                let id = threads::take(&session.arena, real).ok_or_else(|| all_taken(session))?;
                note(session, id);
                let session_weak = Arc::downgrade(session);
                all.push(Membership {
                    process: std::process::id(),
                    instance: session.instance,
                    id,
                    arena: Arc::clone(&session.arena),
                    session: session_weak,
                });
                id
            }
        };
        LAST.set((session.instance, id.0));
        Ok(id)
    });
    found.unwrap_or_else(|_| take_late(session))
}

/// A slot for a thread that is ending, and has given its own back: a destructor of the program's uses the session. The thread's robust mutex
/// tells when it has ended, and nothing else does: so the arena stays mapped for as long as the process lives.
#[cold]
fn take_late(session: &Arc<Shared>) -> Result<ThreadId> {
    let real = !session.config.heap_backed;
    let id = threads::take(&session.arena, real).ok_or_else(|| all_taken(session))?;
    note(session, id);
    std::mem::forget(Arc::clone(&session.arena));
    LAST.set((session.instance, id.0));
    Ok(id)
}

/// The calling thread has taken a slot.
fn note(session: &Shared, id: ThreadId) {
    let Some(life) = threads::life(&session.arena, id) else {
        return;
    };
    let mut slots = session.slots.lock().unwrap_or_else(PoisonError::into_inner);
    slots.retain(|&(id, life)| threads::life(&session.arena, id) == Some(life));
    slots.push((id, life));
}

/// Whether a thread of this process has a slot. By what this process has noted: numbers of processes are one namespace's.
pub fn is_ours(session: &Shared, id: ThreadId) -> bool {
    let Some(life) = threads::life(&session.arena, id) else {
        return false;
    };
    match &session.for_good {
        Some(own) => own.slots().any(|slot| slot == (id, life)),
        None => {
            let slots = session.slots.lock();
            let slots = slots.unwrap_or_else(PoisonError::into_inner);
            slots.contains(&(id, life))
        }
    }
}

/// Forgets the calling thread's membership without giving the slot back: for a forked child, and for tests of death.
pub fn forget(instance: u64) {
    ALL.with(|all| all.0.borrow_mut().retain(|m| m.instance != instance));
    LAST.set((0, 0));
}

/// Gives the calling thread's slot in a session back: the process is leaving it.
pub fn leave(instance: u64) {
    // While a thread's locals are being dropped its memberships end by themselves.
    let _ = ALL.try_with(|all| {
        if let Ok(mut all) = all.0.try_borrow_mut() {
            all.extract_if(.., |m| m.instance == instance).for_each(end);
        }
    });
    let _ = LAST.try_with(|last| {
        if last.get().0 == instance {
            last.set((0, 0));
        }
    });
}
