//! Forebay's engine: buffered I/O for fast storage, in user space.

pub mod config;
pub mod device;
pub mod error;
pub mod ids;
pub mod limits;
pub mod memory;
#[cfg(feature = "sim")]
pub mod sim;
pub mod sync;
