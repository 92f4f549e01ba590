//! Several processes in one session, on the same files.
//!
//! Each test starts workers (this program again, see `workers`) in a session of its own. Runs in every directory that
//! `FOREBAY_TEST_DIRS` names (separated by colons), or in a temporary one.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::held::Held;
use forebay::ids::ThreadId;
use forebay::memory::threads;
use forebay::sim::Bug;
use forebay::{File, OpenOptions, Session};
use forebay_model::{
    BLOCK_BYTES, Model, Op, Outcome, PartitionPlan, Profile, SplitMix64, Target, generate,
};
use here::directories;
use workers::{Spec, Work, Worker, answer, bytes_of, config, plan, record, session_name};

/// How long what happens soon is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives the files of a plan their lengths, before anybody joins.
fn prepare(plan: &PartitionPlan, dir: &Path) {
    for op in &plan.prepare {
        let Op::SetLen { file, len, .. } = *op else {
            panic!("plans set lengths");
        };
        let made = std::fs::File::create(dir.join(format!("file-{file}"))).expect("a file");
        made.set_len(len).expect("a length");
    }
}

/// Everybody has left: the files are what the plan says, as the kernel sees them.
fn assert_finished(plan: &PartitionPlan, dir: &Path) {
    let driver = plan.finished();
    for file in 0..driver.model().files() as u8 {
        let image = std::fs::File::open(dir.join(format!("file-{file}"))).expect("the file");
        if let Err(mismatch) = driver.model().after_death(file, &[], &image) {
            panic!("{}: {mismatch}", dir.display());
        }
    }
}

/// The last process to leave has removed the session.
fn assert_gone(session: &str) {
    let config = config(session);
    let arena = workers::arena_path(&config);
    if arena.exists() {
        let report = forebay::keeper::recover::recover(&arena, &config);
        panic!("{} is left behind: {report:?}", arena.display());
    }
    assert!(
        !arena.with_extension("sock").exists(),
        "a socket is left behind"
    );
}

fn partition(name: &str, hosts: &[bool], seeds: std::ops::Range<u64>) {
    for dir in directories() {
        for seed in here::seeds(seeds.clone(), 1) {
            eprintln!("FOREBAY_TEST_SEED={seed}");
            let session = session_name(name);
            let dir = dir.path().join(seed.to_string());
            std::fs::create_dir(&dir).expect("a directory");
            let plan = plan(seed, hosts.len(), 60);
            prepare(&plan, &dir);
            let mut all: Vec<Worker> = (0..hosts.len())
                .map(|me| {
                    let work = Work::Partition {
                        seed,
                        workers: hosts.len(),
                        me,
                        ops: 60,
                    };
                    Worker::ready(&Spec::new(&session, &dir, hosts[me], work))
                })
                .collect();
            all.iter_mut().for_each(Worker::go);
            for worker in all {
                worker.finish();
            }
            assert_finished(&plan, &dir);
            assert_gone(&session);
        }
    }
}

#[test]
fn processes_write_their_parts_of_shared_files() {
    partition("parts", &[true, false, false], 0..6);
}

#[test]
fn processes_do_without_a_keeper() {
    partition("nobody", &[false, false], 10..14);
}

#[test]
fn several_hosts_share_the_keeping() {
    partition("hosts", &[true, true, true], 20..23);
}

/// What four appenders have put into one file: every record once, whole, where its writer was told.
fn assert_records(path: &Path, told: &[Vec<(usize, u64)>]) {
    let bytes = std::fs::read(path).expect("the file");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut found = vec![Vec::new(); told.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (me, index) = (word(at) as usize, word(at + 4) as usize);
        assert!(me < told.len(), "no record begins at {at}");
        let expected = record(me, index);
        let end = at + expected.len();
        assert!(end <= bytes.len(), "a record is cut at the end");
        assert!(bytes[at..end] == expected, "the record at {at} is torn");
        found[me].push((index, at as u64));
        at = end;
    }
    assert_eq!(
        found, told,
        "records are lost, or not where their writers were told"
    );
}

#[test]
fn appends_of_four_processes_are_whole_and_all_there() {
    for dir in directories() {
        let session = session_name("append");
        let start = |me: usize| {
            let work = Work::Appends { me, count: 150 };
            Worker::ready(&Spec::new(&session, dir.path(), me == 0, work))
        };
        let mut all: Vec<Worker> = (0..4).map(start).collect();
        all.iter_mut().for_each(Worker::go);
        let told: Vec<_> = all
            .into_iter()
            .map(|worker| {
                let ended = worker.end();
                ended.assert_good();
                ended.appends()
            })
            .collect();
        assert!(told.iter().all(|appends| appends.len() == 150));
        assert_records(&dir.path().join("file-0"), &told);
        assert_gone(&session);
    }
}

fn write(offset: u64, len: u32, seed: u32) -> Op {
    Op::Write {
        file: 0,
        handle: 0,
        offset,
        len,
        seed,
    }
}

fn read(offset: u64, len: u32) -> Op {
    Op::Read {
        file: 0,
        handle: 0,
        offset,
        len,
    }
}

const LEN: Op = Op::Len { file: 0, handle: 0 };
const SYNC: Op = Op::SyncAll { file: 0, handle: 0 };

fn commander(session: &str, dir: &Path, hosts: bool) -> Worker {
    Worker::ready(&Spec::new(session, dir, hosts, Work::Commands { files: 1 }))
}

fn length(len: u64) -> String {
    answer(&Outcome::Length(len))
}

#[test]
fn acknowledged_bytes_and_sizes_are_seen_at_once() {
    for dir in directories() {
        let session = session_name("seen");
        let mut one = commander(&session, dir.path(), true);
        let mut two = commander(&session, dir.path(), false);
        let mut end = 0u64;
        for round in 0..60u32 {
            let (writer, reader) = if round % 2 == 0 {
                (&mut one, &mut two)
            } else {
                (&mut two, &mut one)
            };
            let offset = u64::from(round) * 3001 % 500_000;
            let len = 1 + round * 997 % 9000;
            writer.run(&write(offset, len, round + 1));
            end = end.max(offset + u64::from(len));
            assert_eq!(reader.run(&LEN), length(end));
            assert_eq!(
                reader.run(&read(offset, len)),
                bytes_of(round + 1, offset, len as usize)
            );
        }
        one.run(&Op::SetLen {
            file: 0,
            handle: 0,
            len: 1000,
        });
        assert_eq!(two.run(&LEN), length(1000));
        assert_eq!(
            two.run(&read(1000, 10)),
            answer(&Outcome::Bytes(Vec::new()))
        );
        two.run(&Op::SetLen {
            file: 0,
            handle: 0,
            len: 3000,
        });
        assert_eq!(
            one.run(&read(1000, 2000)),
            answer(&Outcome::Bytes(vec![0; 2000]))
        );
        two.finish();
        one.finish();
        assert_gone(&session);
    }
}

/// A keeper's host ends, in good order or not; those who stay lose nothing and find a successor.
fn successor(kill: bool, others: [bool; 2]) {
    for dir in directories() {
        let session = session_name("successor");
        let mut keeper = commander(&session, dir.path(), true);
        let mut one = commander(&session, dir.path(), others[0]);
        let mut two = commander(&session, dir.path(), others[1]);
        keeper.run(&write(0, 300_000, 1));
        one.run(&write(300_000, 100_000, 2));
        if kill {
            keeper.kill();
            keeper.end().assert_good_or_killed();
        } else {
            keeper.finish();
        }
        one.run(&write(400_000, 50_000, 3));
        two.run(&write(1_000_000, 5000, 4));
        for worker in [&mut one, &mut two] {
            assert_eq!(worker.run(&read(0, 300_000)), bytes_of(1, 0, 300_000));
            assert_eq!(
                worker.run(&read(300_000, 100_000)),
                bytes_of(2, 300_000, 100_000)
            );
            assert_eq!(
                worker.run(&read(400_000, 50_000)),
                bytes_of(3, 400_000, 50_000)
            );
            assert_eq!(
                worker.run(&read(1_000_000, 5000)),
                bytes_of(4, 1_000_000, 5000)
            );
        }
        if others[0] || others[1] {
            await_on_disk(&dir.path().join("file-0"), 4, 1_000_000, 5000);
        }
        assert_eq!(two.run(&SYNC), "done");
        one.finish();
        two.finish();
        await_on_disk(&dir.path().join("file-0"), 1, 0, 300_000);
        assert_gone(&session);
    }
}

/// A process holds views while the keeper is killed, its work is repaired and another one keeps: they stay what they were.
#[test]
fn views_outlive_their_keeper() {
    let dir = directories().remove(0);
    let session = session_name("views-keeper");
    let mut keeper = commander(&session, dir.path(), true);
    keeper.run(&write(0, 1_000_000, 1));
    let mine = Session::join(config(&session)).expect("the session");
    let path = dir.path().join("file-0");
    let file = mine.open_file(&path, OpenOptions::new().read(true).write(true));
    let file = file.expect("the file");
    let view = file.view(0..1_000_000).expect("a view");
    let mut own = file.view_private(100..900_000).expect("a view");
    // Where the kernel serves the file there is nothing but copies.
    let by_kernel = file.kernel_reason().is_some();
    assert_eq!([view.is_copy(), own.is_copy()], [by_kernel; 2]);
    own[7] ^= 0xFF;
    let mut stored = own.to_vec();
    let mut expected = vec![0; 1_000_000];
    forebay_model::fill(1, 0, &mut expected);
    let mut check = |when: &str, own: &mut forebay::PrivateView| {
        assert!(view[..] == expected, "{when}");
        assert!(own[..] == stored, "{when}");
        own[300_000] ^= 1;
        stored[300_000] ^= 1;
    };
    keeper.run(&write(10, 300_000, 2));
    keeper.kill();
    keeper.end().assert_good_or_killed();
    check("without a keeper", &mut own);
    let mut next = commander(&session, dir.path(), true);
    // All of the file, over what the views hold, through all of the memory.
    for round in 0..8 {
        next.run(&write(0, 1_000_000, 3 + round));
        next.run(&write(1_000_000 * u64::from(round + 1), 1_000_000, 3));
        check("the next one writes", &mut own);
    }
    assert_eq!(next.run(&SYNC), "done");
    assert_eq!(next.run(&Op::Evict { file: 0 }), "done");
    check("the next one evicts", &mut own);
    assert_eq!(next.run(&read(0, 1_000_000)), bytes_of(10, 0, 1_000_000));
    check("the next one reads", &mut own);
    drop((view, own));
    let superblock = mine.shared().arena.superblock();
    let pinned = superblock
        .frames_pinned
        .load(forebay::sync::Ordering::Acquire);
    assert_eq!(pinned, 0);
    file.close().expect("closed");
    drop(mine);
    next.finish();
    assert_gone(&session);
}

/// A view of a random part of a file whose content `model` has, and the bytes. `None`: it is a copy or empty, which nobody can change.
fn take_view(file: &File, model: &Model, dice: &mut SplitMix64) -> Option<(Held, Vec<u8>)> {
    let start = dice.below(5 * BLOCK_BYTES);
    let most = [5000, BLOCK_BYTES, 3 * BLOCK_BYTES][dice.below(3) as usize];
    let range = start..start + dice.below(most);
    let expected = model.content(0).read(start, range.end - start);
    let view = Held::take(file, range.clone(), dice.below(2) != 0).expect("a view");
    assert!(view[..] == expected, "a new view of {range:?}");
    (!view.is_copy() && !view.is_empty()).then_some((view, expected))
}

/// Another process, which keeps the session, carries out random operations while this one holds views. Whether the engine had the file: where
/// the kernel serves it there is nothing but copies.
fn views_beside_a_worker(dir: &Path, seed: u64, count: usize) -> bool {
    eprintln!("FOREBAY_TEST_SEED={seed}");
    let session = session_name("views-beside");
    let mut spec = Spec::new(&session, dir, true, Work::Commands { files: 1 });
    // Sixteen frames, of which half may be pinned: what the views show has to make way.
    spec.memory = Some(4 << 20);
    let mut worker = Worker::ready(&spec);
    let mine = Session::join(config(&session)).expect("the session");
    let path = dir.join("file-0");
    let file = mine.open_file(&path, OpenOptions::new().read(true).write(true));
    let file = file.expect("the file");
    let profile = Profile {
        files: 1,
        handles: 1,
        ..Profile::TINY
    };
    let mut model = Model::new(1, 1);
    let mut dice = SplitMix64::new(seed);
    let mut held: Vec<(Held, Vec<u8>)> = Vec::new();
    let mut taken = 0;
    for op in generate(seed, &profile, count) {
        let when = format!("seed {seed}: after {op:?}");
        let (said, right) = (worker.run(&op), answer(&model.apply(&op)));
        assert!(said == right, "{when}: {said:.100}, not {right:.100}");
        for (view, expected) in &mut held {
            assert!(view[..] == *expected, "{when}");
            if dice.below(4) == 0 {
                view.store(expected, &mut dice);
            }
        }
        if held.len() == 6 || !held.is_empty() && dice.below(6) == 0 {
            held.swap_remove(dice.below(held.len() as u64) as usize);
        }
        if let Some(view) = take_view(&file, &model, &mut dice) {
            taken += 1;
            held.push(view);
        }
    }
    let by_engine = file.kernel_reason().is_none();
    assert!(
        taken > 5 || !by_engine,
        "seed {seed}: {taken} views were no copies"
    );
    drop(held);
    let superblock = mine.shared().arena.superblock();
    let pinned = &superblock.frames_pinned;
    assert_eq!(pinned.load(forebay::sync::Ordering::Acquire), 0);
    file.close().expect("closed");
    drop(mine);
    worker.finish();
    assert_gone(&session);
    let content = model.content(0);
    let bytes = std::fs::read(&path).expect("the file");
    let expected = content.read(0, content.len());
    assert!(bytes == expected, "seed {seed}: the file at the end");
    std::fs::remove_file(&path).expect("removed");
    by_engine
}

#[test]
fn views_never_change_while_another_process_works() {
    let dir = directories().remove(0);
    for seed in here::seeds(0..6, 2) {
        views_beside_a_worker(dir.path(), seed, 150);
    }
}

/// The other process writes into what a view shows, or frees it.
#[test]
fn another_process_that_disregards_views_is_found() {
    let dir = directories().remove(0);
    if !views_beside_a_worker(dir.path(), 0, 150) {
        return here::skipped("the kernel serves files here, so that views are copies");
    }
    for bug in [Bug::WriteInPlace, Bug::FreePinned] {
        let is_found = (0..20).any(|seed| {
            let dir = directories().remove(0);
            workers::is_found(bug, || {
                views_beside_a_worker(dir.path(), seed, 150);
            })
        });
        assert!(is_found, "{bug:?} was planted, and nothing went wrong");
    }
}

/// Waits until the kernel sees the bytes in the file: a keeper has flushed them.
fn await_on_disk(path: &Path, seed: u32, offset: u64, len: usize) {
    let mut expected = vec![0; len];
    forebay_model::fill(seed, offset, &mut expected);
    let mut found = vec![0; len];
    for _ in 0..6000 {
        let file = std::fs::File::open(path).expect("the file");
        if matches!(file.read_exact_at(&mut found, offset), Ok(()) if found == expected) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!(
        "{}: nobody has flushed {len} bytes at {offset}",
        path.display()
    );
}

#[test]
fn another_host_succeeds_a_keeper_that_leaves() {
    successor(false, [true, false]);
}

#[test]
fn another_host_succeeds_a_keeper_that_is_killed() {
    successor(true, [false, true]);
}

#[test]
fn clients_go_on_without_any_keeper() {
    successor(true, [false, false]);
    successor(false, [false, false]);
}

#[test]
fn a_file_that_was_unlinked_while_open_works_while_its_client_lives() {
    for dir in directories() {
        let session = session_name("unlinked");
        let mut keeper = commander(&session, dir.path(), true);
        let mut client = commander(&session, dir.path(), false);
        client.run(&write(0, 100_000, 1));
        std::fs::remove_file(dir.path().join("file-0")).expect("it is there");
        client.run(&write(100_000, 400_000, 2));
        keeper.kill();
        keeper.end().assert_good_or_killed();
        let mut second = commander(&session, dir.path(), true);
        assert_eq!(client.run(&read(0, 100_000)), bytes_of(1, 0, 100_000));
        assert_eq!(
            client.run(&read(100_000, 400_000)),
            bytes_of(2, 100_000, 400_000)
        );
        client.run(&write(50_000, 100, 3));
        assert_eq!(client.run(&SYNC), "done");
        assert_eq!(client.run(&Op::Evict { file: 0 }), "done");
        assert_eq!(client.run(&read(0, 50_000)), bytes_of(1, 0, 50_000));
        assert_eq!(client.run(&read(50_000, 100)), bytes_of(3, 50_000, 100));
        // The name is another file's by now: nothing of the old one may show in it.
        assert_eq!(second.run(&LEN), length(0));
        client.finish();
        second.finish();
        assert_gone(&session);
    }
}

#[test]
fn a_keeper_flushes_for_a_client_that_has_died() {
    for dir in directories() {
        let session = session_name("orphan");
        let mut keeper = commander(&session, dir.path(), true);
        let mut client = commander(&session, dir.path(), false);
        client.run(&write(0, 777_777, 5));
        client.kill();
        client.end().assert_good_or_killed();
        assert_eq!(keeper.run(&read(0, 777_777)), bytes_of(5, 0, 777_777));
        await_on_disk(&dir.path().join("file-0"), 5, 0, 777_777);
        keeper.finish();
        assert_gone(&session);
    }
}

#[test]
fn many_sessions_one_after_the_other_in_one_thread() {
    let dir = directories().remove(0);
    for round in 0..5u32 {
        let name = session_name("again");
        let session = Session::open(config(&name)).expect("a session");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let path = dir.path().join("file");
        let file = session.open_file(&path, &options).expect("a file");
        file.write_at(&round.to_le_bytes(), u64::from(round) * 4)
            .expect("written");
        drop(file);
        drop(session);
        assert_gone(&name);
    }
    let bytes = std::fs::read(dir.path().join("file")).expect("the file");
    let expected: Vec<u8> = (0..5u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(bytes, expected);
}

/// Files come and go: descriptors are given back, and an entry that is used again is not mistaken for its last file.
#[test]
fn a_client_that_opens_many_files_keeps_none_of_them() {
    let dir = directories().remove(0);
    let name = session_name("many");
    let session = Session::join(config(&name)).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let open = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let before = open();
    for index in 0..50u32 {
        let path = dir.path().join(format!("f{index}"));
        let file = session.open_file(&path, &options).expect("a file");
        file.write_at(&index.to_le_bytes(), 0).expect("written");
        file.close().expect("closed");
        assert_eq!(std::fs::read(&path).expect("there"), index.to_le_bytes());
    }
    // Other tests of this program run beside this one.
    assert!(
        open() < before + 60,
        "{} descriptors more than before",
        open() - before
    );
}

/// Files that may be read, and not opened for writing once more, are the kernel's, and it is said why. (Root may do
/// anything, and then the file is managed like any other.)
#[test]
fn a_file_that_may_not_be_written_is_served_by_the_kernel() {
    use std::os::unix::fs::PermissionsExt;
    for dir in directories() {
        let path = dir.path().join("read-only");
        std::fs::write(&path, b"as it is").expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).expect("its mode");
        let session = Session::open(config(&session_name("mode"))).expect("a session");
        let file = session
            .open_file(&path, OpenOptions::new().read(true))
            .expect("it can be read");
        // SAFETY: a call without arguments.
        let root = unsafe { libc::geteuid() } == 0;
        assert!(root || file.kernel_reason().is_some());
        let mut bytes = [0; 20];
        assert_eq!(file.read_at(&mut bytes, 3).expect("reads"), 5);
        assert_eq!(&bytes[..5], b"it is");
        let refused = session
            .open_file(&path, OpenOptions::new().write(true))
            .map(drop);
        assert!(root || matches!(refused, Err(e) if e.errno() == libc::EACCES));
        // Made so by a program that may write it all the same, as `open` with a mode does.
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o444);
        let path = dir.path().join("made-so");
        options
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("a file");
        let read = session
            .open_file(&path, OpenOptions::new().read(true))
            .expect("reads");
        assert_eq!(read.len().expect("a length"), 0);
    }
}

/// A file that somebody else owns and everybody may write: times cannot be put back, and recovery writes it all the same.
#[test]
fn a_file_of_somebody_else_is_recovered() {
    let Ok(path) = std::env::var("FOREBAY_TEST_FOREIGN") else {
        return here::skipped("FOREBAY_TEST_FOREIGN names no directory with such a file");
    };
    let session = session_name("foreign");
    let mut worker = commander(&session, Path::new(&path), false);
    worker.run(&write(0, 300_000, 9));
    worker.kill();
    worker.end().assert_good_or_killed();
    let config = config(&session);
    let report = forebay::keeper::recover::recover(&workers::arena_path(&config), &config);
    let report = report.expect("a report");
    assert!(report.removed, "{report:?}");
    await_on_disk(&Path::new(&path).join("file-0"), 9, 0, 300_000);
}

#[test]
fn commands_answer_as_the_model_does() {
    // A check on the checker: an answer that is wrong is seen.
    let mut model = forebay_model::Model::new(1, 1);
    let mut target = |op: &Op| model.apply(op);
    assert_eq!(answer(&target.run(&write(0, 10, 1))), "10 bytes written");
    assert_eq!(answer(&target.run(&read(0, 10))), bytes_of(1, 0, 10));
    assert_ne!(answer(&target.run(&read(0, 10))), bytes_of(2, 0, 10));
}

/// A child that is forked and ends in good order runs what its thread's locals run at their end.
#[test]
fn a_forked_child_that_ends_leaves_its_parent_its_place() {
    let session = Session::open(config(&session_name("forked-child"))).expect("a session");
    let me = session.shared().me().expect("a place");
    let life = threads::life(me.arena, me.id);
    assert!(life.is_some());
    // SAFETY: the child ends, and runs what this thread would run at its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::exit(0) };
    }
    let mut status = 0;
    // SAFETY: the target is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(threads::life(me.arena, me.id), life, "it was given away");
}

/// Slots that can neither be taken nor are a living thread's of this process, all at one moment.
fn lost_slots(session: &Session) -> Vec<ThreadId> {
    let arena = &*session.shared().arena;
    let taken: Vec<_> = std::iter::from_fn(|| threads::take(arena, false)).collect();
    let is_ours = |id| {
        let slot = arena.thread(id).expect("a slot");
        let ours = slot.pid.load(Ordering::Relaxed) == std::process::id();
        ours && threads::is_there(arena, id)
    };
    let all = (1..arena.counts().threads).map(ThreadId);
    let lost = all.filter(|id| !taken.contains(id) && !is_ours(*id));
    let lost = lost.collect();
    for id in taken {
        threads::release(threads::Me { arena, id });
    }
    lost
}

/// Waits until none is: a thread of the keeper's may give one back at that moment, and the dead are buried first. One that is lost stays so.
fn await_all_slots(session: &Session) {
    let begun = Instant::now();
    loop {
        let lost = lost_slots(session);
        if lost.is_empty() {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "lost: {lost:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Programs are killed again and again while their threads take slots and give them back.
#[test]
fn who_is_killed_at_taking_slots_loses_none() {
    let dir = directories().remove(0);
    let session = session_name("slots");
    let mine = Session::open(config(&session)).expect("a session");
    let work = Work::Slots { threads: 8 };
    for round in 0..20 {
        let mut worker = Worker::ready(&Spec::new(&session, dir.path(), false, work.clone()));
        worker.go();
        std::thread::sleep(Duration::from_micros(2000 + 300 * round));
        worker.kill();
        worker.end().assert_good_or_killed();
    }
    await_all_slots(&mine);
}

/// A process whose second thread, which has a slot, executes another program. The kernel does not mark that thread's mutex.
fn executed(session: &str) -> Worker {
    let dir = directories().remove(0);
    let mut worker = Worker::ready(&Spec::new(session, dir.path(), false, Work::Execute));
    worker.go();
    let name = format!("/proc/{}/comm", worker.pid());
    let begun = Instant::now();
    while std::fs::read_to_string(&name).expect("it lives") != "sleep\n" {
        assert!(begun.elapsed() < PATIENCE, "it executes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    worker
}

#[test]
fn a_session_whose_last_process_executed_a_program_is_recovered() {
    let session = session_name("executed-last");
    let mut worker = executed(&session);
    let config = config(&session);
    let arena = workers::arena_path(&config);
    let seen = forebay::session::look::look(&arena).expect("an arena");
    let members = seen.expect("a session").members();
    assert_eq!((members.threads, members.processes), (0, Vec::new()));
    let report = forebay::keeper::recover::recover(&arena, &config);
    assert!(report.expect("a report").removed);
    worker.kill();
    worker.end().assert_good_or_killed();
    assert_gone(&session);
}

#[test]
fn who_executed_a_program_is_no_member_and_has_no_slot() {
    let session = session_name("executed");
    let mine = Session::open(config(&session)).expect("a session");
    let mut worker = executed(&session);
    assert_eq!(mine.members().processes, [std::process::id()]);
    assert!(mine.others().is_empty());
    await_all_slots(&mine);
    worker.kill();
    worker.end().assert_good_or_killed();
}
