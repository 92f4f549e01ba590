//! Memory of other processes by libfabric, by each provider that this host has: bytes, keys, and peers that die.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdout, Command, Stdio, exit};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_model::skipped;
use forebay_pool::fabric::{Error, Fabric, Key, Provider, offered};
use forebay_pool::random::mix;

const LIMIT: Duration = Duration::from_secs(20);
/// What a peer that is gone, or refuses, may take to be missed.
const SHORT: Duration = Duration::from_secs(1);
const SIZE: usize = 3 << 20;
const HOST: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
const ROLE: &str = "TEST_FABRIC_ROLE";

fn providers() -> Vec<Provider> {
    match offered() {
        Ok(offered) => { offered.providers.into_iter() }
            .filter(|(provider, is_there)| is_there.is_ok() && *provider != Provider::Verbs)
            .map(|(provider, _)| provider)
            .collect(),
        Err(why) => {
            skipped(format!("{why} (scripts/install-test-deps.sh does it)"));
            Vec::new()
        }
    }
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|at| mix(seed ^ at << 8) as u8)
        .collect()
}

/// Memory that another process lends, and what it is told to do with it: `renew` its key, or `show` its first bytes.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if let Some(provider) = role.strip_prefix("ends-") {
        end_at_work(provider.parse().unwrap());
    }
    let fabric = Fabric::open(role.parse().unwrap(), HOST).unwrap();
    let (mut region, mut key) = fabric.share(SIZE).unwrap();
    region.copy_from(0, &bytes(1, SIZE));
    let mut lines = std::io::stdin().lines();
    loop {
        let line = postcard::to_stdvec(&(fabric.address(), key)).unwrap();
        let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("PEER {hex}");
        match lines.next() {
            Some(Ok(line)) if line == "renew" => key = region.renew().unwrap(),
            Some(Ok(line)) => {
                let (at, length) = line.split_once(' ').unwrap();
                let mut shown = vec![0; length.parse().unwrap()];
                region.copy_to(at.parse().unwrap(), &mut shown);
                let sum = shown
                    .iter()
                    .fold(0, |sum, byte| mix(sum ^ u64::from(*byte)));
                println!("PEER {sum:x}");
            }
            _ => exit(0),
        }
    }
}

struct Lender {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Lender {
    fn start(provider: Provider) -> (Lender, Vec<u8>, Key) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, provider.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut lender = Lender { child, out };
        let (address, key) = lender.key();
        (lender, address, key)
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "it has ended");
            if let Some((_, answer)) = line.trim_end().split_once("PEER ") {
                return answer.to_string();
            }
        }
    }

    fn key(&mut self) -> (Vec<u8>, Key) {
        let hex = self.answer();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        postcard::from_bytes(&bytes).unwrap()
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn has(&mut self, at: u64, expected: &[u8]) -> bool {
        self.tell(&format!("{at} {}", expected.len()));
        let sum = { expected.iter() }.fold(0, |sum, byte| mix(sum ^ u64::from(*byte)));
        let is_same = self.answer() == format!("{sum:x}");
        self.key();
        is_same
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut rest = String::new();
        let _ = self.out.read_to_string(&mut rest);
    }
}

#[test]
fn bytes_of_another_process_are_read_and_written() {
    for provider in providers() {
        let (mut lender, address, key) = Lender::start(provider);
        let fabric = Fabric::open(provider, HOST).unwrap();
        let peer = fabric.peer(&address).unwrap();
        let mut expected = bytes(1, SIZE);
        assert_eq!(key.len(), SIZE as u64);
        for (at, length) in [(0, 1), (0, SIZE), (5, 4096), (4097, 100_003), (SIZE - 7, 7)] {
            let read = fabric.read(&peer, (key, at as u64), vec![0; length], LIMIT);
            assert!(
                read.unwrap() == expected[at..at + length],
                "{provider} {at} {length}"
            );
            let new = bytes(2 + at as u64, length);
            let sent = Bytes::from(new.clone());
            fabric
                .write(&peer, (key, at as u64), sent, LIMIT)
                .unwrap_or_else(|why| panic!("{provider} {at} {length}: {why}"));
            expected[at..at + length].copy_from_slice(&new);
            assert!(
                lender.has(at as u64, &new),
                "{provider} {at} {length} written"
            );
        }
        assert!(lender.has(0, &expected), "{provider}");
        // What is outside is not even asked for.
        for (at, length) in [(SIZE as u64, 1), (u64::MAX, 1), (0, SIZE + 1)] {
            let read = fabric.read(&peer, (key, at), vec![0; length], LIMIT);
            assert_eq!(read, Err(Error::Range), "{provider} {at} {length}");
        }
    }
}

#[test]
fn many_threads_read_at_once() {
    for provider in providers() {
        let (_lender, address, key) = Lender::start(provider);
        let fabric = Arc::new(Fabric::open(provider, HOST).unwrap());
        let expected = Arc::new(bytes(1, SIZE));
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let (fabric, expected) = (Arc::clone(&fabric), Arc::clone(&expected));
                let peer = fabric.peer(&address).unwrap();
                thread::spawn(move || {
                    for round in 0..100 {
                        let mut wanted = Vec::new();
                        let mut places = Vec::new();
                        for part in 0..5 {
                            let drawn = mix(thread << 32 | round << 8 | part);
                            let at = drawn as usize % (SIZE - 20_000);
                            let length = 1 + (drawn >> 40) as usize % 20_000;
                            wanted.push((key, at as u64, vec![0; length]));
                            places.push((at, length));
                        }
                        let read = fabric.read_all(&peer, wanted, LIMIT).unwrap();
                        for (read, (at, length)) in read.iter().zip(places) {
                            assert!(*read == expected[at..at + length], "{provider} {at}");
                        }
                    }
                })
            })
            .collect();
        { threads.into_iter() }.for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_wrong_key_and_one_that_was_renewed_are_refused() {
    for provider in providers() {
        let (mut lender, address, key) = Lender::start(provider);
        let expected = bytes(1, SIZE);
        let fabric = RefCell::new(Fabric::open(provider, HOST).unwrap());
        let refused = |key, at: u64, how: &str| {
            for length in [16, 1 << 20] {
                for is_read in [true, false] {
                    if fabric.borrow().is_spoiled() {
                        fabric.replace(Fabric::open(provider, HOST).unwrap());
                    }
                    let fabric = fabric.borrow();
                    let peer = fabric.peer(&address).unwrap();
                    let result = if is_read {
                        let read = fabric.read(&peer, (key, at), vec![0; length], SHORT);
                        read.map(drop)
                    } else {
                        let sent = Bytes::from(vec![9; length]);
                        fabric.write(&peer, (key, at), sent, SHORT)
                    };
                    assert!(result.is_err(), "{provider}: {length}, {is_read}, {how}");
                }
            }
        };
        // Whoever was refused is served again, with what is right: by a new endpoint, or once the connection is made anew.
        let good = |key| {
            let until = Instant::now() + SHORT;
            if fabric.borrow().is_spoiled() {
                fabric.replace(Fabric::open(provider, HOST).unwrap());
            }
            let fabric = fabric.borrow();
            let peer = fabric.peer(&address).unwrap();
            loop {
                match fabric.read(&peer, (key, 3), vec![0; 5000], SHORT) {
                    Ok(read) => return assert!(read == expected[3..5003], "{provider}"),
                    Err(why) => assert!(Instant::now() < until, "{provider}: {why}"),
                }
            }
        };
        good(key);
        let form = postcard::to_stdvec(&key).unwrap();
        let (_, base, length): (u64, u64, u64) = postcard::from_bytes(&form).unwrap();
        let wrong = postcard::to_stdvec(&(1234_u64, base, length)).unwrap();
        refused(postcard::from_bytes(&wrong).unwrap(), 0, "a wrong key");
        good(key);
        lender.tell("renew");
        let (_, renewed) = lender.key();
        refused(key, 0, "a key of before");
        assert!(lender.has(0, &expected), "{provider}");
        good(renewed);
        // A key that promises more than there is.
        let (number, ..): (u64, u64, u64) =
            postcard::from_bytes(&postcard::to_stdvec(&renewed).unwrap()).unwrap();
        let long = postcard::to_stdvec(&(number, base, u64::MAX - base)).unwrap();
        let long: Key = postcard::from_bytes(&long).unwrap();
        refused(long, SIZE as u64 - 10, "bytes behind the region");
        good(renewed);
    }
}

#[test]
fn a_peer_that_was_killed_is_an_error_in_time() {
    for provider in providers() {
        let (mut lender, address, key) = Lender::start(provider);
        let fabric = Fabric::open(provider, HOST).unwrap();
        let peer = fabric.peer(&address).unwrap();
        fabric.read(&peer, (key, 0), vec![0; 4096], LIMIT).unwrap();
        lender.child.kill().unwrap();
        lender.child.wait().unwrap();
        for length in [4096, 1 << 20] {
            let begun = Instant::now();
            let read = fabric.read(&peer, (key, 0), vec![0; length], SHORT);
            assert!(read.is_err(), "{provider}: read of the dead");
            let sent = Bytes::from(vec![1; length]);
            let written = fabric.write(&peer, (key, 0), sent, SHORT);
            assert!(written.is_err(), "{provider}: written to the dead");
            let took = begun.elapsed();
            assert!(took < 2 * SHORT + SHORT / 2, "{provider}: {took:?}");
        }
        // Another one is served, by the same endpoint if that goes on.
        let fabric = if fabric.is_spoiled() {
            Fabric::open(provider, HOST).unwrap()
        } else {
            fabric
        };
        let (_other, address, key) = Lender::start(provider);
        let peer = fabric.peer(&address).unwrap();
        let read = fabric.read(&peer, (key, 0), vec![0; 4096], LIMIT).unwrap();
        assert!(read == bytes(1, 4096), "{provider}");
        // An endpoint that begins takes away what the dead have left.
        drop(Fabric::open(provider, HOST));
        assert_eq!(names(lender.child.id()), 0, "{provider}");
    }
}

/// How many names a process has in shared memory.
fn names(number: u32) -> usize {
    let all = fs::read_dir("/dev/shm").unwrap().flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    let of = format!("-{number}:");
    names
        .filter(|name| name.starts_with("forebay-fabric-") && name.contains(&of))
        .count()
}

#[test]
fn who_ends_leaves_no_names() {
    if !providers().contains(&Provider::Shm) {
        return;
    }
    let (mut lender, ..) = Lender::start(Provider::Shm);
    assert_eq!(names(lender.child.id()), 1);
    // It ends by itself then, with its endpoint open.
    drop(lender.child.stdin.take());
    assert!(lender.child.wait().unwrap().success());
    assert_eq!(names(lender.child.id()), 0);
}

#[test]
fn a_peer_that_is_killed_meanwhile_is_an_error_in_time() {
    for provider in providers() {
        let (mut lender, address, key) = Lender::start(provider);
        let fabric = Fabric::open(provider, HOST).unwrap();
        let peer = fabric.peer(&address).unwrap();
        fabric.read(&peer, (key, 0), vec![0; 4096], LIMIT).unwrap();
        let reader = thread::spawn(move || {
            let mut last = Instant::now();
            loop {
                let read = fabric.read(&peer, (key, 0), vec![0; SIZE], SHORT);
                if read.is_err() {
                    return last.elapsed();
                }
                last = Instant::now();
            }
        });
        thread::sleep(Duration::from_millis(100));
        lender.child.kill().unwrap();
        lender.child.wait().unwrap();
        let took = reader.join().unwrap();
        assert!(took < SHORT + SHORT / 2, "{provider}: {took:?}");
    }
}

#[test]
fn what_is_no_address_is_refused() {
    for provider in providers() {
        let fabric = Fabric::open(provider, HOST).unwrap();
        let own = fabric.address().to_vec();
        assert!(fabric.peer(&own).is_ok(), "{provider}");
        let cut = &own[..own.len() - 1];
        let long = [&own[..], &[1; 300]].concat();
        let path = b"fi_shm://../../etc/passwd\0".to_vec();
        for wrong in [b"", cut, &long, &path, &[0xff; 16], &[0xff; 28]] {
            assert_eq!(
                fabric.peer(wrong).err(),
                Some(Error::Address),
                "{provider} {wrong:?}"
            );
        }
        let other = Fabric::open(provider, HOST).unwrap();
        let (_region, key) = other.share(4096).unwrap();
        let peer = other.peer(&own).unwrap();
        let read = fabric.read(&peer, (key, 0), vec![0; 16], SHORT);
        assert_eq!(read, Err(Error::Peer), "{provider}");
    }
}

#[test]
fn there_are_providers_and_others_are_an_error() {
    if providers().is_empty() {
        return;
    }
    let offered = offered().unwrap();
    assert!(offered.version >= (1, 17), "{:?}", offered.version);
    assert_eq!(offered.providers.len(), Provider::ALL.len());
    for (provider, is_there) in offered.providers {
        let opened = Fabric::open(provider, HOST).map(drop);
        assert_eq!(opened.is_ok(), is_there.is_ok(), "{provider}: {opened:?}");
    }
    assert!("infinite".parse::<Provider>().is_err());
}

/// Ends while its threads read, and open and close endpoints.
fn end_at_work(provider: Provider) -> ! {
    let lender = Fabric::open(provider, HOST).unwrap();
    let (region, key) = lender.share(SIZE).unwrap();
    let begun = Arc::new(std::sync::Barrier::new(3));
    for _ in 0..2 {
        let fabric = Fabric::open(provider, HOST).unwrap();
        let (address, begun) = (lender.address().to_vec(), Arc::clone(&begun));
        thread::spawn(move || {
            let peer = fabric.peer(&address).unwrap();
            let mut into = vec![0; 4096];
            for round in 0_u64.. {
                match fabric.read(&peer, (key, 0), into, LIMIT) {
                    Ok(read) => into = read,
                    // The process ends.
                    Err(_) => return,
                }
                if round == 0 {
                    begun.wait();
                }
            }
        });
    }
    for _ in 0..2 {
        thread::spawn(move || {
            while let Ok(fabric) = Fabric::open(provider, HOST) {
                drop(fabric.share(4096));
            }
        });
    }
    begun.wait();
    // Those whose memory others read are there until the end.
    std::mem::forget((lender, region));
    thread::sleep(Duration::from_millis(u64::from(std::process::id() % 7)));
    exit(0)
}

#[test]
fn a_process_may_end_while_its_threads_are_at_work() {
    for provider in providers() {
        for _ in 0..40 {
            let ended = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "role", "--nocapture"])
                .env(ROLE, format!("ends-{provider}"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(
                ended.status.success(),
                "{provider}: {} {said}",
                ended.status
            );
        }
    }
}
