//! Requests for bytes, as a network with one-sided access would do them: whoever has the key of the epoch may read and write. Grants are
//! the clients' affair.

use std::io;

use super::Server;
use crate::ids::{Client, File, Key, Node};
use crate::message::{Block, Message, Outbox, Place};
use crate::mistakes::{Mistake, is_made};
use crate::random::mix2;
use crate::rope::Rope;

/// A request is written for so many milliseconds at once: the server is there for nobody meanwhile.
const AT_ONCE: u64 = 50;

/// A request, and since when it is here.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub client: Client,
    message: Message,
    pub since: u64,
    /// So many of its blocks are written.
    done: usize,
}

impl Asked {
    /// Whether names are written in part: a file may have two, or its old one without its new one's place.
    fn is_half_of_names(&self) -> bool {
        let of_names = |block: &Block| block.place.0 == File::NAMES;
        matches!(&self.message, Message::Write { blocks, .. } if blocks.iter().any(of_names))
            && self.done > 0
    }

    /// Its name in the home, if it writes names to several blocks.
    fn together(&self) -> Option<(u32, u64)> {
        match &self.message {
            Message::Write { number, blocks, .. } if blocks.len() > 1 => {
                let is_names = blocks[0].place.0 == File::NAMES;
                is_names.then_some((self.client.0, *number))
            }
            _ => None,
        }
    }
}

impl Server {
    /// Writes the rest of names of which a part is written, before another epoch begins: their client may be dead, and nobody else knows the rest. Says
    /// whether all of it is written.
    pub(super) fn has_ended_names(&mut self, now: u64) -> bool {
        self.blocks.until = self.valid_until;
        let is_half = |asked: &mut Asked| asked.is_half_of_names();
        let mut halves: Vec<Asked> = self.failed.extract_if(.., is_half).collect();
        halves.extend(self.unfinished.extract_if(.., is_half));
        let mut has_ended = true;
        for mut asked in halves {
            match self.serve(now, &mut asked, true) {
                Ok(Some(_)) => continue,
                Ok(None) => self.unfinished.push(asked),
                Err(why) => {
                    self.trouble = Some(why.to_string());
                    self.failed.push(asked);
                }
            }
            has_ended = false;
        }
        has_ended && self.has_ended_names_of_others()
    }

    /// The same for what servers that were killed have left in the home.
    fn has_ended_names_of_others(&mut self) -> bool {
        let Some(home) = self.blocks.home() else {
            return true;
        };
        let (clock, until) = (&self.blocks.clock, self.blocks.until);
        match home.go_on_together(&|| clock.now() < until) {
            Ok(places) => {
                places
                    .into_iter()
                    .for_each(|place| self.blocks.forget(place));
                true
            }
            Err(why) => {
                self.trouble = Some(why.to_string());
                false
            }
        }
    }

    /// A request has come. One that comes again takes the place of the one that waits here: that would be done after what comes when this one is
    /// answered.
    pub(super) fn asked(&mut self, now: u64, client: Client, message: Message, out: &mut Outbox) {
        let number = number_of(&message);
        let is_other =
            |asked: &Asked| asked.client != client || number_of(&asked.message) != number;
        self.failed.retain(is_other);
        self.unfinished.retain(is_other);
        let since = now;
        let asked = Asked {
            client,
            message,
            since,
            done: 0,
        };
        self.one_sided(now, asked, false, out);
    }

    /// Does a request, or goes on with it.
    pub(super) fn one_sided(
        &mut self,
        now: u64,
        mut asked: Asked,
        goes_on: bool,
        out: &mut Outbox,
    ) {
        let client = asked.client;
        let (Message::Read { key, .. }
        | Message::Write { key, .. }
        | Message::Patch { key, .. }
        | Message::Discard { key, .. }
        | Message::Persist { key, .. }) = asked.message
        else {
            return;
        };
        if !self.opens(key) {
            let epoch = self.view.epoch;
            out.push((Node::Client(client), Message::Behind { epoch }));
            return;
        }
        if self.blocks.home().is_some() && now >= self.valid_until {
            // The register answers again, or another epoch comes.
            self.failed.push(asked);
            return;
        }
        if self.syncs_aside(client, &asked.message) {
            return;
        }
        self.blocks.until = self.valid_until;
        match self.serve(now, &mut asked, goes_on) {
            Ok(Some(answer)) => {
                self.tell_room_after(&asked.message, out);
                out.push((Node::Client(client), answer));
            }
            Ok(None) => self.unfinished.push(asked),
            Err(why) => {
                self.trouble = Some(why.to_string());
                self.failed.push(asked);
            }
        }
    }

    /// Does a one-sided request; `None` if there is more to do.
    fn serve(&mut self, now: u64, asked: &mut Asked, goes_on: bool) -> io::Result<Option<Message>> {
        let number = match &asked.message {
            Message::Read { number, parts, .. } => {
                let (number, mut found, mut bytes) = (*number, Vec::new(), Rope::default());
                let mut places = Vec::new();
                for part in parts {
                    let result = self.blocks.part(*part);
                    let Some(part) = self.unless_damaged(now, part.place, result, &mut places)?
                    else {
                        continue;
                    };
                    found.push(part.as_ref().map(|part| part.len() as u32));
                    part.into_iter().for_each(|part| bytes.push(part));
                }
                if !places.is_empty() {
                    return Ok(Some(Message::Damaged { number, places }));
                }
                return Ok(Some(Message::Bytes {
                    number,
                    found,
                    bytes,
                }));
            }
            Message::Write { number, .. } => {
                let number = *number;
                if !self.write(asked)? {
                    return Ok(None);
                }
                number
            }
            Message::Patch { number, parts, .. } => {
                let (number, mut places) = (*number, Vec::new());
                for (block, at) in parts {
                    let result = self.blocks.patch(block, *at as usize);
                    self.unless_damaged(now, block.place, result, &mut places)?;
                }
                if !places.is_empty() {
                    return Ok(Some(Message::Damaged { number, places }));
                }
                number
            }
            Message::Discard {
                number,
                file,
                from,
                whole,
                ..
            } => {
                if !self.blocks.discard((*file, *from), *whole, goes_on)? {
                    return Ok(None);
                }
                *number
            }
            Message::Persist { number, .. } => {
                // Without a home nothing is durable.
                self.blocks.home().map_or(Ok(()), |home| home.sync())?;
                *number
            }
            _ => 0,
        };
        Ok(Some(Message::Done { number }))
    }

    /// Writes blocks, for some time; says whether all are written.
    fn write(&mut self, asked: &mut Asked) -> io::Result<bool> {
        let together = self.blocks.home().cloned().zip(asked.together());
        let Message::Write { blocks, .. } = &asked.message else {
            return Ok(true);
        };
        // In this order: when the home's host loses power in the middle the first ones are there.
        let begun = self.blocks.clock.now();
        if let Some((home, request)) = together.as_ref().filter(|_| asked.done == 0) {
            home.begin_together(*request, blocks)?;
        }
        for block in &blocks[asked.done..] {
            self.blocks.put(block.clone())?;
            asked.done += 1;
            let has_more = asked.done < blocks.len();
            if has_more && self.blocks.clock.now() - begun >= AT_ONCE {
                return Ok(false);
            }
        }
        if let Some((home, request)) = together {
            home.end_together(request)?;
        }
        Ok(true)
    }

    /// What has come of a request for a block, unless that is damaged: it will be tomorrow, and whoever waited would wait for ever.
    fn unless_damaged<T>(
        &mut self,
        now: u64,
        place: Place,
        result: io::Result<T>,
        damaged: &mut Vec<Place>,
    ) -> io::Result<Option<T>> {
        match result {
            Err(why) if why.kind() == io::ErrorKind::InvalidData => {
                self.damage = Some((now, why.to_string()));
                damaged.push(place);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Whether a one-sided request with this key is served. Only who has entered an active epoch knows its key.
    fn opens(&self, key: Key) -> bool {
        key == self.key() || is_made(Mistake::OldKeysOpen)
    }

    pub(super) fn key(&self) -> Key {
        Key(mix2(self.config.secret, self.view.epoch.0))
    }
}

/// The number of a one-sided request, which no other one of its client's has.
fn number_of(message: &Message) -> Option<u64> {
    match message {
        Message::Read { number, .. }
        | Message::Write { number, .. }
        | Message::Patch { number, .. }
        | Message::Discard { number, .. }
        | Message::Persist { number, .. } => Some(*number),
        _ => None,
    }
}
