//! The keeper: what happens later, and what happens after a death.
//!
//! [`provision`] gives memory to the arena and takes it back; [`repair`] and [`rebuild`] restore the session after a
//! death, and may be called by anyone.

pub mod check;
pub mod provision;
pub mod rebuild;
pub mod repair;
