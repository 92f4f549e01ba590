//! What all of a process's files of one session share: the arena, the configuration, the devices.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::device::{DeviceFile, DeviceStat, KernelReason, RealFile};
use crate::error::{Result, SessionFault};
use crate::ids::{FileId, ThreadId};
use crate::limits::PAGE_BYTES;
use crate::member::claims::Claims;
use crate::member::guard::Guarding;
use crate::member::handoff::{self, KeptLanes, Line};
use crate::member::lacks;
use crate::member::lent::Lent;
use crate::member::likely::Likely;
use crate::member::members;
use crate::member::opens::Opens;
use crate::member::refused::Refused;
use crate::member::repairs::{Unlanded, Waited};
use crate::member::table;
use crate::member::viewers::Viewers;
use crate::memory::arena::Arena;
use crate::memory::files::{FileEntry, LEASED, LIVE};
use crate::memory::threads::Me;
use crate::route::{self, Overrides, Route, RouteOptions};
use crate::stats::Counter;
use crate::sync::time::Instant;
use crate::sync::{self, Ordering};

static INSTANCES: AtomicU64 = AtomicU64::new(1);

/// One process's side of a session.
pub struct Shared {
    /// The arena. Threads that have slots in it keep it mapped until they end: their robust mutexes lie in it.
    pub arena: Arc<Arena>,
    /// The configuration that this process was given.
    pub config: Config,
    /// Distinguishes sessions of one process from one another.
    pub instance: u64,
    devices: Mutex<BTreeMap<FileId, Arc<dyn DeviceFile>>>,
    route: Arc<dyn Route>,
    overrides: Overrides,
    /// How long the next file is likely to be.
    pub likely: Likely,
    /// Pages that one file may owe.
    pub file_owed_pages_max: u64,
    /// The arena's file; `None` on the heap.
    pub arena_path: Option<PathBuf>,
    /// The process stays in the session, and its threads end without giving their slots back.
    pub for_good: Option<Box<members::ForGood>>,
    /// The slots that threads of this process have taken, and may have given back since; see [`members::is_ours`].
    pub(super) slots: Mutex<Vec<(ThreadId, u32)>>,
    /// Whether the keeper is in this process.
    pub keeps: AtomicBool,
    /// Whether this process hosts a keeper, or one that stands by: it has threads of the engine's, and may have more.
    pub hosts: AtomicBool,
    /// `superblock.kept` when a writer of this process has waited for the keeper in vain; `u64::MAX`: none has.
    pub keeper_stalled_at: AtomicU64,
    /// A write of this process has waited for memory in vain, and none has got any after a wait since (`file::room`).
    pub waited_in_vain: AtomicBool,
    pub(super) refused: Refused,
    pub(crate) line: Line,
    pub(super) lanes: KeptLanes,
    pub(super) lent: Lent,
    pub(super) opens: Opens,
    pub(super) viewers: Viewers,
    /// Held while a file is handed over, so that each description is counted once.
    pub(super) handing: Mutex<Option<Instant>>,
    /// How long this process has waited for a repair that it has asked the keeper for.
    pub(crate) repair_wanted: Waited,
    /// When a repair by this process was in vain.
    pub(crate) unlanded: Unlanded,
    pub(crate) claims: Arc<Claims>,
    pub(super) guard: Mutex<Option<Arc<dyn Guarding>>>,
    #[cfg(feature = "sim")]
    pub(crate) neighbours: std::sync::OnceLock<Box<dyn crate::sim::Neighbours>>,
}

impl Shared {
    /// Over an open arena.
    pub fn new(arena: Arena, arena_path: Option<PathBuf>, config: Config) -> Result<Self> {
        let options = RouteOptions {
            direct_bytes_min: config.direct_min,
        };
        let route = route::by_name(config.route.name(), &options)
            .map_err(|e| SessionFault::Unavailable.error(e.to_string()))?;
        let rules: Vec<_> = config
            .routes
            .iter()
            .map(|rule| (rule.glob.as_str(), rule.route.name()))
            .collect();
        let overrides = Overrides::compile(&rules, &options)
            .map_err(|e| SessionFault::Unavailable.error(e.to_string()))?;
        let file_owed_pages_max = config
            .file_dirty_bytes_max
            .map_or(u64::MAX, |bytes| bytes / PAGE_BYTES as u64);
        let route = Arc::from(route);
        Ok(Shared {
            arena: Arc::new(arena),
            arena_path,
            for_good: None,
            slots: Mutex::default(),
            keeps: AtomicBool::new(false),
            hosts: AtomicBool::new(false),
            keeper_stalled_at: AtomicU64::new(u64::MAX),
            waited_in_vain: AtomicBool::new(false),
            refused: Refused::default(),
            line: Line::default(),
            lanes: KeptLanes::default(),
            lent: Lent::default(),
            opens: Opens::default(),
            viewers: Viewers::default(),
            handing: Mutex::new(None),
            repair_wanted: Waited::default(),
            unlanded: Unlanded::default(),
            claims: Arc::default(),
            guard: Mutex::default(),
            #[cfg(feature = "sim")]
            neighbours: std::sync::OnceLock::new(),
            file_owed_pages_max,
            likely: Likely::default(),
            config,
            instance: INSTANCES.fetch_add(1, Relaxed),
            devices: Mutex::new(BTreeMap::new()),
            route,
            overrides,
        })
    }

    /// The calling thread as a member of the session; takes a slot on first use.
    #[inline]
    pub fn me(self: &Arc<Self>) -> Result<Me<'_>> {
        let id = members::current(self)?;
        Ok(Me {
            arena: &self.arena,
            id,
        })
    }

    /// A thread slot taken by other means, as a member.
    pub fn as_thread(&self, id: ThreadId) -> Me<'_> {
        Me {
            arena: &self.arena,
            id,
        }
    }

    /// The route for a file.
    pub fn route_for(&self, path: &Path) -> &Arc<dyn Route> {
        self.overrides.route_for(path).unwrap_or(&self.route)
    }

    fn devices(&self) -> MutexGuard<'_, BTreeMap<FileId, Arc<dyn DeviceFile>>> {
        // A panic elsewhere leaves the map as it was: every change is one insert or remove.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a device file is the entry's: entries are given to other files once nobody needs them, which this process
    /// does not hear of.
    fn is_of(&self, file: FileId, device: &Arc<dyn DeviceFile>) -> bool {
        table::is_same(self.arena.file_unchecked(file), device.as_ref())
    }

    /// The device file of an entry, if this process has it open; a keeper's clients may have left it where the keeper finds it.
    pub fn device(&self, file: FileId) -> Option<Arc<dyn DeviceFile>> {
        let known = || {
            let device = self.devices().get(&file).cloned();
            device.filter(|device| self.is_of(file, device))
        };
        known().or_else(|| {
            if !self.keeps.load(Relaxed) {
                return None;
            }
            self.take_from_lanes();
            known()
        })
    }

    /// Whether this process has a device file of an entry's, whatever is in lanes.
    pub fn has_device(&self, file: FileId) -> bool {
        let known = self.devices().get(&file).cloned();
        known.is_some_and(|device| self.is_of(file, &device))
    }

    /// Keeps a device file for an entry; the first one stays.
    pub fn keep_device(&self, file: FileId, device: Arc<dyn DeviceFile>) -> Arc<dyn DeviceFile> {
        if self.keeps.load(Relaxed) {
            self.arena.file_unchecked(file).asks.accept();
        }
        // The table is looked at without the lock: its holder waits for nobody.
        let first = self.devices().get(&file).cloned();
        if let Some(first) = &first
            && self.is_of(file, first)
        {
            return Arc::clone(first);
        }
        let mut devices = self.devices();
        if let Some(now) = devices.get(&file)
            && first.is_none_or(|stale| !Arc::ptr_eq(&stale, now))
        {
            return Arc::clone(now);
        }
        devices.insert(file, Arc::clone(&device));
        device
    }

    /// Forgets an entry's device file.
    pub fn drop_device(&self, file: FileId) {
        let dropped = self.devices().remove(&file);
        self.is_not_alone(dropped.as_deref());
    }

    /// What the guard knows of who has a file open holds as long as this process keeps it open itself: its mark and its number stay its own.
    fn is_not_alone(&self, dropped: Option<&dyn DeviceFile>) {
        if let Some(device) = dropped
            && self.keeps.load(Relaxed)
            && let Some(guard) = self.guard()
        {
            let caps = device.caps();
            guard.is_not_alone((caps.device, caps.inode));
        }
    }

    /// Forgets an entry's device file of which the caller has seen that nobody needs it, `mine`, unless another thread writes the file by now: it
    /// has been told that it is kept. Whether it is kept no more.
    ///
    /// A thread that opens a file to write is counted before it hands the file over. So it is seen here, or finds that nothing is kept.
    pub fn drop_unwritten(&self, file: FileId, mine: &Arc<dyn DeviceFile>) -> bool {
        {
            let mut devices = self.devices();
            let is_mine = devices
                .get(&file)
                .is_some_and(|kept| Arc::ptr_eq(kept, mine));
            if !is_mine {
                return true;
            }
            devices.remove(&file);
        }
        self.is_not_alone(Some(mine.as_ref()));
        // As in `keep_device`: the table is looked at without the lock. A file that was closed without waiting for what it owes is counted no more.
        let entry = self.arena.file_unchecked(file);
        if entry.writers() == 0 && entry.owed_pages.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let mut devices = self.devices();
        let kept = devices.entry(file).or_insert_with(|| Arc::clone(mine));
        !Arc::ptr_eq(kept, mine)
    }

    /// One description of a file has been closed, and its device file, `mine`, will be dropped: if it was the last that this
    /// process has and nothing is owed, the process gives its descriptors back. A keeper, which has them for others as well, does so if nobody
    /// writes the file and it lacks nothing: with a description less the kernel can tell the next opener that nobody else has the file.
    pub fn closed(&self, file: FileId, mine: &Arc<dyn DeviceFile>) {
        let entry = self.arena.file_unchecked(file);
        if self.keeps.load(Relaxed) {
            let leased = entry.flags.load(Ordering::Acquire) & LEASED != 0;
            if !leased && entry.writers() == 0 && !lacks::lacks_anything(entry) {
                self.drop_unwritten(file, mine);
            }
            return;
        }
        if entry.owed_pages.load(Ordering::Acquire) != 0 {
            return;
        }
        let mut devices = self.devices();
        // The registry's own reference, and the one that is being closed.
        if devices
            .get(&file)
            .is_some_and(|kept| Arc::ptr_eq(kept, mine) && Arc::strong_count(kept) <= 2)
        {
            devices.remove(&file);
        }
    }

    /// All entries that this process has device files for, stale ones too.
    pub fn open_files(&self) -> Vec<FileId> {
        self.devices().keys().copied().collect()
    }

    /// All entries that this process has device files for, one after the other: while the caller is at one, this keeps none of the
    /// others open, since their closes wait for that.
    pub fn open_devices(&self) -> impl Iterator<Item = (FileId, Arc<dyn DeviceFile>)> + '_ {
        let files = self.open_files().into_iter();
        files.filter_map(|file| Some((file, self.device_unless_stale(file)?)))
    }

    /// As [`Shared::device`]; a stale one is forgotten.
    fn device_unless_stale(&self, file: FileId) -> Option<Arc<dyn DeviceFile>> {
        let device = self.devices().get(&file).cloned()?;
        // As in `keep_device`: the table is looked at without the lock.
        if self.is_of(file, &device) {
            return Some(device);
        }
        let mut devices = self.devices();
        let is_there = devices.get(&file);
        if is_there.is_some_and(|kept| Arc::ptr_eq(kept, &device)) {
            devices.remove(&file);
        }
        drop(devices);
        self.is_not_alone(Some(device.as_ref()));
        None
    }

    /// Whether this keeper's guard has taken the file over from a lease, and nobody from outside has come since.
    pub fn is_alone(&self, file: FileId) -> bool {
        let inode = self.arena.file_unchecked(file).numbers();
        self.keeps.load(Relaxed) && self.guard().is_some_and(|guard| guard.is_alone(inode))
    }

    /// Whether this keeper's guard holds up a program that opens the file.
    pub fn holds_up(&self, file: FileId) -> bool {
        let inode = self.arena.file_unchecked(file).numbers();
        self.keeps.load(Relaxed) && self.guard().is_some_and(|guard| guard.holds_up(inode))
    }

    /// Changes a device file, noting for recovery that the change is ours. While it lasts the thread's slot says so: should
    /// it die, even between operations, a repair looks at the file.
    pub fn change<T>(
        &self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        change: impl FnOnce() -> T,
    ) -> T {
        self.change_seen(me, file, device, change, || None)
    }

    /// As [`Shared::change`]; `look` is the change's last part, and says what the device file is like then, if it knows, and how many changes had begun
    /// ([`table::changes_alone`]). It is called once, or not at all: where the change is part of another.
    pub fn change_seen<T>(
        &self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        change: impl FnOnce() -> T,
        look: impl FnOnce() -> Option<(u32, DeviceStat)>,
    ) -> T {
        let word = &me.slot().flushing;
        let before = word.swap(file.0 + 1, Ordering::AcqRel);
        let outermost = self.begin_intent(me, file);
        let begun = Instant::now();
        let result = change();
        if outermost {
            let ns = begun.elapsed().as_nanos();
            me.count(Counter::ChangeNs as usize, ns as u64);
            let seen = look();
            self.end_intent(me, file, device, seen);
        }
        word.store(before, Ordering::Release);
        result
    }

    /// A thread is about to change a device file: should everybody die, recovery knows the change for the session's own,
    /// unless it is dated later than the last that was seen of it. `false`: the thread is at a change of the
    /// file already, and it is that one's end that ends this: a thread that waits in a flush may repair, and a repair waits
    /// for flights.
    #[must_use]
    pub fn begin_intent(&self, me: Me<'_>, file: FileId) -> bool {
        let entry = me.arena.file_unchecked(file);
        let outermost = !entry.has_intent(me.id);
        entry.begin_intent(me.id);
        outermost
    }

    /// One of our own changes of a device file has ended; with the last, what the file looks like now is remembered. `seen`: what it was like when so many
    /// changes had begun, and none but this one was under way.
    pub fn end_intent(
        &self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        mut seen: Option<(u32, DeviceStat)>,
    ) {
        let entry = me.arena.file_unchecked(file);
        entry.end_intent(me.id);
        // What a death has left in doubt is in the past, where an opening has looked at the file since.
        if entry.has_intent(ThreadId::NOBODY) && self.is_open(file) {
            entry.end_intent(ThreadId::NOBODY);
        }
        table::witness_end(me.arena, file, |changes| match seen.take() {
            Some((at, stat)) if at == changes => Some(stat),
            _ => device.stat().ok(),
        });
    }

    /// Claims a file for the session, for as long as the device file lives.
    ///
    /// # Errors
    /// [`KernelReason::Claimed`] when another session has it, [`KernelReason::LongPath`] when no recovery would find it.
    pub fn claim(&self, device: &RealFile, path: &Path) -> std::result::Result<(), KernelReason> {
        if !FileEntry::has_room_for(path) {
            return Err(KernelReason::LongPath);
        }
        if !self.config.heap_backed {
            let session = self.session_name_word();
            device.accompany(self.claims.take(session, device.caps(), path)?);
        }
        Ok(())
    }

    /// As [`Shared::claim`], for a file that the session has claimed already.
    pub fn share_claim(&self, device: &RealFile, path: &Path) {
        if !self.config.heap_backed {
            let session = self.session_name_word();
            device.accompany(self.claims.hold(session, device.caps(), path));
        }
    }

    /// The arena's random name.
    pub fn session_name_word(&self) -> u64 {
        self.arena.superblock().session.load(Ordering::Relaxed)
    }

    /// Wakes the keeper if it sleeps.
    pub fn wake_keeper(&self) {
        self.arena.superblock().wake_keeper();
    }

    /// Whether any file lacks anything on its device. Exact while nobody is at work.
    fn lacks_anything(&self) -> bool {
        (0..self.arena.counts().files)
            .map(|id| self.arena.file_unchecked(FileId(id)))
            .any(|entry| {
                entry.state.load(Ordering::Acquire) == LIVE && lacks::lacks_anything(entry)
            })
    }

    /// The word the keeper sleeps on.
    pub fn work(&self) -> &sync::AtomicU32 {
        &self.arena.superblock().work
    }
}

/// The last process to leave in good order removes the arena, unless a file is not yet what it should be on its device: then
/// the arena waits for a recovery.
impl Drop for Shared {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        members::leave(self.instance);
        let (Some(path), Some(file)) = (&self.arena_path, self.arena.mapping().file()) else {
            return;
        };
        // Each process that maps the arena holds this lock shared. Asking gives the own share up, whatever the answer: so of
        // several that leave at once the last one gets it, and nobody may look at what files lack before.
        if file.try_lock().is_err() {
            return;
        }
        let is_there = matches!(file.metadata(), Ok(seen) if seen.nlink() > 0);
        if is_there && !self.lacks_anything() {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(handoff::socket_path(path));
            table::end(&self.arena);
        }
        // Another thread may keep the mapping, and with it the file, for a while.
        let _ = file.unlock();
    }
}
