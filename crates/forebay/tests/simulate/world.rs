//! A session on a simulated disk: its files with what is known of them, and its processes, which come and go.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay::device::DeviceFile;
use forebay::flush::Flusher;
use forebay::ids::FileId;
use forebay::keeper::ahead::Prefetcher;
use forebay::keeper::hosting;
use forebay::member::shared::Shared;
use forebay::sim::device::{Description, SimDisk, SimFile, Station, Timed, TimedQueue};
use forebay::sim::letters::Letters;
use forebay::sim::{Neighbours, tasks};
use forebay::{File, OpenOptions, Session};
use forebay_model::Access;

use crate::ledger::Ledger;
use crate::promise::{Open, Standing};
use crate::swarm::Swarm;

/// Files that take others' places at most.
const SPARE_FILES: usize = 40;
/// Operations that a failure shows.
const LAST_OPERATIONS: usize = 30;

/// A file with what is known of it.
pub struct Subject {
    /// `None`: it has not been made yet, or another has its number.
    sim: RefCell<Option<Arc<SimFile>>>,
    pub ledger: RefCell<Ledger>,
    /// Operations under way that must not meet one that changes the length, and whether such a one is under way.
    pub changes: Cell<u32>,
    pub is_resized: Cell<bool>,
    pub appends: Cell<u32>,
    /// What of it outsiders may count on.
    pub standing: Standing,
}

impl Subject {
    /// Whether somebody has a lease on it.
    pub fn is_leased(&self) -> bool {
        let sim = self.sim.borrow();
        sim.as_ref().is_some_and(|sim| sim.is_leased())
    }

    /// The file, which somebody has open or can open.
    pub fn sim(&self) -> Arc<SimFile> {
        self.sim.borrow().clone().expect("a file that is there")
    }
}

/// An open description.
#[derive(Clone)]
pub struct Handle {
    pub file: Rc<File>,
    /// Which file it is of.
    pub subject: usize,
    pub access: Access,
    /// The program's own description.
    pub own: Arc<Description>,
    pub open: Rc<Open>,
}

/// A client.
pub struct Process {
    pub number: u32,
    pub session: Session,
    /// By name.
    pub handles: RefCell<Vec<Vec<Option<Handle>>>>,
}

/// The keeper of now.
pub struct Keeper {
    pub number: u32,
    pub stop: Arc<AtomicBool>,
}

/// What a task does.
type Task = Box<dyn FnOnce()>;

/// How long a keeper waits between two looks whether a lease has ended.
const LEASE_PAUSE: Duration = Duration::from_millis(1);

/// Where the keeper's side of the session is found by those who hand files over to it.
type Seat = Arc<Mutex<Option<Arc<Shared>>>>;

pub struct World {
    pub swarm: Swarm,
    pub disk: Arc<SimDisk>,
    pub station: RefCell<Arc<Station>>,
    arena: RefCell<fs::File>,
    pub files: Vec<Subject>,
    /// Which file each name leads to.
    names: RefCell<Vec<usize>>,
    /// Files that have been made.
    made: Cell<usize>,
    pub clients: RefCell<Vec<Option<Rc<Process>>>>,
    pub keeper: RefCell<Option<Keeper>>,
    seat: Seat,
    letters: Option<Arc<Letters>>,
    numbered: Cell<u32>,
    /// Clients begin nothing new.
    pub pause: Cell<bool>,
    /// Somebody has died while punching: bytes in memory may have outlived their space.
    pub hole_in_doubt: Cell<bool>,
    /// Operations under way.
    pub busy: Cell<u32>,
    pub operations: Cell<u64>,
    pub seeds: Cell<u32>,
    /// Files that got the number of one that is gone.
    pub numbers_again: Cell<u64>,
    /// Looks of outsiders that were held against the ledgers, and those of them that had to wait for a lease.
    pub outside_looks: Cell<u64>,
    pub lease_waits: Cell<u64>,
    /// Closes that have left what was owed to the keeper.
    pub left: Cell<u64>,
    /// All operations are printed, for who looks for the cause of a failure: `FOREBAY_SIMULATE_LOG`.
    logs: bool,
    last: RefCell<VecDeque<String>>,
}

/// Who has a file that nobody has open: the disk, the test, and who asks.
const HOLDERS_AT_REST: usize = 3;

/// What a process finds around it.
struct Around {
    disk: Arc<SimDisk>,
    station: Arc<Station>,
    seat: Seat,
    letters: Option<Arc<Letters>>,
}

impl Neighbours for Around {
    fn hand_over(&self, file: FileId, device: &dyn DeviceFile) {
        // Not under the lock: the keeper's words are shared, so that others may get their turn.
        let keeper = self
            .seat
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // With or without a name: what comes is a descriptor.
        if let (Some(keeper), Some(device)) = (keeper, device.timed()) {
            keeper.keep_device(file, Arc::new(device.sent()));
        }
    }

    fn open(&self, inode: u64, patience: Option<Duration>) -> Option<Arc<dyn DeviceFile>> {
        let station = Arc::clone(&self.station);
        let found = self.disk.find(inode)?;
        // Without a name it is found by the descriptor of a process that has it open.
        if !found.has_name() && Arc::strong_count(&found) <= HOLDERS_AT_REST {
            return None;
        }
        let begun = tasks::now();
        let opened = match patience {
            None => Description::open(&found),
            Some(patience) => loop {
                match Description::open_at_once(&found) {
                    Ok(opened) => break opened,
                    Err(_) if tasks::now() < begun + patience => tasks::sleep(LEASE_PAUSE),
                    Err(_) => return None,
                }
            },
        };
        Some(Arc::new(Timed::of(opened, station)))
    }

    fn letters(&self) -> Option<&Letters> {
        self.letters.as_deref()
    }
}

/// A file of memory for an arena.
fn new_arena(swarm: &Swarm) -> fs::File {
    let file = tempfile::tempfile_in("/dev/shm").expect("a file of memory");
    let own = file.try_clone().expect("a descriptor");
    Session::simulated_arena(own, &swarm.config(), swarm.counts()).expect("an arena");
    file
}

impl World {
    pub fn new(swarm: Swarm) -> Rc<World> {
        let disk = Arc::new(SimDisk::new(swarm.disk()));
        let file = |place| Subject {
            sim: RefCell::new((place < swarm.files).then(|| disk.create())),
            ledger: RefCell::new(Ledger::new(swarm.power_fails())),
            changes: Cell::new(0),
            is_resized: Cell::new(false),
            appends: Cell::new(0),
            standing: Standing::default(),
        };
        Rc::new(World {
            files: (0..swarm.files + SPARE_FILES).map(file).collect(),
            names: RefCell::new((0..swarm.files).collect()),
            made: Cell::new(swarm.files),
            disk,
            station: RefCell::new(Arc::new(Station::new(swarm.weather))),
            arena: RefCell::new(new_arena(&swarm)),
            clients: RefCell::new((0..swarm.clients).map(|_| None).collect()),
            keeper: RefCell::new(None),
            seat: Seat::default(),
            letters: swarm.leaves.then(Arc::default),
            numbered: Cell::new(0),
            pause: Cell::new(false),
            hole_in_doubt: Cell::new(false),
            busy: Cell::new(0),
            operations: Cell::new(0),
            seeds: Cell::new(0),
            numbers_again: Cell::new(0),
            outside_looks: Cell::new(0),
            lease_waits: Cell::new(0),
            left: Cell::new(0),
            logs: std::env::var_os("FOREBAY_SIMULATE_LOG").is_some(),
            last: RefCell::default(),
            swarm,
        })
    }

    pub fn station(&self) -> Arc<Station> {
        Arc::clone(&self.station.borrow())
    }

    /// A number that no process has had.
    pub fn number(&self) -> u32 {
        self.numbered.set(self.numbered.get() + 1);
        self.numbered.get()
    }

    /// A new process's part in the session. It has a description of its own of the arena's file: its locks are its own.
    pub fn join(&self) -> Arc<Shared> {
        let fd = self.arena.borrow().as_raw_fd();
        let own = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{fd}"))
            .expect("another description of the arena's file");
        let shared = Session::simulated_process(own, self.swarm.config()).expect("a process");
        shared.meet(Box::new(Around {
            disk: Arc::clone(&self.disk),
            station: self.station(),
            seat: Arc::clone(&self.seat),
            letters: self.letters.clone(),
        }));
        shared
    }

    /// A new client, without its tasks.
    pub fn new_client(&self) -> Rc<Process> {
        let none = vec![vec![None; self.swarm.handles]; self.swarm.files];
        Rc::new(Process {
            number: self.number(),
            session: Session::of_process(self.join()),
            handles: RefCell::new(none),
        })
    }

    /// A new keeper's tasks, with their names.
    pub fn new_keeper(&self) -> Vec<(&'static str, Task)> {
        let shared = self.join();
        let stop = Arc::new(AtomicBool::new(false));
        *self.keeper.borrow_mut() = Some(Keeper {
            number: self.number(),
            stop: Arc::clone(&stop),
        });
        *self.seat.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&shared));
        let depth = self.swarm.config().queue_depth as usize;
        let queue = || Box::new(TimedQueue::new(self.station(), Arc::clone(&shared.arena)));
        let bodies = hosting::bodies(
            Flusher::new(queue(), depth),
            Prefetcher::new(queue(), depth),
        );
        let task = |(name, body): (&'static str, hosting::Body)| {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            let run: Task = Box::new(move || body(&shared, &stop));
            (name, run)
        };
        bodies.into_iter().map(task).collect()
    }

    /// There is no keeper any more.
    pub fn forget_keeper(&self) {
        *self.keeper.borrow_mut() = None;
        let gone = self
            .seat
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        tasks::as_dead(gone);
    }

    /// Tells the keeper to end.
    pub fn stop_keeper(&self) {
        if let Some(keeper) = &*self.keeper.borrow() {
            keeper.stop.store(true, Relaxed);
        }
    }

    /// A client is dead; nobody hears of what it had open.
    pub fn bury_client(&self, place: usize) {
        let dead = self.clients.borrow_mut()[place].take();
        tasks::as_dead(dead);
    }

    /// The power came back: there is a new arena, and a disk that does nothing.
    pub fn begin_anew(&self) {
        let weather = self.station().weather();
        *self.station.borrow_mut() = Arc::new(Station::new(weather));
        *self.arena.borrow_mut() = new_arena(&self.swarm);
        for file in &self.files {
            file.changes.set(0);
            file.is_resized.set(false);
            file.appends.set(0);
            file.standing.begin_anew();
        }
        self.busy.set(0);
    }

    /// A keeper dies: leases may end before what is owed is written.
    pub fn upset_all(&self) {
        self.files.iter().for_each(|file| file.standing.upset());
    }

    /// Leases that the kernel had to take away from somebody.
    pub fn leases_taken_away(&self) -> u32 {
        let files = self.files.iter();
        let there = files.filter_map(|file| Some(file.sim.borrow().as_ref()?.leases_taken_away()));
        there.sum()
    }

    /// Opens a file for a process.
    pub fn open(
        &self,
        session: &Session,
        file: usize,
        access: Access,
        truncate: bool,
    ) -> forebay::Result<File> {
        let mut options = OpenOptions::new();
        match access {
            Access::ReadWrite => options.read(true).write(true),
            Access::ReadOnly => options.read(true),
            Access::WriteOnly => options.write(true),
            Access::Append => options.read(true).append(true),
        };
        options.truncate(truncate);
        let device = Timed::new(self.files[file].sim(), self.station());
        session.open_device(Arc::new(device), &format!("file-{file}"), &options)
    }

    /// The file that a name leads to.
    pub fn named(&self, name: usize) -> usize {
        self.names.borrow()[name]
    }

    /// Whether a file has a name, or somebody who lives has it open.
    pub fn is_in_use(&self, file: usize) -> bool {
        let has = |process: &Rc<Process>| {
            let handles = process.handles.borrow();
            let mut open = handles.iter().flatten().flatten();
            open.any(|handle| handle.subject == file)
        };
        self.names.borrow().contains(&file) || self.clients.borrow().iter().flatten().any(has)
    }

    /// The file that `name` leads to loses its name, which leads to the one that `from` has led to, as after a rename, and that to a new
    /// one. The new one has the number of a file that nobody has any more, if there is one. `None`: there have been enough of them.
    pub fn replace(&self, name: usize, from: usize) -> Option<()> {
        let new = self.made.get();
        let subject = self.files.get(new)?;
        let lost = {
            let mut names = self.names.borrow_mut();
            let lost = names[name];
            names[name] = names[from];
            names[from] = new;
            lost
        };
        let number = |file: &SimFile| file.caps().inode;
        self.disk.unlink(number(&self.files[lost].sim()));
        // What the test itself has is one of those who have it.
        let again = |file: &Subject| {
            let old = file.sim.borrow().as_deref().map(number);
            let made = self.disk.create_again(old?, 1)?;
            *file.sim.borrow_mut() = None;
            Some(made)
        };
        let again = self.files[..new].iter().find_map(again);
        let is_again = again.is_some();
        let made = again.unwrap_or_else(|| self.disk.create());
        self.log(format!(
            "file {new} takes the place of file {lost}, number {}{}",
            number(&made),
            if is_again { ", again" } else { "" }
        ));
        self.numbers_again
            .set(self.numbers_again.get() + u64::from(is_again));
        *subject.sim.borrow_mut() = Some(made);
        self.made.set(new + 1);
        Some(())
    }

    /// A seed for a write that no other has had.
    pub fn next_seed(&self) -> u32 {
        self.seeds.set(self.seeds.get() + 1);
        self.seeds.get()
    }

    /// Notes an operation, for failures and for the trace.
    pub fn log(&self, what: String) {
        let hash = what.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        tasks::note(hash);
        let now = tasks::now();
        let line = format!("{:>12.3} ms  {what}", now.as_secs_f64() * 1e3);
        if self.logs {
            eprintln!("{line}");
        }
        let mut last = self.last.borrow_mut();
        if last.len() == LAST_OPERATIONS {
            last.pop_front();
        }
        last.push_back(line);
    }

    /// The last operations, a line each.
    pub fn last_operations(&self) -> String {
        let last = self.last.borrow();
        last.iter().map(|line| format!("  {line}\n")).collect()
    }
}

/// A moment in which others get on.
pub fn moment() {
    tasks::sleep(Duration::from_micros(5));
}
