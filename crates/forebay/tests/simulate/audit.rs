//! An audit: with all clients at rest and no keeper, the dead are repaired after, the arena's books are balanced, and every byte
//! of every file is compared with the ledgers, in memory and on the device.

use std::rc::Rc;
use std::sync::Arc;

use forebay::Session;
use forebay::device::DeviceFile;
use forebay::frame::header::State;
use forebay::ids::HeaderId;
use forebay::keeper::check::check;
use forebay::keeper::check::doubt::doubt;
use forebay::keeper::repair;
use forebay::member::shared::Shared;
use forebay::memory::files::TRUNCATING;
use forebay::memory::threads;
use forebay::sim::device::SimFile;
use forebay::sync::Ordering;
use forebay_model::{Access, SplitMix64, first_difference};

use crate::client::Buffer;
use crate::world::World;

/// Space that is lent where somebody died while punching.
const SPARE_BYTES: i64 = 1 << 26;

/// Looks at everything; panics where something is wrong.
pub fn look_at_everything(world: &Rc<World>, seed: u64) {
    let mut dice = SplitMix64::new(seed);
    let shared = world.join();
    repair_all(&shared);
    books(&shared, "after the repair");
    for file in &world.files {
        file.ledger.borrow_mut().settle();
    }
    let lends = world.hole_in_doubt.take();
    if lends {
        // What has outlived its space needs it again.
        world.disk.fill(-SPARE_BYTES);
    } else {
        space(&shared, world).unwrap_or_else(|what| panic!("{what}"));
    }
    let session = Session::of_process(Arc::clone(&shared));
    // All at once: everybody else pauses and there is no keeper, so that what is in the way of one can only be written here.
    let in_use = (0..world.files.len()).filter(|&file| world.is_in_use(file));
    let open: Vec<_> = in_use
        .map(|file| (file, world.open(&session, file, Access::ReadWrite, false)))
        .collect();
    for (file, opened) in open {
        let deep = dice.below(2) == 0;
        let opened = opened.expect("a file can be opened");
        look_at(world, opened, file, deep || lends);
    }
    if lends {
        world.disk.fill(SPARE_BYTES);
    }
    assert_eq!(
        world.station().unstable_writes(),
        0,
        "pages changed while they were written"
    );
    books(&shared, "at the end");
    assert_eq!(
        world.leases_taken_away(),
        0,
        "somebody was kept waiting for a lease until the kernel took it away"
    );
}

/// As a waiter would: again and again until nobody dead is left.
fn repair_all(shared: &Arc<Shared>) {
    let me = shared.me().expect("a thread slot");
    for _ in 0..8 {
        assert_eq!(doubt(me.arena), None, "a death is taken for damage");
        if let Some(findings) = repair::if_needed(shared, me) {
            assert_eq!(findings.corruptions, 0, "{findings:?}");
        }
    }
    assert_eq!(threads::dead(me.arena), [], "the dead are not buried");
    let wrong = &me.arena.superblock().corruptions;
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "corruptions");
}

/// Every page that is owed has its space on the device: who was acknowledged hears of no full disk later.
fn space(shared: &Arc<Shared>, world: &World) -> Result<(), String> {
    let arena = &shared.arena;
    let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
    for header in (0..backed).filter_map(|id| arena.header(HeaderId(id))) {
        let Some(identity) = header
            .identity()
            .filter(|_| header.state() == State::Linked)
        else {
            continue;
        };
        let entry = arena.file_unchecked(identity.file);
        let mut size = entry.size.load(Ordering::Acquire);
        if entry.flags.load(Ordering::Acquire) & TRUNCATING != 0 {
            // Whoever was cutting the file has died; whoever comes next to it finishes that, and drops what is beyond.
            size = size.min(entry.truncating.load(Ordering::Acquire).saturating_sub(1));
        }
        let inode = entry.inode.load(Ordering::Acquire);
        // Of one that is gone nothing will be read: also where it has its number still, because nobody has wanted that since.
        let birth = entry.birth.load(Ordering::Acquire);
        let of_use = (0..world.files.len()).filter(|&file| world.is_in_use(file));
        let mut there = of_use.map(|file| world.files[file].sim());
        let is_it = |file: &Arc<SimFile>| (file.caps().inode, file.caps().birth) == (inode, birth);
        let Some(disk) = there.find(is_it) else {
            continue;
        };
        let owed = header.owed();
        for page in (0..64).filter(|page| owed & 1 << page != 0) {
            let at = identity.block.start() + page * 4096;
            let has_space = disk.is_allocated(at, 4096).expect("a look");
            if at < size && !has_space {
                let word = |word: &forebay::sync::AtomicU64| word.load(Ordering::Acquire);
                return Err(format!(
                    "inode {inode} owes the page at {at}, which has no space; size {size}, device {}, known to reach {}, \
                     reserved to {}, flags {:x}; {}",
                    disk.contents().len(),
                    word(&entry.disk_end),
                    word(&entry.reserved_end),
                    entry.flags.load(Ordering::Acquire),
                    header.describe()
                ));
            }
        }
    }
    Ok(())
}

fn books(shared: &Arc<Shared>, when: &str) {
    if let Err(problems) = check(&shared.arena) {
        panic!("{when}: {problems:#?}");
    }
}

fn look_at(world: &Rc<World>, file: forebay::File, index: usize, deep: bool) {
    let subject = &world.files[index];
    let len = file.len().expect("a length");
    let adopted = subject.ledger.borrow_mut().adopt_length(len);
    adopted.unwrap_or_else(|what| panic!("an audit finds file {index} {what}"));
    let found = read_and_check(world, &file, index, len);
    if !deep {
        if subject.ledger.borrow().known_below() != u64::MAX {
            subject.ledger.borrow_mut().restart_known(Rc::new(found));
        }
        close(world, index, file);
        return;
    }
    let core = file.core().expect("a managed file");
    forebay::evict::evict_file(core.shared.me().expect("a slot"), core.id);
    let again = read_and_check(world, &file, index, len);
    assert!(
        found == again,
        "file {index} is another one once it has left memory: {:?}",
        difference(&found, &again)
    );
    // What failed before may be told once.
    let synced = file.sync_all().or_else(|_| file.sync_all());
    synced.expect("a sync of a sound device");
    let device = subject.sim().contents();
    assert!(
        device == found,
        "file {index} is another one on the device after a sync: {:?}",
        difference(&device, &found)
    );
    let owed = core.entry().owed_pages.load(Ordering::Acquire);
    assert_eq!(owed, 0, "file {index} owes pages after a sync");
    subject.ledger.borrow_mut().restart(Rc::new(found));
    close(world, index, file);
}

fn close(world: &Rc<World>, index: usize, file: forebay::File) {
    let closing = world.begin_close(index);
    let flushed = file.flush().or_else(|_| file.flush());
    flushed.expect("a flush to a sound device");
    file.close().expect("a close");
    world.closed_well(index, &closing);
}

fn difference(left: &[u8], right: &[u8]) -> (usize, usize, Option<usize>) {
    (left.len(), right.len(), first_difference(left, right))
}

/// All bytes, twice: bytes that nobody changes stay.
fn read_and_check(world: &Rc<World>, file: &forebay::File, index: usize, len: u64) -> Vec<u8> {
    let subject = &world.files[index];
    let mut found = Buffer::new(len as usize + 10, 0);
    for _ in 0..2 {
        let looking = subject.ledger.borrow_mut().look();
        let read = file
            .read_at(found.get(), 0)
            .expect("bytes of a sound device");
        assert_eq!(read as u64, len, "file {index} ends elsewhere than it says");
        let mut ledger = subject.ledger.borrow_mut();
        let window = ledger.look_away(looking);
        let checked = ledger.check_read(window, 0, len + 10, &found.get()[..read]);
        drop(ledger);
        checked.unwrap_or_else(|what| panic!("an audit finds file {index} wrong: {what}"));
    }
    found.get()[..len as usize].to_vec()
}
