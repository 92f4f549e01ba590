//! A pool over TCP: the machines of this crate, driven by sockets and a clock.
//!
//! ```text
//! process   one thread: machines, links, time        Serving   a server's process
//! link      connections: dialled, accepted, greeted   Pool      a client's process
//! stream    their bytes, plain or by TLS              security  certificates
//! numbers   what new members are called               etcd      its interface, as far as a pool needs it
//! steward   who rules, by etcd                        door      who dials a server, and is let in
//! modes     which way each request of a client goes   clock     it goes on while the host sleeps
//! ```
//!
//! The servers are those of a [`Config`], and those that have come since: a [`List`](crate::list::List). One of them keeps the register besides: the
//! first, or with `etcd` the one that has been elected. Without certificates nobody proves who he is, and all addresses must be loopback ones.

mod clock;
mod door;
mod etcd;
mod link;
mod modes;
mod numbers;
mod places;
mod pool;
mod process;
mod security;
mod serving;
mod status;
mod steward;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ids::PLACES;
use crate::random::mix2;
pub use etcd::Etcd;
pub use modes::{Counting, Counts, PathPolicy};
pub use places::{DIRECTORY, directories, named};
pub use pool::Pool;
pub use security::Tls;
pub use serving::Serving;
pub use status::Status;

/// A member's configuration: what all members have alike, and what is its own host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where servers listen when the pool begins. Later ones may come besides. The first keeps the register, if there is no `etcd`.
    pub servers: Vec<SocketAddr>,
    /// Copies of each block.
    #[serde(default = "one")]
    pub copies: usize,
    /// Size of a block.
    #[serde(default = "block_bytes")]
    pub block_bytes: u64,
    /// After so long without a sign of life a member is given up, in milliseconds.
    #[serde(default = "term_ms")]
    pub term_ms: u64,
    /// Blocks that a client keeps in memory if they are clean.
    #[serde(default = "cache_blocks")]
    pub cache_blocks: usize,
    /// How long the servers may lack what a client has written, in milliseconds; 0: until it is synced, wanted or too much. Hosts may differ in it.
    #[serde(default = "flush_interval_ms")]
    pub flush_interval_ms: u64,
    /// A directory that all servers see, where blocks outlive them. Without it they die with the last server that has a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<PathBuf>,
    /// Bytes of blocks in a server's memory, in MiB. With a home others are there alone; without one clients make no new ones then. Default: 1024 with a home, and
    /// without one no bound, but for the one that `forebay serve` sets. Servers may differ in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Which way a client's reads and writes go: by this host's memory, or past it. Hosts may differ in it.
    #[serde(default)]
    pub path: PathPolicy,
    /// By what members prove who they are. Without it all must be on one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Where the servers elect the one that keeps the register, so that the pool outlives each of them. Clients do not ask it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<Etcd>,
}

fn one() -> usize {
    1
}

fn block_bytes() -> u64 {
    64 << 10
}

fn term_ms() -> u64 {
    10_000
}

fn cache_blocks() -> usize {
    1024
}

fn flush_interval_ms() -> u64 {
    5_000
}

/// With a home.
const MEMORY_MIB: u64 = 1024;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It is no TOML of this kind.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// A value that cannot be.
    #[error("{0}")]
    Value(String),
}

impl Wrong {
    /// Says in which file.
    fn of(self, path: &Path) -> Wrong {
        Wrong::Value(format!("{}: {self}", path.display()))
    }
}

impl Config {
    /// A configuration from TOML.
    pub fn parse(text: &str) -> Result<Config, Wrong> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// A configuration from a file. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// That it cannot be read, or what is wrong with it.
    pub fn load(path: &Path) -> Result<Config, Wrong> {
        let text = std::fs::read_to_string(path).map_err(|why| Wrong::Value(why.to_string()));
        let config = text.and_then(|text| Config::parse(&text));
        let mut config = config.map_err(|why| why.of(path))?;
        if let Some(around) = path.parent() {
            let of_etcd = config.etcd.iter_mut().flat_map(|etcd| &mut etcd.tls);
            let tls = { config.tls.iter_mut().chain(of_etcd) }
                .flat_map(|tls| [&mut tls.certificate, &mut tls.key, &mut tls.authority]);
            tls.chain(&mut config.home)
                .for_each(|file| *file = around.join(&*file));
        }
        Ok(config)
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), Wrong> {
        let sense = |makes: bool, what: &str| {
            let wrong = || Wrong::Value(what.to_string());
            if makes { Ok(()) } else { Err(wrong()) }
        };
        let mut all = self.servers.clone();
        all.sort_unstable();
        all.dedup();
        sense(!all.is_empty(), "servers: there must be one at least")?;
        sense(
            all.len() == self.servers.len(),
            "servers: one is there twice",
        )?;
        sense(all.len() <= PLACES, "servers: at most 256")?;
        sense(
            all.iter().all(|server| server.port() != 0),
            "servers: each needs a port",
        )?;
        sense(
            all.iter().all(is_of_one_host),
            "servers: each needs the address of one host, which no unspecified, multicast or broadcast one is; IPv6 without a scope and a flow, and IPv4 not mapped into it",
        )?;
        sense(
            all.iter().all(|server| self.may_be_dialled(*server)),
            "servers: without [tls] only loopback addresses, since nobody proves who he is; with it all or none, since other hosts do not reach these",
        )?;
        sense(
            (1..=all.len()).contains(&self.copies),
            "copies: from 1 to the number of servers",
        )?;
        sense(
            self.block_bytes.is_power_of_two() && (512..=1 << 20).contains(&self.block_bytes),
            "block_bytes: a power of two from 512 to 1048576",
        )?;
        sense(
            (1..=1 << 30).contains(&self.memory_mib.unwrap_or(MEMORY_MIB)),
            "memory_mib: from 1 to 1073741824",
        )?;
        sense(
            (500..=3_600_000).contains(&self.term_ms),
            "term_ms: from 500 to 3600000",
        )?;
        let etcd = self.etcd.as_ref().map_or(Ok(()), Etcd::check);
        etcd.map_err(Wrong::Value)
    }

    /// How often a member gives a sign of life, in milliseconds. What the register has decided is heard by the answers.
    fn alive_every(&self) -> u64 {
        (self.term_ms / 8).min(100)
    }

    /// Whether all members can dial a server there. Without certificates they speak to nobody outside this host. With them a loopback address would be
    /// another server on each host, or nobody, unless all servers have one.
    fn may_be_dialled(&self, server: SocketAddr) -> bool {
        let is_loopback = server.ip().is_loopback();
        let is_like = |other: &SocketAddr| other.ip().is_loopback() == is_loopback;
        let may = if self.tls.is_some() {
            self.servers.iter().all(is_like)
        } else {
            is_loopback
        };
        may && server.port() != 0 && is_of_one_host(&server)
    }

    /// Members of one pool have the same.
    fn mark(&self) -> u64 {
        // Each has a certificate of its own, and may see the home at another path.
        let alike = Config {
            // It only says whom a member asks first.
            servers: Vec::new(),
            tls: None,
            path: PathPolicy::default(),
            flush_interval_ms: 0,
            memory_mib: None,
            home: self.home.as_ref().map(|_| PathBuf::new()),
            // Each may reach it by another way.
            etcd: self.etcd.as_ref().map(Etcd::alike),
            ..self.clone()
        };
        let bytes = postcard::to_stdvec(&alike).unwrap_or_default();
        bytes
            .iter()
            .fold(0, |mark, byte| mix2(mark, u64::from(*byte)))
    }
}

/// Whether an address means one host, and is the only form of it.
fn is_of_one_host(server: &SocketAddr) -> bool {
    let ip = server.ip();
    let is_plain = match server {
        SocketAddr::V4(server) => !server.ip().is_broadcast(),
        SocketAddr::V6(server) => {
            server.scope_id() == 0
                && server.flowinfo() == 0
                && server.ip().to_ipv4_mapped().is_none()
        }
    };
    is_plain && !ip.is_unspecified() && !ip.is_multicast()
}

/// Why a process cannot be a member, or is none any more.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The configuration does not say which server this is.
    #[error("there is no server {0} in the configuration")]
    NoSuchServer(usize),
    /// Its address cannot be had.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// Its certificates cannot be used.
    #[error("[tls]: {0}")]
    Tls(String),
    /// The pool's home cannot be used.
    #[error("home: {0}")]
    Home(crate::home::Foreign),
    /// What a ruler of this pool has left in etcd cannot be read.
    #[error("[etcd]: {0}")]
    Etcd(String),
    /// A member refuses it.
    #[error("refused: {0}")]
    Refused(String),
    /// The pool has given it up: the register had no sign of life of it for a term.
    #[error("the pool has given this member up")]
    GivenUp,
    /// The pool did not answer in time.
    #[error("the pool does not answer")]
    NoAnswer,
    /// Chance cannot be had.
    #[error("no random numbers: {0}")]
    Random(std::io::Error),
}

fn random() -> Result<u64, Ended> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Ended::Random)?;
    Ok(u64::from_le_bytes(bytes))
}
