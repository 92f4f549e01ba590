//! Handing a file's descriptors to the keeper before its first byte is acknowledged (architecture 4.5).
//!
//! A client whose keeper is another process connects to the session's socket and sends, for each file that it
//! manages, the two descriptors its device file has, and the number of descriptions it has open; the keeper answers
//! with one byte. When the connection ends the client is gone, and what it had open is taken from the files' counts. The
//! socket's other end is checked by uid. A keeper in the client's own process needs no socket.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::{DeviceFile, RealFile};
use crate::file::core::Core;
use crate::file::settle::{self, Durability};
use crate::flush::errors;
use crate::ids::FileId;
use crate::keeper::closing;
use crate::keeper::reopen::path_of;
use crate::keeper::run::has_keeper;
use crate::memory::files::{EXCEEDING, LEASED, TRUNCATING};
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::socket;

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

struct Client {
    socket: OwnedFd,
    /// Descriptions that the client has open, and those of them that only read.
    opens: HashMap<FileId, u32>,
    readers: HashMap<FileId, u32>,
}

impl Client {
    /// Gives back what the client had open.
    fn leave(&self, shared: &Arc<Shared>) {
        for (file, count) in &self.opens {
            take(&shared.arena.file_unchecked(*file).opens, *count);
        }
        for (file, count) in &self.readers {
            let entry = shared.arena.file_unchecked(*file);
            take(&entry.readers, *count);
            take(&entry.opens, *count);
            drop(shared.give_lent_back(*file));
        }
        for file in self.opens.keys().filter(|file| self.opens[file] > 0) {
            // As a close would have done, for those who look at the file from outside.
            let entry = shared.arena.file_unchecked(*file);
            if entry.writers() == 0 && entry.flags.load(Ordering::Acquire) & LEASED == 0 {
                flush(shared, *file);
            }
        }
    }
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
                    readers: HashMap::new(),
                });
            }
        }
        self.clients.retain_mut(|client| {
            let stays = answer_all(shared, client);
            if !stays {
                client.leave(shared);
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

fn take(word: &crate::sync::AtomicU32, count: u32) {
    let mut seen = word.load(Ordering::Acquire);
    while let Err(now) = word.compare_exchange(
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
        let done = ours
            && match what {
                MANAGE => manage(shared, client, file, descriptors),
                RELEASE => {
                    one_fewer(&mut client.opens, file);
                    close_unused(shared, file);
                    true
                }
                MANAGE_READER => {
                    *client.readers.entry(file).or_default() += 1;
                    true
                }
                RELEASE_READER => {
                    one_fewer(&mut client.readers, file);
                    shared.give_lent_back(file).is_none_or(await_dropped)
                }
                LEND => lend(shared, client, file, descriptors),
                FLUSH => flush(shared, file),
                UNITE => unite(shared, file),
                WATCH => shared
                    .guard()
                    .zip(descriptors.first())
                    .is_some_and(|(guard, fd)| guard.watch(fd.as_fd())),
                LOOK => shared
                    .guard()
                    .zip(descriptors.first())
                    .is_some_and(|(guard, fd)| guard.is_used_outside(fd.as_fd())),
                LEFT => {
                    one_fewer(&mut client.opens, file);
                    closing::forget_if_lost(shared, file);
                    continue;
                }
                _ => false,
            };
        let answer = [if done { DONE } else { REFUSED }];
        if socket::send(client.socket.as_fd(), &answer, &[]).is_err() {
            return false;
        }
    }
}

fn one_fewer(counts: &mut HashMap<FileId, u32>, file: FileId) {
    if let Some(count) = counts.get_mut(&file) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&file);
        }
    }
}

/// Closes the keeper's descriptors of a file that nobody writes any more, before it answers: a program that has just been
/// written may be executed next, which a writable descriptor anywhere forbids. The flushers hold a device for moments.
fn close_unused(shared: &Arc<Shared>, file: FileId) {
    let entry = shared.arena.file_unchecked(file);
    let leased = entry.flags.load(Ordering::Acquire) & LEASED != 0;
    if leased || entry.writers() != 0 || entry.owed_pages.load(Ordering::Acquire) != 0 {
        return;
    }
    let Some(device) = shared.device(file) else {
        return;
    };
    if let Ok(me) = shared.me() {
        let core = Core {
            shared: Arc::clone(shared),
            id: file,
            device: Arc::clone(&device),
        };
        let _ = settle::finish(&core, me);
    }
    shared.drop_device(file);
    await_dropped(device);
}

/// Waits until nobody of this process uses a device file any more, within bounds. Whether that is so.
fn await_dropped(device: Arc<dyn DeviceFile>) -> bool {
    let weak = Arc::downgrade(&device);
    drop(device);
    for _ in 0..CLOSE_TRIES {
        if weak.strong_count() == 0 {
            return true;
        }
        std::thread::sleep(CLOSE_PAUSE);
    }
    false
}

/// Before a lease is taken. Whoever opens the file waits for that then, and the guard would as well: the kernel opens the file to
/// tell it.
fn unite(shared: &Shared, file: FileId) -> bool {
    shared.device(file).is_some_and(|device| {
        if let (Some(guard), Some((direct, _))) = (shared.guard(), device.descriptors()) {
            guard.forget(direct);
        }
        device.unite().is_ok()
    })
}

/// Writes what a file owes, in the keeper's own thread.
fn flush(shared: &Arc<Shared>, file: FileId) -> bool {
    let entry = shared.arena.file_unchecked(file);
    let unfinished = entry.flags.load(Ordering::Acquire) & (EXCEEDING | TRUNCATING) != 0;
    if entry.owed_pages.load(Ordering::Acquire) == 0 && !unfinished {
        return true;
    }
    let (Some(device), Ok(me)) = (shared.device(file), shared.me()) else {
        return false;
    };
    let core = Core {
        shared: Arc::clone(shared),
        id: file,
        device,
    };
    let seen = AtomicU32::new(errors::sequence(entry));
    settle::settle(&core, me, Durability::Written, &seen).is_ok()
}

fn manage(shared: &Arc<Shared>, client: &mut Client, file: FileId, fds: Vec<OwnedFd>) -> bool {
    let Ok([direct, buffered]) = <[OwnedFd; 2]>::try_from(fds) else {
        return false;
    };
    let Ok(device) = RealFile::from_descriptors(direct, buffered) else {
        return false;
    };
    let same = is_of_entry(shared, file, &device);
    if same {
        let entry = shared.arena.file_unchecked(file);
        shared.share_claim(&device, &path_of(entry));
        shared.keep_device(file, Arc::new(device));
        *client.opens.entry(file).or_default() += 1;
    }
    same
}

/// What a client says is checked: the descriptors must be of the inode that the entry describes.
fn is_of_entry(shared: &Shared, file: FileId, device: &RealFile) -> bool {
    let entry = shared.arena.file_unchecked(file);
    let caps = device.caps();
    entry.device.load(Ordering::Acquire) == caps.device
        && entry.inode.load(Ordering::Acquire) == caps.inode
}

fn lend(shared: &Shared, client: &Client, file: FileId, fds: Vec<OwnedFd>) -> bool {
    let Ok([direct, buffered]) = <[OwnedFd; 2]>::try_from(fds) else {
        return false;
    };
    let Ok(device) = RealFile::from_descriptors_for_reading(direct, buffered) else {
        return false;
    };
    let is_asked = client.readers.contains_key(&file) && is_of_entry(shared, file, &device);
    if is_asked {
        shared.keep_lent(file, Arc::new(device));
    }
    is_asked
}
