//! The command line as a definition: help, completions and manual pages are made from it.

mod mount;
mod plain;
pub mod pmem;

pub use mount::{Mount, Umount};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::settings::{Settings, Whose};

/// Buffered I/O for fast storage, in user space.
///
/// Exit codes: 0 done, 1 something failed, 2 the command line or the configuration is wrong, 3 (recover) some bytes are
/// kept aside.
#[derive(Parser, Debug)]
#[command(
    name = "forebay",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  forebay run -- make -j8       run a program, its files managed
  forebay mount /data /mnt/data a directory for programs of all kinds, managed
  forebay daemon --mem 4GiB     keep a session until it is told to stop
  forebay stat --watch 1        its counters, every second
  forebay doctor /data          what this machine and this directory can do
  forebay recover --all         save what killed sessions have left"
)]
pub struct Cli {
    /// No colours; the variable NO_COLOR does the same
    #[arg(long, global = true)]
    pub no_color: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program with its files managed
    Run(Run),
    /// Keep a session in the foreground until SIGTERM or SIGINT
    Daemon(Daemon),
    /// Show a directory through the engine, for programs that cannot be run by `forebay run`; or a store in persistent memory
    Mount(Mount),
    /// End a mount, also one whose process has died
    Umount(Umount),
    /// Show the counters of sessions
    Stat(Stat),
    /// Watch sessions in a terminal
    Top(Top),
    /// Save what a killed session has left in its arena
    Recover(Recover),
    /// Drop what is clean of files from memory: from sessions' and from the kernel's page cache
    Evict(Evict),
    /// Make, check and describe stores in persistent memory
    Pmem(pmem::Pmem),
    /// Lend memory to a pool of this host's processes, until SIGTERM or SIGINT
    Serve(Serve),
    /// Say what Forebay finds on this machine, what it misses, and what to do about it
    Doctor(Doctor),
    /// Show the effective configuration and where each value came from
    Config(Config),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page, or write all of them to a directory
    Man(Man),
    /// Stand guard where a daemon is stopped or has died: its stand-in starts it
    #[command(hide = true)]
    Guard(Guard),
}

/// Stands guard in a session whose daemon is stopped or has died, until one answers.
///
/// The daemon's stand-in starts it; there is no use for it at a terminal.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay guard 7 4711 /dev/shm/forebay-0/default.arena")]
pub struct Guard {
    /// The descriptor of the daemon's listener.
    pub listener: u32,
    /// The daemon's process.
    pub keeper: u32,
    /// The session's arena.
    pub arena: PathBuf,
}

/// How long a daemon stays that `forebay run` has started.
const LINGER_SECONDS: f64 = 60.0;

/// Runs a program, and all that it starts, with its files managed.
///
/// Joins the session of the configuration, or starts it: then a daemon keeps it, for as long as anybody is in it and a
/// little longer. When the program has ended, what the session owes is handed to the device before this command ends, so
/// that it counts in its time; what could not be is named. Programs that the library cannot be loaded into are run plainly,
/// with a warning. Within `forebay run` the command joins the same session.
///
/// Exit codes: the program's own, and a signal that ended it ends this command too; 1 instead of 0 when bytes could not
/// be brought to their files, 125 what --require asks for cannot be had, 126 the program cannot be executed, 127 there is no
/// such program, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay run -- make -j8
  forebay run --dir /scratch --mem 4GiB -- python train.py
  forebay run --report -- tar xf sources.tar
  forebay run --report=report.json --json -- ./simulate")]
pub struct Run {
    /// Manage only files below this directory; may be given again
    #[arg(long, value_name = "DIR", conflicts_with = "dirs", value_hint = clap::ValueHint::DirPath)]
    pub dir: Vec<PathBuf>,
    /// Say at the end what was done: to the standard error, or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", value_hint = clap::ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// The report as JSON; implies --report
    #[arg(long)]
    pub json: bool,
    /// Fail where the library or the session cannot be had, instead of running the program plainly
    #[arg(long)]
    pub require: bool,
    /// How long a daemon that this command starts stays after the last program has left
    #[arg(long, value_name = "SECONDS", default_value_t = LINGER_SECONDS, value_parser = seconds)]
    pub linger: f64,
    /// Options of the session, where this command starts it, and of this program.
    #[command(flatten)]
    pub settings: Settings,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Keeps a session until SIGTERM or SIGINT.
///
/// Starts the session or joins it, recovers first what a dead one of that name has left, and keeps it in the
/// foreground. On SIGTERM, SIGINT or SIGHUP everything that is owed is flushed and synced; the arena is removed unless
/// another process is in the session. A second signal leaves at once: what is owed then waits in the arena for
/// `forebay recover`.
///
/// Exit codes: 0 nothing is owed, 1 something still is or the session cannot be had, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay daemon
  forebay daemon --background
  forebay daemon --session build --mem 25% --flush-interval 1s
  forebay daemon --routes '/scratch/**=direct;*.log=kernel'")]
pub struct Daemon {
    /// Write the line that says that the session is ready to this descriptor as well
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<u32>,
    /// Leave when nobody else has been in the session for so many seconds and nothing is owed, or at once if another
    /// process keeps it
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub until_idle: Option<f64>,
    /// Touch all of the session's memory before saying that it is ready, so that nobody waits for that later; given back when
    /// the session is idle
    #[arg(long)]
    pub warm: bool,
    /// Keep it in the background: this command ends once the session can be used, or says why it cannot
    #[arg(long)]
    pub background: bool,
    /// Options of the session.
    #[command(flatten)]
    pub settings: Settings,
}

/// Lends memory to a pool, as one of its servers.
///
/// The file lists the servers, and the pool begins when all of them serve. The first one rules: it keeps the register of members, and with it the pool
/// ends. With the table `etcd` any of them rules, as they elect it there, and the pool outlives each of them. A server whose address no other file
/// has is added to a pool that has begun. Servers hand on their blocks at
/// SIGTERM, and then go; a second signal ends them at once. Addresses of other hosts need the table `tls`: without it
/// nobody proves who he is, and only loopback addresses are taken. Blocks outlive their servers if the file names a home, a directory that all
/// servers see.
///
/// Without a home a server takes blocks up to what memory_mib says, or by default up to half of the memory that it finds, of the machine or its cgroup.
/// It takes less where a server that goes hands blocks on to the others (a quarter with two servers and one copy), and where servers share a host.
/// Then it is full: new blocks are refused with ENOSPC, and what is there can be read, written over and removed.
///
/// Exit codes: 0 it has handed everything on, 1 the pool refused it or gave it up, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay serve pool.toml --server 1
  forebay serve pool.toml --server 2

A file for two servers, each block on both:
  servers = [\"127.0.0.1:7411\", \"127.0.0.1:7412\"]
  copies = 2
  block_bytes = 65536
  term_ms = 10000
  memory_mib = 4096

What makes the pool outlive each server, behind that:
  [etcd]
  endpoints = [\"http://127.0.0.1:2379\"]
  prefix = \"/forebay/work\"")]
pub struct Serve {
    /// The pool's configuration, TOML
    #[arg(value_name = "CONFIG", value_hint = clap::ValueHint::FilePath)]
    pub config: PathBuf,
    /// Which server of the list this is; the first is 1
    #[arg(long, value_name = "N")]
    pub server: usize,
    /// Answer collectors of metrics there, in Prometheus' text form, to everybody who asks
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<std::net::SocketAddr>,
}

/// Shows the counters of all sessions of this user, or of one.
///
/// Looks from outside: no session is joined, changed or kept waiting. A dead session is said to be dead, and what it
/// owes.
///
/// Exit codes: 0 shown, 1 there is no such session, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay stat
  forebay stat --session build --watch 0.5
  forebay stat --streams
  forebay stat --json | jq '.sessions[].stats.dirty_bytes'")]
pub struct Stat {
    /// Which sessions.
    #[command(flatten)]
    pub whose: Whose,
    /// JSON; with --watch one object a line
    #[arg(long)]
    pub json: bool,
    /// Also the streams: where each begins and ends, what of it may be dirty, for how long it has its place, how it is used
    #[arg(long)]
    pub streams: bool,
    /// Again every so many seconds, until the reader goes away
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "streams")]
    pub watch: Option<f64>,
}

/// Watches sessions in a terminal: memory, what is owed, how fast programs and devices are, and the files.
///
/// Keys: q ends it, up and down choose a session, v shows its streams or its files, s orders the files otherwise, p stands still, + and - look less or more
/// often. It looks from outside, as `stat` does, and takes no part in a session.
///
/// Exit codes: 0 ended by a key, 1 there is no such session, 2 usage, or no terminal.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay top
  forebay top --session build --interval 0.25")]
pub struct Top {
    /// Which sessions.
    #[command(flatten)]
    pub whose: Whose,
    /// Seconds between looks
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    pub interval: f64,
}

/// Saves what a killed session has left in its arena.
///
/// Each file that is owed something is found by its path, shown to be the same one and unchanged by others, and written
/// and synced. Bytes whose file is gone or was changed by another program are never written over it: they are kept
/// aside in a file of their own, with a note of where they belong. The arena is removed when nothing in it is needed any
/// more; until then recovery can be repeated. Without an argument the session is the configured one.
///
/// Exit codes: 0 all saved or nothing to do, 3 some bytes are kept aside, 1 something failed and is still in the arena,
/// 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay recover
  forebay recover --all --json
  forebay recover --session build --kept-dir /var/tmp/kept
  forebay recover /dev/shm/forebay-1000/build.arena")]
pub struct Recover {
    /// The arena's file
    #[arg(value_name = "ARENA-PATH", conflicts_with_all = ["session", "all"], value_hint = clap::ValueHint::FilePath)]
    pub arena: Option<PathBuf>,
    /// Which session.
    #[command(flatten)]
    pub whose: Whose,
    /// Every dead session of this user
    #[arg(long, conflicts_with = "session")]
    pub all: bool,
    /// Where to keep bytes that cannot be written back
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub kept_dir: Option<PathBuf>,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// Drops what is clean of these files from memory.
///
/// From the arenas of this user's living sessions, and from the kernel's page cache, which is written back first.
/// Nothing that a session holds dirty is flushed: the answer says how much stayed. No privilege is needed.
///
/// Exit codes: 0 done, 1 some files could not be looked at, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay evict data.bin
  forebay evict -r /data/set
  forebay evict --json data.bin | jq .summary.dirty_bytes")]
pub struct Evict {
    /// Files, or with -r directories
    #[arg(value_name = "PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Directories with everything in them; links are not followed, other file systems are
    #[arg(long, short)]
    pub recursive: bool,
    /// Which sessions.
    #[command(flatten)]
    pub whose: Whose,
    /// JSON, with every file
    #[arg(long)]
    pub json: bool,
}

/// Says what Forebay finds on this machine, what it misses, and what to do about it.
///
/// Each check has a status, what was found, why it matters, and a remedy. A directory is probed with a temporary file;
/// without one the current directory is.
///
/// Exit codes: 0 no check failed, 1 one did, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay doctor
  forebay doctor /data /scratch
  forebay doctor --json | jq '.checks[] | select(.status != \"ok\")'")]
pub struct Doctor {
    /// Directories whose files are to be managed
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directories: Vec<PathBuf>,
    /// JSON
    #[arg(long)]
    pub json: bool,
    /// Options of the session that would be started.
    #[command(flatten)]
    pub settings: Settings,
}

/// Shows the effective configuration and where each value came from.
///
/// The file is the one that $FOREBAY_CONFIG names, else the first of $XDG_CONFIG_HOME/forebay/config.toml,
/// ~/.config/forebay/config.toml and /etc/forebay.toml. Environment variables FOREBAY_KEY are stronger, options
/// strongest.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay config
  FOREBAY_MEMORY=1GiB forebay config --json
  forebay config --mem 25%")]
pub struct Config {
    /// JSON
    #[arg(long)]
    pub json: bool,
    /// Options to lay on top.
    #[command(flatten)]
    pub settings: Settings,
}

/// Prints completions for a shell.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish
  forebay completions zsh > ~/.zfunc/_forebay")]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Prints the manual page, or writes one for each command to a directory.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay man | man -l -
  forebay man ~/.local/share/man/man1")]
pub struct Man {
    /// Where to write forebay.1, forebay-daemon.1 and the others
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: Option<PathBuf>,
}

/// A positive number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.01 to 86400, such as 1 or 0.5".to_owned()),
    }
}

/// As [`seconds`], or 0.
fn seconds_or_none(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { seconds(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| help.contains("Examples:")),
                "{}",
                command.get_name()
            );
        }
    }

    #[test]
    fn seconds_are_positive_numbers() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "1s", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
