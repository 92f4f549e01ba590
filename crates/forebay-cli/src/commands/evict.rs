//! `forebay evict`: drops what is clean of files from sessions' memory and from the kernel's page cache.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use forebay::Session;
use forebay::session::look::Life;
use forebay::sys::file::write_back;
use forebay::sys::kernel_cache::cached;
use forebay::text::as_text;
use rustix::fs::{Advice, OFlags, fadvise};
use serde::Serialize;

use crate::arguments::Evict;
use crate::failure::{DONE, FAILED, Failure};
use crate::output::{self, Output, Progress, SCHEMA, bytes, count};
use crate::sessions;

/// Pages of the kernel's page cache.
const PAGE_BYTES: u64 = 4096;
/// Files between two signs of progress.
const SHOW_EVERY: usize = 64;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    schema: u32,
    summary: Summary,
    files: Vec<Row>,
}

/// Sums over all files, in bytes.
#[derive(Default, Serialize)]
struct Summary {
    files: usize,
    /// Files that could not be looked at.
    failed: usize,
    /// Sessions that were asked.
    sessions: usize,
    /// Memory that sessions gave back.
    freed_bytes: u64,
    /// What sessions still owe to these files: it stays in memory until it is flushed.
    dirty_bytes: u64,
    /// What the kernel's page cache gave back.
    kernel_dropped_bytes: u64,
    /// What it still has: pages in use, or dirty again.
    kernel_left_bytes: u64,
}

/// One file.
#[derive(Default, Serialize)]
struct Row {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    error: Option<String>,
    sessions: Vec<InSession>,
    /// In the kernel's page cache before and after; null where the kernel does not say (before Linux 6.5).
    kernel_before_bytes: Option<u64>,
    kernel_after_bytes: Option<u64>,
}

#[derive(Serialize)]
struct InSession {
    session: String,
    freed_bytes: u64,
    held_bytes: u64,
    dirty_bytes: u64,
}

struct Eviction {
    sessions: Vec<(String, Session)>,
    rows: Vec<Row>,
    progress: Progress,
}

/// Evicts the files.
pub fn run(arguments: &Evict, output: &mut Output) -> Result<u8, Failure> {
    let mut eviction = Eviction {
        sessions: join(arguments)?,
        rows: Vec::new(),
        progress: Progress::new(),
    };
    for path in &arguments.paths {
        eviction.path(path, arguments.recursive);
    }
    let Eviction {
        sessions,
        rows,
        progress,
    } = eviction;
    drop(progress);
    let summary = summed(&rows, sessions.len());
    let failed = summary.failed;
    for row in &rows {
        if let Some(error) = &row.error {
            output::note(format_args!("{}: {error}", output::path(&row.path)));
        }
    }
    if arguments.json {
        output.json(&Report {
            schema: SCHEMA,
            summary,
            files: rows,
        });
    } else {
        show(output, &summary);
    }
    Ok(if failed == 0 { DONE } else { FAILED })
}

/// The living sessions, joined without keeping them. One that ends at this moment is passed over.
fn join(arguments: &Evict) -> Result<Vec<(String, Session)>, Failure> {
    let config = arguments.whose.config()?;
    let named = arguments.whose.session.as_deref();
    let found = sessions::find(config.arena_dir.as_deref(), named)?;
    if let (true, Some(name)) = (found.is_empty(), named) {
        return Err(sessions::none_such(name));
    }
    let mut joined = Vec::new();
    for found in found {
        if !found.seen.is_ok_and(|seen| seen.life == Life::Alive) {
            continue;
        }
        let mut config = config.clone();
        config.session.clone_from(&found.session);
        match Session::join_living(&found.arena, config) {
            Ok(Some(session)) => joined.push((found.session, session)),
            Ok(None) => {}
            Err(error) => output::note(format_args!(
                "session {} is left out: {error}",
                found.session
            )),
        }
    }
    Ok(joined)
}

impl Eviction {
    fn path(&mut self, path: &Path, recursive: bool) {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() && recursive => self.directory(path),
            Ok(meta) if meta.is_dir() => {
                self.failed(path, "is a directory; -r takes what is in it")
            }
            Ok(meta) if meta.is_file() => self.file(path),
            Ok(_) => self.failed(
                path,
                "is not a regular file; name files or, with -r, directories",
            ),
            Err(error) => self.failed(path, error),
        }
    }

    /// Everything below, without following links: one that leads upwards would never end.
    fn directory(&mut self, top: &Path) {
        let mut open = vec![top.to_owned()];
        while let Some(directory) = open.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) => {
                    self.failed(&directory, error);
                    continue;
                }
            };
            for entry in entries {
                let entry = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
                match entry {
                    Ok((path, kind)) if kind.is_dir() => open.push(path),
                    Ok((path, kind)) if kind.is_file() => self.file(&path),
                    Ok(_) => {}
                    Err(error) => self.failed(&directory, error),
                }
            }
        }
    }

    fn failed(&mut self, path: &Path, error: impl std::fmt::Display) {
        let error = Some(error.to_string());
        self.rows.push(Row {
            path: path.to_owned(),
            error,
            ..Row::default()
        });
    }

    fn file(&mut self, path: &Path) {
        let mut row = Row {
            path: path.to_owned(),
            ..Row::default()
        };
        row.error = self
            .evict(path, &mut row)
            .err()
            .map(|error| error.to_string());
        self.rows.push(row);
        if self.rows.len().is_multiple_of(SHOW_EVERY) {
            self.progress
                .show(format_args!("{} files", self.rows.len()));
        }
    }

    fn evict(&self, path: &Path, row: &mut Row) -> io::Result<()> {
        let file = open(path)?;
        for (name, session) in &self.sessions {
            if let Some(evicted) = session.evict_file(file.as_fd())? {
                row.sessions.push(InSession {
                    session: name.clone(),
                    freed_bytes: evicted.freed_bytes,
                    held_bytes: evicted.held_bytes,
                    dirty_bytes: evicted.dirty_bytes,
                });
            }
        }
        row.kernel_before_bytes = in_kernel(&file);
        // Dirty pages cannot be dropped; 0 is to the end.
        write_back(file.as_fd(), 0, 0)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        row.kernel_after_bytes = in_kernel(&file);
        Ok(())
    }
}

/// As the engine does, so that the file stays the session's. Does not wait for a writer, should a pipe have taken the file's name meanwhile.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::RDONLY | OFlags::NONBLOCK).bits() as i32;
    forebay::sys::file::open(path, flags, 0).map(File::from)
}

fn in_kernel(file: &File) -> Option<u64> {
    let cached = cached(file.as_fd()).ok()?;
    Some(cached.pages.saturating_mul(PAGE_BYTES))
}

fn summed(rows: &[Row], sessions: usize) -> Summary {
    let mut sum = Summary {
        files: rows.len(),
        sessions,
        ..Summary::default()
    };
    for row in rows {
        sum.failed += usize::from(row.error.is_some());
        for session in &row.sessions {
            sum.freed_bytes += session.freed_bytes;
            sum.dirty_bytes += session.dirty_bytes;
        }
        let (before, after) = (
            row.kernel_before_bytes.unwrap_or(0),
            row.kernel_after_bytes.unwrap_or(0),
        );
        sum.kernel_dropped_bytes += before.saturating_sub(after);
        sum.kernel_left_bytes += after;
    }
    sum
}

fn show(output: &mut Output, summary: &Summary) {
    output.line(format_args!(
        "{}: {} given back by {}, {} dropped by the kernel and {} left there",
        count(summary.files, "file"),
        bytes(summary.freed_bytes),
        count(summary.sessions, "session"),
        bytes(summary.kernel_dropped_bytes),
        bytes(summary.kernel_left_bytes),
    ));
    if summary.dirty_bytes > 0 {
        output.line(format_args!(
            "{} are dirty and stayed in memory: sync the files (`sync FILE` does not reach them; the program's fsync does), \
             or wait for flush_interval, and evict again",
            bytes(summary.dirty_bytes)
        ));
    }
    if summary.failed > 0 {
        output.line(format_args!(
            "{} could not be looked at",
            count(summary.failed, "path")
        ));
    }
}
