//! `forebay mount` and `forebay umount`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_fuse::mount::Ring;

use super::{seconds, seconds_or_none};
use crate::settings::Settings;

/// Shows a directory at another place, its files managed for whoever uses them there; or a store in persistent memory; or a pool's files.
///
/// A directory is for programs that the library cannot be loaded into: statically linked ones, Go's, those in containers. They read and write
/// by the session of the configuration, and share its files with programs under `forebay run`. Serves in the foreground until it is
/// unmounted, or until SIGTERM, SIGINT or SIGHUP; then everything that is open is handed to the devices. Where somebody still
/// uses it, nobody new finds it from then on, and it ends with the last file that is closed; a second signal ends it at once.
/// What has been written is in the session and outlives this process, however it ends.
///
/// A store (`forebay pmem create` makes one) needs no session. What has been written to it is durable when it has been
/// synced, or after --flush-interval at the latest.
///
/// A pool's files (`forebay serve`) are the same on all hosts that mount it, at once. pool:NAME is NAME.toml in ~/.config/forebay/pools, or else
/// in /etc/forebay/pools. What has been written outlives this host when it has been synced.
///
/// Exit codes: 0 unmounted, 1 it cannot be mounted or bytes could not be written, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay mount /data /mnt/data
  forebay mount --daemon /data /mnt/data
  forebay mount --daemon --allow-other -o ro,noexec /data /mnt/data
  forebay mount --daemon --flush-interval 100ms /dev/dax0.0 /mnt/store
  forebay mount --daemon pool:work /mnt/work
  forebay mount pool:./pool.toml /mnt/work
  docker run -v /mnt/data:/data ...          a container whose files are managed")]
pub struct Mount {
    /// The directory; the file or the device of a store in persistent memory; or pool:NAME, or pool:PATH with the path of its configuration
    #[arg(value_name = "DIR|STORE|pool:NAME", value_hint = clap::ValueHint::AnyPath)]
    pub source: PathBuf,
    /// Where it is to be seen: a directory outside of it
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    pub point: PathBuf,
    /// Serve it in the background: this command ends once it can be used, or says why it cannot
    #[arg(long, short)]
    pub daemon: bool,
    /// Nothing can be changed through it
    #[arg(long, short)]
    pub read_only: bool,
    /// Other users may use it as well, as the modes of files allow; others than root need the line user_allow_other in /etc/fuse.conf
    #[arg(long)]
    pub allow_other: bool,
    /// Options as mount(8) has them: ro, rw, allow_other, exec, noexec, suid, nosuid, dev, nodev
    #[arg(short = 'o', value_name = "OPTION,...", value_delimiter = ',')]
    pub options: Vec<String>,
    /// How long the kernel may believe what it knows of names, modes and lengths, where others change them beside the mount; 0 for
    /// not at all. By default 1 for a directory, and 0 for a pool. A store nobody changes beside its mount
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none)]
    pub believe: Option<f64>,
    /// Of a pool: the kernel keeps bytes of files as well, and what it knows of them. Whoever opens a file finds what was there when he did, and what
    /// other hosts write afterwards perhaps later: as over NFS
    #[arg(long)]
    pub cache: bool,
    /// Write the line that says that it can be used to this descriptor as well
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<u32>,
    /// How long a daemon that this command starts stays after the last program has left
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub linger: f64,
    /// Of a pool: answer collectors of metrics there, in Prometheus' text form, to everybody who asks
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<std::net::SocketAddr>,
    /// Whether the kernel sends requests by io_uring (Linux 6.14 and later, where that is switched on): auto, where that is faster; always, or the mount
    /// fails; never
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = rings())]
    pub ring: Ring,
    /// In a session of its own, without a terminal: how --daemon starts it
    #[arg(long, hide = true)]
    pub background: bool,
    /// Options of the session, where this command starts it.
    #[command(flatten)]
    pub settings: Settings,
}

/// Ends mounts of `forebay mount`.
///
/// What was closed is with the devices already. A mount whose process has died is taken away. One that is in use stays, unless
/// --lazy is given: then nobody new finds it, and it ends with the last file that is closed.
///
/// Exit codes: 0 all ended, 1 one was not, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay umount /mnt/data
  forebay umount --lazy /mnt/data")]
pub struct Umount {
    /// Where it is mounted
    #[arg(value_name = "MOUNTPOINT", required = true, value_hint = clap::ValueHint::DirPath)]
    pub points: Vec<PathBuf>,
    /// Also while it is in use
    #[arg(long, short)]
    pub lazy: bool,
}

fn rings() -> impl TypedValueParser<Value = Ring> {
    let names = PossibleValuesParser::new(Ring::ALL.map(Ring::name));
    names.map(|name| {
        let named = Ring::ALL.into_iter().find(|ring| ring.name() == name);
        named.unwrap_or_default()
    })
}
