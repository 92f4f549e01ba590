//! Descriptors on their way to the keeper: it has them when it needs them, and a file that is closed before leaves nothing with it.
#![cfg(feature = "sim")]

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::file::settle::Durability;
use forebay::ids::FileId;
use forebay::sys::lock;
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
        assert!(begun.elapsed() < Duration::from_secs(10), "never: {what}");
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
