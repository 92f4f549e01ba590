//! The streams of a session, as people look at them: without a lock, each word as it is at that moment.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::config::DirtyTracking;
use crate::ids::{FileId, StreamId};
use crate::limits::BLOCK_BYTES;
use crate::memory::arena::Arena;
use crate::session::look::path_of;
use crate::stream::tracking;
use crate::stream::tree::{Span, extent_of};
use crate::sync::Ordering;
use crate::text::as_text;

/// How a stream has been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// During one visit.
    Once,
    /// Requests came back to it after others.
    Again,
}

/// One stream. Offsets and lengths are bytes, to whole blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeenStream {
    /// Last known path of its file.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Where it begins.
    #[serde(rename = "start_bytes")]
    pub start: u64,
    /// Where it ends.
    #[serde(rename = "end_bytes")]
    pub end: u64,
    /// Where what may be dirty begins, if anything is.
    #[serde(rename = "dirty_start_bytes")]
    pub dirty_start: Option<u64>,
    /// Where that ends.
    #[serde(rename = "dirty_end_bytes")]
    pub dirty_end: Option<u64>,
    /// For how long it has had its place among the others: since it became its file's current stream, or gave way to another.
    #[serde(rename = "age_ms", serialize_with = "as_ms")]
    pub age: Duration,
    /// How it has been used.
    pub kind: StreamKind,
}

fn as_ms<S: serde::Serializer>(age: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

/// How a session tracks what is owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeenTracking {
    /// By what.
    #[serde(rename = "dirty_tracking")]
    pub kind: DirtyTracking,
}

/// How what is owed is tracked.
pub(super) fn tracking_of(arena: &Arena) -> SeenTracking {
    SeenTracking {
        kind: tracking::kind(arena),
    }
}

/// All streams, by file and place.
pub(super) fn streams_of(arena: &Arena) -> Vec<SeenStream> {
    if !tracking::is_on(arena) {
        return Vec::new();
    }
    let tick = arena.superblock().tick.load(Ordering::Relaxed);
    let bytes = |block: u32| u64::from(block) * BLOCK_BYTES as u64;
    let seen = |id: u32| {
        let stream = arena.stream(StreamId(id))?;
        let file = stream.file.load(Ordering::Acquire).checked_sub(1)?;
        let (extent, entry) = (extent_of(stream), arena.file(FileId(file))?);
        let Span { start, end } = extent.span;
        let ticks = tick.wrapping_sub(stream.tick.load(Ordering::Relaxed));
        Some(SeenStream {
            path: path_of(entry),
            start: bytes(start),
            end: bytes(end),
            dirty_start: extent.dirty.map(|dirty| bytes(dirty.start)),
            dirty_end: extent.dirty.map(|dirty| bytes(dirty.end)),
            age: Duration::from_millis(ticks.into()),
            kind: match stream.visits.load(Ordering::Relaxed) {
                0 | 1 => StreamKind::Once,
                _ => StreamKind::Again,
            },
        })
    };
    let mut found: Vec<_> = (0..arena.counts().streams()).filter_map(seen).collect();
    found.sort_by(|a, b| (&a.path, a.start).cmp(&(&b.path, b.start)));
    found
}
