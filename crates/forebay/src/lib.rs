//! Forebay's engine: buffered I/O for fast storage, in user space.

pub mod device;
pub mod ids;
pub mod limits;
pub mod random;
#[cfg(feature = "sim")]
pub mod sim;
pub mod sync;
pub mod sys;
