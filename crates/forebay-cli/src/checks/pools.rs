//! The pools whose configurations lie where names lead to: whether they make sense, and who of what they name answers.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay::memory::cgroup;
use forebay_pool::net::{Config, Etcd, directories, named};

use super::Check;
use crate::output::{self, bytes};

/// A host that has not taken a connection by then, or says nothing for so long, does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The same of an answer as a whole, looking up its host's name and all.
const WHOLE: Duration = Duration::from_secs(3);

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
        // 0: nothing could be read.
        Some(own) if own > total && total > 0 => check.warn(format!(
            "a server here would be killed before it has memory_mib, {}: this machine gives a process {}",
            bytes(own),
            bytes(total)
        )),
        _ => check,
    }
}

/// Asks all at once, each on a thread of its own. A host that has not answered when [`WHOLE`] is over is left alone.
fn answers<Q, A>(all: Vec<(String, Q)>, ask: fn(Q) -> io::Result<A>) -> Vec<Result<A, String>>
where
    Q: Send + 'static,
    A: Send + 'static,
{
    let (told, tells) = mpsc::channel();
    let begin = |(at, (name, asked)): (usize, (String, Q))| {
        let told = told.clone();
        let one = move || {
            // Nobody listens any more if it is late.
            let _ = told.send((at, ask(asked)));
        };
        // Until it has answered.
        Err(match thread::Builder::new().spawn(one) {
            Ok(_) => format!("{name}: it does not answer within {WHOLE:?}"),
            Err(why) => format!("{name}: no thread to ask it: {why}"),
        })
    };
    let mut found: Vec<_> = all.into_iter().enumerate().map(begin).collect();
    drop(told);
    let end = Instant::now() + WHOLE;
    while let Ok((at, answer)) = tells.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found[at] = answer.map_err(|why| why.to_string());
    }
    found
}

/// Whether there is somebody at each server's address.
fn servers(name: &str, config: &Config) -> Check {
    const WHY: &str =
        "a client needs all servers that are in the pool, and a pool begins when all of them serve";
    let dial = |address: SocketAddr| {
        let dialled = TcpStream::connect_timeout(&address, PATIENCE);
        dialled.map_err(|why| io::Error::other(format!("{address}: {why}")))
    };
    let all = config.servers.iter();
    let all = all.map(|address| (address.to_string(), *address)).collect();
    let away: Vec<String> = { answers(all, dial).into_iter() }
        .filter_map(Result::err)
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
    // Errors name their endpoints.
    let all = etcd.endpoints.iter().cloned().zip(etcd.each()).collect();
    let said = answers(all, |etcd| etcd.version(PATIENCE));
    let count = said.len();
    let (there, away): (Vec<_>, Vec<_>) = { etcd.endpoints.iter().zip(said) }
        .map(|(endpoint, said)| said.map(|version| format!("{endpoint} is {version}")))
        .partition(Result::is_ok);
    let all: Vec<String> = { there.iter().chain(&away) }
        .map(|said| said.clone().unwrap_or_else(|why| why))
        .collect();
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
