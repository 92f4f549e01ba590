//! What a run came to: for people, or as JSON.
//!
//! The counters are the session's: what other programs did in it meanwhile is in them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use forebay::member::given;
use forebay::member::left::LeftFile;
use forebay::session::look::Unsettled;
use forebay::{Session, Stats};
use serde::Serialize;

use super::program::End;
use crate::failure::Failure;
use crate::output::{self, SCHEMA, bytes, count, left_lines};

/// Everything that is known about a run.
#[derive(Serialize)]
pub struct Report {
    schema: u32,
    command: Vec<String>,
    /// Exit code, or 128 and the signal's number, as shells have it.
    exit: u32,
    /// The program's own time.
    run_seconds: f64,
    /// Until everything was with the devices.
    drain_seconds: f64,
    /// The session's counters while it ran; null where it ran without Forebay.
    session: Option<Sides>,
    /// What could not be brought to its file.
    errors: Vec<Unsettled>,
}

/// The session's counters after, less those before.
#[derive(Serialize)]
pub struct Sides {
    /// Written into memory, to be flushed later.
    scrap_bytes: u64,
    /// Written straight to the device.
    direct_bytes: u64,
    /// Written through the kernel.
    kernel_bytes: u64,
    read_bytes: u64,
    device_read_bytes: u64,
    device_write_bytes: u64,
    /// Held by the session now.
    memory_held_bytes: u64,
    /// Time that the session's threads spent on writing to device files, those of the drain included.
    flush_seconds: f64,
    /// Files that became managed; one that several processes write counts for each.
    files_managed: u64,
    /// Files that were written to and left to the kernel, by reason; and those that the session has given to the kernel
    /// since, among all that it knows.
    files_in_kernel: BTreeMap<&'static str, u64>,
    /// The files that were left or given to the kernel since the run began, and why; the last 128.
    left: Vec<LeftFile>,
}

impl Sides {
    /// Now, against what was before: the counters, and how many files had been left to the kernel.
    pub fn of(session: &Session, (before, left): &(Stats, u64)) -> Self {
        let now = session.stats();
        let more = |of: fn(&Stats) -> u64| of(&now).saturating_sub(of(before));
        let numbers: [(&'static str, u64); 6] = [
            (given::words(given::OUTSIDE), more(|s| s.files_routed)),
            (
                given::words(given::FILE_SYSTEM),
                more(|s| s.files_of_file_system),
            ),
            (
                given::words(given::NOT_WRITABLE),
                more(|s| s.files_not_writable),
            ),
            (given::words(given::CLAIMED), more(|s| s.files_claimed)),
            (given::words(given::REACHED), more(|s| s.files_reached)),
            (
                "given up before, or no room in the session's tables",
                more(|s| s.files_other),
            ),
        ];
        let mut files_in_kernel: BTreeMap<_, _> = numbers
            .into_iter()
            .filter(|(_, number)| *number > 0)
            .collect();
        for file in session
            .files()
            .iter()
            .filter(|file| file.kernel_reason != 0)
        {
            *files_in_kernel
                .entry(given::words(file.kernel_reason))
                .or_default() += 1;
        }
        Self {
            scrap_bytes: more(|s| s.scrap_bytes),
            direct_bytes: more(|s| s.direct_bytes),
            kernel_bytes: more(|s| s.kernel_bytes),
            read_bytes: more(|s| s.read_bytes),
            device_read_bytes: more(|s| s.device_read_bytes),
            device_write_bytes: more(|s| s.device_write_bytes),
            memory_held_bytes: now.memory_held_bytes,
            flush_seconds: more(|s| s.change_ns) as f64 / 1e9,
            files_managed: more(|s| s.files_managed),
            files_in_kernel,
            left: session.left_since(*left),
        }
    }

    /// How many files were left to the kernel and why, and which.
    fn kernel_lines(&self) -> Vec<(&'static str, String)> {
        let numbers = self.files_in_kernel.iter().map(|(why, number)| {
            let files = count(*number as usize, "file");
            ("", format!("{files} left to the kernel: {why}"))
        });
        let files = left_lines(&self.left).into_iter();
        numbers.chain(files.map(|line| ("kernel", line))).collect()
    }
}

impl Report {
    /// `times` are the program's and the drain's.
    pub fn new(
        command: &[OsString],
        end: End,
        times: (Duration, Duration),
        session: Option<Sides>,
        errors: Vec<Unsettled>,
    ) -> Self {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        Self {
            schema: SCHEMA,
            command: command.iter().map(text).collect(),
            exit: match end {
                End::Code(code) => u32::from(code),
                End::Signal(signal) => 128 + signal as u32,
            },
            run_seconds: times.0.as_secs_f64(),
            drain_seconds: times.1.as_secs_f64(),
            session,
            errors,
        }
    }

    /// To a file, or to the standard error.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: Option<&Path>, json: bool) -> Result<(), Failure> {
        let text = match json {
            true => serde_json::to_string_pretty(self).map(|text| text + "\n"),
            false => Ok(self.table()),
        };
        let text = text.map_err(|error| Failure::Failed(error.to_string()))?;
        match file.filter(|file| *file != Path::new("-")) {
            Some(file) => std::fs::write(file, text).map_err(|error| {
                Failure::Failed(format!(
                    "the report cannot be written to {}: {error}",
                    output::path(file)
                ))
            }),
            None => {
                // A reader that closed it does not want it.
                let _ = std::io::stderr().write_all(text.as_bytes());
                Ok(())
            }
        }
    }

    fn table(&self) -> String {
        let mut lines = vec![format!(
            "forebay: {}: exit {}",
            self.command.join(" "),
            self.exit
        )];
        let mut field = |name: &str, text: String| lines.push(format!("  {name:8} {text}"));
        field(
            "time",
            format!(
                "{:.3} s, and {:.3} s until everything was flushed",
                self.run_seconds, self.drain_seconds
            ),
        );
        match &self.session {
            None => field("session", "none: run without Forebay".into()),
            Some(sides) => {
                field(
                    "written",
                    format!(
                        "{} to memory, {} to the device, {} through the kernel",
                        bytes(sides.scrap_bytes),
                        bytes(sides.direct_bytes),
                        bytes(sides.kernel_bytes)
                    ),
                );
                field("read", bytes(sides.read_bytes));
                field(
                    "device",
                    format!(
                        "{} read, {} written",
                        bytes(sides.device_read_bytes),
                        bytes(sides.device_write_bytes)
                    ),
                );
                field("memory", format!("{} held", bytes(sides.memory_held_bytes)));
                field(
                    "flush",
                    format!("{:.3} s in all threads", sides.flush_seconds),
                );
                field(
                    "files",
                    count(sides.files_managed as usize, "file") + " managed",
                );
                for (name, text) in sides.kernel_lines() {
                    field(name, text);
                }
            }
        }
        for file in &self.errors {
            field(
                "error",
                format!(
                    "{}: {} not written yet: {}",
                    output::path(&file.path),
                    bytes(file.owed_bytes),
                    file.reason
                ),
            );
        }
        lines.join("\n") + "\n"
    }
}
