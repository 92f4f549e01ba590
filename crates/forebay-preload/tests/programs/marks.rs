//! The guard's marks on files: programs make them and take them away by themselves.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay::Session;

use crate::outsiders::{Keeper, Member, SHORT, in_the_end, reads, strict};
use crate::scene::config;
use crate::sys::*;

/// Whether the keeper's listener has a mark on a file.
fn is_marked(keeper: &Keeper, path: &Path) -> bool {
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
