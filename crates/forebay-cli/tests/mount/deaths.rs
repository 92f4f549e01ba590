//! The mount's process is killed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_fuse::points::State;

use crate::scene::{Scene, wait_until};

const RECORD: usize = 4000;

fn record(number: u64) -> Vec<u8> {
    (0..RECORD)
        .map(|at| (number as usize * 31 + at / 3) as u8)
        .collect()
}

#[test]
fn a_killed_mount_loses_nothing_and_is_mended() {
    let Some(mut scene) = Scene::begin("killed", &[]) else {
        return;
    };
    fs::write(scene.point.join("closed"), "closed before").expect("written");
    let synced = File::create(scene.point.join("synced")).expect("made");
    synced.write_all_at(b"synced before", 0).expect("written");
    synced.sync_all().expect("synced");
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (written, path) = (Arc::clone(&written), scene.point.join("file"));
        std::thread::spawn(move || {
            let file = File::create(path).expect("made");
            // Until there is nobody any more who would acknowledge it.
            for number in 0.. {
                if file
                    .write_all_at(&record(number), number * RECORD as u64)
                    .is_err()
                {
                    return;
                }
                written.store(number + 1, Ordering::Release);
            }
        })
    };
    wait_until("it writes", || written.load(Ordering::Acquire) > 300);
    scene.process.take().expect("mounted").kill();
    writer.join().expect("it ends");
    drop(synced);
    assert_eq!(
        fs::read_to_string(scene.directory.join("closed")).expect("read"),
        "closed before"
    );
    assert_eq!(
        fs::read_to_string(scene.directory.join("synced")).expect("read"),
        "synced before"
    );
    // What is left says what it is, and goes.
    assert_eq!(scene.state(), State::Dead);
    let refused = scene
        .place
        .forebay(&["mount"])
        .arg(&scene.directory)
        .arg(&scene.point)
        .output();
    let refused = refused.expect("forebay runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said.contains("has died") && said.contains("forebay umount"),
        "{said}"
    );
    let mended = scene.run(&["umount"], &scene.point);
    assert_eq!(mended.code, 0, "{mended:?}");
    assert_eq!(scene.state(), State::Free);
    scene.mount(&[]);
    let file = File::open(scene.point.join("file")).expect("opened");
    for number in 0..written.load(Ordering::Acquire) {
        let mut bytes = vec![0; RECORD];
        file.read_exact_at(&mut bytes, number * RECORD as u64)
            .expect("read");
        assert!(bytes == record(number), "record {number}");
    }
    drop(file);
    scene.end();
}

#[test]
fn a_mount_goes_on_when_its_keeper_dies() {
    let Some(scene) = Scene::begin("keeper", &[]) else {
        return;
    };
    let keeper = || scene.place.stat()["members"]["keeper"].as_u64();
    let mut file = File::create(scene.point.join("file")).expect("made");
    file.write_all(b"before").expect("written");
    let first = keeper().expect("a keeper");
    let pid = rustix::process::Pid::from_raw(first as i32).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
    file.write_all(b", after").expect("written");
    wait_until("another keeper", || {
        keeper().is_some_and(|now| now != first)
    });
    drop(file);
    assert_eq!(
        fs::read_to_string(scene.directory.join("file")).expect("read"),
        "before, after"
    );
    scene.end();
}
