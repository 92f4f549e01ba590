//! Where blocks outlive the servers that hold them: a directory that all servers see.
//!
//! A server writes each block to its home before it says that it has it, so memory is a cache of the home. What was written is *durable* once it was
//! synced there ([`Home::sync`]). A block in the home is only replaced by a newer one, whoever writes it: a server that was given up
//! and does not know it yet may still be writing.
//!
//! Each life of the pool has a number, which begins its epochs: so what was written in an earlier life is older, and no
//! client's number comes twice. A home is one pool's at a time.

mod directory;

use std::fmt::Debug;
use std::io;

use crate::ids::{Epoch, File, Version};
use crate::message::{Block, Place};
pub use directory::{Directory, Foreign, Owner, Taken, is_open};

/// The first epoch of a life.
pub(crate) fn first_epoch(life: u64) -> Epoch {
    Epoch(life << 32)
}

/// The life that an epoch belongs to.
fn life_of(epoch: Epoch) -> u64 {
    epoch.0 >> 32
}

/// A home of blocks. Several servers use it at once.
pub trait Home: Debug + Send + Sync {
    /// A block, if it is there. One that is damaged, and stays so until it is written, is [`io::ErrorKind::InvalidData`].
    fn load(&self, place: Place) -> io::Result<Option<(Version, Vec<u8>)>>;
    /// Keeps a block, unless a newer one is there; says whether it is there now. A newer one of a later life is an error: this life has lost its home.
    /// It fails if the server may not write any more, which is asked when nobody else changes the file: it may have stood still meanwhile.
    fn store(&self, block: &Block, may: &dyn Fn() -> bool) -> io::Result<bool>;
    /// A file's blocks from this one on go; all that there is of it, if it is `whole`. Says whether that is done: a home works at it for a moment only,
    /// since its server is there for nobody meanwhile, and goes on with the rest when it is told again to do what it was not done with, if it `goes_on`.
    fn discard(&self, file: File, from: u64, whole: bool, goes_on: bool) -> io::Result<bool>;
    /// All that this server had stored when this began is durable when it returns. That may take long.
    fn sync(&self) -> io::Result<()>;
    /// A request of a client, of which all blocks are to be stored or none, begins: whoever is killed before its end leaves the rest to the others.
    fn begin_together(&self, _request: (u32, u64), _blocks: &[Block]) -> io::Result<()> {
        Ok(())
    }
    /// All of its blocks are stored.
    fn end_together(&self, _request: (u32, u64)) -> io::Result<()> {
        Ok(())
    }
    /// Stores the rest of what others have left so, and says which blocks that were. `may` is as for [`Home::store`].
    fn go_on_together(&self, _may: &dyn Fn() -> bool) -> io::Result<Vec<Place>> {
        Ok(Vec::new())
    }
    /// By which boot of its host what this server has stored and nobody has synced is there; 0 where each block is durable once it is stored. It is another
    /// number from then on when a sync has failed: what has been stored before may be gone.
    fn boot(&self) -> u64 {
        0
    }
}
