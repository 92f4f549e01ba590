//! Programs that are executed with an environment of their own get what led this process into its session: without it they, and
//! all that they start, would be outsiders (`docs/decisions/0020-environments.md`).
//!
//! Works in the child of a `vfork` as well: takes no memory, and changes none but its own stack.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{c_int, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::{Args, Onward, actions, number, or, patience, programs};
use crate::program::peek;
use crate::{raw, signals};

unsafe extern "C" {
    pub static environ: *const *const c_char;
}

pub type List = *const *const c_char;

/// Variables that are kept.
const KEPT_MAX: usize = 48;
/// Variables of an environment that is looked at: one with more has not been stripped.
const OTHERS_MAX: usize = 400;
/// How the loader's list of libraries begins, and our variables.
const PRELOAD: [u8; 8] = *b"LD_PRELO";
const OURS: [u8; 8] = *b"FOREBAY_";

/// The variables as this process got them. Null from the first on that is none.
static KEPT: [AtomicPtr<c_char>; KEPT_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; KEPT_MAX];

/// At start, before the program runs.
pub fn remember() {
    let mut kept = KEPT.iter();
    // SAFETY: the environment that the process was started with; nobody changes it during start.
    unsafe {
        let mut list = environ;
        while !list.is_null() && !(*list).is_null() {
            // No look through the guarded copy, whose code would be one more page for each process.
            let begins =
                |with: [u8; 8]| libc::strncmp(*list, with.as_ptr().cast(), with.len()) == 0;
            if (begins(PRELOAD) || begins(OURS))
                && let Some(place) = kept.next()
            {
                place.store((*list).cast_mut(), Relaxed);
            }
            list = list.add(1);
        }
    }
}

/// One more variable that the programs get which this one executes.
pub fn keep(variable: &'static CStr) {
    let pointer = variable.as_ptr().cast_mut();
    let free = |place: &&AtomicPtr<c_char>| place.load(Relaxed).is_null();
    if let Some(place) = KEPT.iter().find(free) {
        place.store(pointer, Relaxed);
    }
}

/// Reads a value of the program's; `None` where there is none. The child of a `vfork` has no handlers for faults, so the kernel is asked.
fn look<T: Copy>(at: usize) -> Option<T> {
    if signals::is_attached() {
        return peek(at);
    }
    let mut value = MaybeUninit::<T>::uninit();
    let part = |at: usize| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: size_of::<T>(),
    };
    let (to, from) = (part(value.as_mut_ptr().expose_provenance()), part(at));
    let (to, from) = ((&raw const to).addr(), (&raw const from).addr());
    // SAFETY: writes to `value` alone. Callers ask for plain structures of C, for which any bytes will do.
    unsafe {
        let own = raw::call(libc::SYS_getpid, [0; 6]) as usize;
        let got = raw::call(libc::SYS_process_vm_readv, [own, to, 1, from, 1, 0]);
        (got == size_of::<T>() as isize).then(|| value.assume_init())
    }
}

/// The first bytes of a string. A shorter one that memory ends after is none of those that are looked for.
fn begin_of(string: usize) -> [u8; 8] {
    look(string).unwrap_or_default()
}

fn is_any(begin: [u8; 8]) -> bool {
    begin == PRELOAD || begin == OURS
}

/// What is kept and still there: programs write their titles over the environment that they were started with.
fn kept() -> impl Iterator<Item = *const c_char> {
    let all = KEPT.iter().map(|place| place.load(Relaxed).cast_const());
    all.take_while(|variable| !variable.is_null())
        .filter(|variable| is_any(begin_of(variable.addr())))
}

/// Whether an environment has been made without regard to the session: a program that leaves out the library alone means that.
fn is_stripped(list: usize) -> bool {
    if !kept().any(|variable| begin_of(variable.addr()) == PRELOAD) {
        return false;
    }
    let all = variables(list).take(OTHERS_MAX + 1);
    let mut count = 0;
    for variable in all {
        count += 1;
        if is_any(begin_of(variable)) {
            return false;
        }
    }
    count <= OTHERS_MAX
}

/// The addresses in a list that ends in a null, or where there is no memory.
fn variables(list: usize) -> impl Iterator<Item = usize> {
    let words = (0..).map_while(move |index| {
        let at = list.checked_add(index * size_of::<usize>())?;
        (list != 0).then(|| look::<usize>(at)).flatten()
    });
    words.take_while(|&variable| variable != 0)
}

/// A list with what has been kept.
struct Repaired([*const c_char; OTHERS_MAX + KEPT_MAX + 1]);

impl Repaired {
    fn of(list: List) -> Self {
        let mut all = [std::ptr::null(); OTHERS_MAX + KEPT_MAX + 1];
        let others = variables(list.addr()).take(OTHERS_MAX);
        let others = others.map(std::ptr::with_exposed_provenance);
        for (place, variable) in all.iter_mut().zip(others.chain(kept())) {
            *place = variable;
        }
        Repaired(all)
    }
}

/// Where to go on: by way of `repaired`, which comes here again, or straight on, `patiently` where there is such a way.
fn by(args: &Args, list: u64, repaired: usize, patiently: usize) -> usize {
    if is_stripped(list as usize) {
        return repaired;
    }
    onward(programs::replace(args).address(), patiently)
}

fn onward(step: usize, patiently: usize) -> usize {
    if step == 0 && patience::may_be_needed() {
        return patiently;
    }
    step
}

/// `execve(path, arguments, environment)`
pub fn execve(args: &Args) -> usize {
    by(
        args,
        args[2],
        repaired_execve as *const () as usize,
        patience::execve as *const () as usize,
    )
}

/// `execvpe(name, arguments, environment)`
pub fn execvpe(args: &Args) -> usize {
    by(
        args,
        args[2],
        repaired_execvpe as *const () as usize,
        patience::execvpe as *const () as usize,
    )
}

/// `execv(path, arguments)`: the environment is the process's.
pub fn execv(args: &Args) -> usize {
    by(
        args,
        own(),
        repaired_execv as *const () as usize,
        patience::execv as *const () as usize,
    )
}

/// `execvp(name, arguments)`
pub fn execvp(args: &Args) -> usize {
    by(
        args,
        own(),
        repaired_execvp as *const () as usize,
        patience::execvp as *const () as usize,
    )
}

/// `fexecve(fd, arguments, environment)`
pub fn fexecve(args: &Args) -> usize {
    by(
        args,
        args[2],
        repaired_fexecve as *const () as usize,
        patience::fexecve as *const () as usize,
    )
}

/// `execveat(directory, path, arguments, environment, flags)`
pub fn execveat(args: &Args) -> usize {
    by(
        args,
        args[3],
        repaired_execveat as *const () as usize,
        patience::execveat as *const () as usize,
    )
}

/// As [`by`], for a call that returns an error number.
fn spawn_by(args: &Args, list: u64, repaired: usize, patiently: usize) -> usize {
    if is_stripped(list as usize) {
        return repaired;
    }
    let given = programs::run(args).and_then(|()| actions::reach(args[2]));
    onward(or(given, number), patiently)
}

/// `posix_spawn(pid, path, actions, attributes, arguments, environment)`
pub fn posix_spawn(args: &Args) -> usize {
    spawn_by(
        args,
        args[5],
        repaired_spawn as *const () as usize,
        patience::posix_spawn as *const () as usize,
    )
}

/// `posix_spawnp`, likewise.
pub fn posix_spawnp(args: &Args) -> usize {
    spawn_by(
        args,
        args[5],
        repaired_spawnp as *const () as usize,
        patience::posix_spawnp as *const () as usize,
    )
}

fn own() -> u64 {
    // SAFETY: one word of libc's, which is always there; that it may change meanwhile is the program's own race.
    unsafe { environ.addr() as u64 }
}

// Each is what libc's function is, with another list; the functions that they call are our hooks, which find it repaired. SAFETY, for
// all of them: the caller's arguments go on as they came, and the list lives until the call returns.

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_execve(path: *const c_char, arguments: List, list: List) -> c_int {
    let list = Repaired::of(list);
    // SAFETY: as above.
    unsafe { libc::execve(path, arguments, list.0.as_ptr()) }
}

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_execvpe(name: *const c_char, arguments: List, list: List) -> c_int {
    let list = Repaired::of(list);
    // SAFETY: as above.
    unsafe { libc::execvpe(name, arguments, list.0.as_ptr()) }
}

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: as above.
    unsafe { repaired_execve(path, arguments, environ) }
}

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_execvp(name: *const c_char, arguments: List) -> c_int {
    // SAFETY: as above.
    unsafe { repaired_execvpe(name, arguments, environ) }
}

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_fexecve(fd: c_int, arguments: List, list: List) -> c_int {
    let list = Repaired::of(list);
    // SAFETY: as above.
    unsafe { libc::fexecve(fd, arguments, list.0.as_ptr()) }
}

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_execveat(
    directory: c_int,
    path: *const c_char,
    arguments: List,
    list: List,
    flags: c_int,
) -> c_int {
    unsafe extern "C" {
        fn execveat(_: c_int, _: *const c_char, _: List, _: List, _: c_int) -> c_int;
    }
    let list = Repaired::of(list);
    // SAFETY: as above.
    unsafe { execveat(directory, path, arguments, list.0.as_ptr(), flags) }
}

pub type Actions = *const posix_spawn_file_actions_t;
pub type Attributes = *const posix_spawnattr_t;

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: Actions,
    attributes: Attributes,
    arguments: List,
    list: List,
) -> c_int {
    let list = Repaired::of(list);
    let (arguments, list) = (arguments.cast(), list.0.as_ptr().cast());
    // SAFETY: as above.
    unsafe { libc::posix_spawn(pid, path, actions, attributes, arguments, list) }
}

/// # Safety
/// As for libc's function.
unsafe extern "C" fn repaired_spawnp(
    pid: *mut libc::pid_t,
    name: *const c_char,
    actions: Actions,
    attributes: Attributes,
    arguments: List,
    list: List,
) -> c_int {
    let list = Repaired::of(list);
    let (arguments, list) = (arguments.cast(), list.0.as_ptr().cast());
    // SAFETY: as above.
    unsafe { libc::posix_spawnp(pid, name, actions, attributes, arguments, list) }
}
