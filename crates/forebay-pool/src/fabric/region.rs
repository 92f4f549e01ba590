//! Memory that others may read, or read and write, as long as its key is good.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Error;
use super::bindings as raw;
use super::endpoint::Inner;
use super::library::unless_ended;
use super::objects::{close, draw};

/// How often a key that is taken already is drawn anew.
const DRAWS: usize = 8;

/// By what others use a region. Nobody guesses it, where the provider lets this side choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    key: u64,
    /// What the provider calls its first byte.
    base: u64,
    length: u64,
}

impl Key {
    /// A key that opens nothing by libfabric, for tests that have no libfabric.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64, length: u64) -> Key {
        Key {
            key: number,
            base: 0,
            length,
        }
    }

    /// Its number.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.key
    }

    /// Bytes of the region, as the other side says.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where bytes of the region are for the provider, and the provider's key.
    pub(super) fn of(&self, offset: u64, length: usize) -> Result<(u64, u64), Error> {
        let end = offset.checked_add(length as u64).ok_or(Error::Range)?;
        let address = self.base.checked_add(offset).ok_or(Error::Range)?;
        let last = self.base.checked_add(self.length);
        if end > self.length || last.is_none() {
            return Err(Error::Range);
        }
        Ok((address, self.key))
    }
}

/// What is registered.
enum Memory {
    /// Others read it, and nobody writes it.
    Fixed(Bytes),
    /// Others read and write it while this process may look.
    Shared(Box<[AtomicU8]>),
}

impl Memory {
    fn first(&self) -> *const c_void {
        match self {
            Memory::Fixed(bytes) => bytes.as_ptr().cast(),
            Memory::Shared(bytes) => bytes.as_ptr().cast(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Memory::Fixed(bytes) => bytes.len(),
            Memory::Shared(bytes) => bytes.len(),
        }
    }

    fn access(&self) -> u64 {
        match self {
            Memory::Fixed(_) => raw::FI_REMOTE_READ.into(),
            Memory::Shared(_) => u64::from(raw::FI_REMOTE_READ | raw::FI_REMOTE_WRITE),
        }
    }
}

/// Registered memory. When it is dropped, its key is good no more.
pub struct Region {
    // In this order: what is registered is closed before its memory goes, and before the endpoint does.
    registered: Option<Registered>,
    memory: Memory,
    inner: Arc<Inner>,
}

/// libfabric's object for it.
struct Registered {
    mr: *mut raw::fid_mr,
}

// SAFETY: the object is closed once, by whoever owns it, and its provider was asked to be safe for threads.
unsafe impl Send for Registered {}
// SAFETY: nothing but `drop` uses the pointer.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: `open` has made the object, and nobody else closes it; the domain is open while its region holds the endpoint.
        unsafe { close(self.mr) };
    }
}

impl Region {
    pub(super) fn fixed(inner: &Arc<Inner>, bytes: Bytes) -> Result<(Region, Key), Error> {
        Region::new(inner, Memory::Fixed(bytes))
    }

    pub(super) fn shared(inner: &Arc<Inner>, length: usize) -> Result<(Region, Key), Error> {
        let bytes = (0..length).map(|_| AtomicU8::new(0)).collect();
        Region::new(inner, Memory::Shared(bytes))
    }

    fn new(inner: &Arc<Inner>, memory: Memory) -> Result<(Region, Key), Error> {
        inner.exposed(true);
        let mut region = Region {
            registered: None,
            memory,
            inner: Arc::clone(inner),
        };
        let key = region.renew()?;
        Ok((region, key))
    }

    /// Gives it another key. With the old one nothing is read or written any more, when this returns.
    ///
    /// # Errors
    /// The provider has no room; then there is no key.
    pub fn renew(&mut self) -> Result<Key, Error> {
        self.registered = None;
        let (first, length) = (self.memory.first(), self.memory.len());
        // SAFETY: the memory is this region's until `registered` is closed. Fixed bytes are only read by others; shared ones are atomic.
        let mr = unsafe { self.inner.register(first, length, self.memory.access()) }?;
        self.registered = Some(Registered { mr });
        // SAFETY: the object has just been made.
        let key = unsafe { (*mr).key };
        let base = if self.inner.by_address() {
            first as u64
        } else {
            0
        };
        Ok(Key {
            key,
            base,
            length: length as u64,
        })
    }

    /// Copies bytes out of it. They may change meanwhile, if others write.
    ///
    /// # Panics
    /// There are fewer.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) {
        match &self.memory {
            Memory::Fixed(bytes) => into.copy_from_slice(&bytes[offset..offset + into.len()]),
            Memory::Shared(bytes) => {
                let from = &bytes[offset..offset + into.len()];
                for (to, from) in into.iter_mut().zip(from) {
                    *to = from.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// Copies bytes into memory that is shared. Others may write meanwhile.
    ///
    /// # Panics
    /// There is no room for them, or the region is fixed.
    pub fn copy_from(&self, offset: usize, from: &[u8]) {
        let Memory::Shared(bytes) = &self.memory else {
            panic!("bytes that are fixed");
        };
        for (to, from) in bytes[offset..offset + from.len()].iter().zip(from) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.registered = None;
        self.inner.exposed(false);
    }
}

/// Memory of this side's that a provider wants to have registered for one request.
pub(super) struct Local(Option<Registered>);

impl Local {
    /// What a provider needs to know of bytes that it reads or fills; nothing, for most.
    ///
    /// # Safety
    /// The bytes stay where they are until this is dropped, and nobody else uses them in a way that `access` forbids.
    pub unsafe fn of(
        inner: &Inner,
        first: *const c_void,
        length: usize,
        access: u64,
    ) -> Result<Local, Error> {
        if !inner.wants_local() {
            return Ok(Local(None));
        }
        // SAFETY: as the caller says.
        let mr = unsafe { inner.register(first, length, access) }?;
        Ok(Local(Some(Registered { mr })))
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> *mut c_void {
        self.0.as_ref().map_or(ptr::null_mut(), |registered| {
            // SAFETY: the object lives as long as `registered`.
            unsafe { (*registered.mr).mem_desc }
        })
    }
}

impl Inner {
    /// Registers memory.
    ///
    /// # Safety
    /// It stays where it is until the object is closed, and nobody uses it in a way that `access` forbids.
    pub(super) unsafe fn register(
        &self,
        first: *const c_void,
        length: usize,
        access: u64,
    ) -> Result<*mut raw::fid_mr, Error> {
        let mut returned = 0;
        for _ in 0..DRAWS {
            let key = if self.has_mode(raw::FI_MR_PROV_KEY) {
                0
            } else {
                draw()?
            };
            let mut mr = ptr::null_mut();
            // SAFETY: the domain is open as long as `self`; as the caller says for the rest.
            let called = unless_ended(|| unsafe {
                let domain = self.objects.domain;
                let Some(register) = (*(*domain).mr).reg else {
                    return -libc::ENOSYS;
                };
                let domain = &raw mut (*domain).fid;
                register(
                    domain,
                    first,
                    length as u64,
                    access,
                    0,
                    key,
                    0,
                    &mut mr,
                    ptr::null_mut(),
                )
            });
            returned = called.ok_or(Error::Ended)?;
            match returned {
                0 => return Ok(mr),
                // Somebody has this key already.
                _ if -returned == raw::FI_ENOKEY as c_int => {}
                _ => break,
            }
        }
        Err(self.library.failed("fi_mr_reg", returned.into()))
    }
}
