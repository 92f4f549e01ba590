//! One process of a pool: its machines, what comes to them, and time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::Ended;
use super::link::Link;
use crate::client::{Answer, Client, Failure, Operation};
use crate::ids::Node;
use crate::message::{Message, Outbox};
use crate::register::Register;
use crate::server::Server;

/// How long a member that goes waits until its last words are on their way.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where an operation's result goes.
pub(super) type Asker = Sender<Result<Answer, Failure>>;

/// What happens to a process.
pub(super) enum Event {
    /// A new connection; an older one with the same peer is over.
    Up { peer: Node, link: Link },
    /// A connection has ended.
    Down { peer: Node, generation: u64 },
    /// A message has come.
    Arrived {
        peer: Node,
        generation: u64,
        of_register: bool,
        to_register: bool,
        message: Message,
    },
    /// A program wants something.
    Begin { operation: Operation, asker: Asker },
    /// A peer will never let it in.
    Refused(String),
    /// It is to go: a server hands on what it has first.
    Stop,
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
    register: Option<Register>,
    /// The process that keeps the register.
    keeper: Node,
    links: BTreeMap<Node, Link>,
    askers: BTreeMap<u64, Asker>,
    asked: u64,
    is_in: Arc<AtomicBool>,
    began: Instant,
    tick: Duration,
}

impl Process {
    pub fn new(
        (me, machine): (Node, Machine),
        register: Option<Register>,
        keeper: Node,
        is_in: Arc<AtomicBool>,
        term_ms: u64,
    ) -> Process {
        Process {
            me,
            machine,
            register,
            keeper,
            links: BTreeMap::new(),
            askers: BTreeMap::new(),
            asked: 0,
            is_in,
            began: Instant::now(),
            tick: Duration::from_millis((term_ms / 50).clamp(5, 100)),
        }
    }

    /// Goes on until it is told to stop, or the pool does not want it any more.
    pub fn run(&mut self, inbox: &Receiver<Event>) -> Result<(), Ended> {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                self.tick();
                next = Instant::now() + self.tick;
            }
            match inbox.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Event::Stop) if self.stop() => return Ok(()),
                Ok(Event::Refused(why)) => return Err(Ended::Refused(why)),
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.answer();
            if let Machine::Server(server) = &self.machine
                && server.is_gone()
            {
                return if server.is_leaving() {
                    Ok(())
                } else {
                    Err(Ended::GivenUp)
                };
            }
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn tick(&mut self) {
        let now = self.now();
        if let Some(register) = &mut self.register {
            register.tick(now);
        }
        let mut out = Outbox::new();
        match &mut self.machine {
            Machine::Server(server) => server.tick(now, &mut out),
            Machine::Client(client) => client.tick(now, &mut out),
        }
        self.dispatch(self.me, out);
    }

    /// Says whether that is the end of it.
    fn stop(&mut self) -> bool {
        match &mut self.machine {
            // The register goes with its process, and the pool with the register.
            Machine::Server(_) if self.register.is_some() => true,
            Machine::Server(server) => {
                let is_second = server.is_leaving();
                server.leave();
                is_second
            }
            Machine::Client(client) => {
                let mut out = Outbox::new();
                client.leave(&mut out);
                self.dispatch(self.me, out);
                self.answer();
                let until = Instant::now() + LAST_WORDS;
                while !self.links.values().all(Link::is_idle) && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                true
            }
        }
    }

    fn take(&mut self, event: Event) {
        let mut out = Outbox::new();
        match event {
            Event::Up { peer, link } => {
                self.links.insert(peer, link);
                let register = (peer == self.keeper).then_some(Node::Register);
                for node in [Some(peer), register].into_iter().flatten() {
                    match &mut self.machine {
                        Machine::Server(server) => server.connected(node, &mut out),
                        Machine::Client(client) => client.connected(node, &mut out),
                    }
                }
            }
            Event::Down { peer, generation } => {
                if self.is_current(peer, generation) {
                    self.links.remove(&peer);
                }
            }
            Event::Arrived {
                peer,
                generation,
                of_register,
                to_register,
                message,
            } => {
                let from = if of_register { Node::Register } else { peer };
                let to = if to_register { Node::Register } else { self.me };
                // Only the process that keeps the register may speak for it, and be spoken to as that.
                let is_meant = !of_register || peer == self.keeper;
                if is_meant && self.is_here(to) && self.is_current(peer, generation) {
                    return self.deliver(from, to, message);
                }
            }
            Event::Begin { operation, asker } => {
                self.asked += 1;
                self.askers.insert(self.asked, asker);
                let now = self.now();
                if let Machine::Client(client) = &mut self.machine {
                    client.begin(now, self.asked, operation, &mut out);
                }
            }
            Event::Refused(_) | Event::Stop => {}
        }
        self.dispatch(self.me, out);
    }

    fn is_current(&self, peer: Node, generation: u64) -> bool {
        let link = self.links.get(&peer);
        link.is_some_and(|link| link.generation == generation)
    }

    fn is_here(&self, node: Node) -> bool {
        node == self.me || node == Node::Register && self.register.is_some()
    }

    fn deliver(&mut self, from: Node, to: Node, message: Message) {
        let out = self.handle(from, to, message);
        self.dispatch(to, out);
    }

    fn handle(&mut self, from: Node, to: Node, message: Message) -> Outbox {
        let now = self.now();
        let mut out = Outbox::new();
        match (&mut self.register, &mut self.machine) {
            (Some(register), _) if to == Node::Register => {
                register.tick(now);
                register.handle(now, from, message, &mut out);
            }
            (_, Machine::Server(server)) => server.handle(now, from, message, &mut out),
            (_, Machine::Client(client)) => client.handle(now, from, message, &mut out),
        }
        out
    }

    /// Sends messages; those to this process are taken at once. What cannot be sent is lost, and its sender learns of the next connection.
    fn dispatch(&mut self, from: Node, out: Outbox) {
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

    fn answer(&mut self) {
        let now = self.now();
        if let Machine::Client(client) = &mut self.machine {
            self.is_in.store(client.is_member(now), Ordering::Relaxed);
            for (number, result) in client.results() {
                if let Some(asker) = self.askers.remove(&number) {
                    // Perhaps nobody waits any more.
                    let _ = asker.send(result);
                }
            }
        }
    }
}
