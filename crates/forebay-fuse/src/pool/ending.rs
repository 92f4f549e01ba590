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
        self.sync_those(|known| known.is_dirty && !known.is_gone)
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
                let is_synced = self.sync_file(*file, None).is_ok();
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
    use std::time::{Duration, Instant};

    use forebay_pool::client::{Facts, Failure};
    use forebay_pool::files::Files;

    use super::*;
    use crate::failed::Failed;
    use crate::served::Served;

    #[test]
    fn what_a_sync_that_nobody_asked_for_has_heard_is_told_to_each_who_asks() {
        let ports = [(), ()].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [one, two] = ports.map(|port| port.local_addr().expect("an address"));
        let text = format!(
            "servers = [\"{one}\", \"{two}\"]\nblock_bytes = 4096\nterm_ms = 1000\npath = \"remote\""
        );
        let config = forebay_pool::net::Config::parse(&text).expect("a configuration");
        let servers = [0, 1]
            .map(|server| forebay_pool::net::Serving::begin(&config, server).expect("a server"));
        let files = Files::join(&config, Duration::from_secs(60)).expect("in");
        let pooled = Pooled::new(files, Duration::ZERO, false);
        let name = pooled.files.make(File::ROOT, b"name", Facts::default());
        let file = name.expect("made").0.file;
        let [first, second] = [(), ()].map(|()| pooled.open(file.0, 0).expect("open"));
        pooled
            .files
            .write(file, 0, &[7; 64 * 4096])
            .expect("written");
        pooled.written(file);
        // The second word ends it at once.
        servers[1].stop();
        servers[1].stop();
        let until = Instant::now() + Duration::from_secs(60);
        while pooled.files.read(file, 0, 1 << 20) != Err(Failure::Lost.into()) {
            assert!(Instant::now() < until, "nothing is lost");
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(pooled.sync_all(), 1);
        assert_eq!(pooled.sync_all(), 1, "nobody has been told");
        for opening in [first, second] {
            assert_eq!(pooled.sync(opening, false), Err(Failed(libc::EIO)));
            assert_eq!(pooled.sync(opening, false), Ok(()));
        }
        assert_eq!(pooled.sync_all(), 0);
        for opening in [first, second] {
            pooled.release(opening);
        }
        assert!(pooled.known().is_empty());
        drop(pooled);
        servers[0].stop();
    }
}
