//! Blocks that are lent to windows: taken in DRAM alone, so that a crash gives them back, until a commit of the window makes them a
//! file's.

use super::bits::set_bits;
use super::{Room, State};
use crate::errno::{Errno, Result};
use crate::layout::Kind;
use crate::space::Run;

impl State {
    /// Lends up to `wanted` consecutive blocks, from `goal` on if that can be had; an operation that is undone has lent none.
    pub fn lend(&mut self, goal: Option<u64>, wanted: u64) -> Result<Run> {
        let wanted = wanted.min(self.available(Room::New));
        if wanted == 0 {
            return Err(Errno::ENOSPC);
        }
        let run = self.blocks.take_run(goal, wanted).ok_or(Errno::ENOSPC)?;
        self.operation.taken.push(run);
        Ok(run)
    }

    /// Takes lent blocks back.
    pub fn give_back(&mut self, run: Run) {
        self.blocks.release_all(run);
    }

    /// Lent blocks become a file's, with what a program has stored there.
    pub fn adopt(&mut self, run: Run) -> Result<()> {
        self.fresh.set(run);
        self.operation.adopted.push(run);
        let first = self.geometry().bitmap;
        match set_bits(&mut self.pages, first, Kind::Blocks, run, true)? {
            set if set == run.length => Ok(()),
            _ => Err(Errno::EIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::medium::Durability;
    use crate::store::load_state;
    use crate::tests::drive::small_store;
    use crate::tests::sim::Simulated;

    #[test]
    fn what_an_undone_operation_has_lent_is_free_again() {
        let medium = Simulated::new(small_store(), Durability::Dax);
        let (mut state, damage) = load_state(medium).expect("a new store is read");
        assert_eq!(damage, [""; 0]);
        let free = state.blocks.free();
        assert!(state.lend(None, 5).is_ok());
        state.undo();
        assert_eq!(state.blocks.free(), free);
        // What stays is lent until it is given back.
        let run = state.lend(None, 5).expect("there is room");
        assert!(state.keep(&[]));
        state.undo();
        assert_eq!(state.blocks.free(), free - run.length);
        state.give_back(run);
        assert_eq!(state.blocks.free(), free);
    }
}
