//! `forebay doctor`, as whoever runs the tests and as an ordinary user.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Place, Run};

const CHECKS: [&str; 22] = [
    "configuration",
    "kernel",
    "io_uring",
    "membarrier",
    "robust_futex",
    "fanotify",
    "inotify",
    "fuse",
    "persistent_memory",
    "arena",
    "huge_pages",
    "shmem_enabled",
    "dev_shm",
    "memory_limit",
    "limit_nofile",
    "limit_fsize",
    "limit_as",
    "limit_memlock",
    "remove_ipc",
    "directory",
    "sessions",
    "pool",
];

/// An ordinary user, with a copy of the program where that user can reach it.
pub struct Stranger {
    id: String,
    program: PathBuf,
}

/// `None`, with the reason, where the tests do not run as root.
pub fn stranger(place: &Place) -> Option<Stranger> {
    let here = forebay::memory::place::dir::user_id();
    if here != 0 || Command::new("setpriv").arg("--version").output().is_err() {
        crate::here::skipped("being an ordinary user takes root and setpriv");
        return None;
    }
    // Of no user that a system would have.
    let id = 1_900_000_000 + std::process::id();
    let program = place.arenas.path().join("forebay");
    // By another program: what this one has open for writing, a child of another test may still hold when it is to run.
    let mut copy = Command::new("cp");
    let copied = copy
        .arg(env!("CARGO_BIN_EXE_forebay"))
        .arg(&program)
        .status();
    assert!(copied.expect("cp runs").success());
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, open.clone()).expect("its mode");
    std::fs::set_permissions(place.arenas.path(), open).expect("its mode");
    chown(place.arenas.path(), Some(id), Some(id)).expect("its owner");
    Some(Stranger {
        id: id.to_string(),
        program,
    })
}

/// What its sessions have noted of the files that they manage.
impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(format!("/dev/shm/forebay-{}", self.id));
    }
}

impl Stranger {
    pub fn forebay(&mut self, place: &Place, arguments: &[String]) -> Command {
        let mut command = self.program(&self.program);
        command.args(arguments);
        place.in_place(command, &[])
    }

    /// Any program, as that user.
    pub fn program(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            &self.id,
            "--regid",
            &self.id,
            "--clear-groups",
            "--",
        ]);
        command.arg(program);
        command
    }

    /// What this test has for files is that user's.
    pub fn has_files(&self, place: &Place) {
        let id = self.id.parse().ok();
        chown(place.files.path(), id, id).expect("its owner");
    }

    pub fn run(&mut self, place: &Place, arguments: &[&str]) -> Run {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        Run::of(
            self.forebay(place, &arguments)
                .output()
                .expect("setpriv runs"),
        )
    }
}

fn check<'j>(json: &'j Value, name: &str) -> &'j Value {
    let checks = json["checks"].as_array().expect("checks");
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("no check {name}: {json}"))
}

#[test]
fn every_check_is_there_and_has_its_fields() {
    let place = Place::new("doctor");
    let files = place.files.path().to_str().expect("UTF-8");
    let run = place.run(&["doctor", "--json", files, "/dev/shm"]);
    assert!(run.code == 0 || run.code == 1, "{run:?}");
    let json = run.json();
    for name in CHECKS {
        check(&json, name);
    }
    let checks = json["checks"].as_array().expect("checks");
    for check in checks {
        assert!(
            check["found"].is_string() && check["why"].is_string(),
            "{check}"
        );
        let status = check["status"].as_str().expect("a word");
        assert!(["ok", "warn", "fail"].contains(&status), "{check}");
        assert!(status == "ok" || check["remedy"].is_string(), "{check}");
    }
    let count = |status: &str| {
        checks
            .iter()
            .filter(|check| check["status"] == status)
            .count()
    };
    assert_eq!(json["fail"], count("fail"));
    assert_eq!(run.code, i32::from(count("fail") > 0));
    let in_memory = checks
        .iter()
        .find(|check| check["subject"] == "/dev/shm")
        .expect("the directory");
    assert_eq!(in_memory["status"], "warn", "{in_memory}");
    assert_eq!(
        check(&json, "arena")["status"],
        "ok",
        "32 MiB fit everywhere"
    );
    let left = std::fs::read_dir(place.files.path())
        .expect("the directory")
        .count();
    assert_eq!(left, 0, "the probe leaves nothing");
}

#[test]
fn people_get_one_line_a_check_without_colours_in_a_pipe() {
    let place = Place::new("people");
    let run = place.run(&["--no-color", "doctor", "--mem", "8MiB"]);
    for name in CHECKS {
        assert!(run.stdout.contains(name), "{name}: {run:?}");
    }
    assert!(!run.stdout.contains('\x1b'), "{run:?}");
    assert!(run.stdout.trim_end().ends_with("failures"), "{run:?}");
}

#[test]
fn what_cannot_work_fails() {
    let place = Place::new("fails");
    let run = place.run(&["doctor", "--json", "/nowhere/at/all"]);
    assert_eq!(run.code, 1, "{run:?}");
    let json = run.json();
    assert_eq!(
        (&json["status"], &check(&json, "directory")["status"]),
        (&"fail".into(), &"fail".into())
    );
    let output = place
        .forebay(&["doctor", "--json"])
        .env("FOREBAY_MEMROY", "1G")
        .output();
    let run = Run::of(output.expect("forebay runs"));
    assert_eq!(run.code, 1, "{run:?}");
    let found = check(&run.json(), "configuration").clone();
    assert!(
        found["status"] == "fail" && found["found"].to_string().contains("MEMROY"),
        "{found}"
    );
    assert_eq!(place.run(&["doctor", "--mem", "lots"]).code, 2);
}

#[test]
fn a_limit_on_files_is_found() {
    let place = Place::new("limits");
    let script = format!(
        "ulimit -f 1024; exec {} doctor --json",
        env!("CARGO_BIN_EXE_forebay")
    );
    let mut command = place.in_place(Command::new("bash"), &["-c", &script]);
    let run = Run::of(command.output().expect("bash runs"));
    let json = run.json();
    assert_eq!(
        (run.code, &check(&json, "limit_fsize")["status"]),
        (1, &"fail".into()),
        "{json}"
    );
}

#[test]
fn an_ordinary_user_is_told_what_is_missing() {
    let place = Place::new("ordinary");
    let Some(mut user) = stranger(&place) else {
        return;
    };
    let run = user.run(&place, &["doctor", "--json", "/"]);
    assert!(run.code == 0 || run.code == 1, "{run:?}");
    let json = run.json();
    for name in CHECKS {
        check(&json, name);
    }
    assert_eq!(check(&json, "fanotify")["found"], "no CAP_SYS_ADMIN");
    assert_eq!(
        check(&json, "directory")["status"],
        "warn",
        "not writable: {json}"
    );
    assert_eq!(check(&json, "arena")["status"], "ok", "{json}");
    let arenas = place.arenas.path().join(format!("forebay-{}", user.id));
    assert!(
        check(&json, "arena")["found"]
            .as_str()
            .is_some_and(|text| text.contains(arenas.to_str().unwrap())),
        "{json}"
    );
}

/// Who connects within half a minute.
fn accepted(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("set");
    let begun = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(why) => assert!(begun.elapsed() < Duration::from_secs(30), "{why}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_nonblocking(false).expect("set");
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).expect("set");
    stream
}

/// Answers one question as etcd does that has this version.
fn answer_as_etcd(listener: &TcpListener) {
    let mut stream = accepted(listener);
    let mut said = Vec::new();
    // With its body, or the answer would be lost with what nobody has read.
    while !said.ends_with(b"{}") {
        let mut more = [0; 1024];
        let length = stream.read(&mut more).expect("read");
        assert!(length > 0, "the question ends early");
        said.extend(&more[..length]);
    }
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("POST /v3/maintenance/status "), "{said}");
    let answer = b"HTTP/1.0 200 OK\r\n\r\n{\"version\":\"3.5.77\"}";
    stream.write_all(answer).expect("written");
}

#[test]
fn pools_are_looked_at_where_names_lead_to_them() {
    let place = Place::new("doctor-pools");
    let pools = place.file("pools");
    std::fs::create_dir(&pools).expect("a directory");
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = |listener: &TcpListener| listener.local_addr().expect("an address");
    let (server, etcd, gone) = (listen(), listen(), listen());
    let (one, two, asked) = (address(&server), address(&gone), address(&etcd));
    // Nobody is there any more.
    drop(gone);
    let text = |rest: &str| format!("servers = [\"{one}\", \"{two}\"]\n{rest}");
    let of_etcd =
        |endpoint| format!("[etcd]\nendpoints = [\"http://{endpoint}\"]\nprefix = \"/work\"\n");
    let write = |name: &str, text: String| {
        std::fs::write(pools.join(name), text).expect("a file");
    };
    write("work.toml", text(&of_etcd(asked)));
    write(
        "away.toml",
        text(&format!("memory_mib = 1000000000\n{}", of_etcd(two))),
    );
    write("broken.toml", text("copies = 3\n"));
    write("notes.txt", "nothing".to_owned());
    let answers = std::thread::spawn(move || answer_as_etcd(&etcd));
    let run = place.run(&["doctor", "--json"]);
    answers.join().expect("it is asked");
    drop(server);
    let report = run.json();
    let of = |check: &str, pool: &str| {
        let all = report["checks"].as_array().expect("checks");
        let mut all = all.iter();
        let found = all.find(|found| found["check"] == check && found["subject"] == pool);
        let found = found.unwrap_or_else(|| panic!("no {check} of {pool}: {run:?}"));
        let words = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (words("status"), words("found"), words("remedy"))
    };
    assert_eq!(of("pool", "work").0, "ok");
    let (status, found, _) = of("pool_servers", "work");
    assert_eq!(status, "warn");
    assert!(
        found.contains(&format!("1 of 2 take connections; {two}: ")),
        "{found}"
    );
    let (status, found, _) = of("pool_etcd", "work");
    assert_eq!(status, "ok", "{found}");
    assert!(
        found.contains("1 of 1 answer") && found.contains("3.5.77"),
        "{found}"
    );
    assert_eq!(of("pool", "away").0, "warn");
    assert!(of("pool", "away").2.contains("memory_mib"));
    let (status, found, _) = of("pool_etcd", "away");
    assert_eq!(status, "warn");
    assert!(found.contains("0 of 1 answer"), "{found}");
    let (status, found, _) = of("pool", "broken");
    assert_eq!(status, "fail");
    assert!(found.contains("copies: from 1 to"), "{found}");
}

#[test]
fn doctor_ends_where_an_answer_does_not() {
    let place = Place::new("doctor-slow");
    let pools = place.file("pools");
    std::fs::create_dir(&pools).expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let text = format!(
        "servers = [\"{address}\"]\n[etcd]\nendpoints = [\"http://{address}\"]\nprefix = \"/work\"\n"
    );
    std::fs::write(pools.join("slow.toml"), text).expect("a file");
    // Whoever opened it would wait for a writer.
    let pipe = pools.join("pipe.toml");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    // A byte now and then, for longer than anybody should listen.
    let drips = std::thread::spawn(move || {
        let _server = accepted(&listener);
        let mut etcd = accepted(&listener);
        while etcd.write_all(b"H").is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let mut command = place.in_place(Command::new("timeout"), &["-k", "1", "30"]);
    command.arg(env!("CARGO_BIN_EXE_forebay"));
    let run = Run::of(
        command
            .args(["doctor", "--json"])
            .output()
            .expect("it runs"),
    );
    drips.join().expect("it hears the end");
    let checks = run.json()["checks"].clone();
    let checks = checks.as_array().expect("checks");
    let found = |check: &str| {
        let found = checks.iter().find(|found| found["check"] == check);
        found.unwrap_or_else(|| panic!("no {check}: {run:?}"))["found"].to_string()
    };
    assert!(found("pool_servers").contains("1 of 1"), "{run:?}");
    let why = format!("http://{address}: it does not answer within 3s");
    assert!(found("pool_etcd").contains(&why), "{run:?}");
    assert!(checks.iter().all(|found| found["subject"] != "pipe"));
}
