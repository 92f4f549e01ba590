//! Scenes with servers whose memory is soon full.

use super::{Fault, Scene, assert_found, holds_in, told};
use crate::mistakes::Mistake;
use crate::sim::World;

/// Some of the first file's blocks, and a few others.
const ROOM: u64 = 400;

/// What clients have written already when they hear that a server is full, or make before they hear it, at most: three clients, each with six dirty
/// blocks of 32 bytes and three operations of twelve cells under way, and names. Not all of that is new, or for one server: in three thousand pools there
/// were 377.
const BEYOND: u64 = 1440;

/// Gives the servers little memory.
pub(super) fn make_small(world: &mut World) {
    let servers = world.servers.values_mut();
    servers.for_each(|server| server.set_room(ROOM));
}

/// No server has much more than its memory.
pub(super) fn stays_small(world: &World) -> Result<(), Fault> {
    let most = { world.servers.values() }.map(|server| server.blocks().1);
    match most.max().filter(|bytes| *bytes > ROOM + BEYOND) {
        Some(bytes) => Err(Fault::Wrong(format!("a server has {bytes} bytes"))),
        None => Ok(()),
    }
}

#[test]
fn servers_without_room_take_no_more_than_is_owed_to_them() {
    let first = told("TEST_SEED").unwrap_or(1);
    let pools = told("TEST_POOLS").unwrap_or(200);
    let steps = told("TEST_STEPS").unwrap_or(120);
    let worlds = (first..first + pools).map(|seed| holds_in(Scene::Full, seed, steps));
    let refused = |world: World| u64::from(world.failures.contains_key("NoRoom"));
    let refused: u64 = worlds.map(refused).sum();
    println!("{refused} of {pools} pools have refused something");
    assert!(pools < 200 || refused > pools / 2, "{refused}");
}

#[test]
fn clients_that_fill_the_full_are_found() {
    assert_found(Mistake::FillsTheFull, Scene::Full);
}
