//! How requests come to a mount and answers go: by reading and writing `/dev/fuse` ([`device`]), or by rings ([`ring`]).

pub(crate) mod device;
pub(crate) mod follow;
pub(crate) mod init;
#[cfg(test)]
mod mounted;
pub(crate) mod ring;
pub(crate) mod threads;

use std::io::IoSlice;
use std::sync::Arc;

use crate::failed::{Answer, Failed};
use crate::wire;
use device::Device;

/// The kernel takes error numbers below this one.
const ERRNO_END: i32 = 512;

/// A request. Its bytes are valid while it is being answered ([`Answers::answer`]): the memory is used again afterwards.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) header: wire::InHeader,
    /// What the operation says of itself: its own structure, whole, or less if the request is cut short.
    pub(crate) operation: &'a [u8],
    /// What follows: names, bytes to write.
    pub(crate) payload: &'a [u8],
}

/// Where an answer goes, once, from any thread and at any time. Whoever drops it without an answer has `EIO` sent.
pub(crate) struct Unanswered {
    unique: u64,
    /// `None`: it was answered.
    to: Option<To>,
}

enum To {
    Device(Arc<Device>),
    Ring(ring::Answer),
}

/// Who answers requests.
pub(crate) trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Request<'_>, to: Unanswered);
    /// The device asks no more.
    fn ended(&self) {}
}

impl Unanswered {
    /// An answer by `/dev/fuse`.
    pub(crate) fn by_device(unique: u64, device: Arc<Device>) -> Self {
        Unanswered {
            unique,
            to: Some(To::Device(device)),
        }
    }

    /// An answer by a ring.
    fn by_ring(unique: u64, answer: ring::Answer) -> Self {
        Unanswered {
            unique,
            to: Some(To::Ring(answer)),
        }
    }

    pub(crate) fn fail(mut self, failed: Failed) {
        self.send_now(errno_of(failed), &[]);
    }

    /// Sends bytes that lie in one or more places.
    pub(crate) fn send(mut self, parts: &[IoSlice<'_>]) {
        self.send_now(0, parts);
    }

    /// Sends bytes that `fill` puts into memory of `bytes`: it says how many they are, or why the request fails.
    pub(crate) fn fill(mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Answer<usize>) {
        match self.to.take() {
            Some(To::Ring(answer)) => answer.fill(bytes, |memory| fill(memory).map_err(errno_of)),
            to => {
                self.to = to;
                device::with_buffer(bytes, |memory| match fill(memory) {
                    Ok(filled) => self.send_now(0, &[IoSlice::new(&memory[..filled])]),
                    Err(failed) => self.send_now(errno_of(failed), &[]),
                });
            }
        }
    }

    /// The kernel waits for no answer.
    pub(crate) fn none(mut self) {
        self.to = None;
    }

    fn send_now(&mut self, errno: i32, parts: &[IoSlice<'_>]) {
        match self.to.take() {
            Some(To::Device(device)) => device.send(self.unique, errno, parts),
            Some(To::Ring(answer)) => answer.send(errno, parts),
            None => {}
        }
    }
}

/// By another number the kernel would take the request for done, or go on waiting.
fn errno_of(failed: Failed) -> i32 {
    match failed.0 {
        errno @ 1..ERRNO_END => errno,
        _ => libc::EIO,
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.send_now(libc::EIO, &[]);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Stands in for the kernel: what is answered to it.
    pub(crate) struct Kernel {
        ours: UnixStream,
        pub(crate) device: Arc<Device>,
    }

    impl Kernel {
        pub(crate) fn new() -> Self {
            let (ours, theirs) = UnixStream::pair().expect("two ends");
            ours.set_nonblocking(true).expect("it does not wait");
            Kernel {
                ours,
                device: Arc::new(Device::new(OwnedFd::from(theirs))),
            }
        }

        pub(crate) fn waits_for(&self, unique: u64) -> Unanswered {
            Unanswered::by_device(unique, Arc::clone(&self.device))
        }

        /// What was answered: to which request, the error, the bytes. `None`: nothing.
        pub(crate) fn answered(&self) -> Option<(u64, i32, Vec<u8>)> {
            let mut header = [0; wire::OutHeader::SIZE];
            (&self.ours).read_exact(&mut header).ok()?;
            let header = wire::OutHeader::parse(&header).expect("a header");
            let mut bytes = vec![0; header.len as usize - wire::OutHeader::SIZE];
            (&self.ours).read_exact(&mut bytes).expect("whole");
            Some((header.unique, header.error, bytes))
        }
    }

    #[test]
    fn each_request_is_answered_once() {
        let kernel = Kernel::new();
        let parts = [b"ab".as_slice(), b"", b"cde"].map(IoSlice::new);
        kernel.waits_for(7).send(&parts);
        assert_eq!(kernel.answered(), Some((7, 0, b"abcde".to_vec())));
        kernel.waits_for(8).fail(Failed(libc::ENOENT));
        assert_eq!(kernel.answered(), Some((8, -libc::ENOENT, vec![])));
        kernel.waits_for(9).none();
        assert_eq!(kernel.answered(), None);
    }

    #[test]
    fn bytes_that_are_filled_in_are_sent_or_their_error() {
        let kernel = Kernel::new();
        kernel.waits_for(1).fill(100, |memory| {
            assert_eq!(memory.len(), 100);
            memory[..3].copy_from_slice(b"xyz");
            Ok(3)
        });
        assert_eq!(kernel.answered(), Some((1, 0, b"xyz".to_vec())));
        let fails = Err(Failed(libc::ERANGE));
        kernel.waits_for(2).fill(100, |_| fails);
        assert_eq!(kernel.answered(), Some((2, -libc::ERANGE, vec![])));
        assert_eq!(kernel.answered(), None);
    }

    #[test]
    fn what_is_dropped_has_failed() {
        let kernel = Kernel::new();
        drop(kernel.waits_for(3));
        assert_eq!(kernel.answered(), Some((3, -libc::EIO, vec![])));
        let to = kernel.waits_for(4);
        let panics = || to.fill(8, |_| panic!("as a bug would"));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(panicked.is_err());
        assert_eq!(kernel.answered(), Some((4, -libc::EIO, vec![])));
    }

    #[test]
    fn an_error_that_the_kernel_would_not_take_is_another_one() {
        let kernel = Kernel::new();
        for errno in [0, 512, 1000, -1, i32::MIN, i32::MAX] {
            kernel.waits_for(5).fail(Failed(errno));
            assert_eq!(kernel.answered(), Some((5, -libc::EIO, vec![])), "{errno}");
        }
        kernel.waits_for(6).fail(Failed(511));
        assert_eq!(kernel.answered(), Some((6, -511, vec![])));
    }
}
