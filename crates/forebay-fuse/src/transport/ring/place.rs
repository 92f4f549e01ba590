//! A place of a ring: memory that the kernel puts a request into, and takes its answer from.
//!
//! Life of a place: *with the kernel* until a request comes -> *here* while that is answered -> with the kernel again. While it is here the kernel sends its
//! thread no other request. So it does not matter how long an answer takes, or who gives it: the place's thread waits for it.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::super::{Answers, Request, Unanswered};
use crate::wire::{self, InHeader, OutHeader, RingEntry};

/// `struct fuse_uring_req_header`: a request's header, and its answer's; what the operation says of itself; what a ring says of a request.
pub(super) const HEAD_BYTES: usize = HEAD_ENTRY + RingEntry::SIZE;
const HEAD_OPERATION: usize = 128;
const HEAD_ENTRY: usize = 256;
const _: () = assert!(HEAD_BYTES == 288);
/// The heads have a page of their own, so that the bytes to write, or to read, begin with one.
const PAGE: usize = 4096;
/// Bytes that a place keeps when nothing has come for a while.
const KEPT_BYTES: usize = 64 << 10;

/// Anonymous memory: a page for the heads, then names and bytes. What no request has needed is not there yet.
struct Memory {
    start: NonNull<u8>,
    payload_bytes: usize,
}

// SAFETY: the memory is this value's own, and goes with it. Who reaches it, and when, is said where that is done.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(payload_bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                PAGE + payload_bytes,
                protection,
                flags | MapFlags::NORESERVE,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory {
            start,
            payload_bytes,
        })
    }

    fn payload(&self) -> NonNull<u8> {
        // SAFETY: the mapping is a page longer than the payload, and the payload is not empty.
        unsafe { self.start.add(PAGE) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length. Whoever reaches it has the place, and nobody has it any more; the kernel reaches it in calls of the place's thread, which makes none afterwards.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), PAGE + self.payload_bytes) };
    }
}

/// What a request was answered.
#[derive(Clone, Copy)]
struct Told {
    /// How many bytes, or the error's number.
    result: Result<usize, i32>,
    /// They lie in [`Place::beside`], not in the place's memory.
    is_beside: bool,
}

/// See the module's documentation.
pub(super) struct Place {
    memory: Memory,
    told: Mutex<Option<Told>>,
    is_told: Condvar,
    /// An answer to a request whose own bytes are still in the place's memory: somebody may be reading them.
    beside: Mutex<Vec<u8>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// Memory for requests and answers with up to so many bytes.
    pub(super) fn new(payload_bytes: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Place {
            memory: Memory::new(payload_bytes)?,
            told: Mutex::new(None),
            is_told: Condvar::new(),
            beside: Mutex::default(),
        }))
    }

    /// Where the heads lie, and where names and bytes, as the kernel wants to hear it.
    pub(super) fn parts(&self) -> [libc::iovec; 2] {
        let part = |start: NonNull<u8>, bytes| libc::iovec {
            iov_base: start.as_ptr().cast(),
            iov_len: bytes,
        };
        [
            part(self.memory.start, HEAD_BYTES),
            part(self.memory.payload(), self.memory.payload_bytes),
        ]
    }

    /// Has the request answered that has come, waits for the answer and puts it where the kernel takes it. Returns by which number it takes it, and how many
    /// bytes of the memory were used; `None` if what has come is no request.
    ///
    /// # Safety
    /// The place is here, not with the kernel, and its thread is the one that calls this.
    pub(super) unsafe fn answer(self: &Arc<Self>, answers: &impl Answers) -> Option<(u64, usize)> {
        let mut heads = [0; HEAD_BYTES];
        // SAFETY: the heads are so long, initialised, since the mapping begins as zeros, and nobody's but this thread's while the place is here.
        unsafe {
            copy(
                self.memory.start,
                NonNull::from(&mut heads).cast(),
                heads.len(),
            )
        };
        let header = InHeader::parse(&heads)?;
        let entry = RingEntry::parse(&heads[HEAD_ENTRY..])?;
        let bytes = (entry.payload_sz as usize).min(self.memory.payload_bytes);
        let own = wire::own_bytes(header.opcode).min(HEAD_ENTRY - HEAD_OPERATION);
        // SAFETY: of the mapping, which this place keeps, and initialised as the heads are. Nobody writes to it before this function's end, where the slice is gone:
        // the kernel not while the place is here, and an answer only if this slice is empty.
        let payload = unsafe { std::slice::from_raw_parts(self.memory.payload().as_ptr(), bytes) };
        let request = Request {
            header,
            operation: &heads[HEAD_OPERATION..][..own],
            payload,
        };
        *locked(&self.told) = None;
        let to = Answer {
            place: Arc::clone(self),
            is_beside: bytes > 0,
            is_given: false,
        };
        let to = Unanswered::by_ring(header.unique, to);
        // A panic ends at the request: whoever waits for it gets an error, since nobody has answered.
        let _ = catch_unwind(AssertUnwindSafe(|| answers.answer(request, to)));
        let told = self.await_answer();
        // SAFETY: the answer is given, so nobody else has the memory any more.
        let answered = unsafe { self.put(told, &entry, header.unique) };
        Some((entry.commit_id, bytes.max(answered)))
    }

    fn await_answer(&self) -> Told {
        let mut told = locked(&self.told);
        loop {
            match told.take() {
                Some(told) => return told,
                None => told = { self.is_told.wait(told) }.unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// # Safety
    /// Nobody else reaches the place's memory.
    unsafe fn put(&self, told: Told, entry: &RingEntry, unique: u64) -> usize {
        let bytes = told.result.unwrap_or(0);
        if told.is_beside {
            let beside = locked(&self.beside);
            let beside = &beside[..bytes];
            // SAFETY: an answer is no longer than the memory, and the caller promises the rest.
            unsafe { copy(NonNull::from(beside).cast(), self.memory.payload(), bytes) };
        }
        let out = OutHeader {
            len: (OutHeader::SIZE + bytes) as u32,
            error: told.result.map_or_else(|errno| -errno, |_| 0),
            unique,
        };
        let entry = RingEntry {
            payload_sz: bytes as u32,
            ..*entry
        };
        let (out, entry) = (out.bytes(), entry.bytes());
        // SAFETY: both lie in the heads, and the caller promises the rest.
        unsafe {
            copy(NonNull::from(&out).cast(), self.memory.start, out.len());
            let at = self.memory.start.add(HEAD_ENTRY);
            copy(NonNull::from(&entry).cast(), at, entry.len());
        }
        bytes
    }

    /// Gives the memory back that only large requests need. Nothing is kept of its bytes.
    ///
    /// # Safety
    /// No request is here, and the place's thread is the one that calls this: the kernel copies only in calls of that thread.
    pub(super) unsafe fn give_back(&self) {
        if let Some(bytes) = self.memory.payload_bytes.checked_sub(KEPT_BYTES) {
            // SAFETY: of the mapping; the caller promises that nobody needs what it holds. It is zeros from then on.
            let _ = unsafe {
                let from = self.memory.payload().add(KEPT_BYTES);
                madvise(from.as_ptr().cast(), bytes, Advice::LinuxDontNeed)
            };
        }
        *locked(&self.beside) = Vec::new();
    }

    /// Whether a request that used so many bytes leaves some to give back.
    pub(super) fn is_large(bytes: usize) -> bool {
        bytes > KEPT_BYTES
    }
}

/// Copies bytes.
///
/// # Safety
/// Both are mapped for so many bytes, those of `from` are initialised, and nobody else writes either meanwhile, or reads `to`. They do not overlap.
unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { from.copy_to_nonoverlapping(to, bytes) };
}

/// An answer's way to its place, for one answer.
pub(in crate::transport) struct Answer {
    place: Arc<Place>,
    is_beside: bool,
    is_given: bool,
}

impl Answer {
    /// Sends bytes, or an error's number if that is not 0.
    pub(in crate::transport) fn send(self, errno: i32, parts: &[IoSlice<'_>]) {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.fill(bytes, |mut memory| {
            if errno != 0 {
                return Err(errno);
            }
            for part in parts {
                let (own, rest) = memory.split_at_mut(part.len());
                own.copy_from_slice(part);
                memory = rest;
            }
            Ok(bytes)
        });
    }

    /// Sends what `fill` puts into memory of `bytes`: so many bytes, or an error.
    pub(in crate::transport) fn fill(
        mut self,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>,
    ) {
        let place = Arc::clone(&self.place);
        let result = if bytes > place.memory.payload_bytes {
            Err(libc::EIO)
        } else if self.is_beside {
            let mut beside = locked(&place.beside);
            beside.resize(bytes, 0);
            fill(&mut beside)
        } else {
            // SAFETY: of the mapping, which the place keeps, and initialised since it begins as zeros. A request has one answer, which this call ends; the
            // place's thread waits for it, so that the kernel copies nothing; and the request's own bytes are none.
            fill(unsafe { std::slice::from_raw_parts_mut(place.memory.payload().as_ptr(), bytes) })
        };
        self.give(result.map(|filled| filled.min(bytes)));
    }

    fn give(&mut self, result: Result<usize, i32>) {
        self.is_given = true;
        let told = Told {
            result,
            is_beside: self.is_beside,
        };
        *locked(&self.place.told) = Some(told);
        self.place.is_told.notify_one();
    }
}

/// A place gets its answer, come what may: its thread waits for it.
impl Drop for Answer {
    fn drop(&mut self) {
        if !self.is_given {
            self.give(Err(libc::EIO));
        }
    }
}
