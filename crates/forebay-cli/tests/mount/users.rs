//! Mounts that several users use, and mounts of users without rights. Root alone can be several users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::here::skipped;
use crate::place::{Process, Run};
use crate::scene::Scene;
use forebay_fuse::points::helper_works;

pub const USER: u32 = 4711;
pub const GROUP: u32 = 4712;
pub const FURTHER: u32 = 4713;
/// One that every system knows: who mounts must have a name.
const NOBODY: u32 = 65534;

/// A program as a user who has a group, and a further one.
pub fn as_user(uid: u32, mut command: Command) -> Command {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid", &uid.to_string(), "--regid", &GROUP.to_string()])
        .args(["--groups", &FURTHER.to_string(), "--"])
        .arg(program)
        .args(arguments);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    command = other;
    command
}

fn shell(uid: u32, directory: &Path, script: &str) -> Run {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let mut command = as_user(uid, command);
    Run::of(
        command
            .current_dir(directory)
            .output()
            .expect("setpriv runs"),
    )
}

pub fn open_to(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

/// Whether there are several users here, and they come as far as the test's files.
pub fn has_users(scene: &Scene) -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be several users");
        return false;
    }
    let files = scene.place.files.path();
    open_to(files, 0o755);
    let found = as_user(USER, Command::new("true"))
        .current_dir("/")
        .status();
    if !found.is_ok_and(|status| status.success()) {
        skipped("setpriv is missing");
        return false;
    }
    let mut look = Command::new("test");
    look.arg("-x").arg(files);
    let reaches = as_user(USER, look)
        .status()
        .is_ok_and(|status| status.success());
    if !reaches {
        skipped("other users do not come as far as the test's files");
    }
    reaches
}

#[test]
fn files_belong_to_those_who_make_them() {
    for scene in Scene::each("owners", &["--allow-other"]) {
        if !has_users(&scene) {
            scene.end();
            continue;
        }
        open_to(&scene.below(""), 0o777);
        let shared = scene.below("shared");
        fs::create_dir(&shared).expect("made");
        std::os::unix::fs::chown(&shared, Some(0), Some(FURTHER)).expect("given");
        open_to(&shared, 0o2770);
        let made = shell(
            USER,
            &scene.point,
            "umask 027; echo x > file && mkdir dir && ln -s file link && mkfifo pipe && echo x > shared/file && mkdir shared/dir",
        );
        assert_eq!(made.code, 0, "{made:?}");
        let owner = |name: &str| {
            let meta = fs::symlink_metadata(scene.below(name)).expect("made");
            (meta.uid(), meta.gid(), meta.mode() & 0o7777)
        };
        assert_eq!(owner("file"), (USER, GROUP, 0o640));
        assert_eq!(owner("dir"), (USER, GROUP, 0o750));
        assert_eq!(owner("link"), (USER, GROUP, 0o777));
        assert_eq!(owner("pipe"), (USER, GROUP, 0o640));
        assert_eq!(owner("shared/file"), (USER, FURTHER, 0o640));
        assert_eq!(owner("shared/dir"), (USER, FURTHER, 0o2750));
        scene.end();
    }
}

#[test]
fn rights_are_those_of_the_directory() {
    for scene in Scene::each("rights", &["--allow-other", "-o", "suid", "--believe", "0"]) {
        if !has_users(&scene) {
            scene.end();
            continue;
        }
        for part in [scene.below("here"), scene.directory.join("there")] {
            fs::create_dir(&part).expect("made");
            open_to(&part, 0o1777);
            for (name, mode, owner) in [
                ("secret", 0o600, 0),
                ("read", 0o644, 0),
                ("own", 0o600, USER),
                ("sets", 0o6777, 0),
            ] {
                let path = part.join(name);
                fs::write(&path, "bytes").expect("written");
                std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("given");
                open_to(&path, mode);
            }
        }
        // What a user may do by the mount is what he may do in the directory.
        for script in [
            "cat secret",
            "cat read",
            "echo x >> read",
            "cat own && echo x >> own && cat own",
            "rm -f read; test -e read",
            "mv read moved",
            "chmod 777 secret",
            "chmod 700 own",
            "chown 1:1 own",
            "touch -d @5 secret",
            "touch -d @5 own",
            "ln secret more; test -e more",
            "mkdir inner && rmdir inner",
            "truncate -s 1 read",
            "truncate -s 1 own && cat own",
            "setfattr -n user.a -v b read",
            "echo x >> sets && stat -c %a sets",
            "stat -c '%a %u %g %s' own",
        ] {
            let here = shell(USER, &scene.point.join("here"), script);
            let there = shell(USER, &scene.directory.join("there"), script);
            let said = format!("{} {}", here.stderr, there.stderr);
            assert_eq!(
                (here.code, here.stdout),
                (there.code, there.stdout),
                "{script}: {said}"
            );
        }
        // A program that runs as its owner does so no longer once another has written to it.
        let mode = fs::metadata(scene.below("here/sets"))
            .expect("there")
            .mode();
        assert_eq!(mode & 0o7777, 0o777);
        scene.end();
    }
}

const MODES: [u32; 3] = [0o6777, 0o4767, 0o2777];
const CHANGES: [&str; 6] = [
    "truncate -s 1 FILE",
    ": > FILE",
    "echo x >> FILE",
    "echo x 1<> FILE",
    "chgrp 4712 FILE",
    "chown 4711:4712 FILE",
];

/// What takes bits of a mode away is the right of whoever cuts a file (`CAP_FSETID`), not that he is root.
#[test]
fn set_id_bits_go_as_in_the_directory() {
    for scene in Scene::each("set-id", &["--allow-other", "-o", "suid", "--believe", "0"]) {
        if !has_users(&scene) {
            scene.end();
            continue;
        }
        let user = ["--reuid", "4711", "--regid", "4712", "--clear-groups"];
        let right = ["--inh-caps", "+fsetid", "--ambient-caps", "+fsetid"];
        let whos = [
            vec!["--bounding-set", "+fsetid"],
            vec!["--bounding-set", "-fsetid"],
            user.to_vec(),
            [&user[..], &right[..]].concat(),
        ];
        for (who, mode) in whos.iter().flat_map(|who| MODES.map(|mode| (who, mode))) {
            let told = [scene.point.join("here"), scene.directory.join("there")].map(|part| {
                let mut script = String::new();
                fs::create_dir(&part).expect("made");
                open_to(&part, 0o777);
                for (number, change) in CHANGES.iter().enumerate() {
                    let file = part.join(number.to_string());
                    fs::write(&file, "bytes").expect("written");
                    open_to(&file, mode);
                    let change = change.replace("FILE", &number.to_string());
                    script += &format!("{change}; stat -c \"$? %a %u %g %s\" {number}; ");
                }
                let mut command = Command::new("setpriv");
                command.args(who).args(["--", "sh", "-c", &script]);
                let run = Run::of(command.current_dir(&part).output().expect("setpriv runs"));
                assert_eq!(run.code, 0, "{run:?}");
                fs::remove_dir_all(&part).expect("removed");
                run.stdout
            });
            let told = told.each_ref().map(|all| all.lines().collect::<Vec<_>>());
            assert_eq!(told[0].len(), CHANGES.len());
            for (change, (here, there)) in CHANGES.iter().zip(told[0].iter().zip(&told[1])) {
                assert_eq!(here, there, "{who:?}: {change}, {mode:o}");
            }
        }
        scene.end();
    }
}

#[test]
fn others_are_kept_out_unless_asked_in() {
    for scene in Scene::each("others", &[]) {
        if !has_users(&scene) {
            scene.end();
            continue;
        }
        open_to(&scene.below(""), 0o777);
        let run = shell(
            USER,
            Path::new("/"),
            &format!("ls {}", scene.point.display()),
        );
        assert!(
            run.code != 0 && run.stderr.contains("Permission denied"),
            "{run:?}"
        );
        scene.end();
    }
}

#[test]
fn descriptors_that_others_inherit_work_for_them() {
    for scene in Scene::each("inherited", &[]) {
        if !has_users(&scene) {
            scene.end();
            continue;
        }
        let from = scene.place.file("from");
        fs::write(&from, "b\na\n").expect("written");
        let from = fs::File::open(from).expect("opened");
        let to = fs::File::create(scene.point.join("to")).expect("made");
        // It closes what it has written, and complains if that fails.
        let run = as_user(USER, Command::new("sort"))
            .stdin(from)
            .stdout(to)
            .output();
        let run = Run::of(run.expect("it runs"));
        assert_eq!(run.code, 0, "{run:?}");
        let to = fs::OpenOptions::new()
            .append(true)
            .open(scene.point.join("to"));
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo c | dd conv=fsync,notrunc status=none"]);
        let run = as_user(USER, shell).stdout(to.expect("opened")).output();
        let run = Run::of(run.expect("it runs"));
        assert_eq!(run.code, 0, "{run:?}");
        let read = fs::read(scene.point.join("to")).expect("read");
        assert_eq!(read, b"a\nb\nc\n");
        scene.end();
    }
}

#[test]
fn a_user_without_rights_mounts_and_unmounts() {
    let mut scene = Scene::unmounted("user");
    if !Path::new("/dev/fuse").exists() || !helper_works() {
        return skipped("there is no /dev/fuse, or no fusermount3");
    }
    if !has_users(&scene) {
        return;
    }
    let mut look = Command::new("test");
    look.args(["-w", "/dev/fuse"]);
    if !as_user(NOBODY, look)
        .status()
        .is_ok_and(|status| status.success())
    {
        return skipped("/dev/fuse is for root alone here");
    }
    for path in [
        scene.place.arenas.path(),
        scene.place.files.path(),
        &scene.directory,
        &scene.point,
    ] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(GROUP)).expect("given");
    }
    let mut command = scene.place.forebay(&["mount", "--linger", "0.3"]);
    command.arg(&scene.directory).arg(&scene.point);
    let mut command = as_user(NOBODY, command);
    let mut process = Process::new(command.stderr(Stdio::piped()).spawn().expect("it runs"));
    let said = process.first_line();
    assert!(said.contains(", session "), "{said}");
    scene.process = Some(process);
    // Nobody else comes in, root neither.
    let script = "echo bytes > file && cat file && mkdir dir && mv file dir";
    let script = format!("cd {} && {script}", scene.point.display());
    let run = shell(NOBODY, Path::new("/"), &script);
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "bytes\n"),
        "{}",
        run.stderr
    );
    assert_eq!(
        fs::read_to_string(scene.directory.join("dir/file")).expect("read"),
        "bytes\n"
    );
    let mut command = scene.place.forebay(&["umount"]);
    command.arg(&scene.point);
    let run = Run::of(as_user(NOBODY, command).output().expect("it runs"));
    assert_eq!(run.code, 0, "{run:?}");
    scene.await_end(0);
}
