//! `forebay`: the command line. Parses, runs one command, turns its outcome into an exit code.
//!
//! A command is one file of [`commands`]; it gets its arguments and an [`output::Output`], and answers with an exit
//! code or a [`failure::Failure`] that names the remedy. What is known about the machine is asked by [`checks`].

mod arguments;
mod checks;
mod commands;
mod failure;
mod itself;
mod limits;
mod metrics;
mod output;
mod sessions;
mod settings;
mod signals;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, ColorChoice, CommandFactory, FromArgMatches};

use arguments::{Cli, Command};
use failure::{Failure, USAGE};
use forebay::keeper::relief;
use forebay::sys::inherited;
use output::Output;

/// Before the standard library begins.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = inherited::note;

fn main() -> ExitCode {
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
            return ExitCode::from(if message.use_stderr() { USAGE } else { 0 });
        }
    };
    let mut output = Output::new(plain);
    let outcome = run(cli.command, &mut output);
    let written = output.finish();
    match outcome.and_then(|code| written.map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::note(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The command line if it is one of a command that somebody waits for, and nothing is wrong with it. The options of all other commands cost
/// more than the rest of that command; help and complaints are made with them.
fn run_alone() -> Option<Cli> {
    let mut words = std::env::args_os().skip(1);
    let command = match words.next()?.to_str()? {
        "run" => Command::Run(alone(words)?),
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
