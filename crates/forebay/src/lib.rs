//! Forebay's engine: buffered I/O for fast storage, in user space.
//!
//! A program joins a session, opens files in it, and reads and writes them from any thread. The bytes lie in shared memory that the
//! session's processes have in common; a *keeper* writes them back behind the callers.
//!
//! ```
//! use forebay::{Config, OpenOptions, Session};
//!
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("data");
//! // `Config::load()` reads the user's configuration; `tiny` is a small session in this process alone, for tests.
//! let session = Session::open(Config::tiny())?;
//! let file = session.open_file(&path, OpenOptions::new().read(true).write(true).create(true))?;
//!
//! file.write_at(b"ragged and quick", 100)?; // into memory only
//! assert_eq!(file.len()?, 116);
//!
//! let mut begin = [0xff; 100];
//! file.read_at(&mut begin, 0)?;
//! assert_eq!(begin, [0; 100]); // a hole reads as zeros
//!
//! file.sync_data()?; // durable from here on
//! file.close()?; // tells errors; dropping the file does not
//! assert_eq!(&std::fs::read(&path).unwrap()[100..], b"ragged and quick");
//! # Ok(())
//! # }
//! ```
//!
//! Threads may append to one file at once; each record lands whole:
//!
//! ```
//! # use forebay::{Config, OpenOptions, Session};
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("log");
//! let session = Session::open(Config::tiny())?;
//! let log = session.open_file(&path, OpenOptions::new().append(true).create(true))?;
//! std::thread::scope(|scope| {
//!     for _ in 0..4 {
//!         scope.spawn(|| log.append(b"one record\n"));
//!     }
//! });
//! assert_eq!(log.len()?, 4 * 11);
//! log.close()
//! # }
//! ```
//!
//! | to begin with | |
//! |---|---|
//! | [`Config`] | options: [`Config::load`] from file and environment, [`Config::builder`] for programs that embed the engine |
//! | [`Session`] | joins or makes a session; [`Session::keep`] keeps it in this process |
//! | [`View`], [`PrivateView`], [`Window`] | bytes of a file without a copy: to read, and to write |
//! | [`OpenOptions`], [`File`] | files: positional and vectored requests, appends, syncs, lengths, holes |
//! | [`Advise`], [`Stats`] | what will be read; what the session has done and holds |
//! | [`Error`] | by who must act; [`Error::errno`] for the number |
//!
//! The other modules are shown to the crates of this workspace (the command line, the preloaded library, the C library, the benches and
//! tests) and change without notice. `ARCHITECTURE.md` describes them.

pub mod config;
pub mod error;
pub mod stats;

#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod evict;
#[doc(hidden)]
pub mod file;
#[doc(hidden)]
pub mod flush;
#[doc(hidden)]
pub mod frame;
#[doc(hidden)]
pub mod ids;
#[doc(hidden)]
pub mod keeper;
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod member;
#[doc(hidden)]
pub mod memory;
mod random;
#[doc(hidden)]
pub mod route;
#[doc(hidden)]
pub mod scrap;
#[doc(hidden)]
pub mod session;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
#[doc(hidden)]
pub mod stream;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod text;

pub use config::Config;
pub use error::{Error, Result, SessionFault};
pub use file::{Advise, File, OpenOptions, PrivateView, View, Window};
pub use session::Session;
pub use stats::Stats;
