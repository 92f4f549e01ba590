//! Mounted pools: two hosts, each with a mount of its own, that share names and bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forebay_fuse::points;
use forebay_model::{Op, Profile, StdFiles, drive, generate};
use forebay_pool::files::{Error, Files};
use forebay_pool::ids::File as FileNumber;
use forebay_pool::net::Config;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::here::skipped;
use crate::place::{Place, Process};
use crate::scene::{self, wait_until};

/// Soon over for those who wait for the end of a server or a host that is dead.
const SHORT_TERM: &str = "term_ms = 3000";

/// A pool of two servers that is mounted twice.
pub struct Hosts {
    place: Place,
    pub config: PathBuf,
    /// What is said to `forebay mount` besides.
    arguments: &'static [&'static str],
    pub servers: Vec<Process>,
    mounts: Vec<(PathBuf, Process)>,
}

impl Hosts {
    /// `None`, and said so, where nothing can be mounted.
    pub fn begin(name: &str, port: u16) -> Option<Hosts> {
        // Whatever holds must hold whichever way a request goes.
        Self::begin_with(name, port, "copies = 2\npath = \"ratio:50\"", &[])
    }

    pub fn begin_with(
        name: &str,
        port: u16,
        more: &str,
        arguments: &'static [&'static str],
    ) -> Option<Hosts> {
        Self::begin_of(2, name, port, more, arguments)
    }

    /// The same of so many servers.
    pub fn begin_of(
        count: u16,
        name: &str,
        port: u16,
        more: &str,
        arguments: &'static [&'static str],
    ) -> Option<Hosts> {
        let mut hosts = Self::unmounted(count, name, port, more, arguments)?;
        for point in ["a", "b"] {
            hosts.mount(point);
        }
        Some(hosts)
    }

    /// The servers alone.
    pub fn unmounted(
        count: u16,
        name: &str,
        port: u16,
        more: &str,
        arguments: &'static [&'static str],
    ) -> Option<Hosts> {
        if !scene::can_mount() {
            return None;
        }
        let place = Place::new(name);
        // Addresses that no other process uses.
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let host = Ipv4Addr::new(127, (a ^ b) | 0x20, c, d);
        let servers: Vec<String> = (port..port + count)
            .map(|port| SocketAddr::from((host, port)).to_string())
            .collect();
        // So long that a busy machine ends none: only who waits for the end of one says less.
        let term = match more.contains("term_ms") {
            true => "",
            false => "term_ms = 20000\n",
        };
        let text = format!("servers = {servers:?}\n{more}\nblock_bytes = 4096\n{term}");
        let config = place.file("pool.toml");
        fs::write(&config, text).expect("a file");
        let mut hosts = Hosts {
            place,
            config,
            arguments,
            servers: Vec::new(),
            mounts: Vec::new(),
        };
        (1..=count).for_each(|number| hosts.serve(number));
        Some(hosts)
    }

    fn serve(&mut self, number: u16) {
        let mut command = self.place.forebay(&["serve"]);
        command
            .arg(&self.config)
            .arg("--server")
            .arg(number.to_string());
        let child = command.stderr(Stdio::null()).spawn();
        self.servers.push(Process::new(child.expect("it runs")));
    }

    /// Mounts it as a host whose requests go that way; the pool's configuration says of none how they go.
    pub fn mount_by(&mut self, point: &str, path: &str) -> PathBuf {
        let all = self.config.clone();
        let text = fs::read_to_string(&all).expect("a configuration");
        self.config = self.place.file(&format!("{point}.toml"));
        fs::write(&self.config, format!("{text}path = \"{path}\"\n")).expect("a file");
        self.mount(point);
        self.config = all;
        self.place.file(point)
    }

    fn mount(&mut self, point: &str) {
        self.mount_with(point, &[]);
    }

    fn mount_with(&mut self, point: &str, options: &[&str]) {
        let point = self.place.file(point);
        if !point.exists() {
            fs::create_dir(&point).expect("a directory");
        }
        let mut command = self.place.forebay(&["mount"]);
        command
            .args(self.arguments)
            .args(options)
            .arg(format!("pool:{}", self.config.display()))
            .arg(&point);
        let child = command.stderr(Stdio::piped()).spawn();
        let mut process = Process::new(child.expect("it runs"));
        let said = process.first_line();
        assert!(said.contains(", a pool"), "{said}");
        self.mounts.push((point, process));
    }

    /// The process of a mount.
    pub fn process(&mut self, at: usize) -> &mut Process {
        &mut self.mounts[at].1
    }

    pub fn points(&self) -> [PathBuf; 2] {
        [self.mounts[0].0.clone(), self.mounts[1].0.clone()]
    }

    /// Unmounts one, which has to end in good order.
    pub fn umount(&mut self, at: usize) {
        let (point, process) = self.mounts.remove(at);
        wait_until("nobody has anything open", || {
            let mut command = self.place.forebay(&["umount"]);
            command.arg(&point).status().expect("it runs").success()
        });
        let (status, said) = process.wait();
        assert_eq!(status.code(), Some(0), "{said}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (point, _) in &self.mounts {
            let _ = points::end(point, true);
        }
    }
}

fn number_of(result: std::io::Result<impl Sized>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

fn names(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).expect("listed");
    let mut names: Vec<String> = listed
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .collect();
    names.sort();
    names
}

/// Reads and writes of a mount, by memory and past it.
fn ways(address: SocketAddr) -> [u64; 4] {
    let mut stream = TcpStream::connect(address).expect("metrics");
    { stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n") }.expect("asked");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("answered");
    let of = |kind: &str, way: &str| {
        let line = format!("forebay_pool_requests{{kind=\"{kind}\",path=\"{way}\"}} ");
        let mut lines = said.lines();
        let count = lines.find_map(|text| text.strip_prefix(&line)?.parse().ok());
        count.unwrap_or_else(|| panic!("no {line} in {said}"))
    };
    [
        of("read", "local"),
        of("read", "remote"),
        of("write", "local"),
        of("write", "remote"),
    ]
}

#[test]
fn requests_go_both_ways_and_metrics_tell_how_many() {
    for (path, port) in [("seed", 7471), ("ratio:50", 7475)] {
        let more = format!("path = \"{path}\"");
        let Some(mut hosts) = Hosts::begin_with("pool-ways", port, &more, &[]) else {
            return;
        };
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let host = Ipv4Addr::new(127, (a ^ b) | 0x20, c, d);
        let address = SocketAddr::from((host, port + 2));
        hosts.mount_with("c", &["--metrics", &address.to_string()]);
        let (ours, theirs) = (hosts.points()[0].join("file"), hosts.place.file("c/file"));
        let mut written = Vec::new();
        for turn in 0..64_u8 {
            let bytes = vec![turn; 10_000];
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false);
            let file = options.open(&theirs).expect("opened");
            let at = u64::from(turn) * 7_000;
            file.write_all_at(&bytes, at).expect("written");
            written.truncate(at as usize);
            written.extend(bytes);
            assert_eq!(fs::read(&theirs).expect("read"), written);
            assert_eq!(fs::read(&ours).expect("read"), written);
        }
        let counts = ways(address);
        assert!(counts.iter().sum::<u64>() >= 128, "{path}: {counts:?}");
        if path != "seed" {
            assert!(counts.iter().all(|count| *count > 5), "{path}: {counts:?}");
        }
        for at in (0..3).rev() {
            hosts.umount(at);
        }
    }
}

#[test]
fn two_hosts_see_the_same_names_and_bytes_at_once() {
    if let Some(hosts) = Hosts::begin("pool-names", 7421) {
        see_the_same(hosts);
    }
}

/// Two hosts see the same names and bytes at once.
pub fn see_the_same(mut hosts: Hosts) {
    let [a, b] = hosts.points();
    fs::create_dir(a.join("dir")).expect("made");
    fs::write(a.join("dir/file"), vec![7; 300_000]).expect("written");
    assert_eq!(
        fs::read(b.join("dir/file")).expect("read"),
        vec![7; 300_000]
    );
    // Both have it open: what one writes, appends and cuts the other reads.
    let (ours, theirs) = (a.join("dir/file"), b.join("dir/file"));
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let (ours, theirs) = (open(&ours).expect("open"), open(&theirs).expect("open"));
    let mut byte = [0; 3];
    for round in 0..50_u8 {
        ours.write_all_at(&[round; 3], 4095).expect("written");
        theirs.read_exact_at(&mut byte, 4095).expect("read");
        assert_eq!(byte, [round; 3]);
        theirs.set_len(10_000 + u64::from(round)).expect("cut");
        let len = ours.metadata().expect("known").len();
        assert_eq!(len, 10_000 + u64::from(round));
    }
    append_together(&a, &b);

    fs::set_permissions(b.join("dir/file"), fs::Permissions::from_mode(0o604)).expect("changed");
    let told = fs::metadata(a.join("dir/file")).expect("known");
    assert_eq!((told.mode() & 0o7777, told.nlink()), (0o604, 1));
    symlink("dir/file", a.join("link")).expect("linked");
    assert_eq!(
        fs::read_link(b.join("link")).expect("read"),
        Path::new("dir/file")
    );
    fs::rename(b.join("dir/file"), b.join("other")).expect("renamed");
    assert_eq!(names(&a), ["dir", "link", "log", "other"]);
    assert_eq!(
        number_of(fs::remove_dir(b.join("log"))),
        Some(Errno::NOTDIR)
    );
    fs::write(a.join("dir/x"), b"x").expect("written");
    assert_eq!(
        number_of(fs::remove_dir(b.join("dir"))),
        Some(Errno::NOTEMPTY)
    );

    // A file that is open here stays when its name goes here; where it is open elsewhere it is gone.
    fs::remove_file(a.join("other")).expect("removed");
    ours.read_exact_at(&mut byte, 4095).expect("read");
    assert_eq!(byte, [49; 3]);
    assert_eq!(number_of(fs::metadata(b.join("other"))), Some(Errno::NOENT));
    drop(ours);
    wait_until("its bytes go", || {
        number_of(theirs.read_at(&mut [0; 3], 0)) == Some(Errno::STALE)
    });
    drop(theirs);

    // What is not there is refused as such.
    let refused = fs::hard_link(a.join("log"), a.join("hard"));
    assert_eq!(number_of(refused), Some(Errno::OPNOTSUPP));
    assert_eq!(number_of(fs::rename(a.join("dir"), a.join("dir2"))), None);
    fs::create_dir(a.join("around")).expect("made");
    let refused = fs::rename(a.join("dir2"), a.join("around/dir"));
    assert_eq!(number_of(refused), Some(Errno::XDEV));
    hosts.umount(1);
    hosts.umount(0);
}

/// Both append at once: all records are there, whole.
fn append_together(a: &Path, b: &Path) {
    thread::scope(|scope| {
        for (who, point) in [(b'a', a), (b'b', b)] {
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let log = options.append(true).create(true).open(point.join("log"));
                let mut log = log.expect("open");
                for _ in 0..60 {
                    log.write_all(&[who; 100]).expect("appended");
                }
            });
        }
    });
    let all = fs::read(a.join("log")).expect("read");
    assert_eq!(all.len(), 2 * 60 * 100);
    let whole = |record: &[u8]| record.iter().all(|byte| *byte == record[0]);
    assert!(all.chunks(100).all(whole));
}

#[test]
fn files_behave_as_files_do() {
    if let Some(hosts) = Hosts::begin("pool-model", 7431) {
        behave_as_files_do(hosts);
    }
}

/// Files behave as files do, on the one host and seen from the other.
pub fn behave_as_files_do(mut hosts: Hosts) {
    let [a, b] = hosts.points();
    for (seed, profile, count) in [
        (1, &Profile::TINY, 150),
        (2, &Profile::TINY, 150),
        (3, &Profile::LARGE, 30),
    ] {
        let mut ops = generate(seed, profile, count);
        // A pool has no holes to be made.
        ops.retain(|op| !matches!(op, Op::Punch { .. }));
        let (files, handles) = Op::extent(&ops);
        let mut target = StdFiles::new(&a, files.max(3), handles.max(2)).expect("files");
        if let Err(mismatch) = drive(&ops, &mut target) {
            panic!("seed {seed}: {mismatch}");
        }
        for name in names(&a) {
            let read = |point: &Path| fs::read(point.join(&name)).expect("read");
            assert!(read(&a) == read(&b), "{name} differs");
        }
    }
    // And as programs have them.
    let program = "set -e; cd \"$1\"; mkdir -p t/u; seq 1 20000 > t/u/n; cp t/u/n t/m; mv t/m t/u/m;
        cmp t/u/n t/u/m; tar cf t.tar t; mkdir x; tar xf t.tar -C x; diff -r t x/t; rm -r t x t.tar";
    let run = Command::new("sh")
        .args(["-c", program, "sh"])
        .arg(&b)
        .output();
    let run = run.expect("a shell");
    assert!(run.status.success(), "{run:?}");
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn what_was_synced_outlives_a_host_and_a_server() {
    let more = format!("copies = 2\npath = \"ratio:50\"\n{SHORT_TERM}");
    let Some(mut hosts) = Hosts::begin_with("pool-deaths", 7441, &more, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let mut synced = File::create(a.join("synced")).expect("made");
    synced.write_all(&[5; 100_000]).expect("written");
    synced.sync_all().expect("synced");
    fs::write(a.join("closed"), b"perhaps").expect("written");
    // The host dies, and a server with one of two copies of each block.
    hosts.mounts.remove(0).1.kill();
    hosts.servers.remove(1).kill();
    let mut bytes = Vec::new();
    let mut back = File::open(b.join("synced")).expect("open");
    back.read_to_end(&mut bytes).expect("read");
    assert_eq!(bytes, vec![5; 100_000]);
    // Names were synced by the calls that made them; bytes that were not are the old ones, none.
    assert_eq!(names(&b), ["closed", "synced"]);
    let closed = fs::read(b.join("closed")).expect("read");
    assert!(closed.is_empty() || closed == b"perhaps");
    let point = hosts.place.file("a");
    let run = hosts.place.forebay(&["umount"]).arg(&point).status();
    assert!(run.expect("it runs").success());
    // A host that comes back sees the same.
    hosts.mount("a");
    assert_eq!(fs::read(point.join("synced")).expect("read"), bytes);
    drop(back);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn what_has_been_written_for_a_while_outlives_its_mount() {
    let more = format!("flush_interval_ms = 200\n{SHORT_TERM}");
    let Some(mut hosts) = Hosts::begin_with("pool-killed", 7445, &more, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let bytes = vec![5; 20_000];
    fs::write(a.join("closed"), &bytes).expect("written");
    let mut open = File::create(a.join("open")).expect("made");
    open.write_all(&bytes).expect("written");
    thread::sleep(Duration::from_secs(2));
    // What comes last is younger than that.
    let mut lines = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        open.write_all(&[6; 100]).expect("written");
        lines += 1;
    }
    hosts.mounts.remove(0).1.kill();
    for name in ["closed", "open"] {
        let mut read = fs::read(b.join(name)).expect("read");
        let more = read.split_off(bytes.len().min(read.len()));
        assert!(read == bytes, "{name}: {} bytes are left", read.len());
        assert!(more.iter().all(|byte| *byte == 6), "{name}");
        let whole = if name == "open" { lines * 100 } else { 0 };
        assert!(
            (whole / 2..=whole).contains(&more.len()),
            "{name}: {} of {whole}",
            more.len()
        );
    }
    drop(open);
    points::end(&a, true).expect("unmounted");
    hosts.umount(0);
}

/// In a pool of three servers the second one has the names, and the third one a third of everything else.
#[test]
fn what_a_dead_server_had_is_an_error_and_can_be_removed() {
    let more = format!("path = \"ratio:50\"\n{SHORT_TERM}");
    let Some(mut hosts) = Hosts::begin_of(3, "pool-losses", 7491, &more, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let bytes = |number: u8| vec![number; 5000];
    for number in 0..40 {
        let mut file = File::create(a.join(number.to_string())).expect("made");
        file.write_all(&bytes(number)).expect("written");
        file.sync_all().expect("synced");
    }
    hosts.servers.remove(2).kill();
    let mut lost = 0;
    for number in 0..40 {
        match fs::read(b.join(number.to_string())) {
            Ok(read) => assert!(read == bytes(number), "{number} is another one"),
            Err(error) => {
                assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "{number}");
                lost += 1;
            }
        }
    }
    assert!((5..39).contains(&lost), "{lost} of 40 are lost");
    fs::write(b.join("new"), bytes(7)).expect("written");
    assert_eq!(fs::read(a.join("new")).expect("read"), bytes(7));
    for number in 0..40 {
        fs::remove_file(b.join(number.to_string())).expect("removed");
    }
    assert_eq!(names(&a), ["new"]);
    hosts.umount(1);
    hosts.umount(0);
}

/// As a program leaves it that dies between the two halves of something, or a home that was damaged.
#[test]
fn a_name_that_has_outlived_its_file_can_be_removed() {
    let Some(mut hosts) = Hosts::begin("pool-dangling", 7495) else {
        return;
    };
    let [a, b] = hosts.points();
    fs::create_dir(a.join("dir")).expect("made");
    for name in ["one", "two", "three"] {
        fs::write(a.join("dir").join(name), name).expect("written");
    }
    fs::create_dir(a.join("dir/empty")).expect("made");
    let config = Config::load(&hosts.config).expect("a configuration");
    let files = Files::join(&config, Duration::from_secs(20)).expect("it joins");
    let number =
        |name: &str| FileNumber(fs::metadata(a.join("dir").join(name)).expect("told").ino());
    for name in ["one", "two", "empty"] {
        files.remove(number(name)).expect("removed");
    }
    drop(files);
    for point in [&a, &b] {
        assert_eq!(names(&point.join("dir")), ["empty", "one", "three", "two"]);
        fs::read(point.join("dir/one")).expect_err("nothing is there to read");
    }
    fs::remove_file(b.join("dir/one")).expect("removed");
    fs::rename(a.join("dir/three"), a.join("dir/two")).expect("renamed");
    assert_eq!(fs::read(b.join("dir/two")).expect("read"), b"three");
    fs::remove_dir(b.join("dir/empty")).expect("removed");
    fs::remove_file(b.join("dir/two")).expect("removed");
    fs::remove_dir(a.join("dir")).expect("removed");
    assert_eq!(names(&b), [""; 0]);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn a_mount_outlives_the_server_that_rules() {
    if Command::new("etcd").arg("--version").output().is_err() {
        skipped("etcd is missing (scripts/install-test-deps.sh installs it)");
        return;
    }
    let place = Place::new("pool-etcd");
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x20, c, d);
    let [clients, peers] = [7481, 7482].map(|port| format!("http://{host}:{port}"));
    let child = Command::new("etcd")
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers])
        .args(["--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("default={peers}")])
        .arg("--data-dir")
        .arg(place.file("etcd"))
        .stderr(Stdio::null())
        .spawn();
    let _etcd = Process::new(child.expect("it runs"));
    let more = format!(
        "home = \"home\"\n{SHORT_TERM}\netcd = {{ endpoints = [\"{clients}\"], prefix = \"/pool\" }}"
    );
    let Some(mut hosts) = Hosts::begin_with("pool-rulers", 7483, &more, &[]) else {
        return;
    };
    let ruler = || {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &clients])
            .args(["get", "--print-value-only", "/pool/ruler"]);
        let said = command.output().expect("it runs").stdout;
        let said = String::from_utf8(said).expect("text");
        let address = said.split("\"address\":\"").nth(1)?.split('"').next()?;
        let port = address.parse::<SocketAddr>().expect("an address").port();
        Some(usize::from(port - 7483))
    };
    let [a, b] = hosts.points();
    let mut synced = File::create(a.join("synced")).expect("made");
    synced.write_all(&[5; 100_000]).expect("written");
    synced.sync_all().expect("synced");
    // What is open stays open.
    let old = ruler().expect("somebody rules");
    hosts.servers.remove(old).kill();
    wait_until("the other one rules", || {
        ruler().is_some_and(|ruler| ruler != old)
    });
    // While nobody rules, operations may fail: this term is short for a lease of etcd.
    wait_until("it is written again", || {
        let written = synced.write_all_at(&[6; 50_000], 100_000);
        let failed = number_of(written.and_then(|()| synced.sync_all()));
        assert!(
            failed.is_none_or(|why| why == Errno::TIMEDOUT),
            "{failed:?}"
        );
        failed.is_none()
    });
    let bytes = fs::read(b.join("synced")).expect("read");
    assert_eq!(bytes[..100_000], [5; 100_000]);
    assert_eq!(bytes[100_000..], [6; 50_000]);
    fs::rename(b.join("synced"), b.join("renamed")).expect("renamed");
    assert_eq!(names(&a), ["renamed"]);
    drop(synced);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn what_is_unmounted_has_been_synced_and_no_pool_is_an_error() {
    let Some(mut hosts) = Hosts::begin("pool-ends", 7451) else {
        return;
    };
    let [a, b] = hosts.points();
    fs::write(a.join("left"), vec![3; 50_000]).expect("written");
    hosts.umount(0);
    assert_eq!(fs::read(b.join("left")).expect("read"), vec![3; 50_000]);
    hosts.umount(0);
    let point = hosts.place.file("a");
    let mut command = hosts.place.forebay(&["mount", "pool:nowhere"]);
    let run = command
        .env("FOREBAY_POOLS", "/nowhere")
        .arg(&point)
        .output();
    let run = run.expect("it runs");
    assert_eq!(run.status.code(), Some(2));
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("/nowhere/nowhere.toml"), "{said}");
    assert_eq!(
        fs::metadata(a.join("left"))
            .map_err(|error| error.kind())
            .err(),
        Some(ErrorKind::NotFound)
    );
}

/// A daemon has another directory of its own.
#[test]
fn a_daemon_finds_a_pool_by_its_name_in_a_directory_that_is_said_relatively() {
    let Some(mut hosts) = Hosts::begin("pool-relative", 7521) else {
        return;
    };
    hosts.umount(1);
    let point = hosts.place.file("b");
    let around = hosts.config.parent().expect("a directory").to_owned();
    let beside = around.join("beside");
    fs::create_dir(&beside).expect("a directory");
    let mut command = hosts.place.forebay(&["mount", "--daemon", "pool:pool"]);
    command.env("FOREBAY_POOLS", "..").current_dir(&beside);
    let run = command.arg(&point).output().expect("it runs");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    let written = fs::write(point.join("name"), "bytes");
    let run = hosts.place.forebay(&["umount"]).arg(&point).status();
    assert!(run.expect("it runs").success());
    written.expect("written");
    assert_eq!(names(&hosts.mounts[0].0), ["name"]);
    hosts.umount(0);
}

#[test]
fn with_a_home_a_pool_outlives_all_its_servers() {
    // Memory for 256 blocks, and a term that lasts while a slow device syncs.
    let more = "home = \"home\"\nmemory_mib = 1\nterm_ms = 10000";
    let Some(mut hosts) = Hosts::begin_with("pool-home", 7461, more, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let bytes: Vec<u8> = (0..6_000_000_u32).map(|at| (at % 253) as u8).collect();
    fs::create_dir(a.join("dir")).expect("made");
    let mut large = File::create(a.join("dir/large")).expect("made");
    large.write_all(&bytes).expect("written");
    large.sync_all().expect("synced");
    drop(large);
    fs::write(b.join("other"), b"unlike").expect("written");
    fs::remove_file(a.join("other")).expect("removed");
    for process in hosts.servers.drain(..) {
        process.kill();
    }
    wait_until("the pool has ended", || {
        let error = number_of(fs::metadata(b.join("new")));
        [Some(Errno::NOTCONN), Some(Errno::TIMEDOUT)].contains(&error)
    });
    for (point, process) in hosts.mounts.drain(..) {
        process.kill();
        let run = hosts.place.forebay(&["umount"]).arg(&point).status();
        assert!(run.expect("it runs").success());
    }
    (1..=2).for_each(|number| hosts.serve(number));
    hosts.mount("a");
    assert_eq!(names(&a), ["dir"]);
    assert!(fs::read(a.join("dir/large")).expect("read") == bytes);
    fs::write(a.join("dir/new"), b"new").expect("written");
    assert_eq!(names(&a.join("dir")), ["large", "new"]);
    hosts.umount(0);
}

#[test]
fn what_is_copied_to_a_description_that_syncs_outlives_its_host() {
    let Some(mut hosts) = Hosts::begin_with("pool-copied", 7511, SHORT_TERM, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let bytes = vec![7; 20_000];
    fs::write(a.join("from"), &bytes).expect("written");
    let from = File::open(a.join("from")).expect("opened");
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    let to = options.custom_flags(libc::O_DSYNC).open(a.join("to"));
    let to = to.expect("opened");
    let mut at = 0;
    while at < bytes.len() as u64 {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, 1 << 20);
        assert!(copied.expect("copied") > 0);
    }
    hosts.mounts.remove(0).1.kill();
    assert!(fs::read(b.join("to")).expect("read") == bytes);
    drop((from, to));
    points::end(&a, true).expect("unmounted");
    hosts.umount(0);
}

#[test]
fn a_signal_syncs_while_a_mount_goes_on() {
    let Some(mut hosts) = Hosts::begin_with("pool-signal", 7515, SHORT_TERM, &[]) else {
        return;
    };
    let [a, b] = hosts.points();
    let open = File::create(a.join("open")).expect("made");
    for name in 0..100 {
        fs::write(a.join(format!("closed-{name}")), vec![3; 20_000]).expect("written");
    }
    let (point, mut process) = hosts.mounts.remove(0);
    let tasks = format!("/proc/{}/task", process.id());
    let before = names(Path::new(&tasks));
    process.signal(Signal::TERM);
    wait_until("nobody finds it", || {
        points::state(&point).expect("a state") == points::State::Free
    });
    open.write_all_at(b"it goes on", 0).expect("written");
    // It syncs in a thread of its own, which begins about now.
    thread::sleep(Duration::from_secs(1));
    wait_until("it has synced", || {
        let now = names(Path::new(&tasks));
        now.iter().all(|task| before.contains(task))
    });
    process.kill();
    for name in 0..100 {
        let read = fs::read(b.join(format!("closed-{name}"))).expect("read");
        assert!(read == vec![3; 20_000], "{name}: {} bytes", read.len());
    }
    drop(open);
    hosts.umount(0);
}

#[test]
fn what_has_no_name_is_removed_at_the_end() {
    let Some(mut hosts) = Hosts::begin_with("pool-nameless", 7518, "", &[]) else {
        return;
    };
    let [a, _] = hosts.points();
    let open = File::create(a.join("open")).expect("made");
    open.set_len(5000).expect("cut");
    let number = FileNumber(open.metadata().expect("told").ino());
    fs::remove_file(a.join("open")).expect("removed");
    open.write_all_at(b"still there", 0).expect("written");
    let config = Config::load(&hosts.config).expect("a configuration");
    let files = Files::join(&config, Duration::from_secs(20)).expect("it joins");
    let told = files.attributes(number);
    told.expect("it has no name, and is there");
    let (point, mut process) = hosts.mounts.remove(0);
    process.signal(Signal::TERM);
    wait_until("nobody finds it", || {
        points::state(&point).expect("a state") == points::State::Free
    });
    process.signal(Signal::TERM);
    let (status, said) = process.wait();
    assert!(said.contains("ended with"), "{status:?} {said}");
    let gone = files.attributes(number).expect_err("it has gone");
    assert_eq!(gone.errno(), libc::ESTALE);
    drop((open, files));
    hosts.umount(0);
}

/// The names are at the second of three servers; the third one has a share of everything else.
#[test]
fn a_name_that_has_gone_is_no_error_though_the_rest_stays_for_a_while() {
    let more = format!("home = \"home\"\n{SHORT_TERM}");
    let Some(mut hosts) = Hosts::begin_of(3, "pool-unlinked", 7551, &more, &[]) else {
        return;
    };
    let [a, _] = hosts.points();
    let config = Config::load(&hosts.config).expect("a configuration");
    let files = Files::join(&config, Duration::from_secs(20)).expect("it joins");
    let number = |path: &Path| FileNumber(fs::metadata(path).expect("told").ino());
    // One at a time goes from a directory.
    let path = |name: usize| a.join(format!("{name}/file"));
    let all: Vec<(FileNumber, FileNumber)> = (0..12)
        .map(|name| {
            fs::create_dir(a.join(name.to_string())).expect("made");
            fs::write(path(name), vec![1; 9000]).expect("written");
            (number(&a.join(name.to_string())), number(&path(name)))
        })
        .collect();
    hosts.servers[2].signal(Signal::STOP);
    let remove = |name: usize| {
        let path = path(name);
        thread::spawn(move || fs::remove_file(path))
    };
    let removed: Vec<_> = (0..12).map(remove).collect();
    thread::sleep(Duration::from_millis(500));
    // Nobody tells this host any more that it is in the pool: what waits for the third server fails.
    hosts.servers[0].signal(Signal::STOP);
    thread::sleep(Duration::from_secs(4));
    for at in [0, 2] {
        hosts.servers[at].signal(Signal::CONT);
    }
    let ends = removed
        .into_iter()
        .map(|removed| removed.join().expect("it ends"));
    let ends: Vec<std::io::Result<()>> = ends.collect();
    let (mut gone, mut stayed) = (0, 0);
    for ((directory, _), end) in all.iter().zip(ends) {
        wait_until("the test is in the pool again", || {
            files.list(*directory).is_ok()
        });
        let is_gone = files.list(*directory).expect("listed").is_empty();
        assert_eq!(is_gone, end.is_ok(), "{end:?}");
        (gone, stayed) = (gone + usize::from(is_gone), stayed + usize::from(!is_gone));
    }
    println!("{gone} names have gone, {stayed} have stayed");
    assert!(gone > 0);
    wait_until("all of them are removed", || {
        // What comes next tries again.
        let _ = fs::write(a.join("next"), b"").and_then(|()| fs::remove_file(a.join("next")));
        let errno = |file: FileNumber| files.attributes(file).err().map(Error::errno);
        let is_in_order = |(directory, file): &(FileNumber, FileNumber)| {
            let has_name = files.list(*directory).is_ok_and(|names| !names.is_empty());
            has_name || errno(*file) == Some(libc::ESTALE)
        };
        all.iter().all(is_in_order)
    });
    drop(files);
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn a_daemon_finds_the_configuration_where_the_command_was_run() {
    let Some(mut hosts) = Hosts::begin_with("pool-path", 7561, "", &[]) else {
        return;
    };
    let point = hosts.place.file("c");
    fs::create_dir(&point).expect("a directory");
    let directory = hosts.config.parent().expect("a directory").to_owned();
    let mut command = hosts
        .place
        .forebay(&["mount", "--daemon", "pool:./pool.toml"]);
    let run = command.arg(&point).current_dir(directory).output();
    let run = run.expect("it runs");
    assert!(run.status.success(), "{run:?}");
    fs::write(point.join("file"), b"bytes").expect("written");
    assert_eq!(names(&hosts.points()[0]), ["file"]);
    let run = hosts.place.forebay(&["umount"]).arg(&point).status();
    assert!(run.expect("it runs").success());
    hosts.umount(1);
    hosts.umount(0);
}

#[test]
fn a_pool_closes_what_was_read_without_a_question() {
    let Some(mut hosts) = Hosts::begin("pool-closes", 7591) else {
        return;
    };
    let file = hosts.points()[0].join("file");
    fs::write(&file, b"bytes").expect("written");
    let process = hosts.mounts[0].1.id();
    scene::closes_without_a_question(process, &file);
}

#[test]
fn a_pools_files_have_no_data_before_their_beginning() {
    let Some(mut hosts) = Hosts::begin("pool-seek", 7535) else {
        return;
    };
    let path = hosts.points()[0].join("file");
    fs::write(&path, "bytes").expect("written");
    let file = File::open(&path).expect("opened");
    let seek = |from| rustix::fs::seek(&file, from);
    // Before the kernel knows that the mount does not answer where holes are, and after it.
    for _ in 0..2 {
        for from in [SeekFrom::Data(u64::MAX), SeekFrom::Hole(1 << 63)] {
            assert_eq!(seek(from), Err(Errno::NXIO), "{from:?}");
        }
        assert_eq!(seek(SeekFrom::Hole(1)), Ok(5));
    }
    drop(file);
    hosts.umount(1);
    hosts.umount(0);
}
