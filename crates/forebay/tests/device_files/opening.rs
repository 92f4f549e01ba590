//! Opening: who gets a second description, and who is told why not.

use crate::places::{self, Place, is_root, run};
use forebay::device::file_system::Nature;
use forebay::device::{DeviceFile, KernelReason, RealFile};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

/// An account with no rights of its own.
const NOBODY: u32 = 65534;

#[test]
fn every_directory_is_managed_or_says_why() {
    for place in places::all() {
        let refusal = place.refusal();
        let name = place.dir.display();
        match &refusal {
            Some(reason) => println!("{name}: kernel mode: {reason}"),
            None => println!("{name}: {:?}", place.file().1.caps()),
        }
        let as_expected = match place.nature() {
            _ if name.to_string().ends_with("-1k") => {
                matches!(refusal, Some(KernelReason::SmallBlocks { .. }))
            }
            _ if name.to_string().ends_with("/sync") => refusal == Some(KernelReason::Synchronous),
            Nature::Memory => matches!(refusal, Some(KernelReason::InMemory { .. })),
            Nature::InPlace => refusal.is_none(),
            Nature::InPlaceWithExtents => {
                matches!(refusal, None | Some(KernelReason::NoReserve { .. }))
            }
            Nature::CopyOnWriteUnlessFlagged => {
                matches!(refusal, None | Some(KernelReason::CopyOnWrite { .. }))
            }
            _ => true,
        };
        assert!(as_expected, "{name}: {refusal:?}");
    }
}

#[test]
fn identity_is_that_of_the_callers_descriptor() {
    for place in places::managed() {
        let (own, file) = place.file();
        let stat = own.metadata().expect("stat");
        let caps = file.caps();
        assert_eq!((caps.device, caps.inode), (stat.dev(), stat.ino()));
        assert_ne!(caps.birth, 0, "{caps:?}");
    }
}

/// A number is given again at once, within a tick of the clock that births are told by.
#[test]
fn a_number_that_is_given_again_is_another_identity() {
    for place in places::managed() {
        let mut seen = std::collections::HashSet::new();
        for round in 0..100 {
            let (own, file) = place.file();
            let caps = file.caps();
            let identity = (caps.device, caps.inode, caps.birth);
            drop((own, file));
            assert!(seen.insert(identity), "round {round}: {identity:?}");
        }
    }
}

fn named(place: &Place, name: &str) -> PathBuf {
    let path = place.dir.join(name);
    std::fs::write(&path, b"bytes").expect("space");
    path
}

#[test]
fn a_descriptor_for_reading_is_enough() {
    for place in places::managed() {
        let path = named(&place, "readable");
        let own = File::open(&path).expect("the file");
        std::fs::remove_file(path).expect("removed");
        RealFile::reopen(own.as_fd()).expect("unlinked, but ours to write");
    }
}

/// Runs `f` in a thread that has given up root; other threads keep it.
fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let drop_rights = || {
        // The raw call changes this thread alone; libc's wrapper would change all of them.
        // SAFETY: the call takes numbers only.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(result, 0, "root may");
        f()
    };
    std::thread::scope(|scope| scope.spawn(drop_rights).join().expect("no panic"))
}

#[test]
fn a_read_only_file_of_an_ordinary_user_stays_with_the_kernel() {
    for place in places::managed() {
        let path = named(&place, "read-only");
        let own = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("the file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).expect("chmod");
        let reopen = || RealFile::reopen(own.as_fd()).map(drop);
        let result = if is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).expect("chown");
            as_nobody(reopen)
        } else {
            reopen()
        };
        let reason = KernelReason::ReadOnly {
            errno: libc::EACCES,
        };
        assert_eq!(result.unwrap_err(), reason, "{}", place.dir.display());
        std::fs::remove_file(path).expect("removed");
    }
}

#[test]
fn who_may_write_but_does_not_own_reserves_all_the_same() {
    if !is_root() {
        return crate::here::skipped("not root, so no files of others");
    }
    for place in places::managed() {
        let path = named(&place, "of-root");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("chmod");
        let own = File::open(&path).expect("the file");
        as_nobody(|| {
            let file = RealFile::reopen(own.as_fd()).expect("may write");
            file.reserve(0, 65536).expect("space");
            file.trim().expect("trim");
            file.wait_in_flight().expect("wait");
        });
        std::fs::remove_file(path).expect("removed");
    }
}

#[test]
fn a_running_program_is_not_opened_for_writing() {
    for place in places::managed() {
        let path = place.dir.join("program");
        let copied = Command::new("cp").arg("/bin/sleep").arg(&path).status();
        assert!(copied.is_ok_and(|status| status.success()));
        let mut program = Command::new(&path).arg("10").spawn().expect("it runs");
        let own = File::open(&path).expect("the file");
        let refusal = RealFile::reopen(own.as_fd()).map(drop);
        program.kill().expect("ours");
        program.wait().expect("ours");
        let reason = KernelReason::ReadOnly {
            errno: libc::ETXTBSY,
        };
        assert_eq!(refusal.unwrap_err(), reason, "{}", place.dir.display());
        std::fs::remove_file(path).expect("removed");
    }
}

#[test]
fn a_lease_is_left_alone_without_waiting() {
    // Breaking a lease raises this signal, whose default is death.
    // SAFETY: ignoring a signal installs no code.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    for place in places::managed() {
        let path = named(&place, "leased");
        let own = File::open(&path).expect("the file");
        // SAFETY: the call takes numbers only.
        let leased = unsafe { libc::fcntl(own.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
        if leased == 0 {
            let refusal = RealFile::reopen(own.as_fd()).map(drop);
            assert_eq!(
                refusal.unwrap_err(),
                KernelReason::Leased,
                "{}",
                place.dir.display()
            );
        } else {
            println!("skip {}: no leases", place.dir.display());
        }
        std::fs::remove_file(path).expect("removed");
    }
}

#[test]
fn attributes_are_respected() {
    for place in places::managed() {
        for (set, clear, reason) in [
            ("+a", "-a", KernelReason::AppendOnly),
            ("+i", "-i", KernelReason::Immutable),
            ("+S", "-S", KernelReason::Synchronous),
        ] {
            let path = named(&place, "attributes");
            let own = File::open(&path).expect("the file");
            if run("chattr", &[set], &path) {
                let refusal = RealFile::reopen(own.as_fd()).map(drop);
                assert!(run("chattr", &[clear], &path));
                assert_eq!(refusal.unwrap_err(), reason, "{}", place.dir.display());
            } else {
                println!("skip {}: chattr {set} is refused", place.dir.display());
            }
            std::fs::remove_file(path).expect("removed");
        }
    }
}

#[test]
fn what_is_no_file_is_no_file() {
    let (read_end, write_end) = std::io::pipe().expect("a pipe");
    let null = File::open("/dev/null").expect("there");
    let dir = File::open("/").expect("there");
    for fd in [
        read_end.as_fd(),
        write_end.as_fd(),
        null.as_fd(),
        dir.as_fd(),
    ] {
        assert_eq!(
            RealFile::reopen(fd).map(drop),
            Err(KernelReason::NotRegular)
        );
    }
}

#[test]
fn descriptors_from_elsewhere_are_checked() {
    for place in places::managed() {
        let path = named(&place, "descriptors");
        let open = |write: bool, flags: i32| -> OwnedFd {
            let mut options = OpenOptions::new();
            options.read(true).write(write).custom_flags(flags);
            options.open(&path).expect("the file").into()
        };
        let other: OwnedFd = place.unnamed().into();
        let direct = || open(true, libc::O_DIRECT);
        let wrong = [
            (direct(), other),
            (direct(), open(false, 0)),
            (open(true, 0), open(true, 0)),
            (direct(), open(true, libc::O_APPEND)),
        ];
        for (at, (direct, buffered)) in wrong.into_iter().enumerate() {
            let refusal = RealFile::from_descriptors(direct, buffered).map(drop);
            let wrong = matches!(refusal, Err(KernelReason::WrongDescriptors { .. }));
            assert!(wrong, "case {at}: {refusal:?}");
        }
        let file = RealFile::from_descriptors(direct(), open(true, 0)).expect("as agreed");
        let (direct, buffered) = file.into_descriptors();
        RealFile::from_descriptors(direct, buffered).expect("as agreed");
        std::fs::remove_file(path).expect("removed");
    }
}
