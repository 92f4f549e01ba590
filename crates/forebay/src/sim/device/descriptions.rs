//! Open descriptions of a simulated file, and the write lease that one of them may have: what Linux does in `open` and in
//! `fcntl(F_SETLEASE, F_WRLCK)`.
//!
//! A lease is given to the only description that there is, and to no other. A task that opens the file from then on waits until it has been
//! given up, until its description is closed by all that have it, or until the kernel takes it away, [`BREAK_TIME`] after the first that waited.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::file::SimFile;
use crate::sim::{crashed, tasks};

/// How long the kernel lets a holder keep others waiting: `/proc/sys/fs/lease-break-time`.
pub const BREAK_TIME: Duration = Duration::from_secs(45);
/// How often a task that waits looks, at first and at last.
const LOOK_EVERY: Duration = Duration::from_micros(10);
const LOOK_SELDOM: Duration = Duration::from_micros(500);

/// What the kernel knows of a file's descriptions.
#[derive(Default)]
pub(super) struct Descriptions(Mutex<State>);

#[derive(Default)]
struct State {
    /// Those that are open, or whose opener waits.
    open: u32,
    numbered: u64,
    lease: Option<Lease>,
    taken_away: u32,
}

struct Lease {
    /// The description's number.
    of: u64,
    /// Since when somebody waits, or was turned away.
    wanted: Option<Duration>,
}

impl State {
    fn take_away_when_late(&mut self) {
        let since = self.lease.as_ref().and_then(|lease| lease.wanted);
        if since.is_some_and(|since| tasks::now() >= since + BREAK_TIME) {
            self.lease = None;
            self.taken_away += 1;
        }
    }

    /// A task wants to come in. Whether it may.
    fn lets_in(&mut self) -> bool {
        self.take_away_when_late();
        if let Some(lease) = &mut self.lease {
            lease.wanted.get_or_insert(tasks::now());
        }
        self.lease.is_none()
    }
}

impl Descriptions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases that the kernel had to take away.
    pub(super) fn taken_away(&self) -> u32 {
        self.state().taken_away
    }

    pub(super) fn are_leased(&self) -> bool {
        self.state().lease.is_some()
    }
}

/// An open description. Descriptors of it are references: it is closed with the last of them, in whichever process that is, however that
/// process ends.
pub struct Description {
    file: Arc<SimFile>,
    number: u64,
}

impl Description {
    /// Counts as open before its opener waits, as in the kernel.
    fn new(file: &Arc<SimFile>) -> Self {
        let mut state = file.descriptions().state();
        state.numbered += 1;
        state.open += 1;
        let number = state.numbered;
        drop(state);
        Description {
            file: Arc::clone(file),
            number,
        }
    }

    /// Opens a file; waits for the end of a lease.
    pub fn open(file: &Arc<SimFile>) -> Arc<Self> {
        let new = Self::new(file);
        let mut pause = LOOK_EVERY;
        // A task that is dying does not wait.
        while !file.descriptions().state().lets_in() && !crashed() {
            tasks::sleep(pause);
            pause = (pause * 2).min(LOOK_SELDOM);
        }
        Arc::new(new)
    }

    /// The same without waiting (`O_NONBLOCK`). The holder hears of it all the same.
    ///
    /// # Errors
    /// `EAGAIN`: somebody has a lease.
    pub fn open_at_once(file: &Arc<SimFile>) -> io::Result<Arc<Self>> {
        let new = Self::new(file);
        if !file.descriptions().state().lets_in() {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        Ok(Arc::new(new))
    }

    /// The file.
    pub fn file(&self) -> &Arc<SimFile> {
        &self.file
    }

    /// Takes a lease.
    ///
    /// # Errors
    /// `EAGAIN`: the file has another description.
    pub(super) fn lease(&self) -> io::Result<()> {
        let mut state = self.file.descriptions().state();
        state.take_away_when_late();
        let is_others = state
            .lease
            .as_ref()
            .is_some_and(|lease| lease.of != self.number);
        if state.open != 1 || is_others {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        state.lease = Some(Lease {
            of: self.number,
            wanted: None,
        });
        Ok(())
    }

    /// Gives it up, if it is this one's.
    pub(super) fn give_lease_up(&self) {
        let mut state = self.file.descriptions().state();
        state.lease.take_if(|lease| lease.of == self.number);
    }

    /// Whether it has one that nobody waits for.
    pub(super) fn is_leased_in_peace(&self) -> bool {
        let mut state = self.file.descriptions().state();
        state.take_away_when_late();
        let lease = state.lease.as_ref();
        lease.is_some_and(|lease| lease.of == self.number && lease.wanted.is_none())
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        self.give_lease_up();
        self.file.descriptions().state().open -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::device::{SimDisk, SimOptions};
    use crate::sim::tasks::{Manner, Simulation};
    use std::cell::Cell;
    use std::rc::Rc;

    const MANNER: Manner = Manner {
        accesses: 10,
        absence_rarity: 30,
        absence_ns: 5_000,
    };

    #[test]
    fn a_lease_is_for_the_only_description() {
        let file = SimDisk::new(SimOptions::default()).create();
        let first = Description::open(&file);
        let second = Description::open(&file);
        assert!(first.lease().is_err());
        drop(second);
        first.lease().expect("the only one");
        assert!(first.is_leased_in_peace());
        assert!(Description::open_at_once(&file).is_err());
        assert!(!first.is_leased_in_peace());
        // Another descriptor of it, in another process.
        let sent = Arc::clone(&first);
        drop(first);
        assert!(Description::open_at_once(&file).is_err());
        drop(sent);
        let again = Description::open_at_once(&file).expect("nobody has it open");
        again.lease().expect("the only one");
        again.give_lease_up();
        Description::open_at_once(&file).expect("given up");
        assert_eq!(file.leases_taken_away(), 0);
    }

    /// How long a task waits that opens a file whose lease is given up after a time, or not in time.
    fn waits(given_up_after: Duration) -> (Duration, u32) {
        let simulation = Simulation::new(1, MANNER);
        let file = SimDisk::new(SimOptions::default()).create();
        let holder = Description::open(&file);
        holder.lease().expect("the only one");
        let waited = Rc::new(Cell::new(None));
        let (told, opens) = (Rc::clone(&waited), Arc::clone(&file));
        simulation.spawn(1, "opens", move || {
            let opened = Description::open(&opens);
            told.set(Some(tasks::now()));
            drop(opened);
        });
        simulation.spawn(2, "holds", move || {
            tasks::sleep(given_up_after);
            drop(holder);
        });
        let is_in = simulation.run(Duration::from_secs(100), || waited.get().is_some());
        assert!(is_in.expect("nobody fails"));
        (waited.get().expect("in"), file.leases_taken_away())
    }

    #[test]
    fn who_opens_waits_for_its_end_and_no_longer_than_the_kernel_allows() {
        let (soon, taken_away) = waits(Duration::from_secs(3));
        assert!(soon >= Duration::from_secs(3) && soon < Duration::from_secs(4));
        assert_eq!(taken_away, 0);
        let (late, taken_away) = waits(Duration::from_secs(90));
        assert!(late >= BREAK_TIME && late < BREAK_TIME + Duration::from_secs(1));
        assert_eq!(taken_away, 1);
    }
}
