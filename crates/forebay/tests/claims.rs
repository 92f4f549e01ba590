//! One session manages a file; who comes second leaves it to the kernel, until the first has let go or has died.

mod here;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay::{Config, File, OpenOptions, Session};

/// The file that a holder opens; set for a test program that is one.
const FILE: &str = "FOREBAY__TEST_CLAIMED";
/// The directory for its arena: it is killed and cannot clean up.
const ARENAS: &str = "FOREBAY__TEST_ARENAS";

/// A session of a name of its own, with an arena of its own.
fn session(name: &str, arenas: &Path) -> Session {
    let name = format!("claims-{name}-{}", std::process::id());
    let set = |builder: forebay::config::Builder, (key, text): (&str, &str)| builder.set(key, text);
    let options = [
        ("memory", "16MiB"),
        ("session", name.as_str()),
        ("arena_dir", arenas.to_str().expect("UTF-8")),
        ("flush_interval", "never"),
        ("flush_after", "never"),
    ];
    let builder = options.into_iter().try_fold(Config::builder(), set);
    let config = builder
        .and_then(|builder| builder.build())
        .expect("a configuration");
    Session::open(config).expect("a session")
}

fn open(session: &Session, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    session.open_file(path, &options).expect("a file")
}

fn is_claimed(file: &File) -> bool {
    file.kernel_reason()
        .is_some_and(|reason| reason.contains("another session"))
}

/// Opens until the session manages the file: a keeper lets go in its own time.
fn open_managed(session: &Session, path: &Path) -> File {
    let begun = Instant::now();
    loop {
        let file = open(session, path);
        match file.kernel_reason() {
            None => return file,
            Some(reason) => assert!(begun.elapsed() < Duration::from_secs(20), "{reason}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Place {
    arenas: tempfile::TempDir,
    files: tempfile::TempDir,
}

/// `None`, with a word about it, where no file is managed.
fn place() -> Option<Place> {
    let place = Place {
        arenas: tempfile::tempdir_in("/dev/shm").expect("a directory"),
        files: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory"),
    };
    let probe = open(
        &session("probe", place.arenas.path()),
        &place.files.path().join("probe"),
    );
    match probe.kernel_reason() {
        None => Some(place),
        Some(reason) => {
            here::skipped(reason);
            None
        }
    }
}

#[test]
fn one_session_manages_a_file_until_it_lets_go() {
    let Some(place) = place() else { return };
    let path = place.files.path().join("file");
    let (one, two) = (
        session("one", place.arenas.path()),
        session("two", place.arenas.path()),
    );
    let first = open(&one, &path);
    assert_eq!(first.kernel_reason(), None);
    let again = open(&one, &path);
    assert_eq!(
        again.kernel_reason(),
        None,
        "a session does not stand in its own way"
    );
    first.write_at(&[1; 50_000], 0).expect("written");
    let second = open(&two, &path);
    assert!(is_claimed(&second), "{:?}", second.kernel_reason());
    drop(second);
    first.close().expect("closed");
    assert!(
        is_claimed(&open(&two, &path)),
        "one description is still there"
    );
    again.close().expect("closed");
    let second = open_managed(&two, &path);
    let mut byte = [0];
    assert_eq!(
        (second.read_at(&mut byte, 49_999).expect("read"), byte),
        (1, [1])
    );
    assert!(is_claimed(&open(&one, &path)));
    // Another name of the file leads to the same claim.
    let link = place.files.path().join("other");
    std::fs::create_dir(&link).expect("a directory");
    let link = link.join("link");
    std::fs::hard_link(&path, &link).expect("a link");
    assert!(is_claimed(&open(&one, &link)));
    drop(second);
    drop(open_managed(&one, &link));
}

/// A process that has the file managed, and waits to be killed.
fn holder(command: &mut Command, place: &Place, path: &Path) -> Child {
    let arenas = place.arenas.path().join("holder");
    std::fs::create_dir(&arenas).expect("a directory");
    let command = command.env(FILE, path).env(ARENAS, &arenas);
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.expect("a holder");
    let said = BufReader::new(child.stdout.take().expect("taken")).lines();
    let holds = said
        .map_while(Result::ok)
        .any(|line| line.contains("holds"));
    assert!(holds, "the holder does not hold");
    child
}

fn holder_arguments() -> (PathBuf, [&'static str; 4]) {
    let program = std::env::current_exe().expect("this program");
    (
        program,
        ["--exact", "the_holder", "--ignored", "--nocapture"],
    )
}

fn kill(mut child: Child) {
    child.kill().expect("killed");
    child.wait().expect("ended");
}

#[test]
fn the_dead_claim_nothing() {
    let Some(place) = place() else { return };
    let path = place.files.path().join("file");
    let one = session("living", place.arenas.path());
    let (program, arguments) = holder_arguments();
    let child = holder(Command::new(program).args(arguments), &place, &path);
    assert!(is_claimed(&open(&one, &path)));
    kill(child);
    // No waiting: the kernel has taken the marks back by the time the death is known.
    assert_eq!(open(&one, &path).kernel_reason(), None);
}

/// Another container has shared memory of its own, and sees the file in the same directory.
#[test]
fn who_shares_the_directory_alone_is_seen() {
    let Some(place) = place() else { return };
    if !is_root() {
        return here::skipped("not root");
    }
    let path = place.files.path().join("file");
    let one = session("outer", place.arenas.path());
    let (program, arguments) = holder_arguments();
    let script = "mount -t tmpfs none /dev/shm && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(program)
        .args(arguments);
    let child = holder(&mut command, &place, &path);
    assert!(is_claimed(&open(&one, &path)));
    kill(child);
    let mine = open(&one, &path);
    assert_eq!(mine.kernel_reason(), None);
}

fn is_root() -> bool {
    forebay::memory::place::dir::user_id() == 0
}

#[test]
#[ignore = "the program that other tests start"]
fn the_holder() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let arenas = PathBuf::from(std::env::var_os(ARENAS).expect("a directory"));
    // In shared memory of its own it is not there yet.
    std::fs::create_dir_all(&arenas).expect("a directory");
    let session = session("holder", &arenas);
    let file = open(&session, Path::new(&path));
    assert_eq!(file.kernel_reason(), None);
    println!("holds");
    std::thread::sleep(Duration::from_secs(60));
}
