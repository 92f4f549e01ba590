//! Leaving the session for good: before the process becomes somebody who must not have what its user's programs share, or says that it may do
//! less from now on.
//!
//! All of its files go to the kernel first. Then nothing of the arena stays mapped, no descriptor of the engine's stays open, and the memory that
//! relatives by fork share is shared no more. Other threads may be in the middle of looks at all of these: they find memory of the process's
//! own in the same place, in which nobody knows anything.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use forebay::session::glance::Glance;
use forebay::{Error, Session, SessionFault};

use crate::attach;
use crate::files::{self, Given, Why};
use crate::inodes;
use crate::inside::{Inside, NotCancelled};
use crate::mapped::views;
use crate::rare::Rare;
use crate::raw::KeepErrno;
use crate::real;
use crate::table::{self, Kind, Word};

/// How long other threads have to come to the end of what they are at.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that has mapped an arena, and is never freed.
pub enum Mapped {
    /// A session that this process has joined, or one that it was forked from.
    Session(&'static Session),
    /// A look from outside.
    Glance(&'static Glance),
}

struct Note {
    mapped: Mapped,
    next: *const Note,
}

static NOTES: AtomicPtr<Note> = AtomicPtr::new(std::ptr::null_mut());

/// Remembers it for [`leave`].
pub fn note(mapped: Mapped) {
    let mut next = NOTES.load(Ordering::Acquire);
    let note = Box::into_raw(Box::new(Note { mapped, next }));
    while let Err(now) = NOTES.compare_exchange(next, note, Ordering::AcqRel, Ordering::Acquire) {
        next = now;
        // SAFETY: made above, and known to nobody yet.
        unsafe { (*note).next = next };
    }
}

/// Leaves. An error: the call before which this was to be done must fail with it. Where a file cannot be flushed, or a thread does not come to
/// an end, the process is what it was.
pub fn leave(why: Why) -> Given {
    if Inside::is() || !attach::is_asked() || attach::has_left() {
        return Ok(());
    }
    attach::notice_fork();
    let _errno = KeepErrno::new();
    let rare = give_everything(why)?;
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    if views::make_own().is_err() {
        attach::turn_on();
        return Err(libc::ENOMEM);
    }
    if let Some(session) = attach::take_session() {
        match session.leave_for_good() {
            Ok(()) => {}
            Err(error) if error.is_session(SessionFault::InUse) => {
                attach::put_back(session);
                attach::turn_on();
                return Err(libc::EAGAIN);
            }
            Err(_) => return Err(libc::ENOMEM),
        }
    }
    attach::forget_glance();
    give_memory_up().map_err(|_| libc::ENOMEM)?;
    for (fd, word) in table::each() {
        if word.kind() == Kind::Ours && table::replace(fd, word, Word::NONE) {
            // SAFETY: the engine's, which nobody uses any more.
            unsafe { real::close(fd) };
        }
    }
    table::hide();
    if !table::part() {
        return Err(libc::ENOMEM);
    }
    attach::set_left();
    drop(rare);
    Ok(())
}

/// All files go to the kernel, and other threads come to the end of what they are at.
fn give_everything(why: Why) -> Result<Rare, libc::c_int> {
    let begun = Instant::now();
    loop {
        files::leave_session(why)?;
        let rare = Rare::lock();
        let apart = table::wiped(table::WIPED_APART).load(Ordering::SeqCst);
        if inodes::are_none(&rare) && apart == 0 {
            return Ok(rare);
        }
        drop(rare);
        if begun.elapsed() > PATIENCE {
            attach::turn_on();
            return Err(libc::EAGAIN);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn give_memory_up() -> Result<(), Error> {
    let mut at: *const Note = NOTES.load(Ordering::Acquire);
    // SAFETY: notes are never freed, nor changed once they are in the list.
    while let Some(note) = unsafe { at.as_ref() } {
        match note.mapped {
            Mapped::Session(session) => session.forget_arena()?,
            Mapped::Glance(glance) => glance.give_up().map_err(|e| Error::Arena(e.to_string()))?,
        }
        at = note.next;
    }
    Ok(())
}
