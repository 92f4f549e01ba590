//! An arena with damaged words: the checker names problems, a rebuild sets everything right, and work goes on. Nothing
//! panics, leaves the arena, or waits for ever.
//!
//! Input: what was done before, 8 steps of 4 bytes; then damages of 8 bytes each: where, and which bytes.

use crate::config::Config;
use crate::device::DeviceFile;
use crate::file::{File, OpenOptions};
use crate::frame::header::Header;
use crate::frame::slots::Node;
use crate::frame::slots::visit::{NodeState, state_of};
use crate::ids::{HeaderId, NodeId};
use crate::keeper::check::check as check_arena;
use crate::keeper::rebuild::{Dead, rebuild};
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::memory::superblock::Superblock;
use crate::memory::threads::stop_session;
use crate::session::Session;
use crate::sim::device::{Before, Call, SimDisk, SimOptions, Verdict, Wrapped};
use crate::sync::Ordering;
use std::mem::offset_of;
use std::sync::Arc;

const STEP_BYTES: usize = 4;
const STEPS: usize = 8;
const DAMAGE_BYTES: usize = 8;
/// Headers, and nodes, that damage may reach.
const TABLE_PART: u32 = 16;
/// No file of a simulated disk may become longer: offsets may be anything now.
const REACH: u64 = 64 << 20;

/// Refuses what a disk in memory cannot hold.
struct Bounded;

impl Before for Bounded {
    fn before(&self, call: &Call) -> Verdict {
        if call.offset.saturating_add(call.len) > REACH {
            return Verdict::Fail(std::io::Error::from_raw_os_error(libc::EFBIG));
        }
        Verdict::Proceed
    }
}

/// Panics unless a damaged arena can be checked, rebuilt, and worked with.
pub fn check(data: &[u8]) {
    let (steps, damages) = data.split_at(data.len().min(STEPS * STEP_BYTES));
    let disk = SimDisk::new(SimOptions::default());
    let session = Session::open(Config::tiny()).expect("a session");
    let device =
        || -> Arc<dyn DeviceFile> { Arc::new(Wrapped::new(disk.create(), Arc::new(Bounded))) };
    let devices = [device(), device()];
    let open = |device: &Arc<dyn DeviceFile>| open(&session, device);
    let files = devices
        .each_ref()
        .map(|device| open(device).expect("a file"));
    steps
        .as_chunks::<STEP_BYTES>()
        .0
        .iter()
        .for_each(|step| work(&files, *step));
    let arena = &session.shared().arena;
    let used = Used::of(arena);
    for damage in damages.as_chunks::<DAMAGE_BYTES>().0 {
        hurt(arena, &used, *damage);
    }
    let _ = check_arena(arena);
    let me = session.shared().me().expect("a slot");
    arena.superblock().gate.store(0, Ordering::Relaxed);
    let stop = stop_session(me).expect("nobody is at work");
    rebuild(
        me,
        &Dead {
            threads: &|_| true,
            landed: &|_| true,
        },
    );
    drop(stop);
    if let Err(problems) = check_arena(arena) {
        panic!("after a rebuild: {problems:#?}");
    }
    // The process that had files open when this happened is gone; their entries may be gone too.
    abandon(files);
    if let [Some(one), Some(other)] = devices.each_ref().map(open) {
        let files = [one, other];
        steps
            .as_chunks::<STEP_BYTES>()
            .0
            .iter()
            .for_each(|step| work(&files, *step));
        for file in files {
            let _ = file.close();
        }
    }
    if let Err(problems) = check_arena(arena) {
        panic!("after some work: {problems:#?}");
    }
}

/// Drops files as the kernel does for a process that is killed: nothing is closed.
fn abandon(files: [File; 2]) {
    crate::sim::crash_after(0, move || {
        crate::sim::point();
        drop(files);
    });
}

fn open(session: &Session, device: &Arc<dyn DeviceFile>) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    session
        .open_device(Arc::clone(device), "sim", &options)
        .ok()
}

/// One operation; errors are what damage may lead to.
fn work(files: &[File; 2], [what, place, a, b]: [u8; STEP_BYTES]) {
    let file = &files[usize::from(what >> 7)];
    let offset = u64::from(place % 24) * 65_536 + u64::from(a) * 77;
    let len = usize::from(b) * 300 + 1;
    let _ = match what % 8 {
        0..3 => file.write_at(&vec![a | 1; len], offset).map(drop),
        3 => file.append(&vec![b | 1; len % 5000]).map(drop),
        4 => file.read_at(&mut vec![0; len], offset).map(drop),
        5 => file.sync_data(),
        6 => file.set_len(offset),
        _ => file.punch(offset, len as u64),
    };
}

/// Where the part of each large table begins that the work has used: damage elsewhere would be to nothing.
struct Used {
    node: usize,
    header: usize,
}

impl Used {
    fn of(arena: &Arena) -> Used {
        let is_linked = |id: &u32| arena.header(HeaderId(*id))?.identity();
        let is_used = |id: &u32| arena.node(NodeId(*id)).map(state_of) == Some(NodeState::Linked);
        let node = (0..arena.counts().nodes - TABLE_PART).find(is_used);
        let header = (0..arena.counts().headers - TABLE_PART).find(|id| is_linked(id).is_some());
        Used {
            node: node.unwrap_or(0) as usize,
            header: header.unwrap_or(0) as usize,
        }
    }
}

/// Overwrites or flips four bytes of a table.
fn hurt(arena: &Arena, used: &Used, [table, how, x, y, v0, v1, v2, v3]: [u8; DAMAGE_BYTES]) {
    let counts = arena.counts();
    let frames = counts.frames as usize;
    let layout = arena.layout();
    let superblock = offset_of!(Superblock, table_lock);
    let (start, len) = match table % 8 {
        0 => (superblock, size_of::<Superblock>() - superblock),
        1 => (layout.files, counts.files as usize * size_of::<FileEntry>()),
        2 => (layout.frame_owners, frames * 4),
        3 => (layout.small_owners, frames * 64 * 4),
        4 => (layout.frame_hints, layout.frame_owners - layout.frame_hints),
        5 => (
            layout.nodes + used.node * size_of::<Node>(),
            TABLE_PART as usize * size_of::<Node>(),
        ),
        6 => (layout.carves, frames * 8),
        // Most of what there is to go wrong.
        _ => (
            layout.headers + used.header * size_of::<Header>(),
            TABLE_PART as usize * size_of::<Header>(),
        ),
    };
    let word = (usize::from(x) | usize::from(y) << 8) * 4 % len / 4 * 4;
    let value = u32::from_le_bytes([v0, v1, v2, v3]);
    // Small numbers are what indices, states and owners look like.
    let value = if how & 2 == 0 { value % 64 } else { value };
    arena.overwrite(
        start + word,
        |old| if how & 1 == 0 { value } else { old ^ value },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::fuzz::seeded;

    #[test]
    fn seeded_inputs_hold() {
        seeded(600, STEPS * STEP_BYTES + 40 * DAMAGE_BYTES, check);
    }

    /// Three blocks are written; then each header says that the first frame is its own.
    fn one_frame_for_all() -> Vec<u8> {
        let writes = [0, 4, 8].map(|place| [0, place, 0, 255]);
        let idle = [[4, 0, 0, 0]; STEPS - 3];
        let claims = (0..16).map(|header| {
            let word = (header * size_of::<Header>() + Header::FRAME_OFFSET) / 4;
            [7, 0, word as u8, (word >> 8) as u8, 1, 0, 0, 0]
        });
        let steps = [&writes[..], &idle[..]].concat().concat();
        [steps, claims.collect::<Vec<_>>().concat()].concat()
    }

    #[test]
    fn a_rebuild_that_trusts_is_caught() {
        check(&one_frame_for_all());
        crate::sim::plant(Some(crate::sim::Bug::TrustFrames));
        let caught = std::panic::catch_unwind(|| check(&one_frame_for_all())).is_err();
        crate::sim::plant(None);
        assert!(caught, "nobody noticed");
    }

    #[test]
    #[ignore = "many inputs; minutes"]
    fn many_seeded_inputs_hold() {
        seeded(6_000, STEPS * STEP_BYTES + 60 * DAMAGE_BYTES, check);
    }
}
