//! The part of a rebuild that says anew which streams there are.

use super::Rebuild;
use crate::frame::header::State;
use crate::stream::tracking::{self, Block};
use crate::sync::Ordering;

impl Rebuild<'_, '_> {
    /// Trees of streams and the session's lists, from the headers that are linked.
    pub(super) fn streams(&self) {
        let tick = self.arena().superblock().tick.load(Ordering::Relaxed);
        let linked = self.all_headers().filter_map(|(_, header)| {
            let is_linked = matches!(header.state(), State::Linked | State::Superseded(_));
            let identity = header.identity().filter(|_| is_linked)?;
            Some(Block {
                file: identity.file,
                block: identity.block,
                owed: header.charged() != 0,
                idle: header.idle_ticks(tick),
            })
        });
        tracking::rebuild(self.me, linked.collect());
    }
}
