//! `forebay pmem`: making, checking and describing stores.

use std::os::unix::fs::FileExt;

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
    assert_eq!(
        place.run(&["pmem", "create", "--size", "1MiB", &name]).code,
        0
    );
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
