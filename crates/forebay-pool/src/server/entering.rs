//! Clients that come into an epoch.

use super::Server;
use crate::ids::{Client, File, Node};
use crate::message::{Message, Outbox};
use crate::mistakes::{Mistake, is_made};
use crate::range::{Range, Right};

impl Server {
    /// Whether all clients that may hold something have said what.
    pub(super) fn is_complete(&self) -> bool {
        self.view.active
            && (self
                .view
                .clients
                .iter()
                .all(|client| self.entered.contains(client))
                || is_made(Mistake::GrantsBeforeClaims))
    }

    pub(super) fn enter(
        &mut self,
        now: u64,
        client: Client,
        claims: &[(File, Range, Right)],
        out: &mut Outbox,
    ) {
        // A member that was not there when the epoch began holds nothing from before, and is not waited for.
        if !claims.is_empty() && !self.view.clients.contains(&client) {
            out.push((
                Node::Client(client),
                Message::Behind {
                    epoch: self.view.epoch,
                },
            ));
            return;
        }
        if self.entered.insert(client) && !self.claim(client, claims) {
            // No client of ours does this. It does not come in, and its term will end.
            self.false_claims += 1;
            self.entered.remove(&client);
            out.push((Node::Register, Message::Expel { client }));
            return;
        }
        let entered = Message::Entered {
            epoch: self.view.epoch,
            key: self.key(),
        };
        out.push((Node::Client(client), entered));
        if let Some(endpoint) = self.blocks.endpoint() {
            let key = self.key();
            out.push((Node::Client(client), Message::Lends { key, endpoint }));
        }
        if self.is_complete() {
            for (client, message) in std::mem::take(&mut self.waiting) {
                self.of_client(now, client, message, out);
            }
        }
    }

    /// What a client says it holds. Says whether all of it fits beside what others hold; else it holds nothing.
    fn claim(&mut self, client: Client, claims: &[(File, Range, Right)]) -> bool {
        let fits = claims.iter().all(|(file, range, right)| {
            let queue = self.queues.entry(*file).or_default();
            queue.claim(client, *range, *right)
        });
        if !fits {
            // Nobody waits yet, so nobody is granted anything by this.
            for (file, ..) in claims {
                if let Some(queue) = self.queues.get_mut(file) {
                    queue.forget(client, 0, &mut self.stamp);
                }
            }
        }
        fits
    }
}
