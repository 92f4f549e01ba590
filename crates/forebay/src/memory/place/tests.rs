//! The ladder on drawn systems, and directories that are not what they seem.

use super::dir::user_id;
use super::*;
use crate::error::SessionFault;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn is<T>(done: Result<T>, fault: SessionFault) -> bool {
    done.is_err_and(|error| error.is_session(fault))
}

fn site(dir: &Path, fs: Fs, huge: &str, free: u64) -> Site {
    let page_bytes = if fs == Fs::Hugetlbfs {
        HUGE_BYTES as u64
    } else {
        4096
    };
    Site {
        dir: dir.to_owned(),
        fs,
        huge: huge.to_owned(),
        free,
        page_bytes,
        read_only: false,
    }
}

fn scratch() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap()
}

#[test]
fn session_names() {
    for name in ["default", "a", "A.b_c-9", "...", &"x".repeat(64)] {
        assert!(is_session_name(name), "{name}");
    }
    for name in ["", ".", "..", "a/b", "a b", "ä", "a\0", &"x".repeat(65)] {
        assert!(!is_session_name(name), "{name}");
    }
}

#[test]
fn the_first_rung_with_room_is_taken() {
    let dirs: Vec<_> = (0..3).map(|_| scratch()).collect();
    let survey = Survey {
        configured: None,
        sites: vec![
            site(dirs[0].path(), Fs::Hugetlbfs, "", u64::MAX),
            site(dirs[1].path(), Fs::Tmpfs, "within_size", 8 * MIB),
            site(dirs[2].path(), Fs::Tmpfs, "always", 64 * MIB),
        ],
        shmem: "never".to_owned(),
        huge_pages_free: 8,
    };
    let placed = |bytes| place_on(&survey, bytes).unwrap();
    let parent = |placement: &Placement| placement.path.parent().unwrap().to_owned();

    let small = placed(16 * MIB);
    assert_eq!(
        (small.kind, small.bytes, small.reasons.len()),
        (PlaceKind::Hugetlb, 16 * MIB, 0)
    );
    assert_eq!(parent(&small), dirs[0].path());

    let middle = placed(60 * MIB + 1);
    assert_eq!(
        (middle.kind, middle.bytes),
        (PlaceKind::HugeTmpfs, 62 * MIB)
    );
    assert_eq!(parent(&middle), dirs[2].path());
    assert!(
        middle.reasons[0].contains("vm.nr_hugepages"),
        "{:?}",
        middle.reasons
    );

    let large = placed(100 * MIB);
    assert_eq!(large.bytes, 64 * MIB, "the most there is");
    assert!(
        large
            .reasons
            .iter()
            .any(|why| why.contains("of the 100 MiB")),
        "{:?}",
        large.reasons
    );
}

#[test]
fn a_configured_directory_is_first_unless_it_is_a_disk() {
    let (own, other) = (scratch(), scratch());
    let configured = |fs| {
        Some((
            own.path().to_owned(),
            Ok(site(own.path(), fs, "", 64 * MIB)),
        ))
    };
    let sites = vec![site(other.path(), Fs::Tmpfs, "advise", 64 * MIB)];
    let mut survey = Survey {
        configured: configured(Fs::Tmpfs),
        sites,
        ..Survey::default()
    };
    assert_eq!(place_on(&survey, MIB).unwrap().kind, PlaceKind::Configured);
    survey.configured = configured(Fs::Other);
    let fallen = place_on(&survey, MIB).unwrap();
    assert_eq!(fallen.kind, PlaceKind::HugeTmpfs);
    assert!(
        fallen.reasons[0].contains("not on a memory file system"),
        "{:?}",
        fallen.reasons
    );
    survey.configured = Some(("/nowhere".into(), Err("is gone".to_owned())));
    let fallen = place_on(&survey, MIB).unwrap();
    assert!(
        fallen.reasons[0].contains("/nowhere"),
        "{:?}",
        fallen.reasons
    );
}

#[test]
fn plain_shared_memory_is_last_and_says_what_would_be_better() {
    let survey = |shmem: &str| Survey {
        sites: vec![site(Path::new("/dev/shm"), Fs::Tmpfs, "", 64 * MIB)],
        shmem: shmem.to_owned(),
        ..Survey::default()
    };
    let (rungs, refusals) = survey("never").rungs(MIB);
    assert_eq!(rungs.len(), 1);
    assert_eq!((rungs[0].kind, rungs[0].room), (PlaceKind::Plain, 48 * MIB));
    assert_eq!(refusals.len(), 2);
    assert!(
        refusals
            .iter()
            .all(|refusal| refusal.why.contains("mount ")),
        "{refusals:?}"
    );
    let (rungs, _) = survey("force").rungs(MIB);
    assert_eq!(rungs[0].kind, PlaceKind::HugeTmpfs);
    let (rungs, refusals) = survey("deny").rungs(MIB);
    assert_eq!(rungs[0].kind, PlaceKind::Plain);
    assert!(
        refusals
            .iter()
            .any(|refusal| refusal.why.contains("switched off")),
        "{refusals:?}"
    );
}

#[test]
fn no_place_at_all_names_every_remedy() {
    let error = place_on(&Survey::default(), MIB).unwrap_err().to_string();
    for remedy in ["hugetlbfs", "huge=advise", "/dev/shm is not mounted"] {
        assert!(error.contains(remedy), "{error}");
    }
}

#[test]
fn unusable_mounts_are_refused() {
    let mut read_only = site(Path::new("/ro"), Fs::Tmpfs, "always", 64 * MIB);
    read_only.read_only = true;
    let mut giant = site(Path::new("/giant"), Fs::Hugetlbfs, "", u64::MAX);
    giant.page_bytes = 1 << 30;
    let full = site(Path::new("/full"), Fs::Tmpfs, "always", MIB);
    let survey = Survey {
        sites: vec![read_only, giant, full],
        huge_pages_free: 9,
        ..Survey::default()
    };
    let (rungs, refusals) = survey.rungs(MIB);
    assert!(rungs.is_empty(), "{rungs:?}");
    let all = format!("{refusals:?}");
    for part in [
        "/ro is read-only",
        "pages of 1048576 KiB",
        "/full has no 2 MiB free",
    ] {
        assert!(all.contains(part), "{all}");
    }
}

#[test]
fn files_are_this_users_alone() {
    let parent = scratch();
    let dir = UserDir::make(parent.path(), user_id()).unwrap();
    assert_eq!(dir.path.metadata().unwrap().mode() & 0o777, 0o700);
    dir.create("one").unwrap();
    let meta = dir.path.join("one.arena").metadata().unwrap();
    assert_eq!(meta.mode() & 0o777, 0o600);
    assert!(is(dir.create("one"), SessionFault::InUse), "made once");
    assert!(matches!(dir.create("../one"), Err(Error::InvalidInput(_))));
    dir.open_session("one").unwrap().set_len(4096).unwrap();
    assert!(is(dir.open_session("two"), SessionFault::Absent));
    let found = dir.arenas();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].session.as_str(), found[0].bytes), ("one", 4096));
    dir.remove("one").unwrap();
    assert!(is(dir.remove("one"), SessionFault::Absent));
    assert!(dir.arenas().is_empty());
}

#[test]
fn links_and_strangers_are_not_trusted() {
    let parent = scratch();
    let uid = user_id();
    let name = parent.path().join(format!("forebay-{uid}"));
    let target = parent.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();

    symlink(&target, &name).unwrap();
    assert!(
        matches!(UserDir::make(parent.path(), uid), Err(Error::Arena(_))),
        "a link"
    );
    std::fs::remove_file(&name).unwrap();

    std::fs::write(&name, "").unwrap();
    assert!(
        matches!(UserDir::make(parent.path(), uid), Err(Error::Arena(_))),
        "a file"
    );
    std::fs::remove_file(&name).unwrap();

    let dir = UserDir::make(parent.path(), uid).unwrap();
    std::fs::write(target.join("plain"), "").unwrap();
    symlink(target.join("plain"), name.join("link.arena")).unwrap();
    assert!(
        matches!(dir.open_session("link"), Err(Error::Arena(_))),
        "a link to a file"
    );
    std::fs::create_dir(name.join("dir.arena")).unwrap();
    assert!(dir.open_session("dir").is_err(), "a directory");
    std::fs::hard_link(target.join("plain"), name.join("hard.arena")).unwrap();
    assert!(
        matches!(dir.open_session("hard"), Err(Error::Arena(_))),
        "a second name"
    );
    dir.create("open")
        .unwrap()
        .set_permissions(PermissionsExt::from_mode(0o644))
        .unwrap();
    assert!(
        matches!(dir.open_session("open"), Err(Error::Arena(_))),
        "open to others"
    );
    assert!(dir.arenas().is_empty(), "none of these is listed");

    std::fs::set_permissions(&name, PermissionsExt::from_mode(0o755)).unwrap();
    let error = UserDir::make(parent.path(), uid).unwrap_err().to_string();
    assert!(error.contains("its mode is 755"), "{error}");
    assert!(UserDir::open(parent.path(), uid + 1).unwrap().is_none());
}

#[test]
fn a_directory_of_another_user_is_not_trusted() {
    let parent = scratch();
    // The name says another user than the owner: what an occupied name looks like to that user.
    let name = parent.path().join(format!("forebay-{}", user_id() + 1));
    std::fs::create_dir(&name).unwrap();
    std::fs::set_permissions(&name, PermissionsExt::from_mode(0o700)).unwrap();
    let error = UserDir::make(parent.path(), user_id() + 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("belongs to user"), "{error}");
}
