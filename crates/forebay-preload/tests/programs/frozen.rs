//! Outsiders do not wait for what stands still in the session: a keeper that is frozen with its cgroup, a program in the middle of a call;
//! nor for what a keeper that is killed might leave.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::Session;
use forebay::config::Coherence;
use forebay::member::table;

use forebay_model::{SplitMix64, fresh_seed};

use crate::disks::Disk;
use crate::here;
use crate::keepers::{KEEPER, Keeper};
use crate::outsiders::{LONG, Member, SHORT, in_the_end, is_managed, outsider, reads, strict};
use crate::scene::Scene;
use crate::sys::pattern;

/// A cgroup that can be frozen, thaws when this is dropped, and goes away once it is empty.
struct Group {
    dir: PathBuf,
    is_old: bool,
}

impl Group {
    fn new(name: &str) -> Result<Self, String> {
        let tops = [
            ("/sys/fs/cgroup/unified", false),
            ("/sys/fs/cgroup", false),
            ("/sys/fs/cgroup/freezer", true),
        ];
        let can = |top: &str| Path::new(top).join("cgroup.procs").is_file();
        let Some((top, is_old)) = tops.into_iter().find(|(top, _)| can(top)) else {
            return Err("no hierarchy of cgroups is mounted".into());
        };
        let dir = Path::new(top).join(format!("forebay-test-{name}-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Group { dir, is_old })
    }

    fn set(&self, frozen: bool) {
        let (file, text) = match (self.is_old, frozen) {
            (false, true) => ("cgroup.freeze", "1"),
            (false, false) => ("cgroup.freeze", "0"),
            (true, true) => ("freezer.state", "FROZEN"),
            (true, false) => ("freezer.state", "THAWED"),
        };
        let _ = fs::write(self.dir.join(file), text);
    }

    fn is_frozen(&self) -> bool {
        let (file, wanted) = match self.is_old {
            false => ("cgroup.events", "frozen 1"),
            true => ("freezer.state", "FROZEN"),
        };
        fs::read_to_string(self.dir.join(file)).is_ok_and(|text| text.contains(wanted))
    }

    fn processes(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }
}

/// What is frozen and killed may not end before it is thawed.
struct Thaw<'a>(&'a Group);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        while fs::remove_dir(&self.dir).is_err() && begun.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn nobody_waits_for_a_keeper_that_is_frozen_with_its_cgroup() {
    let Some(mut scene) = strict("frozen") else {
        return;
    };
    let group = match Group::new("frozen") {
        Ok(group) => group,
        Err(why) => return here::skipped(format!("no cgroup can be made ({why})")),
    };
    let keeper = Keeper::in_group(&mut scene, Coherence::Strict, &group.processes());
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    let session = Session::join(crate::scene::config(&scene.name)).expect("a session");
    keeper.stop_at_rest(&session);
    let _thaw = Thaw(&group);
    group.set(true);
    // It is frozen now, and not stopped by a signal any more once it is thawed.
    keeper.signal(libc::SIGCONT);
    in_the_end("it is frozen", || group.is_frozen());
    let mut outsider = Command::new("sh")
        .args(["-c", "exec 3<>a; echo open; cat"])
        .current_dir(scene.dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("an outsider");
    let mut lines = BufReader::new(outsider.stdout.take().expect("output")).lines();
    // Should it wait all the same, it waits no longer than this.
    let (done, over) = std::sync::mpsc::channel::<()>();
    let late = std::thread::scope(|scope| {
        let group = &group;
        let watch = scope.spawn(move || {
            let late = over.recv_timeout(LONG).is_err();
            if late {
                group.set(false);
            }
            late
        });
        let begun = Instant::now();
        assert_eq!(lines.next().expect("a line").expect("text"), "open");
        println!("an outsider waited for {:?}", begun.elapsed());
        let _ = done.send(());
        watch.join().expect("a watch")
    });
    assert!(!late, "it has waited for the keeper");
    group.set(false);
    // Whoever came in meanwhile is found.
    let is_managed = || {
        let files = session.files().into_iter();
        let mut files = files.filter(|file| file.path == scene.path("a"));
        files.any(|file| file.kernel_reason == 0 && file.is_open)
    };
    in_the_end("the outsider is found", || !is_managed());
    let bytes = fs::read(scene.path("a")).expect("a file");
    assert!(bytes == pattern(1, SHORT));
    drop(outsider.stdin.take());
    outsider.wait().expect("an end");
    member.ends();
    drop(session);
    drop(keeper);
}

/// The first one who comes is let in to what the device has, once it is clear that the keeper does nothing.
#[test]
fn what_an_outsider_appends_while_the_keeper_is_frozen_stays() {
    let Some(mut scene) = strict("cold") else {
        return;
    };
    let group = match Group::new("cold") {
        Ok(group) => group,
        Err(why) => return here::skipped(format!("no cgroup can be made ({why})")),
    };
    let keeper = Keeper::relieved_in_group(&mut scene, &group.processes());
    let mut member = Member::of(&scene);
    member.does("open first");
    member.does("write 1 10");
    member.does("log a");
    member.does("text inside");
    let session = Session::join(crate::scene::config(&scene.name)).expect("a session");
    let _thaw = Thaw(&group);
    let is_at_rest = || {
        group.set(true);
        in_the_end("it is frozen", || group.is_frozen());
        let is_at_rest = keeper.is_at_rest(&session);
        if !is_at_rest {
            group.set(false);
        }
        is_at_rest
    };
    in_the_end("it is frozen at rest", is_at_rest);
    let (_, took) = reads(&scene, "first");
    println!("an outsider waited for {took:?}");
    assert!(took < LONG, "{took:?}");
    keeper.await_relief();
    let append = outsider(&scene, "sh", &["-c", "echo outside >> a"]).status();
    assert!(append.expect("a shell").success());
    member.does("text later");
    group.set(false);
    in_the_end("nobody stands in", || keeper.reliefs().is_empty());
    member.ends();
    assert_eq!(reads(&scene, "a").0, b"inside\noutside\nlater\n");
    drop((session, keeper));
}

/// Whether the kernel knows of a lease on a file.
fn is_leased(path: &Path) -> bool {
    let inode = format!(":{} ", fs::metadata(path).expect("a file").ino());
    let locks = fs::read_to_string("/proc/locks").expect("locks");
    locks
        .lines()
        .any(|line| line.contains("LEASE") && line.contains(&inode))
}

/// A keeper that is stopped while it writes what a close has left to it, under a lease.
fn nobody_waits_for_its_lease(coherence: Coherence) {
    let (mut leased, begun) = (0, Instant::now());
    while begun.elapsed() < Duration::from_secs(120) {
        let mut scene = Scene::new("leased", 0);
        let keeper = Keeper::with(&mut scene, coherence);
        let mut member = Member::of(&scene);
        // Its first lease.
        member.does("open a");
        (0..200).for_each(|_| _ = member.does(&format!("write 1 {SHORT}")));
        member.does("close");
        keeper.stop();
        if is_leased(&scene.path("a")) {
            leased += 1;
            let (_, took) = reads(&scene, "a");
            println!("an outsider waited for {took:?}");
            assert!(took < LONG, "{took:?}");
        }
        keeper.signal(libc::SIGCONT);
        // Nothing is lost by it.
        in_the_end("all is written", || {
            reads(&scene, "a").0 == pattern(1, SHORT).repeat(200)
        });
        member.ends();
        if leased == 3 {
            return;
        }
    }
    panic!("no keeper had a lease when it was stopped, or few: {leased}");
}

#[test]
fn nobody_waits_for_the_lease_of_a_keeper_that_is_stopped() {
    if strict("leased").is_some() {
        nobody_waits_for_its_lease(Coherence::Strict);
    }
    nobody_waits_for_its_lease(Coherence::Notify);
}

/// A program that is stopped in the middle of a call is in the way of whoever would give the file to the kernel. Another one keeps the device
/// busy meanwhile.
#[test]
fn nobody_waits_for_a_program_in_the_middle_of_a_call() {
    let Some(scene) = strict("middle") else {
        return;
    };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    let shared = scene.session.as_ref().expect("a session").shared();
    let seen = scene.path("a").metadata().expect("a file");
    let file = table::find(&shared.arena, seen.dev(), seen.ino()).expect("a known file");
    let mut busy = Member::of(&scene);
    busy.does("open b");
    busy.begins("sync");
    in_the_end("it writes", || scene.path("begun").exists());
    let operation = shared.me().expect("a slot").enter(file).ok();
    assert!(operation.is_some());
    let (bytes, took) = reads(&scene, "a");
    println!("an outsider waited for {took:?}");
    assert!(took < LONG, "{took:?}");
    // What could be written has been.
    assert!(bytes == pattern(1, SHORT));
    drop(operation);
    fs::write(scene.path("enough"), "").expect("a mark");
    assert_eq!(busy.answers(), "true");
    busy.ends();
    assert_eq!(reads(&scene, "a").0, pattern(1, SHORT));
    in_the_end("the file is the kernel's", || {
        reads(&scene, "a").0.len() == SHORT && !is_managed(&scene, "a")
    });
    member.ends();
}

/// Thaws a file system.
struct Frost<'a>(&'a Disk);

impl Drop for Frost<'_> {
    fn drop(&mut self) {
        let dir = self.0.dir().to_str().expect("plain");
        self.0
            .tool("fsfreeze", &["--unfreeze", dir])
            .expect("thawed");
    }
}

/// The last page goes by way of the kernel's cache, which waits for the disk: whoever is let in before sees an empty file.
#[test]
fn who_waits_for_a_disk_that_is_frozen_sees_what_was_written() {
    let disk = match Disk::new("ext4", 32, "") {
        Ok(disk) => disk,
        Err(why) => return here::skipped(format!("no file system of its own: {why}")),
    };
    let Some(scene) = strict("frost") else { return };
    let (dir, path) = (disk.dir(), disk.dir().join("a"));
    let mut member = Member::of(&scene);
    member.does(&format!("open {}", path.display()));
    member.does("write 1 100");
    let files = scene.session.as_ref().expect("a session").files();
    assert!(
        files
            .iter()
            .any(|file| file.path == path && file.kernel_reason == 0)
    );
    let freeze = ["--freeze", dir.to_str().expect("plain")];
    disk.tool("fsfreeze", &freeze).expect("frozen");
    let frost = Frost(&disk);
    let mut cat = Command::new("cat");
    let mut cat = cat.arg(&path).stdout(Stdio::piped()).spawn().expect("cat");
    std::thread::sleep(Duration::from_secs(3));
    let has_waited = cat.try_wait().expect("cat").is_none();
    drop(frost);
    let said = cat.wait_with_output().expect("cat");
    assert!(has_waited, "it was let in to {} bytes", said.stdout.len());
    assert!(said.stdout == pattern(1, 100));
    member.ends();
}

/// Processes that came from the scene's keeper: they have its environment. And what others than this one and the member have open of the
/// scene's files.
fn relics(scene: &Scene, member: u32) -> Vec<String> {
    let mark = format!("{KEEPER}=Strict {}\0", scene.name).into_bytes();
    let mut relics = Vec::new();
    let numbers = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| {
            let number: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            (number != member && number != std::process::id()).then_some(number)
        });
    for number in numbers {
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        if environment.windows(mark.len()).any(|part| part == mark) {
            relics.push(format!("{number} came from the keeper"));
        }
        let Ok(open) = fs::read_dir(format!("/proc/{number}/fd")) else {
            continue;
        };
        for path in open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()) {
            if path.starts_with(scene.dir.path()) {
                relics.push(format!("{number} has {}", path.display()));
            }
        }
    }
    relics
}

/// Killed at moments that nobody has chosen: at its start, at work, with a file that was left to it. What it has forked (whoever answers
/// outsiders in its stead) goes with it, and nobody waits for what it had.
#[test]
fn a_keeper_that_is_killed_leaves_no_process() {
    let mut random = SplitMix64::new(fresh_seed());
    let mut least = Duration::MAX;
    for turn in 0..16 {
        let Some(mut scene) = strict("relics") else {
            return;
        };
        let pause = Duration::from_micros(random.below(30_000));
        let (mut member, mut reader) = (None, None);
        let keeper = if turn % 4 == 0 {
            let keeper = Keeper::begin(&mut scene, Coherence::Strict, Path::new("/dev/null"));
            std::thread::sleep(pause);
            keeper
        } else {
            let keeper = Keeper::of(&mut scene);
            let member = member.insert(Member::of(&scene));
            member.does("open a");
            member.does(&format!("write 1 {SHORT}"));
            if turn % 2 == 0 {
                member.does("close");
            }
            if turn % 4 == 3 {
                let mut cat = outsider(&scene, "cat", &["a"]);
                reader = cat.stdout(Stdio::null()).spawn().ok();
            }
            std::thread::sleep(pause);
            keeper
        };
        drop(keeper);
        let begun = Instant::now();
        if let Some(mut reader) = reader {
            reader.wait().expect("an end");
        }
        let number = member.as_ref().map_or(0, Member::process);
        in_the_end("it leaves processes", || relics(&scene, number).is_empty());
        least = least.min(begun.elapsed());
        if let Some(member) = member {
            let (_, took) = reads(&scene, "a");
            assert!(took < Duration::from_secs(5), "{took:?}");
            member.ends();
        }
    }
    // The others may have waited for a processor.
    assert!(least < Duration::from_secs(1), "{least:?}");
}
