//! What the configuration says of libfabric, and what a server says that came of it.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Config;
use crate::fabric::{Error, Provider};

/// By what a server lends its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Nothing.
    #[default]
    None,
    /// Sockets.
    Tcp,
    /// Shared memory of one host.
    Shm,
    /// InfiniBand, RoCE and iWARP.
    Verbs,
}

impl By {
    /// The provider, if it is one.
    pub fn provider(self) -> Option<Provider> {
        match self {
            By::None => None,
            By::Tcp => Some(Provider::Tcp),
            By::Shm => Some(Provider::Shm),
            By::Verbs => Some(Provider::Verbs),
        }
    }
}

impl FromStr for By {
    type Err = Error;

    fn from_str(name: &str) -> Result<By, Error> {
        match name {
            "none" => Ok(By::None),
            name => name.parse::<Provider>().map(By::from),
        }
    }
}

impl From<Provider> for By {
    fn from(provider: Provider) -> By {
        match provider {
            Provider::Tcp => By::Tcp,
            Provider::Shm => By::Shm,
            Provider::Verbs => By::Verbs,
        }
    }
}

/// Whether a server lends its blocks: by what, or why not, if it was to.
pub type Lends = Option<Result<Provider, Error>>;

impl Config {
    /// Whether clients read past servers what these lend.
    pub(super) fn passes(&self) -> bool {
        self.tls.is_none() || self.fabric_trusted
    }
}
