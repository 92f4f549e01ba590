//! Blocks that come to a home without a sync of their own, where the file system journals names in their order.
//!
//! ```text
//! FILE/BLOCK       the newest one; of mode 0400 as long as it may not be durable
//! FILE/BLOCK~      while that is so: the last durable one, if there was any
//! ```
//!
//! Of changes of names, modes included, a power cut leaves the first ones. What of the bytes is there is open. So:
//!
//! - A store that is not synced keeps the durable block that it replaces: `BLOCK` becomes `BLOCK~` as well, and then the draft becomes `BLOCK`. The name
//!   `BLOCK` is always there in between. A second store replaces what is not durable, and leaves `BLOCK~`.
//! - Who loads a `BLOCK` of mode 0400 that makes no sense takes `BLOCK~`; where that is not there nothing durable was, and it is a hole. Of mode 0600 it
//!   is damage, and an error.
//! - After a sync what was stored before it began gets mode 0600, and then `BLOCK~` goes.
//!
//! What is durable, only whoever has synced it knows. A server knows what it has stored itself since its last sync began ([`Unsynced`]): nobody has been
//! told that this is durable, since a client's sync asks all servers of the epoch, and what is known goes when another epoch begins. All else of mode
//! 0400 may be what somebody was told of: it is synced before it is replaced ([`Found::settle`](super::block::Found::settle)).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{fstat, fstatfs, major, minor};

use super::block::find;
use super::{of, turn};
use crate::ids::Version;
use crate::message::Place;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;

/// What a server has stored, and whether that has an older one beside it.
type Stored = BTreeMap<Place, (Version, bool)>;

/// What a server has stored since its last sync began, and what it has synced and not said so yet.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    stored: Mutex<Stored>,
    synced: Mutex<Stored>,
}

/// Of a block.
pub(super) fn older(name: &str) -> String {
    format!("{name}~")
}

/// Whether a file system is known to leave the first ones of all changes of names after a power cut. An ext4 without a journal does not; Btrfs brings
/// forward what was synced by itself.
pub(super) fn keeps_order(root: &fs::File) -> bool {
    match fstatfs(root).map(|found| found.f_type as u64) {
        Ok(XFS | TMPFS) => true,
        Ok(EXT4) => has_journal(root).unwrap_or(false),
        _ => false,
    }
}

/// Its journal has a thread, whose number the kernel says.
fn has_journal(root: &fs::File) -> io::Result<bool> {
    let device = fstat(root)?.st_dev;
    let numbers = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let device = fs::read_link(numbers)?;
    let name = device.file_name().ok_or(io::ErrorKind::NotFound)?;
    let of = std::path::Path::new("/sys/fs/ext4").join(name);
    let thread = fs::read_to_string(of.join("journal_task"))?;
    Ok(thread.trim().parse::<u32>().is_ok())
}

fn lock(all: &Mutex<Stored>) -> MutexGuard<'_, Stored> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unsynced {
    /// Whether nobody has been told that this block is durable.
    pub fn has(&self, place: Place) -> bool {
        lock(&self.stored).contains_key(&place)
    }

    /// A block is stored; an older one may be kept beside it.
    pub fn stored(&self, place: Place, version: Version, is_kept: bool) {
        let mut stored = lock(&self.stored);
        let before = stored.insert(place, (version, is_kept));
        if let (Some((_, true)), Some((_, kept))) = (before, stored.get_mut(&place)) {
            *kept = true;
        }
    }

    /// A block is durable by itself.
    pub fn forget(&self, place: Place) {
        lock(&self.stored).remove(&place);
    }

    /// Others may have synced everything.
    pub fn forget_all(&self) {
        lock(&self.stored).clear();
    }

    /// A sync begins: while it goes on nobody knows what of this is durable.
    pub fn begin(&self) -> Stored {
        std::mem::take(&mut lock(&self.stored))
    }

    /// It has made this durable.
    pub fn end(&self, synced: Stored) {
        lock(&self.synced).extend(synced);
    }

    /// Says of what was synced that it is durable, and removes what was kept. What fails stays as it is: the next one who needs it does that.
    pub fn settle(&self, home: &fs::File, draft: &str) {
        let all = std::mem::take(&mut *lock(&self.synced));
        for (place, (version, is_kept)) in all {
            let _ = settle(home, draft, place, version, is_kept);
        }
    }
}

fn settle(
    home: &fs::File,
    draft: &str,
    (file, block): Place,
    version: Version,
    is_kept: bool,
) -> io::Result<()> {
    let (directory, name) = (of(file), format!("{block:x}"));
    let Some(mut found) = find(home, &format!("{directory}/{name}"))? else {
        return Ok(());
    };
    if found.version()? != Some(version) {
        return Ok(());
    }
    found.is_synced()?;
    if is_kept && let Some(turn) = turn::find((home.as_fd(), &directory, draft))? {
        turn.take()?;
        // Else somebody has stored another one since, and has kept this one.
        if find(turn.blocks(), &name)?.is_some_and(|found| found.is_durable) {
            turn.remove(&older(&name), &older(draft))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::{Path, PathBuf};

    use super::super::{DIRECTORY_MODE, Directory};
    use super::*;
    use crate::home::Home;
    use crate::ids::{File, SIZE_BLOCK};
    use crate::message::Block;
    use crate::mistakes::{Mistake, plant};

    const FILE: File = File(7);

    fn home_at(around: &Path, server: u32) -> Directory {
        let mut home = Directory::of_anybody(around, server).unwrap();
        home.keeps_order = true;
        home
    }

    fn store(home: &Directory, number: u64, change: u64) {
        store_at(home, (FILE, number), change);
    }

    fn store_at(home: &Directory, place: Place, change: u64) {
        let version = Version {
            epoch: 1 << 32,
            stamp: 2,
            change,
        };
        let bytes = vec![change as u8; 9000].into();
        let block = Block {
            place,
            version,
            bytes,
        };
        assert!(home.store(&block, &|| true).unwrap());
    }

    fn sync(home: &Directory) {
        home.sync().unwrap();
        home.after_sync();
    }

    /// What a server finds that begins now.
    fn found(around: &Path, number: u64) -> Option<u64> {
        let read = home_at(around, 9).load((FILE, number)).unwrap();
        read.map(|(version, bytes)| {
            assert_eq!(bytes, [version.change as u8; 9000]);
            version.change
        })
    }

    fn path(around: &Path, name: &str) -> PathBuf {
        around.join(of(FILE)).join(name)
    }

    fn mode(around: &Path, name: &str) -> u32 {
        let there = fs::metadata(path(around, name)).unwrap();
        there.mode() & 0o777
    }

    /// What power cuts leave of a file whose bytes nobody has synced.
    const TORN: [(usize, usize); 4] = [(0, 0), (10, 10), (0, 9040), (4096, 9040)];

    fn tear(around: &Path, name: &str, (stay, length): (usize, usize)) {
        let path = path(around, name);
        let mode = fs::metadata(&path).unwrap().permissions();
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(stay);
        bytes.resize(length, 0);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, mode).unwrap();
    }

    /// Stores a block over one that was synced, and again; then power is cut.
    fn after_a_cut(around: &Path, torn: (usize, usize)) -> Option<u64> {
        let home = home_at(around, 1);
        store(&home, 1, 5);
        sync(&home);
        store(&home, 1, 6);
        store(&home, 1, 7);
        tear(around, "1", torn);
        found(around, 1)
    }

    #[test]
    fn what_a_power_cut_has_torn_is_as_it_was_synced_last() {
        for torn in TORN {
            let around = tempfile::tempdir().unwrap();
            assert_eq!(after_a_cut(around.path(), torn), Some(5), "{torn:?}");
            // It goes on from there.
            let home = home_at(around.path(), 2);
            store(&home, 1, 6);
            assert_eq!(found(around.path(), 1), Some(6));
            sync(&home);
            assert_eq!(mode(around.path(), "1"), 0o600);
        }
    }

    #[test]
    fn a_planted_mistake_about_what_is_kept_is_found() {
        plant(Some(Mistake::KeepsNothingOlder));
        let around = tempfile::tempdir().unwrap();
        let found = after_a_cut(around.path(), TORN[0]);
        plant(None);
        assert_eq!(found, None);
    }

    #[test]
    fn what_was_never_synced_is_a_hole_when_it_is_torn_and_what_was_is_damaged() {
        for torn in TORN {
            let around = tempfile::tempdir().unwrap();
            let home = home_at(around.path(), 1);
            store(&home, 1, 5);
            store(&home, 2, 5);
            tear(around.path(), "1", torn);
            assert_eq!(found(around.path(), 1), None);
            // Who has stored it knows that no power was cut since.
            home.load((FILE, 1)).unwrap_err();
            sync(&home);
            assert_eq!(found(around.path(), 2), Some(5));
            tear(around.path(), "2", torn);
            let why = home_at(around.path(), 2).load((FILE, 2)).unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::InvalidData, "{torn:?}");
        }
    }

    #[test]
    fn what_somebody_was_told_of_is_kept_whoever_has_synced_it() {
        type Next = fn(&Directory, &Path);
        let replace: [Next; 3] = [
            |home, _| store(home, 1, 7),
            |_, around| store(&home_at(around, 2), 1, 7),
            // Clients have asked others to sync, in an epoch that this server was not in.
            |home, _| {
                store(home, 1, 7);
                home.go_on_together(&|| true).unwrap();
                store(home, 1, 8);
            },
        ];
        for (replace, kept) in replace.into_iter().zip([6, 6, 7]) {
            let around = tempfile::tempdir().unwrap();
            let home = home_at(around.path(), 1);
            store(&home, 1, 5);
            sync(&home);
            store(&home, 1, 6);
            // It ends before it has said that this is durable.
            home.sync().unwrap();
            replace(&home, around.path());
            tear(around.path(), "1", TORN[0]);
            assert_eq!(found(around.path(), 1), Some(kept));
        }
    }

    #[test]
    fn what_is_kept_goes_with_the_sync_and_with_its_block() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        let is_there = |name| path(around.path(), name).exists();
        for number in [1, 2] {
            store(&home, number, 5);
        }
        sync(&home);
        for number in [1, 2] {
            store(&home, number, 6);
        }
        assert!(is_there("1~") && is_there("2~"));
        while !home.discard(FILE, 2, false, true).unwrap() {}
        assert!(is_there("1~") && !is_there("2~") && !is_there("2"));
        // It is not brought back by a sync that ends after that.
        home.sync().unwrap();
        store(&home, 1, 7);
        home.after_sync();
        assert_eq!(mode(around.path(), "1"), 0o400);
        assert_eq!(mode(around.path(), "1~"), 0o600);
        sync(&home);
        assert_eq!(mode(around.path(), "1"), 0o600);
        assert!(!is_there("1~"));
        assert_eq!(found(around.path(), 1), Some(7));
    }

    #[test]
    fn what_was_kept_for_a_block_that_has_gone_is_nothing_to_the_next_one() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        store(&home, 1, 5);
        fs::rename(path(around.path(), "1"), path(around.path(), "1~")).unwrap();
        assert_eq!(found(around.path(), 1), None);
        store(&home, 1, 6);
        tear(around.path(), "1", TORN[0]);
        assert_eq!(found(around.path(), 1), None);
    }

    #[test]
    fn who_is_killed_when_it_has_kept_a_block_leaves_it_to_the_next_one() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        store(&home, 1, 5);
        sync(&home);
        fs::hard_link(path(around.path(), "1"), path(around.path(), "1~")).unwrap();
        for change in [6, 7] {
            store(&home, 1, change);
        }
        sync(&home);
        store(&home, 1, 8);
        tear(around.path(), "1", TORN[0]);
        assert_eq!(found(around.path(), 1), Some(7));
    }

    #[test]
    fn names_and_that_there_is_a_file_come_in_their_order() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        let of_size = format!("{SIZE_BLOCK:x}");
        for change in [5, 6] {
            store_at(&home, (File::NAMES, 1), change);
            let names = around.path().join(of(File::NAMES)).join("1");
            assert_eq!(fs::metadata(names).unwrap().mode() & 0o777, 0o600);
        }
        store(&home, SIZE_BLOCK, 5);
        assert_eq!(mode(around.path(), &of_size), 0o600);
        store(&home, SIZE_BLOCK, 6);
        assert_eq!(mode(around.path(), &of_size), 0o400);
        // A length is durable before what is beyond it goes.
        while !home.discard(FILE, 2, false, false).unwrap() {}
        assert_eq!(mode(around.path(), &of_size), 0o600);
        store(&home, SIZE_BLOCK, 7);
        tear(around.path(), &of_size, TORN[0]);
        assert_eq!(found(around.path(), SIZE_BLOCK), Some(6));
    }

    #[test]
    fn blocks_of_the_version_before_are_read_and_kept() {
        let around = tempfile::tempdir().unwrap();
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, DIRECTORY_MODE);
        builder.create(around.path().join(of(FILE))).unwrap();
        let old = [1 << 32, 2, 5].map(u64::to_le_bytes);
        let bytes = [old.as_flattened(), &[5; 9000]].concat();
        fs::write(path(around.path(), "1"), &bytes).unwrap();
        fs::set_permissions(path(around.path(), "1"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(found(around.path(), 1), Some(5));
        store(&home_at(around.path(), 1), 1, 6);
        tear(around.path(), "1", TORN[0]);
        assert_eq!(found(around.path(), 1), Some(5));
    }

    #[test]
    fn no_bit_of_a_block_changes_unseen() {
        let around = tempfile::tempdir().unwrap();
        let home = home_at(around.path(), 1);
        store(&home, 1, 5);
        sync(&home);
        let path = path(around.path(), "1");
        let whole = fs::read(&path).unwrap();
        for bit in (0..400).chain((400..whole.len() * 8).step_by(997)) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).unwrap();
            home.load((FILE, 1)).unwrap_err();
        }
    }
}
