//! Somebody else opens a file, writes to it and closes it while an opening is under way.
#![cfg(feature = "sim")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use forebay::device::{Caps, DeviceFile, DeviceStat, Piece};
use forebay::member::reached;
use forebay::session::adopt::Unmanaged;
use forebay::session::standing;
use forebay::sim::device::{SimDisk, SimFile, SimOptions};
use forebay::sys::limits;
use forebay::{Config, File, OpenOptions, Session};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// A device file; something happens once its extents are looked at for the first time: that is the only look that an opening takes
/// without the lock of the file table.
struct LookedAt {
    file: Arc<SimFile>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl DeviceFile for LookedAt {
    fn caps(&self) -> &Caps {
        self.file.caps()
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        self.file.stat()
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        self.file.read_direct(piece, offset)
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.file.write_direct(pieces, offset)
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.file.write_buffered(pieces, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn trim(&self) -> io::Result<()> {
        self.file.trim()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        self.file.allocated_to(offset, end)
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        let allocated = self.file.is_allocated(offset, len);
        let mut meanwhile = self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(happens) = meanwhile.take() {
            happens();
        }
        allocated
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        self.file.wait_in_flight()
    }
}

fn open(session: &Session, device: Arc<dyn DeviceFile>) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let opened = session.open_device(device, "file", &options);
    opened.expect("it can be opened")
}

fn append(session: &Session, file: &Arc<SimFile>, bytes: &[u8]) {
    let file = open(session, Arc::clone(file) as Arc<dyn DeviceFile>);
    let end = file.len().expect("a length");
    file.write_at(bytes, end).expect("written");
    file.close().expect("closed");
}

/// What a file has that `before` was written to, in another session, and `meanwhile` appended to while it was being opened.
fn opened_late(before: &[u8], meanwhile: &[u8]) -> Vec<u8> {
    let disk = SimDisk::new(SimOptions::default());
    let file = disk.create();
    let earlier = Session::open(Config::tiny()).expect("a session");
    append(&earlier, &file, before);
    drop(earlier);
    let session = Session::open(Config::tiny()).expect("a session");
    let (late, again, bytes) = (session.clone(), Arc::clone(&file), meanwhile.to_vec());
    let happens: Meanwhile = Box::new(move || append(&late, &again, &bytes));
    let device = Arc::new(LookedAt {
        file,
        meanwhile: Mutex::new(Some(happens)),
    });
    let file = open(&session, Arc::clone(&device) as Arc<dyn DeviceFile>);
    let happened = device.meanwhile.lock().is_ok_and(|left| left.is_none());
    assert!(happened, "nothing came in between");
    let mut found = vec![0; file.len().expect("a length") as usize];
    let read = file.read_at(&mut found, 0).expect("read");
    assert_eq!(read, found.len());
    found
}

#[test]
fn what_is_appended_while_a_file_is_opened_is_there() {
    let expected = [vec![1; 12_392], vec![2; 12_360]].concat();
    assert_eq!(opened_late(&[1; 12_392], &[2; 12_360]), expected);
}

#[test]
fn what_is_appended_in_its_last_page_is_there() {
    assert_eq!(opened_late(&[7; 10], &[7; 20]), [7; 30]);
}

/// Who comes, and where, whenever a file is being opened.
static COMES: Mutex<Option<(Session, u64)>> = Mutex::new(None);

fn somebody_comes(fd: OwnedFd) -> OwnedFd {
    if let Some((session, hash)) = &*COMES.lock().expect("no panic") {
        reached::begin(session.shared().arena.superblock(), *hash);
    }
    fd
}

const IN_PROCESS: &str = "FOREBAY_TEST_OPENING_IN_VAIN";

/// Sets how long files may be that this process writes.
fn limit_files(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the limit is ours, and only read.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    assert_eq!(set, 0);
    limits::look_at_file_bytes();
}

/// Somebody reaches the file past the engine meanwhile, and nobody may write what it owes, so that it cannot be the kernel's.
#[test]
fn a_file_that_cannot_be_given_to_the_kernel_is_not_left_open() {
    if std::env::var_os(IN_PROCESS).is_some() {
        return opens_in_vain();
    }
    let program = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(program);
    child.args([
        "--exact",
        "a_file_that_cannot_be_given_to_the_kernel_is_not_left_open",
    ]);
    let child = child.arg("--nocapture").env(IN_PROCESS, "1").status();
    assert!(child.expect("a process").success());
}

fn opens_in_vain() {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.session = format!("test-opening-{}", std::process::id());
    let writer = Session::join(config.clone()).expect("a session");
    let reader = Session::join(config).expect("the same");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = writer.open_file(&path, &options).expect("a file");
    let Some(id) = file.core().map(|core| core.id) else {
        eprintln!("left to the kernel: {:?}", file.kernel_reason());
        return;
    };
    file.write_at(b"x", 0).expect("memory");
    let read = std::fs::File::open(&path).expect("the file");
    let meta = read.metadata().expect("numbers");
    let hash = reached::hash(meta.dev(), meta.ino());
    *COMES.lock().expect("no panic") = Some((reader.clone(), hash));
    limit_files(0);
    let adopted = reader.adopt(read.as_fd(), false, somebody_comes);
    limit_files(libc::RLIM_INFINITY);
    *COMES.lock().expect("no panic") = None;
    let reason = adopted.err();
    assert!(matches!(reason, Some(Unmanaged::Failed(_))), "{reason:?}");
    let entry = writer.shared().arena.file_unchecked(id);
    assert_eq!(entry.opens(), 1, "by its writer");
    assert!(writer.shared().is_open_once(id));
    drop(file);
    assert!(!reader.shared().is_open(id));
}

/// A session of this process's, and a file of 100,000 bytes.
fn session_and_file(name: &str) -> (Session, tempfile::TempDir, std::path::PathBuf) {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.session = format!("test-opening-{name}-{}", std::process::id());
    let session = Session::open(config).expect("a session");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("file");
    std::fs::write(&path, [b'.'; 100_000]).expect("written");
    (session, dir, path)
}

fn read_and_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// One program has the file open by the engine's interface as a file of the kernel's, and another one is about to have it managed: they would
/// see two files, and write over each other's bytes.
#[test]
fn nobody_manages_a_file_that_an_interface_has_open_as_the_kernels() {
    let (session, _dir, path) = session_and_file("kernels");
    let options = read_and_write();
    let plain = || {
        let both = std::fs::File::options().read(true).write(true).open(&path);
        both.expect("the file")
    };
    let opened = session.open_unmanaged(plain(), &options);
    let by_kernel = opened.expect("a file of the kernel's");
    assert!(by_kernel.kernel_reason().is_some());
    let other = plain();
    let adopted = session.adopt(other.as_fd(), true, |fd| fd).err();
    assert!(matches!(adopted, Some(Unmanaged::Reached)), "{adopted:?}");
    let second = session.open_file(&path, &options).expect("opened");
    assert!(second.kernel_reason().is_some(), "managed beside it");
    drop(second);
    drop(by_kernel);
    let adopted = session.adopt(other.as_fd(), true, |fd| fd).err();
    assert!(!matches!(adopted, Some(Unmanaged::Reached)), "{adopted:?}");
}

/// A call of the kernel's on the file is under way, in a program of the session, while another one opens it by the engine's interface: the length
/// that the session knew would lack what the call writes.
#[test]
fn a_call_of_the_kernels_is_waited_for_by_those_who_open_a_file() {
    let (session, _dir, path) = session_and_file("calls");
    let options = read_and_write();
    let meta = std::fs::metadata(&path).expect("numbers");
    // Its records are for good: threads' lists of robust mutexes lead into it.
    let arena: &'static _ = Box::leak(Box::new(Arc::clone(&session.shared().arena)));
    let place: &'static standing::Place = Box::leak(Box::default());
    let call = standing::begin(arena, place, (meta.dev(), meta.ino()));
    let opened = session.open_file(&path, &options).expect("opened");
    assert!(opened.kernel_reason().is_some(), "managed beside a call");
    drop(opened);
    drop(call);
    let opened = session.open_file(&path, &options).expect("opened");
    assert_eq!(opened.kernel_reason(), None);
}

/// A keeper takes files over when it begins, and has no guard to show before that: who opens a file just then would have it managed, and nobody
/// would see an outsider come.
#[test]
fn a_session_is_there_once_its_keeper_is_at_work() {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.session = format!("test-opening-keeper-{}", std::process::id());
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let writer = Session::join(config.clone()).expect("a session");
    let mut options = read_and_write();
    options.create(true);
    let files: Vec<_> = (0..100)
        .map(|name| {
            let path = dir.path().join(name.to_string());
            let file = writer.open_file(path, &options).expect("a file");
            file.write_at(b"x", 0).expect("memory");
            file
        })
        .collect();
    let keeper = Session::open(config).expect("the same, kept");
    assert!(keeper.shared().keeps.load(SeqCst), "it is not at work yet");
    drop(files);
}

/// While the keeper's process has a description of a file that is closed, the kernel does not say that nobody else has one, and the next opening looks
/// through all processes.
#[test]
fn a_file_that_is_closed_has_no_description_in_the_keepers_process() {
    let (session, _dir, path) = session_and_file("closed");
    assert!(session.shared().keeps.load(SeqCst));
    let descriptions = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("proc");
        let names = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        names.filter(|name| *name == path).count()
    };
    let options = read_and_write();
    let [one, other] = [(), ()].map(|()| session.open_file(&path, &options).expect("opened"));
    one.write_at(b"bytes", 0).expect("memory");
    drop(one);
    assert_ne!(descriptions(), 0, "somebody writes it still");
    drop(other);
    assert_eq!(descriptions(), 0);
    assert_eq!(std::fs::read(&path).expect("the file")[..5], *b"bytes");
}
