//! What the threads of a client's process ask for.

use std::sync::mpsc::{self, Receiver};

use super::{Machine, Outcome, Process, Watcher};
use crate::client::{Failure, Operation};
use crate::message::Outbox;

impl Process {
    /// Does an operation at once, where all that it needs is here; else its outcome comes by the channel.
    pub fn begin(&mut self, operation: Operation) -> Result<Outcome, Receiver<Outcome>> {
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
        if !out.is_empty() {
            self.dispatch(self.me, out);
        }
        self.answer(now, Some(number)).ok_or_else(|| {
            let (asker, outcome) = mpsc::channel();
            self.askers.insert(number, asker);
            outcome
        })
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
