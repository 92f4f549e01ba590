//! Who drives an endpoint: whoever waits, and a thread of the endpoint's.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::Error;
use super::bindings as raw;
use super::endpoint::{Inner, NAP, SPIN, locked};
use super::library::{has_ended, unless_ended};

/// How long the thread of a provider that cannot wake it only lets others go first, after somebody has registered or waited.
const EAGER: Duration = Duration::from_millis(2);

/// How long it waits for the provider to wake it, before it looks whether the endpoint is to be closed.
const WATCH_MS: c_int = 50;

/// Completions that are taken at once.
const BATCH: usize = 16;

impl Inner {
    /// Lets the provider go on, and says how many requests are over by it.
    pub(super) fn progress(&self) -> usize {
        let mut entries: [mem::MaybeUninit<raw::fi_cq_entry>; BATCH] =
            [mem::MaybeUninit::uninit(); BATCH];
        let cq = self.objects.cq;
        // SAFETY: the queue is open as long as `self`, and there is room for so many.
        let read = unless_ended(|| unsafe {
            let read = (*(*cq).ops).read;
            read.map_or(0, |read| {
                read(cq, entries.as_mut_ptr().cast(), BATCH as u64)
            })
        });
        let read = read.unwrap_or(0);
        if read == -i64::from(raw::FI_EAVAIL) {
            return self.take_error();
        }
        let count = usize::try_from(read).unwrap_or(0).min(BATCH);
        for entry in &entries[..count] {
            // SAFETY: so many have been written.
            let context = unsafe { entry.assume_init() }.op_context;
            self.end(context, Ok(()));
        }
        count
    }

    fn take_error(&self) -> usize {
        let cq = self.objects.cq;
        // SAFETY: zeros are such an entry, and the queue is open as long as `self`.
        let taken = unless_ended(|| unsafe {
            let mut entry: raw::fi_cq_err_entry = mem::zeroed();
            let read = (*(*cq).ops).readerr;
            (read.map_or(0, |read| read(cq, &mut entry, 0)), entry)
        });
        let Some((read, entry)) = taken else {
            return 0;
        };
        if read <= 0 {
            return 0;
        }
        let why = Error::Failed(self.library.text(entry.err));
        self.end(entry.op_context, Err(why));
        1
    }

    /// What libfabric says of a request. What is not of ours is passed over.
    fn end(&self, context: *mut c_void, outcome: Result<(), Error>) {
        let op = locked(&self.under_way).remove(&(context as usize));
        if let Some(op) = op {
            locked(&op.state).outcome = Some(outcome);
            op.is_over.notify_all();
        }
    }

    /// What the endpoint's thread does until it is closed.
    pub(super) fn drive(&self) {
        // What can wake it need not be looked for.
        let busy = if self.wait_fd.is_some() { SPIN } else { EAGER };
        let mut nap = Duration::ZERO;
        let mut busy_until = Instant::now();
        while !self.is_closed.load(Ordering::Relaxed) && !has_ended() {
            if self.progress() > 0 || self.is_woken.swap(false, Ordering::Relaxed) {
                busy_until = Instant::now() + busy;
                nap = Duration::ZERO;
                continue;
            }
            let is_idle = self.exposed.load(Ordering::Relaxed) == 0;
            if is_idle && locked(&self.under_way).is_empty() {
                // Whoever registers or waits wakes it, also one who has done so since.
                thread::park();
            } else if Instant::now() < busy_until {
                thread::yield_now();
            } else if let Some(fd) = self.wait_fd {
                self.sleep(fd);
            } else {
                nap = (nap * 2).clamp(Duration::from_micros(20), NAP);
                thread::park_timeout(nap);
            }
        }
    }

    /// Sleeps until the provider has something to do.
    fn sleep(&self, fd: c_int) {
        let cq = self.objects.cq;
        // SAFETY: the objects are open as long as `self`.
        let may_sleep = unless_ended(|| unsafe {
            let fabric = self.objects.fabric;
            let mut fid = &raw mut (*cq).fid;
            let trywait = (*(*fabric).ops).trywait;
            trywait.is_none_or(|trywait| trywait(fabric, &mut fid, 1) == 0)
        });
        if may_sleep != Some(true) {
            return;
        }
        let mut polled = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: it is one, and the descriptor is open as long as the queue.
        unsafe { libc::poll(&mut polled, 1, WATCH_MS) };
    }
}
