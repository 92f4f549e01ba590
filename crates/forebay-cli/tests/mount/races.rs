//! What others make in the moment in which a program makes it, or looks at it.
//!
//! The kernel looks a name up, and then has the mount make it. What the mount answers then the kernel takes for a new file: it checks no rights
//! of it, and cuts nothing off it. So a mount must not answer with a file that was there.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::here::skipped;
use crate::pools::Hosts;
use crate::scene::Scene;

/// Of the moments that are meant some are hit.
const ROUNDS: usize = 400;
const USER: u32 = 4711;

/// Opens a name that is not there, which would make it, again and again, while files of mode 0600 that hold bytes get that name in `theirs`. Returns
/// what was wrong with what was opened, and in which round. `user`: the other user who opens.
fn open_what_appears(
    theirs: &Path,
    ours: BorrowedFd<'_>,
    (user, flags): (Option<u32>, OFlags),
    wrong: impl Fn(Result<File, Errno>) -> Option<String> + Send,
) -> Option<String> {
    let open = move || {
        if let Some(user) = user {
            // SAFETY: takes no memory, and is about this thread alone.
            unsafe { libc::setfsuid(user) };
        }
        let flags = flags | OFlags::CREATE | OFlags::RDWR;
        (0..ROUNDS).find_map(|round| {
            let opened = rustix::fs::openat(ours, "name", flags, Mode::from_raw_mode(0o644));
            let said = wrong(opened.map(File::from)).or_else(|| {
                let removed = rustix::fs::unlinkat(ours, "name", AtFlags::empty());
                removed.err().map(|error| format!("removed: {error}"))
            });
            said.map(|said| format!("round {round}: {said}"))
        })
    };
    thread::scope(|scope| {
        let opens = scope.spawn(open);
        let (draft, name) = (theirs.join("draft"), theirs.join("name"));
        let appears = || rustix::fs::renameat_with(CWD, &draft, CWD, &name, RenameFlags::NOREPLACE);
        // Whoever tried without a pause would always be there before the kernel looks.
        let mut waits = (0..500).step_by(40).cycle();
        while !opens.is_finished() {
            fs::write(&draft, b"somebody's").expect("written");
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).expect("set");
            for wait in waits.by_ref() {
                thread::sleep(Duration::from_micros(wait));
                match appears() {
                    Ok(()) => break,
                    Err(error) => assert_eq!(error, Errno::EXIST),
                }
                if opens.is_finished() {
                    break;
                }
            }
        }
        opens.join().expect("it ends")
    })
}

fn is_not_empty(opened: Result<File, Errno>) -> Option<String> {
    match opened.map(|file| file.metadata().expect("known").len()) {
        Ok(0) => None,
        other => Some(format!("{other:?} bytes after O_TRUNC")),
    }
}

#[test]
fn what_appears_in_a_directory_is_emptied_if_that_is_asked_for() {
    let Some(scene) = Scene::begin("appears", &[]) else {
        return;
    };
    let ours = File::open(&scene.point).expect("open");
    let how = (None, OFlags::TRUNC);
    let found = open_what_appears(&scene.directory, ours.as_fd(), how, is_not_empty);
    assert_eq!(found, None);
    drop(ours);
    scene.end();
}

#[test]
fn what_appears_in_a_pool_is_emptied_if_that_is_asked_for() {
    let Some(mut hosts) = Hosts::begin("pool-appears", 7501) else {
        return;
    };
    let [a, b] = hosts.points();
    let ours = File::open(b).expect("open");
    let how = (None, OFlags::TRUNC);
    let found = open_what_appears(&a, ours.as_fd(), how, is_not_empty);
    assert_eq!(found, None);
    drop(ours);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn what_appears_in_a_pool_is_opened_by_those_who_may() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can be several users");
    }
    let begun = Hosts::begin_with("pool-rights", 7571, "copies = 2", &["--allow-other"]);
    let Some(mut hosts) = begun else {
        return;
    };
    let [a, b] = hosts.points();
    let (theirs, ours) = (a.join("shared"), b.join("shared"));
    fs::create_dir(&theirs).expect("made");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).expect("set");
    let ours = File::open(ours).expect("open");
    let how = (Some(USER), OFlags::empty());
    let found = open_what_appears(&theirs, ours.as_fd(), how, |opened| {
        match opened.map(|file| file.metadata().expect("known").uid()) {
            Ok(USER) | Err(Errno::ACCESS) => None,
            other => Some(format!("{other:?} is the owner of what was opened")),
        }
    });
    assert_eq!(found, None);
    drop(ours);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn a_symbolic_link_in_a_pool_has_its_target_from_the_beginning() {
    let Some(mut hosts) = Hosts::begin("pool-links", 7581) else {
        return;
    };
    let [a, b] = hosts.points();
    for round in 0..100 {
        let name = format!("link-{round}");
        let (theirs, ours) = (a.join(&name), b.join(&name));
        let seen = thread::scope(|scope| {
            let made = scope.spawn(|| symlink("a target", &theirs).expect("linked"));
            loop {
                let is_made = made.is_finished();
                let seen = fs::read_link(&ours);
                if is_made || seen.is_ok() {
                    break seen.expect("there");
                }
            }
        });
        assert_eq!(seen, Path::new("a target"), "round {round}");
    }
    hosts.umount(1);
    hosts.umount(0);
}

/// What the kernel has found is removed before it opens it: it looks again. In a lasting race it gives up in the end, but what it has opened is there.
#[test]
fn a_file_in_a_pool_that_is_replaced_while_it_is_opened_can_be_read() {
    const REPLACED: usize = 3000;
    let begun = Hosts::begin_with("pool-replaced", 7541, "path = \"local\"", &[]);
    let Some(mut hosts) = begun else {
        return;
    };
    let point = hosts.points()[0].clone();
    let (name, draft) = (point.join("name"), point.join("draft"));
    fs::write(&name, "old").expect("written");
    let (opened, stale) = thread::scope(|scope| {
        let replaces = scope.spawn(|| {
            for _ in 0..REPLACED {
                fs::write(&draft, "new").expect("written");
                fs::rename(&draft, &name).expect("renamed");
            }
        });
        let (mut opened, mut stale) = (0, 0);
        while !replaces.is_finished() {
            let file = match File::open(&name) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::STALE) => {
                    stale += 1;
                    continue;
                }
                file => file.expect("opened"),
            };
            let mut bytes = [0; 8];
            let read = file.read_at(&mut bytes, 0).map_err(|error| {
                let errno = Errno::from_io_error(&error);
                format!("opening {opened}: {errno:?}")
            });
            assert_eq!(read, Ok(3));
            opened += 1;
        }
        replaces.join().expect("it ends");
        (opened, stale)
    });
    println!("{opened} opened, {stale} replaced twice in the meantime");
    assert!(stale * 10 <= opened, "{stale} beside {opened}");
    hosts.umount(1);
    hosts.umount(0);
}
