//! How a process ends that is told to go.

use std::thread;
use std::time::{Duration, Instant};

use super::{Machine, Process, locked};
use crate::message::Outbox;
use crate::net::link::Link;

/// How long a member that goes waits until its last words are on their way.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Process {
    /// Says whether that is the end of it.
    pub(super) fn stop(&mut self) -> bool {
        match &mut self.machine {
            // The register goes with its process, and the pool with the register.
            Machine::Server(_) if self.ruler.is_some() && self.saver.is_none() => true,
            // There is nobody whom it could hand on anything to.
            Machine::Server(_)
                if { self.ruler.as_ref() }
                    .is_some_and(|ruler| !ruler.register().has_others(self.me)) =>
            {
                true
            }
            Machine::Server(server) => {
                let is_second = server.is_leaving();
                server.leave();
                is_second
            }
            Machine::Client(client) => {
                let mut out = Outbox::new();
                client.leave(&mut out);
                self.dispatch(self.me, out);
                self.answer(self.now(), None);
                let until = Instant::now() + LAST_WORDS;
                while !self.links.values().all(Link::is_idle) && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                true
            }
        }
    }

    /// Whether a server that is to go has nobody to ask: the process that kept the register has ended a term ago, and no other one ever will.
    pub(super) fn is_left_alone(&self) -> bool {
        let has_etcd = self.saver.is_some();
        !has_etcd
            && self.ruler.is_none()
            && !self.links.contains_key(&self.keeper)
            && matches!(&self.machine, Machine::Server(server) if server.is_leaving() && server.is_unheard(self.now()))
    }

    /// Says for the log what is lost with this server, if no other one has it.
    pub(super) fn tell_end(&self) {
        if let Machine::Server(server) = &self.machine {
            locked(&self.status).dropped = server.dropped();
        }
    }
}
