//! `forebay mount`: serves a directory through the session, a store, or the files of a pool.
//!
//! Life: the places are looked at, the session joined, then the directory is mounted, and only then does this command say so. It serves until
//! somebody unmounts or a signal comes. The keeper is another process: should this one be killed, the session has what it has acknowledged.
//! A store and a pool have neither session nor keeper.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::sys::file::inherited_for_writing;
use forebay::{Config, Session};
use forebay_fuse::ending::Teller;
use forebay_fuse::mount::{Kind, Mounted, Options, Places};
use forebay_fuse::points::NotEnded;
use forebay_pool::files::Files;
use forebay_pool::net::Ended;

use super::run::environment::Exported;
use super::run::keeper;
use crate::arguments::Mount;
use crate::failure::{DONE, FAILED, Failure};
use crate::{itself, limits, metrics, output, signals};

/// How often it is looked whether it was unmounted, and whether there is a keeper.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// How long a pool is waited for, whose servers may be starting.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// Serves until the end of the mount.
pub fn run(arguments: Mount) -> Result<u8, Failure> {
    let options = options(&arguments)?;
    let pool = { arguments.source.to_str() }.and_then(|source| source.strip_prefix("pool:"));
    let places = match pool {
        Some(_) => Places::of_pool(&arguments.source, &arguments.point),
        None => Places::of(&arguments.source, &arguments.point),
    };
    let places = places.map_err(Failure::Failed)?;
    let pool = pool.map(forebay_pool::net::Config::of_name).transpose();
    let pool = pool.map_err(|wrong| Failure::Usage(wrong.to_string()))?;
    if pool.is_none() {
        has_nothing_of_pools(&arguments)?;
    }
    let config = crate::settings::load_to_join(arguments.settings.options()?)?;
    if arguments.daemon {
        return in_background(&arguments, &places, &config);
    }
    let ready = arguments.ready_fd.map(inherited_for_writing).transpose();
    let ready = ready.map_err(|error| Failure::Usage(format!("--ready-fd: {error}")))?;
    if arguments.background {
        // It fails only for the leader of a process group, which has what it would give.
        let _ = rustix::process::setsid();
    }
    limits::raise();
    let mut signals = signals::ending()?;
    let mut kept = match places.kind {
        Kind::Store | Kind::Pool => {
            // A session's keeper is not to inherit it.
            options.prepare(places.kind);
            None
        }
        Kind::Directory => Some(Kept::join(&arguments, &config).map_err(Failure::Failed)?),
    };
    let mounted = match (&kept, &pool) {
        (Some(kept), _) => Mounted::begin(kept.session.clone(), &places, &options),
        (None, Some(pool)) => {
            let files = join(pool, &places).map_err(Failure::Failed)?;
            if let Some(address) = arguments.metrics {
                let counting = files.pool().counting();
                metrics::answer(address, move || counting.counts().metrics())?;
            }
            Mounted::begin_pool(files, &places, &options)
        }
        (None, None) => Mounted::begin_store(&places, &options, config.flush_interval),
    };
    let mounted = mounted.map_err(Failure::Failed)?;
    let mut teller = Teller::begin(&places.point);
    announce(&places, &config.session, ready).inspect_err(|_| abandon(&mounted, teller.take()))?;
    let mut told = 0;
    while !mounted.is_over() {
        if let Some(teller) = &mut teller {
            teller.look();
        }
        if signals.pending().next().is_some() {
            told += 1;
            if told > 1 {
                return Ok(end_at_once(&mounted, &places.point));
            }
            unmount(&mounted, &places.point);
            mounted.begin_flush();
        }
        if let Some(Kept { session, care }) = &mut kept {
            care.look(session);
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    finish(mounted, teller)
}

/// Writes what is left, and tells the process that waits for that.
fn finish(mounted: Mounted, mut teller: Option<Teller>) -> Result<u8, Failure> {
    if let Some(teller) = &mut teller {
        teller.tell_over();
    }
    let ended = match mounted.finish() {
        Ok(0) => Ok(()),
        Ok(failed) => Err(not_written(failed)),
        Err(why) => Err(why),
    };
    if let Some(teller) = teller {
        teller.tell(ended.as_ref().err().map(String::as_str));
    }
    ended.map(|()| DONE).map_err(Failure::Failed)
}

fn join(pool: &forebay_pool::net::Config, places: &Places) -> Result<Files, String> {
    Files::join(pool, JOIN_PATIENCE).map_err(|why| {
        let source = output::path(&places.source);
        match why {
            Ended::NoAnswer => format!(
                "{source}: {why}; are all its servers running (`forebay serve`), and of this version?"
            ),
            why => format!("{source}: {why}"),
        }
    })
}

/// What is mounted is no pool, so that nothing is asked for that only a pool has.
fn has_nothing_of_pools(arguments: &Mount) -> Result<(), Failure> {
    let why = if arguments.metrics.is_some() {
        "--metrics: only a pool's mount has any; see `forebay stat` for a session"
    } else if arguments.cache {
        "--cache: only for a pool"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(why.to_string()))
}

/// The session of a directory's mount.
struct Kept {
    session: Session,
    care: keeper::Care,
}

impl Kept {
    fn join(arguments: &Mount, config: &Config) -> Result<Self, String> {
        let exported = Exported::of(&arguments.settings.given());
        Ok(Kept {
            session: keeper::join(config, &exported, arguments.linger)?,
            care: keeper::Care::new(config, exported, arguments.linger, None),
        })
    }
}

fn options(arguments: &Mount) -> Result<Options, Failure> {
    let is_pool = arguments
        .source
        .as_os_str()
        .as_bytes()
        .starts_with(b"pool:");
    // What other hosts do to a pool is to be seen at once.
    let believed = arguments.believe.unwrap_or(if is_pool { 0.0 } else { 1.0 });
    let mut options = Options {
        believed: Duration::from_secs_f64(believed),
        cache: arguments.cache,
        ring: arguments.ring,
        ..Options::default()
    };
    for word in &arguments.options {
        options
            .set(word)
            .map_err(|why| Failure::Usage(format!("-o: {why}")))?;
    }
    options.read_only |= arguments.read_only;
    options.allow_other |= arguments.allow_other;
    Ok(options)
}

/// Starts the same command in the background, and waits until it serves.
fn in_background(arguments: &Mount, places: &Places, config: &Config) -> Result<u8, Failure> {
    let mut command = itself::command();
    command
        .args(["mount", "--background", "--ready-fd", "1", "--linger"])
        .arg(arguments.linger.to_string())
        .args(["--ring", arguments.ring.name()]);
    if let Some(address) = arguments.metrics {
        command.arg("--metrics").arg(address.to_string());
    }
    if let Some(believe) = arguments.believe {
        command.arg("--believe").arg(believe.to_string());
    }
    let flags = [
        (arguments.read_only, "--read-only"),
        (arguments.allow_other, "--allow-other"),
        (arguments.cache, "--cache"),
    ];
    command.args(flags.iter().filter(|(yes, _)| *yes).map(|(_, flag)| flag));
    if !arguments.options.is_empty() {
        command.arg("-o").arg(arguments.options.join(","));
    }
    Exported::of(&arguments.settings.given()).apply(&mut command);
    let source = for_daemon(&places.source);
    command.arg("--").arg(source).arg(&places.point);
    keeper::launch(command, config).map_err(Failure::Failed)?;
    Ok(DONE)
}

/// A pool's configuration by a path that means the same in another directory: a daemon has none of its own.
fn for_daemon(source: &Path) -> PathBuf {
    let pool = { source.to_str() }.and_then(|source| source.strip_prefix("pool:"));
    let path = pool.filter(|name| name.contains('/'));
    let whole = path.and_then(|path| std::path::absolute(path).ok());
    match whole {
        Some(path) => PathBuf::from(format!("pool:{}", path.display())),
        None => source.to_owned(),
    }
}

fn announce(
    places: &Places,
    session: &str,
    ready: Option<std::os::fd::OwnedFd>,
) -> Result<(), Failure> {
    let (source, point) = (output::path(&places.source), output::path(&places.point));
    let by = match places.kind {
        Kind::Store => "a store".to_owned(),
        Kind::Pool => "a pool".to_owned(),
        Kind::Directory => format!("session {session}"),
    };
    let line = format!("{source} mounted on {point}, {by}");
    output::note(&line);
    let Some(ready) = ready else {
        return Ok(());
    };
    let written = writeln!(std::fs::File::from(ready), "forebay: {line}");
    written.map_err(|error| Failure::Failed(format!("--ready-fd: {error}")))
}

/// A process that waits to be told of a mount, and cannot be, takes it for not mounted.
fn abandon(mounted: &Mounted, teller: Option<Teller>) {
    // First: the next mount may have the device's number, and must not be told of this one's end.
    drop(teller);
    let _ = mounted.unmount(true);
    let _ = mounted.flush();
}

/// Says how many files are open, where that is known.
fn open_files(mounted: &Mounted) -> String {
    match mounted.open_files() {
        Some(1) => "1 file open".to_owned(),
        Some(number) => format!("{number} files open"),
        None => "files open".to_owned(),
    }
}

/// The first signal: nobody new finds it.
fn unmount(mounted: &Mounted, point: &Path) {
    let point = output::path(point);
    let ended = match mounted.unmount(false) {
        Err(NotEnded::Busy) => {
            output::note(format_args!(
                "{point} is in use, {}: nobody new finds it, and it ends when they are closed; another signal ends it now",
                open_files(mounted)
            ));
            mounted.unmount(true)
        }
        ended => ended,
    };
    match ended {
        Ok(()) => {}
        Err(NotEnded::Busy) => output::note(format_args!("{point} is in use, and goes on")),
        Err(NotEnded::Failed(why)) => {
            output::note(format_args!(
                "{point} cannot be unmounted, and goes on: {why}"
            ));
        }
    }
}

/// The second: a program that still uses it finds it broken. Nothing that was acknowledged is lost by it, and a store is synced.
fn end_at_once(mounted: &Mounted, point: &Path) -> u8 {
    let open = open_files(mounted);
    let failed = mounted.flush();
    output::note(format_args!("{} ended with {open}", output::path(point)));
    match failed {
        Ok(0) => FAILED,
        Ok(failed) => {
            output::note(not_written(failed));
            FAILED
        }
        Err(why) => {
            output::note(why);
            FAILED
        }
    }
}

fn not_written(failed: usize) -> String {
    format!(
        "{failed} files could not be written. A session has their bytes and tries again (`forebay stat` says why); what was written to a pool's since their last sync is lost"
    )
}
