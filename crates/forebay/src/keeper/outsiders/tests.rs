//! Those that wait, as the guard's two threads see them.

use std::cell::RefCell;
use std::fs::File as Plain;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::{Guard, OPENED, SETTLE, Waiting, arrivals, guard_of, locked, mend};
use crate::config::{Coherence, Config};
use crate::device::{DeviceFile, RealFile};
use crate::file::{File, OpenOptions};
use crate::flush::busy;
use crate::ids::FileId;
use crate::keeper::desk;
use crate::keeper::unfinished;
use crate::member::again;
use crate::member::reached;
use crate::member::shared::Shared;
use crate::member::{given, table};
use crate::memory::files::{CLOSING, EXCEEDING};
use crate::memory::threads;
use crate::session::Session;
use crate::session::adopt::Unmanaged;
use crate::sim::device::{Before, Call, CallKind, SimDisk, SimFile, SimOptions, Verdict, Wrapped};
use crate::sync::Ordering::{AcqRel, Acquire, Release};
use crate::sys::fanotify::{self, Group};
use crate::sys::inotify::Watcher;
use crate::sys::stat;

/// Longer than anything here takes, and shorter than an outsider is made to wait at most.
const LONG: Duration = Duration::from_secs(20);

/// A session whose arena is a file, which nobody outside can come to.
fn session(name: &str, coherence: Coherence) -> Session {
    let config = Config {
        heap_backed: false,
        coherence,
        session: format!("unit-{name}-{}", std::process::id()),
        ..Config::tiny()
    };
    Session::open(config).expect("a session")
}

/// `None`: those that open files cannot be made to wait here.
fn gate() -> Option<Group> {
    Group::new()
        .inspect_err(|why| forebay_model::skipped(format!("no permission events: {why}")))
        .ok()
}

/// A disk whose files have numbers that nothing has which other programs have mapped: files of a tmpfs have small ones.
fn disk() -> SimDisk {
    SimDisk::new(SimOptions {
        first_inode: 1 << 40,
        ..SimOptions::default()
    })
}

/// A session that makes outsiders wait, and a disk.
fn strict(name: &str) -> Option<(Session, SimDisk)> {
    gate()?;
    Some((session(name, Coherence::Strict), disk()))
}

/// A guard that sees to nobody by itself.
fn guard(shared: &Shared, gate: Option<Group>) -> Guard {
    let bell = Watcher::new().expect("a watcher");
    Guard::over(&shared.arena, gate, bell).expect("a guard")
}

/// A program that waits for a file, of which the kernel knows nothing.
fn waits(file: FileId, inode: (u64, u64)) -> Waiting {
    let nothing: OwnedFd = Plain::open("/dev/null").expect("nothing").into();
    let event = fanotify::Event {
        file: nothing,
        thread: 0,
    };
    Waiting {
        event: arrivals::Told {
            event,
            inode: None,
            record: None,
        },
        file,
        inode,
        since: Instant::now(),
    }
}

/// The guard's thread looks through those that wait while the worker lets some of them in.
#[test]
fn nobody_who_waits_is_out_of_sight() {
    let session = session("sight", Coherence::Close);
    let shared = session.shared();
    let Some(gate) = gate() else { return };
    let guard = guard(shared, Some(gate));
    let ended = AtomicBool::new(false);
    let mine = FileId(1);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                guard.admit(shared, |_| false);
            }
        });
        let seen = (0..20_000).all(|_| {
            locked(&guard.waiting).push(waits(mine, (0, 0)));
            let is_seen = guard.has_waiting();
            guard.admit(shared, |who| who.file == mine);
            is_seen && !guard.has_waiting()
        });
        ended.store(true, Relaxed);
        seen
    });
    assert!(seen, "somebody who waits was not seen");
}

/// More has happened than the kernel keeps: the guard looks for those that have come meanwhile, and hears what is said afterwards.
#[test]
fn what_the_kernel_has_dropped_is_looked_for() {
    let session = session("dropped", Coherence::Close);
    let shared = session.shared();
    let guard = guard(shared, None);
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a file"));
    for file in &files {
        assert!(guard.watch(file.as_file().as_fd()));
    }
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events");
    let most: usize = most.expect("a limit").trim().parse().expect("a number");
    // In turn: the kernel tells of openings in a row once.
    for file in files.iter().cycle().take(most + 100) {
        Plain::open(file.path()).expect("opened");
    }
    let begun = Instant::now();
    while !guard.missed.load(Relaxed) && begun.elapsed() < Duration::from_secs(60) {
        guard.hear(shared);
    }
    assert!(
        guard.missed.load(Relaxed),
        "nobody knows that some are missed"
    );
    let rest = guard.bell.happened();
    assert!(rest.is_err(), "it has not heard the rest: {rest:?}");
}

/// A device that takes nothing while it is told not to.
struct Slow(Mutex<Receiver<()>>);

impl Before for Slow {
    fn before(&self, call: &Call) -> Verdict {
        if matches!(call.kind, CallKind::WriteBuffered | CallKind::ReadDirect) {
            let go_on = locked(&self.0);
            // Until the other end is dropped.
            while go_on.recv().is_ok() {}
        }
        Verdict::Proceed
    }
}

/// A managed file of a device that is looked at before each call.
fn watched_file(
    session: &Session,
    disk: &SimDisk,
    before: Arc<impl Before + 'static>,
) -> (File, FileId, Arc<SimFile>) {
    let inner = disk.create();
    let device = Arc::new(Wrapped::new(Arc::clone(&inner), before));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "watched", &options);
    let caps = inner.caps();
    let id = table::find(&session.shared().arena, caps.device, caps.inode);
    (file.expect("a file"), id.expect("a known file"), inner)
}

/// A managed file of a device that takes nothing by way of the kernel's cache, and gives nothing, until the sender is dropped.
fn slow_file(session: &Session, disk: &SimDisk) -> (File, FileId, Arc<SimFile>, Sender<()>) {
    let (sender, receiver) = channel();
    let slow = Arc::new(Slow(Mutex::new(receiver)));
    let (file, id, inner) = watched_file(session, disk, slow);
    (file, id, inner, sender)
}

fn is_kernels(shared: &Shared, file: FileId) -> bool {
    let reason = &shared.arena.file_unchecked(file).kernel_reason;
    reason.load(Acquire) != 0
}

/// A guard of a session that is at work.
fn guard_at_work(session: &Session) -> Arc<Guard> {
    let shared = session.shared();
    in_the_end(LONG, || shared.keeps.load(Relaxed));
    guard_of(shared).expect("a guard")
}

fn comes(shared: &Shared, guard: &Guard, file: FileId) {
    let inode = shared.arena.file_unchecked(file).numbers();
    locked(&guard.waiting).push(waits(file, inode));
    guard.ask(inode, file, SETTLE);
}

fn is_awaited(guard: &Guard, file: FileId) -> bool {
    locked(&guard.waiting).iter().any(|who| who.file == file)
}

/// How long it takes.
fn in_the_end(most: Duration, is_so: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < most, "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

/// What a file has of its last page goes by way of the kernel's cache, and a ragged page is read before: no write of the engine's is in flight
/// meanwhile.
#[test]
fn who_waits_for_a_slow_device_waits() {
    let Some((session, disk)) = strict("slow") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    // The second one comes when the worker is writing the file already, for which nobody has waited.
    for is_written in [false, true] {
        let (file, id, inner, slow) = slow_file(&session, &disk);
        file.write_at(&[7; 100], 0).expect("written");
        if is_written {
            guard.ask(shared.arena.file_unchecked(id).numbers(), id, OPENED);
            in_the_end(LONG, || threads::is_anybody_at_device(&shared.arena, id));
        }
        comes(shared, &guard, id);
        std::thread::sleep(Duration::from_millis(2500));
        let waits = is_awaited(&guard, id);
        drop(slow);
        assert!(waits, "it has been let in to what the device has");
        in_the_end(LONG, || !is_awaited(&guard, id));
        assert!(is_kernels(shared, id));
        assert_eq!(inner.contents(), [7; 100]);
    }
}

/// ... and other programs keep the device busy meanwhile, which write other files.
#[test]
fn who_waits_for_a_program_that_stands_still_waits_for_a_second() {
    let mut all = Vec::new();
    // A busy machine makes one wait for longer.
    for turn in 0..4 {
        let Some([took, others]) = beside_who_stands_still(&format!("still-{turn}")) else {
            return;
        };
        if took < Duration::from_secs(2) && others < Duration::from_secs(4) {
            return;
        }
        all.push([took, others]);
    }
    panic!("they wait for longer: {all:?}");
}

/// How long somebody waits for a file that a program stands still with, and somebody for another file.
fn beside_who_stands_still(name: &str) -> Option<[Duration; 2]> {
    let (session, disk) = strict(name)?;
    let files = [(); 2].map(|()| slow_file(&session, &disk));
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    for (file, ..) in &files {
        file.write_at(&[7; 100], 0).expect("written");
    }
    let [held, free] = files.each_ref().map(|(_, id, ..)| *id);
    // No device is slow.
    let files = files.map(|(file, ..)| file);
    let device = shared.arena.file_unchecked(held).device.load(Acquire);
    let flight = busy::begin(shared.arena.superblock(), device, 4096);
    let waits = std::thread::scope(|scope| {
        let (done, over) = channel::<()>();
        scope.spawn(move || {
            let operation = shared.me().expect("a slot").enter(held).ok();
            assert!(operation.is_some());
            let _ = over.recv();
        });
        in_the_end(LONG, || {
            crate::memory::threads::is_in_the_way(shared.me().expect("a slot"), held)
        });
        comes(shared, &guard, held);
        std::thread::sleep(Duration::from_millis(200));
        comes(shared, &guard, free);
        let took = in_the_end(LONG, || !is_awaited(&guard, held));
        let others = took + in_the_end(LONG, || !is_awaited(&guard, free));
        assert!(is_kernels(shared, free), "nobody has seen to it");
        drop(done);
        [took, others]
    });
    drop(files);
    busy::end(shared.arena.superblock(), device, flight);
    Some(waits)
}

/// Counts how often space beyond the end is given back.
#[derive(Default)]
struct Trims(AtomicUsize);

impl Before for Trims {
    fn before(&self, call: &Call) -> Verdict {
        if matches!(call.kind, CallKind::Trim) {
            self.0.fetch_add(1, Relaxed);
        }
        Verdict::Proceed
    }
}

/// The device gives space back by cutting the file where it ends.
#[test]
fn who_has_come_in_is_not_cut_off() {
    let Some((session, disk)) = strict("cut-off") else {
        return;
    };
    let shared = session.shared();
    let guard = guard_at_work(&session);
    let me = shared.me().expect("a thread");
    let by = |reason: u32, id: FileId| {
        let (device, inode) = shared.arena.file_unchecked(id).numbers();
        let given = session.give_to_kernel(device, inode, reason);
        given.expect("it can be written");
    };
    type Give<'a> = &'a dyn Fn(FileId);
    let gives: [(&str, bool, Give<'_>); 5] = [
        ("nobody is in", true, &|id| by(given::BY_PROGRAM, id)),
        ("somebody has come", false, &|id| by(given::REACHED, id)),
        ("somebody was there", false, &|id| by(given::OUTSIDER, id)),
        ("somebody waits", true, &|id| comes(shared, &guard, id)),
        ("somebody was found", false, &|id| {
            mend::give_to_kernel(shared, me, &guard, id);
        }),
    ];
    for (case, is_cut, give) in gives {
        let trims = Arc::new(Trims::default());
        let (file, id, _) = watched_file(&session, &disk, Arc::clone(&trims));
        file.write_at(&[1; 100_000], 0).expect("written");
        give(id);
        in_the_end(LONG, || is_kernels(shared, id));
        assert_eq!(trims.0.load(Relaxed) != 0, is_cut, "{case}");
    }
}

/// Where nobody is made to wait somebody may be appending to a file that is given to the kernel.
#[test]
fn who_appends_where_nobody_waits_is_not_cut_off() {
    let session = session("notify-cut", Coherence::Notify);
    let shared = session.shared();
    let me = shared.me().expect("a thread");
    let guard = guard_at_work(&session);
    let disk = disk();
    let trims = Arc::new(Trims::default());
    let (file, id, _) = watched_file(&session, &disk, Arc::clone(&trims));
    file.write_at(&[1; 100_000], 0).expect("written");
    file.sync_all().expect("synced");
    mend::give_to_kernel(shared, me, &guard, id);
    assert!(is_kernels(shared, id));
    assert_eq!(trims.0.load(Relaxed), 0);
}

/// A process that is about to keep lets everybody in, and its programs mark files by it already.
#[test]
fn who_comes_before_the_keeper_keeps_is_looked_for() {
    let Some(gate) = gate() else { return };
    let session = session("early", Coherence::Close);
    let joined = Session::join(session.shared().config.clone()).expect("a session");
    let shared = joined.shared();
    assert!(!shared.keeps.load(Relaxed));
    let guard = guard(shared, Some(gate));
    let file = tempfile::NamedTempFile::new().expect("a file");
    assert!(guard.watch(file.as_file().as_fd()));
    let mut outsider = std::process::Command::new("cat")
        .arg(file.path())
        .spawn()
        .expect("cat");
    let mut members = super::members::Members::new(true);
    in_the_end(LONG, || guard.gate.as_ref().is_some_and(has_somebody));
    guard.look_at_arrivals(shared, &mut members);
    assert!(outsider.wait().expect("an end").success());
    assert!(guard.missed.load(Relaxed), "nobody looks for it");
    assert_eq!(locked(&guard.arrived).len(), 1);
}

fn has_somebody(gate: &Group) -> bool {
    fanotify::count_waiting(gate.as_fd().as_raw_fd()).is_ok_and(|waiting| waiting != 0)
}

/// The mark of a file is taken away for a closer's lease while a newcomer has looked and marked the file, and has not entered it yet.
#[test]
fn a_file_that_is_entered_beside_a_closer_is_watched() {
    let Some(gate) = gate() else { return };
    let keeping = session("beside", Coherence::Close);
    // Of this process's as well, and no guard's thread runs by it.
    let session = Session::join(keeping.shared().config.clone()).expect("a session");
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session
        .open_file(dir.path().join("a"), &options)
        .expect("a file");
    let plain = Plain::open(dir.path().join("a")).expect("opened");
    let seen = stat::stat(plain.as_fd()).expect("stat");
    let shared = session.shared();
    let Some(id) = table::find(&shared.arena, seen.device, seen.inode) else {
        return forebay_model::skipped("files of this file system are not managed");
    };
    // Nobody makes a stand-in for this one, so that the closer waits for a while just before the mark is taken away.
    let guard = Arc::new(guard(shared, Some(gate)));
    assert!(guard.watch(plain.as_fd()));
    shared.set_guard(Some(Arc::clone(&guard) as _));
    // As a program asks the keeper to (`member::handoff::UNITE`).
    let mut message = [0; 16];
    message[..4].copy_from_slice(&id.0.to_le_bytes());
    message[4] = 6;
    let hash = reached::hash(seen.device, seen.inode);
    let superblock = shared.arena.superblock();
    let before = std::thread::scope(|scope| {
        let closer = scope.spawn(|| desk::heed(shared, &message));
        in_the_end(LONG, || guard.standing.is_wanted());
        let before = reached::look(superblock, hash);
        assert!(guard.watch(plain.as_fd()));
        assert!(!closer.is_finished(), "it does not wait");
        assert!(closer.join().expect("no panic"), "it has not been done");
        before
    });
    let is_marked = guard
        .gate
        .as_ref()
        .is_some_and(|gate| gate.forget(plain.as_fd()).is_ok());
    assert!(
        is_marked || before.has_grown(superblock, hash),
        "it is the newcomer's, and unwatched"
    );
    shared.set_guard(None);
    drop(file);
}

/// A file of 100,000 bytes of a real file system, and how the session has it open.
fn real_file(session: &Session) -> Option<(tempfile::NamedTempFile, File, FileId)> {
    let plain = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(plain.path(), [b'.'; 100_000]).expect("written");
    let seen = stat::stat(plain.as_file().as_fd()).expect("stat");
    // Nobody has it open but the session.
    let path = plain.into_temp_path();
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_file(&path, &options).expect("a file");
    let Some(id) = table::find(&session.shared().arena, seen.device, seen.inode) else {
        forebay_model::skipped("files of this file system are not managed");
        return None;
    };
    let plain = Plain::open(&path).expect("opened");
    Some((tempfile::NamedTempFile::from_parts(plain, path), file, id))
}

/// As [`real_file`], of a file that the keeper alone has open for the session.
fn kept_file(session: &Session) -> Option<(tempfile::NamedTempFile, FileId, Arc<dyn DeviceFile>)> {
    let shared = session.shared();
    let (plain, file, id) = real_file(session)?;
    drop(file);
    again::adopt(shared, |of, _| of == id);
    Some((plain, id, shared.device(id).expect("a device file")))
}

fn outsider(path: &std::path::Path, script: &str) {
    let mut shell = std::process::Command::new("sh");
    let status = shell.args(["-c", script, "sh"]).arg(path).status();
    assert!(status.expect("a shell").success());
}

/// The one program that has a file open is killed in a read, and an outsider comes before anybody has seen that.
#[test]
fn what_an_outsider_makes_of_a_file_of_the_dead_stays() {
    for (script, wanted) in [
        ("echo more >> \"$1\"", 100_005),
        ("echo anew > \"$1\"", 5),
        ("truncate -s 200000 \"$1\"", 200_000),
    ] {
        let Some((session, _)) = strict("dead") else {
            return;
        };
        let Some((plain, file, id)) = real_file(&session) else {
            return;
        };
        let (shared, me) = (session.shared(), session.shared().me().expect("a thread"));
        file.read_at(&mut [0; 1000], 0).expect("read");
        drop(file);
        assert!(!mend::is_known(shared, id), "an outsider would wait");
        outsider(plain.path(), script);
        let made = std::fs::read(plain.path()).expect("read");
        // As the repair does.
        let entry = shared.arena.file_unchecked(id);
        entry.flags.fetch_or(EXCEEDING, AcqRel);
        again::adopt(shared, |of, _| of == id);
        unfinished::finish_unused_files(shared, me);
        assert!(!entry.lacks_length(), "it has been finished");
        let left = std::fs::read(plain.path()).expect("read");
        assert!(
            left == made && left.len() == wanted,
            "{script}: {}",
            left.len()
        );
        let mut options = OpenOptions::new();
        let again = session.open_file(plain.path(), options.read(true));
        let mut seen = vec![0; made.len() + 1];
        let count = again.expect("a file").read_at(&mut seen, 0).expect("read");
        assert!(seen[..count] == made, "{script}");
    }
}

/// What a lease has told of who has a file open is true as long as the file is kept open: its number may be another file's then.
#[test]
fn who_is_alone_is_so_while_the_file_is_open() {
    let Some((session, _)) = strict("alone") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let Some((plain, id, device)) = kept_file(&session) else {
        return;
    };
    let path = plain.into_temp_path();
    let inode = shared.arena.file_unchecked(id).numbers();
    in_the_end(LONG, || guard.take_over(device.as_ref(), inode));
    assert!(guard.is_alone(inode));
    shared.drop_device(id);
    assert!(!guard.is_alone(inode));
    drop(path);
}

/// A closed file that a reader has open owes nothing any more, and somebody from outside waits for it: the keeper's round must leave the time of the
/// close to the worker, which gives it before it lets that one in.
#[test]
fn the_time_of_a_close_is_not_lost_between_the_keeper_and_the_worker() {
    const CLOSED_NS: u64 = 1_600_000_000_000_000_000;
    let Some((session, _)) = strict("time") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let Some((plain, id, device)) = kept_file(&session) else {
        return;
    };
    let path = plain.into_temp_path();
    // With a description of its own, that cannot write.
    let joined = Session::join(shared.config.clone()).expect("a session");
    let opened = Plain::open(&path).expect("opened");
    let reader = joined.adopt(opened.as_fd(), false, |fd| fd);
    let reader = reader.expect("managed");
    let (entry, me) = (
        shared.arena.file_unchecked(id),
        shared.me().expect("a thread"),
    );
    entry.closed_ns.store(CLOSED_NS, Release);
    entry.flags.fetch_or(CLOSING, AcqRel);
    guard.note_arrival(shared.arena.superblock(), entry.numbers());
    assert!(shared.is_open(id) && entry.writers() == 0);
    unfinished::finish_if_unused(shared, me, id, device);
    assert!(
        entry.flags.load(Acquire) & CLOSING != 0,
        "{}",
        entry.describe()
    );
    outsider(&path, "cat \"$1\" > /dev/null");
    let seen = std::fs::metadata(&path).expect("a file").modified();
    let seen = seen.expect("a time").duration_since(UNIX_EPOCH);
    assert_eq!(seen.expect("a time").as_nanos(), u128::from(CLOSED_NS));
    assert_eq!(entry.flags.load(Acquire) & CLOSING, 0);
    drop((reader, opened));
}

/// A file that was left to the keeper once more has a mark in a lease's place.
#[test]
fn a_mark_without_a_lease_stays() {
    let Some((session, _)) = strict("mark") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let Some((plain, id, device)) = kept_file(&session) else {
        return;
    };
    let inode = shared.arena.file_unchecked(id).numbers();
    assert!(guard.watch(plain.as_file().as_fd()));
    // Somebody has it open, so there is no lease to be had.
    assert!(!guard.take_over(device.as_ref(), inode));
    assert!(guard.is_watched(inode) && !guard.is_alone(inode));
    let gate = guard.gate.as_ref().expect("a gate");
    assert!(
        gate.forget(plain.as_file().as_fd()).is_ok(),
        "it had a mark"
    );
}

/// Somebody has been let in before the first program has looked whether anybody has come, and a second one comes.
#[test]
fn a_second_program_enters_before_the_first_has_looked() {
    let Some((session, _)) = strict("second") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let (path, opened, _) = unmanaged();
    let seen = shared.watch(opened.as_fd()).expect("seen");
    assert!(!seen.outside);
    // Nobody manages the file.
    let mut outside = Plain::options().append(true).open(&path).expect("opened");
    guard.note_arrival(shared.arena.superblock(), seen.inode);
    let device = RealFile::reopen(opened.as_fd()).expect("a device");
    let core = session
        .manage_device_unless(Arc::new(device), &path, &|| shared.has_come(&seen), true)
        .expect("entered");
    assert!(core.is_some(), "on the last try");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let second = session.open_file(&path, &options).expect("a file");
    second.append(b"member\n").expect("appended");
    outside.write_all(b"outside\n").expect("appended");
    session
        .give_to_kernel(seen.inode.0, seen.inode.1, given::OUTSIDER)
        .expect("given");
    let all = std::fs::read(&path).expect("read");
    assert_eq!(&all[100_000..], b"member\noutside\n");
    drop(core);
}

thread_local! {
    /// What happens while this thread opens a file for the engine, once.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn meanwhile(fd: OwnedFd) -> OwnedFd {
    if let Some(happens) = MEANWHILE.take() {
        happens();
    }
    fd
}

/// A file that nobody manages, open to be managed, and its numbers.
fn unmanaged() -> (tempfile::TempPath, Plain, (u64, u64)) {
    let plain = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(plain.path(), [b'.'; 100_000]).expect("written");
    let path = plain.into_temp_path();
    let opened = Plain::options().read(true).write(true).open(&path);
    let opened = opened.expect("opened");
    let inode = stat::inode(opened.as_fd()).expect("numbers");
    (path, opened, inode)
}

/// Two programs of the session open a file at once: the guard takes its mark away for the one, while the other begins to manage it, which
/// marks it again. Nobody has come, so it is managed.
#[test]
fn a_file_that_loses_its_mark_meanwhile_is_managed_with_another_one() {
    let Some((session, _)) = strict("unmarked") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let (path, opened, inode) = unmanaged();
    let arena = Arc::clone(&shared.arena);
    let copy = opened.try_clone().expect("a duplicate");
    MEANWHILE.set(Some(Box::new(move || {
        let gate = guard.gate.as_ref().expect("it holds");
        gate.forget(copy.as_fd()).expect("it was marked");
        reached::unmarked(arena.superblock(), reached::hash(inode.0, inode.1));
    })));
    let adopted = session.adopt(opened.as_fd(), true, meanwhile);
    let adopted = adopted.expect("managed");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let second = session.open_file(&path, &options).expect("a file");
    assert_eq!(second.kernel_reason(), None);
    second.append(b"member").expect("appended");
    let mut seen = std::process::Command::new("tail");
    let seen = seen.arg("-c7").arg(&path).output().expect("it runs");
    assert_eq!(seen.stdout, b".member", "an outsider is held up");
    drop((second, adopted));
}

/// A program outside opens the file meanwhile: it is seen at the next look.
#[test]
fn who_comes_while_a_file_begins_to_be_managed_has_it_with_the_kernel() {
    let Some((session, _)) = strict("comes") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let (path, opened, inode) = unmanaged();
    let (arena, name) = (Arc::clone(&shared.arena), path.to_path_buf());
    let (sender, outside) = channel();
    MEANWHILE.set(Some(Box::new(move || {
        guard.note_arrival(arena.superblock(), inode);
        let mut sleeps = std::process::Command::new("sleep");
        sleeps.arg("1000").stdin(Plain::open(name).expect("opened"));
        sender.send(sleeps.spawn().expect("it runs")).expect("kept");
    })));
    let adopted = session.adopt(opened.as_fd(), true, meanwhile).err();
    let mut outside = outside.recv().expect("somebody has come");
    outside.kill().expect("killed");
    outside.wait().expect("ended");
    let by = matches!(adopted, Some(Unmanaged::Reached | Unmanaged::Outside));
    assert!(by, "{adopted:?}");
    assert_eq!(table::find(&shared.arena, inode.0, inode.1), None);
}

/// The worker is about to give space back, and waits for a program that stands in the way, when an outsider that has waited long enough is let in.
#[test]
fn who_was_let_in_early_is_not_cut_off() {
    let Some((session, disk)) = strict("early-cut") else {
        return;
    };
    let (shared, guard) = (session.shared(), guard_at_work(&session));
    let trims = Arc::new(Trims::default());
    let (file, id, _) = watched_file(&session, &disk, Arc::clone(&trims));
    file.write_at(&[1; 100_000], 0).expect("written");
    file.sync_all().expect("synced");
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let me = shared.me().expect("a thread");
            let operation = me.enter(id).expect("an operation");
            begun.store(true, Relaxed);
            while !ended.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(operation);
        });
        in_the_end(LONG, || begun.load(Relaxed));
        comes(shared, &guard, id);
        in_the_end(LONG, || !is_awaited(&guard, id));
        ended.store(true, Relaxed);
    });
    // The next that comes has the file given to the kernel at last.
    comes(shared, &guard, id);
    in_the_end(LONG, || is_kernels(shared, id));
    assert_eq!(trims.0.load(Relaxed), 0);
}
