//! Lanes: descriptors that the keeper need not have yet.
//!
//! A lane is a pair of sockets that a client makes. The client sends a file's descriptors into it, by one message that nobody answers.
//! The keeper has the receiving end as well, so what lies in a lane outlives the client, however that ends: the kernel keeps a message,
//! and the descriptors in it, for as long as somebody has that end. The process that receives the message has the file: the keeper, once
//! it needs it; or the client, if it closes the file before that. So a file that lives for a moment costs a client no waiting, and the
//! keeper nothing.
//!
//! With a file's descriptors go those by which the client has claimed it for the session (`member::claims`): the claim lasts until the
//! keeper has one of its own.
//!
//! A lane holds one message at most, and only its client sends, one thread at a time (the lock of the client's line). Where a client has
//! more files than lanes it hands the others over, and waits for the answer.
//!
//! The keeper keeps numbers for the descriptors that it may find in a lane ([`Reserve`]). Where it has none for the next message it takes no more
//! into the lane, and refuses what is handed over: a file whose descriptors the keeper cannot have is the kernel's.
//!
//! The keeper looks into lanes where it misses a file ([`Shared::device`]), where much is owed, and now and then. Files that it has taken
//! it counts as if they had been handed over.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MANAGE, MESSAGE_BYTES, decode, take_over};
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::sync::time::Instant;
use crate::sys::{limits, numbers, socket};

/// Lanes of one client at most: a program has as many as files of which it has begun at once. Each takes three of the keeper's numbers.
const LANES_MAX: usize = 16;
/// Lanes of a program that has fewer than [`MANY`] numbers for descriptors: it wants them for its files.
const LANES_FEW: usize = 4;
const MANY: u64 = 1024;
/// So many numbers below the last one they are scarce.
const FEW_NUMBERS: u64 = 256;
/// How long a lane is left alone that is never seen empty: most files are closed before.
const LEFT_ALONE: Duration = Duration::from_millis(20);

/// A client's lane.
struct Lane {
    into: OwnedFd,
    out: OwnedFd,
    /// The file whose descriptors were put into it last, unless it has been taken back.
    file: Option<FileId>,
}

/// A client's lanes to one keeper.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// The keeper takes no more of them.
    is_all: bool,
}

impl Lanes {
    /// Whether a lane more may be of use.
    pub fn may_grow(&self) -> bool {
        let has_room = !self.is_all && self.lanes.len() < LANES_MAX;
        let is_wanted = || self.lanes.iter().all(|lane| lane.file.is_some());
        has_room && is_wanted() && (self.lanes.len() < LANES_FEW || limits::descriptors() >= MANY)
    }

    /// The keeper takes no more lanes. Those that it has stay.
    pub fn stay(&mut self) {
        self.is_all = true;
    }

    /// A lane that the keeper has got the receiving end of.
    pub fn add(&mut self, (into, out): (OwnedFd, OwnedFd)) {
        let file = None;
        self.lanes.push(Lane { into, out, file });
    }

    /// Puts a file's descriptors into an empty lane. `false`: there is none.
    pub fn put(
        &mut self,
        file: FileId,
        message: &[u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> bool {
        let unused = self.lanes.iter().position(|lane| lane.file.is_none());
        // The keeper has taken what was in it.
        let emptied = || {
            let mut lanes = self.lanes.iter();
            lanes.position(|lane| socket::is_empty(lane.out.as_fd()))
        };
        let Some(lane) = unused.or_else(emptied).map(|at| &mut self.lanes[at]) else {
            return false;
        };
        let sent = socket::send_at_once(lane.into.as_fd(), message, descriptors);
        lane.file = sent.is_ok().then_some(file);
        if matches!(&sent, Err(error) if error.kind() == ErrorKind::BrokenPipe) {
            // The keeper takes no more into it.
            let into = lane.into.as_raw_fd();
            self.lanes.retain(|lane| lane.into.as_raw_fd() != into);
        }
        sent.is_ok()
    }

    /// Whether a file's descriptors may lie in a lane.
    pub fn may_have(&self, file: FileId) -> bool {
        self.lanes.iter().any(|lane| lane.file == Some(file))
    }

    /// Takes a file's descriptors back. `false`: the keeper has them.
    pub fn take_back(&mut self, file: FileId) -> bool {
        let lane = self.lanes.iter_mut().find(|lane| lane.file == Some(file));
        lane.is_some_and(|lane| {
            lane.file = None;
            socket::discard(lane.out.as_fd())
        })
    }
}

/// Numbers that the keeper has for a file's two descriptors.
struct Reserve {
    numbers: [OwnedFd; 2],
}

impl Reserve {
    /// `None`: the keeper is short of them.
    fn of(any: &OwnedFd) -> Option<Self> {
        let number = || any.try_clone().ok();
        Some(Reserve {
            numbers: [number()?, number()?],
        })
    }

    /// Whether there are few after these.
    fn is_of_the_last(&self) -> bool {
        let mut numbers = self.numbers.iter();
        numbers.any(|fd| numbers::is_of_the_last(fd, FEW_NUMBERS))
    }
}

/// The keeper's end of a lane.
struct Kept {
    client: u64,
    out: OwnedFd,
    /// For what is in it, or will be. `None`: it takes no more.
    reserve: Option<Reserve>,
    /// Since when it has not been seen empty.
    full: Option<Instant>,
    /// Files taken from it that the client's count does not have yet.
    taken: Vec<FileId>,
}

impl Kept {
    /// The descriptors of a message. Where numbers are scarce these have come, by those that are kept for them, before the message is taken away:
    /// others of this process may be quicker with the numbers, and then it stays where it is until there are some.
    fn receive(&mut self, message: &mut [u8; MESSAGE_BYTES]) -> Option<Vec<OwnedFd>> {
        if socket::is_empty(self.out.as_fd()) {
            return None;
        }
        let _turn = numbers::in_turn();
        let next = (self.reserve.as_ref()).and_then(|_| Reserve::of(&self.out));
        let is_scarce = next.as_ref().is_none_or(Reserve::is_of_the_last);
        // Those for this message come free.
        self.keep(next);
        let mut seen = [0; MESSAGE_BYTES];
        let mut descriptors = Vec::new();
        if is_scarce {
            // A client that takes its message back just now has descriptors here for a moment all the same.
            (_, descriptors) = socket::peek(self.out.as_fd(), &mut seen).ok()?;
            if descriptors.len() < 2 {
                return None;
            }
        }
        // Its client may have put another one there in between.
        let (got, others) = socket::receive_at_once(self.out.as_fd(), message).ok()?;
        let is_seen = is_scarce && *message == seen;
        (got == MESSAGE_BYTES).then_some(if is_seen { descriptors } else { others })
    }

    /// Keeps numbers for the next message, if there are any.
    fn keep(&mut self, next: Option<Reserve>) {
        if next.is_none() {
            // First: what is sent from here on would find no numbers.
            socket::take_no_more(self.out.as_fd());
        }
        self.reserve = next;
    }

    /// Whether a file's descriptors lie in it.
    fn has(&self, file: FileId) -> bool {
        let mut message = [0; MESSAGE_BYTES];
        let is_there = socket::look(self.out.as_fd(), &mut message) == MESSAGE_BYTES;
        is_there && decode(&message).0 == file
    }

    fn is_at_its_end(&self) -> bool {
        self.reserve.is_none() && self.taken.is_empty() && socket::is_empty(self.out.as_fd())
    }

    fn take(&mut self, shared: &Shared) {
        self.full = None;
        let mut message = [0; MESSAGE_BYTES];
        while let Some(mut descriptors) = self.receive(&mut message) {
            let (file, what, session) = decode(&message);
            let _marks = descriptors.split_off(descriptors.len().min(2));
            let ours = session == shared.session_name_word() && shared.arena.file(file).is_some();
            if ours && what == MANAGE && take_over(shared, file, descriptors) {
                self.taken.push(file);
            }
        }
    }
}

/// All lanes of a keeper's clients.
#[derive(Default)]
pub struct KeptLanes(Mutex<Vec<Kept>>);

impl KeptLanes {
    fn lanes(&self) -> MutexGuard<'_, Vec<Kept>> {
        // What a panic elsewhere has left untaken is taken the next time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Keeps the end of a client's lane. `false`: it has enough of them, or no numbers for what may come.
    pub(crate) fn keep_lane(&self, client: u64, out: OwnedFd) -> bool {
        let mut lanes = self.lanes.lanes();
        lanes.retain(|lane| !lane.is_at_its_end());
        let theirs = lanes.iter().filter(|lane| lane.client == client);
        let has_room = theirs.count() < LANES_MAX;
        let turn = numbers::in_turn();
        let reserve = Reserve::of(&out).filter(|_| has_room);
        drop(turn);
        let takes = reserve.is_some();
        if takes {
            lanes.push(Kept {
                client,
                out,
                reserve,
                full: None,
                taken: Vec::new(),
            });
        }
        takes
    }

    /// The keeper takes all that is in lanes.
    pub fn take_from_lanes(&self) {
        for lane in self.lanes.lanes().iter_mut() {
            lane.take(self);
        }
    }

    /// Takes a file's descriptors out of the lane in which they lie, by `numbers` where the keeper has had none for them.
    pub fn take_from_its_lane(&self, file: FileId, numbers: impl FnOnce() -> Option<[OwnedFd; 2]>) {
        let mut lanes = self.lanes.lanes();
        let lacks = |lane: &&mut Kept| lane.reserve.is_none() && lane.has(file);
        if let Some(lane) = lanes.iter_mut().find(lacks)
            && let Some(numbers) = numbers()
        {
            lane.reserve = Some(Reserve { numbers });
            lane.take(self);
            // It takes no more, since there were none.
            lane.keep(None);
        }
    }

    /// Whether a file's descriptors lie in a lane, for which the keeper has had no numbers: others of its process may give some back soon.
    pub fn lies_in_a_lane(&self, file: FileId) -> bool {
        self.lanes.lanes().iter().any(|lane| lane.has(file))
    }

    /// The keeper takes what has been in lanes for long. Called often.
    pub fn tend_lanes(&self) {
        let mut lanes = self.lanes.lanes();
        for lane in lanes.iter_mut() {
            if socket::is_empty(lane.out.as_fd()) {
                lane.full = None;
            } else if lane.full.get_or_insert_with(Instant::now).elapsed() >= LEFT_ALONE {
                lane.take(self);
            }
        }
    }

    /// The files that were taken from a client's lanes since the last time.
    pub(crate) fn taken_from(&self, client: u64) -> Vec<FileId> {
        let mut lanes = self.lanes.lanes();
        let theirs = lanes.iter_mut().filter(|lane| lane.client == client);
        theirs
            .flat_map(|lane| std::mem::take(&mut lane.taken))
            .collect()
    }

    /// A client is gone: takes what is in its lanes, and forgets them. The files that were taken since the last time.
    pub(crate) fn end_lanes_of(&self, client: u64) -> Vec<FileId> {
        let mut lanes = self.lanes.lanes();
        let theirs = lanes.extract_if(.., |lane| lane.client == client);
        let taken = theirs.flat_map(|mut lane| {
            lane.take(self);
            lane.taken
        });
        taken.collect()
    }

    /// The keeper ends: takes what is in lanes, and forgets them all.
    pub fn end_lanes(&self) {
        for mut lane in self.lanes.lanes().drain(..) {
            lane.take(self);
        }
    }
}
