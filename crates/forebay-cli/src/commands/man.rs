//! `forebay man`: manual pages, from the command line's own definition.

use clap::CommandFactory;

use crate::arguments::{Cli, Man};
use crate::failure::{DONE, Failure};
use crate::output::{self, Output};

/// Prints the page of `forebay`, or writes all pages.
pub fn run(arguments: &Man, output: &mut Output) -> Result<u8, Failure> {
    let Some(directory) = &arguments.directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command())
            .render(&mut page)
            .map_err(|error| Failure::Failed(format!("cannot make the page: {error}")))?;
        output.raw(&page);
        return Ok(DONE);
    };
    let write = || {
        std::fs::create_dir_all(directory)?;
        clap_mangen::generate_to(Cli::command(), directory)
    };
    write().map_err(|error| {
        Failure::Failed(format!(
            "cannot write to {}: {error}; name a directory that you may write to",
            directory.display()
        ))
    })?;
    output::note(format_args!("manual pages are in {}", directory.display()));
    Ok(DONE)
}
