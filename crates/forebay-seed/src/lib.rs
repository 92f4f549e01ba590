//! SEED: for each request, which of two paths is faster, learnt from the requests before it (Conflux, ICPP '23, section 3.2).
//!
//! A request can be served in one of two *modes*: local or remote. SEED predicts how long each would take, from what all threads
//! have done last, and draws one by a curve that prefers the faster. What a request took is what the next network learns from.
//!
//! ```text
//! request      what is asked: kind, size class, mode; Record, what has been done, in one word
//! environment  the four latest records of every thread, counted by group          (3.2.1, 3.2.2)
//! bounds       what a request takes at least on an idle path                      (3.2.2)
//! network      environment -> strength of each group, in (0, 1)                   (3.2.2)
//! training     pairs -> a better network, published once its error has fallen     (3.2.3)
//! shortcut     small requests: the latency before, and which requests are small   (3.2.3)
//! decision     two latencies -> a mode                                            (3.2.4)
//! average      what requests took lately
//! trials       when the mode that is not taken is tried out of turn
//! chooser      all of the above, for one request after another
//! rivals       policies that do with less, to compare with
//! simulation   two paths and many threads in simulated time
//! ```
//!
//! Nothing here does I/O, reads a clock or draws a number that the caller has not given. What was changed against the paper, and how
//! well the rivals do, is in `docs/seed.md`.

mod average;
pub mod bounds;
pub mod chooser;
pub mod decision;
pub mod environment;
pub mod network;
pub mod random;
pub mod request;
pub mod rivals;
pub mod shortcut;
pub mod simulation;
pub mod training;
mod trials;

pub use bounds::Bounds;
pub use chooser::{Choice, Chooser, Policy};
pub use decision::Curve;
pub use environment::{Environment, Log};
pub use network::Network;
pub use request::{Group, Kind, Mode, Record, Request};
pub use training::{Pair, Trainer};
