//! Which slot the calling thread has in which session.
//!
//! A thread takes a slot when it first touches a session, and gives it back when it ends; should it be killed instead,
//! its robust mutex tells. What a forked child has of it is a copy. In a session that was joined for good (the preload library's,
//! one in a process) threads just end; when most slots are taken, those that come have one only while they are in the engine
//! ([`end_turn`]).

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;

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
    }
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
fn take_for_good(session: &Arc<Shared>, turns: fn()) -> Result<ThreadId> {
    let (id, for_a_turn) = await_one(&session.arena, PATIENCE).ok_or_else(|| all_taken(session))?;
    LAST.set((session.instance, id.0));
    TURN.set(for_a_turn);
    if for_a_turn {
        turns();
    }
    Ok(id)
}

fn await_one(arena: &Arena, patience: Duration) -> Option<(ThreadId, bool)> {
    let mut begun = None;
    for round in 1u32.. {
        if let Some(taken) = threads::take_for_good(arena, true) {
            return Some(taken);
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
        threads::release(Me {
            arena: &session.arena,
            id: ThreadId(id),
        });
    }
}

fn all_taken(session: &Shared) -> Error {
    Error::Session(format!(
        "all {} thread slots are taken; end some threads, or start another session",
        session.arena.counts().threads - 1
    ))
}

#[cold]
fn find_or_take(session: &Arc<Shared>) -> Result<ThreadId> {
    if let Some(turns) = session.for_good {
        return take_for_good(session, turns);
    }
    ALL.with(|all| {
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
    })
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
