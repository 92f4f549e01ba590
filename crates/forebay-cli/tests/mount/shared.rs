//! One file, by the mount and by programs of its session.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use forebay::{Config, OpenOptions, Session};

use crate::place::is_managed;
use crate::scene::Scene;

/// This process in the mount's session, as a program under `forebay run` is.
fn member(scene: &Scene) -> Session {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.session = scene.place.session.clone();
    config.arena_dir = Some(scene.place.arenas.path().to_owned());
    Session::join(config).expect("the session")
}

fn open(session: &Session, path: &std::path::Path) -> forebay::File {
    let mut options = OpenOptions::new();
    let file = session.open_file(path, options.read(true).write(true).create(true));
    file.expect("a file")
}

#[test]
fn bytes_are_the_same_at_once() {
    let Some(scene) = Scene::begin("same", &["--believe", "0"]) else {
        return;
    };
    if !is_managed(&scene.directory) {
        return;
    }
    let session = member(&scene);
    let (path, there) = scene.both("file");
    let ours = open(&session, &there);
    let by_mount = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opened");
    for round in 0..200u64 {
        let (bytes, other) = ([round as u8; 700], [!(round as u8); 300]);
        ours.write_at(&bytes, round * 1000).expect("written");
        let mut seen = [0; 700];
        by_mount
            .read_exact_at(&mut seen, round * 1000)
            .expect("read");
        assert_eq!(seen, bytes, "round {round}");
        assert_eq!(
            by_mount.metadata().expect("known").len(),
            round * 1000 + 700
        );
        by_mount
            .write_all_at(&other, round * 1000 + 700)
            .expect("written");
        let mut seen = [0; 300];
        assert_eq!(
            ours.read_at(&mut seen, round * 1000 + 700).expect("read"),
            300
        );
        assert_eq!(seen, other, "round {round}");
        assert_eq!(ours.len().expect("known"), (round + 1) * 1000);
    }
    ours.set_len(10).expect("set");
    assert_eq!(fs::metadata(&path).expect("known").len(), 10);
    assert_eq!(by_mount.read_at(&mut [0; 20], 0).expect("read"), 10);
    assert!(ours.kernel_reason().is_none(), "{:?}", ours.kernel_reason());
    ours.close().expect("closed");
    drop(by_mount);
    drop(session);
    scene.end();
}

#[test]
fn appends_by_both_are_whole() {
    let Some(scene) = Scene::begin("both", &[]) else {
        return;
    };
    let session = member(&scene);
    let (path, there) = scene.both("log");
    fs::write(&path, "").expect("made");
    let ours = open(&session, &there);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let mut by_mount = File::options().append(true).open(&path).expect("opened");
            for number in 0..300 {
                by_mount
                    .write_all(format!("mount {number:05}\n").as_bytes())
                    .expect("written");
            }
        });
        for number in 0..300 {
            ours.append(format!("other {number:05}\n").as_bytes())
                .expect("written");
        }
    });
    let text = fs::read_to_string(&path).expect("read");
    for who in ["mount", "other"] {
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(who)).collect();
        let wanted: Vec<_> = (0..300)
            .map(|number| format!("{who} {number:05}"))
            .collect();
        assert_eq!(lines, wanted);
    }
    ours.close().expect("closed");
    drop(session);
    scene.end();
}

#[test]
fn what_is_closed_is_the_directorys() {
    let Some(scene) = Scene::begin("outside", &[]) else {
        return;
    };
    let (path, there) = scene.both("file");
    for round in 1..30usize {
        fs::write(&path, vec![round as u8; round * 3000]).expect("written");
        assert!(
            fs::read(&there).expect("read") == vec![round as u8; round * 3000],
            "round {round}"
        );
        // And the other way round, where nobody has the file open.
        let (path, there) = scene.both(&format!("file {round}"));
        fs::write(&there, vec![!(round as u8); round * 2000]).expect("written");
        assert!(
            fs::read(&path).expect("read") == vec![!(round as u8); round * 2000],
            "round {round}"
        );
    }
    scene.end();
}
