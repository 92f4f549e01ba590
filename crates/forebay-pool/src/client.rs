//! A client of a pool, as a machine without I/O: operations, grants, cached blocks.
//!
//! Blocks are cached under grants, in the states of MESI: a block under an exclusive grant is *modified* if it is dirty and *exclusive* if it is not,
//! under a shared grant it is *shared*, and without a grant it is not there. What is recalled is written first and given back in
//! batches. One operation of a file is under way at a time and takes its grants in order of blocks, the size last; it keeps
//! them until it is done, so that no two clients wait for one another. Operations whose grants and blocks are here pass
//! it by. Remote ones go beside it once they have their grants (`past`).
//!
//! A client uses its grants until a term has passed since it *sent* the last message that the register has answered. After that its operations fail
//! with [`Failure::CutOff`]. Its writes that are under way then land only as long as the epoch lasts.

mod ageing;
mod attributes;
mod changes;
mod cutting;
mod damage;
mod growth;
mod keeping;
mod losses;
mod names;
mod operate;
mod operation;
mod past;
mod room;
mod state;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Client as Id, Epoch, File, Key, Node, Server};
use crate::message::{Message, Outbox, Place, View, alive, is_due};
use crate::mistakes::{Mistake, is_made};
use crate::placement::keeper_of_locks;
use crate::range::{Range, Right};
pub use attributes::{Changes, Facts, Kind};
pub(crate) use names::is_name;
pub use operation::{Answer, Entry, Failure, Mode, Operation};
use state::{Active, State};
use transfer::Transfer;

/// What a client is told when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Size of a block.
    pub block_bytes: u64,
    /// Copies of each block.
    pub copies: usize,
    /// How long the register waits for a sign of life, in milliseconds by this client's clock: less than the register's own time, by as
    /// much as clocks may differ.
    pub term: u64,
    /// How often it gives one.
    pub alive_every: u64,
    /// Clean blocks above this number are dropped, those that were used longest ago first, and so is what is known of more files than some times as many.
    pub cache_blocks: usize,
    /// What the servers lack for so long, in milliseconds, is written to them; 0: never.
    pub flush_interval: u64,
    /// The pool has a home: nothing is lost with servers, and a sync waits until what was written is durable there.
    pub has_home: bool,
    /// Grants are asked for in aligned runs of so many blocks, where nobody else is in the way.
    pub wish_blocks: u64,
}

/// A grant that a client has.
type Claim = (File, Range, Right);

/// A client.
#[derive(Clone, Debug)]
pub struct Client {
    me: Id,
    config: Config,
    view: View,
    /// How many epochs it has been in.
    epochs: u64,
    valid_until: u64,
    gone: bool,
    /// What was unwritten when it was given up: files, bytes.
    left: (usize, u64),
    told: Option<u64>,
    keys: BTreeMap<Server, Key>,
    /// Servers that have said last that their memory is full. Each says it at each connection, and whenever this client has entered.
    full: BTreeSet<Server>,
    /// The last stamp of each server in this epoch.
    seen: BTreeMap<Server, u64>,
    files: BTreeMap<File, State>,
    transfers: BTreeMap<u64, Transfer>,
    /// Bytes of blocks that are being written.
    unanswered: u64,
    /// Something was not begun because these were too many.
    waits_for_room: bool,
    /// Bytes of blocks that are being read, at most.
    asked: u64,
    /// Something was not asked for because these were too many.
    waits_to_read: bool,
    /// Of requests, changes and uses: grows.
    counter: u64,
    /// Blocks in the order of their uses.
    cached: BTreeMap<u64, (File, u64)>,
    /// Blocks that the servers lack, in the order of since when: the count and the time of then.
    dirty: BTreeMap<u64, (u64, Place)>,
    /// Transfers that were begun to write those that were old, as far as they are under way.
    of_old: BTreeSet<u64>,
    /// The time of the last call that has said it.
    now: u64,
    /// What was written out and not synced.
    went: losses::Went,
    unsynced: losses::Unsynced,
    /// What syncs have found to be lost, and how often.
    found: BTreeMap<File, losses::Found>,
    losses: u64,
    /// Files in the order of their uses.
    order: BTreeMap<u64, File>,
    /// Where the next look for a file that can go begins.
    looked_at: u64,
    files_made: u32,
    /// Files of which something is given back, or not sure any more, since this was asked for last; `None`: nobody asks.
    going: Option<BTreeSet<File>>,
    /// The end of the term after which all files were among these.
    went_at: u64,
    results: Vec<(u64, Result<Answer, Failure>)>,
}

impl Client {
    /// A client that holds nothing.
    pub fn new(me: Id, config: Config) -> Self {
        Client {
            me,
            config,
            view: View::default(),
            epochs: 0,
            valid_until: 0,
            gone: false,
            left: (0, 0),
            told: None,
            keys: BTreeMap::new(),
            full: BTreeSet::new(),
            seen: BTreeMap::new(),
            files: BTreeMap::new(),
            transfers: BTreeMap::new(),
            unanswered: 0,
            waits_for_room: false,
            asked: 0,
            waits_to_read: false,
            counter: 0,
            cached: BTreeMap::new(),
            dirty: BTreeMap::new(),
            of_old: BTreeSet::new(),
            now: 0,
            went: losses::Went::new(),
            unsynced: losses::Unsynced::new(),
            found: BTreeMap::new(),
            losses: 0,
            order: BTreeMap::new(),
            looked_at: 0,
            files_made: 0,
            going: None,
            went_at: 0,
            results: Vec::new(),
        }
    }

    /// Whether the pool has given it up. Another life begins with a new number.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// The last epoch that became active, as far as this client knows.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether operations are served now.
    pub fn is_member(&self, now: u64) -> bool {
        !self.gone
            && self.view.active
            && (now < self.valid_until || is_made(Mistake::TermsNeverEnd))
    }

    /// How long operations will be served if the register answers nothing any more, in milliseconds.
    pub fn term_left(&self, now: u64) -> u64 {
        match self.is_member(now) {
            true => self.valid_until.saturating_sub(now),
            false => 0,
        }
    }

    /// What has ended since the last call, in this order.
    pub fn results(&mut self) -> Vec<(u64, Result<Answer, Failure>)> {
        self.drain_results().collect()
    }

    /// The same, without memory for it.
    pub fn drain_results(&mut self) -> impl Iterator<Item = (u64, Result<Answer, Failure>)> {
        self.results.drain(..)
    }

    /// An operation begins; its result comes under `id`.
    pub fn begin(&mut self, now: u64, id: u64, operation: Operation, out: &mut Outbox) {
        self.now = now;
        if !self.is_member(now) {
            let failure = if self.gone {
                Failure::GivenUp
            } else {
                Failure::CutOff
            };
            self.results.push((id, Err(failure)));
            return;
        }
        if !operation.is_named() {
            self.results.push((id, Err(Failure::NoSuchName)));
            return;
        }
        if operation.is_by_number() && operation.file() == File::NAMES {
            // A number that no file has: something is damaged, or a member means harm.
            self.results.push((id, Err(Failure::Gone)));
            return;
        }
        if operation.end().is_none_or(|end| end > self.size_max()) {
            self.results.push((id, Err(Failure::TooLarge)));
            return;
        }
        let file = operation.file();
        let Some(made) = self.next_file(&operation) else {
            self.results.push((id, Err(Failure::Full)));
            return;
        };
        self.use_file(file);
        let active = Active::new(id, operation, made);
        let is_done = if self.state(file).active.is_none() {
            self.happens_at_once(file, &active, out)
        } else {
            self.passes_by(now, file, &active, out)
        };
        if is_done {
            return;
        }
        self.state(file).queue.push_back(active);
        self.advance(now, file, out);
    }

    /// Goes. What was not synced is lost, and others wait no term for what it held.
    pub fn leave(&mut self, out: &mut Outbox) {
        let known = self.view.known();
        self.give_up();
        out.push(alive(0, known, Epoch(0), true, (false, 0)));
    }

    /// The clock has moved on.
    pub fn tick(&mut self, now: u64, out: &mut Outbox) {
        self.now = now;
        if self.gone {
            return;
        }
        if is_due(self.told, now, self.config.alive_every) {
            self.told = Some(now);
            out.push(alive(now, self.view.known(), Epoch(0), false, (false, 0)));
        }
        if self.view.active && !self.is_member(now) {
            if self.went_at != self.valid_until {
                self.went_at = self.valid_until;
                self.all_go();
            }
            for state in self.files.values_mut() {
                let ended = state.cut_off();
                self.results
                    .extend(ended.into_iter().map(|id| (id, Err(Failure::CutOff))));
            }
        }
        self.write_old(out);
    }

    /// A new connection: what was under way is lost, and is sent again.
    pub fn connected(&mut self, peer: Node, out: &mut Outbox) {
        match peer {
            Node::Register => self.told = None,
            Node::Server(server) if self.view.servers.contains(&server) => {
                if self.keys.contains_key(&server) {
                    self.send_all(server, out);
                } else {
                    self.enter(server, out);
                }
            }
            _ => {}
        }
    }

    /// A message of `from`.
    pub fn handle(&mut self, now: u64, from: Node, message: Message, out: &mut Outbox) {
        self.now = now;
        if self.gone {
            return;
        }
        match (from, message) {
            (Node::Register, Message::Member { sent, view }) => {
                self.valid_until = self.valid_until.max(sent.saturating_add(self.config.term));
                if let Some(view) = view {
                    self.adopt(view, out);
                }
                self.advance_all(now, out);
            }
            (Node::Register, Message::Gone) => self.give_up(),
            (_, Message::Behind { epoch })
                if epoch > self.view.epoch
                    && is_due(self.told, now, self.config.alive_every / 4) =>
            {
                self.told = None;
            }
            (Node::Server(server), message) => self.of_server(now, server, message, out),
            _ => {}
        }
    }

    fn of_server(&mut self, now: u64, server: Server, message: Message, out: &mut Outbox) {
        let current = self.view.epoch;
        match message {
            Message::Entered { epoch, key } if epoch == current => {
                // One that says it again has got all by this connection: twice would do it twice, the second time after what comes later.
                let is_new = self.keys.insert(server, key).is_none();
                if is_new {
                    self.send_all(server, out);
                }
            }
            Message::Granted {
                epoch,
                number,
                file,
                range,
                right,
                stamp,
            } if epoch == current => {
                self.seen.insert(server, stamp);
                let state = self.state(file);
                state.locks.grant((), range, right, stamp);
                if state.asked.is_some_and(|asked| asked.number == number) {
                    state.asked = None;
                }
                self.advance(now, file, out);
            }
            Message::Recall {
                epoch,
                file,
                range,
                keep,
                stamp,
            } if epoch == current => {
                let seen = self.seen.entry(server).or_default();
                *seen = stamp.max(*seen);
                let state = self.state(file);
                if !state.recalls.contains(&(range, keep)) {
                    state.recalls.push((range, keep));
                }
                self.advance(now, file, out);
            }
            Message::Bytes {
                number,
                found,
                bytes,
            } => {
                if let Some(file) = self.arrived(number, found, &bytes) {
                    self.advance(now, file, out);
                }
                self.make_use_of_room(now, out);
            }
            Message::Full { is_full } => self.hear_of_room(server, is_full),
            Message::Damaged { number, places } => {
                if let Some(file) = self.damaged(server, number, &places) {
                    self.advance(now, file, out);
                }
                self.make_use_of_room(now, out);
            }
            Message::Done { number } => {
                let file = self.done(server, number);
                // Before operations take what room there is now.
                self.write_old(out);
                if let Some(file) = file {
                    self.advance(now, file, out);
                }
                self.make_use_of_room(now, out);
            }
            _ => {}
        }
    }

    fn state(&mut self, file: File) -> &mut State {
        self.files.entry(file).or_default()
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// A new epoch: says what it holds, and does again what was under way.
    fn adopt(&mut self, view: View, out: &mut Outbox) {
        if !view.active || view.epoch <= self.view.epoch {
            return;
        }
        let has_lost = view.home_lost > self.view.home_lost;
        self.view = view;
        if has_lost {
            self.doubt_the_home();
        }
        self.epochs += 1;
        self.keys.clear();
        let servers = &self.view.servers;
        self.full.retain(|server| servers.contains(server));
        self.seen.clear();
        for state in self.files.values_mut() {
            state.new_epoch();
        }
        self.renew_transfers(out);
        self.enter_all(out);
    }

    /// Enters at all servers. Who keeps its locks is asked once of each file: many files times many servers would take longer than they may.
    fn enter_all(&self, out: &mut Outbox) {
        let mut all: BTreeMap<Server, Vec<Claim>> = BTreeMap::new();
        for file in self.files.keys() {
            if let Some(keeper) = keeper_of_locks(&self.view.servers, *file) {
                all.entry(keeper).or_default().extend(self.claims(*file));
            }
        }
        for server in &self.view.servers {
            let claims = all.remove(server).unwrap_or_default();
            self.enter_with(*server, claims, out);
        }
    }

    fn enter(&self, server: Server, out: &mut Outbox) {
        let kept = |file: &&File| keeper_of_locks(&self.view.servers, **file) == Some(server);
        let files = self.files.keys().filter(kept);
        let claims = files.flat_map(|file| self.claims(*file)).collect();
        self.enter_with(server, claims, out);
    }

    fn enter_with(&self, server: Server, claims: Vec<Claim>, out: &mut Outbox) {
        let epoch = self.view.epoch;
        out.push((Node::Server(server), Message::Enter { epoch, claims }));
    }

    /// What it holds of a file.
    fn claims(&self, file: File) -> impl Iterator<Item = Claim> {
        let held = self.files[&file].locks.held(()).into_iter();
        held.map(move |piece| (file, piece.range, piece.right))
    }

    /// All that `server` has not answered.
    fn send_all(&mut self, server: Server, out: &mut Outbox) {
        for (file, state) in &self.files {
            if let Some(asked) = state.asked
                && keeper_of_locks(&self.view.servers, *file) == Some(server)
            {
                out.push((Node::Server(server), asked.message(self.view.epoch, *file)));
            }
        }
        let numbers: Vec<u64> = self.transfers.keys().copied().collect();
        for number in numbers {
            self.send_transfer(number, Some(server), out);
        }
    }

    fn advance_all(&mut self, now: u64, out: &mut Outbox) {
        let all = self.files.iter().filter(|(_, state)| state.has_work());
        let files: Vec<File> = all.map(|(file, _)| *file).collect();
        for file in files {
            self.go_on(now, file, out);
        }
        if self.view.active {
            self.evict(out);
        }
    }

    fn give_up(&mut self) {
        self.left = self.unwritten();
        self.gone = true;
        self.all_go();
        for (_, state) in std::mem::take(&mut self.files) {
            let ids = state
                .active
                .iter()
                .chain(&state.queue)
                .chain(state.aside.iter().map(|aside| &aside.active))
                .map(|active| active.id);
            self.results
                .extend(ids.map(|id| (id, Err(Failure::GivenUp))));
        }
        self.transfers.clear();
        self.cached.clear();
        self.dirty.clear();
        self.order.clear();
        self.went.clear();
        self.unsynced.clear();
    }
}
