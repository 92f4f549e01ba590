//! What goes past servers: requests to read are held back while their bytes are read where they lie, and answered as the server would have.
//!
//! Only whoever has begun an operation does that, for he waits in any case; what comes of it in other threads goes by messages.

use super::Process;
use crate::ids::Node;
use crate::located::{Goes, Located, Wanted};
use crate::message::{Message, Outbox};
use crate::net::link::Link;

/// A client's part in it.
#[derive(Default)]
pub(super) struct Past {
    pub located: Located,
    /// Whoever sends can read past servers.
    may_pass: bool,
    /// What has been held back.
    found: Vec<Passing>,
}

/// A request that has been held back, and by which connection it would have gone.
pub(in crate::net) struct Passing {
    pub wanted: Wanted,
    generation: u64,
}

impl Past {
    /// Sends a message, or holds it back.
    pub fn send(&mut self, link: &Link, (from, to): (Node, Node), message: Message) {
        match self.located.goes(to, &message, self.may_pass) {
            Goes::Itself => link.send((from, to), &message),
            Goes::With(another) => {
                link.send((from, to), &message);
                link.send((from, to), &another);
            }
            Goes::Past(wanted) => {
                let generation = link.generation;
                self.found.push(Passing { wanted, generation });
            }
        }
    }
}

impl Process {
    /// A client that reads past servers what they lend.
    pub fn that_passes(self) -> Process {
        Process {
            past: Some(Past::default()),
            ..self
        }
    }

    /// Sends messages of this process's, and says which ones were held back.
    pub(super) fn dispatch_past(&mut self, out: Outbox) -> Vec<Passing> {
        self.passes(true);
        self.dispatch(self.me, out);
        self.passes(false);
        let past = self.past.as_mut();
        past.map(|past| std::mem::take(&mut past.found))
            .unwrap_or_default()
    }

    fn passes(&mut self, may_pass: bool) {
        if let Some(past) = &mut self.past {
            past.may_pass = may_pass;
        }
    }

    /// What was held back has been read, or could not be: then it is sent. After a newer connection it has been sent again already.
    pub fn passed(&mut self, passing: Passing, bytes: Option<Vec<u8>>) {
        let Passing { wanted, generation } = passing;
        let server = Node::Server(wanted.server);
        if bytes.is_none()
            && let Some(past) = &mut self.past
        {
            past.located.failed(&wanted);
        }
        if self.is_over || !self.is_current(server, generation) {
            return;
        }
        match bytes {
            Some(bytes) => {
                let out = self.handle(server, self.me, wanted.answer(bytes));
                self.dispatch(self.me, out);
                self.answer(None);
            }
            None => {
                if let Some(link) = self.links.get(&server) {
                    link.send((self.me, server), &wanted.read);
                }
            }
        }
    }
}
