//! `forebay doctor`: runs all checks and shows them.

use std::path::PathBuf;

use forebay::Config;
use serde::Serialize;

use crate::arguments::Doctor;
use crate::checks::{self, Check, Status};
use crate::failure::{DONE, FAILED, Failure};
use crate::output::{Output, SCHEMA, Style};

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    schema: u32,
    /// The worst of all.
    status: Status,
    ok: usize,
    warn: usize,
    fail: usize,
    checks: Vec<Check>,
}

/// Examines the machine.
pub fn run(arguments: Doctor, output: &mut Output) -> Result<u8, Failure> {
    let (config, configuration) = configure(&arguments)?;
    let mut found = vec![configuration];
    found.extend(checks::kernel::all());
    found.extend(checks::mounting::all());
    found.extend(checks::persistent::all());
    found.extend(checks::memory::all(&config));
    found.extend(checks::limits::all(config.memory));
    let directories = match arguments.directories.as_slice() {
        [] => vec![std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."))],
        named => named.to_vec(),
    };
    found.extend(
        directories
            .iter()
            .map(|dir| checks::storage::directory(dir)),
    );
    found.extend(checks::sessions::all(&config));
    found.extend(checks::pools::all());
    let number = |status| found.iter().filter(|check| check.status == status).count();
    let report = Report {
        schema: SCHEMA,
        status: found
            .iter()
            .map(|check| check.status)
            .max()
            .unwrap_or(Status::Ok),
        ok: number(Status::Ok),
        warn: number(Status::Warn),
        fail: number(Status::Fail),
        checks: found,
    };
    let code = if report.fail == 0 { DONE } else { FAILED };
    if arguments.json {
        output.json(&report);
    } else {
        show(output, &report);
    }
    Ok(code)
}

/// A configuration that is wrong is one of the things to be told; the other checks go on with the defaults.
fn configure(arguments: &Doctor) -> Result<(Config, Check), Failure> {
    const WHY: &str = "no command but this one and help works without";
    // What was given on the command line is a matter of usage.
    arguments.settings.options()?;
    match arguments.settings.config() {
        Ok(config) => Ok((
            config,
            Check::ok(
                "configuration",
                WHY,
                "read and sound; `forebay config` shows it",
            ),
        )),
        Err(failure) => {
            let config = Config::builder().build()?;
            Ok((
                config,
                Check::ok("configuration", WHY, failure.to_string())
                    .fail("mend it; the checks below assume the defaults"),
            ))
        }
    }
}

fn show(output: &mut Output, report: &Report) {
    for check in &report.checks {
        let (word, style) = match check.status {
            Status::Ok => ("ok  ", Style::Good),
            Status::Warn => ("warn", Style::Doubtful),
            Status::Fail => ("fail", Style::Bad),
        };
        let word = output.paint(style, word);
        let subject = check
            .subject
            .as_ref()
            .map(|subject| format!(" {subject}"))
            .unwrap_or_default();
        let name = output.paint(Style::Strong, check.check);
        output.line(format_args!("{word}  {name}{subject}: {}", check.found));
        if check.status != Status::Ok {
            let why = output.paint(Style::Faint, check.why);
            output.line(format_args!("      why: {why}"));
        }
        if let Some(remedy) = &check.remedy {
            let label = if check.status == Status::Ok {
                "note"
            } else {
                "remedy"
            };
            output.line(format_args!("      {label}: {remedy}"));
        }
    }
    output.line(format_args!(
        "{} ok, {} warnings, {} failures",
        report.ok, report.warn, report.fail
    ));
}
