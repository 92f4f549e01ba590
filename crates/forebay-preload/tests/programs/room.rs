//! The limit on descriptors: what the engine opens for itself takes nothing of it.

use std::path::Path;

use crate::scene::Scene;
use crate::sys::*;

/// Few: the keeper, which is this process, has descriptors of the same files.
const LIMIT: libc::rlim_t = 48;
const LEN: usize = 20_000;

fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the target is ours.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(got, 0);
    limit
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "opens-all" {
        return false;
    }
    let low = libc::rlimit {
        rlim_cur: LIMIT,
        ..limit()
    };
    assert!(low.rlim_max > LIMIT);
    // SAFETY: a variable of ours.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low) };
    assert_eq!(set, 0);
    let path = |number: usize| dir.join(format!("{argument}{number}"));
    let mut files = Vec::new();
    let refused = loop {
        match open(&path(files.len()), libc::O_RDWR | libc::O_CREAT) {
            Ok(fd) => {
                assert_eq!(write(fd, &pattern(files.len() as u8, LEN)), Ok(LEN));
                files.push(fd);
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, libc::EMFILE);
    assert_eq!(limit().rlim_cur, LIMIT, "the limit is the program's again");
    // By name, which takes no descriptor.
    assert_eq!(truncate(&path(0), LEN as i64 - 5), Ok(()));
    for (number, &fd) in files.iter().enumerate() {
        let len = if number == 0 { LEN - 5 } else { LEN };
        let found = pread(fd, LEN, 0).expect("read");
        assert_eq!((number, found.len()), (number, len));
        assert!(found == pattern(number as u8, LEN)[..len]);
        close(fd).expect("close");
    }
    println!("@{}", files.len());
    true
}

#[test]
fn a_program_opens_as_many_files_as_without_the_library() {
    let scene = Scene::new("room", 0);
    let opens = |said: String| {
        said.split_once('@')
            .map(|(_, count)| count.trim().to_owned())
    };
    let mut plain = scene.role("opens-all", "plain");
    plain.env_remove("LD_PRELOAD");
    let plain = crate::scene::said(plain.output().expect("a program"));
    let managed = scene.play("opens-all", "managed");
    let first = |text: &str| text.lines().next().map(str::to_owned);
    let (plain, managed) = (opens(plain), opens(managed));
    let files = managed.as_deref().and_then(first).expect("a number");
    assert_eq!(plain.as_deref().and_then(first), Some(files.clone()));
    let files: u64 = files.parse().expect("a number");
    // Where the program has left no number at all the engine can open nothing.
    let managed = scene.bytes_to_memory() / LEN as u64;
    assert!(
        managed >= files - 4,
        "{managed} of {files}: {}",
        scene.bytes_to_memory()
    );
}
