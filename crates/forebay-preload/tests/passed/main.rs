//! What programs do to files beside reading and writing them: C programs that are run with the library and without, and must
//! say the same and leave the same files.
//!
//! Each case (see `programs.c`) is a test. The session's keeper is this process.

#[path = "../../../forebay/tests/here/mod.rs"]
mod here;
#[path = "../library/mod.rs"]
mod library;
mod stacks;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, RwLock};
use std::time::{Duration, Instant};

use forebay::sync::Ordering;
use forebay::{Config, Session};

/// The cases, compiled.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passed");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    let new = program.with_extension(std::process::id().to_string());
    let in_c = [
        "programs",
        "handlers",
        "ways",
        "others",
        "relatives",
        "corners",
        "streams",
        "moved",
        "maps",
        "views",
        "confined",
    ];
    let done = Command::new("cc")
        .args(["-O1", "-g", "-w", "-pthread", "-rdynamic", "-o"])
        .arg(&new)
        .args(in_c.map(|name| sources.join(name).with_extension("c")))
        .arg(sources.join("iostreams.cc"))
        .arg("-lstdc++")
        .status();
    assert!(
        done.expect("cc runs").success(),
        "the programs do not compile"
    );
    fs::rename(&new, &program).expect("renamed");
    program
});

/// Built once.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(library::built);

fn config(name: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.trusts_members = true;
    config.memory = 64 << 20;
    config.dirty_bytes_max = 32 << 20;
    config.dirty_background = 8 << 20;
    config.flush_after = Some(Duration::from_millis(500));
    config.flush_interval = Some(Duration::from_secs(5));
    config.session = name.to_owned();
    config
}

/// Held by whoever makes a child.
static SPAWNING: RwLock<()> = RwLock::new(());

/// What a program has said and left.
#[derive(PartialEq)]
struct Outcome {
    status: Option<i32>,
    output: String,
    files: BTreeMap<String, Vec<u8>>,
}

fn run(case: &str, dir: &Path, more: impl FnOnce(&mut Command)) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir(dir).expect("a directory");
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("for anybody");
    let output = fs::File::create(dir.with_extension("output")).expect("a file");
    let mut command = Command::new(&*PROGRAMS);
    command
        .arg(case)
        .arg(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .stdout(output);
    more(&mut command);
    // Between fork and exec a child of this process has the keeper's descriptors, writable ones too: nobody could execute
    // what has just been written.
    let mut alone = None;
    let mut child = if case == "executable" {
        alone = Some(SPAWNING.write());
        command.spawn()
    } else {
        let _with_others = SPAWNING.read();
        command.spawn()
    }
    .expect("the program starts");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(120) {
            child.kill().expect("a child");
            child.wait().expect("a child");
            panic!("{case} does not end; it said: {}", said(dir));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    drop(alone);
    let files = fs::read_dir(dir).expect("readable").map(|entry| {
        let entry = entry.expect("readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, fs::read(entry.path()).expect("readable"))
    });
    Outcome {
        status: status.code(),
        output: said(dir),
        files: files.collect(),
    }
}

fn said(dir: &Path) -> String {
    let said = fs::read(dir.with_extension("output")).unwrap_or_default();
    String::from_utf8_lossy(&said).into_owned()
}

/// Runs a case both ways. The engine must have had bytes of its files.
fn same(case: &str) {
    same_with(case, |_, _| {});
}

/// The same, and no file goes to the kernel.
fn same_by_the_engine(case: &str) {
    same_with(case, |session, dir| {
        let mut left = session.left_since(0);
        left.retain(|file| file.path.starts_with(dir));
        assert!(left.is_empty(), "left to the kernel: {left:?}");
    });
}

/// The same, and the file was mapped from memory; nothing stays pinned.
fn same_by_views(case: &str) {
    same_with(case, by_views);
}

fn by_views(session: &Session, dir: &Path) {
    let mut left = session.left_since(0);
    left.retain(|file| file.path.starts_with(dir));
    assert!(left.is_empty(), "left to the kernel: {left:?}");
    pins_are_gone(session);
}

/// Views come to a limit, and what is beyond is the kernel's.
#[test]
fn views_beyond_their_limits() {
    same_by("views-many", &LIBRARY, None, |session, dir| {
        let mut left = session.left_since(0);
        left.retain(|file| file.path.starts_with(dir));
        assert!(left.len() > 1, "no limit was met: {left:?}");
        pins_are_gone(session);
    });
}

fn pins_are_gone(session: &Session) {
    // A view counts as a read of its range.
    let read = session.stats().read_bytes;
    assert!(read > 100_000, "views of {read} bytes");
    let pinned = &session.shared().arena.superblock().frames_pinned;
    let begun = Instant::now();
    // The keeper looks now and then who is gone.
    while pinned.load(Ordering::Acquire) != 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "pins are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn same_with(case: &str, check: impl FnOnce(&Session, &Path)) {
    same_by(case, &LIBRARY, None, check);
}

/// The suite can fail: pins that stay when their mapping is gone fill the memory, and pins that go while a child has the mapping let others
/// write there.
#[cfg(feature = "sim")]
#[test]
fn mistakes_about_pins_are_found() {
    let program = std::env::current_exe().expect("this program has a name");
    let library = program.with_file_name("libforebay_preload.so");
    let mistakes = [
        ("views-come-and-go", "LeakedPins"),
        ("views-inherited", "EarlyUnpin"),
    ];
    for (case, bug) in mistakes {
        let run = |bug| std::panic::catch_unwind(|| same_by(case, &library, bug, by_views));
        assert!(run(None).is_ok(), "{case} fails by itself");
        // Whether a frame that was freed is somebody else's at once depends on who asks for one.
        let is_found = (0..10).any(|_| run(Some(bug)).is_err());
        assert!(is_found, "{bug} was planted, and nothing went wrong");
    }
}

fn same_by(case: &str, library: &Path, bug: Option<&str>, check: impl FnOnce(&Session, &Path)) {
    let named = std::env::var("FOREBAY_TEST_DIRS").unwrap_or_default();
    let place = named.split(':').find(|dir| !dir.is_empty());
    let temporary = tempfile::tempdir_in(place.unwrap_or(env!("CARGO_TARGET_TMPDIR")));
    let temporary = temporary.expect("a directory");
    fs::set_permissions(
        temporary.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("for anybody");
    // One case may be run by two tests at once.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let name = format!("test-passed-{case}-{}-{number}", std::process::id());
    let _ = &*PROGRAMS;
    let mut config = config(&name);
    if case == "views-many" {
        // A pin for each frame: more than there may be views.
        config.memory = 768 << 20;
    }
    if case == "maps-forked" {
        // A guard finds out by itself who has a file mapped.
        config.coherence = forebay::config::Coherence::Close;
    }
    let session = Session::open(config).expect("a session");
    let plain = run(case, &temporary.path().join("plain"), |_| {});
    assert_eq!(
        plain.status,
        Some(0),
        "without the library: {}",
        plain.output
    );
    if plain.output.contains("not root\n") {
        here::skipped("not root");
    }
    let ours = run(case, &temporary.path().join("ours"), |command| {
        command
            .env_remove("FOREBAY_TEST_DIRS")
            .env("LD_PRELOAD", library)
            .env("FOREBAY_SMALL_FILE_BYTES", "64KiB")
            .env("FOREBAY_LARGE_FILE_BYTES", "0")
            .env("FOREBAY_KERNEL_AFTER_HOLES", "0")
            .env("FOREBAY_MANAGE_STORES", "true")
            .env("FOREBAY_SESSION", &name);
        if let Some(bug) = bug {
            command.env("FOREBAY__SIM_BUG", bug);
        }
    });
    assert_eq!(ours.output, plain.output);
    assert_eq!(ours.status, plain.status);
    assert!(ours.files.keys().eq(plain.files.keys()), "other files");
    for (name, bytes) in &plain.files {
        assert!(ours.files[name] == *bytes, "{name} has other bytes");
    }
    // Whole blocks go straight to the device where that has been quick of late.
    let stats = session.stats();
    let written = (stats.scrap_bytes, stats.direct_bytes);
    assert!(
        written.0 + written.1 > 100_000,
        "the engine has had {written:?} bytes; left to the kernel: {:?}; known: {:?}",
        session.left_since(0),
        session.files()
    );
    check(&session, &temporary.path().join("ours"));
}

macro_rules! cases {
    ($same:ident; $($name:ident: $case:literal;)*) => {
        $(
            #[test]
            fn $name() {
                $same($case);
            }
        )*
    };
}

cases! {
    same_by_the_engine;
    streams_in_every_mode: "streams-operate";
    streams_over_descriptors: "streams-adopt";
    streams_of_cpp: "iostreams";
    streams_that_are_left_open: "streams-left";
    streams_of_threads: "streams-threads";
    streams_lock_as_libcs_do: "streams-lock";
    numbers_of_streams_that_are_gone: "streams-gone";
    the_engine_sends_files: "moved-sendfile";
    the_engine_copies_ranges: "moved-copying";
    the_engine_copies_up_to_the_limit: "moved-limit";
    the_engine_splices: "moved-splice";
    pipes_are_waited_for_as_by_the_kernel: "moved-pipes";
    the_engine_prints: "moved-print";
    flags_of_calls_on_parts: "moved-flags";
    space_of_all_kinds: "moved-space";
    descriptor_tables_are_unshared: "unshared";
}

cases! {
    same_by_views;
    views_are_read: "views-read";
    views_are_written: "views-written";
    views_are_cut: "views-cut";
    views_come_and_go: "views-come-and-go";
    views_are_inherited: "views-inherited";
    views_outlive_their_parent: "views-outlive";
    views_end_at_exec: "views-exec";
    views_move_together: "views-together";
    views_are_given_to_pipes: "views-pipes";
    views_are_sent: "views-sent";
    views_take_the_place_of_maps: "views-over-maps";
    views_are_inherited_by_others: "views-others";
    views_are_of_the_past: "views-old";
    views_at_random: "views-random";
    views_stay_with_who_leaves: "views-leave";
}

cases! {
    same;
    views_end_with_their_files: "views-end";
    streams_one_way: "streams-one-way";
    parts_of_files_come_and_go: "moved-parts";
    files_are_cloned: "moved-clone";
    odd_flags_are_the_kernels: "moved-odd-flags";
    space_of_holes_is_little: "space-of-holes";
    handlers_run_while_the_kernels_files_wait: "kernel-files-wait";
    maps_see_what_is_written: "maps-read";
    private_maps_keep_what_is_theirs: "maps-own";
    maps_move_and_are_cut: "maps-change";
    maps_end_with_their_file: "maps-cut";
    maps_that_are_made_in_a_fork: "maps-forked";
    files_are_opened_in_other_ways: "opened";
    files_without_a_name: "unnamed";
    watched_files: "watched";
    descriptors_are_taken: "taken";
    small_files_are_handed_on_by_vfork: "handed-standard";
    small_files_are_handed_on_by_vfork_at_any_number: "handed-number";
    children_write_after_their_parent_has_closed: "closed-first";
    children_have_a_terminal: "terminal";
    descriptors_are_taken_where_they_are: "taken-there";
    descriptors_are_taken_from_relatives: "taken-from-relatives";
    descriptors_are_duplicated_beyond_the_table: "duplicated-beyond";
    streams_turn_into_others: "streams-turn";
    files_take_the_place_of_streams_files: "streams-redirected";
    handlers_write_to_managed_files: "handlers-write";
    handlers_write_to_small_files: "handlers-small";
    handlers_end_the_wait_for_a_socket: "handlers-send";
    handlers_jump_out: "handlers-jump";
    handlers_hear_all_that_was_queued: "handlers-queue";
    handlers_are_what_they_ever_were: "handlers-as-ever";
    threads_are_cancelled: "cancelled";
    memory_that_is_not_there: "bad-memory";
    threads_are_cancelled_at_any_time: "cancelled-any-time";
    faults_are_blocked: "blocked-faults";
    faults_are_sent: "sent-faults";
    small_files_are_inherited: "small-inherited";
    exec_inherits: "inherited-exec";
    spawn_inherits: "inherited-spawn";
    vfork_inherits: "inherited-vfork";
    vfork_shares_and_leaves_no_trace: "vforks";
    system_inherits: "inherited-system";
    popen_inherits: "inherited-popen";
    logs_of_children_are_standard_for_vforked_programs: "logged-vfork";
    logs_of_children_are_standard_for_programs: "logged-exec";
    logs_of_children_are_standard_for_stdio: "logged-print";
    logs_of_children_are_standard_for_calls: "logged-write";
    logs_of_children_are_standard_for_duplicates: "logged-fcntl";
    logs_of_children_are_standard_for_stdio_here: "logged-print-here";
    logs_of_children_are_standard_for_new_streams: "logged-put-here";
    mappings_see_and_are_seen: "mapped";
    the_kernel_moves_bytes: "transferred";
    stdio_on_the_same_files: "stdio";
    streams_and_mappings_came_first: "earlier";
    descriptors_are_sent: "sent";
    whole_files_are_locked: "locked-whole";
    ranges_are_locked: "locked-range";
    asynchronous_io: "asynchronous";
    raw_system_calls: "raw-calls";
    asynchronous_io_of_the_kernel: "kernel-aio";
    another_place: "other-place";
    another_user: "other-user";
    calls_are_forbidden_by_mode: "confined-strict";
    calls_are_forbidden_by_a_filter_that_answers: "confined-answers";
    calls_are_forbidden_by_a_filter_that_kills: "confined-kills";
    calls_are_forbidden_by_number: "confined-number";
    daemons_go_on: "daemon";
    what_was_written_is_executed: "executable";
}
