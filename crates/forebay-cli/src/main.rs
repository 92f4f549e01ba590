//! `forebay`: the command line. Parses, runs one command, turns its outcome into an exit code.
//!
//! A command is one file of [`commands`]; it gets its arguments and an [`output::Output`], and answers with an exit
//! code or a [`failure::Failure`] that names the remedy. What is known about the machine is asked by [`checks`].
//!
//! Short commands are run by `forebay run` by the thousand, so its start is short: the C library calls [`main`] itself
//! (what the standard library does before, [`inherited`] does in its place, but for the guard of the stack: for that
//! `/proc/self/maps` is read), and libraries that hardly any command needs are loaded when one does ([`maths`],
//! [`unwind`]).
#![cfg_attr(not(test), no_main)]

mod arguments;
mod checks;
mod commands;
mod failure;
mod itself;
mod limits;
mod maths;
mod metrics;
mod output;
mod sessions;
mod settings;
mod signals;
#[path = "../../forebay-preload/src/unwind.rs"]
mod unwind;

use std::ffi::OsString;

use clap::{Args, ColorChoice, CommandFactory, FromArgMatches};

use arguments::{Cli, Command, Run};
use failure::{Failure, USAGE};
use forebay::keeper::relief;
use forebay::sys::inherited;
use output::Output;

/// The exit code of the standard library's after a panic.
const PANICKED: u8 = 101;

/// Called by the C library, in place of the standard library's own. A panic ends the process with that one's code.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main() -> i32 {
    inherited::begin();
    let code = std::panic::catch_unwind(command).unwrap_or(PANICKED);
    // What was printed is written.
    std::process::exit(code.into())
}

/// Runs the command that was given, and returns the exit code.
fn command() -> u8 {
    commands::run::leave_library();
    relief::is_run_by(&["forebay", "guard"]);
    let plain = output::wants_no_color(std::env::args_os().skip(1));
    let color = if plain {
        ColorChoice::Never
    } else {
        ColorChoice::Auto
    };
    let all = || {
        let command = Cli::command().color(color);
        let matches = command.try_get_matches()?;
        Cli::from_arg_matches(&matches)
    };
    let parsed = run_alone().map_or_else(all, Ok);
    let cli = match parsed {
        Ok(cli) => cli,
        Err(message) => {
            // Help and version go to the standard output and are a success. A reader that closed it does not want them.
            let _ = message.print();
            return if message.use_stderr() { USAGE } else { 0 };
        }
    };
    let mut output = Output::new(plain);
    let outcome = run(cli.command, &mut output);
    let written = output.finish();
    match outcome.and_then(|code| written.map(|()| code)) {
        Ok(code) => code,
        Err(failure) => {
            output::note(&failure);
            failure.exit_code()
        }
    }
}

/// The command line if it is one of a command that somebody waits for, and nothing is wrong with it. The options of all other commands cost
/// more than the rest of that command; help and complaints are made with them. Nor are its own made where none is given.
fn run_alone() -> Option<Cli> {
    let mut words = std::env::args_os().skip(1);
    let command = match words.next()?.to_str()? {
        "run" => {
            let words: Vec<_> = words.collect();
            Command::Run(Run::plain(&words).or_else(|| alone(words.into_iter()))?)
        }
        "guard" => Command::Guard(alone(words)?),
        _ => return None,
    };
    Some(Cli {
        no_color: false,
        command,
    })
}

fn alone<T: Args>(words: impl Iterator<Item = OsString>) -> Option<T> {
    let command = T::augment_args(clap::Command::new("forebay").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(words).ok()?).ok()
}

fn run(command: Command, output: &mut Output) -> Result<u8, Failure> {
    match command {
        Command::Run(arguments) => commands::run::run(arguments),
        Command::Daemon(arguments) => commands::daemon::run(arguments),
        Command::Mount(arguments) => commands::mount::run(arguments),
        Command::Serve(arguments) => commands::serve::run(&arguments),
        Command::Umount(arguments) => commands::umount::run(&arguments),
        Command::Stat(arguments) => commands::stat::run(&arguments, output),
        Command::Top(arguments) => commands::top::run(&arguments),
        Command::Recover(arguments) => commands::recover::run(arguments, output),
        Command::Evict(arguments) => commands::evict::run(&arguments, output),
        Command::Pmem(arguments) => commands::pmem::run(&arguments, output),
        Command::Doctor(arguments) => commands::doctor::run(arguments, output),
        Command::Config(arguments) => commands::config::run(&arguments, output),
        Command::Completions(arguments) => commands::completions::run(&arguments, output),
        Command::Guard(arguments) => commands::guard::run(&arguments),
        Command::Man(arguments) => commands::man::run(&arguments, output),
    }
}
