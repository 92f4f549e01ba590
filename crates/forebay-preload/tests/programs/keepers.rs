//! A keeper in a process of its own, to be stopped and killed: this test program, started once more.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay::Session;
use forebay::config::Coherence;
use forebay::ids::ThreadId;
use forebay::sync::Ordering;

use crate::outsiders::{LONG, coherent, in_the_end};
use crate::scene::Scene;
use crate::sys::*;

pub const KEEPER: &str = "FOREBAY__TEST_OUTSIDERS";
/// The keeper has a relief.
const RELIEVED: &str = "FOREBAY__TEST_RELIEVED";
const PROCESSES: &str = "TEST_OUTSIDERS_PROCESSES";

/// A keeper in a process of its own.
pub struct Keeper(Child);

impl Keeper {
    /// Has it take all the descriptors that it may have, and waits until it has.
    pub fn fill(&mut self, scene: &Scene, meanwhile: impl FnOnce()) {
        self.fill_and_take(scene, 0, meanwhile);
    }

    /// The same, and one of its threads takes so many more as soon as others have come free for a moment.
    pub fn fill_and_take(&mut self, scene: &Scene, more: u32, meanwhile: impl FnOnce()) {
        let mark = scene.path("mark");
        let input = self.0.stdin.as_mut().expect("input");
        writeln!(input, "{more} {}", mark.display()).expect("a line");
        meanwhile();
        in_the_end("it is full", || {
            std::fs::read(&mark).is_ok_and(|mark| mark == b"full")
        });
    }

    /// One that keeps outsiders out.
    pub fn of(scene: &mut Scene) -> Self {
        Self::with(scene, Coherence::Strict)
    }

    pub fn with(scene: &mut Scene, coherence: Coherence) -> Self {
        Self::in_group(scene, coherence, Path::new("/dev/null"))
    }

    /// One that, before anything else, writes its number to a file: a cgroup's, perhaps.
    pub fn in_group(scene: &mut Scene, coherence: Coherence, processes: &Path) -> Self {
        let keeper = Self::begin(scene, coherence, processes);
        keeper.await_kept()
    }

    /// One whose guard is stood in for once it is stopped, or has died.
    pub fn relieved(scene: &mut Scene) -> Self {
        Self::relieved_in_group(scene, Path::new("/dev/null"))
    }

    /// See [`Keeper::in_group`].
    pub fn relieved_in_group(scene: &mut Scene, processes: &Path) -> Self {
        let mut command = Self::command(scene, Coherence::Strict, processes);
        let keeper = command.env(RELIEVED, "1").spawn().expect("a keeper");
        Keeper(keeper).await_kept()
    }

    fn await_kept(mut self) -> Self {
        crate::deaths::await_kept(&mut self.0);
        self
    }

    /// One that may not have come to keep anything yet.
    pub fn begin(scene: &mut Scene, coherence: Coherence, processes: &Path) -> Self {
        let mut command = Self::command(scene, coherence, processes);
        Keeper(command.spawn().expect("a keeper"))
    }

    fn command(scene: &mut Scene, coherence: Coherence, processes: &Path) -> Command {
        drop(scene.session.take());
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command
            .args([
                "--exact",
                "keepers::keeper",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(KEEPER, format!("{coherence:?} {}", scene.name))
            .env(PROCESSES, processes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Processes that stand in for it.
    pub fn reliefs(&self) -> Vec<i32> {
        let mine = format!("\0{}\0", self.0.id());
        let processes = std::fs::read_dir("/proc").expect("processes");
        let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_one = |number: &i32| {
            let command = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            command.contains("keepers::relief") && command.contains(&mine)
        };
        numbers.filter(is_one).collect()
    }

    /// Until somebody stands in for it, and most likely listens: on a machine with much else to do outsiders are let in sooner.
    pub fn await_relief(&self) {
        in_the_end("somebody stands in", || !self.reliefs().is_empty());
        std::thread::sleep(Duration::from_millis(300));
    }

    pub fn process(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no memory; a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Stops it; on return it is stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let begun = Instant::now();
        while !forebay::sys::liveness::is_stopped(self.0.id()) {
            assert!(begun.elapsed() < LONG, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it has no lock of the session's, and writes nothing, which tells something where it does not run.
    pub fn is_at_rest(&self, session: &Session) -> bool {
        let arena = &session.shared().arena;
        let superblock = arena.superblock();
        let locks = [&superblock.gate, &superblock.table_lock];
        let slots = (1..=arena.counts().threads).filter_map(|id| arena.thread(ThreadId(id)));
        let mut own = slots.filter(|slot| slot.pid.load(Ordering::Relaxed) == self.0.id());
        own.all(|slot| slot.flushing.load(Ordering::Acquire) == 0)
            && locks.iter().all(|lock| lock.load(Ordering::Acquire) == 0)
    }

    /// Stops it at such a moment: what is meant here is a keeper that does nothing.
    pub fn stop_at_rest(&self, session: &Session) {
        let begun = Instant::now();
        self.stop();
        while !self.is_at_rest(session) {
            assert!(begun.elapsed() < LONG, "it is never at rest");
            self.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(5));
            self.stop();
        }
    }

    /// Does something while the keeper is stopped. One that was stopped with a block in hand goes on after a while: then this fails,
    /// and does not wait for ever.
    pub fn while_stopped(&self, session: &Session, what: impl FnOnce()) {
        self.stop_at_rest(session);
        let (done, over) = std::sync::mpsc::channel::<()>();
        let late = std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let late = over.recv_timeout(Duration::from_secs(40)).is_err();
                if late {
                    self.signal(libc::SIGCONT);
                }
                late
            });
            what();
            let _ = done.send(());
            watch.join().expect("a watch")
        });
        assert!(!late, "it has waited for the keeper");
        self.signal(libc::SIGCONT);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of one.
#[test]
fn keeper() {
    let Ok(told) = std::env::var(KEEPER) else {
        return;
    };
    if let Some(processes) = std::env::var_os(PROCESSES) {
        std::fs::write(processes, std::process::id().to_string()).expect("a number");
    }
    let (coherence, name) = told.split_once(' ').expect("two words");
    let coherence = match coherence {
        "Strict" => Coherence::Strict,
        _ => Coherence::Notify,
    };
    if std::env::var_os(RELIEVED).is_some() {
        let own = ["test", "--exact", "keepers::relief", "--test-threads=1"];
        forebay::keeper::relief::is_run_by(&own);
    }
    let _session = Session::open(coherent(name, coherence)).expect("a session");
    println!("@kept");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    if let Some((more, path)) = line.trim().split_once(' ') {
        // From here on it has no descriptor left.
        let mut mark = std::fs::File::create(path).expect("a mark");
        let (mut least, mut most) = (0, 0);
        let nothing = || open(Path::new("/dev/null"), libc::O_RDONLY | libc::O_CLOEXEC);
        while let Ok(fd) = nothing() {
            (least, most) = (least.max(fd), most + 1);
            if most == 1 {
                set_limit(libc::RLIMIT_NOFILE, 1024.max(least as u64 + 100), 4096);
            }
        }
        let more: u32 = more.parse().expect("a number");
        std::thread::spawn(move || {
            for _ in 0..more {
                while nothing().is_err() {}
            }
        });
        mark.write_all(b"full").expect("a mark");
        let _ = std::io::stdin().read(&mut [0]);
    }
}

/// What stands in for its guard.
#[test]
fn relief() {
    if std::env::var_os(RELIEVED).is_none() {
        return;
    }
    let words: Vec<_> = std::env::args().rev().take(3).collect();
    let [keeper, listener] = [1, 2].map(|at| words[at].parse::<u32>().expect("a number"));
    let listener = forebay::sys::file::inherited_for_writing(listener).expect("a listener");
    forebay::session::relief::stand(listener, keeper, Path::new(&words[0])).expect("a relief");
}
