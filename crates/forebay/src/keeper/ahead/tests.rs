//! What the prefetcher does not do for a file that is not there any more.

use std::sync::Arc;

use super::look;
use crate::config::Config;
use crate::device::DeviceFile;
use crate::file::OpenOptions;
use crate::ids::BlockIndex;
use crate::keeper::check::doubt::doubt;
use crate::member::table;
use crate::memory::asks::Ask;
use crate::memory::files::LIVE;
use crate::session::Session;
use crate::sim::device::{SimDisk, SimOptions};
use crate::sync::Ordering;

/// The prefetcher has the file's device in hand, and the entry is dropped, since nobody needs it: what would be read belongs to nobody, or to the file
/// that has the entry next.
#[test]
fn nothing_is_read_for_an_entry_that_was_dropped() {
    let session = Session::open(Config::tiny()).expect("a session");
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    let disk = SimDisk::new(SimOptions::default());
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let device: Arc<dyn DeviceFile> = disk.create();
    let file = session.open_device(Arc::clone(&device), "sim", &options);
    let file = file.expect("a file");
    file.write_at(&[1; 100_000], 0).expect("written");
    file.sync_all().expect("synced");
    let id = file.core().expect("managed").id;
    let ask = Ask::whole(BlockIndex(0));
    file.close().expect("closed");
    table::forget_removed(shared, me, id);
    let state = || me.arena.file_unchecked(id).state.load(Ordering::Acquire);
    assert_ne!(state(), LIVE, "its entry was dropped");
    assert!(look(shared, me, id, &device, ask).is_none());
    assert_eq!(doubt(me.arena), None);
    // Another file has the entry next.
    let others: Vec<_> = (0..me.arena.counts().files)
        .map(|_| session.open_device(disk.create(), "other", &options))
        .take_while(|other| other.is_ok())
        .collect();
    let ids = others.iter().flatten().flat_map(|other| other.core());
    assert!(ids.into_iter().any(|core| core.id == id), "it has");
    assert!(look(shared, me, id, &device, ask).is_none());
}
