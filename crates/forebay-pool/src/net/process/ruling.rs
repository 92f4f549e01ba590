//! Who keeps the register, as far as it is this process's affair.

use std::sync::mpsc::Sender;
use std::time::Instant;

use super::{Machine, Process};
use crate::ids::Node;
use crate::message::{Message, Outbox};
use crate::register::Saved;
use crate::ruler::Ruler;

impl Process {
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
    pub fn renewed(&mut self, until: Instant) {
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
        self.dispatch(Node::Register, out);
        self.answer(None);
    }

    /// What etcd fails by, or that it works.
    pub fn etcd_fails(&mut self, why: Option<String>) {
        self.etcd_trouble = why;
    }

    pub(super) fn tell_saver(&self) {
        if let (Some(ruler), Some(saver)) = (&self.ruler, &self.saver)
            && ruler.has_unsaved()
        {
            // It may have ended: then nothing is saved, and nobody answered.
            let _ = saver.send(());
        }
    }
}
