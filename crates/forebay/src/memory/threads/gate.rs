//! A gate: which thread has closed it, and which threads may be inside.
//!
//! A thread that comes in pays no fence: it says in a word of its own what it works on, and then loads the gate. The closer of the gate has to
//! see these words, and for that pays a barrier in all running threads and a look at every word there is. Most files are opened, written, read
//! and closed by one thread. So the gate remembers who has come in since it was last closed: nobody, one thread, or several. Where nobody but
//! the closer has, closing is one compare-and-swap.
//!
//! Why that is enough: closer and users are in one word. A thread is inside only if the gate that it loaded was open and named it, or several; if
//! not, it puts itself into the word first, which fails once the gate is closed. And it is only taken out again by one that had closed the gate and
//! has seen, with barrier and look, that nobody else is inside ([`Gate::open`]). So where the word that closes the gate names nobody else, a thread
//! that is inside would have been seen by that one. (A thread that ends a flight comes past a closed gate, and is in no gate's word:
//! `Me::enter_past_gate`.)
//!
//! Not done here: words, barriers and waiting ([`super::stops`], and the preload library for its own table).

use crate::ids::ThreadId;
use crate::limits::THREADS_MAX;
use crate::sync::{AtomicU32, Ordering, planted};

/// The gate's word: the thread that has closed it in the lower half, or 0; in the upper half the only thread that has come in since it was last
/// closed, 0 for none, all ones for several.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Gate(AtomicU32);

const CLOSER: u32 = 0xffff;
const USER_SHIFT: u32 = 16;
const SEVERAL: u32 = CLOSER << USER_SHIFT;

const _: () = assert!(THREADS_MAX < CLOSER);

/// Who may be inside a gate that has just been closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    /// Nobody but the closer.
    Nobody,
    /// Others, which have said so: to be waited for after a barrier.
    Others,
}

impl Gate {
    /// An open gate, through which nobody has come.
    pub const fn new() -> Self {
        Gate(AtomicU32::new(0))
    }

    /// The thread that has closed it; 0 for nobody.
    #[inline]
    pub fn closer(&self) -> ThreadId {
        ThreadId(self.0.load(Ordering::Acquire) & CLOSER)
    }

    /// Comes in; the thread has said so in its own word before. Otherwise it is told who has closed the gate.
    #[inline(always)]
    pub fn pass(&self, me: ThreadId) -> Result<(), ThreadId> {
        let word = self.0.load(Ordering::Acquire);
        if word == me.0 << USER_SHIFT || word == SEVERAL {
            return Ok(());
        }
        self.pass_noted(me, word)
    }

    #[cold]
    fn pass_noted(&self, me: ThreadId, mut word: u32) -> Result<(), ThreadId> {
        loop {
            if word & CLOSER != 0 {
                return Err(ThreadId(word & CLOSER));
            }
            let mine = me.0 << USER_SHIFT;
            let noted = match word {
                0 => mine,
                word if word == mine => return Ok(()),
                _ => SEVERAL,
            };
            // Release and acquire: the closer that finds the note finds the word of its own that the thread has stored before.
            match self
                .0
                .compare_exchange(word, noted, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Closes it. `None`: somebody has already.
    pub fn close(&self, me: ThreadId) -> Option<Inside> {
        let mut word = self.0.load(Ordering::Acquire);
        while word & CLOSER == 0 {
            match self
                .0
                .compare_exchange(word, word | me.0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) if word == 0 || word == me.0 << USER_SHIFT || planted!(AloneUnasked) => {
                    return Some(Inside::Nobody);
                }
                Ok(_) => return Some(Inside::Others),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Opens it, for the thread that has closed it and has then been alone; `is_inside`: it is inside itself and goes on.
    pub fn open(&self, me: ThreadId, is_inside: bool) {
        let users = if is_inside { me.0 << USER_SHIFT } else { 0 };
        self.0.store(users, Ordering::Release);
    }

    /// Opens it for one that was not alone, or has died: others may be inside still. Not if somebody else has closed it.
    pub fn reopen(&self, closer: ThreadId) {
        let mut word = self.0.load(Ordering::Acquire);
        while word & CLOSER == closer.0 {
            match self
                .0
                .compare_exchange(word, word & !CLOSER, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ThreadId = ThreadId(3);
    const B: ThreadId = ThreadId(1023);

    #[test]
    fn who_is_the_only_one_is_known_to_be_alone() {
        let gate = Gate::new();
        assert_eq!(gate.close(A), Some(Inside::Nobody));
        assert_eq!((gate.close(B), gate.closer()), (None, A));
        assert_eq!((gate.pass(B), gate.pass(A)), (Err(A), Err(A)));
        gate.open(A, false);
        assert_eq!(gate.pass(A), Ok(()));
        assert_eq!(gate.close(A), Some(Inside::Nobody));
        gate.open(A, true);
        assert_eq!(gate.close(B), Some(Inside::Others), "A went on inside");
    }

    #[test]
    fn who_came_is_forgotten_by_one_that_was_alone() {
        let gate = Gate::new();
        assert_eq!(
            (gate.pass(A), gate.pass(B), gate.pass(A)),
            (Ok(()), Ok(()), Ok(()))
        );
        assert_eq!(gate.close(A), Some(Inside::Others));
        gate.reopen(B);
        assert_eq!(gate.closer(), A, "closed by another");
        gate.reopen(A);
        assert_eq!(gate.close(A), Some(Inside::Others), "it was not alone");
        gate.open(A, false);
        assert_eq!(gate.close(B), Some(Inside::Nobody));
    }
}
