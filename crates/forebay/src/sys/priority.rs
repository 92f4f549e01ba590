//! How much a thread gets of a core that others want, too.

/// About a tenth of what others get.
const NICE: libc::c_int = 10;

/// Makes the calling thread give way to others. Where that is refused, it goes on as it is.
pub fn be_nice() {
    // All threads of a simulation are one.
    #[cfg(feature = "sim")]
    if crate::sim::tasks::is_on() {
        return;
    }
    // SAFETY: concerns the calling thread alone (0), and no memory.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Makes the calling thread one that runs where nobody else of its group wants to ([`super::scheduling`]). Threads that it starts are so, too. Where that is refused, it goes on as it is.
pub fn make_idle() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: concerns the calling thread alone (0); the kernel reads the parameter, which lives until the call returns.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
}

/// Whether the calling thread is such a one.
pub fn is_idle() -> bool {
    // SAFETY: concerns the calling thread alone (0), and no memory.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // A child may be told not to have it.
    policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_IDLE
}

/// The shortest turn that the kernel gives a thread, ns.
const TURN_NS: u64 = 100_000;

/// `struct sched_attr`, as its first version is.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Makes the calling thread one of short turns: it gets no more of a core than others, but comes at once when it is woken, also where they are busy
/// (Linux 6.12). Where that is refused, or not known, it goes on as it is.
pub fn be_prompt() {
    let len = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    let target = &raw mut attributes;
    // SAFETY: concerns the calling thread alone (0); the target is ours, and as long as said.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, target, len, 0) };
    if got != 0 || attributes.policy != libc::SCHED_OTHER as u32 {
        return;
    }
    let prompt = Attributes {
        size: len,
        runtime: TURN_NS,
        ..attributes
    };
    // SAFETY: as above; the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const prompt, 0) };
}
