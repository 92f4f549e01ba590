//! `forebay pmem`: making, checking and describing stores.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::here::skipped;

use crate::place::Place;

#[test]
fn a_store_is_made_described_and_checked() {
    let place = Place::new("pmem");
    let path = place.files.path().join("store");
    let name = path.to_string_lossy().to_string();
    let made = place.run(&["pmem", "create", "--size", "4MiB", &name]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.stdout.contains("4.0 MiB"), "{made:?}");
    let again = place.run(&["pmem", "create", "--size", "4MiB", &name]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stderr.contains("a store already"), "{again:?}");
    assert_eq!(
        place
            .run(&["pmem", "create", "--size", "8MiB", "--force", &name])
            .code,
        0
    );
    let info = place.run(&["pmem", "info", "--json", &name]);
    let described: serde_json::Value = serde_json::from_str(&info.stdout).expect("JSON");
    assert_eq!(described["bytes"], 8 << 20, "{info:?}");
    assert_eq!(described["records_to_replay"], 0);
    let plain = place.run(&["pmem", "info", &name]);
    assert!(
        plain.code == 0 && plain.stdout.contains("1 files of"),
        "{plain:?}"
    );
    let check = place.run(&["pmem", "check", &name]);
    assert_eq!(check.code, 0, "{check:?}");
    assert!(check.stdout.contains("all in order"), "{check:?}");
}

#[test]
fn damage_is_told_and_other_files_are_no_stores() {
    let place = Place::new("pmem-damage");
    let path = place.files.path().join("store");
    let name = path.to_string_lossy().to_string();
    std::fs::write(&path, vec![1; 10_000]).expect("written");
    for command in ["check", "info"] {
        let run = place.run(&["pmem", command, &name]);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("no store"), "{run:?}");
    }
    let small = place.run(&["pmem", "create", "--size", "1KiB", &name]);
    assert!(
        small.code == 1 && small.stderr.contains("at least"),
        "{small:?}"
    );
    assert_eq!(
        place.run(&["pmem", "create", "--size", "half", &name]).code,
        2
    );
    assert_eq!(
        place.run(&["pmem", "create", "--size", "50%", &name]).code,
        2
    );
    let refused = place.run(&["pmem", "create", "--size", "1MiB", &name]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    let bytes = std::fs::read(&path).expect("read");
    assert!(bytes == vec![1; 10_000], "untouched");
    let forced = place.run(&["pmem", "create", "--size", "1MiB", "--force", &name]);
    assert_eq!(forced.code, 0, "{forced:?}");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opens");
    file.write_all_at(&[9; 16], 3).expect("written");
    let check = place.run(&["pmem", "check", &name]);
    assert_eq!(check.code, 1, "{check:?}");
    assert!(check.stdout.contains("superblock in block 0"), "{check:?}");
    assert!(check.stdout.contains("1 finding"), "{check:?}");
    let json = place.run(&["pmem", "check", "--json", &name]);
    let checked: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(
        (json.code, &checked["clean"]),
        (1, &serde_json::Value::Bool(false))
    );
    assert_eq!(
        checked["findings"].as_array().map(Vec::len),
        Some(1),
        "{json:?}"
    );
}

/// Whoever makes a store of a mounted device destroys what is mounted.
#[test]
fn a_block_device_that_is_mounted_is_no_place_for_a_store() {
    let place = Place::new("pmem-device");
    let run = |program: &str, arguments: &[&OsStr]| {
        let run = Command::new(program).args(arguments).output();
        run.ok().filter(|run| run.status.success())
    };
    let (image, point) = (place.file("image"), place.file("mounted"));
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(16 << 20).expect("made longer");
    std::fs::create_dir(&point).expect("made");
    let arguments = ["-f".as_ref(), "--show".as_ref(), image.as_os_str()];
    let Some(made) = run("losetup", &arguments) else {
        return skipped("no loop device can be had");
    };
    let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let mounted = run("mkfs.ext4", &["-q".as_ref(), device.as_ref()])
        .and_then(|_| run("mount", &[device.as_ref(), point.as_os_str()]));
    let create = ["pmem", "create", "--force", &device];
    let busy = place.run(&create);
    let unmounted = mounted.and_then(|_| run("umount", &[point.as_os_str()]));
    let free = place.run(&create);
    let info = place.run(&["pmem", "info", &device]);
    run("losetup", &["-d".as_ref(), device.as_ref()]).expect("detached");
    if unmounted.is_none() {
        return skipped("the device cannot be mounted");
    }
    assert_eq!(busy.code, 1, "{busy:?}");
    assert!(busy.stderr.contains("busy"), "{busy:?}");
    assert_eq!((free.code, info.code), (0, 0), "{free:?}, {info:?}");
}
