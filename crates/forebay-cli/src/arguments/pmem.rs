//! The commands of `forebay pmem`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay::config::size::Size;

/// Makes, checks and describes stores in persistent memory.
///
/// A store is a file system of its own in a DAX device, in a file on a DAX file system, or in any file. Programs reach one by its API in Rust, C or Python,
/// or where `forebay mount` shows it.
#[derive(Args, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  forebay pmem create --size 4GiB /data/store
  forebay pmem create /dev/dax0.0
  forebay pmem info /data/store
  forebay pmem check --json /data/store"
)]
pub struct Pmem {
    /// What to do.
    #[command(subcommand)]
    pub command: PmemCommand,
}

/// What `forebay pmem` does.
#[derive(Subcommand, Debug)]
pub enum PmemCommand {
    /// Make a store
    Create(PmemCreate),
    /// Look for everything that is not in order, and change nothing
    Check(PmemCheck),
    /// Say what a store is, how it becomes durable, and how full it is
    Info(PmemInfo),
}

/// Makes a store in a file or device.
///
/// A file is made if it is not there, and allocated. A store that is there, and a file with other content, is overwritten with --force only.
///
/// Exit codes: 0 made, 1 it cannot be made, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay pmem create --size 4GiB /data/store
  forebay pmem create --size 64GiB --sparse /data/store
  forebay pmem create --force /dev/dax0.0")]
pub struct PmemCreate {
    /// The file or device
    #[arg(value_name = "FILE|DEVICE", value_hint = clap::ValueHint::AnyPath)]
    pub path: PathBuf,
    /// Bytes of the store; without, as many as the file or device has
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Do not allocate the file. When the disk below is full, whoever has the store open is ended by the system (SIGBUS)
    #[arg(long)]
    pub sparse: bool,
    /// Overwrite a store that is there, or another file's content
    #[arg(long)]
    pub force: bool,
    /// How many files the store can have; without, one for each 16 KiB
    #[arg(long, value_name = "NUMBER")]
    pub inodes: Option<u64>,
}

/// Checks a store, and says what is lost.
///
/// Nothing is changed: what the log has is taken from there. The store must not be open.
///
/// Exit codes: 0 all in order, 1 something is not, or it cannot be opened, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay pmem check /data/store
  forebay pmem check --json /data/store | jq '.findings[]'")]
pub struct PmemCheck {
    /// The file or device
    #[arg(value_name = "FILE|DEVICE", value_hint = clap::ValueHint::AnyPath)]
    pub path: PathBuf,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// Describes a store without opening it for use.
///
/// Exit codes: 0 shown, 1 there is none, or it cannot be read, 2 usage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay pmem info /data/store
  forebay pmem info --json /data/store | jq .free_bytes")]
pub struct PmemInfo {
    /// The file or device
    #[arg(value_name = "FILE|DEVICE", value_hint = clap::ValueHint::AnyPath)]
    pub path: PathBuf,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// A number of bytes, with or without a unit.
fn size(text: &str) -> Result<u64, String> {
    match text.parse()? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Share(_) => Err("give a number of bytes, such as 4GiB".to_owned()),
    }
}
