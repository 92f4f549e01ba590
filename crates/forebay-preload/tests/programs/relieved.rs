//! Outsiders that change a file which a program of the session has open, when the session's keeper is stopped or has just been killed: what they
//! write stays, and so does what the session had acknowledged. They do not wait for long, whatever the keeper was at.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::Session;
use forebay_model::{SplitMix64, fresh_seed};

use crate::keepers::Keeper;
use crate::outsiders::{LONG, Member, SHORT, in_the_end, outsider, reads, strict};
use crate::scene::{Scene, config};
use crate::sys::pattern;

/// Nobody outside waits for longer for what stands still, but for one in a hundred, since a busy machine may give somebody no turn.
const SOON: Duration = Duration::from_secs(1);
/// Nobody at all waits for longer. The kernel alone would have them wait for 45 s.
const LATE: Duration = Duration::from_secs(4);

/// Holds waits to [`SOON`] and [`LATE`].
fn assert_short(mut waits: Vec<Duration>) {
    waits.sort();
    let (count, slowest) = (waits.len(), *waits.last().expect("waits"));
    let late = waits.iter().filter(|&&wait| wait >= SOON).count();
    assert!(
        late * 100 <= count.max(100),
        "{late} of {count} wait for long, {slowest:?} the longest"
    );
    assert!(slowest < LATE, "{slowest:?}");
}

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

#[test]
fn what_an_outsider_appends_while_the_keeper_is_stopped_stays() {
    for turn in 0..8 {
        let Some(mut scene) = strict("halted") else {
            return;
        };
        let keeper = Keeper::relieved(&mut scene);
        let mut member = Member::of(&scene);
        member.does("log a");
        member.does("text first");
        let session = Session::join(config(&scene.name)).expect("a session");
        keeper.stop_at_rest(&session);
        keeper.await_relief();
        appends(&scene, "a", "outside");
        member.does("text second");
        appends(&scene, "a", "later");
        member.does("text third");
        let mut member = Some(member);
        if let Some(member) = member.take_if(|_| turn % 2 == 0) {
            member.ends();
        }
        let keeper = match turn % 4 {
            3 => {
                drop(keeper);
                None
            }
            _ => {
                keeper.signal(libc::SIGCONT);
                Some(keeper)
            }
        };
        let wanted = ["first", "outside", "second", "later", "third"];
        assert_eq!(lines(&scene, "a"), wanted, "{turn}");
        if let Some(member) = member {
            member.ends();
        }
        drop((session, keeper));
        assert_eq!(lines(&scene, "a"), wanted, "{turn}, at the end");
    }
}

/// Whoever stands in for a keeper hands over to it, and stands in again.
#[test]
fn what_an_outsider_appends_while_the_keeper_is_stopped_again_and_again_stays() {
    let Some(mut scene) = strict("again") else {
        return;
    };
    let mut random = SplitMix64::new(fresh_seed());
    let keeper = Keeper::relieved(&mut scene);
    let mut member = Member::of(&scene);
    let session = Session::join(config(&scene.name)).expect("a session");
    let wanted = ["first", "outside", "second", "later", "third"];
    for turn in 0..12 {
        let name = format!("a{turn}");
        member.does(&format!("log {name}"));
        member.does("text first");
        keeper.stop_at_rest(&session);
        // The last one before it goes on, or the first one after.
        let before = turn % 2 == 0;
        if before {
            keeper.await_relief();
            appends(&scene, &name, "outside");
        } else {
            std::thread::sleep(Duration::from_millis(random.below(400)));
        }
        keeper.signal(libc::SIGCONT);
        in_the_end("nobody stands in", || keeper.reliefs().is_empty());
        if !before {
            appends(&scene, &name, "outside");
        }
        member.does("text second");
        appends(&scene, &name, "later");
        member.does("text third");
        member.does("close");
        assert_eq!(lines(&scene, &name), wanted, "{turn}");
    }
    member.ends();
    drop((session, keeper));
    for turn in 0..12 {
        assert_eq!(
            lines(&scene, &format!("a{turn}")),
            wanted,
            "{turn}, at the end"
        );
    }
}

#[test]
fn nobody_waits_for_a_relief_of_a_stopped_keeper_that_is_stopped_or_killed() {
    let mut waits = Vec::new();
    for signal in [libc::SIGSTOP, libc::SIGKILL, libc::SIGSTOP, libc::SIGKILL] {
        let Some(mut scene) = strict("gone") else {
            return;
        };
        let (keeper, mut member, session) = writes(&mut scene);
        keeper.stop_at_rest(&session);
        in_the_end("somebody stands in", || !keeper.reliefs().is_empty());
        for relief in keeper.reliefs() {
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::kill(relief, signal) }, 0);
        }
        waits.push(reads(&scene, "a").1);
        keeper.signal(libc::SIGCONT);
        assert_eq!(member.does(&format!("holds 1 {SHORT} 0")), "true");
        in_the_end("nobody stands in", || keeper.reliefs().is_empty());
        assert!(reads(&scene, "a").0 == pattern(1, SHORT));
        member.ends();
        drop(session);
    }
    assert_short(waits);
}

/// It may have any file in hand, and any lock. Others than those that it has at that moment are not waited for.
#[test]
fn nobody_waits_for_many_files_of_a_keeper_that_is_stopped_at_any_moment() {
    const FILES: usize = 300;
    const THREADS: usize = 4;
    let mut random = SplitMix64::new(fresh_seed());
    for turn in 0..4 {
        let Some(mut scene) = strict("many") else {
            return;
        };
        let keeper = Keeper::relieved(&mut scene);
        let mut member = Member::of(&scene);
        member.begins(&format!("storm {FILES}"));
        in_the_end("all are open", || scene.path("begun").exists());
        std::thread::sleep(Duration::from_micros(random.below(400_000)));
        keeper.stop();
        let begun = Instant::now();
        let scene = &scene;
        let waits: Vec<Duration> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|first| {
                    scope.spawn(move || {
                        let files = (first..FILES).step_by(THREADS);
                        let append = |at| append_to(&scene.path(&format!("log{at}")));
                        files.map(append).collect::<Vec<_>>()
                    })
                })
                .collect();
            let joined = threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("an end"));
            joined.collect()
        });
        let all = begun.elapsed();
        std::fs::write(scene.path("enough"), "").expect("a mark");
        keeper.signal(libc::SIGCONT);
        let records: usize = member.answers().parse().expect("a number");
        member.ends();
        drop(keeper);
        let texts = (0..FILES).map(|at| lines(scene, &format!("log{at}")));
        let counts: Vec<_> = texts
            .map(|text| {
                let of = |who: &str| text.iter().filter(|line| line.starts_with(who)).count();
                (of("inside"), of("outside"))
            })
            .collect();
        let lost = |count: usize, of: fn(&(usize, usize)) -> usize| {
            FILES * count - counts.iter().map(of).sum::<usize>()
        };
        let (inside, outside) = (lost(records, |counts| counts.0), lost(1, |counts| counts.1));
        println!(
            "{turn}: {all:?}, {:?} for the slowest of {FILES} files; lost: {outside} of the outsider's records, {inside} of {} of the session's",
            waits.iter().max(),
            FILES * records
        );
        assert_short(waits);
        assert!(all < 5 * LATE, "{all:?}");
    }
}

/// Others than those that it has in hand are not waited for either.
#[test]
fn nobody_waits_for_long_while_the_keeper_is_stopped_again_and_again() {
    let Some(mut scene) = strict("now-and-then") else {
        return;
    };
    let mut random = SplitMix64::new(fresh_seed());
    let keeper = Keeper::relieved(&mut scene);
    let mut member = Member::of(&scene);
    member.begins("lines a 20000");
    in_the_end("there is a file", || scene.path("a").exists());
    let (ended, path) = (AtomicBool::new(false), scene.path("a"));
    let waits = std::thread::scope(|scope| {
        let appends = scope.spawn(|| {
            let mut waits = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                waits.push(append_to(&path));
                std::thread::sleep(Duration::from_millis(1));
            }
            waits
        });
        for _ in 0..30 {
            keeper.stop();
            std::thread::sleep(Duration::from_millis(random.below(400)));
            keeper.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(random.below(100)));
        }
        ended.store(true, Ordering::Relaxed);
        appends.join().expect("an end")
    });
    member.answers();
    member.ends();
    drop(keeper);
    let text = lines(&scene, "a");
    let of = |who: &str| text.iter().filter(|line| line.starts_with(who)).count();
    let (inside, outside) = (20_000 - of("inside"), waits.len() - of("outside"));
    println!(
        "{:?} for the slowest of {}; lost: {outside} of the outsider's records, {inside} of the session's",
        waits.iter().max(),
        waits.len()
    );
    assert_short(waits);
}

/// How long it takes to open it.
fn append_to(path: &Path) -> Duration {
    let begun = Instant::now();
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.append(true).open(path).expect("opened");
    let took = begun.elapsed();
    file.write_all(b"outside\n").expect("written");
    took
}
