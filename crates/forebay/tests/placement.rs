//! The ladder of places on real mounts: memory that is really huge, file systems that are really
//! full.
//!
//! Mounting needs root. Each test runs itself again in a mount namespace of its own, so that no
//! mount outlives it, whatever happens; without root it says so and passes.

mod here;

use forebay::limits::BLOCK_BYTES;
use forebay::memory::mapping::Mapping;
use forebay::memory::place::dir::{UserDir, user_id};
use forebay::memory::place::{
    PlaceKind, Placement, dirs_of, find_arenas, find_arenas_of, huge_bytes, place,
};
use forebay::{Config, OpenOptions, Session};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

const MIB: usize = 1 << 20;
/// Who sets huge pages aside, or looks whether there are some.
static HUGE: Mutex<()> = Mutex::new(());
/// Set in the process that has its own mounts.
const INSIDE: &str = "FOREBAY__TEST_INSIDE";

/// Runs `body` in a process with private mounts and a /dev/shm of its own; `name` is the test's own
/// name. `body` gets an empty directory to mount on, which the outer process removes: inside, it
/// would be busy.
fn with_mounts(name: &str, body: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(INSIDE) {
        assert!(mount("tmpfs", "mode=1777", Path::new("/dev/shm")));
        return body(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(INSIDE, dir.path());
    // SAFETY: between fork and exec only system calls are made, and none of them allocates.
    unsafe { child.pre_exec(private_mounts) };
    match child.status() {
        Ok(status) => assert!(status.success(), "{name}: {status}"),
        Err(error) => here::skipped(format!("no private mounts without root ({error})")),
    }
}

fn private_mounts() -> std::io::Result<()> {
    // SAFETY: a flag, no memory.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    let (none, root) = (std::ptr::null(), c"/".as_ptr());
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the strings are static; a change of propagation reads nothing else.
    if unshared != 0 || unsafe { libc::mount(none, root, none, flags, none.cast()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

fn mount(kind: &str, options: &str, at: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(["-t", kind, "-o", options, "none"]).arg(at);
    command.status().is_ok_and(|status| status.success())
}

fn mapped(placement: &Placement, session: &str, bytes: usize) -> Mapping {
    Mapping::create(placement.create(session).unwrap(), bytes).unwrap()
}

#[test]
fn huge_tmpfs_is_found_and_its_memory_is_huge() {
    with_mounts("huge_tmpfs_is_found_and_its_memory_is_huge", |dir| {
        for huge in ["always", "within_size", "advise"] {
            assert!(
                mount("tmpfs", &format!("mode=1777,huge={huge}"), dir),
                "{huge}"
            );
            let placement = place(None, 64 << 20).unwrap();
            if placement.kind == PlaceKind::Hugetlb {
                return here::skipped("this machine has hugetlbfs, which comes first");
            }
            assert_eq!(
                placement.kind,
                PlaceKind::HugeTmpfs,
                "{:?}",
                placement.reasons
            );
            assert!(placement.path.starts_with(dir));
            assert!(
                placement.reasons[0].contains("vm.nr_hugepages"),
                "{:?}",
                placement.reasons
            );
            let mapping = mapped(&placement, "huge", 64 * MIB);
            assert_eq!(huge_bytes(&mapping).unwrap(), 0);
            mapping.back(0, 8 * MIB).unwrap();
            assert_eq!(huge_bytes(&mapping).unwrap(), 8 << 20, "huge={huge}");
            mapping.release(0, 4 * MIB).unwrap();
            assert_eq!(huge_bytes(&mapping).unwrap(), 4 << 20, "huge={huge}");
            let configured = place(Some(dir), 1).unwrap();
            assert_eq!(configured.kind, PlaceKind::Configured);
            assert_eq!(configured.path, placement.path);
            let found = find_arenas(None);
            let path = placement.arena_path("huge");
            let mine = found.iter().find(|arena| arena.path == path);
            let alone: Vec<_> = find_arenas_of(None, "huge").collect();
            assert!(mine.is_some_and(|mine| alone.contains(mine)), "{found:?}");
            assert!(alone.iter().all(|arena| arena.session == "huge"));
            assert_eq!(find_arenas_of(None, "hug").next(), None);
        }
    });
}

/// Who joins a session looks there before the list of mounts is read, so everybody has to begin there.
#[test]
fn an_arena_in_dev_shm_comes_before_others_of_its_name() {
    with_mounts(
        "an_arena_in_dev_shm_comes_before_others_of_its_name",
        |dir| {
            let shared = Path::new("/dev/shm");
            for parent in [dir, shared] {
                assert!(mount("tmpfs", "mode=1777", parent));
                let made = UserDir::make(parent, user_id()).unwrap();
                made.create("twice").unwrap();
            }
            let found: Vec<_> = find_arenas_of(None, "twice").collect();
            let lies = |at: usize, parent| found[at].path.starts_with(parent);
            assert!(
                found.len() == 2 && lies(0, shared) && lies(1, dir),
                "{found:?}"
            );
            let first = find_arenas_of(Some(dir), "twice").next().unwrap();
            assert!(first.path.starts_with(dir), "the configured one first");
            let dirs = dirs_of(None, "twice");
            assert!(
                dirs.len() == 2 && dirs[0].path.starts_with(shared),
                "{dirs:?}"
            );
        },
    );
}

#[test]
fn a_small_dev_shm_is_an_offer_and_no_signal() {
    with_mounts("a_small_dev_shm_is_an_offer_and_no_signal", |_| {
        assert!(mount("tmpfs", "mode=1777,size=64m", Path::new("/dev/shm")));
        let placement = place(None, 1 << 30).unwrap();
        if placement.kind != PlaceKind::Plain {
            return here::skipped("this machine has better than /dev/shm");
        }
        assert_eq!(placement.bytes, 48 << 20, "a quarter is left to others");
        let last = placement.reasons.last().unwrap();
        assert!(
            last.contains("48 MiB of the 1024 MiB") && last.contains("size="),
            "{last}"
        );
        let mapping = mapped(&placement, "small", 128 * MIB);
        mapping.back(0, 32 * MIB).unwrap();
        let error = mapping.back(32 * MIB, 96 * MIB).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        mapping.release(32 * MIB, 96 * MIB).unwrap();
        mapping.back(32 * MIB, 16 * MIB).unwrap();
    });
}

#[test]
fn a_covered_mount_does_not_count() {
    with_mounts("a_covered_mount_does_not_count", |dir| {
        assert!(mount("tmpfs", "mode=1777,huge=always", dir));
        assert!(mount("tmpfs", "mode=1777", dir));
        let placement = place(None, 1).unwrap();
        assert!(!placement.path.starts_with(dir), "{placement:?}");
    });
}

#[test]
fn hugetlbfs_is_first_where_it_has_pages() {
    let _alone = HUGE.lock();
    with_mounts("hugetlbfs_is_first_where_it_has_pages", |dir| {
        if !mount("hugetlbfs", "pagesize=2M,mode=1777", dir) {
            return here::skipped("this kernel has no hugetlbfs");
        }
        let placement = place(None, 8 << 20).unwrap();
        if placement.kind != PlaceKind::Hugetlb {
            let why = placement.reasons.join("; ");
            return here::skipped(format!("no huge pages are set aside: {why}"));
        }
        let mapping = mapped(&placement, "tlb", 8 * MIB);
        let second = Mapping::attach(placement.open("tlb").unwrap()).unwrap();
        assert_eq!(mapping.page_bytes(), 2 * MIB);
        mapping.back(4096, 1).unwrap();
        assert_eq!(
            huge_bytes(&mapping).unwrap(),
            2 << 20,
            "widened to a whole page"
        );
        second.populate(0, 2 * MIB);
        assert_eq!(huge_bytes(&second).unwrap(), 2 << 20);
        assert!(mapping.release(4096, 4096).is_err(), "part of a page");
        assert!(mapping.collapse(0, 2 * MIB).unwrap());
        mapping.release(0, 2 * MIB).unwrap();
        assert_eq!(huge_bytes(&mapping).unwrap(), 0);
        placement.remove("tlb").unwrap();
    });
}

/// Huge pages that are set aside until this is dropped, beside those that are.
struct SetAside {
    before: u64,
}

const PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl SetAside {
    fn pages(count: u64) -> Option<Self> {
        let number = || std::fs::read_to_string(PAGES).ok()?.trim().parse().ok();
        let before: u64 = number()?;
        std::fs::write(PAGES, (before + count).to_string()).ok()?;
        let set_aside = SetAside { before };
        (number()? == before + count).then_some(set_aside)
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let _ = std::fs::write(PAGES, self.before.to_string());
    }
}

/// A huge page is mapped as a whole or not at all: where frames that lie apart are mapped, what was mapped there is gone.
#[test]
fn a_window_on_huge_pages_stays_mapped() {
    let _alone = HUGE.lock();
    // Here, and not in the process that may die of it.
    let is_outside = std::env::var_os(INSIDE).is_none();
    let pages = is_outside.then(|| SetAside::pages(64));
    if let Some(None) = pages {
        return here::skipped("no huge pages are set aside: there are no 128 MiB of them");
    }
    with_mounts("a_window_on_huge_pages_stays_mapped", |dir| {
        if !mount("hugetlbfs", "pagesize=2M,mode=1777", dir) {
            return here::skipped("this kernel has no hugetlbfs");
        }
        let mut config = Config::builder().build().unwrap();
        config.memory = 48 << 20;
        config.session = "huge-window".to_owned();
        config.arena_dir = Some(dir.to_owned());
        let session = Session::open(config).unwrap();
        assert_eq!(session.shared().arena.mapping().page_bytes(), 2 * MIB);
        let files = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            session
                .open_file(files.path().join(name), &options)
                .unwrap()
        };
        // So that there are not eight frames side by side.
        let apart = open("apart");
        let blocks = (0..64).map(|block| block * BLOCK_BYTES as u64);
        let block = [1; BLOCK_BYTES];
        for at in blocks.clone() {
            assert_eq!(apart.write_at(&block, at).unwrap(), BLOCK_BYTES);
        }
        apart.sync_data().unwrap();
        let view = |at| apart.view(at..at + BLOCK_BYTES as u64).unwrap();
        let _held: Vec<_> = blocks.step_by(2).map(view).collect();

        let file = open("file");
        let mut window = session.window(16 * MIB).unwrap();
        for round in 1..10 {
            window.fill(round);
            let committed = window.commit(&file, 0, 0..16 * MIB).unwrap();
            assert_eq!(committed, 16 * MIB);
            window.refill().unwrap();
            assert!(window.iter().all(|&byte| byte == round), "round {round}");
            let mut found = vec![0; 16 * MIB];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), found.len());
            assert!(found.iter().all(|&byte| byte == round), "round {round}");
            window.detach().unwrap();
        }
        // As `Session::window` says.
        assert_eq!(window.attached_bytes(), 0);
        drop((window, file, apart));
    });
}

/// Where its arena would go now does not matter to who joins a session: it is where it is.
#[test]
fn a_session_is_found_where_it_is() {
    with_mounts("a_session_is_found_where_it_is", |dir| {
        let mut config = Config::builder().build().unwrap();
        config.memory = 32 << 20;
        config.session = "found".to_owned();
        let path = |session: &Session| session.place().unwrap().path.unwrap();

        let first = Session::join(config.clone()).unwrap();
        assert!(!path(&first).starts_with(dir));
        // A better place appears.
        assert!(mount("tmpfs", "mode=1777,huge=always,size=64m", dir));
        let second = Session::join(config.clone()).unwrap();
        assert_eq!(path(&second), path(&first));
        drop((first, second));

        let first = Session::join(config.clone()).unwrap();
        // Its place becomes a worse one, and then has no room at all.
        let mut ballast = std::fs::File::create(path(&first).with_extension("ballast")).unwrap();
        for until in [40 << 20, u64::MAX] {
            while ballast.metadata().unwrap().len() < until
                && ballast.write_all(&[1; 65536]).is_ok()
            {}
            let second = Session::join(config.clone()).unwrap();
            assert_eq!(path(&second), path(&first));
        }
        // A process that says where the arena is to go joins it as well.
        config.arena_dir = Some("/dev/shm".into());
        let second = Session::join(config).unwrap();
        assert_eq!(path(&second), path(&first));
    });
}

/// Prints what first touch costs on each rung; `docs/decisions/0002-arena-placement.md` has a table
/// of it. Run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn first_touch_costs() {
    with_mounts("first_touch_costs", |dir| {
        let places = [
            ("hugetlbfs", "hugetlbfs", "pagesize=2M"),
            ("tmpfs always", "tmpfs", "huge=always"),
            ("tmpfs within_size", "tmpfs", "huge=within_size"),
            ("tmpfs advise", "tmpfs", "huge=advise"),
            ("tmpfs plain", "tmpfs", "huge=never"),
        ];
        println!("ns per 4 KiB, median (least to most) of 5 rounds, 256 MiB:");
        let mounted: Vec<_> = places
            .iter()
            .filter_map(|(name, kind, options)| {
                let at = dir.join(name);
                std::fs::create_dir(&at).unwrap();
                mount(kind, options, &at).then_some((*name, at))
            })
            .collect();
        let mut rows: Vec<Vec<[f64; 6]>> = vec![Vec::new(); mounted.len()];
        for _ in 0..5 {
            for (row, (_, at)) in rows.iter_mut().zip(&mounted) {
                row.extend(measure(at));
            }
        }
        for (row, (name, _)) in rows.iter().zip(&mounted).filter(|(row, _)| !row.is_empty()) {
            report(name, row);
        }
    });
}

const LEN: usize = 256 * MIB;

/// One round on one place, in nanoseconds per 4 KiB; `None` where there is no memory of that kind.
fn measure(at: &Path) -> Option<[f64; 6]> {
    warm();
    let placement = place(Some(at), LEN as u64).ok()?;
    if !placement.path.starts_with(at) {
        return None;
    }
    let first = mapped(&placement, "cost", LEN);
    let per_page = |started: Instant| started.elapsed().as_nanos() as f64 / (LEN / 4096) as f64;
    let batches = |act: &dyn Fn(usize)| {
        let started = Instant::now();
        (0..LEN).step_by(8 * MIB).for_each(act);
        per_page(started)
    };
    let back = batches(&|offset| first.back(offset, 8 * MIB).unwrap());
    let attach = || Mapping::attach(placement.open("cost").unwrap()).unwrap();
    let touch = |mapping: &Mapping| {
        let started = Instant::now();
        for offset in (0..LEN).step_by(4096) {
            // SAFETY: backed above, mapped while `mapping` lives, on one thread.
            unsafe { mapping.base().add(offset).write_volatile(1) };
        }
        per_page(started)
    };
    let touched = touch(&attach());
    let second = attach();
    let populated = batches(&|offset| second.populate(offset, 8 * MIB));
    let collapse = batches(&|offset| {
        let _ = first.collapse(offset, 8 * MIB);
    });
    let collapsed = touch(&attach());
    let release = batches(&|offset| first.release(offset, 8 * MIB).unwrap());
    placement.remove("cost").unwrap();
    Some([back, touched, populated, collapse, collapsed, release])
}

/// Makes the host give this machine the memory that the round will use.
fn warm() {
    let memory = vec![1u8; LEN + LEN / 4];
    std::hint::black_box(&memory);
}

fn report(name: &str, rounds: &[[f64; 6]]) {
    let columns = [
        "back",
        "touch by a second",
        "populate by a second",
        "collapse",
        "touch by a second, collapsed",
        "release",
    ];
    for (column, title) in columns.iter().enumerate() {
        let mut values: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (values[0], values[values.len() - 1]);
        let median = values[values.len() / 2];
        println!("{name:18} {title:30} {median:8.1} ({least:.1} to {most:.1})");
    }
}
