//! `forebay evict`.

use rustix::process::Signal;

use crate::place::{Place, Run, is_managed};
use crate::writer;

const BYTES: usize = 1_000_000;

#[test]
fn clean_bytes_go_and_dirty_ones_stay() {
    let place = Place::new("evict");
    if !is_managed(place.files.path()) {
        return;
    }
    let mut daemon = place.daemon(&["--idle-after", "never"]);
    let (clean, dirty) = (place.file("clean"), place.file("dirty"));
    let synced = writer::start(&place, &clean, BYTES, true);
    let unsynced = writer::start(&place, &dirty, BYTES, false);
    let before = place.dirty_bytes();
    let run = place.run(&[
        "evict",
        "--json",
        clean.to_str().unwrap(),
        dirty.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    let json = run.json();
    let of = |file: usize| json["files"][file]["sessions"][0].clone();
    assert!(
        of(0)["freed_bytes"].as_u64() >= Some(BYTES as u64 / 2),
        "{json}"
    );
    assert_eq!(of(0)["dirty_bytes"], 0, "{json}");
    assert!(
        of(1)["dirty_bytes"].as_u64() >= Some(BYTES as u64),
        "{json}"
    );
    assert_eq!(json["summary"]["dirty_bytes"], of(1)["dirty_bytes"]);
    assert_eq!(place.dirty_bytes(), before, "nothing was flushed");
    let run = place.run(&["evict", dirty.to_str().unwrap()]);
    assert!(run.stdout.contains("stayed in memory"), "{run:?}");
    synced.kill();
    unsynced.kill();
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().0.success());
    for file in [clean, dirty] {
        assert!(std::fs::read(file).expect("the file") == writer::pattern(BYTES));
    }
}

#[test]
fn the_kernel_drops_its_pages() {
    let place = Place::new("kernel");
    let dir = place.file("tree/below");
    std::fs::create_dir_all(&dir).expect("directories");
    std::fs::write(place.file("tree/a"), vec![1; 300_000]).expect("written");
    std::fs::write(dir.join("b"), vec![2; 300_000]).expect("written");
    std::os::unix::fs::symlink("..", dir.join("up")).expect("a link");
    let tree = place.file("tree");
    let run = place.run(&["evict", "-r", "--json", tree.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
    let json = run.json();
    assert_eq!(
        (&json["summary"]["files"], &json["summary"]["failed"]),
        (&2.into(), &0.into()),
        "{json}"
    );
    for file in json["files"].as_array().expect("files") {
        let (before, after) = (&file["kernel_before_bytes"], &file["kernel_after_bytes"]);
        // Before Linux 6.5 nobody can tell.
        if let (Some(before), Some(after)) = (before.as_u64(), after.as_u64()) {
            assert!(before >= 300_000 && after <= before / 10, "{file}");
        }
    }
    assert_eq!(
        std::fs::read(dir.join("b")).expect("the file"),
        vec![2; 300_000]
    );
}

#[test]
fn what_cannot_be_evicted_is_said_and_the_rest_is_done() {
    let place = Place::new("cannot");
    std::fs::write(place.file("a"), "x").expect("written");
    let (a, dir, none) = (place.file("a"), place.files.path(), place.file("none"));
    let paths = [
        a.as_path(),
        dir,
        none.as_path(),
        std::path::Path::new("/dev/null"),
    ];
    let mut command = place.forebay(&["evict"]);
    let run = Run::of(command.args(paths).output().expect("forebay runs"));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("-r takes"), "{run:?}");
    assert!(
        run.stderr.contains("none") && run.stderr.contains("regular file"),
        "{run:?}"
    );
    assert!(run.stdout.contains("3 paths"), "{run:?}");
    let run = place.run(&["evict", "--session", "nobody", a.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{run:?}");
}
