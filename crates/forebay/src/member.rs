//! One process's side of a session, beneath the files that it has open and the keeper that it may host.
//!
//! [`shared`] is what a process's files have in common, [`members`] its threads' slots, [`census`] who else is there, [`presence`] who
//! keeps the session, [`provision`] how the arena gets memory, [`repairs`] what is remembered of repairs.
//!
//! [`table`] finds a file's entry, or makes it. [`lacks`], [`closed`], [`given`] and [`gone`] are what an entry says of its file;
//! [`reopen`] and [`again`] find the file by it. [`opens`] is who has which file open, [`claims`] which session has a file, [`viewers`]
//! whose views pin memory, [`reached`] which files somebody reaches past the engine, [`left`] which were left to the kernel, [`likely`]
//! how long the next one will be.
//!
//! [`refused`] is what is owed to devices that do not take it.
//!
//! [`handoff`] is how descriptors come to the keeper, `handing` when, [`lent`] those that it only reads by, [`hurry`] what it writes
//! first; [`guard`] and [`watch`] how files are watched for outsiders.
//!
//! Nothing here reads or writes a file's bytes: that is `file`.

pub mod again;
pub mod census;
pub mod claims;
pub mod closed;
pub mod given;
pub mod gone;
pub mod guard;
mod handing;
pub mod handoff;
pub mod hurry;
pub mod lacks;
pub mod left;
pub mod lent;
pub mod likely;
pub mod members;
pub mod opens;
pub mod presence;
pub mod provision;
pub mod reached;
pub mod refused;
pub mod reopen;
pub mod repairs;
pub mod shared;
pub mod table;
pub mod viewers;
pub mod watch;
