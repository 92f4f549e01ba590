//! How mounts begin and end.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::sys::liveness::is_stopped;
use forebay_fuse::points::State;
use rustix::process::Signal;

use crate::place::Run;
use crate::scene::{Scene, wait_until};

#[test]
fn signals_end_it_with_everything_written() {
    for signal in [Signal::TERM, Signal::INT] {
        let Some(mut scene) = Scene::begin("signal", &[]) else {
            return;
        };
        fs::write(scene.point.join("file"), vec![5; 100_000]).expect("written");
        scene.process.as_mut().expect("mounted").signal(signal);
        scene.await_end(0);
        assert_eq!(scene.state(), State::Free);
        assert_eq!(
            fs::read(scene.directory.join("file")).expect("read"),
            vec![5; 100_000]
        );
        scene.await_daemon();
    }
}

#[test]
fn a_mount_in_use_stays_or_ends_with_its_last_file() {
    let Some(mut scene) = Scene::begin("busy", &[]) else {
        return;
    };
    let mut file = File::create(scene.point.join("file")).expect("made");
    file.write_all(b"before").expect("written");
    let run = scene.run(&["umount"], &scene.point);
    assert!(run.code == 1 && run.stderr.contains("in use"), "{run:?}");
    assert_eq!(scene.state(), State::Alive);
    let run = scene.run(&["umount", "--lazy"], &scene.point);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(scene.state(), State::Free);
    file.write_all(b", after").expect("written");
    drop(file);
    scene.await_end(0);
    assert_eq!(
        fs::read_to_string(scene.directory.join("file")).expect("read"),
        "before, after"
    );
    scene.await_daemon();
}

#[test]
fn a_mount_whose_process_is_stopped_can_be_ended() {
    for mut scene in Scene::each("stopped", &[]) {
        let process = scene.process.as_mut().expect("mounted");
        process.signal(Signal::STOP);
        let id = process.id();
        wait_until("it is stopped", || is_stopped(id));
        let mut command = scene.place.forebay(&["umount", "--lazy"]);
        let mut umount = command.arg(&scene.point).spawn().expect("forebay runs");
        let begun = Instant::now();
        let ended = loop {
            let ended = umount.try_wait().expect("a child");
            if ended.is_some() || begun.elapsed() > Duration::from_secs(10) {
                break ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // First: whoever looks at the mount waits for its process.
        scene
            .process
            .as_mut()
            .expect("mounted")
            .signal(Signal::CONT);
        let last = umount.wait();
        assert!(ended.is_some_and(|status| status.success()), "{last:?}");
        scene.await_end(0);
        assert_eq!(scene.state(), State::Free);
    }
}

#[test]
fn what_is_unmounted_can_be_used_at_once() {
    let Some(mut scene) = Scene::begin_store("at-once", "96MiB", &[]) else {
        return;
    };
    for round in 0..5 {
        fs::write(scene.point.join("file"), vec![round; 30_000_000]).expect("written");
        scene.umount();
        scene.check_store();
        scene.await_end(0);
        scene.mount(&[]);
    }
    scene.end();
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let Some(mut scene) = Scene::begin("second", &[]) else {
        return;
    };
    let mut file = File::create(scene.point.join("file")).expect("made");
    file.write_all(b"acknowledged").expect("written");
    scene
        .process
        .as_mut()
        .expect("mounted")
        .signal(Signal::TERM);
    wait_until("nobody finds it", || scene.state() == State::Free);
    file.write_all(b", and this").expect("written");
    scene
        .process
        .as_mut()
        .expect("mounted")
        .signal(Signal::TERM);
    let said = scene.await_end(1);
    assert!(
        said.contains("in use") && said.contains("ended with 1 file open"),
        "{said}"
    );
    assert!(file.write_all(b"nobody hears").is_err());
    assert_eq!(
        fs::read_to_string(scene.directory.join("file")).expect("read"),
        "acknowledged, and this"
    );
    scene.await_daemon();
}

#[test]
fn in_the_background_it_is_there_when_the_command_ends() {
    let Some(scene) = Scene::begin("first", &[]) else {
        return;
    };
    scene.end();
    let scene = Scene::unmounted("background");
    let mount = |point: &Path| {
        let mut command = scene
            .place
            .forebay(&["mount", "--daemon", "--linger", "0.3"]);
        Run::of(
            command
                .arg(&scene.directory)
                .arg(point)
                .output()
                .expect("forebay runs"),
        )
    };
    let run = mount(&scene.point);
    assert_eq!(run.code, 0, "{run:?}");
    fs::write(scene.point.join("file"), "bytes").expect("written");
    assert_eq!(
        fs::read_to_string(scene.directory.join("file")).expect("read"),
        "bytes"
    );
    let again = mount(&scene.point);
    assert!(
        again.code == 1 && again.stderr.contains("already"),
        "{again:?}"
    );
    let within = mount(&scene.directory);
    assert!(
        within.code == 1 && within.stderr.contains("one in the other"),
        "{within:?}"
    );
    let nowhere = mount(&scene.place.file("nowhere"));
    assert!(
        nowhere.code == 1 && nowhere.stderr.contains("nowhere"),
        "{nowhere:?}"
    );
    scene.umount();
    let none = scene.run(&["umount"], &scene.point);
    assert!(
        none.code == 1 && none.stderr.contains("nothing is mounted"),
        "{none:?}"
    );
    scene.await_daemon();
}

#[test]
fn wrong_options_are_named() {
    let scene = Scene::unmounted("options");
    let mut command = scene.place.forebay(&["mount", "-o", "ro,nosuch"]);
    let run = Run::of(
        command
            .arg(&scene.directory)
            .arg(&scene.point)
            .output()
            .expect("forebay runs"),
    );
    assert!(run.code == 2 && run.stderr.contains("`nosuch`"), "{run:?}");
}
