//! Appends that the kernel carries out, beside its own: what there is room for, what one call moves, and where the bytes come to lie.
//!
//! The reference is always the same calls on a file of the standard library.

mod disks;
mod here;

use std::io::{IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use disks::Tmpfs;
use forebay::config::{Route, RouteRule};
use forebay::file::Sought;
use forebay::{Config, File, OpenOptions, Session};

const MIB: usize = 1 << 20;

/// A session that leaves logs to the kernel.
fn session() -> Session {
    let mut config = Config::tiny();
    config.routes = vec![RouteRule {
        glob: "*.log".to_owned(),
        route: Route::Kernel,
    }];
    Session::open(config).expect("a session")
}

fn open(session: &Session, path: &Path, options: &mut OpenOptions) -> File {
    let file = session.open_file(path, options.create(true));
    file.expect("a file")
}

fn plain_log(path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    let file = options.append(true).create(true).open(path);
    file.expect("a plain file")
}

/// Of what is appended, bytes.
const LENGTHS: [usize; 3] = [100_000, 5000, 70_001];

/// What calls have answered.
type Answers = Vec<Result<usize, i32>>;

/// Writes pieces of three lengths in turn until two in a row have failed.
fn until_full(mut write: impl FnMut(&[u8]) -> Result<usize, i32>) -> Answers {
    let mut answers = Answers::new();
    for len in LENGTHS.into_iter().cycle() {
        answers.push(write(&vec![answers.len() as u8; len]));
        if let [.., Err(_), Err(_)] = answers[..] {
            break;
        }
    }
    assert!(answers.len() > 5, "{answers:?}");
    answers
}

fn by_kernel(mut file: std::fs::File) -> Answers {
    until_full(|bytes| file.write(bytes).map_err(|e| e.raw_os_error().unwrap_or(0)))
}

fn errno<T>(done: forebay::Result<T>) -> Result<T, i32> {
    done.map_err(|error| error.errno())
}

/// In halves, as one append.
fn in_halves(file: &File, bytes: &[u8]) -> forebay::Result<usize> {
    let (a, b) = bytes.split_at(bytes.len() / 2);
    file.write_vectored_at(&[IoSlice::new(a), IoSlice::new(b)], 0)
}

/// One call at the end, of which it is checked that it says where the bytes lie.
fn append_some(file: &File, bytes: &[u8]) -> forebay::Result<usize> {
    let end = file.len().expect("a length");
    let (at, written) = file.append_some(bytes)?;
    assert_eq!(at, end, "{written} of {} bytes", bytes.len());
    Ok(written)
}

/// Each way of appending answers as the kernel does, and leaves the same file.
fn compare(session: &Session, dir: &Path, name: &str) {
    let path = dir.join(name);
    let finish = || {
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::remove_file(&path).expect("removed");
        bytes
    };
    let answers = by_kernel(plain_log(&path));
    let bytes = finish();
    let written: usize = answers.iter().flatten().sum();
    assert_eq!(written, bytes.len());
    let parts = answers
        .iter()
        .flatten()
        .filter(|&&part| !LENGTHS.contains(&part));
    assert_eq!(parts.count(), 1, "{answers:?}");
    type Way = fn(&File, &[u8]) -> forebay::Result<usize>;
    let ways: [(&str, Way); 3] = [
        ("write_at", |file, bytes| file.write_at(bytes, 0)),
        ("write_vectored_at", in_halves),
        ("append_some", append_some),
    ];
    for (way, write) in ways {
        let file = open(session, &path, OpenOptions::new().append(true));
        assert_eq!(
            until_full(|bytes| errno(write(&file, bytes))),
            answers,
            "{way}"
        );
        file.close().expect("closed");
        assert!(finish() == bytes, "{way}");
    }
}

/// Where there is room for a part that part is written, and the call says so: the error comes with the next one.
#[test]
fn an_append_to_a_full_disk_says_how_much_it_has_written() {
    let disk = match Tmpfs::new(1) {
        Ok(disk) => disk,
        Err(reason) => return here::skipped(reason),
    };
    compare(&session(), disk.dir(), "a.log");
}

/// Set in the process that may only make short files.
const INSIDE: &str = "FOREBAY__TEST_SHORT_LOGS";
const SHORT: usize = MIB + 1000;

/// How often the kernel has said that a file would become too long.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

/// In a process of its own, since the limit is the process's.
#[test]
fn an_append_up_to_the_limit_says_how_much_it_has_written() {
    if std::env::var_os(INSIDE).is_some() {
        return with_short_files();
    }
    let mut command = std::process::Command::new("prlimit");
    command.arg(format!("--fsize={SHORT}"));
    command.arg(std::env::current_exe().expect("a program"));
    command.args([
        "--exact",
        "an_append_up_to_the_limit_says_how_much_it_has_written",
        "--nocapture",
    ]);
    let status = command.env(INSIDE, "1").status().expect("it runs");
    assert!(status.success(), "{status}");
}

extern "C" fn too_long(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

fn with_short_files() {
    let handler: extern "C" fn(libc::c_int) = too_long;
    // SAFETY: the handler does nothing but count.
    unsafe { libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t) };
    let session = session();
    let dir = here::directory();
    compare(&session, dir.path(), "a.log");
    // The reference and three ways, two calls each that began at the limit. None for those that wrote a part.
    assert_eq!(SIGNALS.swap(0, Ordering::Relaxed), 8);
    let file = open(
        &session,
        &dir.path().join("b.log"),
        OpenOptions::new().write(true),
    );
    let written = file.write_at(&[1; 4096], SHORT as u64 - 100);
    assert_eq!(written.expect("a part"), 100);
    assert_eq!(SIGNALS.swap(0, Ordering::Relaxed), 0);
    compare(&session, dir.path(), "managed");
}

/// Ends the loops of other threads, whatever becomes of the test.
#[derive(Default)]
struct Done(AtomicBool);

impl Done {
    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It is so once the result is dropped.
    fn with_the_scope(&self) -> impl Drop + '_ {
        struct Ending<'a>(&'a AtomicBool);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        Ending(&self.0)
    }
}

/// More than one call of the kernel's moves: others append in between, and none of it is written over.
#[test]
fn an_append_of_more_than_a_call_moves_writes_over_nobody() {
    const LEN: usize = (2 << 30) + 3 * 4096;
    const RECORD: &[u8] = b"a record of somebody else's\n";
    let dir = tempfile::tempdir_in("/dev/shm").expect("memory");
    let path = dir.path().join("a.log");
    let session = session();
    let file = open(&session, &path, OpenOptions::new().write(true));
    // Memory that nobody touches.
    let bytes = vec![0; LEN];
    let done = Done::default();
    let records = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (mut plain, mut records) = (plain_log(&path), 0);
            while !done.is_so() {
                plain.write_all(RECORD).expect("a record");
                records += 1;
            }
            records
        });
        let ending = done.with_the_scope();
        file.append(&bytes).expect("appended");
        drop(ending);
        others.join().expect("records")
    });
    let len = file.len().expect("a length");
    assert_eq!(len, (LEN + records * RECORD.len()) as u64, "{records}");
}

/// An append says where its own bytes lie, whatever else is asked of the file meanwhile.
#[test]
fn an_append_says_where_its_bytes_lie() {
    const RECORDS: u64 = 20_000;
    let dir = here::directory();
    let session = session();
    let path = dir.path().join("a.log");
    let file = open(&session, &path, OpenOptions::new().read(true).write(true));
    let done = Done::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.is_so() {
                let _ = file.seek(0, Sought::Data);
            }
        });
        let _ending = done.with_the_scope();
        for record in 0..RECORDS {
            let at = file.append(&record.to_le_bytes()).expect("appended");
            assert_eq!(
                at,
                record * 8,
                "where it was said to lie, and where it lies"
            );
        }
    });
    let mut last = [0; 8];
    let plain = std::fs::File::open(&path).expect("the file");
    plain
        .read_exact_at(&mut last, (RECORDS - 1) * 8)
        .expect("the last");
    assert_eq!(u64::from_le_bytes(last), RECORDS - 1);
}
