//! Numbers with a meaning: servers, clients, files, epochs, versions, keys.

use serde::{Deserialize, Serialize};

/// A server, by its number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Server(pub u32);

/// A pool has so many places for servers.
pub const PLACES: usize = 256;

impl Server {
    /// Its place in the pool's list: numbers go round in the places, whether or not the list has them all. Nobody's number is 0.
    pub fn place(self) -> Option<u8> {
        let before = self.0.checked_sub(1)?;
        Some((before % PLACES as u32) as u8)
    }
}

/// One life of a client: its number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Client(pub u32);

/// A file, by its number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct File(pub u64);

impl File {
    /// The file whose blocks hold the names of all others.
    pub const NAMES: File = File(0);
    /// The directory that all others are below. It is always there.
    pub const ROOT: File = File(1);
}

/// The block by which all blocks of names are placed.
pub const BLOCK_OF_NAMES: u64 = 0;

/// The block that holds a file's size and attributes. It comes after all others, in the order in which locks are taken.
pub const SIZE_BLOCK: u64 = 1 << 52;

/// Counts the changes of who belongs to the pool.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Opens a server's memory to one-sided requests, in one epoch. It is told to those who have entered the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(pub u64);

/// How new a block's bytes are: of two copies, the one with the greater version is newer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// In which epoch they were written.
    pub epoch: u64,
    /// Under which grant.
    pub stamp: u64,
    /// Which write of that client.
    pub change: u64,
}

/// Somebody who sends and gets messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Node {
    /// The register of members, whichever server's process keeps it.
    Register,
    /// A server.
    Server(Server),
    /// A client.
    Client(Client),
}
