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
        let own = *config.memory_mib.get_or_insert_with(half_of_memory);
        output::note(format_args!(
            "it takes {own} MiB of blocks (memory_mib); when they are there clients make no new ones (ENOSPC)"
        ));
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

/// Half of what this process may have of the machine's memory, in MiB. What clients owe a full server comes on top, and the exchange with others.
fn half_of_memory() -> u64 {
    (cgroup::available().total_bytes / (2 << 20)).max(1)
}

/// Says what has changed, for whoever reads the log.
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
