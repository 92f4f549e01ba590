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
use crate::sys::pattern;

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

/// A keeper that does not get on has its lease for longer than anybody looks: who does not want to wait for it is not told of it.
#[test]
fn no_program_hears_of_a_lease_of_the_keepers() {
    const PIECE: usize = 64 * 1024;
    let (scene, keeper, session) = scene("silent-lease");
    let leased = || {
        session
            .shared()
            .arena
            .superblock()
            .leased
            .load(Ordering::Acquire)
            != 0
    };
    let mut member = Member::of(&scene);
    // Until it is stopped while it writes what a close has left to it.
    let caught = (0..200).find(|file| {
        member.does(&format!("open f{file}"));
        for _ in 0..64 {
            member.does(&format!("write 5 {PIECE}"));
        }
        member.does("close");
        keeper.stop();
        if !leased() {
            keeper.signal(libc::SIGCONT);
        }
        leased()
    });
    let file = caught.expect("a lease");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2500));
            keeper.signal(libc::SIGCONT);
        });
        member.does(&format!("peek f{file}"));
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
