//! A program of a session, written against the Rust interface, as a process of its own that can be killed: this test
//! program, started again for one test that does nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay::{Config, OpenOptions, Session};

use crate::place::{Place, Process};

const FILE: &str = "FOREBAY__TEST_FILE";
const BYTES: &str = "FOREBAY__TEST_BYTES";
const SYNC: &str = "FOREBAY__TEST_SYNC";

/// What the writer writes.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at) as u8).collect()
}

/// A writer that has written so many bytes of the pattern and waits to be killed; with `sync` they are on the device.
pub fn start(place: &Place, file: &Path, bytes: usize, sync: bool) -> Process {
    start_as(place, Command::new(program()), file, bytes, sync)
}

/// The program that writes.
pub fn program() -> PathBuf {
    std::env::current_exe().expect("this program")
}

/// As [`start`], by a command that leads to [`program`].
pub fn start_as(place: &Place, command: Command, file: &Path, bytes: usize, sync: bool) -> Process {
    let arguments = ["--exact", "writer::the_writer", "--ignored", "--nocapture"];
    let mut command = place.in_place(command, &arguments);
    command.env(FILE, file).env(BYTES, bytes.to_string());
    if sync {
        command.env(SYNC, "1");
    }
    let child = command.stdout(Stdio::piped()).spawn().expect("a writer");
    let mut process = Process::new(child);
    for _ in 0..20 {
        if process.first_line().contains("written") {
            return process;
        }
    }
    panic!("the writer does not write");
}

#[test]
#[ignore = "the program that other tests start"]
fn the_writer() {
    let Some(file) = std::env::var_os(FILE) else {
        return;
    };
    let bytes = std::env::var(BYTES)
        .expect("how many")
        .parse()
        .expect("a number");
    let config = Config::load().expect("a configuration");
    let session = Session::join(config).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.open_file(file, &options).expect("a file");
    assert!(file.kernel_reason().is_none(), "{:?}", file.kernel_reason());
    // In parts that no route sends to the device at once.
    for (at, part) in pattern(bytes).chunks(10_000).enumerate() {
        file.write_at(part, at as u64 * 10_000).expect("written");
    }
    if std::env::var_os(SYNC).is_some() {
        file.sync_all().expect("synced");
    }
    println!("written");
    std::thread::sleep(Duration::from_secs(600));
}
