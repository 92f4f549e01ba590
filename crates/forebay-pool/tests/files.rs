//! Files of a pool by their names, as programs use them, and who is let in to use them.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use common::{PATIENCE, addresses};
use forebay_pool::client::{Failure, Kind};
use forebay_pool::files::{Error, Files, OpenOptions};
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Ended, PathPolicy, Serving, Tls};
use rustix::process::{getegid, geteuid};

const CREATE: OpenOptions = OpenOptions {
    create: true,
    create_new: false,
    truncate: false,
    mode: 0o640,
};

fn config(servers: u16) -> Config {
    let all: Vec<String> = { addresses(servers).into_iter() }
        .map(|address| format!("\"{address}\""))
        .collect();
    Config::parse(&format!(
        "servers = [{}]\nblock_bytes = 4096",
        all.join(",")
    ))
    .unwrap()
}

fn serve(config: &Config) -> Vec<Serving> {
    (0..config.servers.len())
        .map(|index| Serving::begin(config, index).unwrap())
        .collect()
}

fn join(config: &Config) -> Arc<Files> {
    Arc::new(Files::join(config, PATIENCE).unwrap())
}

/// In order, since a pool lists in none.
fn names(files: &Files, directory: File) -> Vec<String> {
    let listed = files.list(directory).unwrap().into_iter();
    let mut names: Vec<String> = listed
        .map(|(name, _)| String::from_utf8(name).unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn names_are_the_same_on_all_hosts() {
    let config = config(2);
    let _servers = serve(&config);
    let (a, b) = (join(&config), join(&config));
    a.make_directory(b"area", 0o755).unwrap();
    a.make_directory(b"/area/deep", 0o755).unwrap();
    let written = a.open(b"area/deep/one", CREATE).unwrap();
    written.write_at(&[7; 10_000], 5).unwrap();
    let read = b.open(b"area/./deep/../deep/one", OpenOptions::default());
    let read = read.unwrap();
    let mut bytes = vec![0; 20_000];
    assert_eq!(read.read_at(&mut bytes, 0), Ok(10_005));
    assert!(bytes[..5] == [0; 5] && bytes[5..10_005].iter().all(|byte| *byte == 7));
    let (size, facts) = b.attributes(read.number()).unwrap();
    assert_eq!((size, facts.mode, facts.kind), (10_005, 0o640, Kind::File));

    // What one does to names the other sees at once, and files stay what they are.
    b.rename_path(b"area/deep/one", b"two").unwrap();
    assert_eq!(names(&a, File::ROOT), ["area", "two"]);
    written.append(b"end").unwrap();
    assert_eq!(b.find(b"two").unwrap().file, read.number());
    assert_eq!(read.size(), Ok(10_008));

    let fails = |result: Result<(), Error>, why: Error| assert_eq!(result, Err(why));
    fails(b.delete(b"area"), Failure::NotEmpty.into());
    fails(b.delete(b"area/none"), Failure::NoSuchName.into());
    fails(b.make_directory(b"two", 0o755), Error::Exists);
    fails(b.make_directory(b"two/three", 0o755), Error::NotADirectory);
    fails(
        b.make_directory(b"no/three", 0o755),
        Failure::NoSuchName.into(),
    );
    fails(b.rename_path(b"area/deep", b"deep"), Error::Crosses);
    fails(b.rename_path(b"two", b"area"), Error::IsADirectory);
    fails(b.make_directory(&[b'x'; 256], 0o755), Error::TooLong);
    b.make_directory(&[b'x'; 255], 0o755).unwrap();

    // What has been removed is gone for everybody, and so is what was in a directory that is.
    a.delete(b"two").unwrap();
    assert_eq!(read.size(), Err(Failure::Gone.into()));
    assert_eq!(read.write_at(b"x", 0), Err(Failure::Gone.into()));
    let deep = b.find(b"area/deep").unwrap().file;
    a.delete(b"area/deep").unwrap();
    fails(
        b.make(deep, b"late", Default::default()).map(drop),
        Failure::Gone.into(),
    );
}

#[test]
fn a_loss_is_told_once_to_each_opening() {
    let config = Config {
        term_ms: 1000,
        // What is written is at the servers alone.
        path: PathPolicy::Remote,
        ..config(2)
    };
    let servers = serve(&config);
    let files = join(&config);
    let opened = [(), ()].map(|()| files.open(b"name", CREATE).unwrap());
    for (half, open) in (0..).zip(&opened) {
        open.write_at(&[7; 64 * 4096], half * 64 * 4096).unwrap();
    }
    // The second word ends it at once.
    servers[1].stop();
    servers[1].stop();
    let until = std::time::Instant::now() + PATIENCE;
    while files.read(opened[0].number(), 0, 1 << 20) != Err(Failure::Lost.into()) {
        assert!(std::time::Instant::now() < until, "nothing is lost");
        thread::sleep(std::time::Duration::from_millis(20));
    }
    let lost = Err(Failure::Lost.into());
    assert_eq!(files.sync_unasked(opened[0].number()), lost);
    let late = files.open(b"name", OpenOptions::default()).unwrap();
    for open in &opened {
        assert_eq!(open.sync(), lost);
        assert_eq!(open.sync(), Ok(()));
    }
    assert_eq!(late.sync(), Ok(()), "it has been told to others before");
    drop((opened, late, files));
    servers[0].stop();
}

#[test]
fn who_only_reads_moves_no_time() {
    let config = config(1);
    let servers = serve(&config);
    let files = join(&config);
    let written = files.open(b"name", CREATE).unwrap();
    let time = || {
        let (_, facts) = files.attributes(written.number()).unwrap();
        (facts.modified, facts.changed)
    };
    let pause = || thread::sleep(std::time::Duration::from_millis(2));
    let made = time();
    let read = files.open(b"name", OpenOptions::default()).unwrap();
    read.read_at(&mut [0; 10], 0).unwrap();
    pause();
    read.sync().unwrap();
    assert_eq!(time(), made, "who only reads");
    let changes: [(&str, &dyn Fn()); 3] = [
        ("written", &|| written.write_at(b"bytes", 3).unwrap()),
        ("appended", &|| _ = written.append(b"bytes").unwrap()),
        ("cut", &|| written.set_len(2).unwrap()),
    ];
    for (what, change) in changes {
        let before = time();
        pause();
        change();
        let changed = std::time::SystemTime::now();
        pause();
        written.sync().unwrap();
        let after = time();
        assert!(after > before, "{what}");
        let since = changed.duration_since(std::time::SystemTime::UNIX_EPOCH);
        assert!(
            after.0 <= since.unwrap().as_nanos() as i64,
            "{what}: when it was, and not when it was synced"
        );
        pause();
        written.sync().unwrap();
        assert_eq!(time(), after, "{what}: a sync of nothing new");
    }
    let before = time();
    pause();
    let truncate = OpenOptions {
        truncate: true,
        ..CREATE
    };
    files.open(b"name", truncate).unwrap().sync().unwrap();
    assert!(time() > before, "emptied");
    drop((written, read));
    servers[0].stop();
}

/// Runs as another process, under a umask and as another user if this one may do that: see below.
const OF_CHILD: &str = "TEST_POOL_OF_CHILD";

#[test]
fn a_new_file_is_its_makers_and_the_umask_takes_from_its_mode() {
    let open = |files: &Arc<Files>, options| files.open(b"file", options).unwrap().number();
    if let Ok(text) = std::env::var(OF_CHILD) {
        let files = join(&Config::parse(&text).unwrap());
        let mode = 0o666;
        open(&files, OpenOptions { mode, ..CREATE });
        files.make_directory(b"directory", 0o777).unwrap();
        return;
    }
    let servers = addresses(1);
    let text = format!("servers = [\"{}\"]", servers[0]);
    let config = Config::parse(&text).unwrap();
    let _servers = serve(&config);
    let mut child = Command::new("sh");
    let test = "a_new_file_is_its_makers_and_the_umask_takes_from_its_mode";
    child.args(["-c", "umask 027 && exec \"$0\" --exact \"$1\""]);
    child.arg(std::env::current_exe().unwrap()).arg(test);
    let (mut uid, mut gid) = (geteuid().as_raw(), getegid().as_raw());
    if uid == 0 {
        (uid, gid) = (4001, 4002);
        child.uid(uid).gid(gid);
    }
    let child = child.env(OF_CHILD, &text).output().unwrap();
    assert!(child.status.success(), "{child:?}");
    let files = join(&config);
    for (name, mode) in [("file", 0o640), ("directory", 0o750)] {
        let found = files.find(name.as_bytes()).unwrap();
        let facts = files.attributes(found.file).unwrap().1;
        assert_eq!((facts.mode, facts.uid, facts.gid), (mode, uid, gid));
    }
}

#[test]
fn a_program_whose_servers_are_gone_ends_and_says_what_is_not_written() {
    if let Ok(text) = std::env::var(OF_CHILD) {
        let files = join(&Config::parse(&text).unwrap());
        let open = files.open(b"name", CREATE).unwrap();
        open.write_at(&[7; 10_000], 0).unwrap();
        println!("written");
        // Until its servers have been ended.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let begun = std::time::Instant::now();
        assert_eq!(open.sync(), Err(Failure::CutOff.into()));
        assert!(begun.elapsed() < std::time::Duration::from_secs(30));
        return;
    }
    let servers: Vec<String> = { addresses(2).into_iter() }
        .map(|address| address.to_string())
        .collect();
    let text = format!("servers = {servers:?}\nterm_ms = 4000\nblock_bytes = 4096");
    let config = Config::parse(&text).unwrap();
    let servers = serve(&config);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = "a_program_whose_servers_are_gone_ends_and_says_what_is_not_written";
    child
        .args(["--exact", test, "--nocapture"])
        .env(OF_CHILD, &text);
    child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("written") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    // The second word ends them at once.
    for _ in 0..2 {
        servers.iter().for_each(Serving::stop);
    }
    drop(servers);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(
        said.contains("12288 bytes of 1 files are not written"),
        "{said}"
    );
}

#[test]
fn whoever_finds_a_new_file_finds_its_first_bytes() {
    let config = config(2);
    let _servers = serve(&config);
    let (a, b) = (join(&config), join(&config));
    let bytes: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
    for round in 0..50 {
        let name = format!("n{round}");
        let name = name.as_bytes();
        let make = || a.make_with(File::ROOT, name, Default::default(), &bytes);
        let (made, found) = thread::scope(|scope| {
            let made = scope.spawn(make);
            let found = loop {
                if let Some(entry) = b.look_up(File::ROOT, name).unwrap() {
                    break b.read(entry.file, 0, 20_000).unwrap();
                }
            };
            (made.join().unwrap().unwrap(), found)
        });
        assert!(found == bytes, "round {round}: {} bytes", found.len());
        // What is there stays as it is.
        let again = b.make_with(File::ROOT, name, Default::default(), b"other");
        assert_eq!(again, Ok((made.0, false)));
        a.write(made.0.file, 9_999, b"ab").unwrap();
        assert_eq!(b.read(made.0.file, 9_990, 20).unwrap()[9..], *b"ab");
    }
}

#[test]
fn of_many_who_make_one_name_one_makes_it() {
    let config = config(2);
    let _servers = serve(&config);
    let hosts = [join(&config), join(&config)];
    let new = OpenOptions {
        create_new: true,
        ..CREATE
    };
    let made = thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|at| {
                let files = &hosts[at % 2];
                scope.spawn(move || {
                    let made = |number: &u64| {
                        let opened = files.open(format!("n{number}").as_bytes(), new);
                        assert!(opened.is_ok() || opened.err() == Some(Error::Exists));
                        files.open(format!("n{number}").as_bytes(), new).is_err()
                    };
                    let again = (0..50).filter(made).count();
                    let renamed = |number: &u64| {
                        let (from, to) = (format!("n{number}"), format!("m{number}"));
                        let (from, to) = (from.as_bytes(), to.as_bytes());
                        files
                            .rename((File::ROOT, from), (File::ROOT, to), false)
                            .is_ok()
                    };
                    (again, (0..50).filter(renamed).count())
                })
            })
            .collect();
        all.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    // Others may have renamed what was made before it was made again: then it is made twice, and renamed at most once.
    assert!(made.iter().all(|(again, _)| *again > 0), "{made:?}");
    let renamed: usize = made.iter().map(|(_, renamed)| renamed).sum();
    let left = names(&hosts[0], File::ROOT);
    let moved = left.iter().filter(|name| name.starts_with('m')).count();
    assert_eq!(renamed, moved, "{made:?}");
}

#[test]
fn a_pool_with_a_home_begins_again_with_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        home: Some(directory.path().join("home")),
        memory_mib: Some(1),
        ..config(2)
    };
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 253) as u8).collect();
    for life in 0..3_u8 {
        let servers: Vec<Serving> = (0..2).map(|index| begin(&config, index)).collect();
        let files = join(&config);
        let number = [b'0' + life];
        assert_eq!(names(&files, File::ROOT).len(), usize::from(life));
        let written = files.open(&number, CREATE).unwrap();
        written.write_at(&bytes, life.into()).unwrap();
        written.sync().unwrap();
        let mut numbers = Vec::new();
        for earlier in 0..=life {
            let open = files.open(&[b'0' + earlier], OpenOptions::default());
            let open = open.unwrap();
            let mut read = vec![0; bytes.len() + 10];
            let length = bytes.len() + usize::from(earlier);
            assert_eq!(open.read_at(&mut read, 0), Ok(length));
            assert!(read[usize::from(earlier)..length] == bytes);
            numbers.push(open.number());
        }
        numbers.dedup();
        assert_eq!(numbers.len(), usize::from(life) + 1, "a number comes twice");
        drop((written, files));
        // The first server takes the pool with it, and the other has nobody to hand its blocks to: it is told twice.
        for server in servers {
            server.stop();
            server.stop();
            server.wait().unwrap();
        }
    }
}

#[test]
fn a_damaged_block_of_a_home_is_an_error_until_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        home: Some(directory.path().join("home")),
        memory_mib: Some(1),
        ..config(1)
    };
    let unit = 4096;
    let whole = vec![7; 3 * unit];
    let mut number = None;
    for life in 0..2 {
        let server = begin(&config, 0);
        let files = join(&config);
        let file = files.open(b"file", CREATE).unwrap();
        if life == 0 {
            file.write_at(&whole, 0).unwrap();
            file.sync().unwrap();
            number = Some(file.number());
        } else {
            let mut read = vec![0; whole.len()];
            let lost = Err(Error::Pool(Failure::Lost));
            assert_eq!(file.read_at(&mut read, 0), lost);
            assert_eq!(file.read_at(&mut read[..1], unit as u64), lost);
            assert_eq!(
                file.write_at(b"some", unit as u64),
                Err(Error::Pool(Failure::Lost))
            );
            assert_eq!(file.read_at(&mut read[..unit], 0), Ok(unit));
            file.write_at(&whole[..unit], unit as u64).unwrap();
            file.sync().unwrap();
            assert_eq!(file.read_at(&mut read, 0), Ok(whole.len()));
            assert!(read == whole);
        }
        drop((file, files));
        server.stop();
        server.wait().unwrap();
        let name = format!("home/{:016x}/1", number.unwrap().0);
        let mut options = std::fs::OpenOptions::new();
        let block = options.write(true).open(directory.path().join(name));
        block.unwrap().set_len(0).unwrap();
    }
}

#[test]
fn two_pools_have_no_home_together() {
    let directory = tempfile::tempdir().unwrap();
    let with_home = || Config {
        home: Some(directory.path().to_owned()),
        ..config(1)
    };
    let (first, second) = (with_home(), with_home());
    let serving = Serving::begin(&first, 0).unwrap();
    let files = join(&first);
    let ended = Serving::begin(&second, 0).unwrap().wait();
    assert!(matches!(ended, Err(Ended::Home(_))), "{ended:?}");
    let open = files.open(b"one", CREATE).unwrap();
    open.write_at(&[1; 5000], 0).unwrap();
    open.sync().unwrap();
    drop((open, files));
    serving.stop();
    serving.wait().unwrap();
    // The home is free now.
    let serving = Serving::begin(&second, 0).unwrap();
    assert_eq!(names(&join(&second), File::ROOT), ["one"]);
    serving.stop();
    serving.wait().unwrap();
}

#[test]
fn a_server_that_does_not_see_its_pools_home_ends() {
    let [home, bare] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let seen = |home: &Path| Config {
        home: Some(home.to_owned()),
        ..config(2)
    };
    let first = seen(home.path());
    let second = Config {
        home: Some(bare.path().to_owned()),
        ..first.clone()
    };
    let serving = Serving::begin(&first, 0).unwrap();
    let stray = begin(&second, 1);
    let until = std::time::Instant::now() + PATIENCE;
    while !stray.is_over() {
        let is_time = std::time::Instant::now() < until;
        assert!(is_time, "it serves from an empty directory");
        thread::sleep(std::time::Duration::from_millis(5));
    }
    let ended = stray.wait();
    assert!(matches!(ended, Err(Ended::Home(_))), "{ended:?}");
    assert!(bare.path().read_dir().unwrap().next().is_none());
    // It is mounted there now.
    let second = begin(&first, 1);
    let files = join(&first);
    let open = files.open(b"one", CREATE).unwrap();
    open.write_at(&[1; 5000], 0).unwrap();
    open.sync().unwrap();
    drop((open, files));
    let all = [second, serving];
    all.iter().for_each(Serving::stop);
    all.into_iter().for_each(|server| server.wait().unwrap());
}

/// As soon as the address is free: the life before may have it for a moment.
fn begin(config: &Config, index: usize) -> Serving {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        match Serving::begin(config, index) {
            Ok(serving) => return serving,
            Err(why) => assert!(std::time::Instant::now() < until, "{why}"),
        }
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn openssl(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    let done = command.args(arguments).current_dir(directory).output();
    let done = done.unwrap();
    assert!(
        done.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// An authority, and a member that it has let in.
fn authority(directory: &Path, name: &str, address: &str) -> Tls {
    let file = |kind: &str| format!("{name}-{kind}");
    let (ca, ca_key) = (file("ca.pem"), file("ca.key"));
    let new = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ];
    let mut make = vec![
        "req",
        "-x509",
        "-keyout",
        &ca_key,
        "-out",
        &ca,
        "-subj",
        "/CN=authority",
    ];
    make.extend(new);
    openssl(directory, &make);
    let (certificate, key) = (file("member.pem"), file("member.key"));
    let names = format!("subjectAltName=IP:{address}");
    let mut make = vec![
        "req",
        "-x509",
        "-keyout",
        &key,
        "-out",
        &certificate,
        "-subj",
        "/CN=member",
    ];
    make.extend(new);
    make.extend(["-CA", &ca, "-CAkey", &ca_key, "-addext", &names]);
    make.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl(directory, &make);
    Tls {
        certificate: directory.join(certificate),
        key: directory.join(key),
        authority: directory.join(ca),
    }
}

#[test]
fn members_prove_who_they_are_and_others_are_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let plain = config(2);
    let address = plain.servers[0].ip().to_string();
    let tls = authority(directory.path(), "ours", &address);
    let by = |tls: &Tls| Config {
        tls: Some(tls.clone()),
        ..plain.clone()
    };
    let ours = by(&tls);
    let _servers = serve(&ours);
    let (a, b) = (join(&ours), join(&ours));
    let written = a.open(b"large", CREATE).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    written.write_at(&bytes, 0).unwrap();
    written.sync().unwrap();
    let mut read = vec![0; bytes.len()];
    let opened = b.open(b"large", OpenOptions::default()).unwrap();
    assert_eq!(opened.read_at(&mut read, 0), Ok(bytes.len()));
    assert!(read == bytes);

    // A stranger with a certificate of another authority believes ours, and is not believed.
    let theirs = authority(directory.path(), "theirs", &address);
    let stranger = Tls {
        authority: tls.authority.clone(),
        ..theirs.clone()
    };
    let refused = Files::join(&by(&stranger), PATIENCE).err();
    assert!(matches!(refused, Some(Ended::Refused(_))), "{refused:?}");
    // One who believes another authority does not believe us.
    let distrusts = Tls {
        authority: theirs.authority.clone(),
        ..tls.clone()
    };
    let refused = Files::join(&by(&distrusts), PATIENCE).err();
    assert!(matches!(refused, Some(Ended::Refused(_))), "{refused:?}");
    // A server whose certificate is another address's would not be believed either, and does not begin.
    let elsewhere = authority(directory.path(), "elsewhere", "192.0.2.1");
    let other = Config {
        servers: addresses(1),
        ..by(&elsewhere)
    };
    let refused = Serving::begin(&other, 0).err();
    assert!(matches!(refused, Some(Ended::Tls(_))), "{refused:?}");
    // And who speaks in plain text is heard by nobody.
    let unheard = Files::join(&plain, std::time::Duration::from_secs(2)).err();
    assert!(unheard.is_some());
    // All that disturbs nobody.
    assert_eq!(opened.size(), Ok(bytes.len() as u64));

    let missing = Tls {
        key: directory.path().join("none"),
        ..tls
    };
    let nowhere = Config {
        servers: addresses(1),
        ..by(&missing)
    };
    let refused = Serving::begin(&nowhere, 0).err();
    assert!(matches!(refused, Some(Ended::Tls(_))), "{refused:?}");
}
