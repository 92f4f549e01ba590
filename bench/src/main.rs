//! Interleaved measurements of Forebay against the kernel: see `README.md` for the rules it keeps.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Parser;

use conditions::Conditions;
use failure::{Context, Failure, Result};
use place::{FileSystem, Storage};
use report::{Report, WorkloadReport};
use rows::Row;
use run::Bench;

#[cfg(feature = "engine")]
mod ablation;
#[cfg(feature = "engine")]
mod allocators;
mod conditions;
mod failure;
#[cfg(feature = "engine")]
mod instructions;
mod memory;
mod meter;
mod place;
mod report;
mod requests;
mod rows;
mod run;
mod sides;
mod stats;
mod where_ns;
mod workload;
#[cfg(feature = "engine")]
mod zipf;

const EXAMPLES: &str = "\
Examples:
  forebay-bench --make-device xfs                      all rows, on a new XFS (as root)
  forebay-bench --make-device ext4 write-sync-1m --runs 9 --json out.json
  forebay-bench --dir /mnt/scratch --quick             is all well? (figures not to be quoted)
  forebay-bench --dir . where-ns --size 256M --pin 1   what a 4 KiB write is made of";

const SIZE_MIN: u64 = 8 << 20;
const RUNS_MIN: usize = 5;

/// Compares ways to do buffered I/O, in one run, interleaved, with the bytes checked.
#[derive(Parser)]
#[command(name = "forebay-bench", version, after_help = EXAMPLES)]
struct Arguments {
    /// Rows to measure; all but allocators, ablation, tracking and where-ns if none is named
    rows: Vec<Row>,
    /// Measure in this directory
    #[arg(
        long,
        required_unless_present = "make_device",
        conflicts_with = "make_device"
    )]
    dir: Option<PathBuf>,
    /// Measure on a new file system, on a loop device over memory, undone afterwards (as root)
    #[arg(long, value_name = "FILE_SYSTEM")]
    make_device: Option<FileSystem>,
    /// Runs of each side [default: 5, or 3 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Bytes of a row's file, as 512M or 2G [default: 1G, or 64M with --quick]
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Write everything measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Small and short: shows that all works, not how fast
    #[arg(long)]
    quick: bool,
    /// Keep the timed loop on this core
    #[arg(long, value_name = "CORE")]
    pin: Option<usize>,
}

/// Reads `64M`, `1G`, `4096`; rounded up to whole 4 MiB, so that every request size divides it.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        other => return Err(format!("unknown unit {other}")),
    };
    let count: u64 = digits
        .parse()
        .map_err(|error| format!("{digits}: {error}"))?;
    let size = count.checked_mul(unit).ok_or("too large")?;
    if !(SIZE_MIN..=1 << 40).contains(&size) {
        return Err("from 8M to 1024G".into());
    }
    Ok(size.next_multiple_of(4 << 20))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    stop_on_signals();
    match measure(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("forebay-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let runs = arguments
        .runs
        .map_or(if arguments.quick { 3 } else { RUNS_MIN }, usize::from);
    let size = arguments
        .size
        .unwrap_or(if arguments.quick { 64 << 20 } else { 1 << 30 });
    let storage = match (&arguments.dir, arguments.make_device) {
        (_, Some(file_system)) => Storage::Make(file_system),
        (Some(dir), None) => Storage::Dir(dir.clone()),
        (None, None) => return Err(Failure::Usage("--dir or --make-device".into())),
    };
    storage.prepare()?;
    let conditions = Conditions::now(runs);
    println!("{}", conditions.line());
    match place::arena_dir() {
        Some(_) => println!("the engine's arena: on a tmpfs with huge=always, made for this run"),
        None => println!("the engine's arena: where the engine's own ladder puts it"),
    }
    if runs < RUNS_MIN {
        println!("fewer than {RUNS_MIN} runs of each side: not to be quoted");
    }
    let mut bench = Bench::new(storage, runs, arguments.pin)?;
    let mut report = Report {
        conditions,
        workloads: Vec::new(),
        #[cfg(feature = "engine")]
        techniques: Vec::new(),
    };
    let rows = if arguments.rows.is_empty() {
        &rows::DEFAULT[..]
    } else {
        &arguments.rows
    };
    let outcome = measure_rows(&mut bench, rows, size, &mut report);
    drop(bench);
    place::forget_arena_dir();
    // What was measured before a failure is worth keeping.
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report).expect("plain data becomes JSON");
        std::fs::write(path, text + "\n").context("--json")?;
    }
    outcome
}

fn measure_rows(bench: &mut Bench, rows: &[Row], size: u64, report: &mut Report) -> Result<()> {
    let workloads: Vec<_> = rows
        .iter()
        .flat_map(|&row| rows::workloads(row, size))
        .collect();
    for (index, workload) in workloads.iter().enumerate() {
        let progress = format!("[{}/{}]", index + 1, workloads.len());
        match bench.measure(workload, &progress) {
            Ok(measured) => {
                let compared = WorkloadReport::new(workload, measured);
                println!("{}", compared.table().trim_end());
                report.workloads.push(compared);
            }
            Err(Failure::Unavailable(why)) => println!("\n{}: not measured: {why}", workload.name),
            Err(failure) => return Err(failure),
        }
    }
    #[cfg(feature = "engine")]
    if rows.contains(&Row::Allocators) {
        allocators::print(bench, size)?;
    }
    #[cfg(feature = "engine")]
    for (row, works, sides) in [
        (Row::Ablation, &ablation::ABLATION[..], ablation::all()),
        (
            Row::Tracking,
            &ablation::TRACKING[..],
            ablation::trackings(),
        ),
    ] {
        if rows.contains(&row) {
            let title = format!("{row:?}").to_lowercase();
            let parts = ablation::measure(bench, &title, (works, &sides), size)?;
            report.techniques.extend(parts);
        }
    }
    if rows.contains(&Row::WhereNs) {
        where_ns::print(bench, size)?;
    }
    Ok(())
}

/// SIGINT and SIGTERM end the measurement after the current run, with everything undone. A second
/// one ends it at once; what then remains is an empty directory at most (see [`place`]).
fn stop_on_signals() {
    extern "C" fn note(_signal: libc::c_int) {
        // Relaxed: nothing else is handed over with the flag.
        run::INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic; zeros are an empty mask and no flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_bounds() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("9MiB"), Ok(12 << 20));
        for wrong in ["", "M", "1T", "1M", "-1G", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        assert!(
            Arguments::try_parse_from(["x"]).is_err(),
            "neither --dir nor --make-device"
        );
        assert!(Arguments::try_parse_from(["x", "--dir", "a", "--make-device", "xfs"]).is_err());
        let rows = Arguments::try_parse_from(["x", "--dir", ".", "read-4k", "where-ns"]).unwrap();
        assert_eq!(rows.rows, [Row::Read4k, Row::WhereNs]);
    }
}
