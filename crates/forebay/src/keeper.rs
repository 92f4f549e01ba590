//! The keeper: what happens later, and what happens after a death.
//!
//! [`hosting`] starts the keeper's threads, [`run`] is what they do, [`ahead`] the one that reads ahead, `ready` the one that has memory ready, [`unfinished`] what they do for files that nobody has open
//! any more, [`closing`] for those whose close did not wait. [`provision`] gives memory to the arena and takes it back; [`repair`]
//! and [`rebuild`] restore the session after a death, and may be called by anyone. [`recover`] saves what a wholly dead session
//! has left.

pub mod ahead;
pub mod check;
pub mod closing;
pub mod engine;
pub mod hosting;
pub mod provision;
mod ready;
pub mod rebuild;
pub mod recover;
pub mod reopen;
pub mod repair;
pub mod run;
pub mod unfinished;
