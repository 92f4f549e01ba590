//! What views and windows are worth: bytes read, summed and saved without a copy, with one by the engine, and by the kernel's ways, in turn.
//!
//!     FOREBAY_MEMORY=3GiB FOREBAY_DIRTY_BYTES_MAX=2GiB cargo run --release -p forebay-capi --example zero_copy -- DIR [PART...]
//!
//! Parts are `cached`, `cold`, `saved`, `sizes` and `rewritten`; without any, all. Each line has medians of seven rounds after one that warms the
//! memory of all, and in brackets the least and the most. Nothing is compared with what another run has measured. DIR holds up to 3 GiB meanwhile.

mod cold;
mod kernel;
mod measure;
mod views;
mod windows;

use forebay::{Config, File, OpenOptions, Result, Session};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Where files are made, and a session.
struct Place {
    session: Session,
    dir: String,
}

impl Place {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn open(&self, name: &str) -> Result<File> {
        open(&self.session, &self.path(name))
    }

    fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.path(name));
    }
}

fn open(session: &Session, path: &str) -> Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true);
    session.open_file(path, &how)
}

/// A session of this process's own.
fn session(name: &str) -> Result<Session> {
    let mut options = forebay::config::Options::default();
    options.set(
        "session",
        &format!("zero-copy-{name}-{}", std::process::id()),
    )?;
    Session::open(Config::load_with(options)?)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| ".".into());
    let wanted: Vec<String> = arguments.collect();
    let is_wanted = |part: &str| wanted.is_empty() || wanted.iter().any(|name| name == part);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {load}");
    type Part = fn(&Place) -> Result<()>;
    let all: [(&str, Part); 5] = [
        ("cached", views::cached),
        ("cold", cold::cold),
        ("saved", windows::saved),
        ("sizes", windows::sizes),
        ("rewritten", windows::rewritten),
    ];
    for (name, part) in all.into_iter().filter(|(name, _)| is_wanted(name)) {
        let place = Place {
            session: session(name)?,
            dir: dir.clone(),
        };
        part(&place)?;
    }
    Ok(())
}
