//! Pools of real processes on loopback: three servers, clients, deaths, and strangers who dial.

#[path = "common/again.rs"]
mod again;
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio, exit};
use std::thread;
use std::time::{Duration, Instant};

use again::begin_again;
use common::{PATIENCE, addresses};
use forebay_pool::client::{Answer, Facts, Failure, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Ended, PathPolicy, Pool, Serving};
use forebay_pool::random::mix;
use forebay_pool::wire;

const UNIT: u64 = 512;

fn config(servers: u16) -> Config {
    let config = Config {
        servers: addresses(servers),
        copies: servers.min(2).into(),
        block_bytes: UNIT,
        term_ms: 10_000,
        cache_blocks: 16,
        flush_interval_ms: 5_000,
        home: None,
        memory_mib: None,
        path: PathPolicy::Local,
        tls: None,
        etcd: None,
    };
    config.check().unwrap();
    config
}

const ROLE: &str = "TEST_POOL_ROLE";
const CONFIG: &str = "TEST_POOL_CONFIG";
const SOCKET: &str = "TEST_POOL_SOCKET";

/// What the other processes of these tests do; nothing in the process that runs them.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let config = Config::parse(&std::env::var(CONFIG).unwrap()).unwrap();
    match role.parse() {
        Ok(index) => serve(&config, index),
        Err(_) => operate(&config),
    }
}

/// Serves until it reads something, and is killed with the test that started it.
fn serve(config: &Config, index: usize) -> ! {
    let serving = Serving::begin(config, index).unwrap();
    let mut byte = [0];
    if std::io::stdin().read(&mut byte).unwrap_or(0) == 0 {
        exit(1);
    }
    serving.stop();
    exit(if serving.wait().is_ok() { 0 } else { 1 })
}

/// Does what the socket says until it ends.
fn operate(config: &Config) -> ! {
    let mut socket = UnixStream::connect(std::env::var(SOCKET).unwrap()).unwrap();
    let pool = Pool::join(config, PATIENCE).unwrap();
    while let Ok(Some(bytes)) = wire::receive(&mut socket) {
        let operation = postcard::from_bytes(&bytes).unwrap();
        let result = postcard::to_stdvec(&pool.run(operation)).unwrap();
        wire::send(&mut socket, &result).unwrap();
    }
    exit(0)
}

/// A process that does not outlive its test.
struct Process(Child);

impl Process {
    fn start(config: &Config, role: &str, socket: &Path) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, role)
            .env(CONFIG, toml::to_string(config).unwrap())
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }

    /// As a power cut would.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client in a process of its own.
struct Client {
    process: Process,
    socket: UnixStream,
}

impl Client {
    fn start(config: &Config) -> Client {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let process = Process::start(config, "client", &path);
        let (socket, _) = listener.accept().unwrap();
        Client { process, socket }
    }

    fn run(&mut self, operation: &Operation) -> Result<Answer, Failure> {
        wire::send(&mut self.socket, &postcard::to_stdvec(operation).unwrap()).unwrap();
        let bytes = wire::receive(&mut self.socket).unwrap().unwrap();
        postcard::from_bytes(&bytes).unwrap()
    }

    fn read_all(&mut self, file: File) -> Vec<u8> {
        match self.run(&read(file, 0, 1 << 20, Mode::Local)) {
            Ok(Answer::Bytes(bytes)) => bytes.into_vec(),
            other => panic!("{other:?}"),
        }
    }
}

fn read(file: File, offset: u64, length: u64, mode: Mode) -> Operation {
    Operation::Read {
        file,
        offset,
        length,
        mode,
    }
}

fn write(file: File, offset: u64, bytes: Vec<u8>, mode: Mode) -> Operation {
    Operation::Write {
        file,
        offset,
        bytes: bytes.into(),
        mode,
    }
}

fn open(name: &str) -> Operation {
    Operation::Make {
        parent: File::ROOT,
        name: name.as_bytes().to_vec(),
        facts: Facts::default(),
        bytes: Vec::new(),
    }
}

fn file_of(opened: Result<Answer, Failure>) -> File {
    match opened {
        Ok(Answer::Made(entry, _)) => entry.file,
        other => panic!("no file: {other:?}"),
    }
}

fn size_of(file: File) -> Operation {
    Operation::Attributes { file }
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 += 1;
        mix(self.0) % bound
    }
}

/// Something to do, and what a single file says to it.
fn step(file: File, chance: &mut Chance, model: &mut Vec<u8>) -> (Operation, Answer) {
    let offset = chance.below(12_000);
    let length = 1 + chance.below(3_000);
    let mode = [Mode::Local, Mode::Remote][chance.below(2) as usize];
    let bytes = vec![chance.below(255) as u8 + 1; length as usize];
    let at = model.len() as u64;
    match chance.below(20) {
        0..8 => {
            let end = (offset + length).min(at) as usize;
            let seen = model.get(offset as usize..end).unwrap_or_default();
            (
                read(file, offset, length, mode),
                Answer::Bytes(seen.to_vec().into()),
            )
        }
        8..15 => {
            let end = (offset + length) as usize;
            model.resize(model.len().max(end), 0);
            model[offset as usize..end].copy_from_slice(&bytes);
            (write(file, offset, bytes, mode), Answer::Done)
        }
        15..17 if at < 30_000 => {
            model.extend(&bytes);
            let bytes = bytes.into();
            (Operation::Append { file, bytes }, Answer::At(at))
        }
        17 => {
            model.resize(offset as usize, 0);
            let size = offset;
            (Operation::Truncate { file, size }, Answer::Done)
        }
        18 => (Operation::sync(file), Answer::Done),
        _ => (size_of(file), Answer::Attributes(at, Facts::default())),
    }
}

/// Both append at once: every record is there once, whole, and each client's in order.
fn append_together(a: &mut Client, b: &mut Client, file: File) {
    let Ok(Answer::Attributes(base, _)) = a.run(&size_of(file)) else {
        panic!()
    };
    thread::scope(|scope| {
        for (who, client) in [(1, a), (2, &mut *b)] {
            scope.spawn(move || {
                for number in 0..40 {
                    let bytes = [[who, number]; 50].as_flattened().to_vec().into();
                    client.run(&Operation::Append { file, bytes }).unwrap();
                }
            });
        }
    });
    let all = b.read_all(file);
    let mut next = [0, 0];
    for record in all[base as usize..].chunks(100) {
        let [who, number] = [record[0], record[1]];
        assert_eq!(record, [[who, number]; 50].as_flattened());
        let expected = &mut next[usize::from(who) - 1];
        assert_eq!(number, *expected, "client {who}");
        *expected += 1;
    }
    assert_eq!(next, [40, 40]);
}

#[test]
fn two_hosts_share_files_and_deaths_lose_nothing_that_was_synced() {
    let config = config(3);
    let none = Path::new("");
    let server = |index: usize| Process::start(&config, &index.to_string(), none);
    let mut servers: Vec<Process> = (0..3).map(server).collect();
    let (mut a, mut b) = (Client::start(&config), Client::start(&config));
    let file = file_of(a.run(&open("one")));
    assert_eq!(file_of(b.run(&open("one"))), file);

    let mut chance = Chance(3);
    let mut model = Vec::new();
    for number in 0..300 {
        let (operation, expected) = step(file, &mut chance, &mut model);
        let client = if chance.below(2) == 0 { &mut a } else { &mut b };
        let answer = client.run(&operation);
        assert!(answer == Ok(expected), "step {number}: {operation:?}");
    }
    append_together(&mut a, &mut b, file);

    // One client dies with what it has not synced, and a server with one of two copies of each block.
    let synced = vec![7; 3 * UNIT as usize];
    let dirty = vec![8; UNIT as usize];
    let size = Operation::Truncate {
        file,
        size: 6 * UNIT,
    };
    for operation in [
        size,
        write(file, 0, synced.clone(), Mode::Local),
        Operation::sync(file),
        write(file, UNIT, dirty.clone(), Mode::Local),
    ] {
        a.run(&operation).unwrap();
    }
    let tail = b.run(&read(file, 3 * UNIT, 3 * UNIT, Mode::Remote));
    a.process.kill();
    servers[2].kill();
    let all = b.read_all(file);
    let unit = UNIT as usize;
    assert_eq!(all[..unit], synced[..unit]);
    assert!(all[unit..2 * unit] == synced[..unit] || all[unit..2 * unit] == dirty);
    assert_eq!(all[2 * unit..3 * unit], synced[..unit]);
    assert_eq!(Ok(Answer::Bytes(all[3 * unit..].to_vec().into())), tail);

    // The dead server begins another life, and has its share again.
    servers[2] = server(2);
    assert_eq!(b.read_all(file), all);
    // A server hands on what it has, and goes; a client that comes then sees the same.
    servers[1].0.stdin.take().unwrap().write_all(b".").unwrap();
    assert_eq!(servers[1].0.wait().unwrap().code(), Some(0));
    let mut c = Client::start(&config);
    assert_eq!(file_of(c.run(&open("one"))), file);
    assert_eq!(c.read_all(file), all);
    c.run(&write(file, 0, dirty.clone(), Mode::Local)).unwrap();
    assert_eq!(
        b.run(&read(file, 0, UNIT, Mode::Local)),
        Ok(Answer::Bytes(dirty.into()))
    );
}

#[test]
fn strangers_are_turned_away_and_disturb_nobody() {
    let config = config(1);
    let serving = Serving::begin(&config, 0).unwrap();
    let pool = Pool::join(&config, PATIENCE).unwrap();
    let file = file_of(pool.run(open("one")));
    let after_mark = |bytes: &[u8]| [&wire::MARK[..], bytes].concat();
    let sayings = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"fbpool\x00\x01".to_vec(),
        after_mark(b"\xff\xff\xff\xff"),
        after_mark(b"\x03\x00\x00\x00\x01\x02\x03"),
    ];
    for saying in sayings {
        let mut stranger = TcpStream::connect(config.servers[0]).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(&saying).unwrap();
        // The mark, and then the end.
        let mut heard = Vec::new();
        let end = stranger.read_to_end(&mut heard);
        assert!(
            end.is_ok()
                || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        );
        assert!(heard.is_empty() || heard == wire::MARK);
    }
    let other = Config {
        copies: 1,
        block_bytes: 2 * UNIT,
        ..config.clone()
    };
    let refused = Pool::join(&other, PATIENCE).err();
    assert!(matches!(refused, Some(Ended::Refused(_))), "{refused:?}");
    let bytes = vec![1; 2000];
    pool.run(write(file, 100, bytes.clone(), Mode::Remote))
        .unwrap();
    let seen = pool.run(read(file, 100, 2000, Mode::Local));
    assert_eq!(seen, Ok(Answer::Bytes(bytes.into())));
    drop(pool);
    serving.stop();
    serving.wait().unwrap();
}

#[test]
fn who_leaves_is_not_waited_for() {
    let config = Config {
        term_ms: 120_000,
        ..config(1)
    };
    let serving = Serving::begin(&config, 0).unwrap();
    let first = Pool::join(&config, PATIENCE).unwrap();
    let file = file_of(first.run(open("one")));
    first
        .run(write(file, 0, vec![1; 100], Mode::Local))
        .unwrap();
    first.run(Operation::sync(file)).unwrap();
    let began = Instant::now();
    drop(first);
    let second = Pool::join(&config, PATIENCE).unwrap();
    let seen = second.run(read(file, 0, 100, Mode::Local));
    assert_eq!(seen, Ok(Answer::Bytes(vec![1; 100].into())));
    // A dead one would hold all up for a term.
    assert!(began.elapsed() < Duration::from_millis(config.term_ms));
    serving.stop();
    serving.wait().unwrap();
}

#[test]
fn servers_that_are_all_told_to_go_end() {
    let config = Config {
        term_ms: 1000,
        ..config(3)
    };
    let all = [0, 1, 2].map(|index| Serving::begin(&config, index).unwrap());
    let pool = Pool::join(&config, PATIENCE).unwrap();
    let file = file_of(pool.run(open("one")));
    pool.run(write(file, 0, vec![1; 40 * UNIT as usize], Mode::Local))
        .unwrap();
    pool.run(Operation::sync(file)).unwrap();
    all.iter().for_each(Serving::stop);
    let until = Instant::now() + PATIENCE;
    let mut dropped = 0;
    for server in all {
        while !server.is_over() {
            assert!(Instant::now() < until, "a server does not end");
            thread::sleep(Duration::from_millis(5));
        }
        let what = server.status().dropped;
        dropped += what.map_or(0, |(files, bytes)| if files == 1 { bytes } else { 0 });
        server.wait().unwrap();
    }
    // Each says what went with it.
    assert!(dropped >= 40 * UNIT, "{dropped}");
}

/// Waits until all of these are members, and no others.
fn are_all(servers: &[&Serving]) {
    let until = Instant::now() + PATIENCE;
    let is_in = |server: &&Serving| {
        let status = server.status();
        status.is_active && status.servers == servers.len()
    };
    while !servers.iter().all(is_in) {
        assert!(Instant::now() < until, "they are not {}", servers.len());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn servers_that_the_first_ones_file_lacks_come_in_while_the_pool_works() {
    let config = Config {
        copies: 1,
        term_ms: 2000,
        ..config(2)
    };
    let [first, second] = [0, 1].map(|index| Serving::begin(&config, index).unwrap());
    let pool = Pool::join(&config, PATIENCE).unwrap();
    let file = file_of(pool.run(open("one")));
    let bytes = |round: u8| vec![round; 100 * UNIT as usize];
    let is = |pool: &Pool, round| {
        let seen = pool.run(read(file, 0, 1 << 20, Mode::Remote));
        assert_eq!(seen, Ok(Answer::Bytes(bytes(round).into())), "{round}");
    };
    let writes = |round| {
        pool.run(write(file, 0, bytes(round), Mode::Local)).unwrap();
        pool.run(Operation::sync(file)).unwrap();
        is(&pool, round);
    };
    writes(1);
    // Each has the first one in its file, and itself.
    let longer = |address| Config {
        servers: vec![config.servers[0], address],
        ..config.clone()
    };
    let files = addresses(2).into_iter().map(longer);
    let files: Vec<Config> = files.collect();
    let begin = |file: &Config| Serving::begin(file, 1).unwrap();
    let [third, fourth] = [begin(&files[0]), begin(&files[1])];
    writes(2);
    are_all(&[&first, &second, &third, &fourth]);
    for added in [&third, &fourth] {
        assert!(added.status().blocks > 0, "it has nothing of the file");
    }
    writes(3);
    // What the old one had goes to the new ones as well.
    second.stop();
    second.wait().unwrap();
    writes(4);
    third.stop();
    third.wait().unwrap();
    let third = begin_again(&files[0], 1);
    are_all(&[&first, &third, &fourth]);
    writes(5);
    // A client that has other addresses sees the same.
    let other = Pool::join(&files[1], PATIENCE).unwrap();
    is(&other, 5);
    drop((other, pool));
    for server in [fourth, third, first] {
        server.stop();
        server.wait().unwrap();
    }
}

#[test]
fn another_life_of_the_first_server_is_another_pool() {
    let config = config(2);
    let begin = |index| Serving::begin(&config, index);
    let (first, second) = (begin(0).unwrap(), begin(1).unwrap());
    let pool = Pool::join(&config, PATIENCE).unwrap();
    first.stop();
    first.wait().unwrap();
    let until = Instant::now() + PATIENCE;
    let again = begin_again(&config, 0);
    let ended = second.wait();
    assert!(matches!(ended, Err(Ended::Refused(_))), "{ended:?}");
    while pool.run(open("one")) != Err(Failure::GivenUp) {
        assert!(Instant::now() < until, "the old pool goes on");
        thread::sleep(Duration::from_millis(5));
    }
    again.stop();
    again.wait().unwrap();
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let good = "servers = [\"127.0.0.1:7411\", \"127.0.0.1:7412\"]\n";
    assert_eq!(Config::parse(good).unwrap().copies, 1);
    let many = |count| {
        let all: Vec<String> = (1..=count)
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        Config::parse(&format!("servers = {all:?}"))
    };
    assert!(many(256).is_ok());
    assert!(many(257).is_err());
    for bad in [
        "",
        "servers = []",
        "servers = [\"192.0.2.1:7411\"]",
        "servers = [\"127.0.0.1:0\"]",
        "servers = [\"127.0.0.1:7411\", \"127.0.0.1:7411\"]",
        &format!("{good}copies = 3"),
        &format!("{good}block_bytes = 1000"),
        &format!("{good}term_ms = 1"),
        &format!("{good}colour = 1"),
    ] {
        assert!(Config::parse(bad).is_err(), "{bad}");
    }
}
