//! What outsiders may count on: once the session's last description of a file has been closed, they see everything that was acknowledged, whether
//! its close has waited for the device or has left the file to the keeper.
//!
//! Not so where the device has failed since then, where somebody has died who had the file open, or the keeper, which may have had a lease
//! on it; and no longer than until somebody in the session opens it.

use std::cell::Cell;
use std::rc::Rc;

use crate::world::World;

/// A moment in a file's life, by what ends promises.
type Stamp = (u64, u64);

/// See the module's documentation.
#[derive(Default)]
pub struct Standing {
    /// Descriptions that the session has, and those that it is about to have.
    opens: Cell<u32>,
    openings: Cell<u32>,
    /// Those of them that change the file.
    cuts: Cell<u32>,
    /// Openings so far, and writes from outside.
    changes: Cell<u64>,
    /// Deaths of those who had it open, and of keepers.
    upsets: Cell<u64>,
    /// When it was last closed in good order.
    settled: Cell<Option<Stamp>>,
    /// An outsider writes: nobody in the session opens it meanwhile.
    written_outside: Cell<bool>,
}

impl Standing {
    /// Somebody has died.
    pub fn upset(&self) {
        self.upsets.set(self.upsets.get() + 1);
        self.settled.set(None);
    }

    /// Nobody has anything open.
    pub fn begin_anew(&self) {
        for count in [&self.opens, &self.openings, &self.cuts] {
            count.set(0);
        }
        self.written_outside.set(false);
        self.upset();
    }

    fn change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Whether an outsider writes it.
    pub fn is_written_outside(&self) -> bool {
        self.written_outside.get()
    }
}

fn raise(count: &Cell<u32>) {
    count.set(count.get() + 1);
}

fn lower(count: &Cell<u32>) {
    // After a power failure there is nobody left to count.
    count.set(count.get().saturating_sub(1));
}

/// Somebody in the session opens a file.
pub struct Opening {
    world: Rc<World>,
    file: usize,
    cuts: bool,
}

impl Opening {
    /// Begins.
    pub fn new(world: &Rc<World>, file: usize) -> Self {
        raise(&world.files[file].standing.openings);
        Opening {
            world: Rc::clone(world),
            file,
            cuts: false,
        }
    }

    /// It changes the file: nothing is promised until somebody has closed it again.
    pub fn cuts(&mut self) {
        let standing = &self.world.files[self.file].standing;
        raise(&standing.cuts);
        self.cuts = true;
        standing.change();
        standing.settled.set(None);
    }

    /// It is open.
    pub fn done(self) -> Open {
        let standing = &self.world.files[self.file].standing;
        raise(&standing.opens);
        standing.change();
        standing.settled.set(None);
        Open {
            world: Rc::clone(&self.world),
            file: self.file,
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let standing = &self.world.files[self.file].standing;
        lower(&standing.openings);
        if self.cuts {
            lower(&standing.cuts);
        }
    }
}

/// Somebody in the session has a file open.
pub struct Open {
    world: Rc<World>,
    file: usize,
}

impl Drop for Open {
    fn drop(&mut self) {
        let standing = &self.world.files[self.file].standing;
        lower(&standing.opens);
        if forebay::sim::crashed() {
            standing.upset();
        }
    }
}

/// A close that has begun.
pub struct Closing(Stamp);

impl World {
    fn stamp(&self, file: usize) -> Stamp {
        let upsets = self.files[file].standing.upsets.get();
        (upsets, self.station().faults())
    }

    /// Somebody begins to close a file.
    pub fn begin_close(&self, file: usize) -> Closing {
        Closing(self.stamp(file))
    }

    /// He has closed it without an error, and does not have it any more.
    pub fn closed_well(&self, file: usize, closing: &Closing) {
        let now = self.stamp(file);
        let standing = &self.files[file].standing;
        if standing.opens.get() == 0 && closing.0 == now {
            standing.settled.set(Some(now));
        }
    }
}

/// What an outsider counts on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    stamp: Stamp,
    changes: u64,
}

impl World {
    /// What an outsider may count on who begins to open a file now. Nothing, while another one writes it.
    pub fn promise(&self, file: usize) -> Option<Promise> {
        let standing = &self.files[file].standing;
        if standing.is_written_outside() {
            return None;
        }
        let stamp = self.stamp(file);
        let is_closed = standing.opens.get() == 0 && standing.cuts.get() == 0;
        let settled = is_closed && standing.settled.get() == Some(stamp);
        settled.then(|| Promise {
            stamp,
            changes: standing.changes.get(),
        })
    }
}

/// An outsider writes.
pub struct Outside {
    world: Rc<World>,
    file: usize,
}

impl Outside {
    /// `None`: somebody in the session has the file open, or opens it, or something is in the way that makes it nobody's business.
    pub fn begin(world: &Rc<World>, file: usize) -> Option<Self> {
        let standing = &world.files[file].standing;
        let in_the_way = standing.openings.get() != 0 || standing.written_outside.get();
        if in_the_way || world.promise(file).is_none() {
            return None;
        }
        standing.written_outside.set(true);
        standing.change();
        Some(Outside {
            world: Rc::clone(world),
            file,
        })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let standing = &self.world.files[self.file].standing;
        standing.written_outside.set(false);
        standing.change();
    }
}
