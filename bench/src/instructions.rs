//! Instructions that this thread has executed in user space, by the processor's counter: a figure that does not hang on
//! what else runs.

use std::fs::File;
use std::io::Read;
use std::mem::size_of;
use std::os::fd::FromRawFd;

/// `struct perf_event_attr`, its first version (64 bytes).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// `PERF_TYPE_HARDWARE`, and of it `PERF_COUNT_HW_INSTRUCTIONS`.
const HARDWARE: u32 = 0;
const INSTRUCTIONS: u64 = 1;
/// `exclude_kernel` and `exclude_hv`.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

/// `PERF_FLAG_FD_CLOEXEC`.
const FLAG_CLOEXEC: libc::c_ulong = 8;

/// A counter of the calling thread, running from now on.
pub struct Instructions(Option<File>);

impl Instructions {
    /// Begins to count, if the kernel and the processor let us.
    pub fn new() -> Self {
        let attributes = Attributes {
            kind: HARDWARE,
            size: size_of::<Attributes>() as u32,
            config: INSTRUCTIONS,
            flags: USER_ONLY,
            ..Attributes::default()
        };
        // SAFETY: the kernel reads `size` bytes of the attributes, which are alive, and gives a descriptor of our own.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                0,
                -1,
                -1,
                FLAG_CLOEXEC,
            )
        };
        // SAFETY: a fresh descriptor that nobody else has.
        Instructions((fd >= 0).then(|| unsafe { File::from_raw_fd(fd as i32) }))
    }

    /// How many there have been. `None`: they are not counted here.
    pub fn read(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        let mut file = self.0.as_ref()?;
        file.read_exact(&mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }
}
