//! Files that are renamed while the session has them: whoever takes over from a keeper that has died finds them by their names.

mod here;

use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{Config, OpenOptions, Session};

const PATIENCE: Duration = Duration::from_secs(60);

fn session(name: &str) -> Session {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 16 << 20;
    config.dirty_bytes_max = 8 << 20;
    config.dirty_background = 4 << 20;
    config.flush_after = Some(Duration::from_secs(3600));
    config.flush_interval = Some(Duration::from_secs(3600));
    config.session = format!("test-{name}-{}", std::process::id());
    Session::open(config).expect("a session")
}

/// Waits until the session knows its only file by this name.
fn await_name(session: &Session, name: &Path) {
    let begun = Instant::now();
    loop {
        let files = session.files();
        assert_eq!(files.len(), 1, "{files:?}");
        if files[0].path == name {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{files:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn names_are_followed() {
    let dir = here::directory();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    for path in [&old, &new] {
        std::fs::create_dir(path).expect("a directory");
    }
    let session = session("renames");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session
        .open_file(old.join("file"), &options)
        .expect("a file");
    if file.kernel_reason().is_some() {
        here::skipped("no file system that is managed");
        return;
    }
    assert_eq!(file.write_at(&[7; 5000], 0).expect("written"), 5000);
    await_name(&session, &old.join("file"));
    std::fs::rename(old.join("file"), old.join("other")).expect("renamed");
    await_name(&session, &old.join("other"));
    // A directory above it.
    let moved = new.join("moved");
    std::fs::rename(&old, &moved).expect("renamed");
    await_name(&session, &moved.join("other"));
    // Another file gets the name that it has had; it keeps its own.
    std::fs::create_dir(&old).expect("a directory");
    std::fs::write(old.join("other"), b"mine").expect("another file");
    std::fs::remove_file(moved.join("other")).expect("unlinked");
    std::thread::sleep(Duration::from_millis(1200));
    await_name(&session, &moved.join("other"));
    drop(file);
    assert_eq!(std::fs::read(old.join("other")).expect("a file"), b"mine");
}
