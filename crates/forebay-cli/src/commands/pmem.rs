//! `forebay pmem`: stores in persistent memory.

use forebay_pmem::medium::Durability;
use forebay_pmem::{BLOCK, CreateOptions, Information, Report, check, create_with, information};
use serde::Serialize;

use crate::arguments::pmem::{Pmem, PmemCheck, PmemCommand, PmemCreate, PmemInfo};
use crate::failure::{DONE, FAILED, Failure};
use crate::output::{self, Output, SCHEMA, bytes, count};

/// Runs one of the commands.
pub fn run(arguments: &Pmem, output: &mut Output) -> Result<u8, Failure> {
    match &arguments.command {
        PmemCommand::Create(arguments) => create(arguments, output),
        PmemCommand::Check(arguments) => check_store(arguments, output),
        PmemCommand::Info(arguments) => info(arguments, output),
    }
}

fn create(arguments: &PmemCreate, output: &mut Output) -> Result<u8, Failure> {
    let options = CreateOptions {
        size: arguments.size,
        sparse: arguments.sparse,
        force: arguments.force,
        inodes: arguments.inodes,
        log_blocks: None,
    };
    create_with(&arguments.path, &options).map_err(failed)?;
    let made = information(&arguments.path).map_err(failed)?;
    output.line(format_args!(
        "{}: a store of {}, {}",
        output::path(&arguments.path),
        bytes(made.superblock.geometry.blocks * BLOCK as u64),
        durability(made.durability)
    ));
    Ok(DONE)
}

fn failed(error: forebay_pmem::OpenError) -> Failure {
    Failure::Failed(error.to_string())
}

fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Dax => "durable by the CPU (DAX)",
        Durability::Fdatasync => "durable by fdatasync",
    }
}

/// What `check --json` prints.
#[derive(Serialize)]
struct Checked {
    schema: u32,
    clean: bool,
    files: u64,
    directories: u64,
    used_bytes: u64,
    stretches: u64,
    findings: Vec<Wrong>,
    more_findings: u64,
}

#[derive(Serialize)]
struct Wrong {
    what: String,
    lost: String,
}

fn check_store(arguments: &PmemCheck, output: &mut Output) -> Result<u8, Failure> {
    let report = check(&arguments.path).map_err(failed)?;
    let code = if report.is_clean() { DONE } else { FAILED };
    if arguments.json {
        output.json(&Checked {
            schema: SCHEMA,
            clean: report.is_clean(),
            files: report.files,
            directories: report.directories,
            used_bytes: report.blocks * BLOCK as u64,
            stretches: report.stretches,
            findings: report
                .findings
                .into_iter()
                .map(|finding| Wrong {
                    what: finding.what,
                    lost: finding.lost,
                })
                .collect(),
            more_findings: report.more,
        });
    } else {
        show(&report, output);
    }
    Ok(code)
}

fn show(report: &Report, output: &mut Output) {
    for finding in &report.findings {
        output.line(finding);
    }
    let all = report.findings.len() + report.more as usize;
    let found = if all == 0 {
        "all in order".to_string()
    } else {
        count(all, "finding")
    };
    output.line(format_args!(
        "{found}: files {}, directories {}, {} in {} stretches",
        report.files,
        report.directories,
        bytes(report.blocks * BLOCK as u64),
        report.stretches
    ));
}

/// What `info --json` prints.
#[derive(Serialize)]
struct Described {
    schema: u32,
    id: String,
    bytes: u64,
    log_bytes: u64,
    free_bytes: u64,
    files_max: u64,
    files_free: u64,
    durability: &'static str,
    flush: &'static str,
    records_to_replay: u64,
    damage: Vec<String>,
}

fn info(arguments: &PmemInfo, output: &mut Output) -> Result<u8, Failure> {
    let Information {
        id,
        superblock,
        durability: durable,
        flush,
        statistics,
        records,
        damage,
    } = information(&arguments.path).map_err(failed)?;
    let block = BLOCK as u64;
    let described = Described {
        schema: SCHEMA,
        id: format!("{id:016x}"),
        bytes: superblock.geometry.blocks * block,
        log_bytes: superblock.geometry.log_blocks * block,
        free_bytes: statistics.blocks_free * block,
        files_max: statistics.inodes,
        files_free: statistics.inodes_free,
        durability: durability(durable),
        flush,
        records_to_replay: records,
        damage,
    };
    if arguments.json {
        output.json(&described);
        return Ok(DONE);
    }
    output.line(format_args!(
        "store {}, {}",
        described.id, described.durability
    ));
    output.line(format_args!(
        "lines are written back by {}, where the CPU does it",
        described.flush
    ));
    output.line(format_args!(
        "{}, of which {} for the log; {} free",
        bytes(described.bytes),
        bytes(described.log_bytes),
        bytes(described.free_bytes)
    ));
    let used = described.files_max - described.files_free;
    output.line(format_args!("{used} files of {}", described.files_max));
    output.line(format_args!(
        "{} to be replayed",
        count(described.records_to_replay as usize, "record")
    ));
    for damage in &described.damage {
        output.line(damage);
    }
    Ok(DONE)
}
