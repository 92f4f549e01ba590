//! Managing files that a program has opened by itself: the preload library's way into a session.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Config;
use crate::device::{DeviceFile, KernelReason, RealFile};
use crate::error::{Error, Result, SessionFault};
use crate::file::core::Core;
use crate::file::inode::Inode;
use crate::file::settle;
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::member::watch::Unmarked;
use crate::member::{given, gone, table};
use crate::member::{left, members, reached};
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, FileEntry};
use crate::memory::place;
use crate::memory::threads::{Me, Opening};
use crate::session::Session;
use crate::session::glance::known_entry;
use crate::session::standing::Newcomer;
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::file::path_of;
use crate::sys::{lock, stat};

/// How often a keeper is asked to write a file that others go on writing to.
const KERNEL_TRIES: u32 = 1000;

/// How often a process looks anew for users of a file, since somebody may have come to it meanwhile.
pub(super) const TRIES: u32 = 8;

/// Why a file is not managed.
#[derive(Debug)]
pub enum Unmanaged {
    /// It cannot be.
    Reason(KernelReason),
    /// Its route is the kernel, or it lies outside the directories whose files are managed.
    Route,
    /// It has been given to the kernel before.
    Given(u32),
    /// Somebody reaches it past the engine; see [`reached`].
    Reached,
    /// A program outside the session uses it, or nobody would see one come.
    Outside,
    /// The session's tables are full.
    Failed(Error),
}

impl Unmanaged {
    /// The code in reports. `None`: it is in them already.
    fn code(&self) -> Option<u32> {
        match self.counter() {
            _ if matches!(self, Unmanaged::Given(_)) => None,
            _ if matches!(self, Unmanaged::Outside) => Some(given::OUTSIDER),
            _ if matches!(self, Unmanaged::Reason(KernelReason::Synchronous)) => {
                Some(given::SYNCHRONOUS)
            }
            _ if matches!(self, Unmanaged::Reason(KernelReason::LongPath)) => {
                Some(given::LONG_PATH)
            }
            Counter::FilesRouted => Some(given::OUTSIDE),
            Counter::FilesReached => Some(given::REACHED),
            Counter::FilesClaimed => Some(given::CLAIMED),
            Counter::FilesOfFileSystem => Some(given::FILE_SYSTEM),
            Counter::FilesNotWritable => Some(given::NOT_WRITABLE),
            _ => Some(given::NO_ROOM),
        }
    }

    fn counter(&self) -> Counter {
        use KernelReason::*;
        match self {
            Unmanaged::Route => Counter::FilesRouted,
            Unmanaged::Reached | Unmanaged::Outside => Counter::FilesReached,
            Unmanaged::Reason(Claimed) => Counter::FilesClaimed,
            Unmanaged::Reason(
                NoDirectIo { .. }
                | InMemory { .. }
                | CopyOnWrite { .. }
                | Network { .. }
                | Fuse
                | CoarseAlignment { .. }
                | SmallBlocks { .. }
                | Synchronous
                | NoReserve { .. },
            ) => Counter::FilesOfFileSystem,
            Unmanaged::Reason(
                ReadOnly { .. } | Leased | SetId | AppendOnly | Immutable | OpenFailed { .. },
            ) => Counter::FilesNotWritable,
            _ => Counter::FilesOther,
        }
    }
}

/// The arena's file of the session that a configuration names, if there is one.
pub fn find_arena(config: &Config) -> Option<PathBuf> {
    let mut found = place::find_arenas_of(config.arena_dir.as_deref(), &config.session);
    Some(found.next()?.path)
}

/// What the session's table says of a file that is about to be managed.
enum Standing {
    /// A program that reaches it past the engine has given it to the kernel, so nobody does.
    Managed,
    /// Something of it is in memory, and nobody has it open: a program that reaches it has not asked.
    Idle,
    /// Nothing.
    New,
    /// It was given to the kernel.
    Given(u32),
}

fn standing(arena: &Arena, fd: BorrowedFd<'_>, device: u64, inode: u64) -> Standing {
    let Some(id) = table::find(arena, device, inode) else {
        return Standing::New;
    };
    let entry = arena.file_unchecked(id);
    // Of an earlier file of that number, which is gone, nothing holds for this one.
    let given = entry.kernel_reason.load(Ordering::Acquire) != 0;
    if (given || gone::may_be_gone(arena, entry)) && gone::is_another(entry, gone::Place::of(fd)) {
        return Standing::New;
    }
    match entry.kernel_reason.load(Ordering::Acquire) {
        0 => match known_entry(arena, id) {
            Some(known) if known.in_use || is_with_keeper(entry) => Standing::Managed,
            Some(_) => Standing::Idle,
            None => Standing::New,
        },
        reason => Standing::Given(reason),
    }
}

/// Whether the keeper is not done with a file that a close has left to it.
fn is_with_keeper(entry: &FileEntry) -> bool {
    entry.flags.load(Ordering::Acquire) & CLOSING != 0
}

/// What a process that stays for good does its own way.
#[derive(Clone, Copy)]
pub struct ForGood {
    /// Puts the descriptors that the session needs where they are in nobody's way.
    pub relocate: fn(OwnedFd) -> OwnedFd,
    /// Keeps the program from a descriptor that the session has for a moment, at whatever number, until it is closed.
    pub own: fn(BorrowedFd<'_>),
    /// Called by a thread that has got a slot for a turn: when it leaves the engine, it is to call [`Session::end_turn`].
    pub turns: fn(),
}

/// Whether the session manages files there, and any more.
fn may_manage(shared: &Shared, path: &Path) -> std::result::Result<(), Unmanaged> {
    if shared.route_for(path).name() == "kernel" || !shared.config.manages(path) {
        return Err(Unmanaged::Route);
    }
    if shared.arena.superblock().has_lost_its_name() {
        return Err(Unmanaged::Given(given::NAMELESS));
    }
    Ok(())
}

/// Makes or finds a file's entry while no call of the kernel's on it is under way: what the entry begins with is how the file is.
/// `alone`: the caller has the only description of it, so that it may come back from the kernel. `None`: as for [`table::open`].
fn enter(
    shared: &Arc<Shared>,
    me: Me<'_>,
    device: &Arc<dyn DeviceFile>,
    path: &[u8],
    alone: bool,
    has_come: &dyn Fn() -> bool,
    is_last: bool,
) -> std::result::Result<Option<FileId>, Unmanaged> {
    let Some(_newcomer) = Newcomer::come(me, device.caps().inode) else {
        return Err(Unmanaged::Reached);
    };
    let entered = table::open(shared, me, device, path, has_come, is_last);
    let entered = entered.map_err(Unmanaged::Failed)?;
    if let Some(id) = entered.filter(|_| alone) {
        table::take_back(shared, me, id, device.as_ref(), has_come);
    }
    Ok(entered)
}

impl Session {
    /// Joins the session whose arena is at `path` for as long as the process lives, if some process is in it: the process's
    /// threads take slots without ever saying that they end, which the kernel does.
    ///
    /// # Errors
    /// As for [`Session::join_living`].
    pub fn join_for_good(path: &Path, config: Config, ways: ForGood) -> Result<Option<Self>> {
        Self::join_living_as(path, config, Some(ways))
    }

    /// Gives the calling thread's slot back, if it has it for a turn.
    pub fn end_turn(&self) {
        members::end_turn(&self.shared);
    }

    /// Gives the calling thread's slot back before it executes a program. It gets another one, if it calls the engine again.
    pub fn give_slot_back(&self) {
        members::give_back(&self.shared);
    }

    /// Leaves a session that was joined for good, none of whose files this process manages any more: nothing of it stays mapped. The
    /// descriptors are the caller's to close, where `relocate` has put them; and nothing of this session's may be called any more, but what
    /// other threads are in the middle of.
    ///
    /// # Errors
    /// [`Error::Session`] where threads of the process are at something that does not end: it stays what it was. [`Error::Arena`] where the
    /// memory cannot be given up.
    pub fn leave_for_good(&self) -> Result<()> {
        match &self.shared.for_good {
            Some(own) => members::leave_for_good(&self.shared, own),
            None => self.forget_arena(),
        }
    }

    /// Gives up a copy of the session that a forked child has.
    ///
    /// # Errors
    /// As for [`Session::leave_for_good`].
    pub fn forget_arena(&self) -> Result<()> {
        let given = self.shared.arena.give_up(|| ());
        given.map_err(|e| Error::Arena(format!("its memory cannot be given up: {e}")))
    }

    /// Manages the file behind a descriptor of the program's, for reading and writing, or for reading alone.
    ///
    /// # Errors
    /// Why the file stays with the kernel.
    pub fn adopt(
        &self,
        fd: BorrowedFd<'_>,
        writable: bool,
        relocate: fn(OwnedFd) -> OwnedFd,
    ) -> std::result::Result<Inode, Unmanaged> {
        let adopted = (1..=TRIES)
            .find_map(|number| {
                let adopted = self.try_adopt(fd, writable, relocate, number == TRIES);
                adopted.transpose()
            })
            .expect("the last try says what has become of it");
        if let (true, Ok(me)) = (writable, self.shared.me()) {
            let counter = adopted
                .as_ref()
                .err()
                .map_or(Counter::FilesManaged, Unmanaged::counter);
            me.count(counter as usize, 1);
        }
        if let Some(code) = adopted.as_ref().err().and_then(Unmanaged::code)
            && let Ok(asked) = stat::stat(fd)
        {
            let path = path_of(fd);
            let inode = (asked.device, asked.inode);
            left::note(&self.shared.arena, inode, code, path.as_os_str().as_bytes());
        }
        adopted
    }

    /// `None`: somebody may have come meanwhile, which is to be looked at anew.
    fn try_adopt(
        &self,
        fd: BorrowedFd<'_>,
        writable: bool,
        relocate: fn(OwnedFd) -> OwnedFd,
        is_last: bool,
    ) -> std::result::Result<Option<Inode>, Unmanaged> {
        let path = path_of(fd);
        let shared = &self.shared;
        may_manage(shared, &path)?;
        let asked = stat::stat(fd).map_err(|e| Unmanaged::Failed(Error::device("stat", &e)))?;
        let hash = reached::hash(asked.device, asked.inode);
        let superblock = shared.arena.superblock();
        let before = reached::look(superblock, hash);
        // At the only time when the engine has no descriptions of its own.
        let outside = shared.is_used_outside(fd, (asked.device, asked.inode), writable);
        let is_alone = || lock::is_only_description(fd);
        let alone = match standing(&shared.arena, fd, asked.device, asked.inode) {
            Standing::New | Standing::Idle if before.is_reached() && !is_alone() => {
                return Err(Unmanaged::Reached);
            }
            Standing::Given(reason) if !given::may_end(reason) || !is_alone() => {
                return Err(Unmanaged::Given(reason));
            }
            Standing::Given(_) => true,
            Standing::Managed | Standing::Idle | Standing::New => false,
        };
        let me = shared.me().map_err(Unmanaged::Failed)?;
        let opening = Opening::begin(me);
        let device = RealFile::reopen_known(fd, &asked, writable, &relocate);
        drop(opening);
        let device = device.map_err(Unmanaged::Reason)?;
        shared.claim(&device, &path).map_err(Unmanaged::Reason)?;
        if outside {
            return Err(Unmanaged::Outside);
        }
        let device: Arc<dyn DeviceFile> = Arc::new(device);
        let bytes = path.as_os_str().as_bytes();
        let has_come = || before.has_grown(superblock, hash);
        let Some(id) = enter(shared, me, &device, bytes, alone, &has_come, is_last)? else {
            return Ok(None);
        };
        // The process's other files flush through devices in the registry: one that cannot be written is of no use there.
        let device = if writable {
            shared.keep_device(id, device)
        } else {
            device
        };
        let core = Core {
            shared: Arc::clone(shared),
            id,
            device,
        };
        // Of a file that others have had open all along.
        let unreached = match has_come() {
            true => self.give_to_kernel(asked.device, asked.inode, given::REACHED),
            false => Ok(()),
        };
        let given = core.entry().kernel_reason.load(Ordering::Acquire);
        let reason = match unreached {
            Err(error) => Unmanaged::Failed(error),
            Ok(()) if given != 0 => Unmanaged::Given(given),
            Ok(()) => return Ok(Some(Inode::new(core, &path))),
        };
        table::close(shared, id, writable);
        shared.closed(id, &core.device);
        Err(reason)
    }
}

impl Session {
    /// Gives an inode that the session knows to the kernel, whichever programs have it open: everything is flushed and dropped
    /// from memory first. `reason` is not 0.
    ///
    /// # Errors
    /// The device's, and [`Error::Session`] where nobody can flush the file; it stays managed then.
    pub fn give_to_kernel(&self, device: u64, inode: u64, reason: u32) -> Result<()> {
        let shared = &self.shared;
        let me = shared.me()?;
        let Some(id) = table::find(me.arena, device, inode) else {
            return Ok(());
        };
        if let Some(device) = shared.device(id) {
            let core = Core {
                shared: Arc::clone(shared),
                id,
                device,
            };
            return settle::to_kernel(&core, me, reason);
        }
        let mut has_tried = false;
        for _ in 0..KERNEL_TRIES {
            if settle::to_kernel_if_flushed(me, id, reason) {
                return Ok(());
            }
            // Without a keeper that answers and has the file, this process opens it as a recovery would.
            if !shared.ask_to_flush(id) && !has_tried {
                has_tried = true;
                crate::member::again::adopt_owed_file(shared, id, None);
                if shared.device(id).is_some() {
                    return self.give_to_kernel(device, inode, reason);
                }
            }
            me.wait(64);
        }
        Err(SessionFault::Unavailable
            .error("nobody can write what the file owes; see that the session's keeper runs"))
    }
}

impl Session {
    /// Writes what an inode owes, if the session knows it. Errors are told by those that sync or close it.
    pub fn flush_known(&self, device: u64, inode: u64) {
        let shared = &self.shared;
        let Ok(me) = shared.me() else { return };
        let Some(id) = table::find(me.arena, device, inode) else {
            return;
        };
        match shared.device(id) {
            Some(device) => {
                let core = Core {
                    shared: Arc::clone(shared),
                    id,
                    device,
                };
                settle::flush(&core, me, crate::flush::Scope::SYNC);
            }
            None => {
                shared.ask_to_flush(id);
            }
        }
    }
}

impl Shared {
    /// Where descriptors that this process keeps open to the session are put, and how the program is kept from others.
    pub fn place_descriptors(&self, ways: ForGood) {
        self.line.relocate(ways.relocate);
        self.line.own(ways.own);
        self.claims.relocate(ways.relocate);
    }
}

impl Unmarked {
    /// Looks whether the session knows the file by now, which is the kernel's then.
    pub fn look(self) {
        let Unmarked { shared, inode } = self;
        if table::find(&shared.arena, inode.0, inode.1).is_some() {
            // Where it cannot be written it stays managed, and outsiders find what is older.
            let session = Session {
                shared: Arc::clone(&shared),
                hosting: None,
            };
            let _ = session.give_to_kernel(inode.0, inode.1, given::REACHED);
        }
        reached::end(shared.arena.superblock(), reached::hash(inode.0, inode.1));
    }
}
