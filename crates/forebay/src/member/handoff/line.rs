//! A client's end of the socket: what it asks, what it tells, and for how long it waits.
//!
//! Progress never needs the keeper, so a keeper that is stopped (a signal, a debugger, a frozen container) keeps nobody for long.
//! The asker looks now and then whether the keeper's process is stopped. If so, or after [`PATIENCE`], the session's `silent_at`
//! remembers the tick: until the clock goes on, which the same thread of the keeper's moves that answers, nobody in the session
//! asks anything.
//!
//! The connection stays: its end would mean that this client is gone. What changes the keeper's counts is told meanwhile
//! without waiting for an answer ([`QUIETLY`]), in the order in which it happens. An answer that comes late is for nobody.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::lanes::Lanes;
use super::{
    DONE, FLUSH, LANE, LEFT, LEND, LOOK, MANAGE, MANAGE_READER, MESSAGE_BYTES, QUIETLY, REFUSED,
    RELEASE, RELEASE_READER, SYNC, TAKE, UNITE, UNUSED, WATCH, encode, socket_path,
};
use crate::device::DeviceFile;
use crate::ids::FileId;
use crate::member::presence::has_keeper;
use crate::member::shared::Shared;
use crate::sync::Ordering;
use crate::sync::time::Instant;
use crate::sys::{liveness, socket};

/// How long an answer is waited for at most: a keeper answers between two requests to its devices. Where nothing says that it is
/// stopped (a frozen container) one question in the session takes so long, and the next none.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a client that waits looks whether the keeper is stopped.
const LOOK_EVERY_MS: i32 = 10;
/// How long a connection is tried where too many wait for theirs already.
const CONNECT_TRIES: u32 = 20;
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// A client's connection to the keeper.
#[derive(Default)]
pub struct Line {
    contact: Mutex<Option<Contact>>,
    /// The connection's epoch and socket, for threads that need no more: its lock is held while an answer is waited for.
    socket: Mutex<Option<(u32, Arc<OwnedFd>)>>,
    /// The session's tick + 1 when the keeper last could not be reached.
    failed: AtomicU64,
    relocate: OnceLock<fn(OwnedFd) -> OwnedFd>,
    own: OnceLock<fn(BorrowedFd<'_>)>,
}

/// A connection to the keeper of an epoch.
struct Contact {
    epoch: u32,
    socket: Arc<OwnedFd>,
    /// Questions without an answer so far.
    unanswered: u32,
    /// What could not be told yet, as the socket holds no more.
    untold: VecDeque<[u8; MESSAGE_BYTES]>,
    lanes: Lanes,
}

/// What has become of a message.
#[derive(PartialEq, Eq)]
enum Fate {
    /// The keeper will never see it.
    Unsent,
    /// It will see it, and nobody waits for that.
    Sent,
    Answered(u8),
}

/// What has become of descriptors that were handed to a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// It has them, or will have.
    Over,
    /// It cannot be reached.
    ToNobody,
    /// It cannot have them.
    InVain,
}

impl Line {
    /// Hands a file over to the keeper of this epoch. Where it could not be reached it may be at another time: a keeper
    /// takes office a moment before it listens. While no keeper lives the clock stands, and it is not tried again.
    pub fn hand_over(
        &self,
        shared: &Shared,
        file: FileId,
        device: &dyn DeviceFile,
        epoch: u32,
    ) -> Handed {
        let Some((direct, buffered)) = device.descriptors() else {
            return Handed::Over;
        };
        let tick = tick_of(shared);
        if self.failed.load(Relaxed) == tick || !is_of_today(shared, epoch) {
            return Handed::ToNobody;
        }
        let message = encode(file, MANAGE, shared.session_name_word());
        let put = |marks: &[BorrowedFd<'_>]| {
            let all: Vec<_> = [direct, buffered].iter().chain(marks).copied().collect();
            self.put_into_lane(epoch, (file, &message), &all)
        };
        self.open_lane(shared, epoch);
        if shared.claims.with_marks(device.caps(), put) {
            return Handed::Over;
        }
        match self.ask(shared, epoch, message, &[direct, buffered]) {
            Fate::Answered(REFUSED) => Handed::InVain,
            // What has been sent the keeper counts before whatever follows.
            Fate::Answered(_) | Fate::Sent => Handed::Over,
            Fate::Unsent => {
                self.failed.store(tick, Relaxed);
                Handed::ToNobody
            }
        }
    }

    /// Sees to it that there is a lane to the keeper of this epoch, if it takes any.
    fn open_lane(&self, shared: &Shared, epoch: u32) {
        let mut contact = self.contact();
        if is_silent(shared) || !is_of_today(shared, epoch) {
            return;
        }
        if contact.as_ref().is_none_or(|known| known.epoch != epoch) {
            *contact = self.connect(shared, epoch);
        }
        if let Some(known) = contact.as_mut()
            && known.lanes.may_grow()
            && let Ok((into, out)) = socket::pair()
        {
            known.open_lane(shared, (self.placed(into), self.placed(out)));
        }
    }

    /// Puts a file's descriptors where the keeper finds them once it needs them. `false`: there is no such place.
    fn put_into_lane(
        &self,
        epoch: u32,
        (file, message): (FileId, &[u8; MESSAGE_BYTES]),
        descriptors: &[BorrowedFd<'_>],
    ) -> bool {
        let mut contact = self.contact();
        let known = contact.as_mut().filter(|known| known.epoch == epoch);
        known.is_some_and(|known| known.lanes.put(file, message, descriptors))
    }

    /// Takes a file's descriptors out of a lane. `false`: the keeper has them, or they were in none.
    fn take_back(&self, file: FileId, epoch: u32) -> bool {
        let mut contact = self.contact();
        let known = contact.as_mut().filter(|known| known.epoch == epoch);
        known.is_some_and(|known| known.lanes.take_back(file))
    }

    /// Has the keeper take a file's descriptors, should they be in a lane. Waits for nobody.
    pub fn have_taken(&self, shared: &Shared, file: FileId) {
        let contact = self.contact();
        let Some(known) = contact.as_ref() else {
            return;
        };
        if known.lanes.may_have(file) {
            let message = encode(file, TAKE | QUIETLY, shared.session_name_word());
            // Else it takes them in its own time.
            let _ = socket::send_at_once((*known.socket).as_fd(), &message, &[]);
        }
    }

    /// Says that this process has one description fewer of the file. When this returns the keeper has closed its own of a file
    /// that nobody has open any more, unless it is stopped.
    pub fn release(&self, shared: &Shared, file: FileId, epoch: u32) {
        if self.take_back(file, epoch) {
            return;
        }
        self.tell(shared, file, RELEASE, epoch);
    }

    /// As [`Line::release`], to a keeper that the description was not handed to.
    pub fn say_unused(&self, shared: &Shared, file: FileId, epoch: u32) {
        self.tell(shared, file, UNUSED, epoch);
    }

    /// Says that this process has one more description that reads the file. `false`: the keeper does not hear of it.
    pub fn announce_reader(&self, shared: &Shared, file: FileId, epoch: u32) -> bool {
        let message = encode(file, MANAGE_READER, shared.session_name_word());
        self.ask(shared, epoch, message, &[]) != Fate::Unsent
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

    /// Asks the keeper to write what the file owes, and to sync it. `false`: it cannot be reached, or could not.
    pub fn ask_to_flush(&self, shared: &Shared, file: FileId, syncs: bool) -> bool {
        let epoch = shared
            .arena
            .superblock()
            .keeper_epoch
            .load(Ordering::Relaxed);
        let what = if syncs { SYNC } else { FLUSH };
        let message = encode(file, what, shared.session_name_word());
        self.ask(shared, epoch, message, &[]) == Fate::Answered(DONE)
    }

    /// Has the keeper make one description of the two that it has of a file. `false`: it has not, or cannot.
    pub fn ask_to_unite(&self, shared: &Shared, file: FileId, epoch: u32) -> bool {
        let message = encode(file, UNITE, shared.session_name_word());
        self.ask(shared, epoch, message, &[]) == Fate::Answered(DONE)
    }

    /// Does what only a descriptor of the guard's listener can do, for as long as that takes. `None`: this process cannot have one, and has to ask.
    ///
    /// It comes at the lowest number that is free, as the keeper's process does: the kernel has no other way. So the caller sees to it that the
    /// program cannot have closed that number just now to hear of it, and that the process does not give rights away meanwhile.
    ///
    /// For these microseconds the group outlives its keeper. Should this process be stopped in them, and the keeper be killed, nobody waits
    /// for the group all the same: the keeper's stand-in takes the marks away, and lets in those that wait (`sys::stand_in`).
    pub fn by_listener<T>(
        &self,
        shared: &Shared,
        act: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<T>,
    ) -> Option<T> {
        let superblock = shared.arena.superblock();
        let number = superblock.listener.load(Ordering::Acquire).checked_sub(1)?;
        let epoch = superblock.keeper_epoch.load(Ordering::Relaxed);
        let socket = self.socket_of(epoch)?;
        // Not kept: a number that the program may want.
        let process = self.owned(socket::peer_process((*socket).as_fd()).ok()?);
        let listener = socket::borrow_from(process.as_fd(), number as RawFd).ok()?;
        act(self.owned(listener).as_fd()).ok()
    }

    /// The socket of the connection to the keeper of an epoch, if there is one.
    fn socket_of(&self, epoch: u32) -> Option<Arc<OwnedFd>> {
        let socket = self.socket();
        let known = socket.as_ref().filter(|known| known.0 == epoch);
        known.map(|(_, socket)| Arc::clone(socket))
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
        let tick = tick_of(shared);
        if !has_keeper(&shared.arena) || self.failed.load(Relaxed) == tick {
            return None;
        }
        let message = encode(FileId(0), what, shared.session_name_word());
        match self.ask(shared, epoch, message, &[fd]) {
            Fate::Answered(answer) => Some(answer == DONE),
            Fate::Unsent | Fate::Sent => {
                self.failed.store(tick, Relaxed);
                None
            }
        }
    }

    /// As [`Line::release`], for a file that the keeper goes on with under a lease; returns at once. `false`: this keeper
    /// cannot be reached any more.
    pub fn say_left(&self, shared: &Shared, file: FileId, epoch: u32) -> bool {
        let message = encode(file, LEFT, shared.session_name_word());
        // In a lane it could not be what the keeper has united.
        #[cfg(feature = "sim")]
        if let Some(letters) = shared.letters() {
            return shared.tell_simulated(letters, epoch, message);
        }
        if self.take_back(file, epoch) {
            return false;
        }
        let contact = self.contact();
        contact.as_ref().is_some_and(|contact| {
            contact.epoch == epoch
                && contact.unanswered == 0
                && contact.untold.is_empty()
                && socket::send_at_once((*contact.socket).as_fd(), &message, &[]).is_ok()
        })
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

    /// How the program is kept from descriptors that are the session's for a moment, at whatever numbers, from now on.
    pub fn own(&self, own: fn(BorrowedFd<'_>)) {
        let _ = self.own.set(own);
    }

    fn owned(&self, fd: OwnedFd) -> OwnedFd {
        if let Some(own) = self.own.get() {
            own(fd.as_fd());
        }
        fd
    }

    fn contact(&self) -> MutexGuard<'_, Option<Contact>> {
        // A panic elsewhere leaves a connection that has an answer too many or too few, at worst.
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn socket(&self) -> MutexGuard<'_, Option<(u32, Arc<OwnedFd>)>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the keeper something that changes its counts, and waits until it has heard it if it hears anything.
    fn tell(&self, shared: &Shared, file: FileId, what: u32, epoch: u32) {
        let message = encode(file, what, shared.session_name_word());
        if self.ask(shared, epoch, message, &[]) != Fate::Unsent {
            return;
        }
        let mut contact = self.contact();
        if let Some(contact) = contact.as_mut().filter(|contact| contact.epoch == epoch) {
            let quietly = encode(file, what | QUIETLY, shared.session_name_word());
            contact.untold.push_back(quietly);
            contact.tell_the_rest();
        }
    }

    /// Sends a message, and waits for its answer.
    fn ask(
        &self,
        shared: &Shared,
        epoch: u32,
        message: [u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> Fate {
        #[cfg(feature = "sim")]
        if let Some(letters) = shared.letters() {
            let answer = shared.ask_simulated(letters, epoch, message);
            return answer.map_or(Fate::Unsent, |done| {
                Fate::Answered(if done { DONE } else { REFUSED })
            });
        }
        let mut contact = self.contact();
        if is_silent(shared) || !is_of_today(shared, epoch) {
            return Fate::Unsent;
        }
        if contact.as_ref().is_none_or(|known| known.epoch != epoch) {
            *contact = self.connect(shared, epoch);
        }
        let Some(known) = contact.as_mut() else {
            return Fate::Unsent;
        };
        match known.ask(shared, &message, descriptors) {
            Ok(fate) => fate,
            Err(_) => {
                *contact = None;
                drop(self.socket().take());
                Fate::Unsent
            }
        }
    }

    fn connect(&self, shared: &Shared, epoch: u32) -> Option<Contact> {
        // The end of the connection before tells its keeper that this client is gone from there.
        drop(self.socket().take());
        let path = socket_path(shared.arena_path.as_ref()?);
        for _ in 0..CONNECT_TRIES {
            match socket::connect(&path) {
                Ok(socket) => {
                    let socket = Arc::new(self.placed(socket));
                    drop(self.socket().replace((epoch, Arc::clone(&socket))));
                    return Some(Contact {
                        epoch,
                        socket,
                        unanswered: 0,
                        untold: VecDeque::new(),
                        lanes: Lanes::default(),
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(_) => return None,
            }
        }
        // It takes nobody in.
        fall_silent(shared);
        None
    }
}

impl Contact {
    /// Makes a lane of a pair of sockets, if the keeper takes its end.
    fn open_lane(&mut self, shared: &Shared, pair: (OwnedFd, OwnedFd)) {
        let message = encode(FileId(0), LANE, shared.session_name_word());
        match self.ask(shared, &message, &[pair.1.as_fd()]) {
            Ok(Fate::Answered(DONE)) => self.lanes.add(pair),
            Ok(Fate::Answered(_)) => self.lanes.stay(),
            // Should the connection be of no use any more, whatever is asked next notices.
            _ => {}
        }
    }

    /// # Errors
    /// Where the connection is of no use any more.
    fn ask(
        &mut self,
        shared: &Shared,
        message: &[u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> std::io::Result<Fate> {
        if !self.tell_the_rest() {
            return Ok(Fate::Unsent);
        }
        match socket::send_at_once((*self.socket).as_fd(), message, descriptors) {
            Ok(()) => self.unanswered += 1,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Ok(Fate::Unsent);
            }
            Err(error) => return Err(error),
        }
        let begun = Instant::now();
        loop {
            let mut answer = [0];
            if socket::wait_readable(&[(*self.socket).as_fd()], LOOK_EVERY_MS)? {
                match socket::receive((*self.socket).as_fd(), &mut answer)? {
                    (1, _) => self.unanswered -= 1,
                    _ => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                }
                // They come in the order of the questions.
                if self.unanswered == 0 {
                    return Ok(Fate::Answered(answer[0]));
                }
            } else if self.is_keeper_stopped() || begun.elapsed() > PATIENCE {
                fall_silent(shared);
                return Ok(Fate::Sent);
            }
        }
    }

    /// Whether everything has been told.
    fn tell_the_rest(&mut self) -> bool {
        while let Some(message) = self.untold.front() {
            if socket::send_at_once((*self.socket).as_fd(), message, &[]).is_err() {
                return false;
            }
            self.untold.pop_front();
        }
        true
    }

    fn is_keeper_stopped(&self) -> bool {
        socket::peer_pid((*self.socket).as_fd()).is_ok_and(liveness::is_stopped)
    }
}

/// The session's clock, as a word that is never 0.
fn tick_of(shared: &Shared) -> u64 {
    u64::from(shared.arena.superblock().tick.load(Ordering::Relaxed)) + 1
}

/// Whether the keeper of an epoch is the session's: a client that connects finds no other, and would take that one's connection for an
/// earlier one's, and end the one that it has.
fn is_of_today(shared: &Shared, epoch: u32) -> bool {
    let superblock = shared.arena.superblock();
    superblock.keeper_epoch.load(Ordering::Relaxed) == epoch
}

/// Whether nobody asks the keeper anything until the clock goes on.
pub fn is_silent(shared: &Shared) -> bool {
    let superblock = shared.arena.superblock();
    superblock.silent_at.load(Ordering::Relaxed) == tick_of(shared)
}

fn fall_silent(shared: &Shared) {
    let silent_at = &shared.arena.superblock().silent_at;
    silent_at.store(tick_of(shared), Ordering::Relaxed);
}
