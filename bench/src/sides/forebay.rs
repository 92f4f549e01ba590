//! The engine as a side: everything the harness knows of its API.
//!
//! Each run has a session of its own, ended with the side, so that neither its memory nor its keeper
//! is there while another side is measured.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use forebay::config::{Options, Route};
use forebay::{Config, File, OpenOptions, Session};

use super::{Side, SideStats, not_open};

/// Route by predicted times.
pub const AUTO: Route = Route::Auto;
/// Route by the paper's fixed threshold.
pub const THRESHOLD: Route = Route::Threshold;

/// A session with one file.
pub struct Forebay {
    // Before the session: a file is dropped while its session is there.
    file: Option<File>,
    session: Session,
}

impl Forebay {
    /// Opens a session that routes by `route`.
    pub fn new(route: Route) -> io::Result<Self> {
        Self::with(Options {
            route: Some(route),
            ..Options::default()
        })
    }

    /// Opens a session in which nothing is read ahead.
    pub fn without_reading_ahead() -> io::Result<Self> {
        let mut options = Options::default();
        options.set("read_ahead", "0").map_err(io::Error::other)?;
        Self::with(options)
    }

    fn with(options: Options) -> io::Result<Self> {
        let options = Options {
            arena_dir: crate::place::arena_dir().map(Path::to_owned),
            ..options
        };
        let config = Config::builder().options(options).build();
        let config = config.map_err(|error| io::Error::other(error.to_string()))?;
        static SESSIONS: AtomicU32 = AtomicU32::new(0);
        let number = SESSIONS.fetch_add(1, Relaxed);
        let session = Session::open(Config {
            session: format!("bench-{}-{number}", std::process::id()),
            ..config
        })
        .map_err(to_io)?;
        Ok(Forebay {
            file: None,
            session,
        })
    }

    #[inline]
    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(not_open)
    }
}

fn to_io(error: impl Into<io::Error>) -> io::Error {
    error.into()
}

impl Side for Forebay {
    fn open(&mut self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = self.session.open_file(path, &options).map_err(to_io)?;
        if let Some(reason) = file.kernel_reason() {
            // A measurement of the kernel under the engine's name would be a lie.
            return Err(io::Error::other(format!("not managed: {reason}")));
        }
        self.file = Some(file);
        Ok(())
    }

    #[inline]
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let count = self.file()?.write_at(bytes, offset).map_err(to_io)?;
        if count == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    #[inline]
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let count = self.file()?.read_at(bytes, offset).map_err(to_io)?;
        if count == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_all().map_err(to_io)
    }

    fn close(&mut self) -> io::Result<()> {
        self.file
            .take()
            .map_or(Ok(()), |file| file.close().map_err(to_io))
    }

    fn stats(&self) -> Option<SideStats> {
        let stats = self.session.stats();
        Some(SideStats {
            scrap_bytes: stats.scrap_bytes,
            direct_bytes: stats.direct_bytes,
            kernel_bytes: stats.kernel_bytes,
            device_read_bytes: stats.device_read_bytes,
            device_write_bytes: stats.device_write_bytes,
            memory_held_bytes: stats.memory_held_bytes,
            owed_memory_bytes: stats.owed_memory_bytes,
            dirty_bytes: stats.dirty_bytes,
        })
    }

    fn warm(&mut self, bytes: u64) -> io::Result<()> {
        self.session.warm(bytes).map_err(to_io)
    }
}
