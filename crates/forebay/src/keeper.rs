//! The keeper: what happens later, and what happens after a death.
//!
//! [`run`] is the keeper's threads, [`hosting`] their beginning and end, [`ahead`] the one that reads ahead, `ready` the one that has
//! memory ready, `budget` keeps to limits, [`unfinished`] what they do for files that nobody has open any more, [`closing`] for those
//! whose close did not wait, [`outsiders`] for those that programs outside the session open, [`relief`]
//! where the keeper has died, `nameless` where the arena was removed, [`desk`] what clients ask for. [`repair`] and [`rebuild`] restore the session after a death, and may be called by anyone. [`recover`] saves what a wholly dead session
//! has left.

pub mod ahead;
pub(crate) mod budget;
pub mod check;
pub mod closing;
pub mod desk;
pub mod engine;
pub mod hosting;
mod limits;
mod nameless;
pub mod outsiders;
mod ready;
pub mod rebuild;
pub mod recover;
pub mod relief;
pub mod repair;
pub mod run;
pub mod unfinished;
