//! Files of a mounted store in a session, as programs under `forebay run` have them: their bytes are in the arena, and move between it and
//! the store past the kernel's cache.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::process::Command;

use forebay::sys::handle;
use forebay::{Config, Error, OpenOptions, Session};

use crate::place::is_managed;
use crate::scene::{Scene, wait_until};

/// A session of this process's own, and its keeper.
fn session(scene: &Scene) -> Session {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.session = format!("{}-past", scene.place.session);
    config.arena_dir = Some(scene.place.arenas.path().to_owned());
    config.memory = 64 << 20;
    Session::open(config).expect("a session")
}

fn open(session: &Session, path: &std::path::Path) -> forebay::File {
    let mut options = OpenOptions::new();
    let file = session.open_file(path, options.read(true).write(true).create(true));
    file.expect("a file")
}

#[test]
fn files_of_a_store_are_in_the_session() {
    let Some(mut scene) = Scene::begin_store("past", "64MiB", &[]) else {
        return;
    };
    let path = scene.point.join("file");
    let session = session(&scene);
    let ours = open(&session, &path);
    assert!(ours.kernel_reason().is_none(), "{:?}", ours.kernel_reason());
    for round in 0..2000u64 {
        ours.write_at(&[round as u8; 700], round * 1000)
            .expect("written");
    }
    ours.set_len(1_999_000).expect("cut");
    let mut seen = [1; 1000];
    assert_eq!(ours.read_at(&mut seen, 1_000_000).expect("read"), 1000);
    assert!(seen[..700] == [232; 700] && seen[700..] == [0; 300]);
    let stats = session.stats();
    assert!(stats.scrap_bytes >= 1_000_000, "{stats:?}");
    // A program that is not of the session finds everything there.
    let cat = Command::new("cat").arg(&path).output().expect("cat runs");
    let other = cat.stdout;
    assert_eq!(other.len(), 1_999_000);
    assert!((0..1999).all(|at| other[at * 1000..][..700] == [at as u8; 700]));
    ours.sync_all().expect("synced");
    ours.close().expect("closed");
    // What was synced is the store's, however its process ends.
    scene.process.take().expect("mounted").kill();
    drop(session);
    assert_eq!(scene.run(&["umount"], &scene.point).code, 0);
    scene.await_store();
    scene.mount(&[]);
    assert!(fs::read(&path).expect("read") == other);
    scene.end();
}

#[test]
fn numbers_that_are_given_again_are_other_files() {
    let Some(scene) = Scene::begin_store("numbers", "16MiB", &[]) else {
        return;
    };
    if !is_managed(&scene.point) {
        return;
    }
    let path = scene.point.join("file");
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        let file = File::create_new(&path).expect("made");
        assert!(seen.insert(handle::hash(file.as_fd()).expect("a handle")));
        fs::remove_file(&path).expect("removed");
        drop(file);
    }
    scene.end();
}

#[test]
fn a_full_store_is_an_error_of_the_write_that_asks_for_more() {
    let Some(scene) = Scene::begin_store("past-full", "16MiB", &[]) else {
        return;
    };
    let path = scene.point.join("file");
    let session = session(&scene);
    let ours = open(&session, &path);
    let bytes = [5; 100_000];
    let mut len = 0;
    let error = loop {
        match ours.write_at(&bytes, len) {
            Ok(n) => len += n as u64,
            Err(error) => break error,
        }
        assert!(len < 16 << 20, "more than there is");
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(len > 8 << 20, "{len}");
    ours.sync_all().expect("what was written has room");
    ours.close().expect("closed");
    assert!(fs::read(&path).expect("read") == vec![5; len as usize]);
    drop(session);
    scene.end();
}

#[test]
fn the_death_of_a_stores_mount_is_an_error_that_syncs_tell() {
    let Some(mut scene) = Scene::begin_store("past-dead", "32MiB", &[]) else {
        return;
    };
    let session = session(&scene);
    let ours = open(&session, &scene.point.join("file"));
    ours.write_at(&[1; 5000], 0).expect("written");
    ours.sync_all().expect("synced");
    ours.write_at(&[2; 5000], 0).expect("written");
    scene.process.take().expect("mounted").kill();
    let error = ours.sync_all().expect_err("nobody takes the bytes");
    assert!(matches!(error, Error::Device { .. }), "{error:?}");
    let _ = ours.close();
    drop(session);
    wait_until("the dead mount can be taken away", || {
        scene.run(&["umount"], &scene.point).code == 0
    });
    scene.await_store();
    scene.mount(&[]);
    let back = fs::read(scene.point.join("file")).expect("read");
    assert_eq!(back, [1; 5000]);
    scene.end();
}

#[test]
fn a_directory_of_a_store_that_is_mounted_is_no_store() {
    let Some(scene) = Scene::begin_store("past-through", "32MiB", &[]) else {
        return;
    };
    let mut other = Scene::unmounted("past-through-to");
    fs::remove_dir(&other.directory).expect("removed");
    other.directory = scene.point.join("below");
    fs::create_dir(&other.directory).expect("made");
    other.mount(&[]);
    let file = tempfile::tempfile_in(&other.point).expect("a file");
    let reason = forebay::device::RealFile::reopen(file.as_fd()).err();
    assert_eq!(reason, Some(forebay::device::KernelReason::Fuse));
    drop(file);
    other.end();
    scene.end();
}
