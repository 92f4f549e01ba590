//! Forebay's own checks, as a library so that each can be tested.

pub mod tidy;
