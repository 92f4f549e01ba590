//! Programs and keepers that are killed.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay::Session;
use forebay::config::Coherence;
use forebay::keeper::recover::{Saved, recover};

use crate::keepers::Keeper;
use crate::outsiders::{Member, SHORT, in_the_end};
use crate::scene::{Scene, config, said};
use crate::sys::*;

const RECORD: usize = 5000;

fn record(number: u32) -> Vec<u8> {
    let mut record = pattern(number as u8, RECORD);
    record[..4].copy_from_slice(&number.to_le_bytes());
    record
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        // Writes records for ever, and says what has been acknowledged.
        "records" => {
            let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
            let count: u32 = argument.parse().expect("a count");
            for number in 0..count {
                assert_eq!(write(fd, &record(number)), Ok(RECORD));
                println!("@{number}");
            }
        }
        // Owes a file until somebody makes another one.
        "owes" => {
            let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
            assert_eq!(write(fd, &record(7)), Ok(RECORD));
            println!("@owes");
            while !dir.join("done").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        "reader-syncs" => {
            let fd = open(&dir.join("a"), libc::O_RDONLY).expect("open");
            assert_eq!(pread(fd, RECORD, 0), Ok(record(7)));
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::fsync(fd) }, 0);
        }
        _ => return false,
    }
    true
}

/// Starts the writer and waits until it has acknowledged so many records. Returns the last, once it has been killed.
fn kill_after(scene: &Scene, count: u32) -> u32 {
    kill_at(scene, count, || ())
}

/// The same, after something else.
fn kill_at(scene: &Scene, count: u32, before: impl Fn()) -> u32 {
    let mut program = scene
        .role("records", "1000000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program");
    let lines = BufReader::new(program.stdout.take().expect("output")).lines();
    let mut last = 0;
    for line in lines.map_while(Result::ok) {
        let Some(number) = line.rsplit('@').next().and_then(|n| n.parse().ok()) else {
            continue;
        };
        last = number;
        if last == count {
            before();
            program.kill().expect("a kill");
        }
    }
    program.wait().expect("an end");
    last
}

fn is_whole(path: &Path, last: u32) -> bool {
    let bytes = std::fs::read(path).expect("a file");
    bytes.len() >= (last as usize + 1) * RECORD
        && (0..=last)
            .zip(bytes.chunks(RECORD))
            .all(|(number, seen)| seen == record(number))
}

fn check(path: &Path, last: u32) {
    let bytes = std::fs::read(path).expect("a file");
    assert!(
        bytes.len() >= (last as usize + 1) * RECORD,
        "{} bytes of {last} records",
        bytes.len()
    );
    for (number, seen) in (0..=last).zip(bytes.chunks(RECORD)) {
        assert!(seen == record(number), "record {number}");
    }
}

#[test]
fn killed_programs_lose_nothing() {
    for count in [3, 50, 2000] {
        let scene = Scene::new("killed", 0);
        let last = kill_after(&scene, count);
        // The keeper writes what a program has left when its connection ends.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !is_whole(&scene.path("a"), last) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        check(&scene.path("a"), last);
    }
}

/// Killed in the first moments of its file, which has another name by then: the descriptors that it has sent are on their way.
#[test]
fn killed_programs_lose_nothing_of_what_the_keeper_has_not_looked_at() {
    for round in 0..20 {
        let scene = Scene::new("killed-soon", 0);
        let last = kill_at(&scene, 1 + round % 3, || {
            std::fs::rename(scene.path("a"), scene.path("b")).expect("renamed");
        });
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !is_whole(&scene.path("b"), last) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        check(&scene.path("b"), last);
    }
}

#[test]
fn keeper_and_program_are_gone_and_a_recovery_saves_it_all() {
    let mut scene = Scene::new("all-dead", 0);
    let arena = scene
        .session
        .as_ref()
        .and_then(|s| s.place().ok()?.path)
        .expect("an arena");
    // A keeper in a process of its own, so that it can be killed with the program.
    drop(scene.session.take());
    let name = scene.name.clone();
    let mut keeper = keeper_process(&name);
    let mut program = scene
        .role("records", "1000000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program");
    let mut last = 0;
    let mut begun_killing = false;
    for line in BufReader::new(program.stdout.take().expect("output"))
        .lines()
        .map_while(Result::ok)
    {
        let Some(number) = line.rsplit('@').next().and_then(|n| n.parse().ok()) else {
            continue;
        };
        last = number;
        if last >= 700 && !begun_killing {
            begun_killing = true;
            keeper.kill().expect("a kill");
            program.kill().expect("a kill");
        }
    }
    program.wait().expect("an end");
    keeper.wait().expect("an end");
    recover_all(&arena, &name);
    check(&scene.path("a"), last);
}

/// Recovers a session all of whose processes were killed. Everything must go into the files, as nobody else has touched them; but where
/// a request of the dead has reached its file long after it was made, as on a busy machine, that is doubted, and the bytes are kept
/// aside: they are put where they belong then. Returns the files for which that was so.
pub fn recover_all(arena: &Path, name: &str) -> Vec<PathBuf> {
    let report = recover(arena, &config(name)).expect("a recovery");
    assert!(report.removed, "{report:?}");
    let mut put_back = Vec::new();
    for saved in &report.files {
        match saved {
            Saved::Written { .. } => {}
            Saved::Kept {
                path, kept, reason, ..
            } if reason.contains("nobody can tell") => {
                let owed = std::fs::read(kept).expect("what is kept");
                let mut bytes = std::fs::read(path).expect("a file");
                bytes.resize(owed.len(), 0);
                // What is not owed is zeros there.
                let both = bytes.iter_mut().zip(owed);
                both.filter(|(_, owed)| *owed != 0)
                    .for_each(|(byte, owed)| *byte = owed);
                std::fs::write(path, bytes).expect("written");
                for kept in [kept.clone(), kept.with_extension("json")] {
                    std::fs::remove_file(kept).expect("what is kept");
                }
                put_back.push(path.clone());
            }
            // Of a file that was being made, perhaps; whose else, its bytes tell.
            _ => println!("{report:?}"),
        }
    }
    put_back
}

/// A keeper in a process of its own, so that it can be killed.
pub fn keeper_process(name: &str) -> Child {
    let mut keeper = std::process::Command::new(std::env::current_exe().expect("a path"))
        .args([
            "--exact",
            "deaths::keeper",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("FOREBAY__TEST_KEEPER", name)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a keeper");
    await_kept(&mut keeper);
    keeper
}

/// Waits until a keeper in a process of its own has said that it keeps.
pub fn await_kept(keeper: &mut Child) {
    let mut lines = BufReader::new(keeper.stdout.take().expect("output")).lines();
    while !lines
        .next()
        .expect("a line")
        .expect("text")
        .ends_with("@kept")
    {}
}

/// The keeper of [`keeper_process`].
#[test]
fn keeper() {
    let Ok(name) = std::env::var("FOREBAY__TEST_KEEPER") else {
        return;
    };
    let _session = Session::open(config(&name)).expect("a session");
    println!("@kept");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_new_keeper_is_used_by_programs_that_run() {
    let mut scene = Scene::new("keepers", 0);
    let mut program = scene
        .role("records", "30000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program");
    let mut lines = BufReader::new(program.stdout.take().expect("output")).lines();
    let mut await_record = |wanted: u32| {
        for line in lines.by_ref().map_while(Result::ok) {
            if line.rsplit('@').next().and_then(|n| n.parse::<u32>().ok()) >= Some(wanted) {
                return;
            }
        }
    };
    await_record(1000);
    drop(scene.session.take());
    await_record(5000);
    scene.session = Some(Session::open(config(&scene.name)).expect("a session"));
    await_record(u32::MAX - 1);
    assert!(program.wait().expect("an end").success());
    check(&scene.path("a"), 29_999);
}

/// Its successor finds no name, and the program that has the file open may never call again; the memory is wanted all the same.
#[test]
fn a_new_keeper_has_files_that_have_no_name() {
    let mut scene = Scene::new("nameless", 0);
    let keeper = Keeper::with(&mut scene, Coherence::Notify);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    let meta = std::fs::metadata(scene.path("a")).expect("a file");
    std::fs::remove_file(scene.path("a")).expect("removed");
    drop(keeper);
    let session = Session::open(config(&scene.name)).expect("a session");
    let shared = session.shared();
    let id = forebay::member::table::find(&shared.arena, meta.dev(), meta.ino()).expect("an entry");
    let owed = || {
        let entry = shared.arena.file_unchecked(id);
        entry.owed_pages.load(forebay::sync::Ordering::Acquire)
    };
    // It may have begun to write already.
    in_the_end("the new keeper has it", || shared.device(id).is_some());
    session.settle_all().expect("settled");
    assert_eq!(owed(), 0);
    assert_eq!(member.does(&format!("holds 1 {SHORT} 0")), "true");
    member.ends();
    scene.session = Some(session);
}

/// What nobody has open and nobody writes may be another file's by now: who asks for its length finds out by asking in turn.
#[test]
fn what_the_dead_owe_is_asked_for() {
    let mut scene = Scene::new("asked", 0);
    scene.session.as_mut().expect("a session").stop_keeping();
    let last = kill_after(&scene, 40);
    let len = (last + 1) as usize * RECORD;
    {
        let arena = &scene.session.as_ref().expect("a session").shared().arena;
        let meta = std::fs::metadata(scene.path("a")).expect("a file");
        let id = forebay::member::table::find(arena, meta.dev(), meta.ino()).expect("an entry");
        let entry = arena.file_unchecked(id);
        entry.openers.store(0, forebay::sync::Ordering::Release);
        assert!(forebay::member::gone::may_be_gone(arena, entry));
    }
    for option in ["--format=%s", "--printf=%s\\n"] {
        let said = said(
            scene
                .command("stat")
                .args([option, "a"])
                .output()
                .expect("stat"),
        );
        let told: usize = said.trim().parse().expect("a number");
        assert!(told >= len, "{told} of {len}");
    }
}

/// A new file has the number of one that was removed while it owed what nobody can write any more. The new one can be inherited, passed on and
/// mapped all the same.
#[test]
fn what_a_removed_file_owes_is_no_new_files() {
    let mut scene = Scene::new("again", 0);
    scene.session.as_mut().expect("a session").stop_keeping();
    kill_after(&scene, 40);
    let number = std::fs::metadata(scene.path("a")).expect("a file").ino();
    std::fs::remove_file(scene.path("a")).expect("removed");
    // Its writer is counted as one who has it open, and nobody has found out yet. The file system gives the number again soon.
    let new = (0..2000).map(|count| scene.path(&format!("new{count}")));
    let new = new.map(|path| (std::fs::File::create_new(&path).expect("a file"), path));
    let found = new.filter(|(file, _)| file.metadata().expect("a file").ino() == number);
    let (file, path) = found.into_iter().next().expect("the number again");
    // Nobody finds it where the removed one was.
    std::fs::create_dir(scene.path("elsewhere")).expect("a directory");
    let moved = scene.path("elsewhere/new");
    std::fs::rename(path, &moved).expect("another place");
    let ways = "echo one; /bin/echo two; exec 3<&0; cat <&3 >&2; exec /bin/echo three";
    let mut shell = scene.command("sh");
    shell.args(["-c", ways]).stdin(file.try_clone().unwrap());
    let ended = shell.stdout(file).status().expect("a shell");
    assert!(ended.success(), "{ended}");
    let bytes = std::fs::read_to_string(moved).expect("a file");
    assert_eq!(bytes, "one\ntwo\nthree\n");
}

/// What another program owes is written by a sync of a descriptor that may only read, whoever there is to write it.
#[test]
fn a_sync_by_a_reader_needs_no_keeper() {
    for keeps in [true, false] {
        let slow = |config: &mut forebay::Config| {
            config.flush_after = None;
            config.flush_interval = None;
        };
        let mut scene = Scene::with("reader", 0, slow);
        if !keeps {
            scene.session.as_mut().expect("a session").stop_keeping();
        }
        std::fs::write(scene.path("a"), record(1)).expect("a file");
        let mut program = scene.start("owes", "");
        let output = program.stdout.take().expect("output");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("@owes")));
        scene.play("reader-syncs", "");
        let on_device = std::fs::read(scene.path("a")).expect("a file");
        assert!(on_device == record(7), "{} bytes", on_device.len());
        std::fs::write(scene.path("done"), b"").expect("a file");
        assert!(program.wait().expect("an end").success());
    }
}
