//! Outsiders that change a file which a program of the session has open, while the session's keeper is stopped or has been killed: what they
//! write stays, and so does what the session had acknowledged.

use std::io::Write;
use std::time::Duration;

use forebay::Session;

use crate::keepers::Keeper;
use crate::outsiders::{LONG, Member, SHORT, in_the_end, outsider, reads, strict};
use crate::scene::{Scene, config};
use crate::sys::pattern;

/// What becomes of the keeper.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Stopped,
    Killed,
    /// It is stopped first, and killed once somebody has been let in.
    Both,
}

const FATES: [Fate; 3] = [Fate::Stopped, Fate::Killed, Fate::Both];

/// An outsider opens a file for appending, and writes a line.
fn appends(scene: &Scene, name: &str, line: &str) {
    let script = format!("echo {line} >> {name}");
    let mut shell = outsider(scene, "sh", &["-c", &script]);
    assert!(shell.status().expect("a shell").success());
}

fn lines(scene: &Scene, name: &str) -> Vec<String> {
    let (bytes, took) = reads(scene, name);
    assert!(took < LONG, "{took:?}");
    let text = String::from_utf8(bytes).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_an_outsider_appends_while_no_keeper_answers_stays() {
    for turn in 0..9 {
        let Some(mut scene) = strict("relieved") else {
            return;
        };
        let fate = FATES[turn % FATES.len()];
        let keeper = Keeper::relieved(&mut scene);
        let mut member = Member::of(&scene);
        member.does("log a");
        member.does("text first");
        let session = Session::join(config(&scene.name)).expect("a session");
        if fate != Fate::Killed {
            keeper.stop_at_rest(&session);
        }
        let mut keeper = Some(keeper);
        if fate == Fate::Killed {
            keeper = None;
        }
        appends(&scene, "a", "outside");
        if fate == Fate::Both {
            keeper = None;
            appends(&scene, "a", "outside");
        }
        member.does("text second");
        appends(&scene, "a", "later");
        if let Some(keeper) = &keeper {
            keeper.signal(libc::SIGCONT);
        }
        member.does("text third");
        let mut wanted = vec!["first", "outside", "second", "later", "third"];
        if fate == Fate::Both {
            wanted.insert(1, "outside");
        }
        assert_eq!(lines(&scene, "a"), wanted, "{fate:?}");
        member.ends();
        drop(session);
        assert_eq!(lines(&scene, "a"), wanted, "{fate:?}, at the end");
    }
}

/// It sees what was acknowledged, and what it writes in the middle stays.
#[test]
fn what_an_outsider_changes_while_no_keeper_answers_stays() {
    for fate in FATES {
        let Some(mut scene) = strict("changed") else {
            return;
        };
        let mut keeper = Some(Keeper::relieved(&mut scene));
        let mut member = Member::of(&scene);
        member.does("open a");
        member.does(&format!("write 1 {SHORT}"));
        let session = Session::join(config(&scene.name)).expect("a session");
        let stopped = keeper.as_ref().filter(|_| fate != Fate::Killed);
        stopped.inspect(|keeper| keeper.stop_at_rest(&session));
        if fate != Fate::Stopped {
            keeper = None;
        }
        let path = scene.path("a");
        let mut wanted = pattern(1, SHORT);
        assert!(reads(&scene, "a").0 == wanted, "{fate:?}");
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).open(&path).expect("opened");
        file.write_all(b"outside").expect("written");
        wanted[..7].copy_from_slice(b"outside");
        assert_eq!(member.does("read 7 0"), "outside", "{fate:?}");
        if let Some(keeper) = &keeper {
            keeper.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(200));
        }
        member.ends();
        drop(session);
        assert!(reads(&scene, "a").0 == wanted, "{fate:?}");
    }
}

#[test]
fn a_relief_ends_with_the_session() {
    let Some(mut scene) = strict("ends") else {
        return;
    };
    let keeper = Keeper::relieved(&mut scene);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    let session = Session::join(config(&scene.name)).expect("a session");
    let place = session.place().expect("a place").path.expect("an arena");
    drop(session);
    drop(keeper);
    assert!(reads(&scene, "a").0 == pattern(1, SHORT));
    member.ends();
    // Whoever would recover the session needs it for himself; whoever leaves it last removes it.
    in_the_end("somebody is in the session", || {
        let file = std::fs::File::open(&place);
        file.map_or(true, |file| file.try_lock().is_ok())
    });
}
