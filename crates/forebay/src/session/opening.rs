//! Opening files: who manages them, and why not.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::device::{DeviceFile, KernelReason, RealFile};
use crate::error::{Error, Result};
use crate::file::core::Core;
use crate::file::{File, OpenOptions};
use crate::ids::FileId;
use crate::member::gone::{Place, unless_gone};
use crate::member::reached::Reaching;
use crate::member::watch::Seen;
use crate::member::{given, table};
use crate::memory::threads::Opening;
use crate::sync::Ordering;

use super::Session;
use super::adopt::TRIES;
use super::standing::Newcomer;
use crate::sys::file::path_of;

/// What a file is that has been opened.
enum Found {
    Managed(Core, Seen),
    /// For this reason.
    Kernels(u32),
    /// The kernel's, unless this process manages it already.
    Unmanageable(KernelReason),
}

impl Session {
    /// Opens a file. One that the engine cannot manage is served by the kernel: [`File::kernel_reason`] says why.
    ///
    /// # Errors
    /// The system's for the path; [`Error::Session`] when the session's tables are full.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        // Routes match whole paths, and a recovery has another working directory.
        let path = &std::path::absolute(path).map_err(|e| Error::device("open", &e))?;
        let file = options.open(path).map_err(|e| Error::device("open", &e))?;
        self.open_as(file, path, options)
    }

    /// As [`Session::open_file`], of a file that the caller has opened by itself: for reading and writing as the options say, without
    /// truncating it, and by the only description that it has of it. The path is what the kernel knows.
    ///
    /// # Errors
    /// As for [`Session::open_file`].
    pub fn open_given(&self, file: std::fs::File, options: &OpenOptions) -> Result<File> {
        let path = path_of(file.as_fd());
        self.open_as(file, &path, options)
    }

    /// Opens a file that the caller has opened by itself without managing it: where [`Session::open_given`] finds no room.
    ///
    /// # Errors
    /// The device's, where the session manages the file already and it cannot go to the kernel.
    pub fn open_unmanaged(&self, file: std::fs::File, options: &OpenOptions) -> Result<File> {
        let path = path_of(file.as_fd());
        let reason = given::words(given::NO_ROOM);
        self.in_kernel(file, given::NO_ROOM, reason.into(), &path, options)
    }

    fn open_as(&self, file: std::fs::File, path: &Path, options: &OpenOptions) -> Result<File> {
        let route = self.shared.route_for(path);
        if route.name() == "kernel" {
            let reason = "its route is kernel";
            return self.in_kernel(file, given::ROUTE, reason.into(), path, options);
        }
        if !self.is_below_dirs(&file) {
            let reason = "it lies outside the directories that `dirs` names";
            return self.in_kernel(file, given::UNMANAGEABLE, reason.into(), path, options);
        }
        if self.shared.arena.superblock().has_lost_its_name() {
            let reason = given::words(given::NAMELESS);
            return self.in_kernel(file, given::NAMELESS, reason.into(), path, options);
        }
        let found = (1..=TRIES)
            .find_map(|number| self.manage(&file, path, number == TRIES).transpose())
            .expect("the last try says what has become of it");
        match found? {
            Found::Managed(core, seen) => {
                let file = opened(core, file, path, options)?;
                // A file that others have had open all along.
                if self.shared.has_come(&seen) {
                    self.give_to_kernel(seen.inode.0, seen.inode.1, given::OUTSIDER)?;
                }
                Ok(file)
            }
            Found::Kernels(code) => {
                self.in_kernel(file, code, given::words(code).into(), path, options)
            }
            Found::Unmanageable(reason) => match self.device_of(&file)? {
                Some(device) => opened(self.manage_device(device, path)?, file, path, options),
                None => {
                    let reason = reason.to_string();
                    self.in_kernel(file, given::UNMANAGEABLE, reason, path, options)
                }
            },
        }
    }

    /// Manages a file if nobody outside uses it. `None`: somebody may have come meanwhile, which is to be looked at anew.
    fn manage(&self, file: &std::fs::File, path: &Path, is_last: bool) -> Result<Option<Found>> {
        let seen = self.shared.watch(file.as_fd())?;
        // The opening says by itself whose it is, which the guard can read once its thread sleeps. This it can read before.
        let opening = self.shared.me().ok().map(Opening::begin);
        let device = RealFile::reopen(file.as_fd());
        drop(opening);
        let device = device.and_then(|device| {
            self.shared.claim(&device, path)?;
            Ok(device)
        });
        let device = match device {
            Ok(_) if seen.outside => return Ok(Some(Found::Kernels(given::OUTSIDER))),
            Ok(device) => Arc::new(device),
            Err(reason) => return Ok(Some(Found::Unmanageable(reason))),
        };
        let has_come = || self.shared.has_come(&seen);
        let Some(_newcomer) = Newcomer::come(self.shared.me()?, seen.inode.1) else {
            return Ok(Some(Found::Kernels(given::REACHED)));
        };
        let core = self.manage_device_unless(device, path, &has_come, is_last)?;
        Ok(core.map(|core| Found::Managed(core, seen)))
    }

    /// The device file by which this process manages the file already, if it does.
    fn device_of(&self, file: &std::fs::File) -> Result<Option<Arc<dyn DeviceFile>>> {
        Ok(self.in_use(file)?.and_then(|id| self.shared.device(id)))
    }

    /// Leaves a file to the kernel. It is managed for everybody in the session or for nobody: a program that has it open goes on through the
    /// kernel, and nobody manages it while this one has it open.
    fn leave_to_kernel(&self, file: &std::fs::File, code: u32) -> Result<Reaching> {
        let meta = file.metadata().map_err(|e| Error::device("stat", &e))?;
        let inode = (meta.dev(), meta.ino());
        // First: of those that begin to manage it just now each sees the other.
        let reaching = Reaching::begin(&self.shared, inode);
        if self.in_use(file)?.is_some() {
            self.give_to_kernel(inode.0, inode.1, code)?;
        }
        Ok(reaching)
    }

    /// The file's entry, if somebody has it open there or it owes something.
    fn in_use(&self, file: &std::fs::File) -> Result<Option<FileId>> {
        let meta = file.metadata().map_err(|e| Error::device("stat", &e))?;
        let arena = &self.shared.arena;
        let found = table::find(arena, meta.dev(), meta.ino());
        let found = found.and_then(|id| unless_gone(arena, id, Place::of(file.as_fd())));
        Ok(found.filter(|&id| {
            let entry = arena.file_unchecked(id);
            let used = entry.opens() != 0 || entry.owes();
            used && entry.kernel_reason.load(Ordering::Acquire) == 0
        }))
    }

    fn is_below_dirs(&self, file: &std::fs::File) -> bool {
        let config = &self.shared.config;
        if config.dirs.is_empty() {
            return true;
        }
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::read_link(link).is_ok_and(|path| config.manages(&path))
    }

    fn in_kernel(
        &self,
        file: std::fs::File,
        code: u32,
        reason: String,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<File> {
        let reaching = self.leave_to_kernel(&file, code)?;
        if options.truncates() {
            file.set_len(0).map_err(|e| Error::device("truncate", &e))?;
        }
        Ok(File::kernel(file, reason, reaching, path, options))
    }

    /// Opens a device file that has no path in the file system: simulations.
    #[doc(hidden)]
    pub fn open_device(
        &self,
        device: Arc<dyn DeviceFile>,
        name: &str,
        options: &OpenOptions,
    ) -> Result<File> {
        let nothing = std::fs::File::open("/dev/null").map_err(|e| Error::device("open", &e))?;
        let path = Path::new(name);
        opened(self.manage_device(device, path)?, nothing, path, options)
    }

    /// Manages a device file: an entry in the table, a place in the registry.
    #[doc(hidden)]
    pub fn manage_device(&self, device: Arc<dyn DeviceFile>, path: &Path) -> Result<Core> {
        let core = self.manage_device_unless(device, path, &|| false, true)?;
        Ok(core.expect("nobody comes"))
    }

    /// `None`: as for [`table::open`].
    pub(crate) fn manage_device_unless(
        &self,
        device: Arc<dyn DeviceFile>,
        path: &Path,
        has_come: &dyn Fn() -> bool,
        is_last: bool,
    ) -> Result<Option<Core>> {
        use std::os::unix::ffi::OsStrExt;
        let me = self.shared.me()?;
        let bytes = path.as_os_str().as_bytes();
        let Some(id) = table::open(&self.shared, me, &device, bytes, has_come, is_last)? else {
            return Ok(None);
        };
        let device = self.shared.keep_device(id, device);
        Ok(Some(Core {
            shared: Arc::clone(&self.shared),
            id,
            device,
        }))
    }
}

/// A managed file, as its options have it.
fn opened(core: Core, file: std::fs::File, path: &Path, options: &OpenOptions) -> Result<File> {
    let file = File::managed(core, file, path, options);
    if options.truncates() {
        file.set_len(0)?;
    }
    Ok(file)
}
