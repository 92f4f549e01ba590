//! A call of the kernel's that takes longer than anybody waits for it, on a file that nobody manages.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::session::glance::Glance;
use forebay::session::standing::Place;

use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 100_000;
/// Generous: it only has to be less than for ever.
const LONG: Duration = Duration::from_secs(40);

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let file = dir.join("f");
    match role {
        // As a program does in whose name the kernel is at the file.
        "slow" => {
            let seen = std::fs::metadata(&file).expect("a file");
            let (glance, _) = Glance::at(Path::new(argument)).expect("a session");
            let glance: &'static Glance = Box::leak(Box::new(glance));
            let place = Place::default();
            let _call = glance.stand_by(&place, seen.dev(), seen.ino());
            std::fs::write(dir.join("begun"), "").expect("a mark");
            loop {
                std::thread::park();
            }
        }
        "appends" => {
            let fd = open(&file, libc::O_WRONLY | libc::O_APPEND).expect("open");
            let seed = argument.parse().expect("a number");
            assert_eq!(write(fd, &pattern(seed, LEN)), Ok(LEN));
            close(fd).expect("close");
        }
        _ => return false,
    }
    true
}

/// Where it ends nobody knows before it does: who managed the file meanwhile would write over what it writes. What the dead were at
/// is in nobody's way.
#[test]
fn a_file_is_the_kernels_for_as_long_as_a_call_on_it_takes() {
    let scene = Scene::new("slow", 0);
    std::fs::write(scene.path("f"), "").expect("a file");
    let session = scene.session.as_ref().expect("a session");
    let arena = session.place().expect("a place").path.expect("a file");
    let mut slow = scene.start("slow", arena.to_str().expect("a path"));
    let begun = Instant::now();
    while !scene.path("begun").exists() {
        assert!(begun.elapsed() < LONG, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    scene.play("appends", "1");
    scene.play("appends", "2");
    let by_kernel = scene.bytes_to_memory() == 0;
    slow.kill().expect("a kill");
    slow.wait().expect("an end");
    assert!(by_kernel, "the file is managed beside the call");
    scene.play("appends", "3");
    assert_eq!(scene.bytes_to_memory(), LEN as u64);
    let wanted = [1, 2, 3].map(|seed| pattern(seed, LEN)).concat();
    assert!(std::fs::read(scene.path("f")).expect("a file") == wanted);
}
