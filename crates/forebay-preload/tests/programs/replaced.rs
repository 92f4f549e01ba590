//! The session ends while a process that has only looked at it lives on, and another one of its name begins.

use std::path::Path;

use crate::scene::{Scene, Teller, tell};
use crate::sys::*;

const LEN: usize = 10_000;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "replaced-looks" => looks(&dir.join("a"), &dir.join("b")),
        "replaced-writes" => writes(&dir.join("b")),
        _ => return false,
    }
    true
}

/// Has a file open that nobody manages. Later manages it, which brings the process into the session, and uses a file that others have.
fn looks(a: &Path, b: &Path) {
    let fd = open(a, libc::O_RDWR).expect("open");
    assert_eq!(pread(fd, 10, 0), Ok(vec![b'a'; 10]));
    tell(format_args!("looks"));
    assert_eq!(pwrite(fd, b"mine", 0), Ok(4));
    let other = open(b, libc::O_RDWR).expect("open");
    assert!(
        pread(other, LEN, 0) == Ok(pattern(2, LEN)),
        "what nobody has any more"
    );
    assert_eq!(pwrite(other, b"mine", 0), Ok(4));
    close(other).expect("close");
    close(fd).expect("close");
}

/// Writes a file, and keeps it open while the other process uses it.
fn writes(path: &Path) {
    let fd = open(path, libc::O_RDWR).expect("open");
    assert_eq!(pwrite(fd, &pattern(2, LEN), 0), Ok(LEN));
    tell(format_args!("written"));
    assert_eq!(pread(fd, 4, 0), Ok(b"mine".to_vec()));
    close(fd).expect("close");
}

#[test]
fn who_has_only_looked_at_a_session_hears_of_the_next() {
    let mut scene = Scene::new("replaced", 0);
    for name in ["a", "b"] {
        std::fs::write(scene.path(name), vec![b'a'; LEN]).expect("a file");
    }
    let mut looks = Teller::start(scene.role("replaced-looks", ""));
    looks.next(|_| Some(())).expect("it looks");
    scene.renew();
    let mut writes = Teller::start(scene.role("replaced-writes", ""));
    writes.next(|_| Some(())).expect("it writes");
    looks.go_on();
    assert!(looks.program.wait().expect("it ends").success());
    writes.go_on();
    assert!(writes.program.wait().expect("it ends").success());
    let bytes = std::fs::read(scene.path("b")).expect("a file");
    assert!(bytes.starts_with(b"mine"));
}
