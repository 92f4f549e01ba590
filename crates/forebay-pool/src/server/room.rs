//! A server's memory is bounded where no home has the blocks: who makes it full is told to make no new ones.
//!
//! The server takes what comes all the same. Clients have acknowledged it, other servers hand it on, and nobody else has it. So memory goes beyond its
//! bound by what clients have written and servers lack, and no write that has succeeded fails afterwards.

use super::Server;
use crate::ids::{Client, Node};
use crate::message::{Message, Outbox};

impl Server {
    /// Blocks in memory, and their bytes.
    pub fn blocks(&self) -> (usize, u64) {
        (self.blocks.len(), self.blocks.bytes())
    }

    /// Without a home memory is full when it has blocks of so many bytes.
    pub fn set_room(&mut self, bytes: u64) {
        self.blocks.set_limit(bytes);
    }

    /// Whether clients are to make no new blocks here.
    pub fn is_full(&self) -> bool {
        self.blocks.is_full(self.told_full == Some(true))
    }

    /// Tells clients if that has changed.
    pub(super) fn tell_room(&mut self, out: &mut Outbox) {
        let is_full = self.is_full();
        if is_full == (self.told_full == Some(true)) {
            return;
        }
        self.told_full = Some(is_full);
        let entered = self.entered.iter();
        out.extend(entered.map(|client| (Node::Client(*client), Message::Full { is_full })));
    }

    /// The same after a request: at once if it is full now, and if something was removed, so that whoever did it has room when he is answered. Else it is
    /// told once a tick.
    pub(super) fn tell_room_after(&mut self, request: &Message, out: &mut Outbox) {
        if self.told_full != Some(true) || matches!(request, Message::Discard { .. }) {
            self.tell_room(out);
        }
    }

    /// A client has entered, or has a new connection. It believes what it was told last, and may have missed a change.
    pub(super) fn tell_room_to(&self, client: Client, out: &mut Outbox) {
        // Of memory that never was full nobody believes that it is.
        if let Some(is_full) = self.told_full {
            out.push((Node::Client(client), Message::Full { is_full }));
        }
    }
}
