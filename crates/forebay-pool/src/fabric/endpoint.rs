//! This process's endpoint of one provider: libfabric's objects, requests under way, and who drives them.
//!
//! A request is an [`Op`], which has the memory that libfabric reads or fills. It is in `under_way` from before libfabric learns of it until libfabric
//! has said that it is over; libfabric knows it by its address. When the endpoint is closed, libfabric touches none of it any more, and only then do
//! requests go that nobody has answered.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem;
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::bindings as raw;
use super::library::{Library, unless_ended};
use super::names::{self, Form};
use super::objects::{Info, Objects, Signals, name_of, open_objects};
use super::ops::{Carried, Landing, Op};
use super::peers::{Inserted, Peer};
use super::region::{Key, Local, Region};
use super::{Error, Provider};

/// How long whoever waits looks again and again before he sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// How long the endpoint's thread sleeps at most while something is registered and its provider cannot wake it.
pub const NAP: Duration = Duration::from_millis(1);

pub(super) fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an endpoint's users, regions and thread share.
pub(super) struct Inner {
    // In this order: the endpoint is closed before requests go.
    pub(super) objects: Objects,
    pub(super) under_way: Mutex<HashMap<usize, Arc<Op>>>,
    pub(super) library: &'static Library,
    provider: Provider,
    pub(super) mr_mode: c_int,
    length_max: usize,
    pub(super) addresses: Form,
    address: Vec<u8>,
    /// What the kernel wakes the thread by.
    pub(super) wait_fd: Option<c_int>,
    pub(super) peers: Mutex<HashMap<Vec<u8>, Weak<Inserted>>>,
    /// Regions that others may use.
    pub(super) exposed: AtomicUsize,
    pub(super) is_closed: AtomicBool,
    /// Somebody has registered or waited since the thread looked.
    pub(super) is_woken: AtomicBool,
    /// A request was not answered, and what comes after it never would be.
    is_spoiled: AtomicBool,
    driver: Mutex<Option<thread::Thread>>,
}

// SAFETY: the domain was asked to be safe for threads (FI_THREAD_SAFE), and everything else has locks.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A process's endpoint of one provider. Any number of threads may use it.
pub struct Fabric {
    inner: Arc<Inner>,
    driver: Option<JoinHandle<()>>,
}

impl Fabric {
    /// An endpoint of this provider, at this address of the host's; `shm` needs none.
    ///
    /// # Errors
    /// libfabric or the provider is not there, or refuses.
    pub fn open(provider: Provider, at: Option<IpAddr>) -> Result<Fabric, Error> {
        let library = Library::load()?;
        let info = Info::find(library, provider, at)?;
        if provider == Provider::Shm {
            names::sweep();
        }
        let signals = Signals::now();
        let made = Inner::make(library, provider, &info);
        signals.restore();
        let inner = Arc::new(made?);
        let own = Arc::clone(&inner);
        let driver = thread::Builder::new().name("fabric".to_string());
        let driver = driver.spawn(move || own.drive());
        let driver = driver.map_err(|why| Error::Call("a thread", why.to_string()))?;
        *locked(&inner.driver) = Some(driver.thread().clone());
        // It may have gone to sleep before anybody knew whom to wake.
        driver.thread().unpark();
        Ok(Fabric {
            inner,
            driver: Some(driver),
        })
    }

    /// Which provider it is of.
    pub fn provider(&self) -> Provider {
        self.inner.provider
    }

    /// How others reach it.
    pub fn address(&self) -> &[u8] {
        &self.inner.address
    }

    /// Whether it reads and writes no more, since somebody has not answered: `shm` needs another endpoint then. What is registered is not touched by it.
    pub fn is_spoiled(&self) -> bool {
        self.inner.is_spoiled()
    }

    /// Lets others read these bytes.
    ///
    /// # Errors
    /// The provider has no room, or the host lets it lock no more memory.
    pub fn register(&self, bytes: Bytes) -> Result<(Region, Key), Error> {
        Region::fixed(&self.inner, bytes)
    }

    /// Memory of so many bytes, zeros at first, that others may read and write.
    ///
    /// # Errors
    /// As for [`Fabric::register`].
    pub fn share(&self, length: usize) -> Result<(Region, Key), Error> {
        Region::shared(&self.inner, length)
    }

    /// Whoever has this address. That it is one is checked, not that anybody is there.
    ///
    /// # Errors
    /// It is none, or the provider takes no more peers.
    pub fn peer(&self, address: &[u8]) -> Result<Peer, Error> {
        Inner::peer(&self.inner, address).map(Peer)
    }

    /// Fills the memory with bytes of a peer's region, from this offset on, and gives it back.
    ///
    /// # Errors
    /// The key is good no more, the peer has gone, or it has not answered in time. The memory is gone then.
    pub fn read(
        &self,
        peer: &Peer,
        (key, offset): (Key, u64),
        into: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        let mut all = self.read_all(peer, vec![(key, offset, into)], limit)?;
        Ok(all.pop().unwrap_or_default())
    }

    /// Several reads at once.
    ///
    /// # Errors
    /// Of the first that fails.
    pub fn read_all(
        &self,
        peer: &Peer,
        wanted: Vec<(Key, u64, Vec<u8>)>,
        limit: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let wanted = wanted.into_iter();
        let carried = wanted.map(|(key, at, into)| (key, at, Carried::Filled(into)));
        let ended = self.inner.run_all(peer, carried, Instant::now() + limit)?;
        Ok({ ended.into_iter() }.map(Carried::into_filled).collect())
    }

    /// Reads parts of regions, from their offsets on and so many, into memory where they lie one behind the other.
    ///
    /// # Errors
    /// As for [`Fabric::read_all`].
    pub fn gather(
        &self,
        peer: &Peer,
        wanted: Vec<(Key, u64, usize)>,
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        let all = { wanted.iter() }.try_fold(0_usize, |all, part| all.checked_add(part.2));
        let landing = vec![0; all.ok_or(Error::Range)?];
        let landing = Arc::new(Landing(UnsafeCell::new(landing)));
        let mut at = 0;
        let carried = wanted.into_iter().map(|(key, offset, length)| {
            let part = Carried::Part(Arc::clone(&landing), at, length);
            at += length;
            (key, offset, part)
        });
        let ended = self.inner.run_all(peer, carried, Instant::now() + limit)?;
        drop(ended);
        // All have been waited for, so that nobody else has it.
        let landing = Arc::try_unwrap(landing);
        let landing = landing.map_err(|_| Error::Failed("a request is under way".to_string()))?;
        Ok(landing.0.into_inner())
    }

    /// Puts bytes into a peer's region, from this offset on. They are there when this returns.
    ///
    /// # Errors
    /// As for [`Fabric::read`].
    pub fn write(
        &self,
        peer: &Peer,
        (key, offset): (Key, u64),
        bytes: Bytes,
        limit: Duration,
    ) -> Result<(), Error> {
        self.write_all(peer, vec![(key, offset, bytes)], limit)
    }

    /// Several writes at once, in no order.
    ///
    /// # Errors
    /// Of the first that fails. Others may have been done.
    pub fn write_all(
        &self,
        peer: &Peer,
        sent: Vec<(Key, u64, Bytes)>,
        limit: Duration,
    ) -> Result<(), Error> {
        let sent = sent.into_iter();
        let carried = sent.map(|(key, at, bytes)| (key, at, Carried::Sent(bytes)));
        let ended = self.inner.run_all(peer, carried, Instant::now() + limit);
        ended.map(drop)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.inner.is_closed.store(true, Ordering::Relaxed);
        self.inner.wake();
        if let Some(driver) = self.driver.take() {
            // It does not panic; if it has, there is nothing to mend.
            let _ = driver.join();
        }
    }
}

impl Inner {
    fn make(library: &'static Library, provider: Provider, info: &Info) -> Result<Inner, Error> {
        let mut objects = Objects {
            ep: ptr::null_mut(),
            cq: ptr::null_mut(),
            av: ptr::null_mut(),
            domain: ptr::null_mut(),
            fabric: ptr::null_mut(),
        };
        // SAFETY: libfabric has filled the description, with all of its parts.
        let (mr_mode, form, length_max) = unsafe {
            let info = &*info.info;
            let mode = (*info.domain_attr).mr_mode;
            let most = (*info.ep_attr).max_msg_size;
            (mode, Form::of(info.addr_format), most)
        };
        let addresses = form.ok_or(Error::Address)?;
        // `shm` has nothing that the kernel could wake anybody by.
        let wakes = provider != Provider::Shm;
        // SAFETY: the description outlives the call, and the objects are nobody else's.
        let opened = unless_ended(|| unsafe {
            let wait_fd = open_objects(library, info.info, &mut objects, wakes)?;
            // The endpoint has just been made and is enabled.
            Ok((wait_fd, name_of(library, objects.ep)?))
        });
        let (wait_fd, address) = opened.unwrap_or(Err(Error::Ended))?;
        Ok(Inner {
            objects,
            under_way: Mutex::default(),
            library,
            provider,
            mr_mode,
            length_max: length_max as usize,
            addresses,
            address,
            wait_fd,
            peers: Mutex::default(),
            exposed: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
            is_spoiled: AtomicBool::new(false),
            driver: Mutex::default(),
        })
    }

    pub(super) fn has_mode(&self, bit: u32) -> bool {
        self.mr_mode & bit as c_int != 0
    }

    /// Whether regions are known by where they lie, and not by offsets.
    pub(super) fn by_address(&self) -> bool {
        self.has_mode(raw::FI_MR_VIRT_ADDR)
    }

    /// Whether this side's memory must be registered too.
    pub(super) fn wants_local(&self) -> bool {
        self.has_mode(raw::FI_MR_LOCAL)
    }

    /// There is one region more, or less.
    pub(super) fn exposed(&self, is_more: bool) {
        if is_more {
            self.exposed.fetch_add(1, Ordering::Relaxed);
            self.wake();
        } else {
            self.exposed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn wake(&self) {
        self.is_woken.store(true, Ordering::Relaxed);
        if let Some(driver) = &*locked(&self.driver) {
            driver.unpark();
        }
    }

    /// Does requests, all at once, and says what they carried. It waits for none of them when one has failed.
    fn run_all(
        &self,
        peer: &Peer,
        wanted: impl Iterator<Item = (Key, u64, Carried)>,
        until: Instant,
    ) -> Result<Vec<Carried>, Error> {
        let begun = wanted.map(|(key, at, carried)| self.begin(peer, (key, at), carried, until));
        let begun: Vec<_> = begun.collect::<Result<_, _>>()?;
        { begun.iter() }.map(|op| self.wait(op, until)).collect()
    }

    /// Begins a request, waiting until the provider takes it.
    fn begin(
        &self,
        peer: &Peer,
        (key, offset): (Key, u64),
        carried: Carried,
        until: Instant,
    ) -> Result<Arc<Op>, Error> {
        if !ptr::eq(peer.0.inner.as_ptr(), self) {
            return Err(Error::Peer);
        }
        if self.is_spoiled() {
            return Err(Error::Spoiled);
        }
        let op = Op::new(carried, peer);
        let mut state = locked(&op.state);
        let (first, length, is_read) = match &mut state.carried {
            Carried::Filled(into) => (into.as_mut_ptr().cast::<c_void>(), into.len(), true),
            Carried::Part(landing, at, length) => {
                // SAFETY: the vector is neither moved nor looked at while requests have it. Its parts end where it ends.
                let first = unsafe { (*landing.0.get()).as_mut_ptr().add(*at) };
                (first.cast(), *length, true)
            }
            Carried::Sent(from) => (from.as_ptr().cast_mut().cast(), from.len(), false),
        };
        let (address, key) = key.of(offset, length)?;
        if length > self.length_max {
            return Err(Error::Range);
        }
        let access = if is_read { raw::FI_READ } else { raw::FI_WRITE };
        // SAFETY: the memory stays in the request, which nobody looks into before it is over.
        let local = unsafe { Local::of(self, first, length, access.into()) }?;
        let descriptor = local.descriptor();
        state.local = Some(local);
        drop(state);
        let context = Arc::as_ptr(&op).cast_mut().cast::<c_void>();
        locked(&self.under_way).insert(context as usize, Arc::clone(&op));
        let mut post = || {
            // SAFETY: the endpoint is open as long as `self`. The request, and so its memory and its context, is in `under_way` until libfabric
            // has said that it is over, or the endpoint is closed. Bytes that are sent are only read, although the type says otherwise.
            unsafe {
                let ep = self.objects.ep;
                let rma = &*(*ep).rma;
                let (length, at) = (length as u64, peer.0.at);
                match (is_read, rma.read, rma.write) {
                    (true, Some(read), _) => {
                        read(ep, first, length, descriptor, at, address, key, context)
                    }
                    (false, _, Some(write)) => {
                        write(ep, first, length, descriptor, at, address, key, context)
                    }
                    _ => -i64::from(libc::ENOSYS),
                }
            }
        };
        match self.post(&mut post, until) {
            Ok(()) => Ok(op),
            Err(why) => {
                locked(&self.under_way).remove(&(context as usize));
                Err(why)
            }
        }
    }

    /// Hands a request to the provider, again and again while it is being connected or has too much under way.
    fn post(&self, post: &mut dyn FnMut() -> i64, until: Instant) -> Result<(), Error> {
        let again = -i64::from(raw::FI_EAGAIN);
        loop {
            let ended = -i64::from(libc::ECANCELED);
            let returned = unless_ended(&mut *post).unwrap_or(ended);
            if returned == 0 {
                return Ok(());
            }
            if returned == again && Instant::now() < until {
                if self.progress() == 0 {
                    thread::yield_now();
                }
                continue;
            }
            return Err(if returned == again {
                self.unanswered()
            } else {
                Error::Failed(self.library.text((-returned) as c_int))
            });
        }
    }

    /// Waits until a request is over: looks for a while, and then lets the endpoint's thread look.
    fn wait(&self, op: &Op, until: Instant) -> Result<Carried, Error> {
        let mut looks_until = Instant::now() + SPIN;
        while !op.is_over() && Instant::now() < looks_until {
            if self.progress() > 0 {
                looks_until = Instant::now() + SPIN;
            }
        }
        let mut state = locked(&op.state);
        if state.outcome.is_none() {
            self.wake();
        }
        loop {
            if let Some(outcome) = state.outcome.take() {
                state.local = None;
                let nothing = Carried::Filled(Vec::new());
                return outcome.map(|()| mem::replace(&mut state.carried, nothing));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.unanswered());
            }
            let slept = op.is_over.wait_timeout(state, left);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_spoiled(&self) -> bool {
        self.is_spoiled.load(Ordering::Relaxed)
    }

    /// Nobody has answered in time. `shm` takes answers in the order of their requests, so that there are no more after one that never comes.
    fn unanswered(&self) -> Error {
        if self.provider == Provider::Shm {
            self.is_spoiled.store(true, Ordering::Relaxed);
        }
        Error::Timeout
    }
}
