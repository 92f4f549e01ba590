//! A disk in memory: the capacity, the clock and the hook that its files share.

use super::call::Call;
use super::file::SimFile;
use super::image::UNIT_BYTES;
use crate::random::Random;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What a disk is like.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Space for all files together, in bytes.
    pub capacity_bytes: u64,
    /// Alignment of offsets and lengths, in bytes; also what a power failure keeps or loses whole.
    pub offset_align: u32,
    /// Alignment of memory, in bytes.
    pub memory_align: u32,
    /// Whether pages must not change while they are written; [`SimDisk::unstable_writes`] counts those that did.
    pub stable_writes: bool,
    /// Whether space can be reserved; without, `reserve` answers `EOPNOTSUPP`.
    pub can_reserve: bool,
    /// Device number.
    pub device: u64,
    /// The first file's inode number; the next ones follow. Where processes of the machine are looked at, one that no other file has: what they have
    /// mapped is named by inode numbers.
    pub first_inode: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 30,
            offset_align: 512,
            memory_align: 512,
            stable_writes: false,
            can_reserve: true,
            device: 1,
            first_inode: 1,
        }
    }
}

/// Called before each call of a simulated file, without any lock held: to sleep, yield or count.
pub type Hook = Arc<dyn Fn(&Call) + Send + Sync>;

/// What the files of a disk share.
pub(super) struct Shared {
    pub(super) options: SimOptions,
    units_free: AtomicU64,
    clock_ns: AtomicU64,
    pub(super) unstable_writes: AtomicU64,
    hook: RwLock<Option<Hook>>,
}

impl Shared {
    /// Takes up to `units` of free space and says how many there were.
    pub(super) fn take_units(&self, units: u64) -> u64 {
        let mut taken = 0;
        // The closure cannot refuse, so neither can the update.
        let _ = self.units_free.fetch_update(SeqCst, SeqCst, |free| {
            taken = free.min(units);
            Some(free - taken)
        });
        taken
    }

    /// Accounts for a file's space going from `before` to `after` units, by less space or by a power
    /// failure. May leave less than nothing free after a failure; then nothing is.
    pub(super) fn recount(&self, before: u64, after: u64) {
        let _ = self.units_free.fetch_update(SeqCst, SeqCst, |free| {
            Some((free + before).saturating_sub(after))
        });
    }

    /// A time later than all before.
    pub(super) fn tick(&self) -> u64 {
        self.clock_ns.fetch_add(1, SeqCst) + 1
    }

    pub(super) fn call_hook(&self, call: &Call) {
        let hook = self
            .hook
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(hook) = hook {
            hook(call);
        }
    }
}

/// A disk in memory. It keeps its files, so that a test may "kill" the process that had them open
/// and open them again.
pub struct SimDisk {
    shared: Arc<Shared>,
    files: Mutex<Vec<Arc<SimFile>>>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(options: SimOptions) -> Self {
        assert!(options.offset_align.is_power_of_two() && options.memory_align.is_power_of_two());
        let shared = Shared {
            units_free: AtomicU64::new(options.capacity_bytes / UNIT_BYTES),
            clock_ns: AtomicU64::new(1_000_000_000),
            unstable_writes: AtomicU64::new(0),
            hook: RwLock::new(None),
            options,
        };
        Self {
            shared: Arc::new(shared),
            files: Mutex::default(),
        }
    }

    /// A new, empty file with the next inode number.
    pub fn create(&self) -> Arc<SimFile> {
        let mut files = self.files();
        let inode = self.shared.options.first_inode + files.len() as u64;
        let file = Arc::new(SimFile::new(Arc::clone(&self.shared), inode));
        files.push(Arc::clone(&file));
        file
    }

    /// The file with this inode number, unless it has lost its name.
    pub fn open(&self, inode: u64) -> Option<Arc<SimFile>> {
        self.find(inode).filter(|file| file.has_name())
    }

    /// The same, of a file that may have no name: for a caller that has it open.
    pub fn find(&self, inode: u64) -> Option<Arc<SimFile>> {
        self.files().get(self.place_of(inode)?).cloned()
    }

    fn place_of(&self, inode: u64) -> Option<usize> {
        let place = inode.checked_sub(self.shared.options.first_inode)?;
        usize::try_from(place).ok()
    }

    /// The file loses its name.
    pub fn unlink(&self, inode: u64) {
        if let Some(file) = self.open(inode) {
            file.unlink();
        }
    }

    /// A new, empty file with the number of one that has no name and that nobody has but `users` who are known. `None`: somebody has
    /// it open.
    pub fn create_again(&self, inode: u64, users: usize) -> Option<Arc<SimFile>> {
        let mut files = self.files();
        let place = &mut files[self.place_of(inode)?];
        // One of those that have it is the disk.
        if place.has_name() || Arc::strong_count(place) > users + 1 {
            return None;
        }
        let file = Arc::new(SimFile::new(Arc::clone(&self.shared), inode));
        *place = Arc::clone(&file);
        Some(file)
    }

    /// Free space in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.shared.units_free.load(SeqCst) * UNIT_BYTES
    }

    /// Direct writes whose bytes have changed under way, where they must not: with `stable_writes`.
    pub fn unstable_writes(&self) -> u64 {
        self.shared.unstable_writes.load(SeqCst)
    }

    /// Takes free space away, or gives it back when negative: somebody else fills the disk.
    pub fn fill(&self, bytes: i64) {
        let units = bytes.unsigned_abs() / UNIT_BYTES;
        match bytes {
            0.. => _ = self.shared.take_units(units),
            _ => self.shared.recount(units, 0),
        }
    }

    /// Sets or removes what is called before each call.
    pub fn set_hook(&self, hook: Option<Hook>) {
        *self
            .shared
            .hook
            .write()
            .unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// The power fails and comes back: of what no sync has promised, each file keeps what `seed`
    /// decides. No request may be in flight.
    pub fn crash_power(&self, seed: u64) {
        let mut random = Random::new(seed);
        for file in self.files().iter() {
            file.crash_power(&mut random);
        }
    }

    fn files(&self) -> MutexGuard<'_, Vec<Arc<SimFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
