//! Pools whose ruling server is elected in a real etcd: it dies, all are restarted under load, and etcd goes and comes back.

#[path = "common/again.rs"]
mod again;
mod common;
#[path = "etcd/growing.rs"]
mod growing;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{PATIENCE, addresses};
use forebay_model::skipped;
use forebay_pool::client::{Answer, Facts, Failure, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Ended, Pool, Serving, Tls};

const UNIT: u64 = 512;
/// The lease is half of it, and etcd gives no shorter ones.
const TERM: u64 = 4000;

const ROLE: &str = "TEST_POOL_ROLE";
const CONFIG: &str = "TEST_POOL_CONFIG";

/// A process that does not outlive its test.
struct Process(Child);

impl Process {
    /// As a power cut would.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Says that it is to go, and waits until it has.
    fn stop(&mut self) {
        self.0.stdin.take().unwrap().write_all(b".").unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }

    fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let done = kill.args([name, &self.0.id().to_string()]).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the servers of these tests do; nothing in the process that runs them.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let config = Config::parse(&std::env::var(CONFIG).unwrap()).unwrap();
    let serving = Serving::begin(&config, role.parse().unwrap()).unwrap();
    let mut byte = [0];
    if std::io::stdin().read(&mut byte).unwrap_or(0) == 0 {
        exit(1);
    }
    serving.stop();
    exit(i32::from(serving.wait().is_err()))
}

/// An etcd of one member.
struct Etcd {
    process: Option<Process>,
    address: SocketAddr,
    peers: SocketAddr,
    /// By what it proves who it is, and whose clients it believes.
    tls: Option<Tls>,
    directory: tempfile::TempDir,
}

impl Etcd {
    /// `None`, and said so, where there is none.
    fn begin() -> Option<Etcd> {
        Etcd::begin_with(|_, _| None)
    }

    /// With certificates that are made in its directory, for its address.
    fn begin_with(tls: impl Fn(&Path, &str) -> Option<Tls>) -> Option<Etcd> {
        if Command::new("etcd").arg("--version").output().is_err() {
            skipped("etcd is missing (scripts/install-test-deps.sh installs it)");
            return None;
        }
        let [address, peers] = addresses(2)[..] else {
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let mut etcd = Etcd {
            process: None,
            address,
            peers,
            tls: tls(directory.path(), &address.ip().to_string()),
            directory,
        };
        etcd.start();
        Some(etcd)
    }

    fn start(&mut self) {
        let (clients, peers) = (self.endpoint(), format!("http://{}", self.peers));
        let child = Command::new("etcd")
            .args([
                "--listen-client-urls",
                &clients,
                "--advertise-client-urls",
                &clients,
            ])
            .args([
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
            ])
            .args(["--initial-cluster", &format!("default={peers}")])
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            .args(self.flags())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(Process(child.unwrap()));
        wait_until("etcd answers", || TcpStream::connect(self.address).is_ok());
    }

    fn flags(&self) -> Vec<String> {
        let Some(tls) = &self.tls else {
            return Vec::new();
        };
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        vec![
            flag("cert-file", &tls.certificate),
            flag("key-file", &tls.key),
            flag("trusted-ca-file", &tls.authority),
            "--client-cert-auth".to_string(),
        ]
    }

    fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Who rules, by his address.
    fn ruler(&self) -> Option<SocketAddr> {
        let said = self.ask(&["get", "--print-value-only", "/pool/ruler"]);
        let address = said.split("\"address\":\"").nth(1)?;
        address.split('"').next()?.parse().ok()
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint()]);
        let output = command.args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A pool of processes.
struct Servers {
    config: Config,
    /// What each has for a file, and which server of it it is.
    files: Vec<(Config, usize)>,
    all: Vec<Process>,
    /// A file with what their host says of its boot; else it says the truth.
    boot: Option<PathBuf>,
}

impl Servers {
    fn begin(etcd: &Etcd, count: u16, home: Option<&Path>) -> Servers {
        Servers::begin_by(None, etcd, count, TERM, home)
    }

    fn begin_by(
        boot: Option<&Path>,
        etcd: &Etcd,
        count: u16,
        term: u64,
        home: Option<&Path>,
    ) -> Servers {
        let servers: Vec<String> = { addresses(count).into_iter() }
            .map(|address| format!("\"{address}\""))
            .collect();
        let home = home.map(|home| format!("home = \"{}\"\nmemory_mib = 1\n", home.display()));
        let copies = if home.is_some() { 1 } else { count.min(2) };
        let text = format!(
            "servers = [{}]\nblock_bytes = {UNIT}\nterm_ms = {term}\ncopies = {copies}\n{}\
             [etcd]\nendpoints = [\"{}\"]\nprefix = \"/pool\"\n",
            servers.join(","),
            home.unwrap_or_default(),
            etcd.endpoint()
        );
        let config = Config::parse(&text).unwrap();
        let files = (0..count.into()).map(|index| (config.clone(), index));
        let mut servers = Servers {
            files: files.collect(),
            config,
            all: Vec::new(),
            boot: boot.map(Path::to_owned),
        };
        for index in 0..count.into() {
            let process = servers.process(index);
            servers.all.push(process);
        }
        servers
    }

    /// One more, at an address that only its own file has.
    fn add(&mut self) -> usize {
        self.files.push(self.longer_file());
        self.all.push(self.process(self.files.len() - 1));
        self.all.len() - 1
    }

    /// The file of the pool's first servers with one more address.
    fn longer_file(&self) -> (Config, usize) {
        let mut file = self.config.clone();
        file.servers.extend(addresses(1));
        (file, self.config.servers.len())
    }

    fn address(&self, index: usize) -> SocketAddr {
        let (file, own) = &self.files[index];
        file.servers[*own]
    }

    /// Who rules, by its index here.
    fn ruler(&self, etcd: &Etcd) -> Option<usize> {
        let ruler = etcd.ruler()?;
        (0..self.all.len()).find(|index| self.address(*index) == ruler)
    }

    fn process(&self, index: usize) -> Process {
        let (file, place) = &self.files[index];
        let own = std::env::current_exe().unwrap();
        let mut command = match &self.boot {
            Some(boot) => by_boot(boot, &own),
            None => Command::new(&own),
        };
        let child = command
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, place.to_string())
            .env(CONFIG, toml::to_string(file).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }

    fn restart(&mut self, index: usize) {
        self.all[index] = self.process(index);
    }

    fn join(&self) -> Pool {
        Pool::join(&self.config, PATIENCE).unwrap()
    }

    /// The place of a server that lives.
    fn place(&self, index: usize, etcd: &Etcd) -> Option<u32> {
        self.number(index, etcd).map(|number| (number - 1) % 256)
    }

    /// The number of a server that lives, by what etcd has.
    fn number(&self, index: usize, etcd: &Etcd) -> Option<u32> {
        let said = etcd.ask(&["get", "--prefix", "/pool/servers/"]);
        let address = self.address(index).to_string();
        // A line for each key, and one for its value.
        let mut lines = said.lines();
        while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
            if value == address {
                return key.rsplit('/').next()?.parse().ok();
            }
        }
        None
    }
}

/// A command on a host that has begun by the boot that a file says.
fn by_boot(boot: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    let binds = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    command.args(["--mount", "sh", "-c", binds]);
    command.arg(boot).arg(program);
    command
}

fn open(pool: &Pool, name: &str) -> Result<File, Failure> {
    let make = Operation::Make {
        parent: File::ROOT,
        name: name.as_bytes().to_vec(),
        facts: Facts::default(),
        bytes: Vec::new(),
    };
    match pool.run(make)? {
        Answer::Made(entry, _) => Ok(entry.file),
        other => panic!("{other:?}"),
    }
}

fn write(pool: &Pool, file: File, at: u64, value: u8) -> Result<(), Failure> {
    let mode = if at.is_multiple_of(2) {
        Mode::Local
    } else {
        Mode::Remote
    };
    let write = Operation::Write {
        file,
        offset: at * UNIT,
        bytes: vec![value; UNIT as usize].into(),
        mode,
    };
    pool.run(write)?;
    pool.run(Operation::sync(file)).map(drop)
}

/// All of a file.
fn read(pool: &Pool, file: File) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let read = Operation::Read {
            file,
            offset: all.len() as u64,
            length: 1 << 20,
            mode: Mode::Local,
        };
        match pool.run(read) {
            Ok(Answer::Bytes(bytes)) if bytes.is_empty() => return all,
            Ok(Answer::Bytes(bytes)) => all.extend(bytes.into_vec()),
            other => panic!("{other:?}"),
        }
    }
}

/// A client that writes and syncs, block after block, and counts what was synced.
struct Writer {
    file: File,
    synced: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Arc<Pool>>,
}

fn value(at: u64) -> u8 {
    (at % 251) as u8 + 1
}

impl Writer {
    fn begin(pool: Arc<Pool>) -> Writer {
        let file = open(&pool, "written").unwrap();
        let [synced, failed] = [(), ()].map(|()| Arc::new(AtomicU64::new(0)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (done, fails, over) = (
            Arc::clone(&synced),
            Arc::clone(&failed),
            Arc::clone(&is_over),
        );
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let at = done.load(Ordering::Relaxed);
                match write(&pool, file, at, value(at)) {
                    Ok(()) => done.store(at + 1, Ordering::Relaxed),
                    // Its term is over: nobody rules for the moment.
                    Err(Failure::CutOff) => {
                        fails.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(other) => panic!("block {at}: {other:?}"),
                }
                thread::sleep(Duration::from_millis(5));
            }
            pool
        });
        Writer {
            file,
            synced,
            failed,
            is_over,
            thread,
        }
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Waits until more has been synced than now, and says how long that took.
    fn goes_on(&self) -> Duration {
        let (before, begun) = (self.synced(), Instant::now());
        wait_until("the writer goes on", || {
            assert!(!self.thread.is_finished(), "the writer has failed");
            self.synced() > before + 3
        });
        begun.elapsed()
    }

    /// Ends, and looks from another client whether all is there. Says how many operations were cut off.
    fn end(self, config: &Config) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let (count, failed) = (Arc::clone(&self.synced), self.failed());
        let pool = self.thread.join().unwrap();
        let count = count.load(Ordering::Relaxed);
        let other = Pool::join(config, PATIENCE).unwrap();
        assert_eq!(open(&other, "written"), Ok(self.file));
        let bytes = read(&other, self.file);
        assert!(
            bytes.len() as u64 >= count * UNIT,
            "{} of {count}",
            bytes.len()
        );
        for (at, block) in (0..count).zip(bytes.chunks(UNIT as usize)) {
            assert!(
                block.iter().all(|byte| *byte == value(at)),
                "block {at} of {count}"
            );
        }
        drop(pool);
        failed
    }
}

/// The ruling server is killed under a writing client, and again, each time it rules somewhere else.
fn the_ruler_dies(home: Option<&Path>) {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, 3, home);
    let writer = Writer::begin(Arc::new(servers.join()));
    let mut rulers = Vec::new();
    for _ in 0..3 {
        writer.goes_on();
        let ruler = servers.ruler(&etcd).unwrap();
        servers.all[ruler].kill();
        let begun = Instant::now();
        wait_until("another one rules", || {
            servers.ruler(&etcd).is_some_and(|other| other != ruler)
        });
        let taken = begun.elapsed();
        let resumed = begun.elapsed() + writer.goes_on();
        println!(
            "{ruler} dies: another one rules after {taken:?}, the writer goes on after {resumed:?}"
        );
        assert!(taken < Duration::from_millis(5 * TERM), "{taken:?}");
        servers.restart(ruler);
        wait_for_all(&servers, &etcd);
        rulers.push(ruler);
    }
    let failed = writer.end(&servers.config);
    println!("{rulers:?} have died; {failed} operations were cut off");
}

/// Until all servers of the list are in etcd and the pool serves a new client.
fn wait_for_all(servers: &Servers, etcd: &Etcd) {
    wait_until("all servers are members", || {
        (0..servers.all.len()).all(|index| servers.number(index, etcd).is_some())
    });
    drop(servers.join());
}

/// Whoever gave it its number dies before the register has heard of it: it gets another number.
#[test]
fn a_server_that_has_just_been_given_a_number_outlives_its_giver() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, 3, None);
    let writer = Writer::begin(Arc::new(servers.join()));
    // Others dial the first of the list, and it takes them a moment to do so again: it does not rule.
    loop {
        writer.goes_on();
        servers.all[0].kill();
        writer.goes_on();
        if servers.ruler(&etcd).is_some_and(|ruler| ruler != 0) {
            break;
        }
        servers.restart(0);
        wait_for_all(&servers, &etcd);
    }
    wait_until("it is gone", || servers.number(0, &etcd).is_none());
    let ruler = servers.ruler(&etcd).unwrap();
    servers.restart(0);
    wait_until("the first has a number", || {
        servers.number(0, &etcd).is_some()
    });
    let first = servers.number(0, &etcd);
    servers.all[ruler].kill();
    writer.goes_on();
    servers.restart(ruler);
    wait_for_all(&servers, &etcd);
    let second = servers.number(0, &etcd);
    if first == second {
        println!("the register had heard of it already: nothing was tested");
    }
    writer.end(&servers.config);
}

#[test]
fn a_pool_with_a_home_outlives_its_ruler() {
    let home = tempfile::tempdir().unwrap();
    the_ruler_dies(Some(&home.path().join("home")));
}

#[test]
fn a_pool_of_two_copies_outlives_its_ruler() {
    the_ruler_dies(None);
}

#[test]
fn all_servers_are_restarted_under_load() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, 3, None);
    let writer = Writer::begin(Arc::new(servers.join()));
    for index in [0, 1, 2, 1, 0, 2] {
        writer.goes_on();
        servers.all[index].stop();
        writer.goes_on();
        servers.restart(index);
        wait_for_all(&servers, &etcd);
    }
    let failed = writer.end(&servers.config);
    assert_eq!(failed, 0, "operations were cut off");
}

#[test]
fn servers_that_are_all_told_to_go_by_etcd_end() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, 3, None);
    let pool = servers.join();
    let file = open(&pool, "one").unwrap();
    write(&pool, file, 0, 1).unwrap();
    for server in &mut servers.all {
        let mut stdin = server.0.stdin.take().unwrap();
        stdin.write_all(b".").unwrap();
    }
    wait_until("all have ended", || {
        let mut all = servers.all.iter_mut();
        all.all(|server| server.0.try_wait().unwrap().is_some())
    });
    for server in &mut servers.all {
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
}

/// What is short is measured by the term, which here lasts while a busy machine starts an etcd.
#[test]
fn a_short_absence_of_etcd_is_not_noticed() {
    const LONG_TERM: u64 = 5 * TERM;
    let Some(mut etcd) = Etcd::begin() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let home = home.path().join("home");
    let servers = Servers::begin_by(None, &etcd, 2, LONG_TERM, Some(&home));
    let writer = Writer::begin(Arc::new(servers.join()));
    writer.goes_on();
    etcd.process.take().unwrap().kill();
    writer.goes_on();
    etcd.start();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(LONG_TERM) {
        writer.goes_on();
    }
    assert_eq!(writer.end(&servers.config), 0, "operations were cut off");
}

/// A long absence ends what members may do, and new operations fail. The one that is under way waits.
#[test]
fn a_pool_goes_on_when_etcd_comes_back() {
    let Some(mut etcd) = Etcd::begin() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let servers = Servers::begin(&etcd, 2, Some(&home.path().join("home")));
    let pool = Arc::new(servers.join());
    let writer = Writer::begin(Arc::clone(&pool));
    writer.goes_on();
    etcd.process.take().unwrap().kill();
    let look = || pool.run(Operation::List { parent: File::ROOT });
    wait_until("the client is cut off", || look() == Err(Failure::CutOff));
    let nobody = Pool::join(&servers.config, Duration::from_secs(1)).err();
    assert!(matches!(nobody, Some(Ended::NoAnswer)), "{nobody:?}");
    let before = writer.synced();
    thread::sleep(Duration::from_millis(TERM));
    assert_eq!((writer.synced(), look()), (before, Err(Failure::CutOff)));
    etcd.start();
    writer.goes_on();
    assert!(look().is_ok());
    drop(pool);
    writer.end(&servers.config);
}

#[test]
fn a_ruler_that_is_stopped_for_a_while_rules_no_more() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let mut servers = Servers::begin(&etcd, 3, Some(&home.path().join("home")));
    let writer = Writer::begin(Arc::new(servers.join()));
    writer.goes_on();
    let ruler = servers.ruler(&etcd).unwrap();
    servers.all[ruler].signal("-STOP");
    wait_until("another one rules", || {
        servers.ruler(&etcd).is_some_and(|other| other != ruler)
    });
    writer.goes_on();
    servers.all[ruler].signal("-CONT");
    let until = Instant::now() + Duration::from_millis(2 * TERM);
    while Instant::now() < until {
        writer.goes_on();
        assert_ne!(servers.ruler(&etcd), Some(ruler));
    }
    // It was given up, or is a member like others.
    servers.all[ruler].kill();
    servers.restart(ruler);
    wait_for_all(&servers, &etcd);
    writer.end(&servers.config);
}

#[test]
fn a_client_joins_while_the_first_server_of_the_list_is_silent() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let servers = Servers::begin(&etcd, 3, None);
    drop(servers.join());
    wait_for_all(&servers, &etcd);
    // Its host's kernel answers for it.
    servers.all[0].signal("-STOP");
    wait_until("another one rules", || {
        servers.ruler(&etcd).is_some_and(|ruler| ruler != 0)
    });
    // A greeting waits for longer.
    let joined = Pool::join(&servers.config, Duration::from_secs(8));
    assert!(joined.is_ok(), "{:?}", joined.err());
}

#[test]
fn what_all_servers_have_written_is_there_again_with_a_home_and_lost_without() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let mut servers = Servers::begin(&etcd, 2, Some(&home.path().join("home")));
    let pool = servers.join();
    let file = open(&pool, "one").unwrap();
    write(&pool, file, 0, 1).unwrap();
    for server in &mut servers.all {
        server.kill();
    }
    for index in 0..2 {
        servers.restart(index);
    }
    // The client lives on, in the same pool.
    wait_until("the client is served again", || {
        write(&pool, file, 1, 2).is_ok()
    });
    assert_eq!(read(&servers.join(), file).len() as u64, 2 * UNIT);
    drop((pool, servers));

    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, 2, None);
    let pool = servers.join();
    open(&pool, "one").unwrap();
    for server in &mut servers.all {
        server.kill();
    }
    for index in 0..2 {
        servers.restart(index);
    }
    let again = servers.join();
    let names = again.run(Operation::List { parent: File::ROOT });
    assert_eq!(names, Ok(Answer::Names(Vec::new())));
    wait_until("the old client is told", || {
        let gone = pool.run(Operation::List { parent: File::ROOT });
        gone == Err(Failure::GivenUp)
    });
}

#[test]
fn two_pools_do_not_take_one_another_for_one() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let servers = Servers::begin(&etcd, 1, None);
    drop(servers.join());
    let other = Config {
        servers: addresses(1),
        ..servers.config.clone()
    };
    let ended = Serving::begin(&other, 0).unwrap().wait();
    let why = ended.unwrap_err().to_string();
    assert!(why.contains("/pool/ruler is another pool's"), "{why}");
}

fn openssl(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    let done = command.args(arguments).current_dir(directory).output();
    let done = done.unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {said}");
}

/// A certificate for an address, and its authority's.
fn authority(directory: &Path, name: &str, address: &str) -> Tls {
    let [ca, ca_key, certificate, key] =
        ["ca.pem", "ca.key", "pem", "key"].map(|end| format!("{name}.{end}"));
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let new: Vec<&str> = new.split(' ').collect();
    let subject = format!("/CN={name}");
    let make = ["-subj", &subject, "-keyout", &ca_key, "-out", &ca];
    openssl(directory, &[&new[..], &make].concat());
    let names = format!("subjectAltName=IP:{address}");
    let make = ["-subj", "/CN=member", "-keyout", &key, "-out", &certificate];
    let signed = ["-CA", &ca, "-CAkey", &ca_key, "-addext", &names];
    let ends = ["-addext", "basicConstraints=critical,CA:FALSE"];
    openssl(directory, &[&new[..], &make, &signed, &ends].concat());
    Tls {
        certificate: directory.join(certificate),
        key: directory.join(key),
        authority: directory.join(ca),
    }
}

#[test]
fn etcd_and_servers_prove_who_they_are() {
    let ours = |directory: &Path, address: &str| Some(authority(directory, "ours", address));
    let Some(etcd) = Etcd::begin_with(ours) else {
        return;
    };
    let by = |tls: Tls| {
        let text = format!(
            "servers = [\"{}\"]\nterm_ms = {TERM}\n[etcd]\nendpoints = [\"{}\"]\nprefix = \"/pool\"\n\
             [etcd.tls]\ncertificate = {:?}\nkey = {:?}\nauthority = {:?}\n",
            addresses(1)[0],
            etcd.endpoint(),
            tls.certificate,
            tls.key,
            tls.authority
        );
        Config::parse(&text).unwrap()
    };
    let ours = etcd.tls.clone().unwrap();
    let theirs = authority(etcd.directory.path(), "theirs", "127.0.0.1");
    // Neither a server that etcd does not know, nor one that does not know etcd, comes in; and both say why.
    for stranger in [
        Tls {
            authority: ours.authority.clone(),
            ..theirs.clone()
        },
        Tls {
            authority: theirs.authority.clone(),
            ..ours.clone()
        },
    ] {
        let serving = Serving::begin(&by(stranger), 0).unwrap();
        wait_until("it says that etcd fails", || {
            serving.status().etcd_trouble.is_some()
        });
        let why = serving.status().etcd_trouble.unwrap();
        println!("{why}");
        assert!(why.contains(&etcd.endpoint()), "{why}");
        serving.stop();
        serving.wait().unwrap();
    }
    let config = by(ours);
    let serving = Serving::begin(&config, 0).unwrap();
    let pool = Pool::join(&config, PATIENCE).unwrap();
    open(&pool, "one").unwrap();
    let status = serving.status();
    assert!(status.rules && status.etcd_trouble.is_none(), "{status:?}");
    drop(pool);
    // It is the only one, so there is nobody to hand on to.
    serving.stop();
    serving.wait().unwrap();
}

/// Whether a file system is one of those that have nothing before somebody syncs them.
fn keeps_nothing_unsynced(path: &Path) -> bool {
    let mut stat = Command::new("stat");
    let said = stat.args(["-f", "-c", "%t"]).arg(path).output().unwrap();
    let kind = String::from_utf8(said.stdout).unwrap();
    ["ef53", "58465342", "9123683e", "f2f52010", "1021994"].contains(&kind.trim())
}

#[test]
fn a_client_that_outlives_the_homes_host_is_told_by_its_next_sync() {
    let around = tempfile::tempdir().unwrap();
    let boot = around.path().join("boot");
    let begins = |number: u8| {
        let id = format!("{number:08x}-8303-438b-bf05-67c1838fb5e3\n");
        std::fs::write(&boot, id).unwrap();
    };
    begins(1);
    if !by_boot(&boot, Path::new("true"))
        .status()
        .is_ok_and(|status| status.success())
    {
        return skipped("what the host says of its boot cannot be changed here: not root");
    }
    if !keeps_nothing_unsynced(around.path()) {
        return skipped(
            "the file system of temporary files is none of those that lose what is not synced",
        );
    }
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let home = around.path().join("home");
    let mut servers = Servers::begin_by(Some(&boot), &etcd, 2, TERM, Some(&home));
    let pool = servers.join();
    let file = open(&pool, "written").unwrap();
    let written = |value| {
        let write = Operation::Write {
            file,
            offset: 0,
            bytes: vec![value; UNIT as usize].into(),
            mode: Mode::Remote,
        };
        pool.run(write)
    };
    let sync = || pool.run(Operation::sync(file));
    for (round, is_other) in [(1, false), (2, true)] {
        written(round).unwrap();
        servers.all.iter_mut().for_each(Process::kill);
        if is_other {
            begins(2);
        }
        (0..2).for_each(|index| servers.restart(index));
        let mut synced = Err(Failure::CutOff);
        wait_until("it syncs", || {
            synced = sync();
            synced != Err(Failure::CutOff)
        });
        let expected = if is_other {
            Err(Failure::Lost)
        } else {
            Ok(Answer::Done)
        };
        assert_eq!(synced, expected);
        assert_eq!(sync(), Ok(Answer::Done), "it is told once");
    }
}
