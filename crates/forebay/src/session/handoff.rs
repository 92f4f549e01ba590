//! Handing a file's descriptors to the keeper before its first byte is acknowledged (architecture 4.5).
//!
//! A client whose keeper is another process connects to the session's socket and sends, for each file that it
//! manages, the two descriptors its device file has, and the number of descriptions it has open; the keeper answers
//! with one byte. When the connection ends the client is gone, and what it had open is taken from the files' counts. The
//! socket's other end is checked by uid. A keeper in the client's own process needs no socket.

mod desk;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::DeviceFile;
use crate::ids::FileId;
use crate::keeper::run::has_keeper;
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::socket;
pub use desk::Desk;

/// Message: file, what, the session's random name.
const MESSAGE_BYTES: usize = 16;
const MANAGE: u32 = 1;
const RELEASE: u32 = 2;
/// The same for descriptions that only read, without descriptors.
const MANAGE_READER: u32 = 3;
const RELEASE_READER: u32 = 4;
/// Whatever the file owes shall be written.
const FLUSH: u32 = 5;
/// The keeper shall have one description of the file instead of two.
const UNITE: u32 = 6;
/// As [`RELEASE`], of a file with a lease on it, and without an answer.
const LEFT: u32 = 7;
/// After [`MANAGE_READER`], with descriptors that can only be read by.
const LEND: u32 = 8;
/// The keeper shall see who opens the file that comes with it.
const WATCH: u32 = 9;
/// Does a program outside the session use it?
const LOOK: u32 = 10;
/// As [`RELEASE`], of a description that this keeper has not been handed.
const UNUSED: u32 = 11;
/// The keeper shall take a lease on a file that is about to be left to it.
const LEASE: u32 = 12;
/// How long a keeper waits for its flushers to let go of a device file.
const CLOSE_TRIES: u32 = 1000;
const CLOSE_PAUSE: Duration = Duration::from_micros(100);
const DONE: u8 = b'+';
const REFUSED: u8 = b'-';

fn encode(file: FileId, what: u32, session: u64) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&file.0.to_le_bytes());
    message[4..8].copy_from_slice(&what.to_le_bytes());
    message[8..].copy_from_slice(&session.to_le_bytes());
    message
}

fn decode(message: &[u8; MESSAGE_BYTES]) -> (FileId, u32, u64) {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| message[at + i]));
    let session = u64::from(word(8)) | (u64::from(word(12)) << 32);
    (FileId(word(0)), word(4), session)
}

/// The socket of the session whose arena is at `arena`.
pub fn socket_path(arena: &Path) -> PathBuf {
    arena.with_extension("sock")
}

/// A client's connection to the keeper.
#[derive(Default)]
pub struct Line {
    connection: Mutex<Option<(u32, OwnedFd)>>,
    /// The session's tick + 1 when the keeper last could not be reached.
    failed: AtomicU64,
    relocate: OnceLock<fn(OwnedFd) -> OwnedFd>,
}

impl Line {
    /// Hands a file over to the keeper of this epoch. `false`: it could not be reached, and may be at another time: a keeper
    /// takes office a moment before it listens. While no keeper lives the clock stands, and it is not tried again.
    pub fn hand_over(
        &self,
        shared: &Shared,
        file: FileId,
        device: &dyn DeviceFile,
        epoch: u32,
    ) -> bool {
        let Some((direct, buffered)) = device.descriptors() else {
            return true;
        };
        let tick = shared.arena.superblock().tick.load(Ordering::Relaxed);
        if self.failed.load(Relaxed) == u64::from(tick) + 1 {
            return false;
        }
        let message = encode(file, MANAGE, shared.session_name_word());
        match self.send_and_wait(shared, epoch, message, &[direct, buffered]) {
            // Refused is an answer, too.
            Some(_) => true,
            None => {
                self.failed.store(u64::from(tick) + 1, Relaxed);
                false
            }
        }
    }

    /// Says that this process has one description fewer of the file. When this returns the keeper has closed its own of a file
    /// that nobody has open any more.
    pub fn release(&self, shared: &Shared, file: FileId, epoch: u32) {
        self.tell(shared, file, RELEASE, epoch);
    }

    /// As [`Line::release`], to a keeper that the description was not handed to.
    pub fn say_unused(&self, shared: &Shared, file: FileId, epoch: u32) {
        self.tell(shared, file, UNUSED, epoch);
    }

    /// Says that this process has one more description that reads the file.
    pub fn announce_reader(&self, shared: &Shared, file: FileId, epoch: u32) {
        self.tell(shared, file, MANAGE_READER, epoch);
    }

    /// Hands over what the keeper reads ahead with.
    pub fn lend(&self, shared: &Shared, file: FileId, device: &dyn DeviceFile, epoch: u32) {
        if let Some((direct, buffered)) = device.descriptors() {
            let message = encode(file, LEND, shared.session_name_word());
            self.ask(shared, epoch, message, &[direct, buffered]);
        }
    }

    /// Says that this process has one such description fewer.
    pub fn release_reader(&self, shared: &Shared, file: FileId, epoch: u32) {
        self.tell(shared, file, RELEASE_READER, epoch);
    }

    /// Asks the keeper to write what the file owes. `false`: it cannot be reached, or could not write everything.
    pub fn ask_to_flush(&self, shared: &Shared, file: FileId) -> bool {
        let epoch = shared
            .arena
            .superblock()
            .keeper_epoch
            .load(Ordering::Relaxed);
        self.tell(shared, file, FLUSH, epoch)
    }

    /// Has the keeper make one description of the two that it has of a file. `false`: it has not, or cannot.
    pub fn ask_to_unite(&self, shared: &Shared, file: FileId, epoch: u32) -> bool {
        self.tell(shared, file, UNITE, epoch)
    }

    /// Has the keeper take a lease on a file that both have the same description of. `false`: it cannot, or not now.
    pub fn ask_for_lease(&self, shared: &Shared, file: FileId, epoch: u32) -> bool {
        self.tell(shared, file, LEASE, epoch)
    }

    /// Has the keeper see who opens a file. `None`: it cannot be reached.
    pub fn ask_to_watch(&self, shared: &Shared, fd: BorrowedFd<'_>) -> Option<bool> {
        self.ask_about(shared, WATCH, fd)
    }

    /// Whether a program outside the session has the file open. `None`: the keeper cannot be reached.
    pub fn ask_who_uses(&self, shared: &Shared, fd: BorrowedFd<'_>) -> Option<bool> {
        self.ask_about(shared, LOOK, fd)
    }

    fn ask_about(&self, shared: &Shared, what: u32, fd: BorrowedFd<'_>) -> Option<bool> {
        let superblock = shared.arena.superblock();
        let epoch = superblock.keeper_epoch.load(Ordering::Relaxed);
        // The clock stands while a keeper is stopped, too.
        let tick = u64::from(superblock.tick.load(Ordering::Relaxed)) + 1;
        if !has_keeper(&shared.arena) || self.failed.load(Relaxed) == tick {
            return None;
        }
        let message = encode(FileId(0), what, shared.session_name_word());
        let answer = self.send_and_wait(shared, epoch, message, &[fd]);
        if answer.is_none() {
            self.failed.store(tick, Relaxed);
        }
        answer.map(|answer| answer == DONE)
    }

    /// As [`Line::release`], for a file that the keeper goes on with under a lease; returns at once. `false`: this keeper
    /// cannot be reached any more.
    pub fn say_left(&self, shared: &Shared, file: FileId, epoch: u32) -> bool {
        let message = encode(file, LEFT, shared.session_name_word());
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connection
            .as_ref()
            .is_some_and(|(of, fd)| *of == epoch && socket::send(fd.as_fd(), &message, &[]).is_ok())
    }

    /// Where connections' descriptors are put from now on.
    pub fn relocate(&self, relocate: fn(OwnedFd) -> OwnedFd) {
        let _ = self.relocate.set(relocate);
    }

    /// Puts a descriptor there.
    pub fn placed(&self, fd: OwnedFd) -> OwnedFd {
        match self.relocate.get() {
            Some(relocate) => relocate(fd),
            None => fd,
        }
    }

    fn tell(&self, shared: &Shared, file: FileId, what: u32, epoch: u32) -> bool {
        let message = encode(file, what, shared.session_name_word());
        self.ask(shared, epoch, message, &[])
    }

    fn ask(
        &self,
        shared: &Shared,
        epoch: u32,
        message: [u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> bool {
        self.send_and_wait(shared, epoch, message, descriptors) == Some(DONE)
    }

    /// The keeper's answer, if there was one.
    fn send_and_wait(
        &self,
        shared: &Shared,
        epoch: u32,
        message: [u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> Option<u8> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if connection.as_ref().is_none_or(|(of, _)| *of != epoch) {
            *connection = shared
                .arena_path
                .as_ref()
                .and_then(|path| socket::connect(&socket_path(path)).ok())
                .map(|fd| (epoch, self.placed(fd)));
        }
        let answer = connection.as_ref().and_then(|(_, fd)| {
            let mut answer = [0];
            let answered = socket::send(fd.as_fd(), &message, descriptors).is_ok()
                && matches!(socket::wait_readable(&[fd.as_fd()], 5000), Ok(true))
                && matches!(socket::receive(fd.as_fd(), &mut answer), Ok((1, _)));
            answered.then_some(answer[0])
        });
        if answer.is_none() {
            *connection = None;
        }
        answer
    }
}
