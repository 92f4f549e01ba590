//! Programs of the session that make system calls by an instruction of their own, past the library (`raw.c`), and others that have
//! the same files open.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use forebay::config::Coherence;

use crate::outsiders::{LONG, Member, is_managed, strict};
use crate::scene::Scene;
use crate::sys::c;

const LEN: usize = 300_000;

/// The program, and the one that says that it is Go's.
static PROGRAMS: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/raw.c");
    [("raw", "-UGO"), ("raw-go", "-DGO")].map(|(name, option)| {
        let beside = "-Wl,--enable-new-dtags,-rpath,$ORIGIN";
        compiled(name, &source, &[option, beside])
    })
});

fn compiled(name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let new = program.with_extension(std::process::id().to_string());
    let done = Command::new("cc")
        .args(["-O1", "-w", "-pthread"])
        .args(options)
        .arg("-o")
        .args([&new, source])
        .status();
    assert!(done.expect("cc runs").success(), "it does not compile");
    std::fs::rename(&new, &program).expect("renamed");
    program
}

fn raw(scene: &Scene) -> Member {
    Member::from(scene.command(&PROGRAMS[0]))
}

/// A program of the session has a file, and another of its programs comes to it past the library.
fn who_opens_it_afterwards(name: &str, how: &str) {
    let Some(scene) = strict(name) else { return };
    let (mut member, mut raw) = (Member::of(&scene), raw(&scene));
    for turn in 0..10 {
        let name = format!("f{turn}");
        member.does(&format!("open {name}"));
        member.does(&format!("write 1 {LEN}"));
        assert!(is_managed(&scene, &name));
        assert_eq!(raw.does(&format!("{how}raw open {name}")), "0");
        assert!(!is_managed(&scene, &name));
        assert_eq!(raw.does("raw end"), LEN.to_string());
        assert_eq!(raw.does("raw write outside"), "7");
        assert_eq!(member.does(&format!("read 7 {LEN}")), "outside");
        member.does("text inside");
        assert_eq!(raw.does(&format!("raw read 6 {}", LEN)), "inside");
        assert_eq!(raw.does("raw sync"), "0");
        member.does("close");
    }
    raw.ends();
    member.ends();
}

#[test]
fn who_opens_a_managed_file_past_the_library_has_what_it_holds() {
    who_opens_it_afterwards("raw-after", "");
}

#[test]
fn a_thread_that_opens_a_managed_file_past_the_library_has_what_it_holds() {
    who_opens_it_afterwards("raw-thread", "thread ");
}

#[test]
fn a_child_that_writes_past_the_library_writes_after_what_it_holds() {
    let Some(scene) = strict("raw-child") else {
        return;
    };
    let (mut member, mut raw) = (Member::of(&scene), raw(&scene));
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    assert_eq!(raw.does("child raw open a"), "0");
    assert!(!is_managed(&scene, "a"));
    raw.ends();
    member.ends();
}

/// A descriptor, or a mapping, that is older than the file's being managed shows in no event.
#[test]
fn a_file_that_somebody_has_opened_past_the_library_is_not_managed() {
    let Some(scene) = strict("raw-before") else {
        return;
    };
    let (mut member, mut raw) = (Member::of(&scene), raw(&scene));
    for (name, how) in [
        ("a", "raw open"),
        ("b", "thread raw open"),
        ("c", "raw map"),
    ] {
        assert_eq!(raw.does(&format!("{how} {name}")), "0");
        member.does(&format!("open {name}"));
        member.does(&format!("write 1 {LEN}"));
        assert!(!is_managed(&scene, name), "{how}");
        member.does("close");
    }
    // Its own process, by libc.
    assert_eq!(raw.does("raw open d"), "0");
    assert_eq!(raw.does("open d"), "0");
    assert_eq!(raw.does(&format!("fill {LEN}")), LEN.to_string());
    assert!(!is_managed(&scene, "d"));
    raw.ends();
    member.ends();
}

/// A library whose `answer` is 42.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("answer.c");
    let text = format!(
        "static const volatile int room[{}] = {{42}}; int answer(void) {{ return room[0]; }}",
        LEN / 4
    );
    std::fs::write(&source, text).expect("a source");
    compiled("answer.so", &source, &["-shared", "-fPIC", "-nostdlib"])
});

/// A program of the session has a library open that it has just written, and it or another one loads it by the loader, past the library.
fn loads_what_is_written(scene: &Scene) {
    let mut member = raw(scene);
    for (name, load, by_other) in [
        ("other.so", "load", true),
        ("own.so", "load", false),
        ("apart.so", "load-apart", false),
    ] {
        assert_eq!(member.does(&format!("open {name}")), "0");
        let written = member.does(&format!("copy {}", LIBRARY.display()));
        assert!(written.parse::<usize>().is_ok_and(|bytes| bytes > LEN));
        assert!(is_managed(scene, name));
        let load = format!("{load} ./{name}");
        if by_other {
            let mut other = raw(scene);
            assert_eq!(other.does(&load), "42");
            other.ends();
        } else {
            assert_eq!(member.does(&load), "42", "{name}");
        }
        assert!(!is_managed(scene, name));
    }
    // It is the program that has asked for it: there the loader looks.
    assert_eq!(member.does("load answer.so"), "42");
    member.ends();
}

#[test]
fn the_loader_has_what_a_program_of_the_session_has_written() {
    if let Some(scene) = strict("loader") {
        loads_what_is_written(&scene);
    }
}

#[test]
fn without_privilege_the_loader_has_what_it_is_asked_for_by_path() {
    for coherence in [Coherence::Notify, Coherence::Close] {
        let configure = |config: &mut forebay::Config| config.coherence = coherence;
        loads_what_is_written(&Scene::with("loader-by-path", 0, configure));
    }
}

/// Who goes by the library is no outsider, however the file is opened, before or after.
#[test]
fn who_opens_by_libc_keeps_a_file_managed() {
    let Some(scene) = strict("raw-libc") else {
        return;
    };
    let (mut member, mut raw) = (Member::of(&scene), raw(&scene));
    for (turn, how) in ["open", "thread open"].into_iter().enumerate() {
        let (before, after) = (format!("b{turn}"), format!("a{turn}"));
        assert_eq!(raw.does(&format!("{how} {before}")), "0");
        member.does(&format!("open {before}"));
        member.does(&format!("write 1 {LEN}"));
        assert!(is_managed(&scene, &before), "{how}");
        assert_eq!(raw.does("end"), LEN.to_string());
        member.does("close");
        member.does(&format!("open {after}"));
        member.does(&format!("write 1 {LEN}"));
        assert_eq!(raw.does(&format!("{how} {after}")), "0");
        assert_eq!(raw.does(&format!("stream {after}")), "0");
        assert!(is_managed(&scene, &after), "{how}");
        assert_eq!(raw.does("write more"), "4");
        member.does("close");
    }
    raw.ends();
    member.ends();
}

/// Go's programs read and write past libc what libraries in C have opened by it.
#[test]
fn a_program_of_gos_is_outside() {
    let Some(scene) = strict("raw-go") else {
        return;
    };
    let mut member = Member::of(&scene);
    let mut go = Member::from(scene.command(&PROGRAMS[1]));
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    assert_eq!(go.does("open a"), "0");
    assert_eq!(go.does("raw end"), LEN.to_string());
    assert_eq!(go.does("raw write outside"), "7");
    assert_eq!(member.does(&format!("read 7 {LEN}")), "outside");
    assert_eq!(go.does("open b"), "0");
    assert_eq!(go.does(&format!("fill {LEN}")), LEN.to_string());
    assert_eq!(go.does("raw read 3 0"), "xxx");
    member.does("close");
    go.ends();
    member.ends();
}

/// What was to be seen before: a guard that only hears lets nobody wait, and finds the descriptor afterwards.
#[test]
fn without_privilege_who_opens_past_the_library_is_found_afterwards() {
    let scene = Scene::with("raw-heard", 0, |config| {
        config.coherence = Coherence::Notify;
    });
    let (mut member, mut raw) = (Member::of(&scene), raw(&scene));
    member.does("open a");
    member.does(&format!("write 1 {LEN}"));
    assert_eq!(raw.does("raw open a"), "0");
    crate::outsiders::in_the_end("it is the kernel's", || !is_managed(&scene, "a"));
    assert_eq!(raw.does("raw end"), LEN.to_string());
    raw.ends();
    member.ends();
}

/// A guard that is killed or stopped just when it opens the file of an event, and waits for a lease there, has its opener refused by the
/// kernel. Here somebody else's guard, which refuses the first two, does for it.
#[test]
fn who_is_refused_for_the_guards_sake_tries_again() {
    let Some(scene) = strict("refused") else {
        return;
    };
    let mut member = Member::of(&scene);
    // From here on it knows of the guard.
    member.does("open own");
    member.does(&format!("write 1 {LEN}"));
    std::fs::write(scene.path("a"), "text").expect("a file");
    let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC;
    // SAFETY: takes no memory.
    let group = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) };
    let path = c(&scene.path("a"));
    // SAFETY: a string of ours.
    let marked = unsafe {
        libc::fanotify_mark(
            group,
            libc::FAN_MARK_ADD,
            libc::FAN_OPEN_PERM,
            libc::AT_FDCWD,
            path.as_ptr(),
        )
    };
    assert_eq!(marked, 0);
    member.begins("look a");
    for response in [libc::FAN_DENY, libc::FAN_DENY, libc::FAN_ALLOW] {
        // SAFETY: all zeros are one of these.
        let mut event: libc::fanotify_event_metadata = unsafe { std::mem::zeroed() };
        let len = size_of_val(&event);
        let mut source = libc::pollfd {
            fd: group,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: ours, and one.
        let comes = unsafe { libc::poll(&raw mut source, 1, LONG.as_millis() as i32) };
        assert_eq!(comes, 1, "it does not try again");
        // SAFETY: the target is ours, as long as said.
        let got = unsafe { libc::read(group, (&raw mut event).cast(), len) };
        assert_eq!(got, len as isize);
        let answer = libc::fanotify_response {
            fd: event.fd,
            response,
        };
        // SAFETY: made for us by the read; the answer is ours.
        unsafe {
            libc::close(event.fd);
            libc::write(group, (&raw const answer).cast(), size_of_val(&answer));
        }
    }
    // SAFETY: ours.
    unsafe { libc::close(group) };
    member.answers();
    assert_eq!(member.does("read 4 0"), "text");
    member.ends();
}
