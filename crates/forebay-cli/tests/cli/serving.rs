//! `forebay serve`: a server of a pool.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
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
fn connections_that_say_nothing_keep_nobody_from_the_metrics() {
    let place = Place::new("serve-idle");
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let path = place.file("pool.toml");
    std::fs::write(&path, format!("servers = [\"{host}:7419\"]\n")).expect("a file");
    let metrics = format!("{host}:7420");
    let mut command = place.forebay(&["serve", "--server", "1", "--metrics", &metrics]);
    let child = command.arg(&path).stderr(Stdio::null()).spawn();
    let server = Server(child.expect("it runs"));
    let begun = Instant::now();
    let connect = || loop {
        match TcpStream::connect(&metrics) {
            Ok(stream) => break stream,
            Err(why) => assert!(begun.elapsed() < PATIENCE, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut idle: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    // One of them says something now and then, and never all.
    idle[299].write_all(b"GET").expect("said");
    let begun = Instant::now();
    let mut asker = connect();
    asker.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // A proxy's headers are longer than one piece of the request.
    let request = format!(
        "GET /metrics HTTP/1.1\r\nCookie: {}\r\n\r\n",
        "x".repeat(5000)
    );
    asker.write_all(request.as_bytes()).expect("asked");
    let mut said = String::new();
    asker.read_to_string(&mut said).expect("an answer");
    assert!(said.contains("\nforebay_pool_servers "), "{said}");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    let path = format!("/proc/{}/fd", server.0.id());
    let open = std::fs::read_dir(path).expect("descriptors").count();
    assert!(open < 60, "{open} descriptors");
    for stream in &mut idle {
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let ended = stream.read(&mut [0; 16]);
        let is_timeout = |why: &std::io::Error| why.kind() == std::io::ErrorKind::WouldBlock;
        assert!(
            !ended.as_ref().is_err_and(is_timeout) && !matches!(ended, Ok(1..)),
            "{ended:?}"
        );
    }
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
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

/// A server's log from its start, up to this or to its end.
fn log_up_to(place: &Place, config: &std::path::Path, what: &str) -> String {
    let mut command = place.forebay(&["serve", "--server", "1"]);
    let child = command.arg(config).stderr(Stdio::piped()).spawn();
    let mut server = Server(child.expect("it runs"));
    let log = server.0.stderr.take().expect("a log");
    let mut said = String::new();
    for line in BufReader::new(log).lines() {
        said += &(line.expect("text") + "\n");
        if said.contains(what) {
            break;
        }
    }
    said
}

#[test]
fn what_a_server_says_is_to_be_done_about_its_home_is_so() {
    let place = Place::new("serve-remedy");
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let path = place.file("pool.toml");
    let with_home = |home: &str| {
        let text = format!("servers = [\"{host}:7421\"]\nhome = \"{home}\"\n");
        std::fs::write(&path, text).expect("a file");
    };
    // As a file system is that was made a moment ago.
    std::fs::create_dir_all(place.file("disk/lost+found")).expect("directories");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.file("disk"), mode).expect("a mode");
    with_home("disk");
    let said = log_up_to(&place, &path, "1 servers");
    assert!(
        said.contains("name a directory that is empty, or not there yet"),
        "{said}"
    );
    assert!(!said.contains("chmod"), "it is not the pool's: {said}");
    with_home("disk/work");
    let said = log_up_to(&place, &path, "1 servers");
    assert!(said.contains("1 servers"), "{said}");
}

#[test]
fn a_mount_that_is_not_let_in_is_not_told_to_start_servers() {
    let place = Place::new("serve-mounts");
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let point = place.file("point");
    std::fs::create_dir(&point).expect("a directory");
    let point = point.to_string_lossy();
    let file = |name: &str, more: &str| {
        let path = place.file(name);
        let text = format!("servers = [\"{host}:7422\"]\n{more}");
        std::fs::write(&path, text).expect("a file");
        path.to_string_lossy().into_owned()
    };
    let own = file("pool.toml", "");
    let other = file("other.toml", "term_ms = 2000\n");
    let tls = "[tls]\ncertificate = \"a.pem\"\nkey = \"b.pem\"\nauthority = \"c.pem\"\n";
    let secret = file("secret.toml", tls);
    let _server = Server::start(&place, &own, "1");
    let config = Config::load(std::path::Path::new(&own)).expect("a configuration");
    drop(Pool::join(&config, PATIENCE).expect("it serves"));
    for (config, why) in [
        (other, "all members of a pool have the same file"),
        (secret, "a.pem"),
    ] {
        let run = place.run(&["mount", &format!("pool:{config}"), &point]);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains(why), "{run:?}");
        assert!(
            !run.stderr.contains("are all its servers running"),
            "{run:?}"
        );
    }
}

/// Starts a server that has a home, under a limit, as the shell's `ulimit` sets it.
fn start_under(place: &Place, limit: &str, port: u16) -> (Server, Config) {
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x80, c, d);
    let path = place.file("pool.toml");
    let home = place.file("home").display().to_string();
    let text = format!("servers = [\"{host}:{port}\"]\nhome = \"{home}\"\n");
    std::fs::write(&path, &text).expect("a file");
    let limited = format!("ulimit {limit} && exec \"$0\" serve --server 1 \"$1\"");
    let arguments = ["-c", &limited, env!("CARGO_BIN_EXE_forebay")];
    let mut command = place.in_place(Command::new("sh"), &arguments);
    command.arg(&path);
    let child = command.stderr(Stdio::null()).spawn().expect("it runs");
    (
        Server(child),
        Config::parse(&text).expect("a configuration"),
    )
}

fn make_and_sync(pool: &Pool, name: &str) {
    let made = pool.run(Operation::Make {
        parent: File::ROOT,
        name: name.as_bytes().to_vec(),
        facts: Facts::default(),
        bytes: b"bytes".to_vec(),
    });
    let Ok(Answer::Made(Entry { file, .. }, true)) = made else {
        panic!("{made:?}");
    };
    assert_eq!(pool.run(Operation::sync(file)), Ok(Answer::Done));
}

#[test]
fn a_server_takes_as_many_descriptors_as_it_may_have() {
    let place = Place::new("serve-soft");
    let (_server, config) = start_under(&place, "-Sn 64", 7415);
    let join = |_| Pool::join(&config, PATIENCE).expect("a pool");
    let all: Vec<Pool> = (0..30).map(join).collect();
    make_and_sync(&all[29], "name");
}

#[test]
fn clients_for_whom_a_server_has_no_descriptors_are_kept_out() {
    let place = Place::new("serve-hard");
    let (_server, config) = start_under(&place, "-n 200", 7416);
    let mut all = vec![Pool::join(&config, PATIENCE).expect("a pool")];
    while let Ok(pool) = Pool::join(&config, Duration::from_secs(2)) {
        all.push(pool);
        assert!(all.len() < 100, "nobody is kept out");
    }
    assert!(all.len() > 5, "{}", all.len());
    make_and_sync(&all[0], "name");
    // One that leaves makes room.
    all.truncate(1);
    all.push(Pool::join(&config, PATIENCE).expect("a pool"));
    make_and_sync(&all[1], "other");
}
