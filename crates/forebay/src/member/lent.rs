//! Device files that readers lend to the keeper: what it reads ahead with where nobody has the file open for writing.
//!
//! A description that only reads is announced to the keeper without descriptors; they follow when something is to be read ahead
//! for the first time, so that programs that open and read little cost nothing more. The keeper has them until nobody of the session
//! reads the file any more. They cannot be written by, so that the file may be executed, and no flush uses them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::DeviceFile;
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::member::table;
use crate::sync::Ordering;

/// The keeper's side: one device file for each entry.
#[derive(Default)]
pub struct Lent(Mutex<HashMap<FileId, Arc<dyn DeviceFile>>>);

impl Lent {
    fn files(&self) -> MutexGuard<'_, HashMap<FileId, Arc<dyn DeviceFile>>> {
        // A panic elsewhere leaves the map as it was: every change is one insert or remove.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Makes sure that the keeper can read a file that this process has open for reading alone. `lent` is the keeper that the
    /// description was lent to last. Best effort: one keeper is asked once.
    pub fn lend(&self, file: FileId, device: &dyn DeviceFile, lent: &AtomicU32) {
        let epoch = self.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
        if lent.swap(epoch, Relaxed) != epoch && self.arena_path.is_some() {
            self.line.lend(self, file, device, epoch);
        }
    }

    /// Keeps what a reader has lent.
    pub(crate) fn keep_lent(&self, file: FileId, device: Arc<dyn DeviceFile>) {
        self.lent.files().insert(file, device);
        self.arena.file_unchecked(file).asks.accept();
    }

    /// Gives it back, if nobody of the session reads the file any more.
    pub(crate) fn give_lent_back(&self, file: FileId) -> Option<Arc<dyn DeviceFile>> {
        if self.arena.file_unchecked(file).readers() != 0 {
            return None;
        }
        self.lent.files().remove(&file)
    }

    /// The same of all files.
    pub fn give_all_lent_back(&self) {
        let lent: Vec<_> = self.lent.files().keys().copied().collect();
        for file in lent {
            drop(self.give_lent_back(file));
        }
    }

    /// A device file of an entry that can be read: this process's own, or one that was lent to it.
    pub fn device_to_read(&self, file: FileId) -> Option<Arc<dyn DeviceFile>> {
        self.device(file).or_else(|| {
            let lent = self.lent.files().get(&file).cloned();
            let entry = self.arena.file_unchecked(file);
            lent.filter(|device| table::is_same(entry, device.as_ref()))
        })
    }
}
