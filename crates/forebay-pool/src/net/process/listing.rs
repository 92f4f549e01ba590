//! What a process knows of the pool's list of servers.

use std::net::SocketAddr;

use super::Process;
use crate::ids::{Epoch, Node};
use crate::message::{Addresses, Message};
use crate::ruler::Placed;

impl Process {
    /// The servers of the pool's list that it knows.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// There are servers at these places. A place that is known has no other address. A server tells its clients.
    pub fn learn(&mut self, addresses: Addresses) {
        let is_new = |place: &u8| !self.addresses.contains_key(place);
        let new: Addresses = { addresses.into_iter() }
            .filter(|(place, _)| is_new(place))
            .collect();
        if new.is_empty() {
            return;
        }
        self.addresses.extend(&new);
        self.undialled.extend(new);
        let clients = self.links.keys().copied();
        let out = { clients.filter(|node| matches!(node, Node::Client(_))) }
            .map(|client| (client, self.servers()))
            .collect();
        self.dispatch(self.me, out);
    }

    pub(super) fn servers(&self) -> Message {
        let addresses = self.addresses.clone();
        Message::Servers { addresses }
    }

    /// The place of a new server at this address, if this process keeps the register.
    pub fn place(&mut self, address: SocketAddr) -> Option<Placed> {
        let placed = self.ruler.as_mut()?.place(address);
        self.tell_saver();
        self.learn_list();
        Some(placed)
    }

    /// What the ruler's list has.
    pub(super) fn learn_list(&mut self) {
        if let Some(ruler) = &self.ruler {
            self.learn(ruler.addresses());
        }
    }

    /// Whether nobody is at this place, as far as this process has been told.
    pub fn is_empty(&self, place: u8) -> bool {
        let (epoch, members) = &self.told;
        let mut there = members.iter().chain([&self.keeper]);
        *epoch != Epoch(0)
            && !there.any(|node| matches!(node, Node::Server(id) if id.place() == Some(place)))
    }

    /// Why the server at this place does not let this member in; `None`: it does.
    pub fn refused(&mut self, place: u8, why: Option<String>) {
        match why {
            Some(why) => _ = self.refusals.insert(place, why),
            None => _ = self.refusals.remove(&place),
        }
    }

    /// Whether all let it in whom it has dialled.
    #[cfg(test)]
    pub fn has_no_refusal(&self) -> bool {
        self.refusals.is_empty()
    }

    /// Whether it keeps the register, and may answer for it now.
    pub fn rules(&self) -> bool {
        let now = self.now();
        self.ruler
            .as_ref()
            .is_some_and(|ruler| ruler.may_answer(now))
    }

    /// The place of the process that keeps the register, if it is known and another one.
    pub fn keeper_place(&self) -> Option<u8> {
        match self.keeper {
            Node::Server(keeper) => keeper.place(),
            _ => None,
        }
    }
}
