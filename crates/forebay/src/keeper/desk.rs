//! The keeper's side of the socket: clients, and what they ask for.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::device::RealFile;
use crate::file::core::Core;
use crate::file::settle::{self, Durability};
use crate::flush::errors;
use crate::ids::FileId;
use crate::keeper::closing;
use crate::keeper::outsiders::{Guard, guard_of};
use crate::member::reached;
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::files::{HURRY, LEASED};
use crate::sync::Ordering;
use crate::sys::{numbers, socket};

use crate::member::handoff::{
    DONE, FLUSH, LANE, LEFT, LEND, LOOK, MANAGE, MANAGE_READER, MESSAGE_BYTES, QUIETLY, REFUSED,
    RELEASE, RELEASE_READER, SYNC, TAKE, UNITE, UNUSED, WATCH, decode, is_of_entry, socket_path,
    take_over,
};

struct Client {
    socket: OwnedFd,
    /// Its name among those of this desk.
    key: u64,
    /// Descriptions that the client has open, and those that only read, as far as it has said: where to look once it is gone.
    opens: HashMap<FileId, u32>,
    readers: HashMap<FileId, u32>,
}

impl Client {
    fn count(&mut self, files: Vec<FileId>) {
        for file in files {
            *self.opens.entry(file).or_default() += 1;
        }
    }

    /// Sees to what the client had open. What it counted there is taken back by what the kernel knows: it may have taken some back itself
    /// that it could not tell of any more, and the entries may be others' files by now. The kernel may know of its end a moment later
    /// than its socket; then the house's next round takes it back.
    fn leave(&self, shared: &Arc<Shared>) {
        for file in self.opens.keys().chain(self.readers.keys()) {
            recount(shared, *file);
        }
        for file in self.readers.keys() {
            drop(shared.give_lent_back(*file));
        }
        // As a close would have done, for those that look at the file from outside. Not here: others wait for answers meanwhile.
        for file in self.opens.keys() {
            hurry(shared, *file);
        }
        shared.wake_keeper();
    }
}

/// The keeper's side of the socket.
pub struct Desk {
    listener: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's name.
    named: Option<(u64, u64)>,
    clients: Vec<Client>,
    /// The last client's key.
    last_key: u64,
    /// A descriptor to give up when there are no others: a client that is turned away knows it at once.
    spare: Option<OwnedFd>,
}

/// After nobody could be let in or turned away.
const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(2);

impl Desk {
    /// Listens beside the arena; an earlier keeper's socket is replaced.
    pub fn open(arena: &Path) -> std::io::Result<Self> {
        let path = socket_path(arena);
        let _ = std::fs::remove_file(&path);
        let listener = socket::listen(&path)?;
        Ok(Desk {
            spare: listener.try_clone().ok(),
            listener,
            named: name_of(&path),
            path,
            clients: Vec::new(),
            last_key: 0,
        })
    }

    /// Lets in the clients that wait to be. A keeper without descriptors turns them away: a client that waits in the queue would be
    /// taken for one that asks, and wait for an answer.
    fn let_in(&mut self) {
        let uid = crate::memory::place::dir::user_id();
        loop {
            let turn = numbers::in_turn();
            match socket::accept(self.listener.as_fd()) {
                Ok(connection) => {
                    if matches!(socket::peer_uid(connection.as_fd()), Ok(peer) if peer == uid) {
                        self.last_key += 1;
                        self.clients.push(Client {
                            socket: connection,
                            key: self.last_key,
                            opens: HashMap::new(),
                            readers: HashMap::new(),
                        });
                    }
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    drop(self.spare.take());
                    let turned_away = socket::accept(self.listener.as_fd()).is_ok();
                    self.spare = self.listener.try_clone().ok();
                    drop(turn);
                    if !turned_away {
                        std::thread::sleep(NO_DESCRIPTORS_PAUSE);
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Serves the clients that wait, for at most `timeout_ms`.
    pub fn serve(&mut self, shared: &Arc<Shared>, timeout_ms: i32) {
        let mut sources = vec![self.listener.as_fd()];
        sources.extend(self.clients.iter().map(|client| client.socket.as_fd()));
        if !matches!(socket::wait_readable(&sources, timeout_ms), Ok(true)) {
            return;
        }
        self.let_in();
        self.clients.retain_mut(|client| {
            let stays = answer_all(shared, client);
            if !stays {
                client.count(shared.end_lanes_of(client.key));
                client.leave(shared);
            }
            stays
        });
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // Where the session's names were removed below it, another one may have begun that has them now.
        if self.named.is_some() && self.named == name_of(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Which file a name leads to.
fn name_of(path: &Path) -> Option<(u64, u64)> {
    let is = std::fs::symlink_metadata(path).ok()?;
    Some((is.dev(), is.ino()))
}

/// Has the flushers write what a file owes, unless it is under a lease: then they do anyway. Until the file's descriptors are there, which the
/// house looks for, they pass it by.
fn hurry(shared: &Shared, file: FileId) {
    let entry = shared.arena.file_unchecked(file);
    if entry.owes() && entry.flags.load(Ordering::Acquire) & LEASED == 0 {
        entry.flags.fetch_or(HURRY, Ordering::AcqRel);
    }
}

/// A message, and the descriptors that have come with it.
type Received = ([u8; MESSAGE_BYTES], Vec<OwnedFd>);

/// The next message. `None`: there is none now. `Err`: there will be none any more.
fn next_message(client: &Client) -> Result<Option<Received>, ()> {
    let mut message = [0; MESSAGE_BYTES];
    let mut received = socket::receive(client.socket.as_fd(), &mut message);
    if matches!(&received, Err(error) if error.kind() == ErrorKind::ConnectionReset) {
        // The kernel says once that the client has ended without fetching its answers. What it had said before is there all the same.
        received = socket::receive(client.socket.as_fd(), &mut message);
    }
    match received {
        Ok((MESSAGE_BYTES, descriptors)) => Ok(Some((message, descriptors))),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        _ => Err(()),
    }
}

/// Answers what a client has sent. `false`: it is gone, or talks nonsense. What it has said before is heeded, though nobody hears the answers:
/// it counts, and has descriptors that nobody else may have.
fn answer_all(shared: &Arc<Shared>, client: &mut Client) -> bool {
    let mut hears = true;
    loop {
        let (message, descriptors) = match next_message(client) {
            Ok(Some(next)) => next,
            Ok(None) => return hears,
            Err(()) => return false,
        };
        // What was taken from a lane before this was sent is counted before it is heeded: it may be the end of just that.
        client.count(shared.taken_from(client.key));
        let (file, what, session) = decode(&message);
        let (what, quietly) = (what & !QUIETLY, what & QUIETLY != 0);
        let ours = session == shared.session_name_word() && shared.arena.file(file).is_some();
        let done = ours
            && match what {
                MANAGE => manage(shared, client, file, descriptors),
                RELEASE => {
                    one_fewer(&mut client.opens, file);
                    close_unused(shared, file);
                    true
                }
                UNUSED => {
                    close_unused(shared, file);
                    true
                }
                MANAGE_READER => {
                    *client.readers.entry(file).or_default() += 1;
                    true
                }
                RELEASE_READER => {
                    one_fewer(&mut client.readers, file);
                    // What was lent goes back with the last that lives.
                    if shared.arena.file_unchecked(file).readers() != 0 {
                        recount(shared, file);
                    }
                    shared
                        .give_lent_back(file)
                        .is_none_or(closing::await_dropped)
                }
                LEND => lend(shared, client, file, descriptors),
                FLUSH => flush(shared, file, Durability::Written),
                SYNC => flush(shared, file, Durability::All),
                UNITE => unite(shared, file),
                WATCH => ask_guard(shared, descriptors, Guard::watch).unwrap_or(false),
                // Nobody knows: that may not be taken for an answer.
                LOOK => ask_guard(shared, descriptors, Guard::is_used_outside).unwrap_or(true),
                LANE => keep_lane(shared, client, descriptors),
                TAKE => {
                    shared.take_from_lanes();
                    true
                }
                LEFT => {
                    one_fewer(&mut client.opens, file);
                    closing::forget_if_lost(shared, file);
                    continue;
                }
                _ => false,
            };
        if quietly || !hears {
            continue;
        }
        let answer = [if done { DONE } else { REFUSED }];
        hears = socket::send_at_once(client.socket.as_fd(), &answer, &[]).is_ok();
    }
}

/// Heeds what a simulated client says, of which nothing is counted. Whether that is done.
#[cfg(feature = "sim")]
pub fn heed(shared: &Arc<Shared>, message: &[u8; MESSAGE_BYTES]) -> bool {
    let (file, what, _) = decode(message);
    match what & !QUIETLY {
        RELEASE | UNUSED => {
            close_unused(shared, file);
            true
        }
        UNITE => unite(shared, file),
        LEFT => closing::forget_if_lost(shared, file),
        _ => false,
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

/// What the guard says of a file. `None`: there is none, or this process has no number for the file's descriptor. Its descriptor is closed
/// before anybody hears of it, as the client may close its own then, and ask for a lease.
fn ask_guard(
    shared: &Shared,
    descriptors: Vec<OwnedFd>,
    ask: fn(&Guard, BorrowedFd<'_>) -> bool,
) -> Option<bool> {
    let guard = guard_of(shared)?;
    let fd = descriptors.first()?;
    Some(ask(&guard, fd.as_fd()))
}

/// Closes the keeper's descriptors of a file that nobody writes any more, before it answers: a program that has just been
/// written may be executed next, which a writable descriptor anywhere forbids.
fn close_unused(shared: &Arc<Shared>, file: FileId) {
    let entry = shared.arena.file_unchecked(file);
    let leased = entry.flags.load(Ordering::Acquire) & LEASED != 0;
    if !leased && entry.writers() != 0 {
        recount(shared, file);
    }
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
    if shared.drop_unwritten(file, &device) {
        closing::await_dropped(device);
    }
}

/// Others may have died beside the one that has just closed.
fn recount(shared: &Arc<Shared>, file: FileId) {
    if let Ok(me) = shared.me() {
        table::recount(shared, me, file);
    }
}

/// Before a lease is taken. A program that opens the file waits for that then, and the guard would as well: the kernel opens the file to
/// tell it.
///
/// So nobody sees who comes, until there is a lease. The mark is taken away first, then it is said that somebody may have come, and whether
/// others have entered the file is looked at last: a member that has marked it before, and enters it just after, gives it to the kernel; one that has
/// entered it keeps the guard, and the closer its descriptors.
fn unite(shared: &Shared, file: FileId) -> bool {
    let Some(device) = shared.device(file) else {
        return false;
    };
    let entry = shared.arena.file_unchecked(file);
    let superblock = shared.arena.superblock();
    let (number, inode) = entry.numbers();
    let hash = reached::hash(number, inode);
    let is_only = || entry.opens() <= 1;
    let guard = guard_of(shared);
    if let Some(guard) = &guard {
        guard.await_stand_in();
    }
    let watched = guard.as_ref().zip(device.descriptors());
    let unmarked = watched.filter(|_| is_only());
    if let Some((guard, (direct, _))) = unmarked {
        guard.forget(direct);
    }
    reached::begin(superblock, hash);
    let stays = is_only();
    if !stays && let Some((guard, (direct, _))) = unmarked {
        guard.watch_again(file, direct);
    }
    reached::end(superblock, hash);
    stays && device.unite().is_ok()
}

/// Writes what a file owes, in the keeper's own thread.
fn flush(shared: &Arc<Shared>, file: FileId, durability: Durability) -> bool {
    let entry = shared.arena.file_unchecked(file);
    if !entry.owes() && durability == Durability::Written {
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
    settle::settle(&core, me, durability, &seen).is_ok()
}

fn manage(shared: &Shared, client: &mut Client, file: FileId, fds: Vec<OwnedFd>) -> bool {
    let taken = take_over(shared, file, fds);
    if taken {
        client.count(vec![file]);
    }
    taken
}

fn keep_lane(shared: &Shared, client: &Client, fds: Vec<OwnedFd>) -> bool {
    let Ok([out]) = <[OwnedFd; 1]>::try_from(fds) else {
        return false;
    };
    shared.keep_lane(client.key, out)
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
