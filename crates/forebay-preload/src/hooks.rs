//! The entry points.

pub mod pass;
pub mod signals;
