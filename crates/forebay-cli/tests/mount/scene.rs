//! A directory or a store that is mounted for one test, and unmounted with it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use forebay_fuse::points::{self, State};

use crate::here::skipped;
use crate::place::{Place, Process, Run};

/// How long anything may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    Store,
}

/// Bytes of a scene's store.
const STORE_SIZE: &str = "96MiB";

pub struct Scene {
    pub place: Place,
    pub kind: Kind,
    /// What is mounted; beside a store a directory like any other.
    pub directory: PathBuf,
    pub store: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    pub process: Option<Process>,
}

/// Why nothing can be mounted here; `None`: it can.
fn why_not() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if let Err(error) = device {
        return Some(format!("/dev/fuse: {error}"));
    }
    if !is_root {
        return (!points::helper_works()).then(|| "fusermount3 is missing".into());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    let may_mount = rights.is_some_and(|rights| rights & 1 << 21 != 0);
    (!may_mount).then(|| "this root may not mount".into())
}

/// Whether anything can be mounted; if not, that is said.
pub fn can_mount() -> bool {
    let why = why_not();
    let can = why.is_none();
    if let Some(why) = why {
        skipped(why);
    }
    can
}

impl Scene {
    /// A mounted directory; `None`, and said so, where none can be had.
    pub fn begin(name: &str, arguments: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let mut scene = Self::unmounted(name);
        scene.mount(arguments);
        Some(scene)
    }

    /// A mounted store, as [`Scene::begin`].
    pub fn begin_store(name: &str, size: &str, arguments: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let mut scene = Self::unmounted(name);
        scene.kind = Kind::Store;
        let made = scene.run(
            &["pmem", "create", "--sparse", "--size", size],
            &scene.store,
        );
        assert_eq!(made.code, 0, "{made:?}");
        scene.mount(arguments);
        Some(scene)
    }

    /// A mounted directory, and then a mounted store: what holds of both.
    pub fn each(name: &str, arguments: &'static [&'static str]) -> impl Iterator<Item = Self> {
        let name = name.to_owned();
        [Kind::Directory, Kind::Store]
            .into_iter()
            .map_while(move |kind| match kind {
                Kind::Directory => Self::begin(&name, arguments),
                Kind::Store => Self::begin_store(&name, STORE_SIZE, arguments),
            })
    }

    /// Both directories.
    pub fn unmounted(name: &str) -> Self {
        let place = Place::new(name);
        let (directory, point) = (place.file("directory"), place.file("point"));
        for path in [&directory, &point] {
            std::fs::create_dir(path).expect("a directory");
        }
        Scene {
            kind: Kind::Directory,
            store: place.file("store"),
            place,
            directory,
            point,
            process: None,
        }
    }

    pub fn mount(&mut self, arguments: &[&str]) {
        let all: Vec<_> = ["mount", "--linger", "0.3"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        let mut command = self.place.forebay(&all);
        command.arg(self.source()).arg(&self.point);
        let child = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("forebay runs");
        let mut process = Process::new(child);
        let mut said = String::new();
        while !said.contains(", session ") && !said.contains(", a store") {
            said = process.first_line();
            let cannot = said.is_empty() || said.contains("cannot");
            assert!(!cannot, "it ends without having mounted: {said}");
        }
        self.process = Some(process);
    }

    pub fn run(&self, arguments: &[&str], path: &Path) -> Run {
        let mut command = self.place.forebay(arguments);
        Run::of(command.arg(path).output().expect("forebay runs"))
    }

    /// Has something mounted by a process that goes on in the background.
    pub fn mount_behind(&self, arguments: &[&str], source: &Path, point: &Path) -> Run {
        let mut command = self.place.forebay(&["mount", "--daemon"]);
        let command = command.args(arguments).arg(source).arg(point);
        Run::of(command.output().expect("forebay runs"))
    }

    /// Whether a store that may be damaged is mounted now. One that is not has been refused with a reason.
    pub fn is_served_behind(&self, what: &str) -> bool {
        let run = self.mount_behind(&[], &self.store, &self.point);
        let says_why = run.code == 1 && run.stderr.contains("forebay: ");
        assert!(run.code == 0 || says_why, "{what}: {run:?}");
        run.code == 0
    }

    /// What is mounted.
    pub fn source(&self) -> &Path {
        match self.kind {
            Kind::Directory => &self.directory,
            Kind::Store => &self.store,
        }
    }

    /// A path below the mount: in the directory itself. Nothing is below a store's: there it is the mount's.
    pub fn below(&self, name: &str) -> PathBuf {
        match self.kind {
            Kind::Directory => self.directory.join(name),
            Kind::Store => self.point.join(name),
        }
    }

    /// A path by the mount, and below it.
    pub fn both(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.point.join(name), self.below(name))
    }

    /// The store, which nobody has mounted, is in order.
    pub fn check_store(&self) {
        let checked = self.run(&["pmem", "check"], &self.store);
        let clean = checked.code == 0 && checked.stdout.contains("all in order");
        assert!(clean, "{checked:?}");
    }

    pub fn state(&self) -> State {
        points::state(&self.point).expect("a state")
    }

    /// Unmounts; the process has to end in good order.
    pub fn end(mut self) {
        self.umount();
        self.await_end(0);
        match self.kind {
            Kind::Directory => self.await_daemon(),
            Kind::Store => self.check_store(),
        }
    }

    /// Unmounts. Programs that other tests start have for a moment what this process has open: that is waited for.
    pub fn umount(&self) {
        wait_until("nobody has anything open", || {
            let run = self.run(&["umount"], &self.point);
            assert!(run.code == 0 || run.stderr.contains("in use"), "{run:?}");
            run.code == 0
        });
    }

    /// Waits for the mount's process, which has to end with a code. Returns the rest of what it has said.
    pub fn await_end(&mut self, code: i32) -> String {
        let process = self.process.take().expect("mounted");
        let (status, said) = process.wait();
        assert_eq!(status.code(), Some(code), "{said}");
        said
    }

    /// Waits until nobody has the store open.
    pub fn await_store(&self) {
        wait_until("the store is closed", || {
            let said = self.run(&["pmem", "info"], &self.store);
            !said.stderr.contains("open in another process")
        });
    }

    /// Waits until the session's daemon has left: everything is in the files.
    pub fn await_daemon(&self) {
        wait_until("the daemon leaves", || !self.place.arena().exists());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Ok(State::Alive | State::Dead) = points::state(&self.point) {
            let _ = points::end(&self.point, true);
        }
    }
}

/// Waits for something that comes sooner or later.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many answers a process has given by rings: its entries, one more for each ring.
fn entries(process: u32) -> u64 {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fdinfo")).expect("descriptors");
    let of_one = |descriptor: std::fs::DirEntry| {
        let about = std::fs::read_to_string(descriptor.path()).ok()?;
        let tail = { about.lines() }.find_map(|line| line.strip_prefix("SqTail:"))?;
        tail.trim().parse::<u64>().ok()
    };
    descriptors.filter_map(|one| of_one(one.ok()?)).sum()
}

/// How many requests a mount's process has answered while this was done: by `/dev/fuse` it writes once for each, and writes nothing else.
pub fn answers(process: u32, act: impl FnOnce()) -> u64 {
    let so_far = || {
        let counts = std::fs::read_to_string(format!("/proc/{process}/io")).expect("counts");
        let mut lines = counts.lines();
        let writes = lines.find_map(|line| line.strip_prefix("syscw: ")?.parse::<u64>().ok());
        writes.expect("a count of writes") + entries(process)
    };
    let before = so_far();
    act();
    // The kernel tells of a last close after the program has gone on.
    let mut count = so_far() - before;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        match so_far() - before {
            more if more > count => count = more,
            _ => return count,
        }
    }
}

/// A file that is closed after it was only read is closed without a question of the kernel's, for which the program would wait.
pub fn closes_without_a_question(process: u32, file: &Path) {
    let times = 50;
    let close = |options: &std::fs::OpenOptions| {
        answers(process, || {
            (0..times).for_each(|_| drop(options.open(file).expect("opened")));
        })
    };
    let mut options = std::fs::OpenOptions::new();
    let read = close(options.read(true));
    let written = close(options.write(true));
    assert!(
        read + times * 9 / 10 <= written,
        "{read} requests where it was read, {written} where it could have been written"
    );
}
