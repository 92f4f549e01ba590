//! The pools whose configurations lie where names lead to: whether they make sense, and who of what they name answers.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use forebay::memory::cgroup;
use forebay_pool::net::{Config, Etcd, directories, named};

use super::Check;
use crate::output::{self, bytes};

/// Who has not answered by then does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

const WHY: &str = "`pool:NAME` leads to it, for `forebay mount`, programs and servers";

/// All checks of this module.
pub fn all() -> Vec<Check> {
    let pools = named();
    if pools.is_empty() {
        let directories = directories();
        let all: Vec<String> = { directories.iter() }
            .map(|path| output::path(path))
            .collect();
        let found = format!("no configuration in {}", all.join(" or "));
        return vec![Check::ok("pool", WHY, found)];
    }
    let pools = pools.iter();
    pools.flat_map(|(name, path)| of_pool(name, path)).collect()
}

fn of_pool(name: &str, path: &Path) -> Vec<Check> {
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(why) => {
            let check = Check::ok("pool", WHY, why.to_string()).of(name);
            return vec![check.fail("mend it on all members alike; docs/pool.md has each key")];
        }
    };
    let mut checks = vec![shape(name, &config), servers(name, &config)];
    checks.extend(config.etcd.as_ref().map(|etcd| of_etcd(name, etcd)));
    checks
}

/// What it is, and whether a server here would have the memory that it says.
fn shape(name: &str, config: &Config) -> Check {
    let home = match &config.home {
        Some(home) => format!("home {}", output::path(home)),
        None => "no home".to_owned(),
    };
    let found = format!(
        "{} servers, {} copies, {home}",
        config.servers.len(),
        config.copies
    );
    let check = Check::ok("pool", WHY, found).of(name);
    let total = cgroup::available().total_bytes;
    match config.memory_mib.map(|mib| mib << 20) {
        Some(own) if own > total => check.warn(format!(
            "a server here would be killed before it has memory_mib, {}: this machine gives a process {}",
            bytes(own),
            bytes(total)
        )),
        _ => check,
    }
}

/// Whether there is somebody at each server's address.
fn servers(name: &str, config: &Config) -> Check {
    const WHY: &str =
        "a client needs all servers that are in the pool, and a pool begins when all of them serve";
    let dial = |address: SocketAddr| move || TcpStream::connect_timeout(&address, PATIENCE);
    let dialled: Vec<_> = { config.servers.iter() }
        .map(|address| (address, thread::spawn(dial(*address))))
        .collect();
    let failed = |result: thread::Result<io::Result<TcpStream>>| match result {
        Ok(result) => result.err(),
        Err(_) => Some(io::Error::other("it could not be dialled")),
    };
    let away: Vec<String> = { dialled.into_iter() }
        .filter_map(|(address, dialled)| Some(format!("{address}: {}", failed(dialled.join())?)))
        .collect();
    let count = config.servers.len();
    let found = format!("{} of {count} take connections", count - away.len());
    if away.is_empty() {
        return Check::ok("pool_servers", WHY, found).of(name);
    }
    let check = Check::ok("pool_servers", WHY, format!("{found}; {}", away.join("; ")));
    check.of(name).warn(
        "begin `forebay serve CONFIG --server N` on its host, and let its port through where a firewall is",
    )
}

/// Whether etcd answers.
fn of_etcd(name: &str, etcd: &Etcd) -> Check {
    const WHY: &str = "servers elect there who rules; without it no server comes in, and what runs stands still when the ruler's lease ends";
    let all = etcd.versions(PATIENCE);
    let count = all.len();
    let (there, away): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, said)| said.is_ok());
    let versions = there
        .iter()
        .map(|(endpoint, said)| format!("{endpoint} is {}", said.as_deref().unwrap_or_default()));
    // Errors name their endpoints.
    let errors = { away.iter() }.filter_map(|(_, said)| Some(said.as_ref().err()?.to_string()));
    let all: Vec<String> = versions.chain(errors).collect();
    let found = format!("{} of {count} answer; {}", there.len(), all.join("; "));
    let check = Check::ok("pool_etcd", WHY, found).of(name);
    match (there.len(), count) {
        (0, _) => check.warn(
            "start etcd, or mend [etcd] in the configuration; a host of clients alone need not reach it",
        ),
        (there, count) if there < count => {
            check.hint("those that answer are enough, if etcd itself has a majority")
        }
        _ => check,
    }
}
