//! What a program holds with a thousand files open: no more than the session's budget, by the kernel's own count.
//!
//! The program is this test, started again, so that nothing else is in the count. It keeps the session as well: all of the arena
//! that has memory is mapped by it.

mod here;

use std::path::Path;
use std::process::Command;

use forebay::{Config, OpenOptions, Session};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 96 * MIB;
const FILES: usize = 1000;
/// Set in the process that opens the files: where.
const INSIDE: &str = "FOREBAY__TEST_RESIDENT";

#[test]
fn a_thousand_open_files_stay_within_the_budget() {
    if let Some(dir) = std::env::var_os(INSIDE) {
        return inside(Path::new(&dir));
    }
    let dir = here::directory();
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_thousand_open_files_stay_within_the_budget"]);
    command.arg("--nocapture").env(INSIDE, dir.path());
    let output = command.output().expect("started");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    if let Some(reason) = told.lines().find(|line| line.starts_with("skipped: ")) {
        here::skipped(reason);
    }
}

/// A line of `/proc/self/status`, bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect(name).parse::<u64>().expect("a number") * 1024
}

fn raise_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads and changes a limit of this process through a structure of ours.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max.min(16_384);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

fn inside(dir: &Path) {
    raise_limit();
    let mut config = Config::builder().build().expect("defaults");
    config.memory = BUDGET;
    config.dirty_bytes_max = BUDGET / 2;
    config.dirty_background = BUDGET / 4;
    config.session = format!("test-resident-{}", std::process::id());
    let session = Session::open(config).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let before = status("RssAnon:");
    let mut files = Vec::new();
    for index in 0..FILES {
        let file = session.open_file(dir.join(format!("{index}")), &options);
        files.push(file.expect("a file"));
        if let Some(reason) = files[index].kernel_reason() {
            return println!("skipped: {reason}");
        }
    }
    let mut most = (0, 0);
    let mut look = || {
        let (shared, own) = (status("RssShmem:"), status("RssAnon:") - before);
        most = (shared.max(most.0), own.max(most.1));
    };
    // In order, then a page here and there, then back: four times the budget in all.
    let bytes = vec![7; 64 << 10];
    for (index, file) in files.iter().enumerate() {
        for part in 0..3 {
            file.write_at(&bytes, part * bytes.len() as u64)
                .expect("written");
        }
        if index % 50 == 0 {
            look();
        }
    }
    for round in 0..40 {
        for (index, file) in files.iter().enumerate() {
            let page = (index as u64 * 7 + round * 5) % 48;
            file.write_at(&bytes[..4096], page * 4096).expect("written");
        }
        look();
    }
    let mut back = vec![0; 192 << 10];
    for (index, file) in files.iter().enumerate() {
        assert_eq!(file.read_at(&mut back, 0).expect("read"), back.len());
        assert!(back.iter().all(|&byte| byte == 7), "file {index} differs");
        if index % 50 == 0 {
            look();
        }
    }
    look();
    println!("shared {} MiB, own {} MiB", most.0 / MIB, most.1 / MIB);
    assert!(most.0 <= BUDGET, "{} bytes of the arena", most.0);
    // Descriptors, registry, threads: what a thousand files cost beside the arena.
    assert!(most.1 <= 16 * MIB, "{} bytes of its own", most.1);
    for file in files {
        file.close().expect("closed");
    }
}
