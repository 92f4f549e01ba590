//! Frames that come from elsewhere, over what a block has.

use std::sync::Arc;

use crate::config::Config;
use crate::evict::evict_file;
use crate::file::OpenOptions;
use crate::file::window::commit::attach_block;
use crate::frame::slots;
use crate::ids::BlockIndex;
use crate::keeper::check::check;
use crate::limits::BLOCK_BYTES;
use crate::memory::layout::Counts;
use crate::memory::{pins, regions};
use crate::scrap::absorb::{Home, find_home};
use crate::scrap::split::mask;
use crate::session::Session;
use crate::sim::device::{SimDisk, SimOptions};

/// A writer has found small frames for some of its pages, and no more; while it waits for memory a window's frame becomes the block's.
#[test]
fn small_frames_without_bytes_go_when_a_block_gets_a_frame() {
    let counts = Counts {
        threads: 4,
        files: 2,
        nodes: 64,
        headers: 8,
        frames: 8,
    };
    let session = Session::simulated(Config::tiny(), counts).expect("a session");
    let device = SimDisk::new(SimOptions::default()).create();
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "sim", &options);
    let file = file.expect("a file");
    let (core, me) = (file.core().expect("managed"), session.shared().me());
    let me = me.expect("a slot");
    // So that there are free frames.
    file.write_at(&vec![1; 2 * BLOCK_BYTES], 0)
        .expect("written");
    file.sync_data().expect("synced");
    evict_file(me, core.id);
    let block = BlockIndex(0);
    let found = core.operate(me, |operation| {
        let guard = core.lock(operation.me, block)?;
        Ok(find_home(&guard, mask(3..8), Home::Small))
    });
    assert_eq!(found.expect("locked"), Ok(()));
    let pin = {
        let _alone = me.enter_arena();
        let frame = regions::take_frame(me).expect("a frame");
        pins::hold(me, 1, frame).expect("held")
    };
    attach_block(core, me, block, pin.frame).expect("committed");
    pins::unpin(me, &[pin]);
    let arena = Arc::clone(&session.shared().arena);
    let header = slots::lookup(&arena, core.entry(), block).expect("linked");
    let header = arena.header(header).expect("a header");
    assert_eq!(header.look().small_pages(), 0, "left behind");
    file.set_len(0).expect("cut");
    check(&arena).expect("sound");
}
