//! Requests for bytes, as a network with one-sided access would do them: whoever has the key of the epoch may read and write. Grants are
//! the clients' affair.

use std::io;

use super::Server;
use crate::ids::{Client, Key, Node};
use crate::message::{Message, Outbox};
use crate::mistakes::{Mistake, is_made};
use crate::random::mix2;
use crate::rope::Rope;

impl Server {
    pub(super) fn one_sided(
        &mut self,
        now: u64,
        client: Client,
        message: Message,
        out: &mut Outbox,
    ) {
        let (Message::Read { key, .. }
        | Message::Write { key, .. }
        | Message::Patch { key, .. }
        | Message::Discard { key, .. }
        | Message::Persist { key, .. }) = message
        else {
            return;
        };
        if !self.opens(key) {
            let epoch = self.view.epoch;
            out.push((Node::Client(client), Message::Behind { epoch }));
            return;
        }
        if self.blocks.has_home() && now >= self.valid_until {
            // The register answers again, or another epoch comes.
            self.failed.push((client, message));
            return;
        }
        match self.serve(&message) {
            Ok(answer) => out.push((Node::Client(client), answer)),
            Err(why) => {
                self.trouble = Some(why.to_string());
                self.failed.push((client, message));
            }
        }
    }

    /// Does a one-sided request.
    fn serve(&mut self, message: &Message) -> io::Result<Message> {
        let number = match message {
            Message::Read { number, parts, .. } => {
                let (number, mut found, mut bytes) = (*number, Vec::new(), Rope::default());
                for part in parts {
                    let part = self.blocks.part(*part)?;
                    found.push(part.as_ref().map(|part| part.len() as u32));
                    part.into_iter().for_each(|part| bytes.push(part));
                }
                return Ok(Message::Bytes {
                    number,
                    found,
                    bytes,
                });
            }
            Message::Write { number, blocks, .. } => {
                // In this order: whoever kills this process in the middle leaves the first ones in the home.
                { blocks.iter() }.try_for_each(|block| self.blocks.put(block.clone()))?;
                *number
            }
            Message::Patch { number, parts, .. } => {
                { parts.iter() }
                    .try_for_each(|(block, at)| self.blocks.patch(block, *at as usize))?;
                *number
            }
            Message::Discard {
                number,
                file,
                from,
                whole,
                ..
            } => {
                self.blocks.discard(*file, *from, *whole)?;
                *number
            }
            Message::Persist { number, .. } => {
                self.blocks.sync()?;
                *number
            }
            _ => 0,
        };
        Ok(Message::Done { number })
    }

    /// Whether a one-sided request with this key is served. Only who has entered an active epoch knows its key.
    fn opens(&self, key: Key) -> bool {
        key == self.key() || is_made(Mistake::OldKeysOpen)
    }

    pub(super) fn key(&self) -> Key {
        Key(mix2(self.config.secret, self.view.epoch.0))
    }
}
