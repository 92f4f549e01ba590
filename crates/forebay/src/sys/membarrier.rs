//! A full barrier in every thread that maps the arena, paid by the caller (`membarrier(2)`).

const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;

/// Registers this process for global expedited barriers, and issues one. `false` where the kernel refuses; a session
/// must then use full fences.
pub fn register() -> bool {
    call(REGISTER_GLOBAL_EXPEDITED) && call(GLOBAL_EXPEDITED)
}

/// Registers this process, which may never need it.
pub fn prepare() {
    call(REGISTER_GLOBAL_EXPEDITED);
}

/// A full barrier in every running thread of every registered process. `false` where the kernel refuses: a process that could have
/// it when it joined has confined itself since (seccomp).
pub fn global_expedited() -> bool {
    call(GLOBAL_EXPEDITED)
}

fn call(command: libc::c_int) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
