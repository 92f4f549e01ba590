//! Which processes have a description open, explored: families of processes that open, close, duplicate, fork, execute, end and are
//! killed, one access of a shared word after the other, as a seed schedules them (`docs/decisions/0023-holders-of-descriptions.md`).
//!
//! `src/table/holders.rs` runs as it is, over words, descriptors and processes of this test's. Two things must hold at any moment: a
//! descriptor's word names a description that was taken for what is behind the descriptor; and of the dead, nothing is held for good.
//!
//! Of some that a child has inherited, only that much holds: it is of the same file. A thread that opens a file while another one forks may
//! come to tell the child of it only when the fork is over; where it has closed the file by then, and opened it again, the child's descriptor
//! is taken for one of the new description. So is what a child has whose parent dies before it runs. No program knows of such a descriptor.

mod explored;
mod table;

use std::sync::{Mutex, PoisonError};

use explored::{Bug, below, me, new_process, note, now, planted, point, run, spawn};
use table::holders;

/// What `holders.rs` asks the kernel.
mod raw {
    use crate::explored::{is_dead, me};

    pub fn process_id() -> u32 {
        // Number 0 is nobody's.
        me().wrapping_add(1) as u32
    }

    /// One for all.
    pub fn pid_namespace() -> u64 {
        crate::explored::point();
        7
    }

    pub fn forget_pid_namespace() {}

    /// # Safety
    /// As for the kernel's calls.
    pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
        crate::explored::point();
        match number {
            libc::SYS_kill if is_dead(args[0] - 1) => -(libc::ESRCH as isize),
            libc::SYS_kill => 0,
            _ => -(libc::ENOSYS as isize),
        }
    }
}

mod files {
    use crate::explored::{Bug, me, now, planted, point};

    pub struct Look {
        pub inode: u64,
        pub device: u64,
    }

    impl Look {
        pub fn at(fd: i32) -> Option<Look> {
            point();
            let me = me();
            let object = now().processes[me].fds.get(&(fd as usize)).copied();
            let word = now().processes[me].words[fd as usize] as u32;
            let look = |inode| Look { inode, device: 1 };
            let believed = planted(Bug::NoDoubts).then(|| look(crate::table::inode_of(word)));
            believed.or(object.map(|object: crate::explored::Object| look(object.inode)))
        }
    }
}

mod foreign {
    pub fn reach_no_more(_device: u64, _inode: u64) {}
}

/// One run at a time: what is explored lies in statics.
static ONE: Mutex<()> = Mutex::new(());

/// Processes of a family at most.
const PROCESSES: usize = 6;

/// `fork`: descriptors are copied before memory, and others of the parent's threads may get their turns in between.
fn fork() {
    if now().processes.len() >= PROCESSES {
        return;
    }
    let parent = me();
    let uncounted = planted(Bug::UncountedFork);
    let told = !uncounted && holders::before_fork();
    point();
    let (fds, excused) = {
        let now = now();
        let process = &now.processes[parent];
        (process.fds.clone(), process.excused.clone())
    };
    for _ in 0..below(6) {
        point();
    }
    let child = new_process(Some(parent));
    let with_memory = now().processes[parent].fds.clone();
    note(&format!("forks {child}, told {told}, {fds:?}"));
    now().processes[child].excused = fds.keys().copied().collect();
    now().processes[child].fds = fds.clone();
    let given = table::given().get();
    spawn(child, move || {
        table::given().set(given);
        in_child(given.0 != 0, parent);
        let own = now().processes[me()].fds.keys().copied().collect();
        live(own, 10, true);
    });
    point();
    if told || uncounted {
        // The fork is not over: what has been told until now, the child has.
        let mut now = now();
        let told = now.processes[parent].told.clone();
        // And another thread has not changed it between the two copies.
        let is_counted = |fd: &usize| {
            let lasts = with_memory.get(fd) == Some(&fds[fd]);
            lasts && told.contains(&(*fd, fds[fd].id)) && !excused.contains(fd)
        };
        let known = fds.keys().filter(|fd| is_counted(fd));
        let child = &mut now.processes[child];
        // Unless the child has come to have another one there.
        let same = known.filter(|fd| child.fds.get(fd) == Some(&fds[fd]));
        for fd in same {
            child.excused.remove(fd);
        }
    }
    if told {
        holders::after_fork(false);
    }
}

fn in_child(counted: bool, parent: usize) {
    table::wipe_counts();
    if counted && planted(Bug::KeptForChild) {
        table::keep_all();
    }
    holders::in_child();
    note("has looked at what it has inherited");
    let me = me();
    {
        let mut now = now();
        let orphan = now.processes[parent].dead || now.processes[parent].executed;
        let process = &mut now.processes[me];
        process.noticed = true;
        let own = process.fds.iter().map(|(fd, object)| (*fd, object.id));
        process.told.extend(own);
        if orphan {
            process.excused.extend(process.fds.keys());
        }
    }
    table::look();
}

/// A thread's life, with descriptors that no other thread uses.
fn live(mut own: Vec<usize>, acts: u64, forks: bool) {
    for _ in 0..acts {
        let any = |own: &Vec<usize>| own.get(below(own.len().max(1) as u64) as usize).copied();
        match below(12) {
            0..4 => own.extend(table::open()),
            4..7 => {
                if let Some(fd) = any(&own) {
                    own.retain(|other| *other != fd);
                    table::close(fd);
                }
            }
            7 => own.extend(any(&own).and_then(table::dup)),
            8 | 9 if forks => fork(),
            10 if below(4) == 0 => kill(),
            _ => point(),
        }
        table::look();
    }
    note("comes to its end");
    if below(3) != 0 {
        own.drain(..).for_each(table::close);
    } else if below(2) == 0 {
        // It executes another program, and that lives on for a while.
        note("executes");
        table::execute();
        (0..20).for_each(|_| point());
    }
}

/// Some process of the family is killed.
fn kill() {
    let mut now = now();
    let processes = now.processes.len() as u64;
    if processes < 2 {
        return;
    }
    let number = 1 + now.draw(processes - 1) as usize;
    let victim = &mut now.processes[number];
    let what = format!("kills {number}");
    let lived = !std::mem::replace(&mut victim.dead, true);
    victim.fds.clear();
    now.kills += usize::from(lived);
    now.history.push(what);
}

/// A family: its first process has two threads. What went wrong.
fn family(seed: u64, bug: Option<Bug>) -> Result<u64, String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    table::begin_anew();
    let several = !seed.is_multiple_of(3);
    let turns = run(seed, bug, move || {
        holders::begin();
        if several {
            holders::several_threads();
            spawn(me(), || live(Vec::new(), 24, false));
        }
        live(Vec::new(), 16, true);
    });
    let mixed = now().mixed.take();
    if let Some(mixed) = mixed {
        let history = now().history.join("\n");
        return Err(format!("{history}\nseed {seed}: {mixed}"));
    }
    // Somebody of the family who comes late, and has nothing, sees that nobody lives.
    table::put_private([0; table::PRIVATE]);
    holders::let_the_dead_go();
    // Who is killed in the middle of taking a description, of letting go of one, or of making a slot his, may have left it held for good.
    let (held, kills) = (table::held(), now().kills);
    match held.is_empty() || kills != 0 {
        true => Ok(turns),
        false => Err(format!(
            "seed {seed}: all are dead, and descriptions are held: {held:?}"
        )),
    }
}

fn families(seeds: std::ops::Range<u64>, bug: Option<Bug>) -> Result<u64, String> {
    seeds.map(|seed| family(seed, bug)).sum()
}

#[test]
fn families_mix_no_descriptions_and_keep_none_for_the_dead() {
    let fresh = forebay_model::fresh_seed();
    for seeds in [0..250, fresh..fresh + 150] {
        let turns = families(seeds, None).unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{turns} turns");
    }
}

#[test]
#[ignore = "long"]
fn many_families_mix_no_descriptions() {
    let fresh = forebay_model::fresh_seed();
    let cases = std::env::var("SOAK_CASES").ok();
    let cases = cases.and_then(|text| text.parse().ok()).unwrap_or(20_000);
    families(fresh..fresh + cases, None).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn planted_mistakes_are_found() {
    for bug in [
        Bug::UntoldOpening,
        Bug::NoDoubts,
        Bug::EarlyDeath,
        Bug::EternalLife,
        Bug::UncountedFork,
        Bug::KeptForChild,
        Bug::TornCount,
    ] {
        let found = families(0..4000, Some(bug));
        println!("{bug:?}: {found:?}");
        assert!(
            found.is_err(),
            "{bug:?} was planted, and nothing went wrong"
        );
    }
}
