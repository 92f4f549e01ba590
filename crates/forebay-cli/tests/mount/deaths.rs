//! The mount's process is killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use forebay::Config;
use forebay::keeper::recover::{Saved, recover};
use forebay_fuse::points::State;
use rustix::fs::{CWD, RenameFlags, XattrFlags, removexattr, renameat_with, setxattr};
use rustix::process::{Pid, Signal, kill_process};

use crate::nameless::{name_it, nameless};
use crate::place::is_managed;
use crate::scene::{Scene, wait_until};

const RECORD: usize = 4000;

fn record(number: u64) -> Vec<u8> {
    (0..RECORD)
        .map(|at| (number as usize * 31 + at / 3) as u8)
        .collect()
}

#[test]
fn a_killed_mount_loses_nothing_and_is_mended() {
    let Some(mut scene) = Scene::begin("killed", &[]) else {
        return;
    };
    fs::write(scene.point.join("closed"), "closed before").expect("written");
    let synced = File::create(scene.point.join("synced")).expect("made");
    synced.write_all_at(b"synced before", 0).expect("written");
    synced.sync_all().expect("synced");
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (written, path) = (Arc::clone(&written), scene.point.join("file"));
        std::thread::spawn(move || {
            let file = File::create(path).expect("made");
            // Until there is nobody any more who would acknowledge it.
            for number in 0.. {
                if file
                    .write_all_at(&record(number), number * RECORD as u64)
                    .is_err()
                {
                    return;
                }
                written.store(number + 1, Ordering::Release);
            }
        })
    };
    wait_until("it writes", || written.load(Ordering::Acquire) > 300);
    scene.process.take().expect("mounted").kill();
    writer.join().expect("it ends");
    drop(synced);
    assert_eq!(
        fs::read_to_string(scene.directory.join("closed")).expect("read"),
        "closed before"
    );
    assert_eq!(
        fs::read_to_string(scene.directory.join("synced")).expect("read"),
        "synced before"
    );
    // What is left says what it is, and goes.
    assert_eq!(scene.state(), State::Dead);
    let refused = scene
        .place
        .forebay(&["mount"])
        .arg(&scene.directory)
        .arg(&scene.point)
        .output();
    let refused = refused.expect("forebay runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said.contains("has died") && said.contains("forebay umount"),
        "{said}"
    );
    let mended = scene.run(&["umount"], &scene.point);
    assert_eq!(mended.code, 0, "{mended:?}");
    assert_eq!(scene.state(), State::Free);
    scene.mount(&[]);
    let file = File::open(scene.point.join("file")).expect("opened");
    for number in 0..written.load(Ordering::Acquire) {
        let mut bytes = vec![0; RECORD];
        file.read_exact_at(&mut bytes, number * RECORD as u64)
            .expect("read");
        assert!(bytes == record(number), "record {number}");
    }
    drop(file);
    scene.end();
}

#[test]
fn a_mount_goes_on_when_its_keeper_dies() {
    let Some(scene) = Scene::begin("keeper", &[]) else {
        return;
    };
    let keeper = || scene.place.stat()["members"]["keeper"].as_u64();
    let mut file = File::create(scene.point.join("file")).expect("made");
    file.write_all(b"before").expect("written");
    let first = keeper().expect("a keeper");
    let pid = Pid::from_raw(first as i32).expect("a number");
    kill_process(pid, Signal::KILL).expect("it is there");
    file.write_all(b", after").expect("written");
    wait_until("another keeper", || {
        keeper().is_some_and(|now| now != first)
    });
    drop(file);
    assert_eq!(
        fs::read_to_string(scene.directory.join("file")).expect("read"),
        "before, after"
    );
    scene.end();
}

/// What is done by the mount to a file that owes bytes: its path, another path that leads nowhere, one of an idle file, and the file.
type Change = fn(&Path, &Path, &Path, &File) -> std::io::Result<()>;

const CHANGES: &[(&str, Change)] = &[
    ("chmod", |path, _, _, _| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
    }),
    ("chown", |path, _, _, file| {
        chown(path, Some(file.metadata()?.uid()), None)
    }),
    ("times", |_, _, _, file| {
        file.set_modified(SystemTime::now())
    }),
    ("accessed", |_, _, _, file| {
        file.set_times(fs::FileTimes::new().set_accessed(SystemTime::now()))
    }),
    ("attribute", |path, _, _, _| {
        Ok(setxattr(path, "user.test", b"1", XattrFlags::empty())?)
    }),
    ("attribute-removed", |path, _, _, _| {
        setxattr(path, "user.test", b"1", XattrFlags::empty())?;
        Ok(removexattr(path, "user.test")?)
    }),
    ("link", |path, other, _, _| fs::hard_link(path, other)),
    ("unlink", |path, other, _, _| {
        fs::hard_link(path, other)?;
        fs::remove_file(other)
    }),
    ("rename", |path, other, _, _| {
        fs::rename(path, other)?;
        fs::rename(other, path)
    }),
    ("replace", |path, other, idle, _| {
        fs::hard_link(path, other)?;
        fs::rename(idle, other)
    }),
    ("exchange", |path, _, idle, _| {
        renameat_with(CWD, idle, CWD, path, RenameFlags::EXCHANGE)?;
        Ok(renameat_with(CWD, idle, CWD, path, RenameFlags::EXCHANGE)?)
    }),
    (NAMED, |path, _, _, file| Ok(name_it(file, path)?)),
    (NAMED_TWICE, |path, other, _, file| {
        name_it(file, path)?;
        fs::hard_link(path, other)?;
        fs::remove_file(other)
    }),
];

/// Of files that were made without a name.
const NAMED: &str = "named";
const NAMED_TWICE: &str = "named-twice";

const POINT: &str = "FOREBAY_TEST_CHANGES_POINT";

/// A process of its own, since each program that this one starts closes its copies of what is open here, and by that has them written.
#[test]
#[ignore = "the program that another test starts"]
fn the_changes() {
    let Some(point) = std::env::var_os(POINT) else {
        return;
    };
    let point = Path::new(&point);
    let made = |(number, (name, _)): (usize, &(&str, Change))| {
        let file = match *name {
            NAMED | NAMED_TWICE => nameless(point, 0, 0o600),
            name => File::create_new(point.join(name)),
        };
        let file = file.expect("made");
        file.write_all_at(&record(number as u64), 0)
            .expect("written");
        file
    };
    let open: Vec<_> = CHANGES.iter().enumerate().map(made).collect();
    println!("written");
    std::io::stdin()
        .read_line(&mut String::new())
        .expect("told");
    for ((name, change), file) in CHANGES.iter().zip(&open) {
        let path = |what| point.join(format!("{name}{what}"));
        change(&path(""), &path("-other"), &path("-idle"), file).expect(name);
        // Some are made of what owes nothing any more.
        file.write_all_at(b"again", 0).expect("written");
    }
    println!("changed");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_recovery_knows_what_a_mount_has_changed_past_the_bytes() {
    let Some(mut scene) = Scene::begin("changed", &[]) else {
        return;
    };
    if !is_managed(&scene.directory) {
        return;
    }
    for (name, _) in CHANGES {
        fs::write(scene.directory.join(format!("{name}-idle")), "").expect("made");
    }
    let keeper = scene.place.stat()["members"]["keeper"].as_u64();
    let keeper = Pid::from_raw(keeper.expect("a keeper") as i32).expect("a number");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "deaths::the_changes", "--ignored", "--nocapture"]);
    command.env(POINT, &scene.point);
    let program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut program = program.expect("a program");
    let mut said = BufReader::new(program.stdout.take().expect("taken")).lines();
    let mut says = |word| {
        let is_said = |line: String| line.contains(word);
        assert!(said.by_ref().map_while(Result::ok).any(is_said), "it fails");
    };
    says("written");
    // A keeper that goes on looks at its files anew.
    kill_process(keeper, Signal::STOP).expect("stopped");
    let mut ask = program.stdin.take().expect("taken");
    ask.write_all(b"change\n").expect("told");
    says("changed");
    // Nobody of the session outlives it.
    scene.process.take().expect("mounted").kill();
    kill_process(keeper, Signal::KILL).expect("killed");
    program.kill().expect("killed");
    program.wait().expect("ended");
    scene.place.await_death();
    // The guard that stands in may take an opening of the mount's for an outsider's, where threads get no processor for long: such a file is the
    // kernel's, with all of its bytes.
    let left = scene.place.stat()["left"].as_array().expect("a list").len();
    let mut config = Config::builder().build().expect("defaults");
    config.session = scene.place.session.clone();
    config.arena_dir = Some(scene.place.arenas.path().to_owned());
    config.kept_dir = scene.place.file("kept");
    let report = recover(&scene.place.arena(), &config).expect("recovered");
    let is_other = |saved: &&Saved| !matches!(saved, Saved::Written { .. });
    let others: Vec<_> = report.files.iter().filter(is_other).collect();
    assert!(others.is_empty(), "{others:#?}");
    for (number, (name, _)) in CHANGES.iter().enumerate() {
        let mut bytes = record(number as u64);
        bytes[..5].copy_from_slice(b"again");
        let read = fs::read(scene.directory.join(name)).expect("read");
        assert!(read == bytes, "{name}");
    }
    let recovered = report.files.len();
    assert_eq!(recovered + left, CHANGES.len(), "{report:#?}");
    let mended = scene.run(&["umount"], &scene.point);
    assert_eq!(mended.code, 0, "{mended:?}");
}
