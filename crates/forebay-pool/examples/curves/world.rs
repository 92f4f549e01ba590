//! A pool's machines, as they are, in simulated time: hosts with one processor each, and a network that has a delay and a speed.
//!
//! A host takes what comes to it one after the other, as a process does under its lock: a message costs its processor time to take, and each that it
//! sends costs as much again, by what real servers were seen to need ([`Costs`]). What a host sends leaves it, and comes in elsewhere, at the speed of
//! its link. Nothing is lost, no clock differs, and nothing depends on the machine that this runs on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_pool::client::{self, Answer, Client, Failure, Operation};
use forebay_pool::ids::{Client as ClientId, Node, Server as ServerId};
use forebay_pool::message::{Message, Outbox};
use forebay_pool::register::Register;
use forebay_pool::ruler::Ruler;
use forebay_pool::server::{self, Server};
use forebay_pool::wire::Parcel;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
/// As `term_ms` is by default, in milliseconds.
pub const TERM: u64 = 10_000;
/// How often members say that they are there, and look at their clocks.
const TICK: u64 = 100;

/// What a pool's hosts and links are like, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Processor time of a message that comes, and of one that goes.
    pub message: u64,
    /// The same for each KiB of it.
    pub kib: u64,
    /// Of a program's request on its client's host.
    pub request: u64,
    /// From a host's door to another's: the network, and a thread that wakes.
    pub delay: u64,
    /// A link's time for each KiB.
    pub link_kib: u64,
}

/// The size of the pool, and what its members are told.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub servers: u32,
    pub clients: u32,
    pub copies: usize,
    pub block_bytes: u64,
    /// Blocks that a client asks for around what it needs.
    pub wish_blocks: u64,
}

enum Machine {
    Server(Box<Server>),
    Client(Box<Client>),
    Dead,
}

enum Work {
    Arrives {
        from: Node,
        to: Node,
        bytes: u64,
        message: Message,
    },
    Tick,
    Begin(u64, Operation),
}

struct Host {
    machine: Machine,
    inbox: VecDeque<Work>,
    is_at_work: bool,
    free_at: u64,
    out_until: u64,
    in_until: u64,
    /// Nanoseconds of work since the counts were last forgotten.
    worked: u64,
    bytes: u64,
}

enum Event {
    Comes(usize, Work),
    Turn(usize),
}

struct Due(Event);

impl PartialEq for Due {
    fn eq(&self, _: &Due) -> bool {
        true
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, _: &Due) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// An operation that has ended.
pub struct Ended {
    pub client: u32,
    pub number: u64,
    pub at: u64,
    pub result: Result<Answer, Failure>,
}

/// What was counted since the counts were last forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Messages between hosts, but those of the register.
    pub messages: u64,
    /// Those to and from the register.
    pub signs: u64,
    pub sign_bytes: u64,
}

/// A pool.
pub struct World {
    pub now: u64,
    pub counts: Counts,
    costs: Costs,
    size: Size,
    hosts: Vec<Host>,
    ruler: Ruler,
    events: BinaryHeap<(Reverse<(u64, u64)>, Due)>,
    order: u64,
    pub ended: Vec<Ended>,
}

impl World {
    /// The first server's host keeps the register too.
    pub fn new(size: Size, costs: Costs) -> World {
        let servers = (1..=size.servers).map(|id| {
            let config = server::Config {
                copies: size.copies,
                alive_every: TICK,
                term: TERM * 9 / 10,
                patience: TERM * 2,
                secret: 7,
            };
            Machine::Server(Box::new(Server::new(ServerId(id), config)))
        });
        let clients = (1..=size.clients).map(|id| {
            let config = client::Config {
                block_bytes: size.block_bytes,
                copies: size.copies,
                term: TERM * 9 / 10,
                alive_every: TICK,
                cache_blocks: 1024,
                flush_interval: 5_000,
                has_home: false,
                wish_blocks: size.wish_blocks,
            };
            Machine::Client(Box::new(Client::new(ClientId(id), config)))
        });
        let hosts = servers.chain(clients).map(|machine| Host {
            machine,
            inbox: VecDeque::new(),
            is_at_work: false,
            free_at: 0,
            out_until: 0,
            in_until: 0,
            worked: 0,
            bytes: 0,
        });
        let hosts: Vec<Host> = hosts.collect();
        let register = Register::new(TERM, size.servers as usize);
        let mut world = World {
            now: 0,
            counts: Counts::default(),
            costs,
            size,
            ruler: Ruler::for_ever(register),
            events: BinaryHeap::new(),
            order: 0,
            ended: Vec::new(),
            hosts,
        };
        for host in 0..world.hosts.len() {
            // Members do not begin at one time.
            let at = TICK * MS * host as u64 / world.hosts.len() as u64;
            world.event(at, Event::Comes(host, Work::Tick));
        }
        world
    }

    pub fn register(&self) -> &Register {
        self.ruler.register()
    }

    /// Whether all clients are in the epoch that the register has.
    pub fn is_settled(&self) -> bool {
        let view = self.register().view();
        let clients = self.hosts.iter().filter_map(|host| match &host.machine {
            Machine::Client(client) => Some(client),
            _ => None,
        });
        let mut seen = clients.map(|client| client.view().epoch == view.epoch);
        view.active && seen.all(|is_in| is_in)
    }

    fn host(&self, node: Node) -> usize {
        match node {
            Node::Register => 0,
            Node::Server(id) => id.0 as usize - 1,
            Node::Client(id) => (self.size.servers + id.0) as usize - 1,
        }
    }

    fn node(&self, host: usize) -> Node {
        match (host as u32).checked_sub(self.size.servers) {
            None => Node::Server(ServerId(host as u32 + 1)),
            Some(client) => Node::Client(ClientId(client + 1)),
        }
    }

    fn event(&mut self, at: u64, what: Event) {
        self.order += 1;
        self.events.push((Reverse((at, self.order)), Due(what)));
    }

    /// A program on this client's host wants something at that time.
    pub fn begin(&mut self, at: u64, client: u32, number: u64, operation: Operation) {
        let host = (self.size.servers + client) as usize;
        self.event(at, Event::Comes(host, Work::Begin(number, operation)));
    }

    /// A server's host loses power.
    pub fn kill(&mut self, server: u32) {
        let host = &mut self.hosts[server as usize];
        host.machine = Machine::Dead;
        host.inbox.clear();
    }

    pub fn forget_counts(&mut self) {
        self.counts = Counts::default();
        for host in &mut self.hosts {
            (host.worked, host.bytes) = (0, 0);
        }
    }

    /// Blocks of all servers.
    pub fn blocks(&self) -> usize {
        let blocks = self.hosts.iter().map(|host| match &host.machine {
            Machine::Server(server) => server.blocks().0,
            _ => 0,
        });
        blocks.sum()
    }

    /// How much of `time` each host was at work, and its link: of the servers and of the clients, the busiest and the mean.
    pub fn load(&self, time: u64) -> [Load; 2] {
        let (servers, clients) = self.hosts.split_at(self.size.servers as usize);
        [servers, clients].map(|hosts| {
            let share = |work: u64| work as f64 / time as f64;
            let worked = hosts.iter().map(|host| host.worked);
            let link = hosts
                .iter()
                .map(|host| (host.bytes * self.costs.link_kib) >> 10);
            Load {
                busiest: share(worked.clone().max().unwrap_or(0)),
                first: share(hosts.first().map_or(0, |host| host.worked)),
                mean: share(worked.sum()) / hosts.len() as f64,
                link: share(link.max().unwrap_or(0)),
            }
        })
    }

    /// Goes on until the time has come, or an operation ends.
    pub fn step(&mut self, until: u64) -> bool {
        while self.ended.is_empty() {
            if self.events.peek().is_none_or(|(due, _)| due.0.0 > until) {
                self.now = until;
                return false;
            }
            let Some((due, Due(what))) = self.events.pop() else {
                return false;
            };
            self.now = due.0.0;
            match what {
                Event::Comes(host, work) => {
                    if matches!(self.hosts[host].machine, Machine::Dead) {
                        continue;
                    }
                    self.hosts[host].inbox.push_back(work);
                    if !self.hosts[host].is_at_work {
                        self.hosts[host].is_at_work = true;
                        let at = self.hosts[host].free_at.max(self.now);
                        self.event(at, Event::Turn(host));
                    }
                }
                Event::Turn(host) => self.turn(host),
            }
        }
        true
    }

    fn cost(&self, bytes: u64) -> u64 {
        self.costs.message + ((self.costs.kib * bytes) >> 10)
    }

    fn turn(&mut self, at: usize) {
        let Some(work) = self.hosts[at].inbox.pop_front() else {
            self.hosts[at].is_at_work = false;
            return;
        };
        let (own, now) = (self.node(at), self.now / MS);
        let mut out = Outbox::new();
        let (mut from, mut cost) = (own, 0);
        match work {
            Work::Tick => {
                match &mut self.hosts[at].machine {
                    Machine::Server(server) => server.tick(now, &mut out),
                    Machine::Client(client) => client.tick(now, &mut out),
                    Machine::Dead => {}
                }
                if at == 0 {
                    self.ruler.tick(now);
                }
                self.event(self.now + TICK * MS, Event::Comes(at, Work::Tick));
            }
            Work::Begin(number, operation) => {
                cost = self.costs.request;
                if let Machine::Client(client) = &mut self.hosts[at].machine {
                    client.begin(now, number, operation, &mut out);
                }
            }
            Work::Arrives {
                from: sender,
                to,
                bytes,
                message,
            } => {
                cost = self.cost(bytes);
                out = self.handle(at, sender, to, message);
                from = to;
            }
        }
        cost += self.dispatch(at, from, out, self.now + cost);
        let host = &mut self.hosts[at];
        host.worked += cost;
        host.free_at = self.now + cost;
        let free_at = host.free_at;
        self.results(at, free_at);
        self.event(free_at, Event::Turn(at));
    }

    fn handle(&mut self, at: usize, from: Node, to: Node, message: Message) -> Outbox {
        let (now, mut out) = (self.now / MS, Outbox::new());
        match &mut self.hosts[at].machine {
            _ if to == Node::Register => self.ruler.handle(now, from, message, &mut out),
            Machine::Server(server) => server.handle(now, from, message, &mut out),
            Machine::Client(client) => client.handle(now, from, message, &mut out),
            Machine::Dead => {}
        }
        out
    }

    /// Sends what goes elsewhere, takes what is for this host at once, and says what sending cost. It begins at `begins`.
    fn dispatch(&mut self, at: usize, from: Node, out: Outbox, begins: u64) -> u64 {
        let mut queue: VecDeque<(Node, Node, Message)> = { out.into_iter() }
            .map(|(to, what)| (from, to, what))
            .collect();
        let mut cost = 0;
        while let Some((from, to, message)) = queue.pop_front() {
            let host = self.host(to);
            if host == at {
                let out = self.handle(at, from, to, message);
                queue.extend(out.into_iter().map(|(next, what)| (to, next, what)));
                continue;
            }
            let bytes = Parcel::of(&message, 0).expect("a message").len() as u64;
            cost += self.cost(bytes);
            if from == Node::Register || to == Node::Register {
                self.counts.signs += 1;
                self.counts.sign_bytes += bytes;
            } else {
                self.counts.messages += 1;
            }
            let on_link = (self.costs.link_kib * bytes) >> 10;
            let sender = &mut self.hosts[at];
            sender.out_until = sender.out_until.max(begins + cost) + on_link;
            sender.bytes += bytes;
            let first = sender.out_until - on_link + self.costs.delay;
            let receiver = &mut self.hosts[host];
            receiver.in_until = receiver.in_until.max(first) + on_link;
            let at = receiver.in_until;
            let arrives = Work::Arrives {
                from,
                to,
                bytes,
                message,
            };
            self.event(at, Event::Comes(host, arrives));
        }
        cost
    }

    fn results(&mut self, at: usize, now: u64) {
        if let Machine::Client(client) = &mut self.hosts[at].machine {
            let client_at = at as u32 - self.size.servers;
            let results = client.results().into_iter();
            self.ended.extend(results.map(|(number, result)| Ended {
                client: client_at,
                number,
                at: now,
                result,
            }));
        }
    }
}

/// How busy hosts of a kind were: shares of the time.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub busiest: f64,
    /// The first server's, which keeps the register.
    pub first: f64,
    pub mean: f64,
    /// Of the busiest link, what goes out.
    pub link: f64,
}
