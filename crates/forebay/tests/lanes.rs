//! Descriptors on their way to the keeper: it has them when it needs them, and a file that is closed before leaves nothing with it.
#![cfg(feature = "sim")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay::file::settle::Durability;
use forebay::ids::FileId;
use forebay::member::handoff::socket_path;
use forebay::memory::files::HURRY;
use forebay::memory::threads::stop_file;
use forebay::sync::Ordering;
use forebay::sys::{lock, socket};
use forebay::{Config, File, OpenOptions, Session};

/// A keeper, and a client that has a connection of its own.
struct Pair {
    keeper: Session,
    client: Session,
    dir: tempfile::TempDir,
}

impl Pair {
    fn new(name: &str, configure: impl Fn(&mut Config)) -> Self {
        let mut config = Config::builder().build().expect("defaults");
        // Tests open files for the session as the preload library does.
        config.trusts_members = true;
        config.memory = 32 << 20;
        config.session = format!("test-lanes-{name}-{}", std::process::id());
        configure(&mut config);
        let keeper = Session::open(config.clone()).expect("a session");
        let pair = Pair {
            keeper,
            client: Session::join(config).expect("the same"),
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory"),
        };
        // The keeper takes office a moment before it listens.
        let begun = Instant::now();
        while !pair.lives_unseen("first") && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        pair
    }

    /// A new file with a byte in it. `None`: no file here is managed.
    fn file(&self, name: &str) -> Option<(File, FileId)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = self.client.open_file(self.dir.path().join(name), &options);
        let file = file.expect("a file");
        let Some(core) = file.core() else {
            eprintln!("left to the kernel: {:?}", file.kernel_reason());
            return None;
        };
        let id = core.id;
        file.write_at(b"x", 0).expect("memory");
        Some((file, id))
    }

    /// Whether the keeper has the file's descriptors, without being made to look for them.
    fn keeper_has(&self, id: FileId) -> bool {
        self.keeper.shared().open_files().contains(&id)
    }

    fn lives_unseen(&self, name: &str) -> bool {
        self.file(name).is_none_or(|(file, id)| {
            let unseen = !self.keeper_has(id);
            drop(file);
            unseen && !self.keeper_has(id) && is_nobodys(&self.dir.path().join(name))
        })
    }
}

/// Whether nobody has a file open: then the only description of it is the one that is made here.
fn is_nobodys(path: &Path) -> bool {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    lock::is_only_description(file.expect("the file").as_fd())
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Most of a hundred: the keeper looks into lanes now and then.
#[test]
fn a_file_that_is_closed_soon_leaves_nothing_with_the_keeper() {
    let pair = Pair::new("soon", |_| ());
    let unseen = (0..100).filter(|i| pair.lives_unseen(&i.to_string()));
    let unseen = unseen.count();
    assert!(unseen > 50, "{unseen} of 100");
    for i in 0..100 {
        let path = pair.dir.path().join(i.to_string());
        soon("nobody's", || is_nobodys(&path));
        assert_eq!(std::fs::metadata(path).expect("the file").len(), 1);
    }
}

#[test]
fn the_keeper_takes_what_stays_open() {
    let pair = Pair::new("stays", |_| ());
    let Some((file, id)) = pair.file("file") else {
        return;
    };
    soon("taken", || pair.keeper_has(id));
    drop(file);
    assert!(!pair.keeper_has(id), "its close has been heard of");
    // A process that another test has just forked has this one's descriptors.
    soon("nobody's", || is_nobodys(&pair.dir.path().join("file")));
}

/// Files that are found to be missing are looked for at once, and it writes them though they have lost their names.
#[test]
fn the_keeper_writes_what_lies_in_a_lane() {
    let pair = Pair::new("writes", |_| ());
    let Some((file, id)) = pair.file("file") else {
        return;
    };
    let path = pair.dir.path().join("file");
    let other = std::fs::File::open(&path).expect("another description");
    std::fs::remove_file(&path).expect("removed");
    assert!(pair.keeper.shared().device(id).is_some());
    let settled = pair.keeper.settle_where(Durability::Written, |_| true);
    settled.expect("written");
    assert_eq!(other.metadata().expect("its length").len(), 1);
    drop(file);
}

/// There are fewer lanes than files.
#[test]
fn many_files_at_once_are_all_the_keepers() {
    let pair = Pair::new("many", |_| ());
    for round in 0..3 {
        let files: Vec<_> = (0..20)
            .filter_map(|i| pair.file(&format!("{round}-{i}")))
            .collect();
        for (_, id) in &files {
            assert!(pair.keeper.shared().device(*id).is_some(), "{id:?}");
        }
        let ids: Vec<_> = files.iter().map(|(_, id)| *id).collect();
        drop(files);
        for id in ids {
            assert!(!pair.keeper_has(id), "{id:?} after its close");
        }
    }
    let inodes = std::fs::read_dir(pair.dir.path()).expect("the directory");
    for entry in inodes.flatten() {
        soon("nobody's", || is_nobodys(&entry.path()));
        assert_eq!(entry.metadata().expect("a file").size(), 1);
    }
}

/// The one that has come since knows nothing of the reader, and what the client has handed over to it stays with it.
#[test]
fn a_reader_of_an_earlier_keepers_is_closed_beside_files_of_todays() {
    let mut pair = Pair::new("readers", |_| ());
    std::fs::write(pair.dir.path().join("read"), b"x").expect("a file");
    let read = std::fs::File::open(pair.dir.path().join("read")).expect("the file");
    let Ok(reader) = pair.client.adopt(read.as_fd(), false, |fd| fd) else {
        return;
    };
    pair.keeper.stop_keeping();
    pair.keeper.keep().expect("threads");
    let epoch = &pair.client.shared().arena.superblock().keeper_epoch;
    soon("another keeper", || {
        epoch.load(Ordering::Acquire) > 1 && pair.client.has_keeper()
    });
    // It takes office a moment before it listens.
    std::thread::sleep(Duration::from_millis(100));
    let Some((written, id)) = pair.file("written") else {
        return;
    };
    let me = pair.client.shared().me().expect("a slot");
    reader.close(me, &AtomicU32::new(0)).expect("closed");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        assert!(pair.client.shared().is_open(id), "still open");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(written);
    assert!(!pair.client.shared().is_open(id));
}

/// A client of the keeper's that says what it likes, and ends where it likes.
struct Raw {
    socket: OwnedFd,
    session: u64,
}

impl Raw {
    fn of(pair: &Pair) -> Self {
        let arena = pair.keeper.arena_path().expect("a file");
        Raw {
            socket: socket::connect(&socket_path(arena)).expect("the keeper listens"),
            session: pair.keeper.shared().session_name_word(),
        }
    }

    /// One that the keeper has a file from.
    fn with(pair: &Pair, file: FileId) -> Self {
        let raw = Raw::of(pair);
        raw.manages(&pair.client, file);
        raw.is_answered();
        raw
    }

    /// Hands a file over by the descriptors that a client has of it.
    fn manages(&self, client: &Session, file: FileId) {
        const MANAGE: u32 = 1;
        let device = client.shared().device(file).expect("a device file");
        let (direct, buffered) = device.descriptors().expect("a real one");
        let mut message = [0; 16];
        message[..4].copy_from_slice(&file.0.to_le_bytes());
        message[4..8].copy_from_slice(&MANAGE.to_le_bytes());
        message[8..].copy_from_slice(&self.session.to_le_bytes());
        let sent = socket::send_at_once(self.socket.as_fd(), &message, &[direct, buffered]);
        sent.expect("room");
    }

    /// Waits until there is an answer, and leaves it there.
    fn is_answered(&self) {
        soon("answered", || !socket::is_empty(self.socket.as_fd()));
    }
}

/// It has closed the file as far as the session's table goes, and others have it open.
#[test]
fn who_is_killed_before_he_has_said_what_he_has_closed_takes_nothing_from_others() {
    let pair = Pair::new("killed", |_| ());
    let Some((file, id)) = pair.file("file") else {
        return;
    };
    let raw = Raw::with(&pair, id);
    drop(raw);
    let entry = pair.client.shared().arena.file_unchecked(id);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        assert!(pair.client.shared().is_open(id), "still open");
        assert_eq!(entry.writers(), 1, "still written");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(file);
    assert!(!pair.client.shared().is_open(id));
}

/// Who reads has it open all the same, so that the entry's count of descriptions says nothing.
#[test]
fn a_writer_that_has_died_beside_a_reader_counts_as_none() {
    let pair = Pair::new("beside", |_| ());
    let Some((file, id)) = pair.file("file") else {
        return;
    };
    let read = std::fs::File::open(pair.dir.path().join("file")).expect("the file");
    let reader = pair.keeper.adopt(read.as_fd(), false, |fd| fd);
    let reader = reader.expect("it is managed");
    let shared = pair.keeper.shared();
    let entry = shared.arena.file_unchecked(id);
    assert_eq!((entry.writers(), entry.readers()), (1, 1));
    // The kernel takes the lock of who dies; the entry counts on.
    pair.client
        .shared()
        .take_open(pair.client.shared().opened(id), true);
    soon("no writer", || entry.writers() == 0);
    assert!(shared.is_open(id), "by its reader");
    let me = shared.me().expect("a slot");
    reader.close(me, &AtomicU32::new(0)).expect("closed");
    assert!(!shared.is_open(id));
    soon("nobody's", || entry.opens() == 0);
    drop(file);
}

/// Who writes has it open all the same, and may leave the file to the keeper when it closes it.
#[test]
fn a_reader_that_has_died_beside_a_writer_counts_as_none() {
    let pair = Pair::new("read-beside", |_| ());
    let Some((file, id)) = pair.file("file") else {
        return;
    };
    let shared = pair.client.shared();
    let device = shared.device(id).expect("a device file");
    let handed = AtomicU32::new(0);
    assert!(shared.hand_over(id, device.as_ref(), &handed));
    let read = std::fs::File::open(pair.dir.path().join("file")).expect("the file");
    let reader = pair.keeper.adopt(read.as_fd(), false, |fd| fd);
    let reader = reader.expect("it is managed");
    let entry = shared.arena.file_unchecked(id);
    assert_eq!((entry.writers(), entry.readers(), entry.opens()), (1, 1, 2));
    let unites = || shared.ask_to_unite(id, handed.load(Relaxed));
    assert!(!unites(), "beside a reader");
    // The kernel takes the lock of who dies; the entry counts on.
    pair.keeper
        .shared()
        .take_open(pair.keeper.shared().opened(id), false);
    soon("no reader", || entry.readers() == 0);
    assert_eq!((entry.writers(), entry.opens()), (1, 1), "its writer");
    assert!(unites(), "by its writer alone");
    assert!(shared.is_open_once(id));
    drop(reader);
    drop(file);
    soon("nobody's", || entry.opens() == 0);
}

/// A client has ended while the keeper was stopped: answers cannot be sent, and some have not been fetched.
#[test]
fn what_a_client_has_said_before_its_end_is_heard() {
    let pair = Pair::new("heard", |_| ());
    let Some((held, held_id)) = pair.file("held") else {
        return;
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let path = pair.dir.path().join("file");
    let file = pair.client.open_file(path, &options).expect("a file");
    let id = file.core().expect("managed").id;
    let device = pair.keeper.shared().device(held_id).expect("in a lane");
    let raw = Raw::of(&pair);
    raw.manages(&pair.client, held_id);
    raw.is_answered();
    std::thread::scope(|scope| {
        // The keeper waits until nobody has the file's descriptors.
        scope.spawn(|| drop(held));
        soon("closed", || !pair.keeper_has(held_id));
        raw.manages(&pair.client, id);
        raw.manages(&pair.client, id);
        assert!(!pair.keeper_has(id), "not before");
        drop(raw);
        drop(device);
    });
    soon("taken", || pair.keeper_has(id));
    drop(file);
}

/// The keeper answers others while what the dead has left is written.
#[test]
fn nobody_waits_while_the_files_of_the_dead_are_written() {
    let pair = Pair::new("dead", |_| ());
    let Some((file, id)) = pair.file("file") else {
        return;
    };
    let raw = Raw::with(&pair, id);
    let shared = pair.client.shared();
    let entry = shared.arena.file_unchecked(id);
    assert_ne!(entry.owed_pages.load(Ordering::Acquire), 0);
    // Nobody can write it.
    let stop = stop_file(shared.me().expect("a slot"), id).expect("nobody is at work on it");
    drop(raw);
    std::thread::sleep(Duration::from_millis(100));
    let other = Raw::of(&pair);
    other.manages(&pair.client, id);
    // A keeper that wrote it before it answers would do so only after the stop.
    other.is_answered();
    drop(stop);
    soon("written", || entry.owed_pages.load(Ordering::Acquire) == 0);
    drop(file);
}

/// A sync by a descriptor that may only read is the keeper's work, and no other question waits for it.
#[test]
fn nobody_waits_while_much_is_written_for_a_reader() {
    // A keeper that gets no time may be asked to write the rest before it has heard of anything else.
    let is_free = (0..5).any(|turn| is_answered_while_asked_to_write(turn) != Some(false));
    assert!(is_free, "it hears of nothing until it has written");
}

/// Whether the keeper answers somebody else while it is asked to write much that nobody can write. `None`: nothing is managed here.
fn is_answered_while_asked_to_write(turn: u32) -> Option<bool> {
    let pair = Pair::new(&format!("much-{turn}"), |config| {
        // Nothing is written that nobody asks for.
        (config.flush_after, config.flush_interval) = (None, None);
        (config.memory, config.route) = (128 << 20, forebay::config::Route::Scrap);
        (config.dirty_background, config.dirty_bytes_max) = (100 << 20, 100 << 20);
    });
    let (file, id) = pair.file("file")?;
    for page in 0..4500 {
        file.write_at(&[7; 4096], page * 4096).expect("memory");
    }
    let shared = pair.client.shared();
    let entry = shared.arena.file_unchecked(id);
    let stop = stop_file(shared.me().expect("a slot"), id).expect("nobody is at work on it");
    let owed = entry.owed_pages.load(Ordering::Acquire);
    assert!(owed >= 4096, "{owed} pages");
    let is_free = std::thread::scope(|scope| {
        let asks = scope.spawn(|| shared.ask_to_flush(id));
        // It has been asked, unless nobody is asked in this way.
        let begun = Instant::now();
        while entry.flags.load(Ordering::Acquire) & HURRY == 0
            && begun.elapsed() < Duration::from_secs(1)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        let other = Raw::of(&pair);
        other.manages(&pair.client, id);
        let is_answered = || !socket::is_empty(other.socket.as_fd());
        soon("an answer, or nobody waits for the keeper any more", || {
            is_answered() || asks.is_finished()
        });
        let is_free = is_answered() && !asks.is_finished();
        drop(stop);
        let is_written = asks.join().expect("no panic");
        let owed = entry.owed_pages.load(Ordering::Acquire);
        assert!(!is_free || is_written && owed == 0, "{owed} pages are left");
        is_free
    });
    drop(file);
    Some(is_free)
}

const IN_PROCESS: &str = "FOREBAY_TEST_SHORT_OF_NUMBERS";

/// Other threads of the keeper's process take every number that comes free, and give them back a moment later.
#[test]
fn no_file_is_lost_where_others_take_numbers() {
    if std::env::var_os(IN_PROCESS).is_some() {
        return lives_with_thieves();
    }
    let program = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(program);
    child.args(["--exact", "no_file_is_lost_where_others_take_numbers"]);
    let child = child.arg("--nocapture").env(IN_PROCESS, "1").status();
    assert!(child.expect("a process").success());
}

fn lives_with_thieves() {
    const FILES: usize = 300;
    let pair = Pair::new("thieves", |_| ());
    let few = libc::rlimit {
        rlim_cur: 256,
        rlim_max: 256,
    };
    // SAFETY: the limit is ours, and only read.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
    assert_eq!(set, 0);
    let null = std::fs::File::open("/dev/null").expect("it is always there");
    for i in 0..FILES {
        let Some((file, id)) = pair.file(&i.to_string()) else {
            return;
        };
        // By its name it would be found again.
        std::fs::remove_file(pair.dir.path().join(i.to_string())).expect("removed");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Relaxed) {
                        let all = std::iter::from_fn(|| null.try_clone().ok());
                        let mut all: Vec<_> = all.collect();
                        for _ in 0..64 {
                            // A few come free, and are taken at once.
                            all.truncate(all.len().saturating_sub(3));
                            std::thread::yield_now();
                            all.extend(std::iter::from_fn(|| null.try_clone().ok()));
                        }
                    }
                });
            }
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(5) && !pair.keeper_has(id) {
                let _ = pair.keeper.shared().device(id);
            }
            ended.store(true, Relaxed);
        });
        assert!(
            pair.keeper.shared().device(id).is_some(),
            "file {i} is lost"
        );
        drop(file);
    }
}
