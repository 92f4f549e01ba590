//! What clients have had for long when they die.

use super::{CELLS, Fault, bytes, make_file, seen};
use crate::client::{Mode, Operation};
use crate::ids::Client;
use crate::mistakes::{Mistake, plant};
use crate::sim::check::CELL;
use crate::sim::leftovers::BLOCK;
use crate::sim::{TERM, World};

const APPENDS: u64 = 1000;

/// A client writes, makes the file longer again and again, and dies. Do others find all that is old?
fn outlives_its_client(seed: u64, has_home: bool, cells: u64) -> Result<(), Fault> {
    let mut world = World::new(seed, 3, 2, has_home);
    let file = make_file(&mut world).map_err(Fault::Stuck)?;
    let clients: Vec<Client> = world.clients.keys().copied().collect();
    let write = Operation::Write {
        file,
        offset: 0,
        bytes: bytes(7, CELLS),
        mode: Mode::Local,
    };
    world.begin(clients[0], write);
    let mut sizes = Vec::new();
    // More often than servers answer.
    for value in 0..APPENDS {
        let bytes = bytes(100 + value, cells);
        world.begin(clients[0], Operation::Append { file, bytes });
        world.run(world.now + 1);
        sizes.push(world.checker.size(file));
    }
    world.kill_client(clients[0]);
    world.run(world.now + TERM * 3);
    let read = Operation::Read {
        file,
        offset: 0,
        length: (CELLS + APPENDS * cells) * CELL,
        mode: Mode::Local,
    };
    for operation in [Operation::Attributes { file }, read] {
        world.begin(clients[1], operation);
    }
    world.run(world.now + TERM * 3);
    seen(&world)?;
    if !world.open.is_empty() {
        return Err(Fault::Stuck(format!("{:?}", world.open)));
    }
    let (found, then) = (world.checker.size(file), sizes[sizes.len() / 2]);
    assert!(then > CELLS as usize + 100, "it has grown to {then}");
    let is_new = |cell: &usize| world.checker.value(file, *cell) == 7;
    if found < then || !(0..CELLS as usize).all(|cell| is_new(&cell)) {
        let what = format!("{found} cells are left, and it had {then} long before");
        return Err(Fault::Wrong(what));
    }
    Ok(())
}

/// Of cells, and of whole blocks, which leave memory when they have been written.
fn first_fault() -> Option<Fault> {
    (1..101).find_map(|seed| {
        let cells = [1, BLOCK / CELL][seed as usize / 2 % 2];
        outlives_its_client(seed, seed % 2 == 0, cells).err()
    })
}

#[test]
fn what_a_client_has_had_for_long_outlives_it() {
    let fault = first_fault();
    assert!(fault.is_none(), "{fault:?}");
}

#[test]
fn lengths_of_growing_files_that_are_told_too_soon_are_found() {
    plant(Some(Mistake::TellsRisingLengths));
    let fault = first_fault();
    plant(None);
    println!("{fault:?}");
    assert!(matches!(fault, Some(Fault::Wrong(_))), "it is not found");
}
