//! What an open file keeps to beside its bytes: its route, the limits of its process, what its calls answer.
#![cfg(feature = "sim")]

mod common;

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay::config::{Route, RouteRule};
use forebay::ids::ThreadId;
use forebay::limits::FILE_BYTES_MAX;
use forebay::member::table;
use forebay::memory::threads;
use forebay::sync::Ordering;
use forebay::{Config, File, OpenOptions, Session};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn open(session: &Session, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    session.open_file(path, &options).expect("a file")
}

#[test]
fn a_glob_without_a_slash_routes_a_sessions_files() {
    let mut config = Config::tiny();
    config.routes = vec![RouteRule {
        glob: "*.log".to_owned(),
        route: Route::Kernel,
    }];
    let session = Session::open(config).expect("a documented glob");
    let dir = directory();
    let log = open(&session, &dir.path().join("x.log"));
    assert_eq!(log.kernel_reason().as_deref(), Some("its route is kernel"));
    let route = |name: &str| session.shared().route_for(&dir.path().join(name)).name();
    assert_eq!((route("x.log"), route("x.logs")), ("kernel", "auto"));
}

/// Set in the process that may only make short files.
const INSIDE: &str = "FOREBAY__TEST_SHORT_FILES";
const SHORT: u64 = 3 << 20;

/// In a process of its own, since the limit is the process's.
#[test]
fn a_limit_on_the_length_of_files_is_an_error_of_the_write() {
    if std::env::var_os(INSIDE).is_some() {
        return with_short_files();
    }
    let mut command = std::process::Command::new("sh");
    let limit = format!("ulimit -S -f {} && exec \"$0\" \"$@\"", SHORT / 512);
    command.arg("-c").arg(limit);
    command.arg(std::env::current_exe().expect("a program"));
    command.args([
        "--exact",
        "a_limit_on_the_length_of_files_is_an_error_of_the_write",
        "--nocapture",
    ]);
    let status = command.env(INSIDE, "1").status().expect("it runs");
    assert!(status.success(), "{status}");
}

fn with_short_files() {
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    let path = dir.path().join("file");
    let file = open(&session, &path);
    if let Some(reason) = file.kernel_reason() {
        return eprintln!("left to the kernel: {reason}");
    }
    let refused = |done: forebay::Result<usize>| done.expect_err("too long").errno();
    assert_eq!(refused(file.write_at(b"x", SHORT)), libc::EFBIG);
    assert_eq!(file.len().expect("a length"), 0);
    // What fits is written, as the kernel does, and the end is where a small write finds it.
    let bytes = vec![1; 1 << 20];
    let near = SHORT - (1 << 19);
    assert_eq!(file.write_at(&bytes, near).expect("the part"), 1 << 19);
    assert_eq!(file.write_at(&[2; 4096], SHORT - 100).expect("part"), 100);
    assert_eq!(file.len().expect("a length"), SHORT);
    assert_eq!(refused(file.write_at(b"x", SHORT)), libc::EFBIG);
    let appended = file.append(&[3; 10]).expect_err("too long");
    assert_eq!(appended.errno(), libc::EFBIG);
    let grown = file.set_len(SHORT + 1).expect_err("too long");
    assert_eq!(grown.errno(), libc::EFBIG);
    file.sync_all().expect("nothing is owed beyond");
    // Another program has made the file longer; the kernel would end this one for a byte beyond.
    file.close().expect("closed");
    let sh = format!(
        "ulimit -S -f unlimited; truncate -s {} {}",
        SHORT * 2,
        path.display()
    );
    let longer = std::process::Command::new("sh").arg("-c").arg(sh).status();
    assert!(longer.expect("it runs").success());
    let file = open(&session, &path);
    assert_eq!(file.write_at(&[4; 100], SHORT - 100).expect("below"), 100);
    assert_eq!(refused(file.write_at(&[4; 100], SHORT)), libc::EFBIG);
    file.set_len(SHORT * 2 - 1).expect("shorter");
    file.sync_all().expect("what is below the limit is written");
}

#[test]
fn a_file_that_runs_as_its_owner_stays_with_the_kernel() {
    use std::os::unix::fs::PermissionsExt;
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    for (mode, stays) in [
        (0o4755, true),
        (0o2755, true),
        (0o2644, false),
        (0o755, false),
    ] {
        let path = dir.path().join(format!("{mode:o}"));
        drop(std::fs::File::create(&path).expect("a file"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let reason = open(&session, &path).kernel_reason();
        let said = reason.as_deref().is_some_and(|r| r.contains("set-user-ID"));
        assert_eq!(said, stays, "{mode:o}: {reason:?}");
    }
}

/// What calls answer that may not do what they are asked, managed or served by the kernel.
#[test]
fn refusals_are_the_kernels() {
    let mut config = Config::tiny();
    config.routes = vec![RouteRule {
        glob: "*.kernel".to_owned(),
        route: Route::Kernel,
    }];
    let session = Session::open(config).expect("a session");
    let dir = directory();
    for name in ["file", "file.kernel"] {
        let path = dir.path().join(name);
        open(&session, &path).write_at(b"bytes", 0).expect("space");
        let only = |options: &mut OpenOptions| session.open_file(&path, options).expect("a file");
        let reads = only(OpenOptions::new().read(true));
        let writes = only(OpenOptions::new().write(true));
        let errno = |error: forebay::Error| error.errno();
        // Whether the range is one comes before whether it may be written.
        assert_eq!(
            reads.punch(0, 0).map_err(errno),
            Err(libc::EINVAL),
            "{name}"
        );
        assert_eq!(reads.punch(0, 1).map_err(errno), Err(libc::EBADF), "{name}");
        assert_eq!(reads.set_len(0).map_err(errno), Err(libc::EINVAL), "{name}");
        assert_eq!(reads.write_at(b"x", 0).map_err(errno), Err(libc::EBADF));
        assert_eq!(writes.read_at(&mut [0], 0).map_err(errno), Err(libc::EBADF));
    }
}

#[test]
fn a_read_beyond_what_a_file_can_hold_finds_nothing() {
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    let file = open(&session, &dir.path().join("file"));
    file.write_at(b"bytes", 0).expect("space");
    assert_eq!(file.kernel_reason(), None);
    for offset in [FILE_BYTES_MAX, FILE_BYTES_MAX + 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(file.read_at(&mut [0; 100], offset).expect("no bytes"), 0);
        let view = file.view(offset..u64::MAX).expect("no bytes");
        assert!(view.is_empty());
    }
}

/// Several buffers through a description that appends are one append: no other comes between them.
#[test]
fn buffers_are_appended_together() {
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    let path = dir.path().join("file");
    let mut options = OpenOptions::new();
    let appends = |options: &mut OpenOptions| {
        let options = options.read(true).append(true).create(true);
        session.open_file(&path, options).expect("a file")
    };
    let file = appends(&mut options);
    let parts = [[1; 700], [2; 700], [3; 700]];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (file, parts) = (appends(&mut OpenOptions::new()), &parts);
            scope.spawn(move || {
                let buffers = parts.each_ref().map(|part| std::io::IoSlice::new(part));
                for _ in 0..400 {
                    assert_eq!(file.write_vectored_at(&buffers, 0).expect("space"), 2100);
                }
            });
        }
    });
    let mut all = vec![0; 4 * 400 * 2100];
    assert_eq!(file.read_at(&mut all, 0).expect("reads"), all.len());
    let whole = parts.concat();
    assert!(all.chunks(2100).all(|record| record == whole));
}

#[test]
fn a_file_given_to_the_kernel_says_why() {
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    let file = open(&session, &dir.path().join("file"));
    if let Some(reason) = file.kernel_reason() {
        return eprintln!("left to the kernel: {reason}");
    }
    file.write_at(b"bytes", 0).expect("space");
    file.to_kernel().expect("flushed");
    let reason = file.kernel_reason().expect("a reason");
    assert_eq!(reason, "given to the kernel: the program asked for it");
    assert_eq!(file.append(b" more").expect("space"), 5);
    assert_eq!(file.len().expect("a length"), 10);
}

/// The device gives space back by cutting the file where it ends: not while others append to it.
#[test]
fn a_file_of_the_kernels_is_not_cut_any_more() {
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    let path = dir.path().join("file");
    let file = open(&session, &path);
    if let Some(reason) = file.kernel_reason() {
        return eprintln!("left to the kernel: {reason}");
    }
    file.write_at(b"bytes", 0).expect("space");
    file.to_kernel().expect("flushed");
    let outside = std::fs::File::options().write(true).open(&path);
    let outside = outside.expect("a file");
    let space = || outside.metadata().expect("a file").blocks();
    assert!(space() * 512 <= 65536, "{} blocks for 5 bytes", space());
    let mode = libc::FALLOC_FL_KEEP_SIZE;
    forebay::sys::file::allocate(outside.as_fd(), mode, 0, 1 << 20).expect("space");
    let before = space();
    file.close().expect("closed");
    assert_eq!(space(), before, "it was cut");
}

fn real_config(name: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 12 << 20;
    config.session = format!("test-{name}-{}", std::process::id());
    // Tests look at what the device has.
    config.trusts_members = true;
    config
}

/// A byte is with the device after `flush_interval`, however often its block is used meanwhile.
#[test]
fn what_is_always_in_use_is_flushed_all_the_same() {
    let interval = Duration::from_millis(100);
    let mut config = real_config("hot");
    config.flush_after = None;
    config.flush_interval = Some(interval);
    let session = Session::open(config).expect("a session");
    let dir = directory();
    let path = dir.path().join("file");
    let file = open(&session, &path);
    if let Some(reason) = file.kernel_reason() {
        return eprintln!("left to the kernel: {reason}");
    }
    let begun = Instant::now();
    let outside = || std::fs::read(&path).expect("the file");
    // How often its two pages have been written.
    let passes = || session.stats().device_write_bytes / (2 * 4096);
    let (mut writes, mut is_seen) = (0u64, false);
    let goes_on = |is_seen: bool| match begun.elapsed() {
        so_far if so_far < interval * 12 => true,
        so_far => so_far < Duration::from_secs(60) && (!is_seen || passes() < 2),
    };
    while goes_on(is_seen) {
        writes += 1;
        file.write_at(&writes.to_le_bytes(), 0).expect("space");
        file.write_at(&writes.to_le_bytes(), 8192).expect("space");
        is_seen = is_seen || outside().len() > 8192;
        std::thread::sleep(Duration::from_millis(1));
    }
    let intervals = begun.elapsed().as_millis() / interval.as_millis();
    let passes = passes();
    assert!(
        is_seen && passes >= 2,
        "no outsider sees bytes that are written again and again: {passes} flushes"
    );
    // Flushed at each write it would be hundreds: what is written is gathered.
    assert!(
        u128::from(passes) * 2 < intervals * 5,
        "{passes} flushes in {intervals} intervals"
    );
}

/// A keeper that cannot be reached is tried again: what it does not have open, nobody writes after this process's death.
#[test]
fn a_file_is_handed_over_once_the_keeper_can_be_reached() {
    let config = real_config("late");
    let keeper = Session::open(config.clone()).expect("a session");
    let client = Session::join(config).expect("the same");
    let arena = client.place().expect("accounts").path.expect("a file");
    let socket = forebay::member::handoff::socket_path(&arena);
    let aside = socket.with_extension("aside");
    let begun = Instant::now();
    while std::fs::rename(&socket, &aside).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no socket");
        std::thread::sleep(Duration::from_millis(1));
    }
    let dir = directory();
    let file = open(&client, &dir.path().join("file"));
    let Some(core) = file.core() else {
        std::fs::rename(&aside, &socket).expect("back");
        return eprintln!("left to the kernel: {:?}", file.kernel_reason());
    };
    let has_it = || keeper.shared().device(core.id).is_some();
    file.write_at(b"bytes", 0).expect("memory");
    assert!(!has_it(), "through a socket that is not there");
    std::fs::rename(&aside, &socket).expect("back");
    let begun = Instant::now();
    while !has_it() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "never tried again"
        );
        file.write_at(b"bytes", 0).expect("memory");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where a recovery looks for a file is the name by which it was opened last.
#[test]
fn a_file_that_is_opened_by_another_name_is_known_by_it() {
    let session = Session::open(Config::tiny()).expect("a session");
    let dir = directory();
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    let first = open(&session, &old);
    let Some(core) = first.core() else {
        return eprintln!("left to the kernel: {:?}", first.kernel_reason());
    };
    first.write_at(b"bytes", 0).expect("memory");
    std::fs::rename(&old, &new).expect("renamed");
    let second = open(&session, &new);
    assert_eq!(second.len().expect("a length"), 5);
    let known = forebay::member::reopen::path_of(core.entry());
    assert_eq!(known, new);
    forebay::member::reopen::reopen(core.entry(), &|fd| fd, None).expect("found again");
}

/// One long write into memory stays within the limits as many short ones do.
#[test]
fn a_long_write_keeps_to_the_limit_on_dirty_bytes() {
    for per_file in [false, true] {
        let mut config = real_config("long");
        config.memory = 64 << 20;
        let limit = 4 << 20;
        if per_file {
            config.file_dirty_bytes_max = Some(limit);
        } else {
            config.dirty_bytes_max = limit;
            config.dirty_background = limit / 2;
        }
        config.route = Route::Scrap;
        let session = Session::open(config).expect("a session");
        let dir = directory();
        let file = open(&session, &dir.path().join("file"));
        if let Some(reason) = file.kernel_reason() {
            return eprintln!("left to the kernel: {reason}");
        }
        let bytes = vec![1; 32 << 20];
        let done = std::sync::atomic::AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    most = most.max(session.stats().dirty_bytes);
                    std::thread::sleep(Duration::from_micros(200));
                }
                most
            });
            assert_eq!(file.write_at(&bytes, 0).expect("space"), bytes.len());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            watch.join().expect("watched")
        });
        assert!(most > 0, "nothing was seen");
        // Its own last block, and what the sum lags behind.
        assert!(
            most <= limit + (1 << 20),
            "{most} bytes dirty, {limit} allowed"
        );
    }
}

/// The facts that `auto` compares are measured.
#[test]
fn copies_into_memory_are_measured() {
    let mut config = real_config("speed");
    config.route = Route::Scrap;
    let session = Session::open(config).expect("a session");
    let dir = directory();
    let file = open(&session, &dir.path().join("file"));
    let Some(core) = file.core() else {
        return eprintln!("left to the kernel: {:?}", file.kernel_reason());
    };
    let device = core.device.caps().device;
    let speeds = || forebay::flush::busy::speeds(session.shared().arena.superblock(), device);
    let before = speeds();
    file.write_at(&[1; 4 << 20], 0).expect("space");
    assert_ne!(speeds().copy_ns_per_mib, before.copy_ns_per_mib);
}

/// One file is served one way in a session, by whatever name or right it is opened.
#[test]
fn a_file_is_not_served_two_ways_at_once() {
    use std::os::unix::fs::PermissionsExt;
    let mut config = Config::tiny();
    config.routes = vec![RouteRule {
        glob: "*.kernel".to_owned(),
        route: Route::Kernel,
    }];
    let session = Session::open(config).expect("a session");
    let dir = directory();
    let read = |file: &File| {
        let mut bytes = [0; 5];
        assert_eq!(file.read_at(&mut bytes, 0).expect("reads"), 5);
        bytes
    };
    for by_name in [true, false] {
        let path = dir.path().join(format!("file-{by_name}"));
        let first = open(&session, &path);
        if let Some(reason) = first.kernel_reason() {
            return eprintln!("left to the kernel: {reason}");
        }
        first.write_at(b"first", 0).expect("memory");
        let second = if by_name {
            let name = dir.path().join("other.kernel");
            std::fs::hard_link(&path, &name).expect("a name");
            open(&session, &name)
        } else {
            // Could not be managed now, had it not been before.
            let mode = std::fs::Permissions::from_mode(0o4755);
            std::fs::set_permissions(&path, mode).expect("a mode");
            open(&session, &path)
        };
        assert_eq!(first.kernel_reason().is_some(), by_name);
        assert_eq!(second.kernel_reason().is_some(), by_name);
        assert_eq!(&read(&second), b"first");
        second.write_at(b"again", 0).expect("space");
        assert_eq!(&read(&first), b"again");
        first.write_at(b"third", 0).expect("space");
        assert_eq!(&read(&second), b"third");
    }
}

/// An I/O engine that is asked for is the one that is got, and commands can say which.
#[test]
fn the_io_engine_is_the_one_that_was_asked_for() {
    use forebay::config::IoEngine;
    for (engine, name) in [
        (IoEngine::Threads, "threads"),
        (IoEngine::IoUring, "io_uring"),
    ] {
        let mut config = real_config(name);
        config.io_engine = engine;
        let session = match Session::open(config.clone()) {
            Ok(session) => session,
            Err(error) => {
                // Only the kernel's refusal excuses.
                assert_eq!(engine, IoEngine::IoUring);
                assert!(
                    error.to_string().contains("io_uring cannot be had"),
                    "{error}"
                );
                continue;
            }
        };
        let begun = Instant::now();
        let arena = &session.shared().arena;
        let number = || {
            arena
                .superblock()
                .io_engine
                .load(std::sync::atomic::Ordering::Relaxed)
        };
        while number() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no keeper");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(forebay::device::queue::NAMES[number() as usize - 1], name);
    }
}

/// Space that is set aside and not used takes the file system two changes to give back.
#[test]
fn a_file_as_long_as_the_two_before_gets_no_more_space_than_it_needs() {
    const BLOCK: u64 = 256 << 10;
    let dir = directory();
    let config = Config {
        route: Route::Scrap,
        ..Config::tiny()
    };
    let session = Session::open(config).expect("a session");
    let mut number = 0;
    let mut life = |len: usize| {
        number += 1;
        let path = dir.path().join(format!("f{number}"));
        let file = open(&session, &path);
        let meta = std::fs::metadata(&path).expect("a name");
        let arena = &session.shared().arena;
        let id = table::find(arena, meta.dev(), meta.ino()).expect("an entry");
        let space = || {
            arena
                .file_unchecked(id)
                .reserved_end
                .load(Ordering::Acquire)
        };
        assert_eq!(file.write_at(&[1; 4000], 0).expect("a write"), 4000);
        let first = space();
        let rest = vec![2; len - 4000];
        assert_eq!(file.write_at(&rest, 4000).expect("a write"), rest.len());
        let second = space();
        file.close().expect("closed");
        let bytes = std::fs::read(&path).expect("bytes");
        assert!(bytes[..4000] == [1; 4000] && bytes[4000..] == rest);
        let held = std::fs::metadata(&path).expect("a name").blocks() * 512;
        assert!(
            held <= (len as u64).next_multiple_of(4096),
            "{held} for {len}"
        );
        (first, second)
    };
    assert_eq!(life(100_000), (BLOCK, BLOCK));
    assert_eq!(life(99_000), (BLOCK, BLOCK));
    assert_eq!(life(100_001), (102_400, 102_400));
    // One that is longer, and one after two that differ.
    assert_eq!(life(200_000), (102_400, BLOCK));
    assert_eq!(life(100_000), (BLOCK, BLOCK));
    // One that is shorter gives back what it has had too much.
    assert_eq!(life(100_000), (BLOCK, BLOCK));
    assert_eq!(life(5_000), (102_400, 102_400));
}

/// One call of the kernel's moves 2 GiB less a page at most.
#[test]
fn more_than_a_call_moves_is_written_whole() {
    let session = Session::open(Config::tiny()).expect("a session");
    let mut options = OpenOptions::new();
    options.write(true);
    let nothing = session.open_file("/dev/null", &options);
    let nothing = nothing.expect("a device");
    // Memory that nobody touches.
    let bytes = vec![0; (2 << 30) + 8192];
    assert_eq!(nothing.write_at(&bytes, 0).expect("written"), bytes.len());
}

thread_local! {
    static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
}

/// Writes when its thread's own values are dropped, once somebody else has had the time to take the thread's slot.
struct Late {
    session: Session,
    file: File,
    dropped: mpsc::Sender<ThreadId>,
    go_on: mpsc::Receiver<()>,
}

impl Drop for Late {
    fn drop(&mut self) {
        self.go_on.recv().expect("somebody else");
        for page in 0..100 {
            let written = self.file.write_at(&[7; 4096], page * 4096);
            assert_eq!(written.expect("written"), 4096);
        }
        let slot = self.session.shared().me().expect("a slot").id;
        self.dropped.send(slot).expect("it listens");
    }
}

/// A value that a thread has had for longer than its slot is dropped after that was given back.
#[test]
fn a_destructor_that_comes_late_has_a_slot_of_its_own() {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 64 << 20;
    config.session = format!("test-late-{}", std::process::id());
    let session = Session::open(config).expect("a session");
    let dir = directory();
    let path = dir.path().join("a");
    let (dropped, is_dropped) = mpsc::channel();
    let (go, go_on) = mpsc::channel();
    let file = open(&session, &path);
    let of_thread = session.clone();
    let (has_begun, begun) = mpsc::channel();
    let ending = std::thread::spawn(move || {
        let late = Late {
            session: of_thread,
            file,
            dropped,
            go_on,
        };
        // Before the thread's first call.
        LATE.set(Some(late));
        LATE.with_borrow(|late| {
            let late = late.as_ref().expect("it is here");
            late.file.write_at(b"x", 0).expect("written");
            let me = late.session.shared().me().expect("a slot");
            let life = threads::life(me.arena, me.id);
            has_begun.send((me.id, life)).expect("it listens");
        });
    });
    let (first, life) = begun.recv().expect("a slot");
    let arena = &session.shared().arena;
    // A thread of the keeper's may have it next.
    while threads::life(arena, first) == life {
        std::thread::yield_now();
    }
    // Somebody else takes the slot that was given back, and keeps it.
    let kept = &session;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mine = kept.shared().me().expect("a slot").id;
            go.send(()).expect("it waits");
            let late = is_dropped.recv().expect("a slot");
            assert_ne!(late, mine, "two threads have one slot");
        });
    });
    ending.join().expect("no panic");
    let another = open(&session, &path);
    let mut back = vec![0; 100 * 4096];
    assert_eq!(another.read_at(&mut back, 0).expect("read"), back.len());
    assert!(back.iter().all(|&byte| byte == 7), "bytes are lost");
}
