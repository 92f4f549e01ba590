//! Directories for what outlives a session, where somebody else has been first.

mod here;

use forebay::memory::place::dir::user_id;
use forebay::memory::place::state::StateDir;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that no system has.
const STRANGER: u32 = 1_987_654_321;

/// A directory of the test's own.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file with something in it, and other ways to it: `link`, a symbolic link, and `name`, a second name.
    fn victim(&self) -> PathBuf {
        let victim = self.path("victim");
        fs::write(&victim, "untouched").expect("a file");
        symlink(&victim, self.path("link")).expect("a link");
        fs::hard_link(&victim, self.path("name")).expect("a second name");
        victim
    }

    /// A directory that all users write to, as `/var/tmp`.
    fn open_to_all(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).expect("its mode");
        path
    }
}

fn refusal(path: &Path) -> String {
    match StateDir::make(path) {
        Ok(made) => panic!("{made:?} is trusted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn directories_are_made_for_their_owner_alone_and_found_again() {
    let scene = Scene::new();
    let path = scene.open_to_all("open").join("a/b/../c");
    for _ in 0..2 {
        let made = StateDir::make(&path).expect("a directory");
        made.append("log")
            .expect("a log")
            .write_all(b"x")
            .expect("written");
    }
    let made = scene.path("open/a");
    assert_eq!(
        fs::metadata(&made).expect("it").permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(fs::read(made.join("c/log")).expect("the log"), b"xx");
    // A home may lie behind a link.
    symlink(&made, scene.path("link")).expect("a link");
    let behind = StateDir::make(&scene.path("link/c")).expect("followed");
    behind.append("log").expect("the log");
}

/// What somebody else has put into a directory that all write to is not gone through, be it a directory or a link.
#[test]
fn what_a_stranger_has_put_there_is_not_trusted() {
    if user_id() != 0 {
        return here::skipped("being two users takes root");
    }
    let scene = Scene::new();
    let open = scene.open_to_all("open");
    let own = scene.path("own");
    fs::create_dir(&own).expect("a directory");
    let theirs = open.join("theirs");
    fs::create_dir(&theirs).expect("a directory");
    chown(&theirs, Some(STRANGER), None).expect("its owner");
    let link = open.join("link");
    symlink(&own, &link).expect("a link");
    lchown(&link, Some(STRANGER), None).expect("its owner");
    for at in [&theirs, &link] {
        let said = refusal(&at.join("kept"));
        assert!(
            said.contains(&STRANGER.to_string()) && said.contains("kept_dir"),
            "{said}"
        );
    }
    // Nor what they have as the last directory, or a link in one of theirs.
    let home = scene.path("home");
    fs::create_dir(&home).expect("a directory");
    symlink(&own, home.join("state")).expect("a link");
    lchown(home.join("state"), Some(STRANGER), None).expect("its owner");
    chown(&home, Some(STRANGER), None).expect("its owner");
    assert!(refusal(&home).contains("belongs"));
    assert!(refusal(&home.join("state/kept")).contains("belongs"));
    assert_eq!(fs::read_dir(&own).expect("a directory").count(), 0);
}

#[test]
fn a_log_is_a_plain_file_with_one_name_and_nothing_else() {
    let scene = Scene::new();
    let dir = StateDir::make(scene.0.path()).expect("a directory");
    let victim = scene.victim();
    let made = Command::new("mkfifo").arg(scene.path("fifo")).status();
    assert!(made.expect("mkfifo").success());
    for name in ["link", "name", "fifo"] {
        assert!(dir.append(name).is_err(), "{name} is no log");
    }
    assert_eq!(fs::read(&victim).expect("a file"), b"untouched");
}

#[test]
fn what_is_made_is_new_whatever_had_the_name() {
    let scene = Scene::new();
    let dir = StateDir::make(scene.0.path()).expect("a directory");
    let victim = scene.victim();
    for name in ["link", "name", "none"] {
        dir.create(name.as_ref())
            .expect("a file")
            .write_all(b"new")
            .expect("written");
        assert_eq!(fs::read(scene.path(name)).expect("a file"), b"new");
        assert!(!scene.path(name).is_symlink());
    }
    assert_eq!(fs::read(&victim).expect("a file"), b"untouched");
}
