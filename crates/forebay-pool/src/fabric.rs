//! Bytes between the memories of hosts by libfabric: one-sided reads and writes of memory that the other side has registered.
//!
//! ```text
//! bindings   libfabric's structures, made from its headers    library   the library, loaded at run time
//! objects    its objects: opened, closed                       region    memory that others may use, and by which key
//! endpoint   a member's endpoint                               ops       what is under way
//! driving    who lets providers go on                          names     what endpoints are called
//! peers      others' endpoints
//! ```
//!
//! A [`Fabric`] is this process's endpoint of one provider. Others reach it by [`Fabric::address`], and use its memory by the [`Key`] that
//! [`Fabric::register`] gives: who has both may. A region that is renewed, or dropped, is closed to whoever has the old key, however late his
//! request comes.
//!
//! Memory that libfabric may touch is never anybody else's: a read takes the memory that it fills, and gives it back when it is full; after a time
//! limit it stays with the endpoint until libfabric has done with it.
//!
//! A key that is refused ends the connection to that peer in `tcp`, which makes another one after some milliseconds; `shm` does not answer it, and needs
//! another endpoint then ([`Fabric::is_spoiled`]).
//!
//! Providers that make no progress on their own are driven by who waits, and by one thread of the endpoint's, as long as something is registered or
//! under way. It sleeps in the kernel where the provider can wake it; `shm` cannot, and is looked after every [`NAP`] at most then.
//!
//! Nothing here is encrypted, and nobody proves who he is (`SECURITY.md`).

#![allow(unsafe_code)]

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    unreachable_pub,
    clippy::all
)]
mod bindings {
    include!("fabric/bindings.in");
}
mod driving;
mod endpoint;
mod library;
mod names;
mod objects;
mod ops;
mod peers;
mod region;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use endpoint::{Fabric, NAP};
pub use peers::Peer;
pub use region::{Key, Region};

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Sockets, anywhere.
    Tcp,
    /// Shared memory, between processes of one user on one host.
    Shm,
    /// InfiniBand, RoCE and iWARP.
    Verbs,
}

impl Provider {
    /// All of them.
    pub const ALL: [Provider; 3] = [Provider::Tcp, Provider::Shm, Provider::Verbs];

    /// libfabric's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Tcp => "tcp",
            Provider::Shm => "shm",
            Provider::Verbs => "verbs",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = Error;

    fn from_str(name: &str) -> Result<Provider, Error> {
        let found = Provider::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| Error::Unknown(name.to_string()))
    }
}

/// Why bytes do not move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// libfabric is not there.
    #[error("libfabric cannot be loaded ({0}); install it (Debian: libfabric1)")]
    NoLibrary(String),
    /// It has no such provider on this host.
    #[error("libfabric has no provider {0} here: {1}")]
    NoProvider(Provider, String),
    /// No provider is called that.
    #[error("no provider is called {0}: there are tcp, shm and verbs")]
    Unknown(String),
    /// A call failed.
    #[error("{0}: {1}")]
    Call(&'static str, String),
    /// What came as an address is none.
    #[error("not an address of this provider")]
    Address,
    /// A peer of another endpoint.
    #[error("a peer of another endpoint")]
    Peer,
    /// Bytes outside the region of a key.
    #[error("bytes outside the region")]
    Range,
    /// The other side refused, or has gone.
    #[error("the other side refused, or has gone: {0}")]
    Failed(String),
    /// The other side has not answered in time. What was to be written may still come there, while its key is good.
    #[error("the other side has not answered in time")]
    Timeout,
    /// The process ends.
    #[error("the process ends")]
    Ended,
    /// An earlier request was not answered, and `shm` goes on after that with another endpoint only.
    #[error("the endpoint waits for somebody who does not answer")]
    Spoiled,
}

/// What libfabric offers on this host.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Its version.
    pub version: (u32, u32),
    /// Of each provider that a pool can use: that it is there, or why not.
    pub providers: Vec<(Provider, Result<(), Error>)>,
}

/// Looks what there is.
///
/// # Errors
/// libfabric is not there.
pub fn offered() -> Result<Offered, Error> {
    let library = library::Library::load()?;
    let all = Provider::ALL.into_iter();
    Ok(Offered {
        version: library.version(),
        providers: all
            .map(|provider| (provider, objects::is_there(library, provider)))
            .collect(),
    })
}
