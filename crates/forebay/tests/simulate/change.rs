//! Operations under way, and who may meet whom: what changes a file's length meets no other change of the file; appends meet
//! writes within the file and each other; everything meets readers, syncs, flushes and the keeper.
//!
//! A killed task leaves its operation in doubt: these are dropped when it unwinds.

use std::rc::Rc;

use crate::ledger::{Begun, Looking};
use crate::value::Value;
use crate::world::{World, moment};

/// How often one that may not begin tries again before it gives up.
const TRIES: u32 = 20;

enum Kind {
    Write,
    Append,
    Resize(u64),
    Hole,
}

/// A change that has begun.
pub struct Change {
    world: Rc<World>,
    file: usize,
    kind: Kind,
    begun: Begun,
    pub seed: u32,
    is_over: bool,
}

impl Change {
    fn admit(world: &Rc<World>, may: impl Fn() -> bool) -> bool {
        for _ in 0..TRIES {
            if may() {
                return true;
            }
            if world.pause.get() {
                return false;
            }
            moment();
        }
        false
    }

    fn new(world: &Rc<World>, file: usize, kind: Kind, seed: u32, begun: Begun) -> Self {
        let subject = &world.files[file];
        match kind {
            Kind::Append => subject.appends.set(subject.appends.get() + 1),
            Kind::Resize(_) => subject.is_resized.set(true),
            Kind::Write | Kind::Hole => {}
        }
        subject.changes.set(subject.changes.get() + 1);
        Change {
            world: Rc::clone(world),
            file,
            kind,
            begun,
            seed,
            is_over: false,
        }
    }

    /// A write. `None`: it may not be now.
    pub fn write(world: &Rc<World>, file: usize, start: u64, end: u64) -> Option<Self> {
        let subject = &world.files[file];
        let may = || {
            let ledger = subject.ledger.borrow();
            let inside = end <= ledger.shortest();
            !subject.is_resized.get()
                && (inside || subject.appends.get() == 0 && !ledger.is_doubtful())
        };
        if !Self::admit(world, may) {
            return None;
        }
        let seed = world.next_seed();
        let begun = if start < end {
            subject.ledger.borrow_mut().begin_write(start, end, seed)
        } else {
            subject.ledger.borrow_mut().begin_write(0, 0, seed)
        };
        Some(Self::new(world, file, Kind::Write, seed, begun))
    }

    /// An append.
    pub fn append(world: &Rc<World>, file: usize, len: u64) -> Option<Self> {
        let subject = &world.files[file];
        let may = || {
            let ledger = subject.ledger.borrow();
            // Writes that may make the file longer are over when its length is known.
            let length_is_known =
                ledger.shortest() == ledger.longest() || subject.appends.get() > 0;
            !subject.is_resized.get() && !ledger.is_doubtful() && length_is_known
        };
        if !Self::admit(world, may) {
            return None;
        }
        let seed = world.next_seed();
        let begun = subject.ledger.borrow_mut().begin_append(len);
        Some(Self::new(world, file, Kind::Append, seed, begun))
    }

    /// A new length.
    pub fn resize(world: &Rc<World>, file: usize, len: u64) -> Option<Self> {
        let subject = &world.files[file];
        let may = || subject.changes.get() == 0 && !subject.ledger.borrow().is_doubtful();
        if !Self::admit(world, may) {
            return None;
        }
        let begun = subject.ledger.borrow_mut().begin_resize(len);
        Some(Self::new(world, file, Kind::Resize(len), 0, begun))
    }

    /// A hole within the file.
    pub fn hole(world: &Rc<World>, file: usize, start: u64, end: u64) -> Option<Self> {
        let subject = &world.files[file];
        let may = || !subject.is_resized.get() && end <= subject.ledger.borrow().shortest();
        if !Self::admit(world, may) {
            return None;
        }
        let begun = subject.ledger.borrow_mut().begin(start, end, Value::Zero);
        Some(Self::new(world, file, Kind::Hole, 0, begun))
    }

    /// It has been acknowledged.
    pub fn done(mut self) {
        self.is_over = true;
        let mut ledger = self.world.files[self.file].ledger.borrow_mut();
        match self.kind {
            Kind::Write => ledger.end_write(self.begun),
            Kind::Resize(len) => ledger.end_resize(self.begun, len),
            Kind::Hole => ledger.end(self.begun),
            Kind::Append => unreachable!("an append ends somewhere"),
        }
    }

    /// An append has been acknowledged.
    pub fn done_at(mut self, at: u64) {
        self.is_over = true;
        let mut ledger = self.world.files[self.file].ledger.borrow_mut();
        ledger.end_append(self.begun, at, self.seed);
    }

    /// Somebody begins to look at a file.
    pub fn look(world: &Rc<World>, file: usize) -> Look {
        Look {
            looking: Some(world.files[file].ledger.borrow_mut().look()),
            world: Rc::clone(world),
            file,
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let subject = &self.world.files[self.file];
        match self.kind {
            Kind::Append => subject.appends.set(subject.appends.get().saturating_sub(1)),
            Kind::Resize(_) => subject.is_resized.set(false),
            Kind::Write | Kind::Hole => {}
        }
        subject.changes.set(subject.changes.get().saturating_sub(1));
        if !self.is_over
            && let Ok(mut ledger) = subject.ledger.try_borrow_mut()
        {
            ledger.doubt(self.begun);
            if let Kind::Hole = self.kind {
                self.world.hole_in_doubt.set(true);
            }
        }
    }
}

/// Somebody looks at a file.
pub struct Look {
    world: Rc<World>,
    file: usize,
    looking: Option<Looking>,
}

impl Look {
    fn check(
        mut self,
        check: impl FnOnce(&mut crate::ledger::Ledger, crate::ledger::Window) -> Result<(), String>,
    ) {
        let looking = self.looking.take().expect("ended once");
        let mut ledger = self.world.files[self.file].ledger.borrow_mut();
        let window = ledger.look_away(looking);
        let checked = check(&mut ledger, window);
        drop(ledger);
        if let Err(what) = checked {
            panic!("file {}: {what}", self.file);
        }
    }

    pub fn check_read(self, offset: u64, wanted: u64, bytes: &[u8]) {
        self.check(|ledger, window| ledger.check_read(window, offset, wanted, bytes));
    }

    pub fn check_length(self, len: u64) {
        self.check(|ledger, window| ledger.check_length(window, len));
    }

    /// The device has everything that was acknowledged when the look began.
    pub fn check_synced(self) {
        let device = self.world.files[self.file].sim().contents();
        self.check(|ledger, window| {
            let checked = ledger.check_synced(window, &device);
            checked.map_err(|what| format!("after a sync the device is wrong: {what}"))
        });
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(looking) = self.looking.take() {
            self.world.files[self.file]
                .ledger
                .borrow_mut()
                .look_away(looking);
        }
    }
}
