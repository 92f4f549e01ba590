//! How mounts begin and end.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::sys::liveness::is_stopped;
use forebay_fuse::points::State;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::Signal;

use crate::here::skipped;
use crate::place::{Process, Run};
use crate::scene::{Kind, Scene, can_mount, wait_until};
use crate::users::{USER, as_user};

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
fn requests_by_io_uring_are_had_or_refused() {
    if !can_mount() {
        return;
    }
    let mut scene = Scene::unmounted("ring");
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let arguments = ["mount", "--ring", "always"];
    if !switch.as_ref().is_ok_and(|word| word.trim() == "Y") {
        let mut command = scene.place.forebay(&arguments);
        let refused = command.arg(&scene.directory).arg(&scene.point).output();
        let refused = Run::of(refused.expect("forebay runs"));
        let remedy = match switch {
            Ok(_) => "echo Y > /sys/module/fuse",
            Err(_) => "Linux 6.14",
        };
        let says = refused.code == 1 && refused.stderr.contains(remedy);
        assert!(says && scene.state() == State::Free, "{refused:?}");
        return;
    }
    for (ring, is_there) in [("always", true), ("never", false)] {
        scene.mount(&["--ring", ring]);
        let process = scene.process.as_mut().expect("mounted").id();
        let threads = fs::read_dir(format!("/proc/{process}/task")).expect("threads");
        let names =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        let rings = names.filter(|name| name.starts_with("ring-")).count();
        assert_eq!(rings > 0, is_there, "{rings}");
        scene.umount();
        scene.await_end(0);
    }
    scene.await_daemon();
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

/// Whoever aborts a mount takes its process from it, and leaves it in the list: nobody could use it, and nothing could be mounted there.
#[test]
fn a_mount_that_is_aborted_is_an_error_and_is_not_left_behind() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root aborts mounts");
    }
    for mut scene in Scene::each("aborted", &[]) {
        fs::write(scene.point.join("closed"), "closed before").expect("written");
        let mut file = File::create(scene.point.join("file")).expect("made");
        file.write_all(b"acknowledged").expect("written");
        // It is in use, and stays for all that; its connection does not.
        let mut abort = Command::new("umount");
        let aborted = abort.arg("--force").arg(&scene.point).output();
        let aborted = Run::of(aborted.expect("umount runs"));
        assert!(aborted.stderr.contains("busy"), "{aborted:?}");
        let said = scene.await_end(1);
        assert!(said.contains("aborted"), "{said}");
        assert_eq!(scene.state(), State::Free);
        assert!(file.write_all(b"nobody hears").is_err());
        if scene.kind == Kind::Store {
            scene.check_store();
            scene.mount(&[]);
        }
        let read = |name: &str| fs::read_to_string(scene.below(name)).expect("read");
        assert_eq!(read("closed"), "closed before");
        assert_eq!(read("file"), "acknowledged");
        match scene.kind {
            Kind::Directory => scene.await_daemon(),
            Kind::Store => scene.end(),
        }
    }
}

#[test]
fn who_cannot_be_told_that_it_is_mounted_has_no_mount() {
    if !can_mount() {
        return;
    }
    let scene = Scene::unmounted("untold");
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$@" 5>/dev/full"#, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_forebay"));
    command.args(["mount", "--linger", "0.3", "--ready-fd", "5"]);
    let mut command = scene.place.in_place(command, &[]);
    let command = command.arg(&scene.directory).arg(&scene.point);
    let run = Run::of(command.output().expect("sh runs"));
    assert!(
        run.code == 1 && run.stderr.contains("--ready-fd"),
        "{run:?}"
    );
    assert_eq!(scene.state(), State::Free);
    scene.await_daemon();
}

/// The kernel asks for no more at once than one answer has.
#[test]
fn what_one_request_reads_is_limited() {
    for scene in Scene::each("limited", &[]) {
        let list = fs::read_to_string("/proc/self/mounts").expect("the list");
        let point = scene.point.to_str().expect("UTF-8");
        let line = { list.lines() }.find(|line| line.split(' ').nth(1) == Some(point));
        let options = line.and_then(|line| line.split(' ').nth(3));
        let mut options = options.expect("mounted").split(',');
        assert!(
            options.any(|option| option == "max_read=1048576"),
            "{line:?}"
        );
        scene.end();
    }
}

#[test]
fn in_the_background_it_is_there_when_the_command_ends() {
    let Some(scene) = Scene::begin("first", &[]) else {
        return;
    };
    scene.end();
    let scene = Scene::unmounted("background");
    let mount = |point| scene.mount_behind(&["--linger", "0.3"], &scene.directory, point);
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

/// The device that is mounted at a scene's point, as the kernel's list has it.
fn device(scene: &Scene) -> String {
    let list = fs::read_to_string("/proc/self/mountinfo").expect("the list");
    let point = scene.point.to_str().expect("UTF-8");
    let mut lines = list.lines().rev().map(|line| line.split(' '));
    let line = lines.find(|words| words.clone().nth(4) == Some(point));
    line.expect("mounted").nth(2).expect("a device").to_owned()
}

/// Unmounts, and says how that went: within a minute.
fn umount_soon(scene: &Scene) -> Run {
    let mut command = scene.place.forebay(&["umount"]);
    let pipes = command.arg(&scene.point).stderr(Stdio::piped());
    let (status, stderr) = Process::new(pipes.spawn().expect("forebay runs")).wait();
    Run {
        code: status.code().unwrap_or(-1),
        stdout: String::new(),
        stderr,
    }
}

const DEVICE: &str = "FOREBAY__TEST_DEVICE";

/// Has the names that mounts of a device would have, and lets nobody in who comes.
#[test]
#[ignore = "the program that another test starts, as another user"]
fn the_squatter() {
    let Ok(device) = std::env::var(DEVICE) else {
        return;
    };
    let mut all = Vec::new();
    for count in 0..8 {
        let name = format!("forebay-mount/{device}/{count}");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        let socket = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let listener = socket(SocketFlags::empty()).expect("a socket");
        if bind(&listener, &address).is_err() {
            continue;
        }
        listen(&listener, 0).expect("it listens");
        all.push(listener);
        for _ in 0..3 {
            let visitor = socket(SocketFlags::NONBLOCK).expect("a socket");
            let _ = connect(&visitor, &address);
            all.push(visitor);
        }
    }
    println!("\nsquats {}", all.len());
    std::thread::sleep(Duration::from_secs(600));
}

/// Other users take the names by which a mount's process would be found, and answer nobody.
#[test]
fn who_takes_a_mounts_names_neither_holds_its_end_up_nor_hides_it() {
    let Some(mut scene) = Scene::begin_store("squatted", "96MiB", &[]) else {
        return;
    };
    let device = device(&scene);
    scene.umount();
    scene.await_end(0);
    let program = std::env::current_exe().expect("this program");
    let mut squatter = Command::new(program);
    squatter.args(["--exact", "ends::the_squatter", "--ignored", "--nocapture"]);
    squatter.env(DEVICE, &device);
    let mut squatter = as_user(USER, squatter);
    let child = squatter.current_dir("/").stdout(Stdio::piped()).spawn();
    let Ok(child) = child else {
        return skipped("setpriv is missing");
    };
    let mut squatter = Process::new(child);
    let mut line = squatter.first_line();
    while !line.is_empty() && !line.starts_with("squats") {
        line = squatter.first_line();
    }
    if line.is_empty() {
        return skipped("other users do not reach this program");
    }
    for _ in 0..3 {
        scene.mount(&[]);
        fs::write(scene.point.join("file"), vec![7; 30_000_000]).expect("written");
        let run = umount_soon(&scene);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        scene.check_store();
        scene.await_end(0);
    }
    squatter.kill();
}

/// A container that was started while it was mounted has it, and so its process goes on.
#[test]
fn a_mount_that_a_container_has_is_not_waited_for() {
    let Some(mut scene) = Scene::begin("container", &[]) else {
        return;
    };
    // Not the mounts of other tests.
    let script = r#"while read -r _ point kind _; do
        if [ "$kind" = fuse.forebay ] && [ "$point" != "$0" ]; then umount -l "$point"; fi
        done </proc/self/mounts; echo has it; exec sleep 600"#;
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let child = command.arg(&scene.point).stdout(Stdio::piped()).spawn();
    let mut container = Process::new(child.expect("unshare runs"));
    if container.first_line() != "has it\n" {
        return skipped("no mount name spaces here");
    }
    let id = container.id().to_string();
    let run = umount_soon(&scene);
    assert!(
        run.code == 1 && run.stderr.contains("still mounted") && run.stderr.contains(&id),
        "{run:?}"
    );
    container.kill();
    scene.await_end(0);
    scene.await_daemon();
}

/// Where the mount's process cannot be asked, nobody says that all is written.
#[test]
fn who_cannot_ask_a_mounts_process_says_so() {
    let Some(mut scene) = Scene::begin("unasked", &[]) else {
        return;
    };
    let program = env!("CARGO_BIN_EXE_forebay");
    let mut command = Command::new("unshare");
    command.args(["--net", "--", program, "umount"]);
    let mut command = scene.place.in_place(command, &[]);
    let run = Run::of(command.arg(&scene.point).output().expect("unshare runs"));
    if scene.state() != State::Free {
        return skipped("no network name spaces here");
    }
    assert!(
        run.code == 1 && run.stderr.contains("cannot be asked"),
        "{run:?}"
    );
    scene.await_end(0);
    scene.await_daemon();
}
