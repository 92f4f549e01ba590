//! Which slot the calling thread has in which session.
//!
//! A thread takes a slot when it first touches a session, and gives it back when it ends; should it be killed instead,
//! its robust mutex tells.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::ids::ThreadId;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;

struct Membership {
    instance: u64,
    id: ThreadId,
    session: Weak<Shared>,
}

#[derive(Default)]
struct Memberships(RefCell<Vec<Membership>>);

impl Drop for Memberships {
    fn drop(&mut self) {
        for membership in self.0.borrow_mut().drain(..) {
            if let Some(session) = membership.session.upgrade() {
                threads::release(Me {
                    arena: &session.arena,
                    id: membership.id,
                });
            }
        }
    }
}

thread_local! {
    /// The session used last and the slot in it: the hot path's only look.
    static LAST: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    static ALL: Memberships = Memberships::default();
}

/// The calling thread's slot.
#[inline]
pub fn current(session: &Arc<Shared>) -> Result<ThreadId> {
    let (instance, id) = LAST.get();
    if instance == session.instance {
        return Ok(ThreadId(id));
    }
    find_or_take(session)
}

#[cold]
fn find_or_take(session: &Arc<Shared>) -> Result<ThreadId> {
    ALL.with(|all| {
        let mut all = all.0.borrow_mut();
        all.retain(|m| m.session.strong_count() > 0);
        let known = all
            .iter()
            .find(|m| m.instance == session.instance)
            .map(|m| m.id);
        let id = match known {
            Some(id) => id,
            None => {
                let real = !session.config.heap_backed;
                let id = threads::take(&session.arena, real).ok_or_else(|| {
                    Error::Session(format!(
                        "all {} thread slots are taken; end some threads, or start another session",
                        session.arena.counts().threads - 1
                    ))
                })?;
                let session_weak = Arc::downgrade(session);
                all.push(Membership {
                    instance: session.instance,
                    id,
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
