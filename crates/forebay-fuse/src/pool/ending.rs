//! What a mount of a pool owes in the end: files that it has not synced, and files without a name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_pool::ids::File;

use super::{Known, Pooled};

/// So many files may be unsynced and closed: the end of a mount does not take longer than they do, nor is more known of them.
pub(super) const UNSYNCED_MAX: usize = 8192;
/// So many are synced at once. One sync of the home counts for all that wait for it.
const SYNCS: usize = 64;

impl Pooled {
    /// Whatever was written here is at the servers. How many files could not be.
    pub(crate) fn sync_all(&self) -> usize {
        self.sync_those(|known| (known.is_dirty || known.owes_error) && !known.is_gone)
    }

    /// The same at the end of the mount, when nobody has anything open. Files without a name go.
    pub(crate) fn end_all(&self) -> usize {
        let known = self.known();
        let gone = known.iter().filter(|(_, known)| known.is_gone);
        let gone: Vec<File> = gone.map(|(file, _)| *file).collect();
        drop(known);
        gone.into_iter().for_each(|file| self.remove(file));
        self.left.again(|file| self.remove_one(file));
        self.sync_all()
    }

    fn sync_those(&self, is_meant: impl Fn(&Known) -> bool) -> usize {
        let known = self.known();
        let meant = known.iter().filter(|(_, known)| is_meant(known));
        let files: Vec<File> = meant.map(|(file, _)| *file).collect();
        drop(known);
        let failed = AtomicUsize::new(0);
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let is_synced = self.keep_error(*file, &self.sync_unasked(*file));
                failed.fetch_add(usize::from(!is_synced), Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for _ in 1..SYNCS.min(files.len()) {
                let thread = thread::Builder::new().spawn_scoped(scope, work);
                if thread.is_err() {
                    // The others do its part.
                    break;
                }
            }
            work();
        });
        failed.into_inner()
    }

    /// Syncs closed files when many of them have not been.
    pub(super) fn sync_if_many(&self) {
        let is_meant = |known: &Known| known.is_dirty && known.openings == 0 && !known.is_going;
        let count = || {
            self.known()
                .values()
                .filter(|known| is_meant(known))
                .count()
        };
        let most = self.most_unsynced.load(Ordering::Relaxed);
        if self.known().len() <= most || count() <= most {
            return;
        }
        // Nobody else begins meanwhile, and where it fails it is not tried again at each close.
        let is_mine = self.most_unsynced.compare_exchange(
            most,
            usize::MAX,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if is_mine.is_ok() {
            self.sync_those(is_meant);
            let most = UNSYNCED_MAX.max(2 * count());
            self.most_unsynced.store(most, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_pool::files::Files;

    use super::*;
    use crate::failed::Failed;

    #[test]
    fn what_a_sync_that_nobody_asked_for_has_heard_is_said_once_to_who_asks() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = port.local_addr().expect("an address");
        drop(port);
        let config = forebay_pool::net::Config::parse(&format!("servers = [\"{address}\"]"));
        let config = config.expect("a configuration");
        let serving = forebay_pool::net::Serving::begin(&config, 0).expect("a server");
        let files = Files::join(&config, Duration::from_secs(60)).expect("in");
        let pooled = Pooled::new(files, Duration::ZERO);
        let file = File(7);
        pooled.written(file);
        assert!(!pooled.keep_error(file, &Err(Failed(libc::EIO))));
        // A sync that goes well does not forget it, nor does one at the end.
        assert!(!pooled.keep_error(file, &pooled.sync_unasked(file)));
        assert_eq!(pooled.sync_all(), 1);
        assert_eq!(pooled.sync_file(file), Err(Failed(libc::EIO)));
        assert_eq!(pooled.sync_file(file), Ok(()));
        assert_eq!(pooled.sync_all(), 0);
        assert!(pooled.known().is_empty());
        drop(pooled);
        serving.stop();
        serving.wait().expect("stopped");
    }
}
