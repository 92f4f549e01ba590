//! `forebay serve`: a server of a pool.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forebay_pool::client::{Answer, Entry, Facts, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Pool};
use rustix::process::{Pid, Signal, kill_process};

use crate::place::Place;

/// Nothing here takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server(Child);

impl Server {
    fn start(place: &Place, config: &str, number: &str) -> Server {
        let mut command = place.forebay(&["serve", config, "--server", number]);
        Server(command.stderr(Stdio::null()).spawn().expect("it runs"))
    }

    /// Tells it to go, and says how it ended.
    fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("a signal");
        self.0.wait().expect("its end").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pool_is_served_and_a_server_hands_on_what_it_has() {
    let place = Place::new("serve");
    // Addresses that no other process uses.
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let [one, two] = [7411, 7412].map(|port| SocketAddr::from((host, port)));
    let text = format!("servers = [\"{one}\", \"{two}\"]\nblock_bytes = 4096\n");
    let path = place.file("pool.toml");
    std::fs::write(&path, &text).expect("a file");
    let path = path.to_string_lossy();
    let mut first = Server::start(&place, &path, "1");
    let mut second = Server::start(&place, &path, "2");
    let config = Config::parse(&text).expect("a configuration");
    let pool = Pool::join(&config, PATIENCE).expect("a pool");
    let opened = pool.run(Operation::Make {
        parent: File::ROOT,
        name: b"name".to_vec(),
        facts: Facts::default(),
        bytes: Vec::new(),
    });
    let Ok(Answer::Made(Entry { file, .. }, true)) = opened else {
        panic!("{opened:?}");
    };
    let bytes: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
    let write = Operation::Write {
        file,
        offset: 0,
        bytes: bytes.clone().into(),
        mode: Mode::Remote,
    };
    assert_eq!(pool.run(write), Ok(Answer::Done));
    assert_eq!(second.stop(), Some(0));
    let read = Operation::Read {
        file,
        offset: 0,
        length: 1 << 20,
        mode: Mode::Remote,
    };
    assert_eq!(pool.run(read), Ok(Answer::Bytes(bytes.into())));
    drop(pool);
    assert_eq!(first.stop(), Some(0));
}

#[test]
fn metrics_are_told_and_the_log_says_what_happens() {
    let place = Place::new("serve-metrics");
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let path = place.file("pool.toml");
    let text = format!("servers = [\"{host}:7413\"]\nhome = \"home\"\n");
    std::fs::write(&path, &text).expect("a file");
    let home = place.file("home");
    std::fs::create_dir(&home).expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&home, open).expect("it is open to others");
    let metrics = format!("{host}:7414");
    let mut command = place.forebay(&["serve", "--server", "1", "--metrics", &metrics]);
    let child = command.arg(&path).stderr(Stdio::piped()).spawn();
    let mut server = Server(child.expect("it runs"));
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&metrics)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    };
    let begun = Instant::now();
    let said = loop {
        let said = asked().unwrap_or_default();
        if said.contains("\nforebay_pool_active 1\n") {
            break said;
        }
        assert!(begun.elapsed() < PATIENCE, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    assert!(said.contains("\nforebay_pool_servers 1\n"), "{said}");
    let mut log = server.0.stderr.take().expect("a log");
    assert_eq!(server.stop(), Some(0));
    let mut told = String::new();
    log.read_to_string(&mut told).expect("text");
    assert!(told.contains("1 servers, 0 clients"), "{told}");
    assert!(told.contains("others may enter the pool's home"), "{told}");
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let place = Place::new("serve-bad");
    let path = place.file("pool.toml");
    let name = path.to_string_lossy();
    let missing = place.run(&["serve", &name, "--server", "1"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    std::fs::write(&path, "servers = [\"192.0.2.1:7411\"]\n").expect("a file");
    let open = place.run(&["serve", &name, "--server", "1"]);
    assert!(
        open.code == 2 && open.stderr.contains("loopback"),
        "{open:?}"
    );
    std::fs::write(&path, "servers = [\"127.0.0.1:7411\"]\n").expect("a file");
    let third = place.run(&["serve", &name, "--server", "3"]);
    assert_eq!(third.code, 2, "{third:?}");
}

#[test]
fn a_server_says_by_what_it_lends_its_blocks() {
    let place = Place::new("serve-fabric");
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let path = place.file("pool.toml");
    std::fs::write(&path, format!("servers = [\"{host}:7415\"]\n")).expect("a file");
    // Where libfabric or the provider is missing, it says so, and is a server all the same.
    for (provider, says) in [("tcp", "lent by libfabric's tcp"), ("shm", "lent by")] {
        let mut command = place.forebay(&["serve", "--server", "1", "--fabric", provider]);
        let child = command.arg(&path).stderr(Stdio::piped()).spawn();
        let mut server = Server(child.expect("it runs"));
        let log = BufReader::new(server.0.stderr.take().expect("a log"));
        let mut lines = log.lines().map(|line| line.expect("text"));
        let is_said = |line: &String| line.contains(says) || line.contains("it lends no blocks");
        assert!(lines.any(|line| is_said(&line)), "{provider}");
        let config = Config::load(&path).expect("a configuration");
        Pool::join(&config, PATIENCE).expect("a pool");
        assert_eq!(server.stop(), Some(0));
    }
    let mut wrong = place.forebay(&["serve", "--server", "1", "--fabric", "wool"]);
    let wrong = wrong.arg(&path).output().expect("it runs");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("no provider is called wool"), "{said}");
}
