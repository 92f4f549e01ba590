//! The bitmap of blocks against what files have.

use super::Checker;
use crate::layout::Kind;

impl Checker<'_> {
    /// Every block that something has is marked, and no other.
    pub(super) fn blocks(&mut self) {
        let geometry = *self.state.geometry();
        let marked = self.marked(geometry.bitmap, Kind::Blocks, geometry.blocks);
        let mut marks = vec![0u64; self.used.len()];
        for block in marked {
            marks[(block / 64) as usize] |= 1 << (block % 64);
        }
        for block in 0..geometry.blocks {
            let is_marked = marks[(block / 64) as usize] & (1 << (block % 64)) != 0;
            let is_used = block < geometry.data || self.is_used(block);
            match (is_marked, is_used) {
                (true, false) => {
                    self.tell(
                        format!("block {block} is marked, and nothing has it"),
                        "its space",
                    );
                }
                (false, true) => {
                    let what = format!("block {block} is in use, and not marked");
                    self.tell(what, "nothing yet; new bytes may be written there");
                }
                _ => {}
            }
        }
    }
}
