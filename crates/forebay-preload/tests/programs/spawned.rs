//! Programs that `posix_spawn` starts on a file that it opens for them.

use std::ffi::CString;
use std::path::Path;

use forebay::config::Coherence;

use crate::scene::{Scene, said};
use crate::sys::*;

const ROUNDS: usize = 20;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "execute-ignoring" => execute_ignoring(dir, argument),
        "ignores" => {
            for fault in FAULTS {
                // SAFETY: takes no memory.
                assert_eq!(unsafe { libc::kill(libc::getpid(), fault) }, 0);
            }
            println!("@lives");
        }
        "spawn-log" => spawn_log(dir),
        "spawn-early" => spawn_early(dir),
        "spawn-number" => spawn_by_number(dir),
        "spawn-elsewhere" => spawn_elsewhere(dir),
        "execute" => execute(dir),
        "execute-from-a-thread" => execute_from_a_thread(dir),
        _ => return false,
    }
    true
}

fn add_log(actions: &mut libc::posix_spawn_file_actions_t, path: &CString) {
    let flags = libc::O_WRONLY | libc::O_APPEND;
    // SAFETY: a list of ours, and a string that ends.
    let added =
        unsafe { libc::posix_spawn_file_actions_addopen(actions, 1, path.as_ptr(), flags, 0) };
    assert_eq!(added, 0);
}

/// Starts `echo`, without the library, with its output at the end of a file; waits for it.
fn echo(path: &CString) {
    // SAFETY: a list of ours, from its beginning to its end.
    unsafe {
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        add_log(&mut actions, path);
        echo_by(&actions);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
}

/// What the programs are started with that shall not have the library.
fn without_library() -> Vec<CString> {
    let environment = std::env::vars_os().filter(|(name, _)| name != "LD_PRELOAD");
    environment
        .filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            CString::new(format!("{name}={value}")).ok()
        })
        .collect()
}

fn echo_by(actions: &libc::posix_spawn_file_actions_t) {
    let environment = without_library();
    let mut pointers: Vec<_> = environment
        .iter()
        .map(|one| one.as_ptr().cast_mut())
        .collect();
    pointers.push(std::ptr::null_mut());
    let words = [
        c"/bin/echo".as_ptr().cast_mut(),
        c"a line".as_ptr().cast_mut(),
        std::ptr::null_mut(),
    ];
    // SAFETY: actions of ours, strings that end, and lists of them that end with null.
    unsafe {
        let mut pid = 0;
        let spawned = libc::posix_spawn(
            &raw mut pid,
            words[0],
            actions,
            std::ptr::null(),
            words.as_ptr(),
            pointers.as_ptr(),
        );
        assert_eq!(spawned, 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert_eq!(status, 0);
    }
}

/// A log that the program appends to, and its children in between.
fn spawn_log(dir: &Path) {
    let path = dir.join("log");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let log = open(&path, flags).expect("open");
    write(log, &[b'.'; 300_000]).expect("write");
    let mut wanted = vec![b'.'; 300_000];
    for _ in 0..ROUNDS {
        echo(&c(&path));
        write(log, b"and ours\n").expect("write");
        wanted.extend_from_slice(b"a line\nand ours\n");
    }
    assert_eq!(size_of(log), wanted.len() as i64);
    let found = pread(log, wanted.len(), 0).expect("read");
    assert_eq!(
        String::from_utf8_lossy(&found[300_000..]),
        String::from_utf8_lossy(&wanted[300_000..])
    );
    assert_eq!(found, wanted);
    close(log).expect("close");
}

#[test]
fn a_file_that_posix_spawn_opens_is_the_kernels() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("spawn", small);
        scene.play("spawn-log", "");
        assert!(scene.bytes_to_memory() > 0);
    }
}

/// As [`spawn_log`], with a list that is older than the log, and used again for a second one of the same name.
fn spawn_early(dir: &Path) {
    let path = dir.join("log");
    // SAFETY: a list of ours, from its beginning to its end.
    unsafe {
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        add_log(&mut actions, &c(&path));
        for _ in 0..2 {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
            let log = open(&path, flags).expect("open");
            write(log, &[b'.'; 300_000]).expect("write");
            for _ in 0..3 {
                echo_by(&actions);
                write(log, b"and ours\n").expect("write");
            }
            let found = pread(log, 400_000, 300_000).expect("read");
            assert_eq!(
                String::from_utf8_lossy(&found),
                "a line\nand ours\n".repeat(3)
            );
            close(log).expect("close");
            std::fs::remove_file(&path).expect("removed");
        }
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
}

/// A log that a child by the list and this process write to in turn.
fn write_beside_a_child(log: i32, actions: &libc::posix_spawn_file_actions_t) {
    write(log, &[b'.'; 300_000]).expect("write");
    echo_by(actions);
    write(log, b"and ours\n").expect("write");
    let found = pread(log, 400_000, 300_000).expect("read");
    assert_eq!(String::from_utf8_lossy(&found), "a line\nand ours\n");
}

/// As [`spawn_early`], where the list names the number that the log will have.
fn spawn_by_number(dir: &Path) {
    const NUMBER: i32 = 77;
    // SAFETY: a list of ours, from its beginning to its end.
    unsafe {
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        let added = libc::posix_spawn_file_actions_adddup2(&raw mut actions, NUMBER, 1);
        assert_eq!(added, 0);
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        let log = open(&dir.join("log"), flags).expect("open");
        assert_eq!(libc::dup3(log, NUMBER, libc::O_CLOEXEC), NUMBER);
        write_beside_a_child(log, &actions);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
}

/// The child changes its directory, twice, before it opens the log.
fn spawn_elsewhere(dir: &Path) {
    std::fs::create_dir_all(dir.join("one/two")).expect("directories");
    // SAFETY: lists of ours, from their beginning to their end, and strings.
    unsafe {
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        for name in [c"one", c"two"] {
            let added = libc::posix_spawn_file_actions_addchdir_np(&raw mut actions, name.as_ptr());
            assert_eq!(added, 0);
        }
        add_log(&mut actions, &c"log".to_owned());
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
        let log = open(&dir.join("one/two/log"), flags).expect("open");
        write_beside_a_child(log, &actions);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
}

/// Writes, and executes a program that has not the library and reads the file at once.
fn execute(dir: &Path) {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
    let file = open(&dir.join("file"), flags).expect("open");
    for _ in 0..300 {
        write(file, &[b'E'; 4096]).expect("write");
    }
    let reader = c(&dir.join("reader"));
    let path = c(&dir.join("file"));
    let words = [reader.as_ptr(), path.as_ptr(), std::ptr::null()];
    // SAFETY: strings that end, and a list that ends with null.
    unsafe { libc::execv(words[0], words.as_ptr()) };
    panic!("not executed");
}

/// A second thread executes a program; both have used the file.
fn execute_from_a_thread(dir: &Path) {
    let file = open(&dir.join("file"), libc::O_RDWR | libc::O_CREAT).expect("open");
    write(file, &[b'E'; 4096]).expect("write");
    let second = std::thread::spawn(move || {
        write(file, &[b'F'; 4096]).expect("write");
        let words = [c"/bin/true".as_ptr(), std::ptr::null()];
        // SAFETY: strings that end, and a list that ends with null.
        unsafe { libc::execv(words[0], words.as_ptr()) };
    });
    second.join().expect("a thread");
    panic!("not executed");
}

const FAULTS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// Functions that execute a program, and put things back if they cannot.
const WAYS: [&str; 5] = ["execv", "execve", "execvp", "execvpe", "fexecve"];

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// Executes a program by one of these functions.
fn execute_by(way: &str, program: &CString, words: &[*const libc::c_char]) {
    let (path, words) = (program.as_ptr(), words.as_ptr());
    // SAFETY: strings that end, and lists of them that end with null.
    let failed = unsafe {
        match way {
            "execv" => libc::execv(path, words),
            "execve" => libc::execve(path, words, environ),
            "execvp" => libc::execvp(path, words),
            "execvpe" => libc::execvpe(path, words, environ),
            _ => {
                let fd = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
                libc::fexecve(fd, words, environ)
            }
        }
    };
    assert_eq!(failed, -1);
}

/// Ignores faults, as far as they are sent, and executes this program, which gets some.
fn execute_ignoring(dir: &Path, way: &str) {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
    let file = open(&dir.join("file"), flags).expect("open");
    write(file, &[b'E'; 100_000]).expect("write");
    for fault in FAULTS {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(fault, libc::SIG_IGN) };
    }
    let words = [
        "role",
        "--exact",
        "role::run",
        "--nocapture",
        "--test-threads=1",
    ];
    let words = words.map(|word| CString::new(word).expect("a word"));
    let mut words: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    words.push(std::ptr::null());
    // What is not there is not executed, and the library's copies go on to meet what is no memory.
    execute_by(way, &c(&dir.join("none")), &words);
    // SAFETY: the kernel's or the library's to refuse.
    let wrote = unsafe { libc::write(file, std::ptr::without_provenance(4096), 100) };
    let error = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((wrote, error), (-1, Some(libc::EFAULT)));
    let role = CString::new(crate::role::ROLE).expect("a name");
    // SAFETY: no other thread of this program looks at its environment.
    unsafe { libc::setenv(role.as_ptr(), c"ignores".as_ptr(), 1) };
    let own = std::env::current_exe().expect("a path");
    execute_by(way, &c(&own), &words);
    panic!("not executed");
}

#[test]
fn a_fault_that_is_ignored_is_ignored_in_a_program_that_is_executed() {
    for way in WAYS {
        let scene = Scene::new("execute-ignoring", 0);
        let said = scene.play("execute-ignoring", way);
        assert!(said.contains("@lives"), "by {way}: {said}");
        assert!(scene.bytes_to_memory() > 0);
    }
}

/// A program without libraries that counts how many bytes of a file are an `E`.
const READER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    static char bytes[4096];
    long got, found = 0;
    int fd = open(words[1], O_RDONLY);
    while ((got = read(fd, bytes, sizeof bytes)) > 0)
        for (long i = 0; i < got; i++) found += bytes[i] == 'E';
    printf("%ld found\n", found);
    return 0;
}
"#;

#[test]
fn a_list_of_actions_may_be_older_than_its_file() {
    let scene = Scene::new("spawn-early", 0);
    scene.play("spawn-early", "");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn a_list_of_actions_may_name_a_number_that_comes_later() {
    let scene = Scene::new("spawn-number", 0);
    scene.play("spawn-number", "");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn a_list_of_actions_may_change_the_directory() {
    let scene = Scene::new("spawn-elsewhere", 0);
    scene.play("spawn-elsewhere", "");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn to_execute_a_program_closes_what_it_does_not_inherit() {
    let close = |config: &mut forebay::Config| config.coherence = Coherence::Close;
    let scene = Scene::with("execute", 0, close);
    std::fs::write(scene.path("reader.c"), READER).expect("a source");
    let mut compiler = std::process::Command::new("cc");
    let arguments = ["-O1", "-static", "-o", "reader", "reader.c"];
    let compiled = compiler.args(arguments).current_dir(scene.dir.path());
    said(compiled.output().expect("a C compiler"));
    for _ in 0..5 {
        let told = scene.play("execute", "");
        assert!(told.contains("1228800 found"), "{told}");
        std::fs::remove_file(scene.path("file")).expect("removed");
    }
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn a_process_whose_second_thread_executes_a_program_is_no_member_for_ever() {
    let scene = Scene::new("execute-thread", 0);
    let place = scene.session.as_ref().expect("a session").place();
    let arena = place.expect("a place").path.expect("an arena");
    let mut program = scene.start("execute-from-a-thread", "");
    assert!(program.wait().expect("an end").success());
    let is_member = || {
        let seen = forebay::session::look::look(&arena).expect("an arena");
        let members = seen.expect("a session").members().processes;
        members.contains(&program.id())
    };
    let begun = std::time::Instant::now();
    while is_member() {
        assert!(begun.elapsed().as_secs() < 60, "its slot is not free");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(scene.bytes_to_memory() > 0);
}
