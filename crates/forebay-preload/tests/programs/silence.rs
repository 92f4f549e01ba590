//! Programs whose keeper is stopped: they go on, and what it counts is right when it goes on, too.

use std::os::fd::AsFd;
use std::time::Duration;

use forebay::Session;
use forebay::config::Coherence;
use forebay::sync::Ordering;
use forebay::sys::socket;

use crate::keepers::Keeper;
use crate::outsiders::{Member, in_the_end};
use crate::scene::{Scene, config};
use crate::sys::{modified, pattern};

const FILES: usize = 12;
const LEN: usize = 100_000;

/// A scene, its keeper, and this process's part in the session.
fn scene(name: &str) -> (Scene, Keeper, Session) {
    let mut scene = Scene::new(name, 0);
    let keeper = Keeper::with(&mut scene, Coherence::Notify);
    let session = Session::join(config(&scene.name)).expect("a session");
    (scene, keeper, session)
}

/// A question to a keeper that does not answer takes five seconds where nobody notices that it is stopped; each file has several
/// of them, opened and closed, read and written.
#[test]
fn files_are_opened_and_closed_while_the_keeper_is_stopped() {
    let (scene, keeper, session) = scene("silent-files");
    for file in 0..FILES {
        let bytes = pattern(file as u8, LEN);
        std::fs::write(scene.path(&format!("old{file}")), bytes).expect("a file");
    }
    keeper.while_stopped(&session, || {
        for _ in 0..2 {
            let mut member = Member::of(&scene);
            for file in 0..FILES {
                member.does(&format!("look old{file}"));
                assert_eq!(member.does(&format!("holds {file} {LEN} 0")), "true");
                member.does("close");
                member.does(&format!("open new{file}"));
                member.does(&format!("write {file} {LEN}"));
                member.does("close");
            }
            member.ends();
        }
    });
    for file in 0..FILES {
        let bytes = std::fs::read(scene.path(&format!("new{file}"))).expect("a file");
        assert!(bytes.starts_with(&pattern(file as u8, LEN)));
    }
}

/// Connections that nobody takes in fill the socket's queue; who comes then must not wait to be taken in.
#[test]
fn programs_begin_while_nobody_takes_connections() {
    let (scene, keeper, session) = scene("silent-queue");
    let arena = session.place().expect("a place").path;
    let place = arena.expect("a path").with_extension("sock");
    keeper.while_stopped(&session, || {
        let mut waiting = Vec::new();
        while let Ok(connection) = socket::connect(&place) {
            waiting.push(connection);
        }
        assert!(!waiting.is_empty());
        for file in 0..3 {
            let mut member = Member::of(&scene);
            member.does(&format!("open f{file}"));
            member.does(&format!("write {file} {LEN}"));
            member.ends();
        }
    });
    for file in 0..3 {
        let bytes = std::fs::read(scene.path(&format!("f{file}"))).expect("a file");
        assert!(bytes == pattern(file, LEN));
    }
}

const PIECE: usize = 64 * 1024;

/// Whether the keeper is still at a file whose close did not wait.
fn is_leased(session: &Session) -> bool {
    let superblock = session.shared().arena.superblock();
    superblock.leased.load(Ordering::Acquire) != 0
}

/// A file of 64 pieces that the keeper, which is stopped by then, was just writing because a close has left it to it.
fn leave_to_stopped(member: &mut Member, keeper: &Keeper, session: &Session) -> String {
    let caught = (0..200).find(|file| {
        member.does(&format!("open f{file}"));
        for _ in 0..64 {
            member.does(&format!("write 5 {PIECE}"));
        }
        member.does("close");
        keeper.stop();
        if !is_leased(session) {
            keeper.signal(libc::SIGCONT);
        }
        is_leased(session)
    });
    format!("f{}", caught.expect("a lease"))
}

/// Who does not wait for the keeper any longer sets times that the keeper does not take back when it goes on.
#[test]
fn times_that_are_set_after_a_close_stay() {
    const TIME: i64 = 1_000_000_000;
    let (scene, keeper, session) = scene("silent-times");
    let mut member = Member::of(&scene);
    let file = leave_to_stopped(&mut member, &keeper, &session);
    member.does(&format!("touch {file} {TIME}"));
    assert_eq!(member.does(&format!("modified {file}")), TIME.to_string());
    keeper.signal(libc::SIGCONT);
    in_the_end("it is written", || {
        !is_leased(&session) && session.stats().owed_bytes == 0
    });
    assert_eq!(member.does(&format!("modified {file}")), TIME.to_string());
    assert_eq!(modified(&scene.path(&file)), TIME);
    let bytes = std::fs::read(scene.path(&file)).expect("a file");
    assert!(bytes.chunks(PIECE).all(|piece| piece == pattern(5, PIECE)));
    assert_eq!(bytes.len(), 64 * PIECE);
    member.ends();
}

/// A keeper that does not get on has its lease for longer than anybody looks: who does not want to wait for it is not told of it.
#[test]
fn no_program_hears_of_a_lease_of_the_keepers() {
    let (scene, keeper, session) = scene("silent-lease");
    let mut member = Member::of(&scene);
    let file = leave_to_stopped(&mut member, &keeper, &session);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2500));
            keeper.signal(libc::SIGCONT);
        });
        member.does(&format!("peek {file}"));
    });
    let last = 63 * PIECE;
    assert_eq!(member.does(&format!("holds 5 {PIECE} {last}")), "true");
    member.ends();
}

/// A keeper that has no descriptor left turns programs away at once: they go on without it.
#[test]
fn whoever_a_keeper_without_descriptors_turns_away_knows_it() {
    let (scene, keeper, session) = scene("silent-full");
    let arena = session.place().expect("a place").path;
    let place = arena.expect("a path").with_extension("sock");
    let limit = libc::rlimit {
        rlim_cur: 64,
        rlim_max: 64,
    };
    let (which, none) = (libc::RLIMIT_NOFILE, std::ptr::null_mut());
    // SAFETY: reads one structure of ours.
    let set = unsafe { libc::prlimit(keeper.process(), which, &raw const limit, none) };
    assert_eq!(set, 0);
    // More than it has, and fewer than may wait.
    let connect = |_| socket::connect(&place).expect("a connection");
    let connections: Vec<_> = (0..64).map(connect).collect();
    let last = connections.last().expect("a connection").as_fd();
    in_the_end("the last one is turned away", || {
        socket::wait_readable(&[last], 10).expect("a socket")
            && matches!(socket::receive(last, &mut [0]), Ok((0, _)))
    });
    for file in 0..3 {
        let mut member = Member::of(&scene);
        member.does(&format!("open f{file}"));
        member.does(&format!("write {file} {LEN}"));
        assert_eq!(member.does(&format!("holds {file} {LEN} 0")), "true");
        member.does("close");
        member.ends();
        let bytes = std::fs::read(scene.path(&format!("f{file}"))).expect("a file");
        assert!(bytes == pattern(file, LEN));
    }
}

/// A client that got no answer is still there.
#[test]
fn a_file_is_open_when_the_keeper_goes_on() {
    let (scene, keeper, session) = scene("silent-counts");
    let superblock = session.shared().arena.superblock();
    let opens = |name: &str| {
        let files = session.files();
        files
            .iter()
            .any(|file| file.path == scene.path(name) && file.is_open)
    };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    keeper.while_stopped(&session, || {
        for file in 0..FILES {
            member.does(&format!("open b{file}"));
            member.does(&format!("write 2 {LEN}"));
            member.does("close");
        }
        member.does("open c");
        member.does(&format!("write 3 {LEN}"));
    });
    // A tick begins a round, in which everybody is answered: after two of them all have been.
    for _ in 0..2 {
        let tick = superblock.tick.load(Ordering::Acquire);
        in_the_end("the keeper goes on", || {
            superblock.tick.load(Ordering::Acquire) != tick
        });
    }
    assert!(opens("a"), "the keeper takes the program for gone");
    assert!(opens("c"));
    assert!(!opens("b0"));
    // And it answers again, each question with its own answer.
    member.does(&format!("write 4 {LEN}"));
    member.does("close");
    member.does("look b0");
    assert_eq!(member.does(&format!("holds 2 {LEN} 0")), "true");
    member.ends();
    let bytes = std::fs::read(scene.path("c")).expect("a file");
    assert!(bytes == [pattern(3, LEN), pattern(4, LEN)].concat());
}
