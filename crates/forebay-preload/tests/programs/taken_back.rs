//! Files that a program of the session reads again right after their close: nothing is written first, and nobody can tell.

use std::fs;
use std::path::{Path, PathBuf};

use crate::deaths;
use crate::outsiders::strict;
use crate::scene::{Scene, Teller, mtime_ns, now_ns, outside, tell};
use crate::sys::*;

const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
/// Bytes of each file: much for a keeper to write, for moments.
const LEN: usize = 8 << 20;
const PIECE: usize = 4096;
/// Old names are used again.
const NAMES: u32 = 3;

fn contents(number: u32) -> Vec<u8> {
    let mut bytes = pattern(number as u8, LEN);
    for (at, piece) in bytes.chunks_mut(PIECE).enumerate() {
        piece[..4].copy_from_slice(&number.to_le_bytes());
        piece[4..8].copy_from_slice(&(at as u32).to_le_bytes());
    }
    bytes
}

fn path_of(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("b{}", number % NAMES))
}

/// Tells how far it is, and waits for a word.
fn said(step: &str, number: u32, begun: i128, closed: i128) {
    tell(format_args!("{step} {number} {begun} {closed}"));
}

fn live(dir: &Path, number: u32) {
    let (path, bytes) = (path_of(dir, number), contents(number));
    let begun = now_ns();
    let fd = open(&path, NEW).expect("open");
    for piece in bytes.chunks(PIECE) {
        assert_eq!(write(fd, piece), Ok(PIECE));
    }
    close(fd).expect("close");
    let closed = now_ns();
    let fd = open(&path, libc::O_RDONLY).expect("open");
    assert!(read(fd, PIECE).expect("read") == bytes[..PIECE]);
    said("opened", number, begun, closed);
    // What programs of the session see of its time, while it is being written and afterwards.
    let time = mtime_ns(&path);
    assert!((begun - 20_000_000..=closed).contains(&time), "{time}");
    assert!(pread(fd, LEN + 1, 0).expect("read") == bytes);
    close(fd).expect("close");
    said("closed", number, begun, closed);
    match number % 4 {
        0 => {
            let fd = open(&path, libc::O_WRONLY | libc::O_APPEND).expect("open");
            write(fd, b"more").expect("write");
            close(fd).expect("close");
            let all = fs::read(&path).expect("a file");
            assert!(all[..LEN] == bytes && all[LEN..] == *b"more");
            assert!(mtime_ns(&path) >= closed - 20_000_000);
        }
        1 => {
            let other = dir.join("renamed");
            fs::rename(&path, &other).expect("renamed");
            assert!(fs::read(&other).expect("a file") == bytes);
            fs::remove_file(&other).expect("removed");
            assert_eq!(open(&other, libc::O_RDONLY), Err(libc::ENOENT));
        }
        _ => {}
    }
    said("done", number, begun, closed);
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "takes-back" => {
            (0..argument.parse().expect("a count")).for_each(|number| live(dir, number));
        }
        _ => return false,
    }
    true
}

/// What a program has told of: a step, a file, and times before its opening and after its close.
type Told = (String, u32, i128, i128);

struct Reader(Teller);

impl Reader {
    fn start(scene: &Scene, count: u32) -> Self {
        let mut command = scene.role("takes-back", &count.to_string());
        // However little it owes.
        command.env("FOREBAY_CLOSE_BEHIND_BYTES", "1");
        Reader(Teller::start(command))
    }

    fn next(&mut self) -> Option<Told> {
        self.0.next(|words| {
            let &[step, number, begun, closed] = words else {
                return None;
            };
            let time = |text: &str| text.parse().expect("a time");
            let number = number.parse().expect("a number");
            Some((step.to_owned(), number, time(begun), time(closed)))
        })
    }

    fn go_on(&mut self) {
        self.0.go_on();
    }

    /// Up to the next time that it has opened a file again.
    fn opened(&mut self) -> Told {
        loop {
            let told = self.next().expect("a step");
            if told.0 == "opened" {
                return told;
            }
            self.go_on();
        }
    }

    fn end(&mut self) {
        self.0.program.kill().expect("a kill");
        self.0.program.wait().expect("an end");
    }
}

/// An outsider sees the whole file, with the time of its writer's close.
fn check(dir: &Path, (step, number, begun, closed): &Told) {
    let path = path_of(dir, *number);
    assert!(outside(&path) == contents(*number), "file {number}, {step}");
    let time = mtime_ns(&path);
    assert!(
        (begun - 20_000_000..=*closed).contains(&time),
        "file {number}, {step}: {time} is not between {begun} and {closed}"
    );
}

fn owed(scene: &Scene, number: u32) -> u64 {
    let path = path_of(scene.dir.path(), number);
    let session = scene.session.as_ref().expect("a session");
    let files = session.files();
    let file = files
        .iter()
        .find(|file| Path::new(&file.path) == path && file.is_open);
    file.map_or(0, |file| file.owed_bytes)
}

#[test]
fn a_file_that_is_read_after_its_close_need_not_be_written_first() {
    let Some(scene) = strict("taken-back") else {
        return;
    };
    let mut reader = Reader::start(&scene, 24);
    let mut taken = 0;
    while let Some(told) = reader.next() {
        taken += u32::from(told.0 == "opened" && owed(&scene, told.1) > 0);
        // Sometimes while it is open, sometimes after the last close, and of some only at the end.
        if told.0 == "opened" && told.1 % 3 == 0 || told.0 == "closed" && told.1 % 3 == 1 {
            check(scene.dir.path(), &told);
        }
        reader.go_on();
    }
    assert!(reader.0.program.wait().expect("an end").success());
    assert!(taken > 0, "all were written before they were opened again");
}

#[test]
fn a_program_that_is_killed_with_such_a_file_open_loses_nothing() {
    for round in 0..6 {
        let Some(scene) = strict("taken-back-killed") else {
            return;
        };
        let mut reader = Reader::start(&scene, u32::MAX);
        let mut told = reader.opened();
        for _ in 0..round {
            reader.go_on();
            told = reader.opened();
        }
        reader.end();
        check(scene.dir.path(), &told);
    }
}

#[test]
fn everybody_is_killed_with_such_a_file_open_and_a_recovery_finishes() {
    for round in 0..6 {
        let Some(mut scene) = strict("taken-back-all-killed") else {
            return;
        };
        let place = scene.session.as_ref().expect("a session").place();
        let arena = place.expect("a place").path.expect("an arena");
        drop(scene.session.take());
        let mut keeper = deaths::keeper_process(&scene.name);
        let mut reader = Reader::start(&scene, u32::MAX);
        let mut told = reader.opened();
        for _ in 0..round {
            reader.go_on();
            told = reader.opened();
        }
        keeper.kill().expect("a kill");
        keeper.wait().expect("an end");
        reader.end();
        let put_back = match arena.exists() {
            true => deaths::recover_all(&arena, &scene.name),
            false => Vec::new(),
        };
        let path = path_of(scene.dir.path(), told.1);
        assert!(
            fs::read(&path).expect("a file") == contents(told.1),
            "{told:?}"
        );
        if !put_back.contains(&path) {
            check(scene.dir.path(), &told);
        }
    }
}
