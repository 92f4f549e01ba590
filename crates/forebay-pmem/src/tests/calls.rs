//! Calls whose meaning the model does not cover.

use super::drive::{by, faults, new_store, open, quiet};
use super::sim::Simulated;
use crate::errno::Errno;
use crate::medium::Durability;
use crate::store::Store;
use crate::types::{Changes, CreateOptions, OnExisting, ROOT, SetTime, Time, Whence};
use std::sync::Arc;

fn store() -> (Arc<Simulated>, Store) {
    let medium = Simulated::new(new_store(1024, &CreateOptions::default()), Durability::Dax);
    let store = open(&medium).expect("a new store opens");
    (medium, store)
}

fn names(store: &Store, directory: u64) -> Vec<String> {
    let mut names = Vec::new();
    let done = store.readdir(directory, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(&entry.name).to_string());
        true
    });
    assert_eq!(done, Ok(()));
    names
}

#[test]
fn dots_and_errors_are_as_linux_has_them() {
    let (_, store) = store();
    let directory = store
        .mkdir(ROOT, b"d", by(0o755))
        .map(|is| is.inode)
        .expect("made");
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.lookup(directory, b"..").map(|is| is.inode), Ok(ROOT));
    assert_eq!(
        store.lookup(directory, b".").map(|is| is.inode),
        Ok(directory)
    );
    assert_eq!(names(&store, directory), [".", ".."]);
    assert_eq!(
        store.lookup(ROOT, &[b'n'; 256]).err(),
        Some(Errno::ENAMETOOLONG)
    );
    assert_eq!(store.lookup(file, b"x").err(), Some(Errno::ENOTDIR));
    assert_eq!(store.create(ROOT, b"a/b", by(0)).err(), Some(Errno::EINVAL));
    assert_eq!(store.create(ROOT, b".", by(0)).err(), Some(Errno::EEXIST));
    assert_eq!(store.link(directory, ROOT, b"l").err(), Some(Errno::EPERM));
    assert_eq!(
        store.read(directory, 0, &mut [0]).err(),
        Some(Errno::EISDIR)
    );
    assert_eq!(store.write(directory, 0, b"x").err(), Some(Errno::EISDIR));
    assert_eq!(store.write(file, u64::MAX, b"x").err(), Some(Errno::EFBIG));
    assert_eq!(store.readlink(file).err(), Some(Errno::EINVAL));
    assert_eq!(store.getattr(0).err(), Some(Errno::ENOENT));
    assert_eq!(store.getattr(u64::MAX).err(), Some(Errno::ENOENT));
    assert_eq!(store.fallocate(file, 0, 0, 0).err(), Some(Errno::EINVAL));
    let collapse = store.fallocate(file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse.err(), Some(Errno::EOPNOTSUPP));
    let gone = store.rename(ROOT, b"none", ROOT, b"f", OnExisting::Replace);
    assert_eq!(gone.err(), Some(Errno::ENOENT));
}

#[test]
fn attributes_are_kept() {
    let (medium, store) = store();
    let directory = store
        .mkdir(ROOT, b"d", by(0o2755))
        .map(|is| is.inode)
        .expect("made");
    let owner = Changes {
        gid: Some(77),
        ..Changes::default()
    };
    assert!(store.setattr(directory, &owner).is_ok());
    let below = store.mkdir(directory, b"below", by(0o700)).expect("made");
    assert_eq!((below.gid, below.mode), (77, libc::S_IFDIR | 0o2700));
    let node = store
        .mknod(directory, b"n", by(libc::S_IFCHR | 0o600), 0x105)
        .expect("made");
    assert_eq!(
        (node.device, node.gid, node.mode),
        (0x105, 77, libc::S_IFCHR | 0o600)
    );
    let time = Time {
        seconds: -5,
        nanoseconds: 999_999_999,
    };
    let changes = Changes {
        mode: Some(0o4711),
        uid: Some(5),
        accessed: Some(SetTime::To(time)),
        modified: Some(SetTime::Now),
        ..Changes::default()
    };
    let is = store.setattr(node.inode, &changes).expect("set");
    assert_eq!(
        (is.mode, is.uid, is.accessed),
        (libc::S_IFCHR | 0o4711, 5, time)
    );
    assert!(is.modified > node.modified && is.changed == is.modified && is.born == node.born);
    assert_eq!(store.close(), Ok(()));
    let store = open(&medium).expect("opens again");
    assert_eq!(store.getattr(is.inode), Ok(is));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn a_file_without_a_name_lives_as_long_as_it_is_held() {
    let (medium, store) = store();
    let free = store.statfs();
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.write(file, 0, &[7; 10_000]), Ok(10_000));
    assert_eq!(store.hold(file), Ok(()));
    assert_eq!(store.unlink(ROOT, b"f"), Ok(()));
    let nameless = store.tmpfile(ROOT, by(0o600)).expect("made");
    assert_eq!(nameless.links, 0);
    let other = store.tmpfile(ROOT, by(0o600)).expect("made");
    let mut bytes = [0; 10_001];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(10_000));
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(faults(&medium), [""; 0], "with three files in the list");
    assert_eq!(
        store.link(other.inode, ROOT, b"named").map(|is| is.links),
        Ok(1)
    );
    store.release(other.inode, 1);
    store.release(file, 1);
    assert_eq!(store.getattr(file).err(), Some(Errno::ENOENT));
    assert_eq!(store.sync(), Ok(()));
    // A crash now: whoever opens the store next frees what nobody can hold any more.
    let crashed = Simulated::new(medium.bytes(), Durability::Dax);
    let again = open(&crashed).expect("opens after the crash");
    assert_eq!(again.getattr(nameless.inode).err(), Some(Errno::ENOENT));
    assert_eq!(
        again.lookup(ROOT, b"named").map(|is| is.inode),
        Ok(other.inode)
    );
    assert_eq!(again.unlink(ROOT, b"named"), Ok(()));
    assert_eq!(again.sync(), Ok(()));
    assert_eq!(again.statfs().inodes_free, free.inodes_free);
    assert_eq!(again.close(), Ok(()));
    assert_eq!(faults(&crashed), [""; 0]);
}

#[test]
fn what_is_looked_up_and_held_at_once_stays() {
    let (medium, store) = store();
    std::thread::scope(|scope| {
        let names = scope.spawn(|| {
            for _ in 0..60_000 {
                assert!(store.create(ROOT, b"f", by(0o644)).is_ok());
                assert_eq!(store.unlink(ROOT, b"f"), Ok(()));
            }
        });
        while !names.is_finished() {
            let Ok(found) = store.lookup_held(ROOT, b"f") else {
                continue;
            };
            let still = store.getattr(found.inode).expect("it is held");
            assert_eq!(still.generation, found.generation);
            store.release(found.inode, 1);
        }
    });
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn a_held_directory_that_is_removed_takes_no_names() {
    let (medium, store) = store();
    let directory = store
        .mkdir(ROOT, b"d", by(0o755))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.hold(directory), Ok(()));
    assert_eq!(store.rmdir(ROOT, b"d"), Ok(()));
    assert_eq!(
        store.create(directory, b"x", by(0)).err(),
        Some(Errno::ENOENT)
    );
    assert_eq!(names(&store, directory), [".", ".."]);
    store.release(directory, 1);
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn sparse_files_have_holes() {
    let (medium, store) = store();
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    const TIB: u64 = 1 << 40;
    assert_eq!(store.write(file, TIB - 5, b"12345"), Ok(5));
    assert_eq!(store.write(file, 1 << 30, b"x"), Ok(1));
    let is = store.getattr(file).expect("is there");
    assert_eq!(is.size, TIB);
    assert!(is.blocks < 20 * 8, "{} units of 512 bytes", is.blocks);
    assert_eq!(store.seek(file, 0, Whence::Data), Ok(1 << 30));
    assert_eq!(store.seek(file, 0, Whence::Hole), Ok(0));
    assert_eq!(
        store.seek(file, 1 << 30, Whence::Hole),
        Ok((1 << 30) + 4096)
    );
    assert_eq!(
        store.seek(file, (1 << 30) + 4096, Whence::Data),
        Ok(TIB - 4096)
    );
    assert_eq!(store.seek(file, TIB - 1, Whence::Hole), Ok(TIB));
    assert_eq!(
        store.seek(file, TIB, Whence::Data).err(),
        Some(Errno::ENXIO)
    );
    let mut bytes = [1; 20];
    assert_eq!(store.read(file, TIB - 10, &mut bytes), Ok(10));
    assert_eq!(&bytes[..10], b"\0\0\0\0\x0012345");
    assert_eq!(store.unlink(ROOT, b"f"), Ok(()));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn allocated_space_counts_as_zeros_and_needs_no_more_when_it_is_written() {
    let (medium, store) = store();
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(
        store.fallocate(file, libc::FALLOC_FL_KEEP_SIZE, 0, 100_000),
        Ok(())
    );
    assert_eq!(store.getattr(file).map(|is| is.size), Ok(0));
    assert_eq!(store.fallocate(file, 0, 0, 100_000), Ok(()));
    assert_eq!(store.seek(file, 0, Whence::Data).err(), Some(Errno::ENXIO));
    let free = store.statfs().blocks_free;
    assert_eq!(store.write(file, 5000, &[9; 50_000]), Ok(50_000));
    assert_eq!(store.statfs().blocks_free, free);
    let mut bytes = vec![1; 100_000];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(100_000));
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| (*byte == 9) == (5000..55_000).contains(&at))
    );
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(store.fallocate(file, punch, 0, 1 << 40), Ok(()));
    assert_eq!(
        store.getattr(file).map(|is| (is.blocks, is.size)),
        Ok((0, 100_000))
    );
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn space_ends_where_a_hole_begins_and_a_cut_to_the_same_size_gives_back_what_is_beyond() {
    let (medium, store) = store();
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.allocated_to(file, 0, 1 << 40), Ok(0));
    assert_eq!(store.write(file, 0, &[1; 10_000]), Ok(10_000));
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(store.fallocate(file, keep, 10_000, 30_000), Ok(()));
    assert_eq!(store.allocated_to(file, 0, 1 << 40), Ok(40_960));
    assert_eq!(store.allocated_to(file, 5000, 20_000), Ok(20_000));
    assert_eq!(
        store.allocated_to(file, 50_000, i64::MAX as u64),
        Ok(50_000)
    );
    let cut = Changes {
        size: Some(10_000),
        ..Changes::default()
    };
    assert_eq!(
        store.setattr(file, &cut).map(|is| (is.size, is.blocks)),
        Ok((10_000, 24))
    );
    assert_eq!(store.allocated_to(file, 0, 1 << 40), Ok(12_288));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn extended_attributes_have_their_limits_and_flags() {
    let (medium, store) = store();
    let set = |name: &[u8], value: &[u8], flags| store.setxattr(ROOT, name, value, flags);
    assert_eq!(
        set(b"user.a", b"1", libc::XATTR_REPLACE).err(),
        Some(Errno::ENODATA)
    );
    assert_eq!(set(b"user.a", b"1", libc::XATTR_CREATE), Ok(()));
    assert_eq!(
        set(b"user.a", b"2", libc::XATTR_CREATE).err(),
        Some(Errno::EEXIST)
    );
    assert_eq!(set(b"user.a", b"2", 0), Ok(()));
    assert_eq!(set(b"user.empty", b"", 0), Ok(()));
    assert_eq!(set(b"user.large", &[1; 5000], 0).err(), Some(Errno::ENOSPC));
    assert_eq!(set(b"user.huge", &[1; 70_000], 0).err(), Some(Errno::E2BIG));
    assert_eq!(set(&[b'n'; 256], b"", 0).err(), Some(Errno::ERANGE));
    assert_eq!(store.getxattr(ROOT, b"user.a"), Ok(b"2".to_vec()));
    assert_eq!(store.getxattr(ROOT, b"user.b").err(), Some(Errno::ENODATA));
    assert_eq!(
        store.listxattr(ROOT),
        Ok(vec![b"user.a".to_vec(), b"user.empty".to_vec()])
    );
    assert_eq!(store.removexattr(ROOT, b"user.a"), Ok(()));
    assert_eq!(
        store.removexattr(ROOT, b"user.a").err(),
        Some(Errno::ENODATA)
    );
    assert_eq!(store.removexattr(ROOT, b"user.empty"), Ok(()));
    assert_eq!(store.getattr(ROOT).map(|is| is.blocks), Ok(0));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn a_store_for_reading_shows_what_the_log_has_and_changes_nothing() {
    let (medium, store) = store();
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.write(file, 0, b"bytes"), Ok(5));
    assert_eq!(store.sync(), Ok(()));
    // As a crash before the batch was written where it belongs leaves it: the log alone has it.
    let mut bytes = new_store(1024, &CreateOptions::default());
    let now = medium.bytes();
    let geometry = crate::layout::Geometry::default_for(1024).expect("fits");
    let log_end = geometry.bitmap as usize * 4096;
    let data = geometry.data as usize * 4096;
    bytes[..log_end].copy_from_slice(&now[..log_end]);
    bytes[data..].copy_from_slice(&now[data..]);
    // The blocks' identity is that of the store that the log belongs to; only such a base is whole.
    let base = Simulated::new(bytes, Durability::Dax);
    let crashed = Simulated::new(now, Durability::Dax);
    for medium in [crashed, base] {
        let before = medium.bytes();
        let options = crate::types::OpenOptions {
            read_only: true,
            ..quiet()
        };
        let opened = Store::open_medium(
            Arc::clone(&medium) as Arc<dyn crate::medium::Medium>,
            options,
            super::drive::clock,
        );
        if let Ok(store) = opened {
            let file = store
                .lookup(ROOT, b"f")
                .map(|is| is.inode)
                .expect("is there");
            let mut bytes = [0; 5];
            assert_eq!(store.read(file, 0, &mut bytes), Ok(5));
            assert_eq!(&bytes, b"bytes");
            assert_eq!(store.create(ROOT, b"g", by(0)).err(), Some(Errno::EROFS));
            assert_eq!(store.sync(), Ok(()));
            assert_eq!(store.close(), Ok(()));
        }
        assert!(medium.bytes() == before);
    }
}
