//! Requests as the kernel sends them, and as it never does, to a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use forebay::{Config, Session};

use super::*;
use crate::directory::{Directory, open_root};
use crate::nodes::ROOT;
use crate::transport::device::parsed;
use crate::transport::tests::Kernel;
use crate::wire::{Field, InHeader};

/// A directory with a file `f`, a link `l` and a directory `d`, served.
struct Scene {
    serving: Serving<Directory>,
    kernel: Kernel,
    files: tempfile::TempDir,
    _arenas: tempfile::TempDir,
}

impl Scene {
    fn new(session: &str) -> Self {
        let (arenas, files) = (tempfile::tempdir_in("/dev/shm"), tempfile::tempdir());
        let (arenas, files) = (arenas.expect("a directory"), files.expect("a directory"));
        fs::write(files.path().join("f"), b"bytes").expect("written");
        fs::create_dir(files.path().join("d")).expect("made");
        std::os::unix::fs::symlink("f", files.path().join("l")).expect("made");
        let mut config = Config::builder().build().expect("defaults");
        config.session = session.into();
        config.arena_dir = Some(arenas.path().to_owned());
        config.memory = 32 << 20;
        let session = Session::open(config).expect("a session");
        let root = open_root(files.path()).expect("opened");
        let directory = Directory::new(session, root, Duration::ZERO, 64).expect("served");
        Scene {
            serving: Serving(Arc::new(directory)),
            kernel: Kernel::new(),
            files,
            _arenas: arenas,
        }
    }

    /// The error that a request is answered with, and the bytes; `None` if it is not answered.
    fn ask(&self, request: &[u8]) -> Option<(i32, Vec<u8>)> {
        ask(&self.serving, &self.kernel, request)
    }

    /// Asks, and takes what is answered apart.
    fn told<T: Field>(&self, request: &[u8]) -> T {
        let (error, bytes) = self.ask(request).expect("an answer");
        assert_eq!((error, bytes.len()), (0, T::SIZE));
        T::from_wire(&bytes)
    }

    fn look_up(&self, name: &str) -> wire::EntryOut {
        self.told(&request(LOOKUP, ROOT, &(), name.as_bytes(), 1))
    }
}

fn ask(serving: &impl Answers, kernel: &Kernel, request: &[u8]) -> Option<(i32, Vec<u8>)> {
    let request = parsed(request).expect("a header");
    let to = kernel.waits_for(request.header.unique);
    serving.answer(request, to);
    let answered = kernel.answered();
    assert_eq!(kernel.answered(), None, "one answer");
    answered.map(|(unique, error, bytes)| {
        assert_eq!(unique, request.header.unique);
        (error, bytes)
    })
}

/// A request as it comes: its header, what the operation says of itself, what follows, and zeros.
fn request(opcode: u32, number: u64, own: &impl Field, payload: &[u8], zeros: usize) -> Vec<u8> {
    let header = InHeader {
        opcode,
        unique: 7,
        nodeid: number,
        ..InHeader::default()
    };
    let mut bytes = header.bytes().to_vec();
    bytes.resize(InHeader::SIZE + own_size(own), 0);
    own.to_wire(&mut bytes[InHeader::SIZE..]);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + zeros, 0);
    bytes
}

fn own_size<T: Field>(_own: &T) -> usize {
    T::SIZE
}

/// What requests are about: a file with its opening, the root with its own.
struct About {
    file: u64,
    fh: u64,
    names: u64,
}

impl About {
    fn new(scene: &Scene) -> Self {
        let file = scene.look_up("f").nodeid;
        let opened: wire::OpenOut = scene.told(&request(OPEN, file, &BOTH_WAYS, b"", 0));
        let listing: wire::OpenOut = scene.told(&request(OPENDIR, ROOT, &BOTH_WAYS, b"", 0));
        About {
            file,
            fh: opened.fh,
            names: listing.fh,
        }
    }
}

const BOTH_WAYS: wire::OpenIn = wire::OpenIn {
    flags: libc::O_RDWR,
    open_flags: 0,
};

/// Requests about names, in an order in which all of them go well; with the error that is answered.
fn about_names(about: &About) -> Vec<(Vec<u8>, i32)> {
    let new = wire::CreateIn {
        flags: libc::O_RDWR,
        mode: 0o600,
        ..Default::default()
    };
    let special = wire::MknodIn {
        mode: libc::S_IFIFO | 0o600,
        ..Default::default()
    };
    let list = wire::ReadIn {
        fh: about.names,
        size: 4096,
        ..Default::default()
    };
    let to_root = wire::RenameIn { newdir: ROOT };
    let exchanged = wire::Rename2In {
        newdir: ROOT,
        flags: libc::RENAME_EXCHANGE,
        ..Default::default()
    };
    let linked = wire::LinkIn {
        oldnodeid: about.file,
    };
    let directory = wire::MkdirIn {
        mode: 0o700,
        umask: 0,
    };
    let (synced, released) = synced_and_released(about.names);
    vec![
        (request(LOOKUP, ROOT, &(), b"f", 1), 0),
        (request(CREATE, ROOT, &new, b"c", 1), 0),
        (request(TMPFILE, ROOT, &new, b"/", 1), 0),
        (request(MKNOD, ROOT, &special, b"p", 1), 0),
        (request(MKDIR, ROOT, &directory, b"e", 1), 0),
        (request(SYMLINK, ROOT, &(), b"s\0there", 1), 0),
        (request(LINK, ROOT, &linked, b"h", 1), 0),
        (request(RENAME, ROOT, &to_root, b"h\0i", 1), 0),
        (request(RENAME2, ROOT, &exchanged, b"i\0c", 1), 0),
        (request(UNLINK, ROOT, &(), b"i", 1), 0),
        (request(RMDIR, ROOT, &(), b"e", 1), 0),
        (request(OPENDIR, ROOT, &BOTH_WAYS, b"", 0), 0),
        (request(READDIR, ROOT, &list, b"", 0), 0),
        (request(READDIRPLUS, ROOT, &list, b"", 0), 0),
        (request(FSYNCDIR, ROOT, &synced, b"", 0), 0),
        (request(RELEASEDIR, ROOT, &released, b"", 0), 0),
    ]
}

fn synced_and_released(fh: u64) -> (wire::FsyncIn, wire::ReleaseIn) {
    let synced = wire::FsyncIn {
        fh,
        ..Default::default()
    };
    let released = wire::ReleaseIn {
        fh,
        ..Default::default()
    };
    (synced, released)
}

/// The same about what a file is.
fn about_attributes(about: &About) -> Vec<(Vec<u8>, i32)> {
    let mode = wire::SetattrIn {
        valid: wire::set::MODE,
        mode: 0o640,
        ..Default::default()
    };
    let value = wire::SetxattrIn { size: 1, flags: 0 };
    let size = wire::GetxattrIn {
        size: 64,
        padding: 0,
    };
    let file = about.file;
    let get = wire::GetattrIn::default();
    let absent = -libc::ENODATA;
    vec![
        (request(GETATTR, file, &get, b"", 0), 0),
        (request(SETATTR, file, &mode, b"", 0), 0),
        (request(GETXATTR, file, &size, b"user.none", 1), absent),
        (request(LISTXATTR, file, &size, b"", 0), 0),
        (request(REMOVEXATTR, file, &(), b"user.none", 1), absent),
        // The system's own answer to a name of no kind that it knows.
        (
            request(SETXATTR, file, &value, b"none\0v", 0),
            -libc::EOPNOTSUPP,
        ),
    ]
}

/// The same about bytes.
fn about_bytes(about: &About) -> Vec<(Vec<u8>, i32)> {
    let &About { file, fh, .. } = about;
    let read = wire::ReadIn {
        fh,
        size: 100,
        ..Default::default()
    };
    let write = wire::WriteIn {
        fh,
        size: 3,
        ..Default::default()
    };
    let copied = wire::CopyFileRangeIn {
        fh_in: fh,
        fh_out: fh,
        nodeid_out: file,
        off_out: 100,
        len: 2,
        ..Default::default()
    };
    let room = wire::FallocateIn {
        fh,
        length: 10,
        ..Default::default()
    };
    let hole = wire::LseekIn {
        fh,
        whence: libc::SEEK_HOLE,
        ..Default::default()
    };
    let ioctl = wire::IoctlIn {
        fh,
        in_size: 16,
        ..Default::default()
    };
    let sync_in_store = wire::IoctlIn {
        fh,
        cmd: STORE_SYNC,
        in_size: 1,
        ..Default::default()
    };
    let flushed = wire::FlushIn {
        fh,
        ..Default::default()
    };
    let (synced, released) = synced_and_released(fh);
    vec![
        (request(OPEN, file, &BOTH_WAYS, b"", 0), 0),
        (request(READ, file, &read, b"", 0), 0),
        (request(WRITE, file, &write, b"new", 0), 0),
        (request(FALLOCATE, file, &room, b"", 0), 0),
        (request(LSEEK, file, &hole, b"", 0), 0),
        (request(COPY_FILE_RANGE, file, &copied, b"", 0), 0),
        (request(IOCTL, file, &ioctl, &[0; 16], 0), -libc::ENOTTY),
        (
            request(IOCTL, file, &sync_in_store, &[0; 1], 0),
            -libc::ENOTTY,
        ),
        (request(FSYNC, file, &synced, b"", 0), 0),
        (request(FLUSH, file, &flushed, b"", 0), 0),
        (request(RELEASE, file, &released, b"", 0), 0),
    ]
}

#[test]
fn requests_that_are_cut_short_fail_and_change_nothing() {
    let scene = Scene::new("cut-short");
    let about = About::new(&scene);
    let all = [
        about_names(&about),
        about_attributes(&about),
        about_bytes(&about),
    ];
    for (whole, expected) in all.concat() {
        let operation = parsed(&whole).expect("a header").header.opcode;
        for len in InHeader::SIZE..whole.len() {
            let cut = scene.ask(&whole[..len]);
            assert_eq!(cut, Some((-libc::EIO, vec![])), "{operation} cut to {len}");
        }
        let (error, _) = scene.ask(&whole).expect("an answer");
        assert_eq!(error, expected, "{operation}");
    }
    let left = fs::read(scene.files.path().join("f")).expect("read");
    assert_eq!(left[..5], *b"newes");
    for len in 0..InHeader::SIZE {
        assert!(parsed(&[0; InHeader::SIZE][..len]).is_none());
    }
}

#[test]
fn what_is_forgotten_needs_no_answer_even_if_it_is_cut_short() {
    let scene = Scene::new("forgotten");
    let file = scene.look_up("f").nodeid;
    let once = request(FORGET, file, &wire::ForgetIn { nlookup: 1 }, b"", 0);
    let both = wire::BatchForgetIn { count: 2, dummy: 0 };
    let one = wire::ForgetOne {
        nodeid: file,
        nlookup: 1,
    };
    let two = [one.bytes(), one.bytes()];
    let batch = request(BATCH_FORGET, 0, &both, two.as_flattened(), 0);
    for whole in [once, batch] {
        for len in InHeader::SIZE..=whole.len() {
            assert_eq!(scene.ask(&whole[..len]), None);
        }
    }
}

#[test]
fn operations_that_nobody_serves_are_refused() {
    let scene = Scene::new("unserved");
    // Locks, ACCESS, INTERRUPT, BMAP, POLL, STATX, COPY_FILE_RANGE_64, and numbers that there are none of.
    for opcode in [31, 32, 33, 34, 36, 37, 40, 52, 53, 0, 7, 99, 4096, u32::MAX] {
        let answer = scene.ask(&request(opcode, ROOT, &(), &[0xff; 64], 0));
        assert_eq!(answer, Some((-libc::ENOSYS, vec![])), "{opcode}");
    }
    let again = scene.ask(&request(INIT, 0, &wire::InitIn::default(), b"", 0));
    assert_eq!(again, Some((-libc::EIO, vec![])));
}

#[test]
fn places_and_lengths_that_no_file_has_are_refused() {
    let scene = Scene::new("no-place");
    let file = scene.look_up("f").nodeid;
    let how = wire::OpenIn {
        flags: libc::O_RDWR,
        ..Default::default()
    };
    let fh = scene
        .told::<wire::OpenOut>(&request(OPEN, file, &how, b"", 0))
        .fh;
    for offset in [1 << 63, u64::MAX] {
        let read = wire::ReadIn {
            fh,
            offset,
            size: 10,
            ..Default::default()
        };
        let write = wire::WriteIn {
            fh,
            offset,
            size: 1,
            ..Default::default()
        };
        let invalid = Some((-libc::EINVAL, vec![]));
        assert_eq!(scene.ask(&request(READ, file, &read, b"", 0)), invalid);
        assert_eq!(scene.ask(&request(WRITE, file, &write, b"x", 0)), invalid);
    }
    let read = wire::ReadIn {
        fh,
        size: u32::MAX,
        ..Default::default()
    };
    // Of more than an answer has one gets less.
    let too_much = scene.ask(&request(READ, file, &read, b"", 0));
    assert_eq!(too_much, Some((0, b"bytes".to_vec())));
    assert_eq!(asked::room(u32::MAX), 1 << 20);
}

#[test]
fn a_time_before_1970_is_set_and_told_as_the_kernel_says_it() {
    let scene = Scene::new("before-1970");
    let file = scene.look_up("f").nodeid;
    let new = wire::SetattrIn {
        valid: wire::set::MTIME | wire::set::ATIME,
        mtime: -2,
        mtimensec: 500_000_000,
        atime: -1,
        atimensec: 1,
        ..Default::default()
    };
    let told: wire::AttrOut = scene.told(&request(SETATTR, file, &new, b"", 0));
    assert_eq!((told.attr.mtime, told.attr.mtimensec), (-2, 500_000_000));
    assert_eq!((told.attr.atime, told.attr.atimensec), (-1, 1));
}

#[test]
fn a_name_is_told_with_its_file() {
    let scene = Scene::new("told");
    let (file, directory, link) = (scene.look_up("f"), scene.look_up("d"), scene.look_up("l"));
    for (told, kind) in [
        (file, libc::S_IFREG),
        (directory, libc::S_IFDIR),
        (link, libc::S_IFLNK),
    ] {
        assert_eq!(told.attr.mode & libc::S_IFMT, kind);
        assert_eq!(told.nodeid, told.attr.ino);
    }
    assert_eq!(file.attr.size, 5);
    let target = scene.ask(&request(READLINK, link.nodeid, &(), b"", 0));
    assert_eq!(target, Some((0, b"f".to_vec())));
    let absent = scene.ask(&request(LOOKUP, ROOT, &(), b"none", 1));
    assert_eq!(absent, Some((-libc::ENOENT, vec![])));
}

/// The names of a listing with their files' numbers and types; each comes after so many bytes of what is told of its file.
fn names_in(mut listing: &[u8], told: usize) -> Vec<(Vec<u8>, u64, u32)> {
    let mut names = Vec::new();
    while !listing.is_empty() {
        let about = wire::Dirent::parse(&listing[told..]).expect("whole");
        let from = told + wire::Dirent::SIZE;
        let end = from + about.namelen as usize;
        names.push((listing[from..end].to_vec(), about.ino, about.kind));
        listing = &listing[end.next_multiple_of(8)..];
    }
    names
}

#[test]
fn listings_of_both_kinds_say_the_same() {
    let scene = Scene::new("listings");
    let directory = scene.look_up("d").nodeid;
    fs::write(scene.files.path().join("d/inner"), b"").expect("written");
    let opened: wire::OpenOut = scene.told(&request(OPENDIR, directory, &BOTH_WAYS, b"", 0));
    let list = wire::ReadIn {
        fh: opened.fh,
        size: 4096,
        ..Default::default()
    };
    let listed = |operation| {
        let listed = scene.ask(&request(operation, directory, &list, b"", 0));
        listed.expect("an answer").1
    };
    let plain = names_in(&listed(READDIR), 0);
    assert_eq!(names_in(&listed(READDIRPLUS), wire::EntryOut::SIZE), plain);
    // The directory above is not this one.
    let number = |name: &[u8]| {
        plain
            .iter()
            .find(|(other, ..)| other == name)
            .map(|of| of.1)
    };
    assert_eq!(number(b"."), Some(directory));
    let above = fs::metadata(scene.files.path()).expect("there").ino();
    assert_eq!(number(b".."), Some(above));
    assert_eq!(plain.len(), 3);
}

/// By `CREATE` the kernel would have an opening, and tell of its end by a request of its own.
#[test]
fn a_stores_files_are_made_without_an_opening() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    forebay_pmem::create(&path, Some(32 << 20)).expect("a store");
    let store =
        forebay_pmem::Store::open(&path, forebay_pmem::OpenOptions::default()).expect("opened");
    let (serving, kernel) = (
        Serving(Arc::new(crate::store::Stored::new(store))),
        Kernel::new(),
    );
    let new = wire::CreateIn {
        flags: libc::O_RDWR,
        mode: libc::S_IFREG | 0o400,
        ..Default::default()
    };
    let unknown = Some((-libc::ENOSYS, Vec::new()));
    let create = request(CREATE, ROOT, &new, b"f", 1);
    assert_eq!(ask(&serving, &kernel, &create), unknown);
    let new = wire::MknodIn {
        mode: libc::S_IFREG | 0o400,
        ..Default::default()
    };
    let made = ask(&serving, &kernel, &request(MKNOD, ROOT, &new, b"f", 1));
    let (error, bytes) = made.expect("an answer");
    assert_eq!(error, 0);
    let made = wire::EntryOut::from_wire(&bytes);
    assert_eq!(made.attr.mode, libc::S_IFREG | 0o400);
    let open = request(OPEN, made.nodeid, &BOTH_WAYS, b"", 0);
    assert_eq!(ask(&serving, &kernel, &open), unknown);
}
