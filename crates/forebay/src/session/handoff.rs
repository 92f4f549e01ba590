//! Handing a file's descriptors to the keeper before its first byte is acknowledged (architecture 4.5).
//!
//! A client whose keeper is another process connects to the session's socket and sends, for each file that it
//! manages, the two descriptors its device file has, and the number of descriptions it has open; the keeper answers
//! with one byte. Who has no descriptors of a file that the session owes something may ask the keeper for its own. When the connection ends the client is gone, and what it had open is taken from the files' counts. The
//! socket's other end is checked by uid. A keeper in the client's own process needs no socket.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{DeviceFile, RealFile};
use crate::ids::FileId;
use crate::memory::files::FileEntry;
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::socket;

/// Message: file, what, the session's random name.
const MESSAGE_BYTES: usize = 16;
const MANAGE: u32 = 1;
const RELEASE: u32 = 2;
const FETCH: u32 = 3;
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
}

impl Line {
    /// Hands a file over to the keeper of this epoch. `false`: there is no keeper to be reached; nothing depends on it.
    pub fn hand_over(
        &self,
        shared: &Shared,
        file: FileId,
        device: &dyn DeviceFile,
        epoch: u32,
    ) -> bool {
        let Some((direct, buffered)) = device.descriptors() else {
            return false;
        };
        let descriptors = [direct, buffered];
        self.ask(shared, epoch, file, MANAGE, &descriptors)
            .is_some()
    }

    /// The file's descriptors as the keeper of this epoch has them. A file that has been renamed or removed is found in no
    /// other way.
    pub fn fetch(&self, shared: &Shared, file: FileId, epoch: u32) -> Option<RealFile> {
        let answer = self.ask(shared, epoch, file, FETCH, &[])?;
        let [direct, buffered] = <[OwnedFd; 2]>::try_from(answer).ok()?;
        RealFile::from_descriptors(direct, buffered).ok()
    }

    /// Says that this process has one description fewer of the file.
    pub fn release(&self, shared: &Shared, file: FileId, epoch: u32) {
        self.ask(shared, epoch, file, RELEASE, &[]);
    }

    /// What came with the answer, if it is yes.
    fn ask(
        &self,
        shared: &Shared,
        epoch: u32,
        file: FileId,
        what: u32,
        descriptors: &[BorrowedFd<'_>],
    ) -> Option<Vec<OwnedFd>> {
        let message = encode(file, what, shared.session_name_word());
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
        let answer = connection.as_ref().and_then(|(_, fd)| {
            let mut answer = [0];
            socket::send(fd.as_fd(), &message, descriptors).ok()?;
            let came = socket::wait_readable(&[fd.as_fd()], 5000).ok()?;
            let (got, received) = socket::receive(fd.as_fd(), &mut answer)
                .ok()
                .filter(|_| came)?;
            (got == 1).then_some((answer[0], received))
        });
        if answer.is_none() {
            *connection = None;
        }
        let (yes, received) = answer?;
        (yes == DONE).then_some(received)
    }
}

struct Client {
    socket: OwnedFd,
    /// Descriptions that the client has open.
    opens: HashMap<FileId, u32>,
}

/// The keeper's side of the socket.
pub struct Desk {
    listener: OwnedFd,
    path: PathBuf,
    clients: Vec<Client>,
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
        sources.extend(self.clients.iter().map(|client| client.socket.as_fd()));
        if !matches!(socket::wait_readable(&sources, timeout_ms), Ok(true)) {
            return;
        }
        while let Ok(connection) = socket::accept(self.listener.as_fd()) {
            let uid = crate::memory::place::dir::user_id();
            if matches!(socket::peer_uid(connection.as_fd()), Ok(peer) if peer == uid) {
                self.clients.push(Client {
                    socket: connection,
                    opens: HashMap::new(),
                });
            }
        }
        self.clients.retain_mut(|client| {
            let stays = answer_all(shared, client);
            if !stays {
                for (file, count) in &client.opens {
                    take_opens(shared.arena.file_unchecked(*file), *count);
                }
            }
            stays
        });
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn take_opens(entry: &FileEntry, count: u32) {
    let mut seen = entry.opens.load(Ordering::Acquire);
    while let Err(now) = entry.opens.compare_exchange(
        seen,
        seen.saturating_sub(count),
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        seen = now;
    }
}

/// Answers what a client has sent. `false`: it is gone, or talks nonsense.
fn answer_all(shared: &Arc<Shared>, client: &mut Client) -> bool {
    loop {
        let mut message = [0; MESSAGE_BYTES];
        let (got, descriptors) = match socket::receive(client.socket.as_fd(), &mut message) {
            Ok(received) => received,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        };
        if got != MESSAGE_BYTES {
            return false;
        }
        let (file, what, session) = decode(&message);
        let ours = session == shared.session_name_word() && shared.arena.file(file).is_some();
        let device = (ours && what == FETCH)
            .then(|| shared.device(file))
            .flatten();
        let sent = match device.as_ref().and_then(|device| device.descriptors()) {
            Some((direct, buffered)) => {
                socket::send(client.socket.as_fd(), &[DONE], &[direct, buffered])
            }
            None => {
                let done = ours && noted(shared, client, file, what, descriptors);
                let answer = [if done { DONE } else { REFUSED }];
                socket::send(client.socket.as_fd(), &answer, &[])
            }
        };
        if sent.is_err() {
            return false;
        }
    }
}

fn noted(
    shared: &Arc<Shared>,
    client: &mut Client,
    file: FileId,
    what: u32,
    fds: Vec<OwnedFd>,
) -> bool {
    match what {
        MANAGE => manage(shared, client, file, fds),
        RELEASE => {
            client
                .opens
                .entry(file)
                .and_modify(|count| *count = count.saturating_sub(1));
            true
        }
        _ => false,
    }
}

fn manage(shared: &Arc<Shared>, client: &mut Client, file: FileId, fds: Vec<OwnedFd>) -> bool {
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
        *client.opens.entry(file).or_default() += 1;
    }
    same
}
