//! Outsiders do not wait for what stands still in the session: a keeper that is frozen with its cgroup, a program in the middle of a call.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::Session;
use forebay::config::Coherence;
use forebay::file::table;

use crate::here;
use crate::outsiders::{Keeper, LONG, Member, SHORT, in_the_end, is_managed, reads, strict};
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

/// A program that is stopped in the middle of a call is in the way of whoever would give the file to the kernel.
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
    let operation = shared.me().expect("a slot").enter(file).ok();
    assert!(operation.is_some());
    let (bytes, took) = reads(&scene, "a");
    println!("an outsider waited for {took:?}");
    assert!(took < LONG, "{took:?}");
    // What could be written has been.
    assert!(bytes == pattern(1, SHORT));
    drop(operation);
    assert_eq!(reads(&scene, "a").0, pattern(1, SHORT));
    in_the_end("the file is the kernel's", || {
        reads(&scene, "a").0.len() == SHORT && !is_managed(&scene, "a")
    });
    member.ends();
}
