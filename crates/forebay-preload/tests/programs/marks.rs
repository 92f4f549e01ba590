//! The guard's marks on files: programs make them and take them away by themselves.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay::Session;

use crate::keepers::Keeper;
use crate::outsiders::{Member, SHORT, in_the_end, reads, strict};
use crate::scene::config;
use crate::sys::*;

const CLOSES: usize = 300;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "close-looked-at" => close_looked_at(dir),
        _ => return false,
    }
    true
}

/// Says what else a number has been while the file that it was is closed.
fn close_looked_at(dir: &Path) {
    let mut seen = Vec::new();
    for number in 0..CLOSES {
        let path = dir.join(number.to_string());
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("a file");
        write(fd, &pattern(1, SHORT)).expect("a write");
        let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let number = PathBuf::from(format!("/proc/self/fd/{fd}"));
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut seen = Vec::new();
                while !done.load(Relaxed) {
                    if let Ok(what) = std::fs::read_link(&number)
                        && what != path
                        && what != Path::new("/")
                    {
                        seen.push(what);
                    }
                    begun.store(true, Relaxed);
                }
                seen
            });
            while !begun.load(Relaxed) {
                std::hint::spin_loop();
            }
            close(fd).expect("a close");
            done.store(true, Relaxed);
            seen.extend(looks.join().expect("looks"));
        });
        std::fs::remove_file(&path).expect("removed");
    }
    println!("seen: {:?}", seen.first());
}

/// Other threads of the program may use the number to hear that it is closed, and may close it once more.
#[test]
fn a_number_that_is_closed_is_nothing_of_the_sessions_meanwhile() {
    let Some(mut scene) = strict("looked") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let output = scene
        .role("close-looked-at", "")
        .output()
        .expect("a program");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("seen: None"), "{said}");
    drop(keeper);
}

/// Whether the keeper's listener has a mark on a file.
pub fn is_marked(keeper: &Keeper, path: &Path) -> bool {
    let inode = format!("ino:{:x} ", std::fs::metadata(path).expect("a file").ino());
    let told =
        std::fs::read_dir(format!("/proc/{}/fdinfo", keeper.process())).expect("descriptors");
    let mut told = told.filter_map(|of| std::fs::read_to_string(of.ok()?.path()).ok());
    told.any(|told| {
        let mut marks = told
            .lines()
            .filter(|line| line.starts_with("fanotify ino:"));
        marks.any(|mark| mark.contains(&inode))
    })
}

/// A keeper that is stopped answers no question, so none was asked: the mark is the program's own doing, and so is its end.
#[test]
fn a_file_is_watched_and_not_watched_any_more_without_a_question() {
    let Some(mut scene) = strict("unasked") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    let session = Session::join(config(&scene.name)).expect("a session");
    // There is a line to the keeper, and a lane.
    member.does("open first");
    member.does(&format!("write 1 {SHORT}"));
    member.does("close");
    for turn in 0..5 {
        let name = format!("f{turn}");
        keeper.while_stopped(&session, || {
            member.does(&format!("open {name}"));
            member.does(&format!("write {turn} {SHORT}"));
            assert!(
                is_marked(&keeper, &scene.path(&name)),
                "{name} is not watched"
            );
        });
        // Whoever comes is seen, once the keeper's stand-in answers no more.
        in_the_end("who comes is seen", || {
            reads(&scene, &name).0 == pattern(turn, SHORT)
        });
        member.does("close");
        let name = format!("g{turn}");
        keeper.while_stopped(&session, || {
            member.does(&format!("open {name}"));
            member.does(&format!("write {turn} {SHORT}"));
            member.does("close");
            assert!(
                !is_marked(&keeper, &scene.path(&name)),
                "{name} is watched still"
            );
        });
        assert_eq!(reads(&scene, &name).0, pattern(turn, SHORT));
    }
    member.ends();
}

/// A program that has not all of the keeper's rights cannot have the listener: the keeper marks the file, once it answers.
#[test]
fn who_has_fewer_rights_than_the_keeper_asks_it() {
    const CAP_SYS_PTRACE: libc::c_ulong = 19;
    let Some(mut scene) = strict("fewer") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let session = Session::join(config(&scene.name)).expect("a session");
    for fewer in [false, true] {
        let mut command = scene.role("obeys", "");
        if fewer {
            // SAFETY: a call that takes no memory, in a new process.
            unsafe {
                command.pre_exec(|| {
                    match libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    }
                });
            }
        }
        let mut member = Member::from(command);
        member.does("open first");
        member.does(&format!("write 1 {SHORT}"));
        member.does("close");
        let name = format!("file{fewer}");
        let path = scene.path(&name);
        keeper.while_stopped(&session, || {
            member.does(&format!("open {name}"));
            member.does(&format!("write 2 {SHORT}"));
            assert_eq!(is_marked(&keeper, &path), !fewer, "has fewer: {fewer}");
        });
        in_the_end("the keeper marks it", || is_marked(&keeper, &path));
        in_the_end("who comes is seen", || {
            reads(&scene, &name).0 == pattern(2, SHORT)
        });
        member.does("close");
        member.ends();
    }
}

/// A file that is closed by one program and managed by another at once is watched, or the kernel's: an outsider finds all of it.
#[test]
fn a_file_that_changes_hands_is_watched() {
    let Some(mut scene) = strict("hands") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let mut members = [Member::of(&scene), Member::of(&scene)];
    let _ = members.each_mut().map(|member| member.does("open a"));
    for turn in 0..200 {
        // The one closes while the other begins.
        members[0].does(&format!("write {turn} {SHORT}"));
        members[0].begins("close");
        members[1].begins(&format!("write {turn} {SHORT}"));
        let _ = members.each_mut().map(|member| member.answers());
        assert!(reads(&scene, "a").0 == pattern(turn, SHORT), "round {turn}");
        let [one, other] = &mut members;
        other.does("close");
        one.does("open a");
        other.does("open a");
    }
    drop(keeper);
    let _ = members.map(Member::ends);
}

/// Removed files give their space back when nobody has them open any more: neither has the program of a session that has closed them.
#[test]
fn who_has_closed_a_file_has_no_descriptor_of_it() {
    let Some(mut scene) = strict("nothing") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    for turn in 0..20 {
        member.does(&format!("open closed{turn}"));
        // Behind a hole: the session knows the file still when it has been closed.
        member.does(&format!("write-at {turn} {SHORT} 1000001"));
        member.does("close");
        std::fs::remove_file(scene.path(&format!("closed{turn}"))).expect("removed");
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", member.process())).expect("descriptors");
    let open = open.filter_map(|of| std::fs::read_link(of.ok()?.path()).ok());
    let kept: Vec<_> = open
        .filter(|path| path.to_string_lossy().contains("/closed"))
        .collect();
    assert!(kept.is_empty(), "{kept:?}");
    member.ends();
    drop(keeper);
}

/// What a session has in memory of a file is nobody's once the file is removed, and its entry would be in the way of every search.
#[test]
fn what_is_removed_is_forgotten() {
    let Some(mut scene) = strict("forgotten") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let session = Session::join(config(&scene.name)).expect("a session");
    let mut member = Member::of(&scene);
    for turn in 0..20 {
        member.does(&format!("open closed{turn}"));
        member.does(&format!("write-at {turn} {SHORT} 1000001"));
        member.does("close");
        member.does(&format!("open other{turn}"));
        member.does(&format!("write-at {turn} {SHORT} 1000001"));
        member.does("close");
        match turn % 2 {
            0 => assert_eq!(member.does(&format!("remove closed{turn}")), "Ok(())"),
            _ => assert_eq!(member.does(&format!("rename other{turn} closed{turn}")), ""),
        }
    }
    let known = session.files();
    let removed =
        |file: &&forebay::session::look::SeenFile| file.path.to_string_lossy().contains("/closed");
    let removed: Vec<_> = known.iter().filter(removed).collect();
    assert!(removed.is_empty() && !known.is_empty(), "{known:?}");
    member.ends();
    drop(keeper);
}
