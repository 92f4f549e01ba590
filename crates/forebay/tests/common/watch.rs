//! What hangs is named and ended: a test that waits for ever says nothing.
#![allow(dead_code)]

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The longest that one case may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What takes longer is named too.
const SLOW: Duration = Duration::from_secs(1);

/// Runs cases, each with a name; where one fails or hangs, its name is printed.
pub struct Watch {
    begun: Sender<Option<String>>,
}

impl Watch {
    /// Begins to watch.
    pub fn new() -> Watch {
        let (begun, cases) = channel::<Option<String>>();
        std::thread::spawn(move || {
            let mut current = None;
            loop {
                match cases.recv_timeout(PATIENCE) {
                    Ok(case) => current = case,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let Some(case) = &current else { continue };
                        // Not `eprintln`: the output of a test that is aborted is never shown.
                        let _ = writeln!(std::io::stderr(), "hangs: {case}");
                        std::process::abort();
                    }
                }
            }
        });
        Watch { begun }
    }

    /// Runs a case. `Err`: what it panicked with.
    pub fn run<T>(&self, name: &str, case: impl FnOnce() -> T) -> Result<T, String> {
        self.begun
            .send(Some(name.to_owned()))
            .expect("the watcher listens");
        let since = std::time::Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(case));
        if since.elapsed() > SLOW {
            let _ = writeln!(std::io::stderr(), "slow, {:?}: {name}", since.elapsed());
        }
        self.begun.send(None).expect("the watcher listens");
        ended.map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            format!("{name}: {}", text.unwrap_or_default())
        })
    }
}
