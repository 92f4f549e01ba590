//! Programs outside the session that open, read, write, cut, replace and map files that a program of the session has open.
//!
//! The session's program does what it is told, line by line. Outsiders are ordinary programs without the library; this test
//! program hosts the keeper, and so is none, but where the keeper has a process of its own.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay::config::Coherence;
use forebay::{Config, Session};

use crate::here;
use crate::keepers::Keeper;
use crate::scene::{Scene, config};
use crate::sys::*;

const LEN: usize = 300_000;
/// So little that the keeper leaves it alone: for what a keeper that is stopped has in flight everybody waits.
pub const SHORT: usize = 100_000;
/// Longer than anything here takes, and shorter than an outsider is made to wait at most.
pub const LONG: Duration = Duration::from_secs(30);
const FLOOD: usize = 4 << 20;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    if role != "obeys" {
        return false;
    }
    let mut fd = -1;
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let said = match words[0] {
            "open" | "look" | "peek" | "log" => {
                fd = open(&dir.join(words[1]), flags_of(words[0])).expect("open");
                String::new()
            }
            "write" => {
                write(fd, &pattern(number(1) as u8, number(2))).expect("write");
                String::new()
            }
            "write-at" => {
                let bytes = pattern(number(1) as u8, number(2));
                pwrite(fd, &bytes, number(3) as i64).expect("pwrite");
                String::new()
            }
            "text" => {
                write(fd, format!("{}\n", words[1]).as_bytes()).expect("write");
                String::new()
            }
            // Lines, many of them for each time that it opens the file.
            "lines" => {
                write_lines(&dir.join(words[1]), number(2));
                String::new()
            }
            // Writes the same megabytes again and again, syncing them each time or not, until it is told that they are enough.
            "flood" | "sync" => flood(fd, dir, words[0] == "sync").to_string(),
            // Records, to so many logs in turn, until it is told that they are enough; how many to each.
            "storm" => write_to_many(dir, number(1)).to_string(),
            "punch" => {
                punch(fd, number(1) as i64, number(2) as i64);
                String::new()
            }
            "cut" => {
                // SAFETY: takes no memory.
                assert_eq!(unsafe { libc::ftruncate(fd, number(1) as i64) }, 0);
                String::new()
            }
            "size" => size_of(fd).to_string(),
            "holds" => {
                let wanted = pattern(number(1) as u8, number(2));
                (pread(fd, number(2), number(3) as i64) == Ok(wanted)).to_string()
            }
            "read" => {
                let bytes = pread(fd, number(1), number(2) as i64).expect("read");
                String::from_utf8(bytes).expect("text")
            }
            "remove" => format!("{:?}", std::fs::remove_file(dir.join(words[1]))),
            "rename" => {
                std::fs::rename(dir.join(words[1]), dir.join(words[2])).expect("renamed");
                String::new()
            }
            "touch" | "modified" => times(&dir.join(words[1]), words.get(2)),
            "close" => {
                close(fd).expect("close");
                String::new()
            }
            other => panic!("what is {other}?"),
        };
        println!("@{said}");
    }
    true
}

/// Sets a file's times, if it is told to. The modification time.
fn times(path: &Path, time: Option<&&str>) -> String {
    if let Some(time) = time {
        set_times(path, time.parse().expect("a number")).expect("times");
    }
    modified(path).to_string()
}

fn punch(fd: i32, offset: i64, len: i64) {
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    allocate(fd, hole, offset, len).expect("a hole");
}

fn flood(fd: i32, dir: &Path, syncs: bool) -> bool {
    let (begun, bytes) = (Instant::now(), pattern(9, FLOOD));
    let enough = dir.join("enough");
    while !enough.exists() && begun.elapsed() < 4 * LONG {
        assert_eq!(pwrite(fd, &bytes, 0), Ok(FLOOD));
        // SAFETY: takes no memory.
        assert!(!syncs || unsafe { libc::fsync(fd) } == 0);
        std::fs::write(dir.join("begun"), "").expect("a mark");
    }
    enough.exists()
}

fn write_lines(path: &Path, count: usize) {
    for lines in (0..count).collect::<Vec<_>>().chunks(30) {
        let fd = open(path, flags_of("log")).expect("open");
        for line in lines {
            write(fd, format!("inside{line}\n").as_bytes()).expect("write");
        }
        close(fd).expect("close");
    }
}

fn write_to_many(dir: &Path, count: usize) -> usize {
    let logs: Vec<_> = (0..count)
        .map(|at| open(&dir.join(format!("log{at}")), flags_of("log")).expect("open"))
        .collect();
    let (begun, enough) = (Instant::now(), dir.join("enough"));
    let mut round = 0;
    while !enough.exists() && begun.elapsed() < LONG {
        let record = format!("inside{round}{}\n", "-".repeat(2000));
        for &log in &logs {
            write(log, record.as_bytes()).expect("write");
        }
        std::fs::write(dir.join("begun"), "").expect("a mark");
        round += 1;
    }
    logs.into_iter().for_each(|log| close(log).expect("close"));
    round
}

fn flags_of(word: &str) -> i32 {
    match word {
        "open" => libc::O_RDWR | libc::O_CREAT,
        "look" => libc::O_RDONLY,
        // No lease is in the way.
        "peek" => libc::O_RDONLY | libc::O_NONBLOCK,
        _ => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
    }
}

/// A program of the session that obeys.
pub struct Member {
    program: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Member {
    pub fn of(scene: &Scene) -> Self {
        Self::from(scene.role("obeys", ""))
    }

    /// Another program that obeys.
    pub fn from(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().expect("a program");
        let lines = BufReader::new(program.stdout.take().expect("output")).lines();
        Member {
            input: program.stdin.take(),
            program,
            lines,
        }
    }

    /// Has it do something; what it answers.
    pub fn does(&mut self, what: &str) -> String {
        self.begins(what);
        self.answers()
    }

    pub fn begins(&mut self, what: &str) {
        let input = self.input.as_mut().expect("input");
        writeln!(input, "{what}").expect("a line");
    }

    pub fn answers(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("an answer").expect("text");
            if let Some((_, answer)) = line.split_once('@') {
                return answer.to_owned();
            }
        }
    }

    pub fn process(&self) -> u32 {
        self.program.id()
    }

    pub fn ends(mut self) {
        drop(self.input.take());
        for line in self.lines.by_ref() {
            line.expect("text");
        }
        assert!(self.program.wait().expect("an end").success());
    }
}

/// An ordinary program in the scene's directory.
pub fn outsider(scene: &Scene, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(scene.dir.path());
    command
}

fn run(mut command: Command) -> Output {
    let output = command.output().expect("an outsider");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn shell(scene: &Scene, script: &str) -> Vec<u8> {
    run(outsider(scene, "sh", &["-c", script])).stdout
}

fn python(scene: &Scene, script: &str) -> Vec<u8> {
    run(outsider(scene, "python3", &["-c", script])).stdout
}

pub fn coherent(name: &str, coherence: Coherence) -> Config {
    Config {
        coherence,
        ..config(name)
    }
}

fn scene(name: &str, coherence: Coherence) -> Scene {
    Scene::with(name, 0, |config| config.coherence = coherence)
}

/// A scene in which outsiders wait, where that can be had.
pub fn strict(name: &str) -> Option<Scene> {
    if let Err(why) = forebay::sys::fanotify::Group::new() {
        here::skipped(format!("no permission events: {why}"));
        return None;
    }
    Some(scene(name, Coherence::Strict))
}

/// Repeats a look until it shows what it should.
pub fn in_the_end(what: &str, look: impl Fn() -> bool) {
    let begun = Instant::now();
    while !look() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_managed(scene: &Scene, name: &str) -> bool {
    let session = scene.session.as_ref().expect("a session");
    let file = session
        .files()
        .into_iter()
        .find(|f| f.path == scene.path(name));
    file.is_some_and(|file| file.kernel_reason == 0 && file.is_open)
}

#[test]
fn who_opens_a_file_sees_what_has_been_written() {
    let Some(scene) = strict("opened") else {
        return;
    };
    let mut member = Member::of(&scene);
    for turn in 0..20 {
        let name = format!("f{turn}");
        member.does(&format!("open {name}"));
        member.does(&format!("write {turn} {LEN}"));
        assert!(is_managed(&scene, &name));
        assert_eq!(shell(&scene, &format!("cat {name}")), pattern(turn, LEN));
        assert!(!is_managed(&scene, &name), "an outsider may have it open");
        // What is written from then on is seen at once, also by who has had it open all the time.
        member.does("text more");
        assert!(shell(&scene, &format!("cat {name}")).ends_with(b"more\n"));
        assert_eq!(member.does("size"), (LEN + 5).to_string());
        member.does("close");
    }
    member.ends();
}

#[test]
fn what_an_outsider_writes_is_seen() {
    let Some(scene) = strict("written") else {
        return;
    };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    shell(&scene, "printf outside >> a");
    assert_eq!(member.does("size"), (LEN + 7).to_string());
    assert_eq!(member.does(&format!("read 7 {LEN}")), "outside");
    shell(
        &scene,
        "printf inside | dd of=a bs=1 seek=5 conv=notrunc status=none",
    );
    assert_eq!(member.does("read 6 5"), "inside");
    shell(&scene, ": > a");
    assert_eq!(member.does("size"), "0");
    member.ends();
}

#[test]
fn an_outsider_and_a_member_append_to_one_log() {
    let Some(scene) = strict("log") else { return };
    let mut member = Member::of(&scene);
    member.does("log a");
    for turn in 0..50 {
        member.does(&format!("text inside{turn}"));
        shell(&scene, &format!("echo outside{turn} >> a"));
    }
    member.ends();
    let wanted: String = (0..50)
        .map(|turn| format!("inside{turn}\noutside{turn}\n"))
        .collect();
    assert_eq!(
        String::from_utf8(shell(&scene, "cat a")).expect("text"),
        wanted
    );
}

/// An outsider comes just when the session closes the file for the last time, and gives back what space it has reserved there.
#[test]
fn an_outsider_appends_while_a_member_closes() {
    const LINES: usize = 39_000;
    let Some(scene) = strict("closes") else {
        return;
    };
    let mut member = Member::of(&scene);
    member.begins(&format!("lines a {LINES}"));
    let script = format!(
        "import os, random, time\n\
         for i in range({LINES} // 30):\n\
         \tfd = os.open('a', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         \t[os.write(fd, b'outside%d\\n' % (30 * i + j)) for j in range(3)]\n\
         \tos.close(fd)\n\
         \ttime.sleep(random.random() * 0.003)\n"
    );
    python(&scene, &script);
    member.answers();
    member.ends();
    let text = String::from_utf8(shell(&scene, "cat a")).expect("text");
    let outside = (0..LINES).filter(|line| line % 30 < 3).collect::<Vec<_>>();
    for (who, wanted) in [("inside", (0..LINES).collect()), ("outside", outside)] {
        let told = text.lines().filter_map(|line| line.strip_prefix(who));
        let told: HashSet<usize> = told.map(|number| number.parse().expect("whole")).collect();
        let lost: Vec<_> = wanted.iter().filter(|line| !told.contains(line)).collect();
        assert!(lost.is_empty(), "{who}: {} lost: {lost:?}", lost.len());
        assert_eq!(told.len(), wanted.len(), "{who}");
    }
}

/// What was owed is in a hole by then: nothing is to be written, and the kernel's file was never so long.
#[test]
fn a_file_whose_end_was_punched_keeps_its_length() {
    let Some(scene) = strict("punched") else {
        return;
    };
    let mut member = Member::of(&scene);
    for (name, from) in [("a", 0), ("b", LEN / 2)] {
        member.does(&format!("open {name}"));
        member.does(&format!("write 1 {LEN}"));
        member.does(&format!("punch {from} {LEN}"));
        let mut expected = pattern(1, LEN);
        expected[from..].fill(0);
        assert!(shell(&scene, &format!("cat {name}")) == expected, "{name}");
        assert_eq!(member.does("size"), LEN.to_string());
        member.does("close");
    }
    // Given to the kernel by a process that cannot write it.
    member.does("open c");
    member.does(&format!("write 1 {LEN}"));
    member.does(&format!("punch 0 {LEN}"));
    let watches = "import ctypes; libc = ctypes.CDLL(None)\n\
        assert libc.inotify_add_watch(libc.inotify_init(), b'c', 2) > 0";
    let mut other = scene.command("python3");
    run({
        other.args(["-c", watches]);
        other
    });
    assert!(!is_managed(&scene, "c"), "it is watched");
    assert_eq!(member.does("size"), LEN.to_string());
    member.ends();
    assert_eq!(size_at(&scene.path("c")), LEN as i64);
}

/// `truncate` opens nothing, so nobody waits.
#[test]
fn a_file_that_an_outsider_cuts_by_its_name() {
    for coherence in [Coherence::Strict, Coherence::Notify] {
        if coherence == Coherence::Strict && strict("cut").is_none() {
            continue;
        }
        let scene = scene("cut", coherence);
        let mut member = Member::of(&scene);
        member.does("open a");
        member.does(&format!("write 1 {LEN}"));
        let session = scene.session.as_ref().expect("a session");
        session.settle_all().expect("settled");
        python(&scene, "import os; os.truncate('a', 1000)");
        in_the_end("the new length", || !is_managed(&scene, "a"));
        assert_eq!(member.does("size"), "1000");
        assert_eq!(member.does("holds 1 1000 0"), "true");
        member.ends();
        assert_eq!(shell(&scene, "cat a"), pattern(1, 1000));
    }
}

#[test]
fn a_file_that_an_outsider_renames_unlinks_and_replaces() {
    let Some(scene) = strict("names") else { return };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    shell(&scene, "mv a b");
    member.does(&format!("write 2 {LEN}"));
    assert_eq!(
        shell(&scene, "cat b"),
        [pattern(1, LEN), pattern(2, LEN)].concat()
    );
    member.does("close");
    member.does("open a");
    member.does(&format!("write 3 {LEN}"));
    shell(&scene, "echo new > c; mv c a");
    assert_eq!(shell(&scene, "cat a"), b"new\n");
    assert_eq!(member.does(&format!("holds 3 {LEN} 0")), "true");
    member.does("close");
    member.does("open d");
    member.does(&format!("write 4 {LEN}"));
    shell(&scene, "rm d");
    assert_eq!(member.does(&format!("holds 4 {LEN} 0")), "true");
    member.ends();
    assert_eq!(shell(&scene, "ls; cat a"), b"a\nb\nnew\n");
}

#[test]
fn a_file_that_an_outsider_maps() {
    let Some(scene) = strict("mapped") else {
        return;
    };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    let script = "import mmap,sys\n\
        f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 0)\n\
        sys.stdout.buffer.write(m[:1000]); m[0:4] = b'maps'; m.flush()";
    assert_eq!(python(&scene, script), pattern(1, 1000));
    assert_eq!(member.does("read 4 0"), "maps");
    member.ends();
}

/// Mapped, and closed, before the session's program opens it.
#[test]
fn a_file_that_an_outsider_has_mapped_is_not_managed() {
    for coherence in [Coherence::Strict, Coherence::Notify] {
        if coherence == Coherence::Strict && strict("early").is_none() {
            continue;
        }
        let scene = scene("early", coherence);
        shell(&scene, "printf 0123456789 > a");
        let script = "import mmap,sys\n\
            f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 10); f.close()\n\
            print('mapped', flush=True); sys.stdin.readline()\n\
            print(m[:10].decode(), flush=True); m[5:10] = b'edits'\n\
            print('edited', flush=True); sys.stdin.readline()";
        let mut mapper = outsider(&scene, "python3", &["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an outsider");
        let mut told = mapper.stdin.take().expect("input");
        let mut lines = BufReader::new(mapper.stdout.take().expect("output")).lines();
        let mut hear = || lines.next().expect("a line").expect("text");
        assert_eq!(hear(), "mapped");
        let mut member = Member::of(&scene);
        member.does("open a");
        member.does("text abcd");
        assert!(!is_managed(&scene, "a"));
        writeln!(told, "go on").expect("told");
        assert_eq!(hear(), "abcd");
        assert_eq!(hear(), "56789");
        assert_eq!(hear(), "edited");
        assert_eq!(member.does("read 5 5"), "edits");
        writeln!(told, "end").expect("told");
        assert!(mapper.wait().expect("an end").success());
        member.ends();
    }
}

#[test]
fn tail_follows_a_log() {
    for coherence in [Coherence::Strict, Coherence::Notify] {
        if coherence == Coherence::Strict && strict("tail").is_none() {
            continue;
        }
        let scene = scene("tail", coherence);
        let mut member = Member::of(&scene);
        member.does("log a");
        member.does("text first");
        let mut tail = outsider(&scene, "tail", &["-n", "+1", "-f", "a"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tail");
        let mut lines = BufReader::new(tail.stdout.take().expect("output")).lines();
        if coherence == Coherence::Notify {
            // It is found, not held up.
            in_the_end("the outsider is found", || !is_managed(&scene, "a"));
        }
        assert_eq!(lines.next().expect("a line").expect("text"), "first");
        for turn in 0..20 {
            member.does(&format!("text line{turn}"));
            let line = lines.next().expect("a line").expect("text");
            assert_eq!(line, format!("line{turn}"));
        }
        tail.kill().expect("a kill");
        tail.wait().expect("an end");
        member.ends();
    }
}

#[test]
fn two_sessions_see_each_others_bytes() {
    let Some(one) = strict("one") else { return };
    let mut other = strict("two").expect("as before");
    other.dir = tempfile::TempDir::with_prefix_in("forebay", one.dir.path()).expect("a directory");
    let mut first = Member::of(&one);
    first.does("open a");
    first.does(&format!("write 1 {LEN}"));
    let mut second = Member::of(&other);
    second.does("open ../a");
    assert_eq!(second.does(&format!("holds 1 {LEN} 0")), "true");
    second.does("text second");
    assert_eq!(first.does("read 6 0"), "second");
    first.ends();
    second.ends();
}

/// It is never flushed for long enough that nothing is owed, unless somebody sees to it.
#[test]
fn who_opens_a_file_that_is_written_all_the_time() {
    let Some(scene) = strict("flood") else { return };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    member.begins("flood");
    in_the_end("it writes", || scene.path("begun").exists());
    let (bytes, took) = reads(&scene, "a");
    assert_eq!(bytes.len(), FLOOD);
    assert!(took < LONG, "{took:?}");
    assert!(!is_managed(&scene, "a"));
    std::fs::write(scene.path("enough"), "").expect("a mark");
    assert_eq!(member.answers(), "true");
    member.ends();
    assert_eq!(reads(&scene, "a").0, pattern(9, FLOOD));
}

#[test]
fn what_was_changed_while_nobody_had_it_open() {
    for coherence in [Coherence::Strict, Coherence::Notify, Coherence::Close] {
        if coherence == Coherence::Strict && strict("idle").is_none() {
            continue;
        }
        let scene = scene("idle", coherence);
        let mut member = Member::of(&scene);
        member.does("open a");
        member.does(&format!("write 1 {LEN}"));
        assert_eq!(member.does(&format!("holds 1 {LEN} 0")), "true");
        member.does("close");
        shell(
            &scene,
            "printf inside | dd of=a bs=1 seek=5 conv=notrunc status=none; printf end >> a",
        );
        member.does("open a");
        assert_eq!(member.does("read 6 5"), "inside");
        assert_eq!(member.does(&format!("read 3 {LEN}")), "end");
        member.ends();
    }
}

/// Opening by members, and by the keeper, holds up nobody and leaves the file where it is.
#[test]
fn members_open_what_is_watched() {
    let Some(scene) = strict("members") else {
        return;
    };
    let mut writer = Member::of(&scene);
    writer.does("open a");
    writer.does(&format!("write 1 {LEN}"));
    let mut readers: Vec<_> = (0..4).map(|_| Member::of(&scene)).collect();
    for reader in &mut readers {
        for _ in 0..20 {
            reader.does("open a");
            assert_eq!(reader.does(&format!("holds 1 {LEN} 0")), "true");
            reader.does("close");
        }
    }
    assert!(is_managed(&scene, "a"));
    readers.into_iter().for_each(Member::ends);
    writer.ends();
}

#[test]
fn an_outsider_is_found_without_privilege() {
    let scene = scene("found", Coherence::Notify);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    assert!(is_managed(&scene, "a"));
    // It does not wait for what its opening sets off.
    let mut outsider = outsider(&scene, "sh", &["-c", "exec 3<>a; cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("an outsider");
    in_the_end("the outsider is found", || !is_managed(&scene, "a"));
    assert_eq!(
        std::fs::read(scene.path("a")).expect("a file"),
        pattern(1, LEN)
    );
    drop(outsider.stdin.take());
    outsider.wait().expect("an end");
    shell(&scene, "printf outside >> a");
    assert_eq!(member.does(&format!("read 7 {LEN}")), "outside");
    member.ends();
}

/// An outsider that comes and goes before anybody looks for him.
#[test]
fn an_append_without_privilege() {
    let scene = scene("appended", Coherence::Notify);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    let session = scene.session.as_ref().expect("a session");
    session.settle_all().expect("settled");
    shell(&scene, "printf outside >> a");
    in_the_end("the new length", || !is_managed(&scene, "a"));
    assert_eq!(member.does(&format!("read 7 {LEN}")), "outside");
    assert_eq!(member.does(&format!("holds 1 {LEN} 0")), "true");
    member.ends();
}

#[test]
fn an_interval_is_kept_while_a_program_writes() {
    let scene = Scene::with("interval", 0, |config| {
        config.coherence = Coherence::Interval;
        config.flush_interval = Some(Duration::from_millis(200));
    });
    let mut member = Member::of(&scene);
    member.does("log a");
    member.does("text first");
    let begun = Instant::now();
    while std::fs::read(scene.path("a")).expect("a file").is_empty() {
        member.does("text more");
        assert!(begun.elapsed() < 2 * LONG);
    }
    assert!(is_managed(&scene, "a"));
    member.ends();
}

/// The end of an outsider that reads a file whole.
pub fn reads(scene: &Scene, name: &str) -> (Vec<u8>, Duration) {
    let begun = Instant::now();
    let output = run(outsider(scene, "cat", &[name]));
    (output.stdout, begun.elapsed())
}

#[test]
fn nobody_waits_for_a_keeper_that_is_stopped() {
    let Some(mut scene) = strict("stopped") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    let session = Session::join(config(&scene.name)).expect("a session");
    keeper.while_stopped(&session, || {
        // It is let in, and sees what is with the kernel.
        let (_, took) = reads(&scene, "a");
        assert!(took < LONG, "{took:?}");
        let mut other = Member::of(&scene);
        other.does("open a");
        assert_eq!(other.does(&format!("holds 1 {SHORT} 0")), "true");
        other.ends();
    });
    assert_eq!(reads(&scene, "a").0, pattern(1, SHORT));
    member.ends();
}

/// A program that has begun to manage a file `a` a moment before: its descriptors lie in a lane. It has not answered yet.
fn with_a_lane(name: &str) -> Option<(Scene, Keeper, Member)> {
    let mut scene = strict(name)?;
    let keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    // There is a lane.
    member.does("open b");
    member.does(&format!("write 2 {SHORT}"));
    member.does("open a");
    member.begins(&format!("write 1 {SHORT}"));
    Some((scene, keeper, member))
}

/// The keeper finds what lies in a lane once it needs it.
#[test]
fn a_keeper_without_descriptors_can_have_what_lies_in_a_lane() {
    for _ in 0..6 {
        let Some((scene, mut keeper, mut member)) = with_a_lane("reserve") else {
            return;
        };
        keeper.fill(&scene, || _ = member.answers());
        for (name, seed) in [("a", 1), ("b", 2)] {
            let (bytes, _) = reads(&scene, name);
            assert!(
                bytes == pattern(seed, SHORT),
                "{name}: {} bytes",
                bytes.len()
            );
        }
        member.ends();
    }
}

/// Another thread of its process is quicker with the numbers for what lies in the lane.
#[test]
fn a_keeper_that_has_lost_its_last_descriptors_gives_files_to_the_kernel() {
    for round in 0..6 {
        let Some((scene, mut keeper, mut member)) = with_a_lane("taken") else {
            return;
        };
        if round % 2 == 1 {
            let rights = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(scene.path("a"), rights).expect("rights");
        }
        keeper.fill_and_take(&scene, 2, || _ = member.answers());
        let cats: Vec<_> = (0..30).map(|_| cat(&scene)).collect();
        cats.into_iter().for_each(|cat| has_read(cat, 1));
        member.ends();
    }
}

/// An outsider that reads `a`.
fn cat(scene: &Scene) -> Child {
    let mut cat = outsider(scene, "cat", &["a"]);
    cat.stdout(Stdio::piped()).spawn().expect("an outsider")
}

fn has_read(cat: Child, seed: u8) {
    let output = cat.wait_with_output().expect("an end");
    let (status, got) = (output.status, output.stdout.len());
    assert!(status.success(), "{status}");
    assert!(output.stdout == pattern(seed, SHORT), "{got} bytes");
}

/// The member asks whether somebody outside has the file open, and the keeper has no number for the descriptor that comes with the question.
#[test]
fn a_keeper_without_descriptors_takes_no_file_for_unused() {
    let Some(mut scene) = strict("unused") else {
        return;
    };
    let mut keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    // There is a lane, and nothing in it.
    member.does("open b");
    member.does(&format!("write 2 {SHORT}"));
    member.does("close");
    std::fs::write(scene.path("c"), "old").expect("a file");
    let script = "exec 3<c; echo opened; read line; exec cat <&3";
    let mut command = outsider(&scene, "sh", &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = command.spawn().expect("an outsider");
    let mut opened = [0; 7];
    let output = reader.stdout.as_mut().expect("output");
    output.read_exact(&mut opened).expect("a line");
    keeper.fill(&scene, || ());
    member.does("open c");
    member.does(&format!("write 3 {SHORT}"));
    drop(reader.stdin.take());
    let bytes = reader.wait_with_output().expect("an end").stdout;
    assert!(bytes == pattern(3, SHORT), "{} bytes", bytes.len());
    member.ends();
}

/// More strangers at once than it has descriptors for.
#[test]
fn nobody_is_refused_by_a_keeper_without_descriptors() {
    let Some(mut scene) = strict("full") else {
        return;
    };
    let mut keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {SHORT}"));
    keeper.fill(&scene, || ());
    let cats: Vec<_> = (0..40).map(|_| cat(&scene)).collect();
    cats.into_iter().for_each(|cat| has_read(cat, 1));
    member.ends();
}

#[test]
fn nobody_waits_for_a_keeper_that_is_killed() {
    let Some(mut scene) = strict("dead") else {
        return;
    };
    let keeper = Keeper::of(&mut scene);
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    keeper.signal(libc::SIGSTOP);
    let cat = outsider(&scene, "cat", &["a"])
        .stdout(Stdio::null())
        .spawn();
    let mut cat = cat.expect("an outsider");
    keeper.signal(libc::SIGKILL);
    let begun = Instant::now();
    while cat.try_wait().expect("a look").is_none() {
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(keeper);
    // No mark is left: nobody is there to answer.
    let (_, took) = reads(&scene, "a");
    assert!(took < LONG, "{took:?}");
    // The next keeper watches again.
    let _keeper = Keeper::of(&mut scene);
    in_the_end("the new keeper watches", || {
        reads(&scene, "a").0 == pattern(1, LEN)
    });
    assert_eq!(member.does(&format!("holds 1 {LEN} 0")), "true");
    member.ends();
}

/// An outsider that is killed while it waits takes nothing with it.
#[test]
fn an_outsider_is_killed_while_a_program_writes() {
    let Some(scene) = strict("killed-outside") else {
        return;
    };
    let mut member = Member::of(&scene);
    for turn in 0..20 {
        let name = format!("f{turn}");
        member.does(&format!("open {name}"));
        member.does(&format!("write {turn} {LEN}"));
        let mut cat = outsider(&scene, "cat", &[&name])
            .stdout(Stdio::null())
            .spawn()
            .expect("cat");
        std::thread::sleep(Duration::from_micros(u64::from(turn) * 200));
        cat.kill().expect("a kill");
        let status = cat.wait().expect("an end");
        assert!(
            status.success() || status.signal() == Some(libc::SIGKILL),
            "{status}"
        );
        assert_eq!(member.does(&format!("holds {turn} {LEN} 0")), "true");
        member.does("close");
        assert_eq!(reads(&scene, &name).0, pattern(turn, LEN));
    }
    member.ends();
}

/// A program that gets none of the environment has no library: it is an outsider, whoever has started it, and so is what it starts.
#[test]
fn a_program_that_was_not_given_the_library() {
    let Some(scene) = strict("bare") else { return };
    let mut member = Member::of(&scene);
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    let mut bare = scene.command("/usr/bin/env");
    bare.args([
        "-u",
        "LD_PRELOAD",
        "/bin/sh",
        "-c",
        "/bin/cat a; /bin/echo >> a more",
    ]);
    assert!(run(bare).stdout == pattern(1, LEN));
    assert_eq!(member.does(&format!("read 4 {LEN}")), "more");
    member.does(&format!("write 2 {LEN}"));
    member.ends();
}
