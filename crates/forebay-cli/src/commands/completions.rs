//! `forebay completions`: completions for a shell, from the command line's own definition.

use clap::CommandFactory;

use crate::arguments::{Cli, Completions};
use crate::failure::{DONE, Failure};
use crate::output::Output;

/// Prints them.
pub fn run(arguments: &Completions, output: &mut Output) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "forebay", &mut text);
    output.raw(&text);
    Ok(DONE)
}
