//! What the kernel could not write back of a file before the engine managed it, or beside it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::disks::{self, Hollow};
use crate::here;
use crate::scene::{Scene, said};
use crate::sys::*;

/// Bytes of the file that its device takes.
const GOOD: usize = 2 << 20;
const PIECE: usize = 4096;
/// More of them than what the kernel takes before, so that the file is managed in the end.
const PIECES: usize = 3000;

/// Writes by one description what the kernel cannot write back, and has another one hear of that. Then the first one's file is managed.
pub fn play(role: &str, argument: &str, _dir: &Path) -> bool {
    if role != "untold" {
        return false;
    }
    let open = || File::options().read(true).write(true).open(argument);
    let (own, other, reader) = (open(), open(), File::open(argument));
    let own = own.expect("open");
    disks::lose(&own, GOOD as u64);
    disks::hear_of_all(&other.expect("open"));
    for piece in 0..PIECES {
        let at = (piece * PIECE % GOOD) as i64;
        assert_eq!(pwrite(own.as_raw_fd(), &pattern(1, PIECE), at), Ok(PIECE));
    }
    own.sync_all().expect_err("who wrote it hears of it");
    own.sync_all().expect("once");
    let reader = reader.expect("open");
    reader.sync_data().expect_err("so does who had it open");
    reader.sync_data().expect("once");
    true
}

/// It may have told others, and tells no description that is opened later, as the engine's are.
#[test]
fn what_was_lost_before_a_file_was_managed_is_told_to_who_wrote_it() {
    let hollow = match Hollow::new(GOOD as u64) {
        Ok(hollow) => hollow,
        Err(why) => return here::skipped(&why),
    };
    let scene = Scene::new("untold", 1 << 20);
    let path = hollow.path();
    let mut role = scene.role("untold", path.to_str().expect("a path"));
    role.env("FOREBAY_LARGE_FILE_BYTES", "9MiB");
    said(role.output().expect("a program"));
    assert!(scene.bytes_to_memory() > 0, "it was never managed");
}
