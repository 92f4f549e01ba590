//! The command line of Forebay's own checks: `cargo xtask tidy`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::tidy;

#[derive(Parser)]
#[command(about = "Forebay's own checks")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks the source rules: module order, sizes, unsafe, opening docs, dead files, words, links.
    Tidy {
        /// Lowers the entries of xtask/ratchet.txt to what the tree needs today, never raises one.
        #[arg(long)]
        bless: bool,
        /// The tree to check; by default the one that xtask was built from.
        #[arg(long)]
        root: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let Command::Tidy { bless, root } = Arguments::parse().command;
    let root = root.unwrap_or_else(default_root);
    match tidy::run(&root, bless) {
        Ok(report) => {
            print!("{report}");
            if report.findings.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(message) => {
            eprintln!("tidy: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace: the parent of this package's folder.
fn default_root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}
