//! Whole pools in one thread, from a seed: servers, clients, the register, and a network that delays, breaks and cuts.
//!
//! Messages between two nodes keep their order. A link may be *cut* for a while (what was sent arrives afterwards), or *break* (what was under way is
//! lost, both sides learn of a new connection). What a dead client has sent still arrives. Clocks run at rates that differ by up
//! to 1 %, and those of clients and servers may jump ahead. What programs see is held against [`check::Checker`].

mod check;
mod home;
mod leftovers;
mod names;
mod rulers;
mod scenes;
mod troubles;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use crate::client::{self, Answer, Client, Failure, Kind, Operation};
use crate::home::Home;
use crate::ids::{Client as ClientId, Epoch, File, Node, Server as ServerId};
use crate::message::{Message, Outbox};
use crate::random::Random;
use crate::register::{Register, Saved};
use crate::ruler::Ruler;
use crate::server::{self, Server};
use check::Checker;
use home::Memory;
use rulers::Rulers;

/// In milliseconds, by the register's clock.
const TERM: u64 = 400;
/// In milliseconds.
const TICK: u64 = 20;
/// Of a pool at first.
const CLIENTS: u32 = 3;

struct Event {
    at: u64,
    order: u64,
    what: What,
}

enum What {
    Arrives {
        from: Node,
        to: Node,
        link: u64,
        /// Of the register that sends it or is meant.
        reign: u64,
        message: Message,
    },
    Tick(Node),
    /// Etcd's part of a pool whose register moves.
    Etcd,
    Saves {
        reign: u64,
        change: u64,
        saved: Saved,
    },
    Follows(Node, u64),
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// How a node's clock runs.
#[derive(Clone, Copy)]
struct Clock {
    per_mille: u64,
    ahead: u64,
}

/// A pool.
pub struct World {
    pub random: Random,
    pub now: u64,
    pub delay_max: u64,
    pub checker: Checker,
    rulers: Rulers,
    register_away_until: u64,
    pub servers: BTreeMap<ServerId, Server>,
    pub clients: BTreeMap<ClientId, Client>,
    clocks: BTreeMap<Node, Clock>,
    events: BinaryHeap<Event>,
    order: u64,
    /// The generation of each pair's connection, and until when it is cut.
    links: BTreeMap<(Node, Node), (u64, u64)>,
    /// Who sends and hears so much later than others do.
    slow: BTreeMap<Node, u64>,
    /// When the last message of each direction arrives.
    last: BTreeMap<(Node, Node), u64>,
    pub copies: usize,
    home: Option<Arc<Memory>>,
    /// In which epoch the home's host has lost power last.
    power_lost: Option<Epoch>,
    life: u64,
    next: u32,
    /// Operations that have not ended, by number: whose, and when they began.
    pub open: BTreeMap<u64, (ClientId, Operation)>,
    operations: u64,
    pub messages: u64,
    pub failures: BTreeMap<String, u64>,
    pub files: BTreeSet<File>,
    /// Whether files that are made are used: what a dead client has made of their sizes nobody can say.
    pub takes_files: bool,
    is_traced: bool,
}

fn pair(a: Node, b: Node) -> (Node, Node) {
    (a.min(b), a.max(b))
}

impl World {
    pub fn new(seed: u64, servers: u32, copies: usize, has_home: bool) -> World {
        let mut world = World {
            home: has_home.then(Arc::default),
            power_lost: None,
            life: 0,
            random: Random::new(seed),
            now: 0,
            delay_max: 5,
            checker: Checker::default(),
            rulers: Rulers::one(Ruler::for_ever(Register::new(TERM, servers as usize))),
            register_away_until: 0,
            servers: BTreeMap::new(),
            clients: BTreeMap::new(),
            clocks: BTreeMap::new(),
            events: BinaryHeap::new(),
            order: 0,
            links: BTreeMap::new(),
            slow: BTreeMap::new(),
            last: BTreeMap::new(),
            copies,
            next: 0,
            open: BTreeMap::new(),
            operations: 0,
            messages: 0,
            failures: BTreeMap::new(),
            files: BTreeSet::new(),
            takes_files: true,
            is_traced: std::env::var_os("TEST_TRACE").is_some(),
        };
        world.populate(servers);
        world
    }

    fn populate(&mut self, servers: u32) {
        for _ in 0..servers {
            self.add_server();
        }
        for _ in 0..CLIENTS {
            self.add_client();
        }
    }

    /// Everything dies, and another life of the pool begins with what is in its home.
    pub fn restart(&mut self, servers: u32) {
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.kill_client(id);
        }
        self.servers.clear();
        // Who belongs to another life of the pool is not listened to.
        self.events.clear();
        self.life += 1;
        let register = Register::new(TERM, servers as usize);
        let register = register.after(Epoch(self.life << 32));
        self.rulers = Rulers::one(Ruler::for_ever(register));
        self.register_away_until = 0;
        self.populate(servers);
    }

    pub fn add_server(&mut self) -> ServerId {
        self.next += 1;
        let id = ServerId(self.next);
        let config = server::Config {
            copies: self.copies,
            alive_every: TERM / 8,
            term: TERM * 9 / 10,
            patience: TERM * 2,
            secret: self.random.number(),
        };
        let mut server = Server::new(id, config);
        if let Some(home) = &self.home {
            // Room for six blocks.
            server = server.with_home(Arc::clone(home) as Arc<dyn Home>, 200);
        }
        self.servers.insert(id, server);
        self.join(Node::Server(id));
        id
    }

    pub fn add_client(&mut self) -> ClientId {
        self.next += 1;
        let id = ClientId(self.next);
        let config = client::Config {
            block_bytes: leftovers::BLOCK,
            copies: self.copies,
            term: TERM * 9 / 10,
            alive_every: TERM / 8,
            cache_blocks: 6,
            flush_interval: 20 + self.random.below(200),
            has_home: self.home.is_some(),
            wish_blocks: if self.random.chance(500) { 4 } else { 1 },
        };
        self.clients.insert(id, Client::new(id, config));
        self.join(Node::Client(id));
        id
    }

    fn join(&mut self, node: Node) {
        let clock = Clock {
            per_mille: 990 + self.random.below(21),
            ahead: self.random.below(10_000),
        };
        self.clocks.insert(node, clock);
        self.rulers.met(node);
        self.event(self.now, What::Tick(node));
    }

    fn clock(&self, node: Node) -> u64 {
        self.clocks.get(&node).map_or(self.now, |clock| {
            self.now * clock.per_mille / 1000 + clock.ahead
        })
    }

    fn event(&mut self, at: u64, what: What) {
        self.order += 1;
        self.events.push(Event {
            at,
            order: self.order,
            what,
        });
    }

    fn send(&mut self, from: Node, out: Outbox) {
        let reign = self.rulers.followed_by(from);
        self.send_in(reign, from, out);
    }

    fn send_in(&mut self, reign: u64, from: Node, out: Outbox) {
        for (to, message) in out {
            self.messages += 1;
            let (link, cut_until) = self.links.get(&pair(from, to)).copied().unwrap_or((0, 0));
            let delay = self.delay(from, to);
            let last = self.last.entry((from, to)).or_insert(0);
            *last = (*last).max(self.now + delay).max(cut_until);
            let at = *last;
            self.event(
                at,
                What::Arrives {
                    from,
                    to,
                    link,
                    reign,
                    message,
                },
            );
        }
    }

    /// Until then nothing arrives between two nodes.
    pub fn cut(&mut self, a: Node, b: Node, until: u64) {
        let link = self.links.entry(pair(a, b)).or_insert((0, 0));
        link.1 = link.1.max(until);
    }

    /// What is under way between two nodes is lost; both connect anew.
    pub fn break_link(&mut self, a: Node, b: Node) {
        self.links.entry(pair(a, b)).or_insert((0, 0)).0 += 1;
        self.last.remove(&(a, b));
        self.last.remove(&(b, a));
        for (node, peer) in [(a, b), (b, a)] {
            let mut out = Outbox::new();
            match node {
                Node::Server(id) => {
                    if let Some(server) = self.servers.get_mut(&id) {
                        server.connected(peer, &mut out);
                    }
                }
                Node::Client(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.connected(peer, &mut out);
                    }
                }
                Node::Register => {}
            }
            self.send(node, out);
        }
    }

    /// The register stops for a while.
    pub fn register_away(&mut self, until: u64) {
        self.register_away_until = until;
    }

    /// A client dies. What it has sent still arrives.
    pub fn kill_client(&mut self, id: ClientId) {
        self.clients.remove(&id);
        self.checker.dead(id, &mut self.open);
    }

    /// A client leaves, whatever it was doing.
    pub fn leave_client(&mut self, id: ClientId) {
        let mut out = Outbox::new();
        if let Some(client) = self.clients.get_mut(&id) {
            client.leave(&mut out);
        }
        self.send(Node::Client(id), out);
        self.kill_client(id);
    }

    pub fn kill_server(&mut self, id: ServerId) {
        self.servers.remove(&id);
    }

    /// A program's operation.
    pub fn begin(&mut self, id: ClientId, operation: Operation) -> u64 {
        self.operations += 1;
        let number = self.operations;
        self.open.insert(number, (id, operation.clone()));
        self.checker.begun(number);
        let now = self.clock(Node::Client(id));
        let mut out = Outbox::new();
        if let Some(client) = self.clients.get_mut(&id) {
            client.begin(now, number, operation, &mut out);
        }
        self.send(Node::Client(id), out);
        self.collect(id);
        number
    }

    fn collect(&mut self, id: ClientId) {
        let results = self
            .clients
            .get_mut(&id)
            .map(Client::results)
            .unwrap_or_default();
        self.checker.is_unheard = self.has_not_heard(id);
        for (number, result) in results {
            let Some((_, operation)) = self.open.remove(&number) else {
                continue;
            };
            match (&operation, &result) {
                (_, Ok(Answer::Made(entry, true)))
                    if entry.kind == Kind::File && self.takes_files =>
                {
                    self.files.insert(entry.file);
                }
                (Operation::Remove { file }, _) => {
                    self.files.remove(file);
                    self.note_losses(*file);
                }
                _ => {}
            }
            if let Err(failure) = result {
                *self.failures.entry(format!("{failure:?}")).or_default() += 1;
            }
            let at = self.now;
            if self.is_traced {
                println!("{at} {id:?} ends {number}: {operation:?} -> {result:?}");
            }
            self.checker.ended(at, id, number, &operation, &result);
            if result == Err(Failure::GivenUp) {
                self.checker.dead(id, &mut self.open);
            }
        }
    }

    /// Goes on until `until`, in milliseconds.
    pub fn run(&mut self, until: u64) {
        while self.events.peek().is_some_and(|event| event.at <= until) {
            let Some(event) = self.events.pop() else {
                break;
            };
            self.now = self.now.max(event.at);
            match event.what {
                What::Tick(node) => self.tick(node),
                What::Arrives {
                    from,
                    to,
                    link,
                    reign,
                    message,
                } => {
                    let is_of_ruler = from == Node::Register;
                    // Nobody listens to a register but that of the ruler whom he follows.
                    if self.links.get(&pair(from, to)).map_or(0, |link| link.0) == link
                        && (!is_of_ruler || self.rulers.followed_by(to) == reign)
                    {
                        self.arrive(from, (to, reign), message);
                    }
                }
                What::Etcd => self.etcd(),
                What::Saves {
                    reign,
                    change,
                    saved,
                } => self.saves(reign, change, saved),
                What::Follows(node, reign) => self.follows(node, reign),
            }
            if !self.checker.faults.is_empty() {
                return;
            }
        }
        self.now = until;
    }

    fn arrive(&mut self, from: Node, (to, reign): (Node, u64), message: Message) {
        let now = self.clock(to);
        if self.is_traced {
            println!("{} {from:?} -> {to:?}: {message:?}", self.now);
        }
        let mut out = Outbox::new();
        match to {
            Node::Register => {
                if self.now >= self.register_away_until {
                    self.tick_register();
                    self.rulers
                        .handle(self.now, reign, (from, message), &mut out);
                }
                return self.send_in(reign, to, out);
            }
            Node::Server(id) => {
                if let Some(server) = self.servers.get_mut(&id) {
                    server.handle(now, from, message, &mut out);
                }
            }
            Node::Client(id) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.handle(now, from, message, &mut out);
                }
            }
        }
        self.send(to, out);
        if let Node::Client(id) = to {
            self.collect(id);
        }
    }

    fn tick_register(&mut self) {
        if self.register_away_until > 0 {
            if self.now < self.register_away_until {
                return;
            }
            self.rulers.restart(self.now);
            self.register_away_until = 0;
        }
        self.rulers.tick(self.now);
        let gone: Vec<ClientId> = self
            .clients
            .keys()
            .copied()
            .filter(|id| self.rulers.is_over(Node::Client(*id)))
            .collect();
        for id in gone {
            self.checker.over(id, &mut self.open);
        }
    }

    fn tick(&mut self, node: Node) {
        self.tick_register();
        let now = self.clock(node);
        let mut out = Outbox::new();
        let alive = match node {
            Node::Server(id) => self.servers.get_mut(&id).is_some_and(|server| {
                server.tick(now, &mut out);
                !server.is_gone()
            }),
            Node::Client(id) => self.clients.get_mut(&id).is_some_and(|client| {
                client.tick(now, &mut out);
                !client.is_gone()
            }),
            Node::Register => false,
        };
        self.send(node, out);
        if let Node::Client(id) = node {
            self.collect(id);
        }
        if alive {
            self.event(self.now + TICK, What::Tick(node));
        }
    }
}
