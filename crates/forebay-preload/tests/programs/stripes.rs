//! Members and outsiders in the same files at once, each in stripes of its own, opening and closing all the time: what any of them
//! was told is written is there when it looks next, whoever has the pages around it in memory.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::config::Coherence;

use crate::here;
use crate::role;
use crate::scene::{Scene, said};
use crate::sys::*;

const FILES: usize = 3;
const PARTIES: usize = 4;
const STRIPES: usize = 48;
/// Longer for a soak: `TEST_STRIPES_SECONDS`.
const SECONDS: &str = "TEST_STRIPES_SECONDS";

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "stripes" {
        return false;
    }
    let words: Vec<_> = argument.split(' ').collect();
    let party: usize = words[0].parse().expect("a number");
    let len: usize = words[1].parse().expect("a number");
    let until = Instant::now() + Duration::from_secs_f64(words[2].parse().expect("a number"));
    let mut random = party as u64 * 0x9e37_79b9 + u64::from(std::process::id());
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    let mut written = [[0u8; STRIPES]; FILES];
    let mut rounds = 0u64;
    while Instant::now() < until {
        let file = next(FILES);
        let fd = open(&dir.join(format!("f{file}")), libc::O_RDWR).expect("open");
        for _ in 0..1 + next(6) {
            let stripe = next(STRIPES / PARTIES) * PARTIES + party;
            let at = (stripe * len) as i64;
            let seen = pread(fd, len, at).expect("read");
            let wanted = written[file][stripe];
            let wrong = seen.iter().position(|&byte| byte != wanted);
            assert!(
                seen.len() == len && wrong.is_none(),
                "party {party} round {rounds} file {file} stripe {stripe}: {wanted} was written, {:?} is there at {wrong:?} of {}",
                wrong.map(|at| seen[at]),
                seen.len()
            );
            if next(3) != 0 {
                let byte = wanted % 250 + 1;
                assert_eq!(pwrite(fd, &vec![byte; len], at), Ok(len));
                written[file][stripe] = byte;
            }
        }
        close(fd).expect("close");
        rounds += 1;
        if party % 2 == 1 {
            // Else no member would ever find a file that is nobody's.
            std::thread::sleep(Duration::from_micros(next(8000) as u64));
        }
    }
    println!("@{rounds}");
    true
}

#[test]
fn members_and_outsiders_write_stripes_of_the_same_files() {
    // No part of a page: most pages are several parties'.
    share_files("stripes", 3000);
}

fn share_files(name: &str, len: usize) {
    if let Err(why) = forebay::sys::fanotify::Group::new() {
        here::skipped(format!("no permission events: {why}"));
        return;
    }
    let scene = Scene::with(name, 0, |config| {
        config.coherence = Coherence::Strict;
    });
    for file in 0..FILES {
        std::fs::write(scene.path(&format!("f{file}")), vec![0; STRIPES * len]).expect("a file");
    }
    let seconds = std::env::var(SECONDS).unwrap_or_else(|_| "1.2".into());
    let parties: Vec<_> = (0..PARTIES)
        .map(|party| {
            let mut command = match party % 2 {
                0 => scene.role("stripes", &format!("{party} {len} {seconds}")),
                _ => outside(&scene, &format!("{party} {len} {seconds}")),
            };
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a program")
        })
        .collect();
    let ended: Vec<_> = parties
        .into_iter()
        .map(|party| party.wait_with_output().expect("an end"))
        .collect();
    for output in ended {
        let said = said(output);
        eprintln!(
            "{}",
            said.lines().find(|line| line.contains('@')).unwrap_or("")
        );
    }
    eprintln!("{} bytes to memory", scene.bytes_to_memory());
}

/// This program without the library, in the same role.
fn outside(scene: &Scene, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command
        .args(["--exact", "role::run", "--nocapture", "--test-threads=1"])
        .env(role::ROLE, "stripes")
        .env(role::ARGUMENT, argument)
        .env(role::DIR, scene.dir.path())
        .stdin(Stdio::null());
    command
}
