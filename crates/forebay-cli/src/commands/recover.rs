//! `forebay recover`: saves what killed sessions have left, and says file by file what became of it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use forebay::config::Options;
use forebay::keeper::recover::{Report, Saved, recover};
use forebay::session::look::{Life, Seen, look};
use forebay::text::as_text;
use forebay::{Config, Error, SessionFault};
use serde::Serialize;

use crate::arguments::Recover;
use crate::failure::{DONE, FAILED, Failure, KEPT_ASIDE};
use crate::output::{self, Output, Progress, SCHEMA, Style, bytes, count};
use crate::sessions::{self, Found};
use crate::settings;

/// How often an arena that somebody is just looking at is tried again, and how long apart.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);
/// How often progress is shown.
const SHOW_EVERY: Duration = Duration::from_millis(300);

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    schema: u32,
    summary: Summary,
    arenas: Vec<Row>,
}

#[derive(Default, Serialize)]
struct Summary {
    arenas: usize,
    written_files: usize,
    written_bytes: u64,
    kept_files: usize,
    kept_bytes: u64,
    failed_files: usize,
    /// Arenas that could not be recovered at all.
    failed_arenas: usize,
    /// Sessions that live and need no recovery.
    alive: usize,
}

/// One arena.
#[derive(Serialize)]
struct Row {
    #[serde(serialize_with = "as_text")]
    arena: PathBuf,
    /// recovered, alive, or failed. Recovered without a report: by another process meanwhile.
    outcome: &'static str,
    /// Why it was not recovered, and what to do.
    reason: Option<String>,
    report: Option<Report>,
}

/// Recovers what was asked for.
pub fn run(arguments: Recover, output: &mut Output) -> Result<u8, Failure> {
    let config = settings::load(Options {
        session: arguments.whose.session.clone(),
        arena_dir: arguments.whose.arena_dir.clone(),
        kept_dir: arguments.kept_dir.clone(),
        ..Options::default()
    })?;
    crate::limits::raise();
    let arenas = chosen(&arguments, &config)?;
    let progress = Progress::new();
    let total = arenas.len();
    let mut rows = Vec::new();
    for (at, arena) in arenas.into_iter().enumerate() {
        let prefix = format!("recovering {} of {total}: {}", at + 1, output::path(&arena));
        rows.push(one(arena, &config, arguments.all, &progress, &prefix));
    }
    drop(progress);
    let summary = summed(&rows);
    let code = match &summary {
        Summary {
            failed_files: 0,
            failed_arenas: 0,
            kept_files: 0,
            ..
        } => DONE,
        Summary {
            failed_files: 0,
            failed_arenas: 0,
            ..
        } => KEPT_ASIDE,
        _ => FAILED,
    };
    if arguments.json {
        output.json(&Outcome {
            schema: SCHEMA,
            summary,
            arenas: rows,
        });
    } else {
        show(output, &rows, &summary);
    }
    Ok(code)
}

fn chosen(arguments: &Recover, config: &Config) -> Result<Vec<PathBuf>, Failure> {
    if let Some(path) = &arguments.arena {
        check_owner(path)?;
        return Ok(vec![path.clone()]);
    }
    let name = (!arguments.all).then_some(config.session.as_str());
    let found = sessions::find(config.arena_dir.as_deref(), name)?;
    if let (true, Some(name)) = (found.is_empty(), name) {
        point_to_others(config, name)?;
    }
    Ok(found.into_iter().map(|found| found.arena).collect())
}

/// The one that was meant may have another name.
fn point_to_others(config: &Config, name: &str) -> Result<(), Failure> {
    let all = sessions::find(config.arena_dir.as_deref(), None)?;
    let is_dead = |found: &&Found| matches!(&found.seen, Ok(seen) if seen.life == Life::Dead);
    let dead: Vec<_> = all
        .iter()
        .filter(is_dead)
        .map(|found| found.session.as_str())
        .collect();
    if !dead.is_empty() {
        output::note(format_args!(
            "there is no session {name}; dead ones of other names: {}; --all takes them",
            dead.join(", ")
        ));
    }
    Ok(())
}

/// An arena says which files to write what to. Its maker must not get our permissions by that.
fn check_owner(path: &Path) -> Result<(), Failure> {
    let shown = output::path(path);
    let meta = std::fs::symlink_metadata(path).map_err(|error| {
        Failure::Usage(format!(
            "{shown}: {error}; `forebay stat` lists the arenas that there are"
        ))
    })?;
    if !meta.is_file() {
        return Err(Failure::Usage(format!(
            "{shown} is not a file; name the arena's own file"
        )));
    }
    let me = forebay::memory::place::dir::user_id();
    if meta.uid() != me {
        return Err(Failure::Failed(format!(
            "{shown} belongs to user {}, and this is user {me}; recover it as its owner: an arena can name any file",
            meta.uid()
        )));
    }
    Ok(())
}

/// `lenient`: a session that lives is passed over, since nobody asked for it by name.
fn one(arena: PathBuf, config: &Config, lenient: bool, progress: &Progress, prefix: &str) -> Row {
    progress.show(prefix);
    let mut attempt = with_progress(&arena, config, progress, prefix);
    for _ in 0..TRIES {
        match &attempt {
            // Somebody's look at it may have been in the way.
            Err(error) if error.is_session(SessionFault::InUse) && !lives(&arena) => {
                std::thread::sleep(PAUSE);
                attempt = with_progress(&arena, config, progress, prefix);
            }
            _ => break,
        }
    }
    let (outcome, reason, report) = match attempt {
        Ok(report) => ("recovered", None, Some(report)),
        Err(error) if error.is_session(SessionFault::InUse) && lenient && lives(&arena) => {
            ("alive", None, None)
        }
        // It was there when it was chosen, and is removed only when nothing in it is needed.
        Err(_) if is_gone(&arena) => ("recovered", None, None),
        Err(error) => ("failed", Some(error.to_string()), None),
    };
    Row {
        arena,
        outcome,
        reason,
        report,
    }
}

fn is_gone(arena: &Path) -> bool {
    let found = std::fs::symlink_metadata(arena);
    found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn lives(arena: &Path) -> bool {
    matches!(
        look(arena),
        Ok(Some(Seen {
            life: Life::Alive,
            ..
        }))
    )
}

/// Recovers in a thread of its own, and meanwhile watches the arena to say how much is left.
fn with_progress(
    arena: &Path,
    config: &Config,
    progress: &Progress,
    prefix: &str,
) -> forebay::Result<Report> {
    if !progress.is_on() {
        return recover(arena, config);
    }
    let seen = look(arena).ok().flatten();
    std::thread::scope(|scope| {
        let (done, waiting) = mpsc::channel();
        let recovers = move || done.send(recover(arena, config));
        if std::thread::Builder::new()
            .spawn_scoped(scope, recovers)
            .is_err()
        {
            return recover(arena, config);
        }
        loop {
            match waiting.recv_timeout(SHOW_EVERY) {
                Ok(result) => return result,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let left = seen.as_ref().and_then(|seen| seen.stats());
                    if let Some(stats) = left {
                        progress.show(format_args!("{prefix}: {} left", bytes(stats.dirty_bytes)));
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::Corrupt("the recovery broke off".into()));
                }
            }
        }
    })
}

fn summed(rows: &[Row]) -> Summary {
    let mut sum = Summary {
        arenas: rows.len(),
        ..Summary::default()
    };
    for row in rows {
        match row.outcome {
            "alive" => sum.alive += 1,
            "failed" => sum.failed_arenas += 1,
            _ => {}
        }
        for saved in row.report.iter().flat_map(|report| &report.files) {
            match saved {
                Saved::Written { bytes, .. } => {
                    sum.written_files += 1;
                    sum.written_bytes += bytes;
                }
                Saved::Kept { bytes, .. } => {
                    sum.kept_files += 1;
                    sum.kept_bytes += bytes;
                }
                Saved::Failed { .. } => sum.failed_files += 1,
            }
        }
    }
    sum
}

fn show(output: &mut Output, rows: &[Row], summary: &Summary) {
    for row in rows {
        let arena = output::path(&row.arena);
        match (row.outcome, &row.reason, &row.report) {
            ("alive", ..) => output.line(format_args!(
                "{arena}: the session lives, nothing to recover"
            )),
            (_, Some(reason), _) => {
                let word = output.paint(Style::Bad, "failed");
                output.line(format_args!("{arena}: {word}: {reason}"));
            }
            (.., Some(report)) => show_report(output, report),
            _ => output.line(format_args!(
                "{arena}: recovered meanwhile by another process, which says what became of the files"
            )),
        }
    }
    if rows.is_empty() {
        output.line("nothing to recover");
        return;
    }
    output.line(format_args!(
        "{}: {} written ({}), {} kept aside ({}), {} failed",
        count(summary.arenas, "arena"),
        count(summary.written_files, "file"),
        bytes(summary.written_bytes),
        count(summary.kept_files, "file"),
        bytes(summary.kept_bytes),
        count(summary.failed_files, "file"),
    ));
    if summary.failed_files > 0 {
        output::note(
            "what failed is still in the arena: remove the cause and run the same command again",
        );
    }
}

fn show_report(output: &mut Output, report: &Report) {
    let arena = output::path(&report.arena);
    let state = if report.removed {
        "recovered and removed"
    } else {
        "kept, because it is still needed"
    };
    output.line(format_args!("{arena}: {state}"));
    for saved in &report.files {
        match saved {
            Saved::Written {
                path,
                bytes: written,
            } => {
                let word = output.paint(Style::Good, "written");
                output.line(format_args!(
                    "  {word} {}: {}",
                    output::path(path),
                    bytes(*written)
                ));
            }
            Saved::Kept {
                path,
                kept,
                reason,
                bytes: aside,
            } => {
                let word = output.paint(Style::Doubtful, "kept aside");
                output.line(format_args!(
                    "  {word} {}: {}, because {reason}",
                    output::path(path),
                    bytes(*aside)
                ));
                output.line(format_args!(
                    "      in {}, at their offsets; {} says which: compare, and copy what is missing",
                    output::path(kept),
                    output::path(&kept.with_extension("json"))
                ));
            }
            Saved::Failed { path, reason } => {
                let word = output.paint(Style::Bad, "failed");
                output.line(format_args!("  {word} {}: {reason}", output::path(path)));
            }
        }
    }
}
