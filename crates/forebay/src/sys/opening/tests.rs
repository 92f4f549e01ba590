//! Whether openings of the engine's are told from others, and whether all of them are made in one place.

use super::*;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::channel;

/// A pipe's end that nobody comes to holds up the opener of the other, as the guard does.
#[cfg_attr(miri, ignore)]
#[test]
fn the_engines_openings_are_told_from_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pipe");
    let name = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
    make_pipe(&name);
    for by_the_engine in [true, false, true] {
        let (tell, told) = channel();
        let (path, name) = (path.clone(), name.clone());
        let opener = std::thread::spawn(move || {
            let link = fs::read_link("/proc/thread-self").expect("a link");
            // What the engine has left in the registers says nothing of a later call.
            open(c"/dev/null", libc::O_RDONLY, 0).expect("opened");
            tell.send(link).expect("heard");
            match by_the_engine {
                true => drop(open(&name, libc::O_RDONLY, 0).expect("opened")),
                false => drop(fs::File::open(&path).expect("opened")),
            }
        });
        let link = told.recv().expect("told");
        let line = loop {
            let line = fs::read_to_string(Path::new("/proc").join(&link).join("syscall"));
            let line = line.expect("a line");
            if line.split(' ').next() == Some(&libc::SYS_openat.to_string()) {
                break line;
            }
            std::thread::yield_now();
        };
        assert_eq!(says_so(&line), by_the_engine, "{line}");
        let other = fs::OpenOptions::new()
            .write(true)
            .open(dir.path().join("pipe"));
        drop(other.expect("opened"));
        opener.join().expect("its end");
    }
}

fn make_pipe(name: &CStr) {
    // SAFETY: a C string, initialised, alive and unshared during the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

#[test]
fn what_is_left_in_registers_names_another_place() {
    let line = |mark: u64, place: u64| {
        format!("257 0xffffff9c 0x1 0x0 0x0 {mark:#x} {place:#x} 0x7ffc 0x7fa9f3189011\n")
    };
    assert!(says_so(&line(MARK, 0x7fa9_f318_9011)));
    assert!(!says_so(&line(MARK, 0x7fa9_f318_9012)));
    assert!(!says_so(&line(MARK + 1, 0x7fa9_f318_9011)));
    assert!(!says_so("-1 0x7ffc 0x7fa9") && !says_so("running\n") && !says_so(""));
}

#[cfg_attr(miri, ignore)]
#[test]
fn errors_are_the_kernels() {
    let missing = open(c"/proc/self/nothing", libc::O_RDONLY, 0).expect_err("nothing there");
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
}

/// What the engine opens in another way, by the module, and how often: arenas, claims, directories, devices, and the kernel's own files.
const OTHERS: [(&str, usize); 16] = [
    ("config/resolve", 1),
    ("keeper/outsiders/freezers", 1),
    ("keeper/outsiders/library", 1),
    ("keeper/outsiders/members", 1),
    ("keeper/outsiders/who", 1),
    ("keeper/recover/aside", 1),
    ("member/claims", 2),
    ("memory/place/dir", 1),
    ("memory/place/ladder", 1),
    ("session/glance", 1),
    ("session/look", 1),
    ("session/opening", 1),
    ("sys/fanotify", 3),
    ("sys/inherited", 1),
    ("sys/liveness", 1),
    ("sys/stand_in", 2),
];

/// Without its tests, no module opens anything by itself but what is listed.
#[cfg_attr(miri, ignore)]
#[test]
fn all_that_may_be_managed_is_opened_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory");
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let module = module_of(&root, &path);
        let of_tests = module.starts_with("sim") || module.split('/').any(|part| part == "tests");
        if of_tests || module == "sys/opening" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let text = text.split("mod tests {").next().unwrap_or_default();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let count: usize = code.map(openings_in).sum();
        if count != 0 {
            found.push((module, count));
        }
    }
    found.sort();
    let listed = OTHERS.map(|(module, count)| (module.to_owned(), count));
    assert_eq!(found, listed, "openings past `sys::opening`");
}

fn module_of(root: &Path, path: &Path) -> String {
    let module = path
        .strip_prefix(root)
        .expect("below it")
        .with_extension("");
    module.to_string_lossy().into_owned()
}

fn openings_in(line: &str) -> usize {
    const WAYS: [&str; 7] = [
        "File::open(",
        "OpenOptions::new()",
        "File::create",
        "libc::open",
        "SYS_open",
        "fs::read(",
        "fs::copy(",
    ];
    WAYS.iter().map(|way| line.matches(way).count()).sum()
}
