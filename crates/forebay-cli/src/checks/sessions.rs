//! Sessions that are there already: the living, and what the dead have left.

use forebay::Config;
use forebay::session::look::Life;

use super::Check;
use crate::output::{bytes, count};
use crate::sessions::{self, Found};

const WHY: &str = "a dead session holds memory, and bytes that its files do not have yet";

/// One check for all that is well, and one for each session that is not.
pub fn all(config: &Config) -> Vec<Check> {
    let found = sessions::find(config.arena_dir.as_deref(), None).unwrap_or_default();
    let living = found
        .iter()
        .filter(|found| matches!(&found.seen, Ok(seen) if seen.life == Life::Alive))
        .count();
    let mut checks: Vec<_> = found.iter().filter_map(stale).collect();
    let summary = format!(
        "{} alive, {} to be looked at",
        count(living, "session"),
        checks.len()
    );
    checks.insert(0, Check::ok("sessions", WHY, summary));
    checks
}

fn stale(found: &Found) -> Option<Check> {
    let name = &found.session;
    let check =
        |text: String| Check::ok("session", WHY, text).of(found.arena.display().to_string());
    match &found.seen {
        Err(unseen) => {
            Some(check(unseen.why.to_string()).warn(sessions::remedy_for_unseen(unseen)))
        }
        Ok(seen) if seen.life == Life::Dead => {
            let stats = seen.stats().unwrap_or_default();
            let owing = seen
                .files()
                .iter()
                .filter(|file| file.owed_bytes > 0)
                .count();
            let text = format!(
                "session {name} is dead, holds {} and owes {} to {}",
                bytes(stats.memory_held_bytes),
                bytes(stats.dirty_bytes),
                count(owing, "file")
            );
            Some(check(text).warn(format!("`forebay recover --session {name}`")))
        }
        Ok(seen) if seen.life == Life::Unfinished => Some(
            check(format!("session {name} was never finished"))
                .warn(format!("`forebay recover --session {name}` removes it")),
        ),
        Ok(seen) => {
            let remedy = sessions::remedy_for_keeper(seen)?;
            Some(check(format!("session {name} does not get on")).warn(remedy))
        }
    }
}
