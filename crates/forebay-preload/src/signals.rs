//! The program's signal handlers, which wait while their thread is inside the engine.
//!
//! Where files may become managed, the kernel enters every handler through [`trampoline`]. Outside of the engine that
//! jumps on to the program's handler, which finds the stack as the kernel made it. Inside, the signal is sent to the thread once
//! more, and everything is blocked until the thread is out: the kernel keeps what has arrived, in its order, with its
//! `siginfo`. Faults never wait: one in a copy from or to the program's memory ends the copy (`memory::copy::fixup`),
//! another one inside the engine ends the process, the rest is the program's. Signals of faults that were sent are no faults; [`faults`] keeps them, unblocked as they must be. [`install`] keeps what the program believes to be installed; `hooks::signals` are the functions
//! that it calls.

mod faults;
mod queue;

pub use faults::send as send_faults;

use std::arch::naked_asm;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use forebay::memory::copy;
use libc::{c_int, c_void, siginfo_t, ucontext_t};

use crate::inside::{self, Inside};
use crate::raw;
use crate::symbols::{self, Name};

const SIGNALS: usize = 65;

/// What the program has installed for one signal.
struct Installed {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static INSTALLED: [Installed; SIGNALS] = [const {
    Installed {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

/// Handlers are entered through the trampoline.
static ATTACHED: AtomicBool = AtomicBool::new(false);

/// Signals for which something was installed before that, a bit each: after `exec` nothing is.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// libc's `sigaction`.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// An action as the kernel knows it, and as libc's callers give it; the first 64 signals are all there are.
#[derive(Clone, Copy)]
pub struct Action {
    /// A function, `SIG_DFL` or `SIG_IGN`.
    pub handler: usize,
    /// `SA_...`.
    pub flags: c_int,
    /// Blocked meanwhile, a bit each.
    pub mask: u64,
}

impl Action {
    /// From libc's form.
    ///
    /// # Safety
    /// `from` points to an action.
    pub unsafe fn read(from: *const libc::sigaction) -> Self {
        // SAFETY: the caller's promise; a set begins with the word of the first 64 signals.
        unsafe {
            Action {
                handler: (*from).sa_sigaction,
                flags: (*from).sa_flags,
                mask: (&raw const (*from).sa_mask).cast::<u64>().read(),
            }
        }
    }

    /// Into libc's form.
    pub fn to_libc(self) -> libc::sigaction {
        // SAFETY: an action of zeros is one: the default, with an empty set.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        // SAFETY: as in `read`.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(self.mask) };
        action
    }

    fn is_function(self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }
}

/// Signals that the processor raises, in the middle of what it cannot go on with.
fn is_fault(signal: c_int) -> bool {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS].contains(&signal)
}

/// Faults that end the process where the engine raises them, whatever handler the program has: its stack has come to an end, mostly. The
/// thread may hold what others wait for, and a handler that goes on would wait for it as well.
fn is_own_fault(signal: c_int) -> bool {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE].contains(&signal)
}

/// Faults that a copy may meet.
fn is_of_memory(signal: c_int) -> bool {
    signal == libc::SIGSEGV || signal == libc::SIGBUS
}

/// The same, a bit each.
const FAULTS_OF_MEMORY: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Everything but faults, which the kernel answers with death where they are blocked.
const BLOCKED_INSIDE: u64 = !(bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS));

/// libc's own `sigaction`: it knows the way back out of a handler. The old action, or -1 and `errno`.
fn real(signal: c_int, new: Option<Action>) -> Result<Action, c_int> {
    let mut pointer = REAL.load(Ordering::Relaxed);
    if pointer.is_null() {
        pointer = symbols::find_anywhere(const { Name::new("sigaction\0") });
        REAL.store(pointer, Ordering::Relaxed);
    }
    let new = new.map(Action::to_libc);
    let new_or_null = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: libc's function of this type, which the dynamic linker finds wherever libc is; the actions are ours.
    unsafe {
        let function: unsafe extern "C" fn(
            c_int,
            *const libc::sigaction,
            *mut libc::sigaction,
        ) -> c_int = std::mem::transmute(pointer);
        match function(signal, new_or_null, old.as_mut_ptr()) {
            0 => Ok(Action::read(old.as_ptr())),
            failed => Err(failed),
        }
    }
}

/// What `sigaction` does for the program: the old action; an error is in `errno`.
pub fn install(signal: c_int, new: Option<Action>) -> Result<Action, c_int> {
    let known = usize::try_from(signal).ok().filter(|&s| s < SIGNALS);
    let (Some(index), true) = (known, ATTACHED.load(Ordering::Acquire)) else {
        if let (Some(1..), true) = (known, new.is_some()) {
            EARLY.fetch_or(bit(signal), Ordering::Relaxed);
        }
        return real(signal, new);
    };
    let installed = &INSTALLED[index];
    let Some(new) = new else {
        return real(signal, None).map(|is| as_the_program_sees_it(installed, is));
    };
    let before = snapshot(installed);
    // A handler that is entered from here on is the new one.
    if new.is_function() {
        keep(installed, new);
    }
    match real(signal, Some(through_us(signal, new))) {
        Ok(was) => {
            keep(installed, new);
            Ok(if was.handler == trampoline_address() {
                before
            } else {
                was
            })
        }
        Err(failed) => {
            keep(installed, before);
            Err(failed)
        }
    }
}

fn keep(installed: &Installed, action: Action) {
    installed.flags.store(action.flags, Ordering::Relaxed);
    installed.mask.store(action.mask, Ordering::Relaxed);
    installed.handler.store(action.handler, Ordering::Release);
}

fn snapshot(installed: &Installed) -> Action {
    Action {
        handler: installed.handler.load(Ordering::Acquire),
        flags: installed.flags.load(Ordering::Relaxed),
        mask: installed.mask.load(Ordering::Relaxed),
    }
}

fn as_the_program_sees_it(installed: &Installed, is: Action) -> Action {
    if is.handler == trampoline_address() {
        snapshot(installed)
    } else {
        is
    }
}

fn trampoline_address() -> usize {
    trampoline as *const () as usize
}

/// The action that the kernel gets for one of the program's. A handler for one signal only is reset by us: the kernel would
/// reset the trampoline when it is entered, though the signal may have to wait.
fn through_us(signal: c_int, action: Action) -> Action {
    if action.is_function() {
        Action {
            handler: trampoline_address(),
            flags: (action.flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND,
            mask: action.mask,
        }
    } else if is_of_memory(signal) {
        Action {
            handler: trampoline_address(),
            flags: libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART,
            mask: 0,
        }
    } else {
        action
    }
}

/// From now on handlers are entered through the trampoline. For when the library knows that files may become managed; other
/// libraries may have begun before.
pub fn attached() {
    if ATTACHED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _errno = raw::KeepErrno::new();
    for signal in 1..SIGNALS as c_int {
        if EARLY.load(Ordering::Relaxed) & bit(signal) == 0 && !is_of_memory(signal) {
            continue;
        }
        let Ok(is) = real(signal, None) else { continue };
        if is.handler == trampoline_address() || !(is.is_function() || is_of_memory(signal)) {
            continue;
        }
        keep(&INSTALLED[signal as usize], is);
        let _ = real(signal, Some(through_us(signal, is)));
    }
}

/// Actions that are asked for are the kernel's from now on, until [`go_on`]: a child of `vfork` has its own, and our memory.
pub fn rest() {
    ATTACHED.store(false, Ordering::Release);
}

/// They are the process's again.
pub fn go_on() {
    ATTACHED.store(true, Ordering::Release);
}

/// Whether they are.
#[inline]
pub fn is_attached() -> bool {
    ATTACHED.load(Ordering::Acquire)
}

const IGNORED: Action = Action {
    handler: libc::SIG_IGN,
    flags: 0,
    mask: 0,
};

/// Signals of faults that the program ignores, and that the kernel gives to [`trampoline`]: it is to know that they are ignored, and so is the
/// program that is executed, which would get them as they are by default.
pub fn tell_ignored() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let is_ours = || real(signal, None).is_ok_and(|is| is.handler == trampoline_address());
        if snapshot(&INSTALLED[signal as usize]).handler == libc::SIG_IGN && is_ours() {
            let _ = real(signal, Some(IGNORED));
        }
    }
}

/// Executes a program, which ignores the faults that this one ignores. If it returns, they are this one's again: its copies need them.
pub fn replaced<T>(execute: impl FnOnce() -> T) -> T {
    {
        let _errno = raw::KeepErrno::new();
        tell_ignored();
    }
    let failed = execute();
    let _errno = raw::KeepErrno::new();
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let action = snapshot(&INSTALLED[signal as usize]);
        let is_told = || real(signal, None).is_ok_and(|is| is.handler == libc::SIG_IGN);
        if is_attached() && action.handler == libc::SIG_IGN && is_told() {
            let _ = real(signal, Some(through_us(signal, action)));
        }
    }
    failed
}

/// Where the kernel enters: a call to [`decide`], then a jump to the program's handler with the stack as it was.
///
/// # Safety
/// For the kernel only.
#[unsafe(naked)]
unsafe extern "C" fn trampoline(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "call {decide}",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        ".cfi_endproc",
        decide = sym decide,
    )
}

/// What to do with a signal: the handler to go on to, or 0 to go back. Makes raw system calls only, and leaves `errno` alone.
///
/// # Safety
/// The arguments are those that the kernel gives to a handler.
unsafe extern "C" fn decide(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut ucontext_t,
) -> usize {
    // SAFETY: the kernel's `siginfo`.
    let raised_by_processor = is_fault(signal) && unsafe { (*info).si_code } > 0;
    if raised_by_processor && is_of_memory(signal) {
        // SAFETY: the kernel's context, which the thread goes on with.
        let ip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        if let Some(out) = copy::fixup(*ip as usize) {
            *ip = out as i64;
            return 0;
        }
    }
    if is_fault(signal) && !raised_by_processor && inside::keeps_faults() {
        // SAFETY: the kernel's `siginfo`.
        unsafe { faults::keep(signal, &*info) };
        return 0;
    }
    if Inside::is() && BLOCKED_INSIDE & bit(signal) != 0 {
        // SAFETY: as above; the kernel's set is one word.
        unsafe {
            let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
            block_all();
            inside::hold_signals(mask.read());
            mask.write(BLOCKED_INSIDE);
            let mut again = queue::to_send(&*info);
            send_again(signal, &mut again);
        }
        return 0;
    }
    if raised_by_processor && is_own_fault(signal) && Inside::is() {
        // The instruction is run again, this time for the kernel.
        let _ = real(signal, Some(DEFAULT));
        return 0;
    }
    // SAFETY: as above.
    unsafe {
        if queue::arrived(&mut *info) == queue::Arrived::Nothing {
            return 0;
        }
        handler_for(signal, info, raised_by_processor)
    }
}

/// The program's handler, or 0 if the kernel sees to it: then the action is its own by now.
///
/// # Safety
/// `info` is the signal's.
unsafe fn handler_for(signal: c_int, info: *mut siginfo_t, raised_by_processor: bool) -> usize {
    let Some(installed) = INSTALLED.get(signal as usize) else {
        return 0;
    };
    let action = snapshot(installed);
    if action.handler == libc::SIG_IGN && !raised_by_processor {
        return 0;
    }
    if !action.is_function() {
        // The instruction is run again and raises the signal again, this time for the kernel; what was sent is sent again.
        let _ = real(signal, Some(DEFAULT));
        if !raised_by_processor {
            // SAFETY: the caller's promise.
            unsafe { send_again(signal, info) };
        }
        return 0;
    }
    if action.flags & libc::SA_RESETHAND != 0 {
        let _ = real(signal, Some(through_us(signal, DEFAULT)));
        let taken = installed.handler.compare_exchange(
            action.handler,
            libc::SIG_DFL,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if taken.is_err() {
            // Another thread was first.
            // SAFETY: the caller's promise.
            unsafe { send_again(signal, info) };
            return 0;
        }
    }
    if (action.mask | bit(signal)) & FAULTS_OF_MEMORY != 0 {
        inside::ask_again();
    }
    action.handler
}

const DEFAULT: Action = Action {
    handler: libc::SIG_DFL,
    flags: 0,
    mask: 0,
};

/// Sends a signal to this thread once more, as it was.
///
/// # Safety
/// `info` is a signal's.
unsafe fn send_again(signal: c_int, info: *mut siginfo_t) {
    let (process, thread) = (raw::process_id() as usize, raw::thread_id() as usize);
    // SAFETY: the kernel reads a `siginfo`; a process may send any to itself.
    unsafe {
        let arguments = [process, thread, signal as usize, info.addr(), 0, 0];
        if raw::call(libc::SYS_rt_tgsigqueueinfo, arguments) < 0 {
            // The queue is full: without its `siginfo`.
            raw::call(
                libc::SYS_tgkill,
                [process, thread, signal as usize, 0, 0, 0],
            );
        }
    }
}

/// Blocks all signals but faults. Returns what was blocked.
fn block_all() -> u64 {
    set_mask(libc::SIG_SETMASK, BLOCKED_INSIDE)
}

/// Of the signals that a copy may raise, those that the program has blocked.
pub fn blocked_faults() -> u64 {
    set_mask(libc::SIG_BLOCK, 0) & FAULTS_OF_MEMORY
}

/// The kernel ends a process that faults while such a signal is blocked.
pub fn unblock_faults() {
    set_mask(libc::SIG_UNBLOCK, FAULTS_OF_MEMORY);
}

/// Blocks more signals.
pub fn block(signals: u64) {
    set_mask(libc::SIG_BLOCK, signals);
}

/// The thread is out: what has waited is delivered now.
pub fn unblock(mask: u64) {
    set_mask(libc::SIG_SETMASK, mask);
}

fn set_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    let (from, to) = ((&raw const mask).addr(), (&raw mut before).addr());
    let arguments = [how as usize, from, to, 8, 0, 0];
    // SAFETY: the kernel reads one word and writes another.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, arguments) };
    before
}
