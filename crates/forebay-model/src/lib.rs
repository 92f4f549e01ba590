//! The one definition of correct file contents, and the one list of operations that is driven
//! against everything that claims to have them: the engine, the preloaded library, FUSE, the C API.
//!
//! | question | answer |
//! |---|---|
//! | what can be asked of a file | [`Op`], one JSON line each ([`to_lines`], [`from_lines`]) |
//! | what must the answer be | [`Model::apply`] |
//! | what may be left after a death | [`Model::after_death`] |
//! | what may be left after power loss | [`Model::may_be_after_power_loss`] |
//! | who is asked | [`Target`]; [`StdFiles`] is the kernel's own answer |
//! | who asks | [`drive`], [`Driver`], [`replay`] |
//! | where do operations come from | [`generate`], [`ops`] for proptest, [`PartitionPlan`] for threads |
//! | what may programs find that use one file at once | [`history::check`] |
//! | what is the smallest list that still fails | [`shrink`] |
//!
//! The bytes of a write follow from its seed and from where they lie in the file ([`fill`]), so a
//! byte that is out of date, in the wrong place or lost can be told from its value, and a list of
//! operations is small however much it writes. They are never zero: zero means *hole*.
//!
//! ```
//! use forebay_model::{Op, Profile, StdFiles, drive, generate, shrink, to_lines};
//!
//! let directory = tempfile::tempdir()?;
//! let mut run = |ops: &[Op]| {
//!     let mut target = StdFiles::new(directory.path(), 2, 2).expect("new files for each run");
//!     drive(ops, &mut target)
//! };
//! let ops = generate(1, &Profile::TINY, 50);
//! if let Err(mismatch) = run(&ops) {
//!     let small = shrink(ops, |ops| run(ops).is_err());
//!     panic!("{mismatch}\n{}", to_lines(&small));
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The crate does not depend on the engine: front ends that live in other processes use it too. It
//! knows nothing of time, names, permissions or memory budgets; each of those has tests of its own.

mod bytes;
mod content;
mod drive;
mod generate;
pub mod history;
mod lines;
mod mismatch;
mod model;
mod monotone;
mod op;
mod partition;
mod profile;
mod seeds;
mod shrink;
mod skip;
mod std_files;
mod survive;
mod target;

pub use bytes::{byte_at, fill, first_difference};
pub use content::{Content, Image};
pub use drive::{Driver, ReplayError, drive, replay};
pub use generate::{Decoder, Dice, SplitMix64, generate, ops};
pub use lines::{LineError, from_lines, to_lines};
pub use mismatch::{Details, Guess, Mismatch, Origin, Place};
pub use model::Model;
pub use monotone::MonotoneReader;
pub use op::{Access, Op};
pub use partition::{PartitionPlan, Stripe, Version};
pub use profile::{Kind, Profile, Sizes};
pub use seeds::fresh_seed;
pub use shrink::shrink;
pub use skip::skipped;
pub use std_files::StdFiles;
pub use target::{ErrorClass, Expected, Outcome, Target};

/// A page of a file. The engine has the same number in its `limits`; a test there compares them.
pub const PAGE_BYTES: u64 = 4096;
/// A block of a file, likewise.
pub const BLOCK_BYTES: u64 = 256 * 1024;
