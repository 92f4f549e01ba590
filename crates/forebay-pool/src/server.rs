//! A server of a pool, as a machine without I/O: blocks, locks, epochs.
//!
//! **An epoch is a fresh start.** When the register tells of a new one, the server closes its memory (the old key opens it no more) and
//! forgets all locks. It exchanges blocks with the other servers, until each block is where the new epoch wants it, and tells
//! the register (`exchange`). When the epoch is active, clients enter: they say what they hold, and get the new key. Nobody is
//! granted anything before every client of the epoch's view has entered. So no two clients ever hold what conflicts, whichever
//! servers and clients have died, and what a dead client sent before lands nowhere once another may hold its blocks.
//!
//! Whoever does not answer a recall, or does not enter, is reported to the register, which lets its term end. The register is told as well while
//! requests have waited for the home for half a term: then nobody can help it.

mod blocks;
mod exchange;
mod leaving;
mod one_sided;
mod room;
mod syncing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::home::Home;
use crate::ids::{Client, Epoch, File, Node, Server as Id};
use crate::locks::{Outcome, Queue, Request};
use crate::message::{Message, Outbox, Place, View, alive, is_due};
use crate::mistakes::{Mistake, is_made};
use crate::placement::{key_of_block, owners};
use crate::range::{Range, Right};
use blocks::Blocks;

/// What a server is told when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Copies of each block.
    pub copies: usize,
    /// How often the register is told that the server is there, in milliseconds.
    pub alive_every: u64,
    /// How long the register waits for a sign of life, by this server's clock: less than the register's own time.
    pub term: u64,
    /// How long a client may take to answer, in milliseconds.
    pub patience: u64,
    /// What keys are made of. Nobody else knows it.
    pub secret: u64,
}

/// A server.
#[derive(Clone, Debug)]
pub struct Server {
    me: Id,
    config: Config,
    view: View,
    /// When this epoch became active here.
    active_since: u64,
    blocks: Blocks,
    /// Requests that wait for the home, or until the register says that this server is a member still.
    failed: Vec<one_sided::Asked>,
    /// Those whose work in the home goes on in the next turn.
    unfinished: Vec<one_sided::Asked>,
    syncs: syncing::Syncs,
    trouble: Option<String>,
    /// A request has waited for the home for half a term.
    waits: bool,
    /// What was damaged in the home when it was last read, and when.
    damage: Option<(u64, String)>,
    /// Nothing changes the home after this: another server may have been given what is here.
    valid_until: u64,
    queues: BTreeMap<File, Queue<Client>>,
    entered: BTreeSet<Client>,
    stamp: u64,
    /// Requests for grants that came before all clients had entered.
    waiting: Vec<(Client, Message)>,
    /// Messages of epochs that the register has not told of yet.
    early: Vec<(Node, Message)>,
    exchange: exchange::Exchange,
    ready: Epoch,
    leaving: bool,
    gone: bool,
    false_claims: u64,
    told: Option<u64>,
    /// What clients were told last of whether memory is full, if it ever was.
    told_full: Option<bool>,
}

impl Server {
    /// A server without blocks.
    pub fn new(me: Id, config: Config) -> Self {
        Server {
            me,
            config,
            view: View::default(),
            active_since: 0,
            blocks: Blocks::within(u64::MAX),
            failed: Vec::new(),
            unfinished: Vec::new(),
            syncs: syncing::Syncs::default(),
            trouble: None,
            waits: false,
            damage: None,
            valid_until: 0,
            queues: BTreeMap::new(),
            entered: BTreeSet::new(),
            stamp: 0,
            waiting: Vec::new(),
            early: Vec::new(),
            exchange: exchange::Exchange::default(),
            ready: Epoch(0),
            leaving: false,
            gone: false,
            false_claims: 0,
            told: None,
            told_full: None,
        }
    }

    /// A server whose blocks outlive it: of what is in the home, up to `limit` bytes are in memory.
    pub fn with_home(self, home: Arc<dyn Home>, limit: u64) -> Self {
        Server {
            blocks: Blocks::over(home, limit),
            ..self
        }
    }

    /// A server that syncs its home on threads, and goes on meanwhile. When one has ended that calls `wake`: then
    /// [`Server::synced`] tells who has waited for it.
    pub fn with_threads(self, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Server {
            syncs: syncing::Syncs::by_threads(wake),
            ..self
        }
    }

    /// Tells it the time as it goes on while it works. Without that it is what it was last told.
    pub fn set_clock(&mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) {
        self.blocks.clock.0 = Some(Arc::new(clock));
    }

    /// How often a client has claimed what another has.
    pub fn false_claims(&self) -> u64 {
        self.false_claims
    }

    /// How often a client has sent what was older than what was here.
    pub fn passed_over(&self) -> u64 {
        self.blocks.passed_over()
    }

    /// Which blocks are in memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> impl Iterator<Item = crate::message::Block> + '_ {
        self.blocks.all()
    }

    /// The epoch.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What the home has failed by, while requests wait for it; else what was damaged in it, for a while after somebody has been told.
    pub fn trouble(&self) -> Option<&str> {
        let damage = self.damage.as_ref().map(|(_, why)| why.as_str());
        let trouble = self.trouble.as_deref().or(self.syncs.trouble());
        trouble.or(damage)
    }

    /// The clock has moved on.
    pub fn tick(&mut self, now: u64, out: &mut Outbox) {
        if self.gone {
            return;
        }
        // While it waits for an epoch to be active it asks more often: all clients wait as well, and its last word may have been that it is ready.
        let every = if self.view.active { 1 } else { 4 };
        if is_due(self.told, now, self.config.alive_every / every) {
            self.tell(now, out);
        }
        self.trouble = None;
        for asked in std::mem::take(&mut self.failed) {
            self.one_sided(now, asked, false, out);
        }
        // The one that was worked at last comes after the others.
        let mut unfinished = std::mem::take(&mut self.unfinished);
        let first = usize::from(!unfinished.is_empty());
        unfinished.rotate_left(first);
        for asked in unfinished {
            self.one_sided(now, asked, true, out);
        }
        self.go_on_syncing(now, out);
        self.tell_room(out);
        // Who has waited for the home for long cannot answer. That a removal takes a few turns is nothing out of the ordinary.
        let before = now.saturating_sub(self.config.term / 2);
        let is_old = |asked: &one_sided::Asked| asked.since < before;
        let waits = self.trouble.is_some() && self.failed.iter().any(is_old)
            || self.unfinished.iter().any(is_old)
            || self.syncs.trouble().is_some();
        if waits != self.waits {
            self.waits = waits;
            self.told = None;
        }
        let since = now.saturating_sub(self.config.patience);
        self.damage.take_if(|(at, _)| *at < since);
        let mut late: BTreeSet<Client> = self
            .queues
            .values()
            .flat_map(|queue| queue.late(now, self.config.patience))
            .collect();
        if self.view.active && self.active_since < since {
            late.extend(
                self.view
                    .clients
                    .iter()
                    .filter(|client| !self.entered.contains(client)),
            );
        }
        out.extend(
            late.into_iter()
                .map(|client| (Node::Register, Message::Expel { client })),
        );
    }

    /// A new connection: what was under way is lost.
    pub fn connected(&mut self, peer: Node, out: &mut Outbox) {
        match peer {
            Node::Client(client) => {
                // It sends again what was not answered. What waits here must not be done after that, and after what it writes then.
                self.failed.retain(|asked| asked.client != client);
                self.unfinished.retain(|asked| asked.client != client);
                self.syncs.forget(client);
                self.early.retain(|(from, _)| *from != peer);
                let recalls = self.queues.iter().flat_map(|(file, queue)| {
                    let recalls = queue.recalls_of(client).into_iter();
                    recalls.map(|recall| (*file, recall.range, recall.keep))
                });
                let (epoch, stamp) = (self.view.epoch, self.stamp);
                out.extend(recalls.map(|(file, range, keep)| {
                    (
                        peer,
                        Message::Recall {
                            epoch,
                            file,
                            range,
                            keep,
                            stamp,
                        },
                    )
                }));
                self.tell_room_to(client, out);
            }
            Node::Server(server) => self.met(server, out),
            Node::Register => self.told = None,
        }
    }

    /// A message of `from`.
    pub fn handle(&mut self, now: u64, from: Node, message: Message, out: &mut Outbox) {
        if self.gone {
            return;
        }
        if let Some(epoch) = epoch_of(&message) {
            if epoch < self.view.epoch {
                out.push((
                    from,
                    Message::Behind {
                        epoch: self.view.epoch,
                    },
                ));
                return;
            }
            let enters = matches!(message, Message::Enter { .. }) && !self.view.active;
            if epoch > self.view.epoch || enters {
                self.early.push((from, message));
                return;
            }
        }
        match (from, message) {
            (Node::Register, Message::Member { sent, view }) => {
                self.valid_until = self.valid_until.max(sent.saturating_add(self.config.term));
                if let Some(view) = view {
                    self.adopt(now, view, out);
                }
            }
            (Node::Register, Message::Gone) => self.gone = true,
            (Node::Server(peer), message) => self.of_server(now, peer, message, out),
            (Node::Client(client), message) => self.of_client(now, client, message, out),
            _ => {}
        }
    }

    fn of_client(&mut self, now: u64, client: Client, message: Message, out: &mut Outbox) {
        match message {
            Message::Enter { claims, .. } => self.enter(now, client, &claims, out),
            Message::Ask { .. } if !self.is_complete() => self.waiting.push((client, message)),
            Message::Ask {
                number,
                file,
                need,
                wish,
                right,
                urgent,
                ..
            } => {
                let queue = self.queues.entry(file).or_default();
                let request = Request {
                    holder: client,
                    number,
                    need,
                    wish,
                    right,
                    urgent,
                };
                let outcome = queue.ask(request, now, &mut self.stamp);
                self.answer(file, outcome, out);
            }
            Message::Release { seen, parts, .. } => {
                for (file, range, keep) in parts {
                    let queue = self.queues.entry(file).or_default();
                    let unseen = is_made(Mistake::ReleasesEndUnseen);
                    let how = (if unseen { u64::MAX } else { seen }, keep);
                    let outcome = queue.release((client, range), how, now, &mut self.stamp);
                    if queue.is_idle() {
                        self.queues.remove(&file);
                    }
                    self.answer(file, outcome, out);
                }
            }
            other => self.asked(now, client, other, out),
        }
    }

    /// Whether all clients that may hold something have said what.
    fn is_complete(&self) -> bool {
        self.view.active
            && (self
                .view
                .clients
                .iter()
                .all(|client| self.entered.contains(client))
                || is_made(Mistake::GrantsBeforeClaims))
    }

    fn enter(
        &mut self,
        now: u64,
        client: Client,
        claims: &[(File, Range, Right)],
        out: &mut Outbox,
    ) {
        // A member that was not there when the epoch began holds nothing from before, and is not waited for.
        if !claims.is_empty() && !self.view.clients.contains(&client) {
            out.push((
                Node::Client(client),
                Message::Behind {
                    epoch: self.view.epoch,
                },
            ));
            return;
        }
        if self.entered.insert(client) && !self.claim(client, claims) {
            // No client of ours does this. It does not come in, and its term will end.
            self.false_claims += 1;
            self.entered.remove(&client);
            out.push((Node::Register, Message::Expel { client }));
            return;
        }
        let entered = Message::Entered {
            epoch: self.view.epoch,
            key: self.key(),
        };
        out.push((Node::Client(client), entered));
        self.tell_room_to(client, out);
        if self.is_complete() {
            for (client, message) in std::mem::take(&mut self.waiting) {
                self.of_client(now, client, message, out);
            }
        }
    }

    /// What a client says it holds. Says whether all of it fits beside what others hold; else it holds nothing.
    fn claim(&mut self, client: Client, claims: &[(File, Range, Right)]) -> bool {
        let fits = claims.iter().all(|(file, range, right)| {
            let queue = self.queues.entry(*file).or_default();
            queue.claim(client, *range, *right)
        });
        if !fits {
            // Nobody waits yet, so nobody is granted anything by this.
            for (file, ..) in claims {
                if let Some(queue) = self.queues.get_mut(file) {
                    queue.forget(client, 0, &mut self.stamp);
                }
            }
        }
        fits
    }

    fn answer(&self, file: File, outcome: Outcome<Client>, out: &mut Outbox) {
        let epoch = self.view.epoch;
        out.extend(outcome.granted.into_iter().map(|granted| {
            let (holder, number, right) = (granted.holder, granted.number, granted.right);
            let (range, stamp) = (granted.range, granted.stamp);
            (
                Node::Client(holder),
                Message::Granted {
                    epoch,
                    number,
                    file,
                    range,
                    right,
                    stamp,
                },
            )
        }));
        out.extend(
            outcome
                .recalls
                .into_iter()
                .filter(|_| !is_made(Mistake::RecallsGetLost))
                .map(|recall| {
                    let (range, keep, stamp) = (recall.range, recall.keep, self.stamp);
                    (
                        Node::Client(recall.holder),
                        Message::Recall {
                            epoch,
                            file,
                            range,
                            keep,
                            stamp,
                        },
                    )
                }),
        );
    }

    /// What the register says.
    fn adopt(&mut self, now: u64, view: View, out: &mut Outbox) {
        if view.epoch > self.view.epoch {
            if !self.has_ended_names(now) {
                // The register says it again. Nobody is in that epoch before this server is.
                return;
            }
            let has_lost = view.home_lost > self.view.home_lost;
            self.view = View {
                active: false,
                ..view.clone()
            };
            self.queues.clear();
            self.entered.clear();
            self.waiting.clear();
            self.failed.clear();
            self.unfinished.clear();
            self.syncs.forget_all();
            self.stamp = 0;
            if self.config.copies > 1 || has_lost {
                // Another one may have put a newer copy there, whose client died before it came here. Or what is here is there no more.
                self.blocks.forget_what_the_home_has();
            }
            self.begin_exchange(now, out);
        }
        if view.epoch == self.view.epoch && view.active && !self.view.active {
            self.view.active = true;
            self.active_since = now;
        }
        for (from, message) in std::mem::take(&mut self.early) {
            self.handle(now, from, message, out);
        }
    }

    fn tell(&mut self, now: u64, out: &mut Outbox) {
        self.told = Some(now);
        out.push(alive(
            now,
            self.view.known(),
            self.ready,
            self.leaving,
            (self.waits, self.blocks.home().map_or(0, |home| home.boot())),
        ));
    }

    fn owns(&self, server: Id, place: Place) -> bool {
        self.owners_of(place).contains(&server)
    }

    fn owners_of(&self, (file, block): Place) -> Vec<Id> {
        owners(
            &self.view.servers,
            key_of_block(file, block),
            self.config.copies,
        )
    }
}

fn epoch_of(message: &Message) -> Option<Epoch> {
    match message {
        Message::Enter { epoch, .. }
        | Message::Ask { epoch, .. }
        | Message::Release { epoch, .. }
        | Message::Offer { epoch, .. }
        | Message::Want { epoch, .. }
        | Message::Give { epoch, .. }
        | Message::Taken { epoch } => Some(*epoch),
        _ => None,
    }
}
