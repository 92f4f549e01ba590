//! What a process pays for the library's being loaded into it, in pages that it touches: counts, which other work on the machine does not move.

#[path = "library/mod.rs"]
mod library;

use std::process::{Command, Stdio};

/// Page faults of `/bin/true` without a file in a session that is not there, the least of several starts.
// `wait4` waits for the child, and says what it has used.
#[allow(clippy::zombie_processes)]
fn faults(library: Option<&str>) -> i64 {
    let start = || {
        let mut command = Command::new("/bin/true");
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(library) = library {
            command
                .env("LD_PRELOAD", library)
                .env("FOREBAY_SESSION", "nobody");
        }
        let child = command.spawn().expect("started");
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        let mut status = 0;
        // SAFETY: waits for a child of ours, which nobody else waits for; both targets are ours.
        let usage = unsafe {
            libc::wait4(child.id() as i32, &raw mut status, 0, usage.as_mut_ptr());
            usage.assume_init()
        };
        assert_eq!(status, 0);
        usage.ru_minflt
    };
    (0..20).map(|_| start()).min().expect("starts")
}

/// The optimised library has 21 more than the plain program; 35 before what every start touches lay side by side (`start.ld`). One with
/// debug assertions looks for all functions at once, and has 95.
#[test]
fn a_start_touches_few_pages() {
    let library = library::built();
    let library = library.to_str().expect("a path that is text");
    let (plain, with) = (faults(None), faults(Some(library)));
    let more = with - plain;
    eprintln!("{plain} page faults without the library, {more} more with it");
    let most = if cfg!(debug_assertions) { 105 } else { 25 };
    assert!(more <= most, "{more} page faults more than {plain}");
}
