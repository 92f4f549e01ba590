//! `forebay serve`: a server of a pool.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use forebay::memory::cgroup;
use forebay_pool::home::is_open;
use forebay_pool::net::{Config, Ended, Serving, Status};

use crate::arguments::Serve;
use crate::failure::{DONE, Failure};
use crate::{limits, metrics, output, signals};

/// How often it is looked for signals, and whether the server has ended.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Serves until a signal.
pub fn run(arguments: &Serve) -> Result<u8, Failure> {
    let path = output::path(&arguments.config);
    let mut config =
        Config::load(&arguments.config).map_err(|wrong| Failure::Usage(wrong.to_string()))?;
    let number = arguments.server;
    let count = config.servers.len();
    if !(1..=count).contains(&number) {
        let why = format!("--server: {path} has the servers 1 to {count}");
        return Err(Failure::Usage(why));
    }
    if config.home.is_none() {
        bound(&mut config, number);
    }
    limits::raise();
    let mut signals = signals::ending()?;
    let failed = |why: Ended| Failure::Failed(why.to_string());
    let told = Arc::new(Mutex::new(Status::default()));
    // Before it serves: a pool is not to gain and lose a server for an address that cannot be had.
    if let Some(address) = arguments.metrics {
        let told = Arc::clone(&told);
        metrics::answer(address, move || {
            told.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .metrics()
        })?;
    }
    let serving = Serving::begin(&config, number - 1).map_err(failed)?;
    let address = config.servers[number - 1];
    output::note(format_args!(
        "server {number} of {count} listens on {address}"
    ));
    let mut home = config.home.as_deref();
    while !serving.is_over() {
        let status = serving.status();
        // What is no pool's home, or is another user's, is to stay as it is.
        if status.is_active
            && let Some(home) = home.take().filter(|home| is_open(home))
        {
            let home = output::path(home);
            output::note(format_args!(
                "others may enter the pool's home {home}, and see its files by their numbers; chmod 700 keeps them out"
            ));
        }
        tell(
            &mut told.lock().unwrap_or_else(PoisonError::into_inner),
            status,
        );
        if signals.pending().next().is_some() {
            serving.stop();
        }
        thread::sleep(LOOK_PAUSE);
    }
    let status = serving.status();
    if let Some((files, bytes)) = status.dropped {
        output::note(format_args!(
            "it ends with blocks of {files} files in its memory, {bytes} bytes: what no other server has is lost"
        ));
    }
    serving.wait().map_err(failed)?;
    Ok(DONE)
}

/// Sets the limit of blocks, if the configuration says none, and tells it.
fn bound(config: &mut Config, number: usize) {
    if config.memory_mib.is_none() {
        config.memory_mib = share_of_memory(cgroup::available().total_bytes, config, number);
    }
    match config.memory_mib {
        Some(own) => output::note(format_args!(
            "it takes {own} MiB of blocks (memory_mib); when they are there clients make no new ones (ENOSPC)"
        )),
        None => output::note(
            "how much memory there is cannot be read, so it takes blocks without limit; set memory_mib",
        ),
    }
}

/// How many MiB of blocks a server takes of the memory that its process may have; `None` if that is not known (0).
///
/// When a server goes the others take what it had alone: of `n` full servers each of the rest then has `n / (n - 1)` of its limit, and that is half of the
/// memory. With a copy at each server nothing is handed on. The other half is for what clients owe, and for all else. The servers at one address share it.
fn share_of_memory(total_bytes: u64, config: &Config, number: usize) -> Option<u64> {
    let all = &config.servers;
    let own = all[number - 1].ip();
    let here = all.iter().filter(|server| server.ip() == own).count() as u64;
    let count = all.len() as u64;
    let is_handed_on = config.copies < all.len();
    let (part, of) = if is_handed_on {
        (count - 1, count)
    } else {
        (1, 1)
    };
    let mib = u128::from(total_bytes >> 20) * u128::from(part) / u128::from(2 * of * here);
    (total_bytes > 0).then(|| (mib as u64).clamp(1, 1 << 30))
}

/// Says what has changed, for readers of the log.
fn tell(before: &mut Status, now: Status) {
    let epoch = |status: &Status| (status.epoch, status.is_active);
    if epoch(before) != epoch(&now) && now.is_active {
        output::note(format_args!(
            "epoch {}: {} servers, {} clients",
            now.epoch, now.servers, now.clients
        ));
    }
    match (&before.trouble, &now.trouble) {
        (None, Some(why)) => output::note(format_args!(
            "the home fails, and requests wait until it works, but for those of damaged blocks: {why}"
        )),
        (Some(_), None) => output::note("the home works again"),
        _ => {}
    }
    match (before.is_full, now.is_full) {
        (false, true) => output::note(format_args!(
            "its memory is full, with {} blocks of {} bytes: clients make no new ones (ENOSPC) until files are removed or cut; memory_mib in the configuration says how much it takes",
            now.blocks, now.bytes
        )),
        (true, false) => output::note("its memory has room for new blocks again"),
        _ => {}
    }
    if now.rules && !before.rules {
        output::note("it keeps the register of the pool's members");
    }
    match (&before.refusal, &now.refusal) {
        (None, Some(why)) => {
            output::note(format_args!("{why}; it goes on without, and dials again"))
        }
        (Some(_), None) => output::note("the other servers that can be reached let it in again"),
        _ => {}
    }
    match (&before.etcd_trouble, &now.etcd_trouble) {
        (None, Some(why)) => output::note(format_args!("etcd: {why}")),
        (Some(_), None) => output::note("etcd answers again"),
        _ => {}
    }
    *before = now;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(hosts: &[u8], copies: usize, total_bytes: u64) -> Option<u64> {
        let server = |(port, host): (usize, &u8)| format!("127.0.0.{host}:{}", 7000 + port);
        let servers: Vec<String> = hosts.iter().enumerate().map(server).collect();
        let text = format!("servers = {servers:?}\ncopies = {copies}");
        let config = Config::parse(&text).expect("it makes sense");
        share_of_memory(total_bytes, &config, 1)
    }

    #[test]
    fn what_one_server_hands_on_fits_into_half_of_the_others_memory() {
        let total = 24_000 << 20;
        for (hosts, copies, mib) in [
            (&[1][..], 1, 12_000),
            (&[1, 2], 2, 12_000),
            (&[1, 2], 1, 6_000),
            (&[1, 2, 3], 1, 8_000),
            (&[1, 2, 3], 2, 8_000),
            (&[1, 2, 3, 4], 2, 9_000),
            (&[1, 1], 2, 6_000),
            (&[1, 1], 1, 3_000),
            (&[1, 1, 2, 2], 2, 4_500),
        ] {
            assert_eq!(share(hosts, copies, total), Some(mib), "{hosts:?} {copies}");
        }
    }

    #[test]
    fn memory_that_nobody_knows_is_no_limit() {
        assert_eq!(share(&[1, 2], 1, 0), None);
        assert_eq!(share(&[1, 2], 1, 1), Some(1));
        assert_eq!(share(&[1], 1, u64::MAX), Some(1 << 30));
    }
}
