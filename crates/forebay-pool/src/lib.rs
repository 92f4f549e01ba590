//! Memory of other hosts, after Conflux (ICPP '23): locks, grants, placement, and the protocol of a pool as machines without I/O.
//!
//! What is promised between hosts is said in `docs/pool.md`, and why it is built so in decision 0035.
//!
//! ```text
//! client     operations, grants, cached blocks      register  members, epochs
//! server     blocks, locks, the exchange of blocks   ruler     who keeps the register, and how long he may
//! message    what they tell one another             wire      how that looks between hosts
//! net        all of it over TCP                          files     files by their names, for programs
//! locks      who holds which blocks, who waits      placement  which server has what
//! rope       bytes in pieces                        list       where servers are
//! ```

#![forbid(unsafe_code)]

pub mod client;
pub mod files;
pub mod home;
pub mod ids;
pub mod list;
pub mod locks;
pub mod message;
mod mistakes;
pub mod net;
pub mod placement;
pub mod random;
pub mod range;
pub mod register;
pub mod rope;
pub mod ruler;
pub mod server;
#[cfg(test)]
mod sim;
pub mod wire;
