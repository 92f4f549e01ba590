//! `forebay config`: the effective configuration and where each value came from.

use forebay::config::{Explained, Origin};
use serde::Serialize;

use crate::arguments::Config;
use crate::failure::{DONE, Failure};
use crate::output::{Output, SCHEMA, Style};

#[derive(Serialize)]
struct Report {
    schema: u32,
    /// In the order of the documentation.
    options: Vec<Explained>,
}

/// Shows it.
pub fn run(arguments: &Config, output: &mut Output) -> Result<u8, Failure> {
    let options = arguments.settings.config()?.explain();
    if arguments.json {
        output.json(&Report {
            schema: SCHEMA,
            options,
        });
        return Ok(DONE);
    }
    let width = |text: fn(&Explained) -> usize| options.iter().map(text).max().unwrap_or(0);
    let (keys, values) = (width(|o| o.key.len()), width(|o| o.value.chars().count()));
    for option in &options {
        let line = format!("{:keys$}  {:values$}", option.key, option.value);
        let style = match option.origin {
            Origin::Default => Style::Faint,
            _ => Style::Strong,
        };
        let origin = output.paint(style, &option.origin);
        output.line(format_args!("{line}  {origin}"));
    }
    Ok(DONE)
}
