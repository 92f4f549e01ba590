//! Outsiders that change a file which a program of the session has open, when the session's keeper has just been killed: what they write
//! stays, and so does what the session had acknowledged.

use std::io::Write;

use forebay::Session;

use crate::keepers::Keeper;
use crate::outsiders::{LONG, Member, SHORT, in_the_end, outsider, reads, strict};
use crate::scene::{Scene, config};
use crate::sys::pattern;

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

/// A program of a session whose keeper has a relief has a file open, to which it has written.
fn writes(scene: &mut Scene) -> (Keeper, Member, Session) {
    let keeper = Keeper::relieved(scene);
    let mut member = Member::of(scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    let session = Session::join(config(&scene.name)).expect("a session");
    (keeper, member, session)
}

/// Ends a keeper, which may have been stopped before.
fn kill(keeper: Keeper, session: &Session, is_stopped: bool) {
    if is_stopped {
        keeper.stop_at_rest(session);
    }
    drop(keeper);
}

#[test]
fn what_an_outsider_appends_after_a_keepers_death_stays() {
    for turn in 0..8 {
        let Some(mut scene) = strict("relieved") else {
            return;
        };
        let keeper = Keeper::relieved(&mut scene);
        let mut member = Member::of(&scene);
        member.does("log a");
        member.does("text first");
        let session = Session::join(config(&scene.name)).expect("a session");
        kill(keeper, &session, turn % 4 == 0);
        appends(&scene, "a", "outside");
        member.does("text second");
        appends(&scene, "a", "later");
        member.does("text third");
        let wanted = ["first", "outside", "second", "later", "third"];
        assert_eq!(lines(&scene, "a"), wanted, "{turn}");
        member.ends();
        drop(session);
        assert_eq!(lines(&scene, "a"), wanted, "{turn}, at the end");
    }
}

/// It sees what was acknowledged, and what it writes in the middle stays.
#[test]
fn what_an_outsider_changes_after_a_keepers_death_stays() {
    for is_stopped in [false, true] {
        let Some(mut scene) = strict("changed") else {
            return;
        };
        let (keeper, mut member, session) = writes(&mut scene);
        kill(keeper, &session, is_stopped);
        let mut wanted = pattern(1, SHORT);
        assert!(reads(&scene, "a").0 == wanted, "stopped: {is_stopped}");
        let mut file = std::fs::OpenOptions::new();
        let file = file.write(true).open(scene.path("a"));
        file.expect("opened")
            .write_all(b"outside")
            .expect("written");
        wanted[..7].copy_from_slice(b"outside");
        assert_eq!(member.does("read 7 0"), "outside");
        member.ends();
        drop(session);
        assert!(reads(&scene, "a").0 == wanted, "stopped: {is_stopped}");
    }
}

#[test]
fn a_relief_ends_with_the_session() {
    let Some(mut scene) = strict("ends") else {
        return;
    };
    let (keeper, member, session) = writes(&mut scene);
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
