//! What members of a pool tell one another.
//!
//! Between two members messages arrive in the order in which they were sent, once each, until their connection breaks; what was under way then is
//! lost. Both learn of a new connection, and nothing that was sent before arrives after that. Their form on a
//! wire is in `wire`: the order of variants and fields here is a part of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{Client, Epoch, File, Key, Node, Server, Version};
use crate::range::{Range, Right};
use crate::rope::Rope;

/// The members of the pool in one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Which epoch.
    pub epoch: Epoch,
    /// Those that have blocks and locks.
    pub servers: Vec<Server>,
    /// Those that hand on their blocks and then go.
    pub leaving: Vec<Server>,
    /// Clients that were there when the epoch began. Others hold nothing from before.
    pub clients: Vec<Client>,
    /// Whether every block is where it belongs: clients may enter.
    pub active: bool,
    /// Deaths of servers, oldest first.
    pub losses: Vec<Loss>,
    /// The last epoch before which the home may have lost what was not synced; the first one of all if it has not.
    pub home_lost: Epoch,
}

impl View {
    /// Which epoch, and whether it is active. Of one epoch nothing else changes.
    pub fn known(&self) -> (Epoch, bool) {
        (self.epoch, self.active)
    }
}

/// Servers that died without handing on what they had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The epoch that began by it.
    pub epoch: Epoch,
    /// The servers before it.
    pub before: Vec<Server>,
    /// Those of them that died.
    pub dead: Vec<Server>,
}

/// Where servers listen, by their places in the pool's list.
pub type Addresses = BTreeMap<u8, SocketAddr>;

/// A block's name.
pub type Place = (File, u64);

/// A block with its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Which.
    pub place: Place,
    /// How new.
    pub version: Version,
    /// What it holds. On a wire it comes behind the message.
    #[serde(skip)]
    pub bytes: Bytes,
}

/// Bytes of a block that are to be read: from this one on, so many or as many as there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Which block.
    pub place: Place,
    /// The first byte.
    pub from: u32,
    /// How many.
    pub length: u32,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the register: I am new, or still there. `ready` is the epoch whose blocks this server has.
    Alive {
        /// The sender's clock, in milliseconds.
        sent: u64,
        /// The epoch that the sender knows of, and whether it knows that it is active. Of a client: the last one that was.
        knows: (Epoch, bool),
        /// Of a server: all that it should have in this epoch is here, and all it had is where it should be.
        ready: Epoch,
        /// A server hands on what it has, and goes. A client has gone.
        leaving: bool,
        /// Of a server: requests have waited for the home for long, and who waits for them cannot answer.
        waits: bool,
        /// Of a server: [`Home::boot`](crate::home::Home::boot).
        boot: u64,
    },
    /// From the register: you were a member when your message came.
    Member {
        /// The clock of the message that this answers.
        sent: u64,
        /// The members of the pool now, unless the asker knows. A client is not told of other clients, nor of epochs that are not active.
        view: Option<View>,
    },
    /// From the register: you are no member any more.
    Gone,
    /// To the register: this client does not answer.
    Expel {
        /// Which one.
        client: Client,
    },
    /// From a server: you are behind, ask the register.
    Behind {
        /// The server's epoch.
        epoch: Epoch,
    },
    /// A client comes into an epoch, and says what it holds of the files whose locks the server keeps.
    Enter {
        /// The epoch.
        epoch: Epoch,
        /// Its grants.
        claims: Vec<(File, Range, Right)>,
    },
    /// The client is in, and may use the server's memory.
    Entered {
        /// The epoch.
        epoch: Epoch,
        /// For one-sided requests.
        key: Key,
    },
    /// A client wants a grant.
    Ask {
        /// The epoch.
        epoch: Epoch,
        /// The client's number for it.
        number: u64,
        /// Of which file.
        file: File,
        /// The blocks that it must have.
        need: Range,
        /// The blocks that it would like to have.
        wish: Range,
        /// To do what.
        right: Right,
        /// The client keeps other grants of the file until it has this one.
        urgent: bool,
    },
    /// The client has it.
    Granted {
        /// The epoch.
        epoch: Epoch,
        /// The client's number.
        number: u64,
        /// Of which file.
        file: File,
        /// The blocks.
        range: Range,
        /// To do what.
        right: Right,
        /// Grows with every grant of the server.
        stamp: u64,
    },
    /// Somebody else wants these blocks.
    Recall {
        /// The epoch.
        epoch: Epoch,
        /// Of which file.
        file: File,
        /// The blocks.
        range: Range,
        /// To read them: the client may go on reading.
        keep: bool,
        /// Grants up to this stamp were sent before: what has not come by now is lost.
        stamp: u64,
    },
    /// The client has written what it owed, and gives them back.
    Release {
        /// The epoch.
        epoch: Epoch,
        /// The last stamp of the server's that the client has seen.
        seen: u64,
        /// Files, blocks, and whether the client goes on reading.
        parts: Vec<(File, Range, bool)>,
    },
    /// One-sided: bytes of blocks.
    Read {
        /// Of the epoch.
        key: Key,
        /// The client's number.
        number: u64,
        /// Which ones.
        parts: Vec<Part>,
    },
    /// What was read.
    Bytes {
        /// The client's number.
        number: u64,
        /// Of each part: how many bytes there are, if the server has the block.
        found: Vec<Option<u32>>,
        /// All of them, in order. On a wire they come behind the message.
        #[serde(skip)]
        bytes: Rope,
    },
    /// One-sided: these blocks, all or none. A home gets them in this order.
    Write {
        /// Of the epoch.
        key: Key,
        /// The client's number.
        number: u64,
        /// The blocks.
        blocks: Vec<Block>,
    },
    /// One-sided: these bytes take the place of others in their blocks, each from that byte on. Blocks that are not there are zeros before.
    Patch {
        /// Of the epoch.
        key: Key,
        /// The client's number.
        number: u64,
        /// The bytes, and where in its block the first one lies.
        parts: Vec<(Block, u32)>,
    },
    /// One-sided: the file's blocks from this one on are no more.
    Discard {
        /// Of the epoch.
        key: Key,
        /// The client's number.
        number: u64,
        /// The file.
        file: File,
        /// The first block.
        from: u64,
        /// Its size goes as well: the file is no more.
        whole: bool,
    },
    /// One-sided: what was written to this server is durable, where the pool has a home.
    Persist {
        /// Of the epoch.
        key: Key,
        /// The client's number.
        number: u64,
    },
    /// What was written, discarded or made durable is so.
    Done {
        /// The client's number.
        number: u64,
    },
    /// Between servers: what the sender has, and the receiver should have.
    Offer {
        /// The epoch.
        epoch: Epoch,
        /// Blocks with their versions.
        blocks: Vec<(Place, Version)>,
        /// Nothing more is offered.
        last: bool,
    },
    /// Between servers: of what was offered, this is newer than what the sender has.
    Want {
        /// The epoch.
        epoch: Epoch,
        /// The blocks.
        places: Vec<Place>,
        /// Nothing more is wanted.
        last: bool,
    },
    /// Between servers: what was wanted.
    Give {
        /// The epoch.
        epoch: Epoch,
        /// The blocks.
        blocks: Vec<Block>,
        /// Nothing more was wanted.
        last: bool,
    },
    /// Between servers: the sender has all that was offered.
    Taken {
        /// The epoch.
        epoch: Epoch,
    },
    /// From a server to clients: its process keeps the register now.
    Rules {
        /// Grows from ruler to ruler.
        reign: u64,
    },
    /// Of what was to be read or written in part, these blocks are damaged in the home: they have neither bytes nor zeros.
    Damaged {
        /// The client's number.
        number: u64,
        /// The blocks.
        places: Vec<Place>,
    },
    /// From a server to clients: whether its memory is full. Then it takes what they owe, and they make no new blocks there.
    Full {
        /// Whether it is.
        is_full: bool,
    },
    /// From a server to clients: all servers that it knows of. A place never gets another address.
    Servers {
        /// Their addresses.
        addresses: Addresses,
    },
}

/// Messages to be sent, in order.
pub type Outbox = Vec<(Node, Message)>;

/// A member's sign of life to the register.
pub(crate) fn alive(
    sent: u64,
    knows: (Epoch, bool),
    ready: Epoch,
    leaving: bool,
    (waits, boot): (bool, u64),
) -> (Node, Message) {
    let alive = Message::Alive {
        sent,
        knows,
        ready,
        leaving,
        waits,
        boot,
    };
    (Node::Register, alive)
}

/// Whether one is due that comes `every` so many milliseconds, and was sent last at `told`.
pub(crate) fn is_due(told: Option<u64>, now: u64, every: u64) -> bool {
    told.is_none_or(|told| now >= told + every)
}
