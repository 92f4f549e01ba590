//! Forebay's engine: buffered I/O for fast storage, in user space.

pub mod config;
pub mod device;
pub mod error;
pub mod evict;
pub mod file;
pub mod flush;
pub mod frame;
pub mod ids;
pub mod keeper;
pub mod limits;
pub mod memory;
mod random;
pub mod route;
pub mod scrap;
pub mod session;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stats;
pub mod stream;
pub mod sync;
pub mod sys;

pub use config::Config;
pub use error::{Error, Result};
pub use file::{Advise, File, OpenOptions};
pub use session::Session;
pub use stats::Stats;
