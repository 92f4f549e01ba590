//! Mounted pools whose servers have no memory left, or stand still.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebay_pool::files::Files;
use forebay_pool::ids::File as FileNumber;
use forebay_pool::net::Config;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::pools::Hosts;
use crate::scene::wait_until;

const BLOCK: usize = 4096;

fn is_full(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOSPC)
}

#[test]
fn a_pool_whose_memory_is_full_says_so_and_goes_on_when_there_is_room() {
    for (path, port) in [("local", 7641), ("remote", 7643)] {
        let more = format!("memory_mib = 1\npath = \"{path}\"\nflush_interval_ms = 100");
        let name = format!("pool-full-{path}");
        let Some(mut hosts) = Hosts::begin_with(&name, port, &more, &[]) else {
            return;
        };
        let [a, b] = hosts.points();
        fs::write(b.join("old"), vec![7; 10 * BLOCK]).expect("written");
        let block = |at: usize| vec![at as u8; BLOCK];
        // Each of two servers takes 1 MiB, and what this client has written before it hears that.
        let mut file = File::create(a.join("large")).expect("made");
        let mut written = 0;
        let refused = loop {
            assert!(written < 5000, "{path}: 20 MB are in memory for 2 MiB");
            match file.write_all(&block(written)) {
                Ok(()) => written += 1,
                Err(why) => break why,
            }
            if written % 64 == 0 {
                file.sync_data().expect("what was taken is written");
            }
        };
        assert!(is_full(&refused), "{path}: {refused}");
        assert!(written > 200, "{path}: {written} blocks");
        file.sync_all().expect("what was taken is written");
        let length = file.metadata().expect("told").len();
        assert_eq!(length, (written * BLOCK) as u64, "{path}");
        // What is there can be read and written over, by all hosts.
        file.write_all_at(&block(9), 0).expect("written over");
        file.sync_all().expect("synced");
        let there = fs::read(b.join("large")).expect("read");
        let is_right = |(at, found): (usize, &[u8])| found == block(if at == 0 { 9 } else { at });
        assert!(there.chunks(BLOCK).enumerate().all(is_right), "{path}");
        assert!(fs::read(b.join("old")).expect("read") == vec![7; 10 * BLOCK]);
        drop(file);
        // The other host has heard of it before it was given these bytes.
        let refused = fs::write(b.join("new"), vec![1; 64 * BLOCK]).expect_err("there is no room");
        assert!(is_full(&refused), "{path}: {refused}");
        fs::remove_file(b.join("large")).expect("removed");
        wait_until("there is room again", || {
            fs::write(b.join("new"), vec![3; 64 * BLOCK]).is_ok()
        });
        assert!(fs::read(a.join("new")).expect("read") == vec![3; 64 * BLOCK]);
        hosts.umount(1);
        hosts.umount(0);
    }
}

/// A mount has a few threads, so the many who wait here are in the test's own process.
#[test]
fn a_server_that_stands_still_holds_up_nobody_who_wants_nothing_of_it() {
    const FILES: usize = 60;
    let more = "path = \"remote\"\nterm_ms = 60000";
    let Some(mut hosts) = Hosts::begin_of(3, "pool-still", 7645, more, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let config = Config::load(&hosts.config).expect("a configuration");
    let files = Files::join(&config, Duration::from_secs(20)).expect("it joins");
    let bytes = |at: usize| vec![at as u8 + 1; BLOCK];
    let open = |at: usize| {
        fs::write(a.join(at.to_string()), bytes(at)).expect("written");
        File::open(b.join(at.to_string())).expect("opened")
    };
    let opened: Vec<File> = (0..FILES).map(open).collect();
    let by_mount = |at: usize| {
        let mut found = vec![0; BLOCK];
        opened[at].read_exact_at(&mut found, 0).expect("read");
        found
    };
    let number = |at: usize| FileNumber(opened[at].metadata().expect("told").ino());
    let numbers: Vec<FileNumber> = (0..FILES).map(number).collect();
    let by_library = |at: usize| files.read(numbers[at], 0, BLOCK as u64).expect("read");
    // Then both hosts have the right to each file's size, and ask the server of its block for bytes alone.
    for at in 0..FILES {
        assert!(by_mount(at) == bytes(at) && by_library(at) == bytes(at));
    }
    // Not the first, which rules.
    hosts.servers[2].signal(Signal::STOP);
    let early = thread::scope(|scope| {
        let (ended, ends) = mpsc::channel();
        for at in 0..FILES {
            let (ended, by_library) = (ended.clone(), &by_library);
            scope.spawn(move || {
                assert!(by_library(at) == bytes(at), "file {at}");
                // Nobody listens when the server goes on.
                let _ = ended.send(at);
            });
        }
        // A third of the blocks or so are at the server that stands still.
        let first =
            { 0..FILES / 10 }.map_while(|_| ends.recv_timeout(Duration::from_secs(20)).ok());
        let mut early: Vec<usize> = first.collect();
        thread::sleep(Duration::from_secs(1));
        early.extend(ends.try_iter());
        hosts.servers[2].signal(Signal::CONT);
        early.len()
    });
    println!("{early} of {FILES} files were read meanwhile");
    assert!((FILES / 10..FILES).contains(&early), "{early} of {FILES}");
    drop((opened, files));
    hosts.umount(1);
    hosts.umount(0);
}
