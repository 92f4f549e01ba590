//! Where blocks outlive the servers that hold them: a directory that all servers see.
//!
//! A server writes each block to its home before it says that it has it, so memory is a cache of the home. What was written is *durable* once it was
//! synced there ([`Home::sync`]). A block in the home is only replaced by a newer one, whoever writes it: a server that was given up
//! and does not know it yet may still be writing.
//!
//! Each life of the pool has a number, which begins its epochs: so what was written in an earlier life is older, and no
//! client's number comes twice.

mod directory;

use std::fmt::Debug;
use std::io;

use crate::ids::{File, Version};
use crate::message::{Block, Place};
pub use directory::{Directory, Foreign, is_open};

/// A home of blocks. Several servers use it at once.
pub trait Home: Debug + Send + Sync {
    /// A block, if it is there.
    fn load(&self, place: Place) -> io::Result<Option<(Version, Vec<u8>)>>;
    /// Keeps a block, unless a newer one is there.
    fn store(&self, block: &Block) -> io::Result<()>;
    /// A file's blocks from this one on go; all that there is of it, if it is `whole`.
    fn discard(&self, file: File, from: u64, whole: bool) -> io::Result<()>;
    /// All that this server has stored is durable when this returns.
    fn sync(&self) -> io::Result<()>;
}
