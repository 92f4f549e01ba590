//! How requests come to a mount and answers go: by reading and writing `/dev/fuse` ([`device`]).

pub(crate) mod device;
pub(crate) mod init;
pub(crate) mod threads;

use std::io::IoSlice;
use std::sync::Arc;

use crate::failed::{Answer, Failed};
use crate::wire;
use device::Device;

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
}

/// Who answers requests.
pub(crate) trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Request<'_>, to: Unanswered);
}

impl Unanswered {
    /// An answer by `/dev/fuse`.
    pub(crate) fn by_device(unique: u64, device: Arc<Device>) -> Self {
        Unanswered {
            unique,
            to: Some(To::Device(device)),
        }
    }

    pub(crate) fn fail(mut self, failed: Failed) {
        self.send_now(failed.0, &[]);
    }

    /// Sends bytes that lie in one or more places.
    pub(crate) fn send(mut self, parts: &[IoSlice<'_>]) {
        self.send_now(0, parts);
    }

    /// Sends bytes that `fill` puts into memory of `bytes`: it says how many they are, or why the request fails.
    pub(crate) fn fill(mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Answer<usize>) {
        match &self.to {
            Some(To::Device(_)) => device::with_buffer(bytes, |memory| match fill(memory) {
                Ok(filled) => self.send_now(0, &[IoSlice::new(&memory[..filled])]),
                Err(failed) => self.send_now(failed.0, &[]),
            }),
            None => {}
        }
    }

    /// The kernel waits for no answer.
    pub(crate) fn none(mut self) {
        self.to = None;
    }

    fn send_now(&mut self, errno: i32, parts: &[IoSlice<'_>]) {
        match self.to.take() {
            Some(To::Device(device)) => device.send(self.unique, errno, parts),
            None => {}
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.send_now(libc::EIO, &[]);
    }
}
