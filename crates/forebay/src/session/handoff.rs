//! Handing a file's descriptors to the keeper before its first byte is acknowledged (architecture 4.5).
//!
//! A client whose keeper is another process connects to the session's socket and sends, for each file that it
//! manages, the two descriptors its device file has; the keeper answers with one byte. The socket's other end is checked
//! by uid. A keeper in the client's own process needs no socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{DeviceFile, RealFile};
use crate::ids::FileId;
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::socket;

/// Message: file, what, the session's random name.
const MESSAGE_BYTES: usize = 16;
const MANAGE: u32 = 1;
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
        let answered = self.ask(shared, epoch, message, &[direct, buffered]);
        if !answered {
            self.failed.store(u64::from(tick) + 1, Relaxed);
        }
        answered
    }

    /// Whether there was an answer; what it was changes nothing for the client.
    fn ask(
        &self,
        shared: &Shared,
        epoch: u32,
        message: [u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> bool {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if connection.as_ref().is_none_or(|(of, _)| *of != epoch) {
            *connection = shared
                .arena_path
                .as_ref()
                .and_then(|path| socket::connect(&socket_path(path)).ok())
                .map(|fd| (epoch, fd));
        }
        let answered = connection.as_ref().is_some_and(|(_, fd)| {
            let mut answer = [0];
            socket::send(fd.as_fd(), &message, descriptors).is_ok()
                && matches!(socket::wait_readable(&[fd.as_fd()], 5000), Ok(true))
                && matches!(socket::receive(fd.as_fd(), &mut answer), Ok((1, _)))
        });
        if !answered {
            *connection = None;
        }
        answered
    }
}

/// The keeper's side of the socket.
pub struct Desk {
    listener: OwnedFd,
    path: PathBuf,
    clients: Vec<OwnedFd>,
}

impl Desk {
    /// Listens beside the arena; an earlier keeper's socket is replaced.
    pub fn open(arena: &Path) -> std::io::Result<Self> {
        let path = socket_path(arena);
        let _ = std::fs::remove_file(&path);
        let listener = socket::listen(&path)?;
        Ok(Desk {
            listener,
            path,
            clients: Vec::new(),
        })
    }

    /// Serves whoever waits, for at most `timeout_ms`.
    pub fn serve(&mut self, shared: &Arc<Shared>, timeout_ms: i32) {
        let mut sources = vec![self.listener.as_fd()];
        sources.extend(self.clients.iter().map(|client| client.as_fd()));
        if !matches!(socket::wait_readable(&sources, timeout_ms), Ok(true)) {
            return;
        }
        while let Ok(connection) = socket::accept(self.listener.as_fd()) {
            let uid = crate::memory::place::dir::user_id();
            if matches!(socket::peer_uid(connection.as_fd()), Ok(peer) if peer == uid) {
                self.clients.push(connection);
            }
        }
        self.clients
            .retain(|client| answer_all(shared, client.as_fd()));
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers what a client has sent. `false`: it is gone, or talks nonsense.
fn answer_all(shared: &Arc<Shared>, client: BorrowedFd<'_>) -> bool {
    loop {
        let mut message = [0; MESSAGE_BYTES];
        let (got, descriptors) = match socket::receive(client, &mut message) {
            Ok(received) => received,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        };
        if got != MESSAGE_BYTES {
            return false;
        }
        let (file, what, session) = decode(&message);
        let ours = session == shared.session_name_word() && shared.arena.file(file).is_some();
        let done = ours && what == MANAGE && manage(shared, file, descriptors);
        let answer = [if done { DONE } else { REFUSED }];
        if socket::send(client, &answer, &[]).is_err() {
            return false;
        }
    }
}

fn manage(shared: &Arc<Shared>, file: FileId, fds: Vec<OwnedFd>) -> bool {
    let Ok([direct, buffered]) = <[OwnedFd; 2]>::try_from(fds) else {
        return false;
    };
    let Ok(device) = RealFile::from_descriptors(direct, buffered) else {
        return false;
    };
    // What the client says is checked: the descriptors must be of the inode that the entry describes.
    let entry = shared.arena.file_unchecked(file);
    let caps = device.caps();
    let same = entry.device.load(Ordering::Acquire) == caps.device
        && entry.inode.load(Ordering::Acquire) == caps.inode;
    if same {
        shared.keep_device(file, Arc::new(device));
    }
    same
}
