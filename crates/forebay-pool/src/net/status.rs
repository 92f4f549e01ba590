//! What a server's process says of itself: for logs and for collectors of metrics.

use std::fmt::Write;

/// A server, as it was at its last tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The epoch.
    pub epoch: u64,
    /// Whether every block is where it belongs, so that clients are served.
    pub is_active: bool,
    /// Servers of the epoch.
    pub servers: usize,
    /// Clients that were there when it began.
    pub clients: usize,
    /// Blocks in this server's memory.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Whether there is no memory for new ones.
    pub is_full: bool,
    /// What the home fails by, while requests wait for it, or what was found damaged in it of late.
    pub trouble: Option<String>,
    /// Whether this server's process keeps the register of members.
    pub rules: bool,
    /// What etcd fails by.
    pub etcd_trouble: Option<String>,
    /// Which other server does not let this one in, and why: it may be a stranger at that one's address.
    pub refusal: Option<String>,
    /// Once it has ended: of how many files it had blocks that nobody else has to have, and their bytes. With a home there are none.
    pub dropped: Option<(usize, u64)>,
}

impl Status {
    /// In the text form that Prometheus reads.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let lines = [
            ("epoch", "Changes of who belongs to the pool.", self.epoch),
            (
                "active",
                "1 while clients are served.",
                self.is_active.into(),
            ),
            ("servers", "Servers of the epoch.", self.servers as u64),
            (
                "clients",
                "Clients that were there when the epoch began.",
                self.clients as u64,
            ),
            (
                "blocks",
                "Blocks in this server's memory.",
                self.blocks as u64,
            ),
            ("block_bytes", "Their bytes.", self.bytes),
            (
                "memory_full",
                "1 while this server has no memory for new blocks.",
                self.is_full.into(),
            ),
            (
                "home_fails",
                "1 while requests wait for the home, and for a while after a block in it was found damaged.",
                self.trouble.is_some().into(),
            ),
            (
                "rules",
                "1 if this server keeps the register of members.",
                self.rules.into(),
            ),
            (
                "etcd_fails",
                "1 while etcd does not answer this server.",
                self.etcd_trouble.is_some().into(),
            ),
        ];
        for (name, help, value) in lines {
            let name = format!("forebay_pool_{name}");
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"
            );
        }
        text
    }
}
