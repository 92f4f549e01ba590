//! Mounted pools of which the kernel keeps what it has (`--cache`): what it asks for no more, and what programs find all the same.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::pools::{self, Hosts};
use crate::scene::answers;

const CACHE: &[&str] = &["--cache"];

/// A pool that is mounted twice, whose requests go both ways.
fn hosts(name: &str, port: u16, more: &str) -> Option<Hosts> {
    let more = format!("copies = 2\npath = \"ratio:50\"\n{more}");
    Hosts::begin_with(name, port, &more, CACHE)
}

/// So long after another host has taken something of it a file is read past the pages.
fn pages_again() {
    thread::sleep(Duration::from_millis(1100));
}

fn to_write(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).expect("opened")
}

#[test]
fn what_the_kernel_has_of_a_pool_it_asks_for_no_more() {
    let times = 40;
    let count = |arguments| {
        let mut hosts = Hosts::begin_with("cached-counts", 7651, "", arguments)?;
        let [a, b] = hosts.points();
        // Written on the other host, so that nothing is here yet.
        fs::write(b.join("file"), [7; 16 << 10]).expect("written");
        pages_again();
        let read = || assert!(fs::read(a.join("file")).expect("read") == [7; 16 << 10]);
        (0..3).for_each(|_| read());
        let of_reads = answers(hosts.process(0).id(), || (0..times).for_each(|_| read()));
        let file = File::open(a.join("file")).expect("opened");
        let look = || assert_eq!(file.metadata().expect("told").len(), 16 << 10);
        look();
        let of_looks = answers(hosts.process(0).id(), || (0..times).for_each(|_| look()));
        drop(file);
        hosts.umount(1);
        hosts.umount(0);
        Some((of_reads, of_looks))
    };
    let (Some(without), Some(with)) = (count(&[]), count(CACHE)) else {
        return;
    };
    // Of seven, the name, opening and closing are left. A few writes are the pool's own.
    let is_left = 3 * times..3 * times + times / 2;
    assert!(without.0 >= 7 * times, "{without:?}");
    assert!(is_left.contains(&with.0), "{with:?}");
    assert!(
        without.1 >= times && with.1 < times / 2,
        "{without:?} and {with:?}"
    );
}

#[test]
fn who_opens_a_file_that_the_kernel_keeps_finds_what_was_written_before() {
    let Some(mut hosts) = hosts("cached-open", 7655, "") else {
        return;
    };
    let [a, b] = hosts.points();
    let (ours, theirs) = (a.join("file"), b.join("file"));
    fs::write(&theirs, [0; 20_000]).expect("written");
    let writer = to_write(&theirs);
    for round in 1..=100_u8 {
        // It is not synced, nor closed, and as long as before.
        writer.write_all_at(&[round; 20_000], 0).expect("written");
        if round % 30 < 2 {
            pages_again();
        }
        for _ in 0..2 {
            assert!(fs::read(&ours).expect("read") == [round; 20_000], "{round}");
        }
        // A part of it, on the same host, by another opening.
        to_write(&ours)
            .write_all_at(&[!round; 3], 9000)
            .expect("written");
        let there = fs::read(&ours).expect("read");
        assert_eq!(there[8999..9004], [round, !round, !round, !round, round]);
        // A mapping of what is read now.
        let there = fs::read(&theirs).expect("read");
        assert_eq!(there[8999..9004], [round, !round, !round, !round, round]);
    }
    drop(writer);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn files_that_the_kernel_keeps_behave_as_files_do() {
    if let Some(hosts) = hosts("cached-model", 7685, "") {
        pools::behave_as_files_do(hosts);
    }
    if let Some(hosts) = hosts("cached-same", 7691, "") {
        pools::see_the_same(hosts);
    }
}

#[test]
fn lengths_modes_and_times_that_the_kernel_believes_are_true_on_all_hosts() {
    let Some(mut hosts) = hosts("cached-told", 7661, "") else {
        return;
    };
    let [a, b] = hosts.points();
    fs::write(a.join("file"), b"").expect("written");
    let file = File::open(a.join("file")).expect("opened");
    let mut log = OpenOptions::new()
        .append(true)
        .open(b.join("file"))
        .expect("opened");
    for round in 1..=100_u64 {
        log.write_all(b"0123456789").expect("appended");
        for _ in 0..2 {
            assert_eq!(file.metadata().expect("told").len(), 10 * round);
        }
        let mode = 0o600 + round as u32 % 64;
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(b.join("file"), permissions).expect("changed");
        for _ in 0..2 {
            assert_eq!(file.metadata().expect("told").mode() & 0o7777, mode);
        }
        // Of a directory too.
        let before = fs::metadata(&a).expect("told").modified().expect("a time");
        fs::write(b.join(format!("more-{round}")), b"").expect("written");
        let after = fs::metadata(&a).expect("told").modified().expect("a time");
        assert!(before < after, "{before:?}, {after:?}");
    }
    drop((file, log));
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn who_has_a_file_open_that_the_kernel_keeps_sees_what_is_written_here_and_what_is_closed_elsewhere()
 {
    let Some(mut hosts) = hosts("cached-opened", 7665, "") else {
        return;
    };
    let [a, b] = hosts.points();
    fs::write(a.join("file"), [0; 9000]).expect("written");
    pages_again();
    let reader = File::open(a.join("file")).expect("opened");
    let reads = |what: u8| {
        let mut bytes = [!what; 9000];
        reader.read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes == [what; 9000], "{what}: {}", bytes[0]);
    };
    reads(0);
    for round in 1..=50 {
        let point = if round % 2 == 0 { &a } else { &b };
        let writer = to_write(&point.join("file"));
        writer.write_all_at(&[round; 9000], 0).expect("written");
        // On the same host it need not be closed.
        if round % 2 == 0 {
            reads(round);
        }
        drop(writer);
        reads(round);
        reads(round);
    }
    drop(reader);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn a_time_that_the_pool_does_not_know_yet_hides_no_other_hosts_write() {
    let Some(mut hosts) = hosts("cached-times", 7681, "") else {
        return;
    };
    let [a, b] = hosts.points();
    fs::write(a.join("file"), [0; 9000]).expect("written");
    pages_again();
    let reader = File::open(a.join("file")).expect("opened");
    let reads_now = |what: u64| assert_eq!(reads(&reader).expect("read"), what);
    reads_now(0);
    for round in (1..=120_u8).step_by(2) {
        let ours = to_write(&a.join("file"));
        ours.write_all_at(&[round; 9000], 0).expect("written");
        reads_now(round.into());
        let theirs = to_write(&b.join("file"));
        theirs.write_all_at(&[round + 1; 9000], 0).expect("written");
        drop(theirs);
        // Either the pool's time has been looked at before this host tells its own, or not.
        if round % 4 == 1 {
            reads_now((round + 1).into());
        }
        drop(ours);
        reads_now((round + 1).into());
    }
    drop(reader);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn a_file_that_grows_on_another_host_is_read_to_the_end_that_it_had_when_it_was_opened() {
    let Some(mut hosts) = hosts("cached-grows", 7697, "") else {
        return;
    };
    let [a, b] = hosts.points();
    fs::write(b.join("log"), b"begun").expect("written");
    let end = AtomicU64::new(5);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let before = end.load(Ordering::SeqCst);
                    let found = fs::read(a.join("log")).expect("read").len() as u64;
                    assert!(found >= before, "{found} of {before}");
                }
            });
        }
        let mut log = OpenOptions::new()
            .append(true)
            .open(b.join("log"))
            .expect("opened");
        for round in 1..=1200 {
            log.write_all(&[1; 100]).expect("appended");
            end.fetch_add(100, Ordering::SeqCst);
            // By pages, and with others' questions under way.
            if round % 300 == 0 {
                pages_again();
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn hosts_that_keep_a_file_and_write_it_by_turns_hold_one_another_up_never() {
    let Some(mut hosts) = hosts("cached-loops", 7671, "") else {
        return;
    };
    let [a, b] = hosts.points();
    let long = 40 * 4096;
    fs::write(a.join("file"), vec![0; long]).expect("written");
    // The last round of each host of which the write has returned.
    let rounds = [(); 2].map(|()| AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (host, point) in [&a, &b].into_iter().enumerate() {
            let (rounds, is_over) = (&rounds, &is_over);
            scope.spawn(move || {
                let writer = to_write(&point.join("file"));
                let begun = Instant::now();
                for round in 1..u64::MAX {
                    if round > 3 && begun.elapsed() > Duration::from_secs(3) {
                        break;
                    }
                    // Each host has every other word of each page.
                    for at in (host * 8..long).step_by(2048) {
                        writer
                            .write_all_at(&round.to_ne_bytes(), at as u64)
                            .expect("written");
                    }
                    rounds[host].store(round, Ordering::SeqCst);
                }
                is_over.store(true, Ordering::SeqCst);
            });
            for _ in 0..2 {
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        let before = [0, 1].map(|host: usize| rounds[host].load(Ordering::SeqCst));
                        let bytes = fs::read(point.join("file")).expect("read");
                        for (at, words) in bytes.chunks(2048).enumerate() {
                            for (host, before) in before.into_iter().enumerate() {
                                let word = words[host * 8..][..8].try_into().expect("a word");
                                let found = u64::from_ne_bytes(word);
                                assert!(found >= before, "{host} at {at}: {found}, not {before}");
                            }
                        }
                    }
                });
            }
        }
    });
    hosts.umount(1);
    hosts.umount(0);
}

fn reads(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 9000];
    file.read_exact_at(&mut bytes, 0)?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    Ok(bytes[0].into())
}

fn looks(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

#[test]
fn a_mount_that_stands_still_has_its_kernel_show_nothing_old_once_others_may_write() {
    let Some(mut hosts) = hosts("cached-stopped", 7675, "term_ms = 3000") else {
        return;
    };
    let [a, b] = hosts.points();
    fs::write(b.join("file"), [1; 9000]).expect("written");
    pages_again();
    let reader = Arc::new(File::open(a.join("file")).expect("opened"));
    let is_old = || {
        assert_eq!(reads(&reader).expect("read"), 1);
        assert_eq!(looks(&reader).expect("told"), 9000);
    };
    (0..3).for_each(|_| is_old());
    hosts.process(0).signal(Signal::STOP);
    // The kernel has it, and the process is not asked.
    is_old();
    // These wait for the end of the other host's term.
    let writer = to_write(&b.join("file"));
    writer.write_all_at(&[2; 9000], 0).expect("written");
    writer.set_len(9001).expect("longer");
    let asks: [fn(&File) -> io::Result<u64>; 2] = [reads, looks];
    let answers = asks.map(|ask| {
        let (tells, told) = mpsc::channel();
        let reader = Arc::clone(&reader);
        thread::spawn(move || tells.send(ask(&reader)));
        told
    });
    for told in &answers {
        let waits = told
            .recv_timeout(Duration::from_secs(1))
            .map_err(|why| why == RecvTimeoutError::Timeout);
        assert!(
            matches!(waits, Err(true)),
            "an answer without a process: {waits:?}"
        );
    }
    hosts.process(0).signal(Signal::CONT);
    for told in answers {
        let answer = told.recv().expect("an answer");
        assert!(answer.is_err(), "the pool has given it up: {answer:?}");
    }
    drop((reader, writer));
    hosts.umount(1);
}
