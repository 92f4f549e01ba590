//! One session manages a file; who comes second leaves it to the kernel, until the first has let go or has died.

mod here;

use std::collections::HashMap;
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

/// How many locks each file has of those that any process has, by device and inode as the kernel writes them.
fn locks() -> HashMap<String, usize> {
    let text = std::fs::read_to_string("/proc/locks").expect("the kernel's locks");
    let mut counts = HashMap::new();
    for line in text.lines().filter(|line| line.contains(" OFDLCK ")) {
        let of = line.split_whitespace().nth(5).expect("whose it is");
        *counts.entry(of.to_owned()).or_default() += 1;
    }
    counts
}

/// The kernel walks a file's list of locks for each call on one, and for each close: so the next opening took the longer, the more were open.
#[test]
fn no_list_of_locks_is_as_long_as_there_are_open_files() {
    const FILES: usize = 900;
    /// Of a program and its keeper in the directory, and of all sessions of this user that tests have just now.
    const MOST: usize = 256;
    let Some(place) = place() else { return };
    let one = session("many", place.arenas.path());
    let before = locks();
    let open_one = |number: usize| {
        let file = open(&one, &place.files.path().join(number.to_string()));
        assert_eq!(file.kernel_reason(), None);
        file
    };
    let files: Vec<_> = (0..FILES).map(open_one).collect();
    let grown = |(of, count): (String, usize)| {
        let had = before.get(&of).copied().unwrap_or(0);
        (count.saturating_sub(had), of)
    };
    let most = locks().into_iter().map(grown).max().expect("locks");
    assert!(most.0 > 0, "nobody has a lock");
    assert!(most.0 <= MOST, "{FILES} files, and locks of one: {most:?}");
    drop(files);
}

/// More than a process marks each by itself in a directory.
const MANY: usize = 80;

/// A session's files of one directory, more of them than have marks of their own, do not keep others out who have the same lists.
#[test]
fn many_files_of_a_directory_keep_out_nobody_of_this_user() {
    let Some(place) = place() else { return };
    let path = |of: &str, number: usize| place.files.path().join(format!("{of}-{number}"));
    let (one, two) = (
        session("several", place.arenas.path()),
        session("others", place.arenas.path()),
    );
    let open_many = |session: &Session, of: &str| -> Vec<File> {
        let files = (0..MANY).map(|number| open(session, &path(of, number)));
        let files: Vec<_> = files.collect();
        let refused = files.iter().find_map(File::kernel_reason);
        assert_eq!(refused, None);
        files
    };
    let ones = open_many(&one, "one");
    // Each by marks of its own kind finds the other's, be they for one file or for several.
    let twos = open_many(&two, "two");
    for number in [0, MANY - 1] {
        assert!(is_claimed(&open(&two, &path("one", number))), "{number}");
        assert!(is_claimed(&open(&one, &path("two", number))), "{number}");
    }
    drop(ones);
    drop(open_managed(&two, &path("one", MANY - 1)));
    drop(twos);
}

/// Another container has lists of its own: it cannot tell which files of the directory are those that have no marks of their own.
#[test]
fn many_files_of_a_directory_are_the_kernels_where_lists_are_not_shared() {
    let Some(place) = place() else { return };
    if !is_root() {
        return here::skipped("not root");
    }
    let one = session("crowd", place.arenas.path());
    let open_one = |number: usize| open(&one, &place.files.path().join(number.to_string()));
    let mut files: Vec<_> = (0..MANY).map(open_one).collect();
    let outside = |path: &Path| holder_in_a_container(&place, path);
    let last = place.files.path().join((MANY - 1).to_string());
    assert!(outside(&last).is_none(), "two sessions manage a file");
    assert!(outside(&place.files.path().join("another")).is_none());
    // What has a mark of its own is told from others as soon as nothing else is there.
    files.truncate(10);
    let begun = Instant::now();
    let another = loop {
        match outside(&place.files.path().join("another")) {
            Some(child) => break child,
            None => assert!(begun.elapsed() < Duration::from_secs(20), "still claimed"),
        }
    };
    assert!(outside(&place.files.path().join("9")).is_none());
    kill(another);
}

/// A process that has the file managed, and waits to be killed. `None`: another session has it.
fn try_holder(command: &mut Command, place: &Place, path: &Path) -> Option<Child> {
    let arenas = place.arenas.path().join("holder");
    std::fs::create_dir_all(&arenas).expect("a directory");
    let command = command.env(FILE, path).env(ARENAS, &arenas);
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.expect("a holder");
    let said = BufReader::new(child.stdout.take().expect("taken")).lines();
    let mut said = said.map_while(Result::ok);
    let answer = said.find(|line| line.contains("holds") || line.contains("claimed"));
    match answer.expect("an answer").contains("holds") {
        true => Some(child),
        false => {
            kill(child);
            None
        }
    }
}

fn holder(command: &mut Command, place: &Place, path: &Path) -> Child {
    try_holder(command, place, path).expect("the holder holds")
}

/// As [`try_holder`], with shared memory of its own.
fn holder_in_a_container(place: &Place, path: &Path) -> Option<Child> {
    let (program, arguments) = holder_arguments();
    let script = "mount -t tmpfs none /dev/shm && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    let begun = command.args(["--mount", "sh", "-c", script]);
    try_holder(begun.arg(program).args(arguments), place, path)
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
    let child = holder_in_a_container(&place, &path).expect("it holds");
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
    let is_claimed = is_claimed(&file);
    assert!(is_claimed || file.kernel_reason().is_none());
    println!("{}", if is_claimed { "claimed" } else { "holds" });
    std::thread::sleep(Duration::from_secs(60));
}
