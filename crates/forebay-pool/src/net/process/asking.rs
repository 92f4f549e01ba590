//! What the threads of a client's process ask for.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

use super::{Machine, Outcome, Process, Watcher};
use crate::client::{Failure, Operation};
use crate::ids::Node;
use crate::message::{Message, Outbox};
use crate::net::inlet::{Inlet, Leading};

/// Who waits for an operation.
pub(super) struct Asker {
    outcome: Sender<Outcome>,
    /// What he reads meanwhile.
    inlet: Option<Arc<Inlet>>,
}

impl Asker {
    /// Another thread knows the outcome.
    pub fn tell(self, outcome: Outcome) {
        // Perhaps nobody waits any more.
        let _ = self.outcome.send(outcome);
        if let Some(inlet) = self.inlet {
            inlet.ring();
        }
    }
}

/// An operation that waits for others.
pub(in crate::net) struct Awaited {
    number: u64,
    outcome: Receiver<Outcome>,
    /// Its thread reads the connection that it was sent by.
    leading: Option<(Leading, (Node, u64))>,
}

impl Awaited {
    /// Waits for it.
    pub fn outcome(self, process: &Mutex<Process>) -> Outcome {
        let led = self.leading.and_then(|(leading, from)| {
            leading.outcome(process, (from, self.number), &self.outcome)
        });
        led.unwrap_or_else(|| self.outcome.recv().unwrap_or(Err(Failure::GivenUp)))
    }
}

impl Process {
    /// Does an operation at once, where all that it needs is here; else its outcome comes by the channel.
    pub fn begin(&mut self, operation: Operation) -> Result<Outcome, Awaited> {
        if self.is_over {
            return Ok(Err(Failure::GivenUp));
        }
        self.asked += 1;
        let number = self.asked;
        let now = self.now();
        let mut out = Outbox::new();
        if let Machine::Client(client) = &mut self.machine {
            client.begin(now, number, operation, &mut out);
        }
        let mut whom = None;
        if let Some((first, _)) = out.first() {
            whom = { out.iter() }.all(|(to, _)| to == first).then_some(*first);
            self.dispatch(self.me, out);
        }
        self.answer(now, Some(number)).ok_or_else(|| {
            let (teller, outcome) = mpsc::channel();
            let leading = whom.and_then(|whom| self.lead(whom));
            let inlet = leading.as_ref().map(|(leading, _)| leading.inlet());
            let asker = Asker {
                outcome: teller,
                inlet,
            };
            self.askers.insert(number, asker);
            Awaited {
                number,
                outcome,
                leading,
            }
        })
    }

    /// Takes the reading side of the connection to somebody, if nobody has it.
    fn lead(&self, whom: Node) -> Option<(Leading, (Node, u64))> {
        let peer = if whom == Node::Register {
            self.keeper
        } else {
            whom
        };
        let link = self.links.get(&peer)?;
        let leading = link.inlet.as_ref()?.lead()?;
        Some((leading, (peer, link.generation)))
    }

    /// As [`Process::arrived_for`], for nobody. Says whether anybody listens.
    pub fn arrived(&mut self, from: (Node, u64), register: (bool, bool), message: Message) -> bool {
        self.arrived_for(from, register, message, None).is_some()
    }

    /// Whether threads may wait for what it is told.
    pub fn is_client(&self) -> bool {
        matches!(self.machine, Machine::Client(_))
    }

    /// From now on somebody is told of what goes.
    pub fn watch(&mut self, watcher: Watcher) {
        if let Machine::Client(client) = &mut self.machine {
            client.note_what_goes();
            self.watcher = Some(watcher);
        }
    }

    /// Before anything is sent: what is given back others may change as soon as they have it.
    pub(super) fn tell_watcher(&mut self) {
        if let (Machine::Client(client), Some(watcher)) = (&mut self.machine, &self.watcher) {
            client.what_goes().into_iter().for_each(watcher);
        }
    }

    /// How long a client may go on if the register answers nothing any more, in milliseconds.
    pub fn term_left(&self) -> u64 {
        match &self.machine {
            Machine::Client(client) if !self.is_over => client.term_left(self.now()),
            _ => 0,
        }
    }

    /// Whether the pool does not want this client any more.
    pub fn is_given_up(&self) -> bool {
        matches!(&self.machine, Machine::Client(client) if client.is_gone())
    }

    /// What a client leaves unwritten that is cut off from the pool, in files and bytes; nothing as long as it may still be written.
    pub fn unwritten(&self) -> Option<(usize, u64)> {
        match &self.machine {
            Machine::Client(client) if self.is_over || !client.is_member(self.now()) => {
                Some(client.unwritten()).filter(|(files, _)| *files > 0)
            }
            _ => None,
        }
    }

    /// The last loss that a sync of this client's has found.
    pub fn losses(&self) -> u64 {
        match &self.machine {
            Machine::Client(client) => client.losses(),
            Machine::Server(_) => 0,
        }
    }
}
