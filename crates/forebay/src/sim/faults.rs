//! A device that fails under real programs: the n-th call on one file, counted over all processes that are told so.
//!
//! The orders lie in a file that all of them map: a program finds its name in `FOREBAY__SIM_FAULT`, a test says it by [`obey`].
//! [`crate::device::RealFile`] asks [`pass`] before each of its calls. A call that fails does nothing. A program that finds the name of a bug
//! in `FOREBAY__SIM_BUG` has it from then on.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};

/// A call on a device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read.
    Read = 1,
    /// A write past the kernel's cache.
    WriteDirect,
    /// A write by way of the kernel's cache, or a read where a direct one has failed.
    Cached,
    /// `fdatasync` or `fsync`.
    Sync,
    /// `ftruncate`.
    SetLen,
    /// Space is reserved.
    Reserve,
    /// A hole is punched.
    Punch,
}

/// What is to fail, and what has failed.
#[repr(C)]
#[derive(Default)]
pub struct Orders {
    /// The file.
    pub inode: AtomicU64,
    /// Calls until the first one that fails, it included; 0: none fails.
    pub countdown: AtomicU64,
    /// How many more fail after that.
    pub more: AtomicU64,
    /// With what.
    pub errno: AtomicU32,
    /// What has failed first, a [`Call`], or 0.
    pub failed: AtomicU32,
    /// Calls so far, of those that count.
    pub calls: AtomicU64,
    /// Which count: those of one kind, a [`Call`], or 0 for all.
    pub only: AtomicU32,
}

static ORDERS: AtomicPtr<Orders> = AtomicPtr::new(std::ptr::null_mut());
static ASKED: Once = Once::new();

/// Maps the orders in a file, which is made long enough, for good.
///
/// # Errors
/// Those of the file's calls.
pub fn obey(path: &Path) -> io::Result<&'static Orders> {
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.set_len(size_of::<Orders>() as u64)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of a file that is as long; it is never unmapped, and others change it only as atomics do.
    let orders = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            size_of::<Orders>(),
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        &*at.cast::<Orders>()
    };
    ORDERS.store(std::ptr::from_ref(orders).cast_mut(), SeqCst);
    Ok(orders)
}

/// The orders that this process has, if any.
pub fn orders() -> Option<&'static Orders> {
    ASKED.call_once(|| {
        if let Some(path) = std::env::var_os("FOREBAY__SIM_FAULT") {
            obey(Path::new(&path)).expect("orders");
        }
        if let Ok(bug) = std::env::var("FOREBAY__SIM_BUG") {
            super::plant_everywhere(&bug);
        }
    });
    // SAFETY: mapped for good once it is not null.
    unsafe { ORDERS.load(SeqCst).as_ref() }
}

/// A call on a file is about to be made.
///
/// # Errors
/// It is one that fails.
pub fn pass(inode: u64, call: Call) -> io::Result<()> {
    let Some(orders) = orders().filter(|orders| orders.inode.load(SeqCst) == inode) else {
        return Ok(());
    };
    let only = orders.only.load(SeqCst);
    if only != 0 && only != call as u32 {
        return Ok(());
    }
    orders.calls.fetch_add(1, SeqCst);
    let fewer = |left: u64| left.checked_sub(1);
    let first = orders.countdown.fetch_update(SeqCst, SeqCst, fewer) == Ok(1);
    let is_over = orders.countdown.load(SeqCst) == 0 && orders.failed.load(SeqCst) != 0;
    if first {
        orders.failed.store(call as u32, SeqCst);
    } else if !is_over || orders.more.fetch_update(SeqCst, SeqCst, fewer).is_err() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(
        orders.errno.load(SeqCst) as i32
    ))
}
