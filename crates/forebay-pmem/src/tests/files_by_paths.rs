//! Files by paths: what each part of a path may be, what is held on the way, and who closes the store.

use std::sync::Arc;

use super::drive::{by, content, faults, new_store, open};
use super::sim::Simulated;
use crate::errno::Errno;
use crate::files::{FileOptions, Files};
use crate::medium::Durability;
use crate::types::{CreateOptions, ROOT};

const READ: FileOptions = FileOptions {
    read: true,
    write: false,
    append: false,
    truncate: false,
    create: false,
    create_new: false,
    mode: 0o644,
};
const MAKE: FileOptions = FileOptions {
    write: true,
    create: true,
    ..READ
};

fn files() -> (Arc<Simulated>, Arc<Files>) {
    let medium = Simulated::new(new_store(1500, &CreateOptions::default()), Durability::Dax);
    let store = open(&medium).expect("a new store opens");
    (medium, Files::new(store, 1000, 100))
}

fn failed(files: &Arc<Files>, path: &[u8], options: FileOptions) -> Errno {
    match files.open(path, options) {
        Ok(_) => panic!("{} opens", path.escape_ascii()),
        Err(error) => error,
    }
}

#[test]
fn a_path_leads_through_directories_and_links() {
    let (medium, files) = files();
    assert_eq!(files.make_directory(b"/a", 0o750), Ok(()));
    assert_eq!(files.make_directory(b"a//./b/", 0o755), Ok(()));
    let file = files.open(b"a/b/../b/file", MAKE).expect("made");
    assert_eq!(file.write_at(b"bytes", 3), Ok(5));
    let is = files.find(b"/a/b/file").expect("there");
    assert_eq!((is.size, is.uid, is.gid), (8, 1000, 100));
    assert_eq!(is.mode, libc::S_IFREG | 0o644);
    let store = files.store();
    for (name, target) in [
        (b"up".as_slice(), b"../a/b/file".as_slice()),
        (b"root", b"/a"),
        (b"round", b"round"),
        (b"new", b"a/made"),
    ] {
        assert!(store.symlink(ROOT, name, target, by(0)).is_ok());
    }
    for path in [
        b"up".as_slice(),
        b"root/b/file",
        b"root/../root/./b/file",
        b"../../a/b/file",
    ] {
        assert_eq!(files.find(path).map(|found| found.inode), Ok(is.inode));
    }
    // One that leads to nothing yet.
    drop(files.open(b"new", MAKE).expect("made"));
    assert!(files.find(b"a/made").is_ok());
    for (path, options, error) in [
        (b"none".as_slice(), READ, Errno::ENOENT),
        (b"none/file", MAKE, Errno::ENOENT),
        (b"a/b/file/x", READ, Errno::ENOTDIR),
        (b"a/b/file/..", READ, Errno::ENOTDIR),
        (b"round", READ, Errno::ELOOP),
        (b"a", READ, Errno::EISDIR),
        (b"/", MAKE, Errno::EISDIR),
        (b"a/..", READ, Errno::EISDIR),
    ] {
        assert_eq!(failed(&files, path, options), error, "{path:?}");
    }
    let new = FileOptions {
        create_new: true,
        ..MAKE
    };
    assert_eq!(failed(&files, b"round", new), Errno::EEXIST);
    assert_eq!(failed(&files, &[b'n'; 256], MAKE), Errno::ENAMETOOLONG);
    assert_eq!(
        store.mknod(ROOT, b"pipe", by(libc::S_IFIFO), 0).map(drop),
        Ok(())
    );
    assert_eq!(failed(&files, b"pipe", READ), Errno::ENXIO);
    drop(file);
    assert_eq!(files.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn names_are_made_listed_moved_and_removed() {
    let (medium, files) = files();
    assert_eq!(files.make_directory(b"a", 0o755), Ok(()));
    assert_eq!(files.make_directory(b"a", 0o755), Err(Errno::EEXIST));
    assert_eq!(files.make_directory(b"/", 0o755), Err(Errno::EEXIST));
    drop(files.open(b"a/one", MAKE).expect("made"));
    assert_eq!(files.remove(b"a"), Err(Errno::ENOTEMPTY));
    assert_eq!(files.remove(b"a/../"), Err(Errno::EBUSY));
    assert_eq!(files.rename(b"a/one", b"two"), Ok(()));
    assert_eq!(files.rename(b"a", b"a/b"), Err(Errno::EINVAL));
    assert_eq!(files.rename(b"a", b"/"), Err(Errno::EBUSY));
    let mut names: Vec<_> = files.list(b"/").expect("a directory").into_iter().collect();
    names.sort_by(|one, two| one.name.cmp(&two.name));
    let names: Vec<_> = names
        .iter()
        .map(|entry| (&*entry.name, entry.kind))
        .collect();
    let expected: [(&[u8], u32); 2] = [(b"a", libc::S_IFDIR), (b"two", libc::S_IFREG)];
    assert_eq!(names, expected);
    assert_eq!(files.list(b"two").err(), Some(Errno::ENOTDIR));
    // A file that is open outlives its name.
    let open = files.open(b"two", MAKE).expect("opens");
    assert_eq!(files.remove(b"two"), Ok(()));
    assert_eq!(open.append(b"still"), Ok(0));
    assert_eq!(open.size(), Ok(5));
    let free = files.store().statfs().inodes_free;
    drop(open);
    assert_eq!(files.store().statfs().inodes_free, free + 1);
    assert_eq!(files.remove(b"a"), Ok(()));
    assert_eq!(files.list(b""), Ok(vec![]));
    assert_eq!(files.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn nothing_is_made_in_a_directory_that_is_gone() {
    let (medium, files) = files();
    let store = files.store();
    let gone = store.mkdir(ROOT, b"gone", by(0o755)).expect("made").inode;
    assert_eq!(store.hold(gone), Ok(()));
    assert_eq!(files.remove(b"gone"), Ok(()));
    assert_eq!(store.create(gone, b"x", by(0o644)), Err(Errno::ENOENT));
    let file = store.tmpfile(ROOT, by(0o644)).expect("made").inode;
    assert_eq!(store.link(file, gone, b"x"), Err(Errno::ENOENT));
    let named = store.create(ROOT, b"f", by(0o644)).map(drop);
    assert_eq!(named, Ok(()));
    let renamed = store.rename(ROOT, b"f", gone, b"f", crate::types::OnExisting::Replace);
    assert_eq!(renamed, Err(Errno::ENOENT));
    store.release(file, 1);
    store.release(gone, 1);
    assert_eq!(files.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn a_file_is_open_for_what_was_asked() {
    let (_, files) = files();
    let writes = FileOptions {
        read: false,
        ..MAKE
    };
    let file = files.open(b"f", writes).expect("made");
    assert_eq!(file.write_at(b"0123456789", 0), Ok(10));
    assert_eq!(file.read_at(&mut [0; 4], 0), Err(Errno::EBADF));
    assert_eq!(file.view(0, 4).map(drop), Err(Errno::EBADF));
    assert_eq!(file.punch(2, 3), Ok(()));
    let reads = files.open(b"f", READ).expect("opens");
    let mut bytes = [1; 12];
    assert_eq!(reads.read_at(&mut bytes, 0), Ok(10));
    assert_eq!(&bytes, b"01\0\0\x0056789\x01\x01");
    assert_eq!(reads.write_at(b"x", 0), Err(Errno::EBADF));
    assert_eq!(reads.append(b"x"), Err(Errno::EBADF));
    assert_eq!(reads.punch(0, 1), Err(Errno::EBADF));
    assert_eq!(reads.set_len(0), Err(Errno::EINVAL));
    assert_eq!(reads.window(0, 1).map(drop), Err(Errno::EBADF));
    let appends = FileOptions {
        append: true,
        write: false,
        ..MAKE
    };
    let tail = files.open(b"f", appends).expect("opens");
    assert_eq!(tail.write_at(b"end", 0), Ok(3));
    assert_eq!(tail.size(), Ok(13));
    assert_eq!(tail.window(0, 1).map(drop), Err(Errno::EINVAL));
    let empties = FileOptions {
        truncate: true,
        ..MAKE
    };
    drop(files.open(b"f", empties).expect("opens"));
    assert_eq!(tail.size(), Ok(0));
}

#[test]
fn a_view_is_whole_where_it_lies_or_as_a_copy() {
    let (_, files) = files();
    let file = files.open(b"f", MAKE).expect("made");
    let bytes = content(1, 300_000);
    assert_eq!(file.write_at(&bytes, 0), Ok(bytes.len()));
    let stored = file.view(100, 200_000).expect("a view").whole();
    let stored = stored.expect("no memory is needed");
    // The page in the middle goes elsewhere.
    assert_eq!(file.write_at(b"other", 150_000), Ok(5));
    let copied = file.view(100, 200_000).expect("a view").whole();
    let copied = copied.expect("there is memory");
    assert!(!stored.is_copy() && copied.is_copy());
    assert!(*stored == bytes[100..200_100]);
    assert!(copied[..149_900] == stored[..149_900] && copied[149_905..] == stored[149_905..]);
    assert_eq!(&copied[149_900..149_905], b"other");
    assert!(
        file.view(1 << 40, 1)
            .and_then(crate::View::whole)
            .expect("nothing")
            .is_empty()
    );
    assert_eq!(file.set_len(1 << 49), Ok(()));
    let large = file.view(0, 1 << 49).expect("a view").whole();
    assert_eq!(large.map(drop), Err(Errno::ENOMEM));
}

#[test]
fn the_last_one_closes_the_store() {
    let (medium, files) = files();
    let file = files.open(b"f", MAKE).expect("made");
    let mut window = file.window(0, 5).expect("a window");
    window.copy_from_slice(b"bytes");
    assert_eq!(files.close(), Ok(()));
    // The file keeps it.
    assert_eq!(window.commit(), Ok(()));
    assert_eq!(file.append(b"!"), Ok(5));
    drop(window);
    assert_eq!(file.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
    let again = Files::new(open(&medium).expect("opens"), 0, 0);
    assert_eq!(again.find(b"f").map(|is| is.size), Ok(6));
}
