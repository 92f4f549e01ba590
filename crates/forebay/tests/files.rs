//! What an open file keeps to beside its bytes: its route, the limits of its process, what its calls answer.
#![cfg(feature = "sim")]

mod common;

use std::path::Path;

use forebay::config::{Route, RouteRule};
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
