//! One process of a pool: its machines, what comes to them, and time.

mod asking;
mod ending;
mod listing;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Ended;
use super::clock::Moment;
use super::link::{Link, Newest};
use super::status::Status;
use crate::client::{Answer, Client, Failure};
use crate::ids::{Epoch, File, Node};
use crate::message::{Addresses, Message, Outbox};
use crate::register::Saved;
use crate::ruler::Ruler;
use crate::server::Server;

/// What becomes of an operation.
pub(super) type Outcome = Result<Answer, Failure>;

/// Who is told of files ([`Pool::watch`](super::Pool::watch)).
pub(super) type Watcher = Box<dyn Fn(File) + Send>;

/// What a process is told besides what comes by its connections.
pub(super) enum Event {
    /// A peer will never let it in.
    Refused(String),
    /// It is to go: a server hands on what it has first.
    Stop,
    /// The home has been synced.
    Synced,
}

/// What a process is there for.
pub(super) enum Machine {
    /// It lends memory.
    Server(Box<Server>),
    /// It uses the pool.
    Client(Box<Client>),
}

/// A process.
pub(super) struct Process {
    me: Node,
    machine: Machine,
    ruler: Option<Ruler>,
    /// The process that keeps the register, if it is another one; the register itself, if it is this one or nobody knows.
    keeper: Node,
    /// Whose reign that is: it grows from ruler to ruler.
    reign: u64,
    /// Who saves what the register knows is told here that there is something.
    saver: Option<Sender<()>>,
    /// What etcd fails by.
    etcd_trouble: Option<String>,
    /// The servers of the pool's list that it knows, and those of them whom it has not begun to dial.
    addresses: Addresses,
    undialled: Addresses,
    /// Which of them do not let this member in, and why.
    refusals: BTreeMap<u8, String>,
    links: BTreeMap<Node, Link>,
    newest: Newest,
    /// The members, and servers that may have blocks, as far as this process has been told, and of which epoch that is.
    told: (Epoch, Vec<Node>),
    /// Where results of operations go that have not ended.
    askers: BTreeMap<u64, Sender<Outcome>>,
    asked: u64,
    /// Who is told of files of which what he was told may be true no longer.
    watcher: Option<Watcher>,
    pub is_over: bool,
    is_in: Arc<AtomicBool>,
    /// What a server says of itself.
    status: Arc<Mutex<Status>>,
    began: Moment,
    term: Duration,
    tick: Duration,
}

impl Process {
    pub fn new(
        (me, mut machine): (Node, Machine),
        ruler: Option<Ruler>,
        keeper: Node,
        is_in: Arc<AtomicBool>,
        term_ms: u64,
    ) -> Process {
        let began = Moment::now();
        if let Machine::Server(server) = &mut machine {
            server.set_clock(move || Moment::now().millis_since(began));
        }
        Process {
            me,
            machine,
            // Who keeps the register is told nothing of it from outside: no peer has this name.
            keeper: ruler.as_ref().map_or(keeper, |_| Node::Register),
            ruler,
            reign: 0,
            saver: None,
            etcd_trouble: None,
            addresses: Addresses::new(),
            undialled: Addresses::new(),
            refusals: BTreeMap::new(),
            links: BTreeMap::new(),
            newest: Newest::default(),
            told: Default::default(),
            askers: BTreeMap::new(),
            asked: 0,
            watcher: None,
            is_over: false,
            is_in,
            status: Arc::default(),
            began,
            term: Duration::from_millis(term_ms),
            tick: Duration::from_millis((term_ms / 50).clamp(5, 100)),
        }
    }

    /// A process that says there how it is.
    pub fn with_status(self, status: Arc<Mutex<Status>>) -> Process {
        Process { status, ..self }
    }

    /// Goes on until it is told to stop, or the pool does not want it any more: this thread does what time asks for, and has each server dialled
    /// of which the process comes to know. Threads of connections bring messages meanwhile, and those of programs operations.
    pub fn run(
        process: &Mutex<Process>,
        inbox: &Receiver<Event>,
        dial: &dyn Fn(u8, SocketAddr),
    ) -> Result<(), Ended> {
        let result = Process::go_on(process, inbox, dial);
        let mut process = locked(process);
        process.tell_end();
        process.is_over = true;
        process.askers.clear();
        process.links.clear();
        result
    }

    fn go_on(
        process: &Mutex<Process>,
        inbox: &Receiver<Event>,
        dial: &dyn Fn(u8, SocketAddr),
    ) -> Result<(), Ended> {
        let tick = locked(process).tick;
        let mut next = Instant::now();
        loop {
            let new = std::mem::take(&mut locked(process).undialled);
            new.into_iter().for_each(|(place, to)| dial(place, to));
            let event = inbox.recv_timeout(next.saturating_duration_since(Instant::now()));
            let mut process = locked(process);
            if Instant::now() >= next {
                process.tick();
                next = Instant::now() + tick;
            }
            match event {
                Ok(Event::Stop) if process.stop() => return Ok(()),
                Ok(Event::Synced) => process.synced(),
                Ok(Event::Refused(why)) => return Err(Ended::Refused(why)),
                Ok(Event::Stop) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let now = process.now();
            process.answer(now, None);
            if let Machine::Server(server) = &process.machine
                && server.is_gone()
            {
                return if server.is_let_go() {
                    Ok(())
                } else {
                    Err(Ended::GivenUp)
                };
            }
            if process.is_left_alone() {
                return Ok(());
            }
        }
    }

    /// Whether the register has ever told this server that it is a member: else it has nothing that anybody could miss.
    pub fn has_been_member(&self) -> bool {
        matches!(&self.machine, Machine::Server(server) if server.view().epoch != Epoch(0))
    }

    /// How long a member is waited for.
    pub fn term(&self) -> Duration {
        self.term
    }

    pub fn now(&self) -> u64 {
        self.clock(Moment::now())
    }

    /// A time by this process's clock.
    pub fn clock(&self, at: Moment) -> u64 {
        at.millis_since(self.began)
    }

    /// A process whose ruler, if there is one, is told to `saver` when there is something to save.
    pub fn with_saver(self, saver: Sender<()>) -> Process {
        Process {
            saver: Some(saver),
            ..self
        }
    }

    /// This process keeps the register from now on.
    pub fn rule(&mut self, ruler: Ruler, reign: u64) {
        self.ruler = Some(ruler);
        self.keeper = Node::Register;
        self.reign = reign;
        let clients = self.links.keys().copied();
        let clients = clients.filter(|node| matches!(node, Node::Client(_)));
        let rules = |client| (client, Message::Rules { reign });
        let out = clients.map(rules).collect();
        self.dispatch(self.me, out);
        self.learn_list();
        self.meet_register();
    }

    /// Another process keeps the register, or nobody that is known.
    pub fn follow(&mut self, keeper: Option<Node>, reign: u64) {
        let keeper = keeper.unwrap_or(Node::Register);
        if self.ruler.take().is_some() || keeper != self.keeper || reign != self.reign {
            self.keeper = keeper;
            self.reign = reign;
            self.meet_register();
        }
    }

    fn meet_register(&mut self) {
        let mut out = Outbox::new();
        match &mut self.machine {
            Machine::Server(server) => server.connected(Node::Register, &mut out),
            Machine::Client(client) => client.connected(Node::Register, &mut out),
        }
        self.dispatch(self.me, out);
    }

    /// The ruler's lease lasts until then.
    pub fn renewed(&mut self, until: Moment) {
        let until = self.clock(until);
        if let Some(ruler) = &mut self.ruler {
            ruler.renewed(until);
        }
    }

    /// What the ruler wants to have saved, and its number.
    pub fn unsaved(&mut self) -> Option<(u64, Saved)> {
        self.ruler.as_mut()?.unsaved()
    }

    /// It has been saved.
    pub fn kept(&mut self, change: u64) {
        let now = self.now();
        let mut out = Outbox::new();
        if let Some(ruler) = &mut self.ruler {
            ruler.kept(now, change, &mut out);
        }
        self.learn_list();
        self.dispatch(Node::Register, out);
        self.answer(self.now(), None);
    }

    /// What etcd fails by, or that it works.
    pub fn etcd_fails(&mut self, why: Option<String>) {
        self.etcd_trouble = why;
    }

    fn tell_saver(&self) {
        if let (Some(ruler), Some(saver)) = (&self.ruler, &self.saver)
            && ruler.has_unsaved()
        {
            // It may have ended: then nothing is saved, and nobody answered.
            let _ = saver.send(());
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        if let Some(ruler) = &mut self.ruler {
            ruler.tick(now);
        }
        self.tell_saver();
        let mut out = Outbox::new();
        match &mut self.machine {
            Machine::Server(server) => {
                server.tick(now, &mut out);
                *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Status {
                    rules: self.ruler.is_some(),
                    etcd_trouble: self.etcd_trouble.clone(),
                    refusal: self.refusals.values().next().cloned(),
                    ..status_of(server)
                };
            }
            Machine::Client(client) => client.tick(now, &mut out),
        }
        self.dispatch(self.me, out);
    }

    fn synced(&mut self) {
        let mut out = Outbox::new();
        if let Machine::Server(server) = &mut self.machine {
            server.synced(&mut out);
        }
        self.dispatch(self.me, out);
    }

    /// There is a new connection; an older one with the same peer is over. One that comes after a newer one of its peer is refused, even if that has
    /// ended: what it brings may have been sent again, and written over, by the newer one. Says whether anybody listens.
    pub fn up(&mut self, peer: Node, link: Link) -> bool {
        if self.is_over {
            return false;
        }
        if !self.newest.takes(peer, link.generation) {
            // It ends with the link.
            return true;
        }
        let mut out = Outbox::new();
        self.links.insert(peer, link);
        let register = (peer == self.keeper).then_some(Node::Register);
        for node in [Some(peer), register].into_iter().flatten() {
            match &mut self.machine {
                Machine::Server(server) => server.connected(node, &mut out),
                Machine::Client(client) => client.connected(node, &mut out),
            }
        }
        if self.ruler.is_some() && matches!(peer, Node::Client(_)) && self.saver.is_some() {
            let reign = self.reign;
            out.push((peer, Message::Rules { reign }));
        }
        if matches!((peer, self.me), (Node::Client(_), Node::Server(_))) {
            out.push((peer, self.servers()));
        }
        self.dispatch(self.me, out);
        self.answer(self.now(), None);
        true
    }

    /// A connection has ended. Says whether anybody listens.
    pub fn down(&mut self, peer: Node, generation: u64) -> bool {
        if self.is_current(peer, generation) {
            self.links.remove(&peer);
        }
        !self.is_over
    }

    /// A message has come, of the register and to the register perhaps. Says whether anybody listens.
    pub fn arrived(
        &mut self,
        (peer, generation): (Node, u64),
        (of_register, to_register): (bool, bool),
        message: Message,
    ) -> bool {
        if self.is_over {
            return false;
        }
        let from = if of_register { Node::Register } else { peer };
        let to = if to_register { Node::Register } else { self.me };
        // Only the process that keeps the register may speak for it, and be spoken to as that.
        let is_meant = !of_register || peer == self.keeper;
        if is_meant && self.is_here(to) && self.is_current(peer, generation) {
            // Clients dial all servers themselves, so it is one of the list. Servers ask etcd, and learn from their diallers.
            let is_client = matches!(self.machine, Machine::Client(_));
            let is_told = is_client && matches!(peer, Node::Server(_));
            match message {
                Message::Rules { reign } if is_told && reign > self.reign => {
                    self.follow(Some(peer), reign);
                }
                Message::Servers { addresses } if is_told => self.learn(addresses),
                Message::Rules { .. } | Message::Servers { .. } => {}
                message => {
                    let out = self.handle(from, to, message);
                    self.dispatch(to, out);
                    self.answer(self.now(), None);
                }
            }
        }
        true
    }

    fn is_current(&self, peer: Node, generation: u64) -> bool {
        let link = self.links.get(&peer);
        link.is_some_and(|link| link.generation == generation)
    }

    fn is_here(&self, node: Node) -> bool {
        node == self.me || node == Node::Register && self.ruler.is_some()
    }

    fn handle(&mut self, from: Node, to: Node, message: Message) -> Outbox {
        let now = self.now();
        let mut out = Outbox::new();
        match (&mut self.ruler, &mut self.machine) {
            (Some(ruler), _) if to == Node::Register => {
                ruler.handle(now, from, message, &mut out);
                self.tell_saver();
            }
            (_, Machine::Server(server)) => server.handle(now, from, message, &mut out),
            (_, Machine::Client(client)) => client.handle(now, from, message, &mut out),
        }
        self.end_links();
        out
    }

    /// Ends connections with those that the pool goes on without: a host that lost power ends none, and is dialled when the old one has ended.
    fn end_links(&mut self) {
        let view = match &self.machine {
            Machine::Server(server) => server.view(),
            Machine::Client(client) => client.view(),
        };
        if view.epoch == self.told.0 {
            return;
        }
        let servers = view.servers.iter().chain(&view.leaving).copied();
        let clients = view.clients.iter().copied().map(Node::Client);
        let members = servers.map(Node::Server).chain(clients).collect();
        let (_, before) = std::mem::replace(&mut self.told, (view.epoch, members));
        let gone = before.iter().filter(|node| !self.told.1.contains(node));
        gone.for_each(|node| _ = self.links.remove(node));
    }

    /// Sends messages; those to this process are taken at once. What cannot be sent is lost, and its sender learns of the next connection.
    fn dispatch(&mut self, from: Node, out: Outbox) {
        self.tell_watcher();
        let addressed =
            |from: Node, out: Outbox| out.into_iter().map(move |(to, what)| (from, to, what));
        let mut queue: VecDeque<_> = addressed(from, out).collect();
        while let Some((from, to, message)) = queue.pop_front() {
            if self.is_here(to) {
                let out = self.handle(from, to, message);
                queue.extend(addressed(to, out));
                continue;
            }
            let by = if to == Node::Register {
                self.keeper
            } else {
                to
            };
            if let Some(link) = self.links.get(&by) {
                link.send((from, to), &message);
            }
        }
    }

    /// Hands on what has ended; the outcome of `own` is returned. The time is told: to look at the clock takes a tenth of a small request.
    fn answer(&mut self, now: u64, own: Option<u64>) -> Option<Outcome> {
        let Machine::Client(client) = &mut self.machine else {
            return None;
        };
        self.is_in.store(client.is_member(now), Ordering::Relaxed);
        let mut found = None;
        for (number, result) in client.drain_results() {
            if own == Some(number) {
                found = Some(result);
            } else if let Some(asker) = self.askers.remove(&number) {
                // Perhaps nobody waits any more.
                let _ = asker.send(result);
            }
        }
        found
    }
}

fn status_of(server: &Server) -> Status {
    let (blocks, bytes) = server.blocks();
    let view = server.view();
    Status {
        epoch: view.epoch.0,
        is_active: view.active,
        servers: view.servers.len(),
        clients: view.clients.len(),
        blocks,
        bytes,
        is_full: server.is_full(),
        trouble: server.trouble().map(str::to_owned),
        ..Status::default()
    }
}

/// What a thread that has panicked had locked is as it was left.
pub(super) fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
