//! What a cell has been since somebody who has written it was told that it is durable. If the host of the home loses power it may be any of that again; but
//! who syncs afterwards is told, if what it has written before has gone.

use crate::ids::Client;

/// The values, oldest first, with who has written them and in which operation; the last one is the present one.
#[derive(Clone, Debug, Default)]
pub struct Past {
    all: Vec<(u64, Option<(Client, u64)>)>,
    /// Writes of which somebody has seen that they have gone, and whose clients have not been told.
    gone: Vec<(Client, u64)>,
}

impl Past {
    /// A write ends: before it the cell was one of these.
    pub fn wrote(&mut self, befores: impl Iterator<Item = u64>, value: u64, by: (Client, u64)) {
        for before in befores {
            if !self.all.iter().any(|(value, _)| *value == before) {
                self.all.push((before, None));
            }
        }
        self.all.push((value, Some(by)));
    }

    /// Somebody reads it.
    pub fn seen(&mut self, value: u64) {
        match self.all.iter().rposition(|(held, _)| *held == value) {
            Some(at) => {
                let gone = self.all.drain(at + 1..).filter_map(|(_, by)| by);
                self.gone.extend(gone);
            }
            None if self.all.is_empty() => {}
            None => self.all.push((value, None)),
        }
    }

    /// All that it may be when power has gone.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.all.iter().map(|(value, _)| *value)
    }

    /// A client is told that what it has written before `begun` is durable. Says what the cell cannot be any more; an error if it has gone.
    pub fn synced(&mut self, client: Client, begun: u64) -> Result<Vec<u64>, String> {
        let is_own = |by: &(Client, u64)| by.0 == client && by.1 < begun;
        if let Some(gone) = self.gone.iter().find(|by| is_own(by)) {
            return Err(format!("a sync says nothing of the loss of {gone:?}"));
        }
        let last = { self.all.iter() }.rposition(|(_, by)| by.as_ref().is_some_and(is_own));
        let older = self.all.drain(..last.unwrap_or(0)).map(|(value, _)| value);
        Ok(older.collect())
    }

    /// A client is told that something that it has written has gone.
    pub fn told(&mut self, client: Client) {
        self.gone.retain(|by| by.0 != client);
        for (_, by) in &mut self.all {
            by.take_if(|by| by.0 == client);
        }
    }
}
