//! Words of an arena are overwritten while a session works: nobody dies of it, nobody hangs, and files that the session does not have
//! keep their bytes.
//!
//! A keeper and two clients are processes of their own; this program writes to the arena's tables beside them, as a member gone wild
//! would. What the files of the session hold afterwards nobody can say: a word may be any of theirs. `damage.rs` has arenas at rest,
//! of which more is asked.
#![cfg(feature = "sim")]

mod common;
mod here;
mod workers;

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay::frame::header::Header;
use forebay::limits::BLOCK_BYTES;
use forebay::memory::layout::{Counts, Layout};
use forebay::memory::superblock::Superblock;
use forebay::{OpenOptions, Session};
use forebay_model::{SplitMix64, fill};
use workers::{Spec, Work, Worker, arena_path, config, session_name};

const OLD_LEN: usize = 3 << 20;
const CLIENTS: usize = 2;
/// How long clients work, and how long somebody may take to end after that: a lock that was written over is waited for some seconds.
const WORK: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(20);

fn bytes_of(file: usize) -> Vec<u8> {
    let mut bytes = vec![0; OLD_LEN];
    fill(file as u32 + 1, 0, &mut bytes);
    bytes
}

/// The tables of an arena: whatever comes before its frames.
struct Tables {
    file: fs::File,
    layout: Layout,
}

impl Tables {
    fn of(path: &PathBuf) -> Tables {
        let file = fs::OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("an arena");
        let count = |index: usize| {
            let mut bytes = [0; 4];
            let at = std::mem::offset_of!(Superblock, counts) + index * 4;
            file.read_exact_at(&mut bytes, at as u64).expect("counts");
            u32::from_le_bytes(bytes)
        };
        let layout = Layout::new(Counts {
            threads: count(0),
            files: count(1),
            nodes: count(2),
            headers: count(3),
            frames: count(4),
        });
        Tables { file, layout }
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, at as u64)
            .expect("a word");
        u64::from_le_bytes(bytes)
    }

    /// A word that is in use, in one of the tables; not the magic.
    fn draw(&self, dice: &mut SplitMix64) -> usize {
        let headers = self.layout.headers_offset();
        let end = headers + self.layout.counts.headers as usize * size_of::<Header>();
        let parts = [
            (8, size_of::<Superblock>()),
            (size_of::<Superblock>(), self.layout.nodes_offset()),
            (self.layout.nodes_offset(), headers),
            (headers, end),
        ];
        let (start, end) = parts[dice.below(4) as usize];
        let words = (end - start) / 8;
        let first = dice.below(words as u64) as usize;
        let found = (0..words.min(40_000))
            .map(|step| start + (first + step) % words * 8)
            .find(|&at| self.word(at) != 0);
        found.unwrap_or(start + first * 8)
    }

    /// Overwrites a word, or half of it.
    fn damage(&self, dice: &mut SplitMix64) -> (usize, u64) {
        let at = self.draw(dice);
        let was = self.word(at);
        let value = match dice.below(5) {
            0 => dice.next_u64(),
            1 => dice.below(64),
            2 => u64::MAX,
            3 => was ^ (1 << dice.below(64)),
            _ => (was & !0xffff_ffff) | dice.below(1 << 12),
        };
        self.file
            .write_all_at(&value.to_le_bytes(), at as u64)
            .expect("written");
        (at, value)
    }
}

/// Where a process hangs, for who looks for the cause: by `gdb`, where `FOREBAY_TEST_SHOW` is set.
fn places(pid: u32) -> String {
    if std::env::var_os("FOREBAY_TEST_SHOW").is_none() {
        return workers::stacks(pid);
    }
    let shown = std::process::Command::new("gdb")
        .args([
            "-p",
            &pid.to_string(),
            "-batch",
            "-ex",
            "thread apply all bt 14",
        ])
        .output();
    shown.map_or_else(
        |error| error.to_string(),
        |shown| String::from_utf8_lossy(&shown.stdout).into_owned(),
    )
}

/// Has somebody end, and says what is wrong with that.
fn end(name: &str, worker: &mut Worker) -> Result<(), String> {
    let pid = worker.pid();
    let Some(status) = worker.end_within(WORK + PATIENCE) else {
        let places = places(pid);
        worker.kill();
        return Err(format!("{name} hangs:\n{places}"));
    };
    let said = worker.said();
    if status.signal().is_some() || said.iter().any(|line| line.contains("panicked")) {
        return Err(format!("{name} died, {status}: {said:?}"));
    }
    Ok(())
}

/// A session whose arena is written over as a seed says. What was wrong.
fn harm(seed: u64) -> Result<(), String> {
    let dice = &mut SplitMix64::new(seed);
    let dir = here::directory();
    for file in 0..CLIENTS {
        let path = dir.path().join(format!("file-{file}"));
        fs::write(path, bytes_of(file)).expect("a file");
    }
    let bystander = dir.path().join("bystander");
    fs::write(&bystander, bytes_of(9)).expect("a file");
    let config = config(&session_name("live"));
    let spec = |hosts, work| Spec::new(&config.session, dir.path(), hosts, work);
    let mut keeper = Worker::ready(&spec(true, Work::Rest));
    keeper.go();
    let suffer = |me| Work::Suffer {
        me,
        seed: seed + me as u64,
        ms: WORK.as_millis() as u64,
    };
    let mut clients = [0, 1].map(|me| Worker::ready(&spec(false, suffer(me))));
    let path = arena_path(&config);
    let tables = Tables::of(&path);
    clients.iter_mut().for_each(Worker::go);
    let mut damages = Vec::new();
    for _ in 0..1 + dice.below(40) {
        std::thread::sleep(Duration::from_millis(dice.below(10)));
        damages.push(tables.damage(dice));
    }
    let mut wrong = Vec::new();
    for (me, client) in clients.iter_mut().enumerate() {
        wrong.extend(end(&format!("client {me}"), client).err());
    }
    wrong.extend(end("the keeper", &mut keeper).err());
    let _ = fs::remove_file(&path);
    let _ = fs::remove_file(path.with_extension("sock"));
    let _ = fs::remove_dir_all(&config.kept_dir);
    if fs::read(&bystander).expect("a file") != bytes_of(9) {
        wrong.push("another file has other bytes".into());
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "FOREBAY_TEST_SEED={seed}: {}\nthe layout: {:?}\nwritten over: {damages:x?}",
            wrong.join("\n"),
            tables.layout
        )),
    }
}

#[test]
fn words_that_change_beside_a_session_end_nobody() {
    for seed in here::seeds(0..4, 2) {
        harm(seed).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[test]
#[ignore = "long"]
fn many_words_that_change_beside_a_session_end_nobody() {
    let mut wrong = Vec::new();
    for seed in here::fresh_seeds(here::number("FOREBAY_TEST_ROUNDS", 300)) {
        wrong.extend(harm(seed).err());
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), wrong.len());
}

/// A slot is used, and the one beside it is not: both are made to lead to headers that cannot be.
#[test]
fn slots_that_lead_nowhere_are_mended() {
    let dir = here::directory();
    let path = dir.path().join("file-0");
    fs::write(&path, bytes_of(0)).expect("a file");
    let config = config(&session_name("slots"));
    let session = Session::open(config.clone()).expect("a session");
    let mut options = OpenOptions::new();
    let file = session.open_file(&path, options.read(true).write(true));
    let file = Arc::new(file.expect("opened"));
    file.write_at(&[1; 100], 0).expect("written");
    let tables = Tables::of(&arena_path(&config));
    let nodes = tables.layout.nodes_offset();
    let used = (nodes..nodes + (1 << 20))
        .step_by(320)
        .find(|&at| tables.word(at) != 0);
    let used = used.expect("a leaf");
    for (astray, block) in [(0xffff, 0), (2, 1)] {
        let slot = used + block as usize * 4;
        let written = tables
            .file
            .write_all_at(&u32::to_le_bytes(astray), slot as u64);
        written.expect("written over");
        let (tell, told) = mpsc::channel();
        let (file, offset) = (file.clone(), block * BLOCK_BYTES as u64);
        std::thread::spawn(move || {
            let mut back = [0; 100];
            let written = file.write_at(&[2; 100], offset);
            let read = file.read_at(&mut back, offset);
            let _ = tell.send((written.and(read).map_err(|e| e.to_string()), back));
        });
        let told = told.recv_timeout(PATIENCE);
        assert_eq!(told.expect("it hangs"), (Ok(100), [2; 100]));
    }
}
