//! What inotify tells the guard: openings and changes of watched files, after they have happened.

use std::sync::atomic::Ordering::Relaxed;

use super::{CHANGED, Guard, LEASE_MIN, OPENED, WATCH_MIN, locked, mend};
use crate::member::shared::Shared;
use crate::member::table;
use crate::sys::inotify;

/// How often the queue is read at once at most: more than it holds where nobody has set that.
const READS_MAX: usize = 128;

impl Guard {
    /// Takes in what has happened to files.
    pub(super) fn hear(&self, shared: &Shared) {
        for event in self.happened() {
            if event.what & inotify::LOST != 0 {
                self.look_for_the_lost(shared);
                continue;
            }
            let known = {
                let mut watched = locked(&self.watched);
                if event.what & inotify::ENDED != 0 {
                    if let Some(inode) = watched.by_watch.remove(&event.watch)
                        && watched
                            .by_inode
                            .get(&inode)
                            .is_some_and(|of| of.0 == event.watch)
                    {
                        watched.by_inode.remove(&inode);
                    }
                    continue;
                }
                watched.by_watch.get(&event.watch).copied()
            };
            let Some((device, inode)) = known else {
                continue;
            };
            let Some(file) = table::find(&shared.arena, device, inode) else {
                continue;
            };
            for (bit, what) in [(inotify::OPENED, OPENED), (inotify::CHANGED, CHANGED)] {
                if event.what & bit != 0 {
                    self.ask((device, inode), file, what);
                }
            }
        }
    }

    /// All that there is to be heard, as far as that comes to an end: while it is not heard, the kernel drops what happens.
    fn happened(&self) -> Vec<inotify::Event> {
        let mut all = Vec::new();
        for _ in 0..READS_MAX {
            match self.bell.happened() {
                Ok(events) if !events.is_empty() => all.extend(events),
                _ => break,
            }
        }
        all
    }

    /// Anybody may have opened any file, or changed it.
    fn look_for_the_lost(&self, shared: &Shared) {
        self.missed.store(true, Relaxed);
        let files: Vec<_> = locked(&self.watched).by_inode.keys().copied().collect();
        for (device, inode) in files {
            if let Some(file) = table::find(&shared.arena, device, inode) {
                self.ask((device, inode), file, CHANGED);
            }
        }
    }

    /// Ends watches of files that nobody uses any more.
    pub(super) fn tidy(&self, shared: &Shared) {
        let unused: Vec<_> = {
            let mut watched = locked(&self.watched);
            watched
                .forgotten
                .retain(|_, since| since.elapsed() < LEASE_MIN);
            let old = watched
                .by_inode
                .iter()
                .filter(|(_, (_, since))| since.elapsed() > WATCH_MIN);
            old.map(|(inode, (watch, _))| (*inode, *watch)).collect()
        };
        for ((device, inode), watch) in unused {
            let used = table::find(&shared.arena, device, inode)
                .is_some_and(|file| mend::is_managed(shared, file));
            if !used {
                self.bell.forget(watch);
            }
        }
    }
}
