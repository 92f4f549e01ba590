//! What happens to simulated pools, and the tests.

use std::collections::BTreeMap;

use forebay_model::fresh_seed;

use super::World;
use super::check::CELL;
use crate::client::{Mode, Operation};
use crate::ids::{Client, File, Node};
use crate::mistakes::{Mistake, plant};

const CELLS: u64 = 48;

/// What befalls a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// Delays alone.
    Quiet,
    /// Connections break.
    Breaks,
    /// Servers die, join and leave; every block has two copies.
    Servers,
    /// Clients die and are cut off, clocks jump, the register goes away.
    Clients,
    /// All of it.
    All,
}

const SCENES: [Scene; 5] = [
    Scene::Quiet,
    Scene::Breaks,
    Scene::Servers,
    Scene::Clients,
    Scene::All,
];

impl Scene {
    fn kills_clients(self) -> bool {
        matches!(self, Scene::Clients | Scene::All)
    }

    fn kills_servers(self) -> bool {
        matches!(self, Scene::Servers | Scene::All)
    }
}

fn bytes(value: u64, cells: u64) -> Vec<u8> {
    (0..cells).flat_map(|_| value.to_le_bytes()).collect()
}

fn operation(world: &mut World, scene: Scene, value: u64) -> Operation {
    let files: Vec<File> = world.files.iter().copied().collect();
    let random = &mut world.random;
    let file = files[random.below(files.len() as u64) as usize];
    let offset = random.below(CELLS) * CELL;
    let cells = 1 + random.below((CELLS - offset / CELL).min(12));
    let mode = if random.chance(300) {
        Mode::Remote
    } else {
        Mode::Local
    };
    let names = [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()];
    let name = |random: &mut crate::random::Random| names[random.below(3) as usize].clone();
    match random.below(100) {
        0..40 => Operation::Read {
            file,
            offset,
            length: cells * CELL,
            mode,
        },
        40..80 => Operation::Write {
            file,
            offset,
            bytes: bytes(value, cells),
            mode,
        },
        80..88 => Operation::Sync { file },
        _ if scene.kills_clients() => Operation::Size { file },
        88..92 => Operation::Append {
            file,
            bytes: bytes(value, 1 + cells % 5),
        },
        92..95 => Operation::Truncate { file, size: offset },
        95..97 => Operation::Rename {
            from: name(random),
            to: name(random),
        },
        97..99 => Operation::Open {
            name: name(random),
            create: random.chance(700),
        },
        _ => Operation::Size { file },
    }
}

fn any<T: Copy>(world: &mut World, of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| of[world.random.below(of.len() as u64) as usize])
}

fn befall(world: &mut World, scene: Scene) {
    let clients: Vec<Client> = world.clients.keys().copied().collect();
    let servers: Vec<_> = world.servers.keys().copied().collect();
    let (Some(client), Some(server)) = (any(world, &clients), any(world, &servers)) else {
        return;
    };
    let now = world.now;
    let peers = [Node::Register, Node::Server(server)];
    if scene != Scene::Quiet && world.random.chance(60) {
        let peer = peers[world.random.below(2) as usize];
        world.break_link(Node::Client(client), peer);
        if let Some(other) = any(world, &servers).filter(|other| *other != server) {
            world.break_link(Node::Server(server), Node::Server(other));
        }
    }
    if scene.kills_clients() {
        if world.random.chance(12) {
            world.kill_client(client);
            world.add_client();
        }
        if world.random.chance(25) {
            let until = now + world.random.below(super::TERM * 3);
            let peer = peers[world.random.below(2) as usize];
            world.cut(Node::Client(client), peer, until);
        }
        if world.random.chance(8) {
            let until = now + world.random.below(super::TERM * 3);
            for peer in servers
                .iter()
                .map(|server| Node::Server(*server))
                .chain([Node::Register])
            {
                world.cut(Node::Client(client), peer, until);
            }
        }
        if world.random.chance(8) {
            let by = world.random.below(super::TERM * 2);
            let node = [Node::Client(client), Node::Server(server)][world.random.below(2) as usize];
            world.jump(node, by);
        }
        if world.random.chance(4) {
            let until = now + world.random.below(super::TERM * 2);
            world.register_away(until);
        }
    }
    if scene.kills_servers() && is_settled(world) {
        match world.random.below(60) {
            0 if servers.len() > 2 => {
                world.kill_server(server);
                world.add_server();
            }
            1 if servers.len() < 5 => {
                world.add_server();
            }
            2 if servers.len() > 2 => {
                if let Some(server) = world.servers.get_mut(&server) {
                    server.leave();
                }
            }
            _ => {}
        }
    }
}

/// Whether every block has its copies, so that one server may die.
fn is_settled(world: &mut World) -> bool {
    world.servers.retain(|_, server| !server.is_gone());
    let view = world.register.view();
    let alive: Vec<_> = world.servers.keys().copied().collect();
    view.active && view.leaving.is_empty() && view.servers == alive
}

/// Runs a pool; says what was wrong.
fn play(seed: u64, scene: Scene, steps: u64) -> Result<World, String> {
    let copies = if scene.kills_servers() {
        2
    } else {
        1 + (seed % 2) as usize
    };
    let servers = if scene.kills_servers() { 3 } else { 2 };
    let mut world = World::new(seed, servers, 3, copies);
    if scene == Scene::Quiet {
        world.delay_max = 1 + seed % 40;
    }
    let wrong = |world: &World| world.checker.faults.first().cloned();
    world.run(300);
    let first = world.clients.keys().next().copied();
    let first = first.ok_or("no client")?;
    world.begin(
        first,
        Operation::Open {
            name: b"one".to_vec(),
            create: true,
        },
    );
    world.run(1000);
    let file = world
        .files
        .first()
        .copied()
        .ok_or_else(|| format!("no file was made: {:?}", world.failures))?;
    world.begin(
        first,
        Operation::Truncate {
            file,
            size: CELLS * CELL,
        },
    );
    world.begin(first, Operation::Sync { file });
    world.run(2000);
    if !world.open.is_empty() {
        return Err(format!("the file is not made: {:?}", world.open));
    }
    for step in 0..steps {
        let clients: Vec<Client> = world
            .clients
            .iter()
            .filter(|(_, client)| !client.is_gone())
            .map(|(id, _)| *id)
            .collect();
        if let Some(client) = any(&mut world, &clients)
            && world.open.values().filter(|(by, _)| *by == client).count() < 3
        {
            let operation = operation(&mut world, scene, step + 1);
            world.begin(client, operation);
        }
        befall(&mut world, scene);
        let until = world.now + world.random.below(20);
        world.run(until);
        let gone: Vec<Client> = world
            .clients
            .iter()
            .filter(|(_, client)| client.is_gone())
            .map(|(id, _)| *id)
            .collect();
        for client in gone {
            world.kill_client(client);
            world.add_client();
        }
        if let Some(fault) = wrong(&world) {
            return Err(fault);
        }
    }
    // All is quiet: everything that was begun ends, and everybody sees the same.
    let until = world.now + super::TERM * 12;
    world.run(until);
    for client in world.clients.keys().copied().collect::<Vec<_>>() {
        world.begin(
            client,
            Operation::Read {
                file,
                offset: 0,
                length: CELLS * 2 * CELL,
                mode: Mode::Local,
            },
        );
    }
    let until = world.now + super::TERM * 12;
    world.run(until);
    if let Some(fault) = wrong(&world) {
        return Err(fault);
    }
    let alive: BTreeMap<_, _> = world
        .open
        .iter()
        .filter(|(_, (by, _))| world.clients.contains_key(by))
        .collect();
    if !alive.is_empty() {
        return Err(format!(
            "never ends: {alive:?}; view {:?}",
            world.register.view()
        ));
    }
    let allowed =
        |failure: &str| failure == "NoSuchName" || scene.kills_clients() && failure != "Lost";
    match world.failures.keys().find(|failure| !allowed(failure)) {
        Some(failure) => Err(format!("fails without a reason: {failure}")),
        None => Ok(world),
    }
}

fn holds(seeds: impl Iterator<Item = u64>, steps: u64) {
    for seed in seeds {
        let scene = SCENES[(seed % 5) as usize];
        println!("seed {seed}, {scene:?}");
        if let Err(fault) = play(seed, scene, steps) {
            panic!("seed {seed}, {scene:?}: {fault}");
        }
    }
}

#[test]
fn a_thousand_pools_are_linearizable() {
    if let Some(seed) = std::env::var("TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        return holds(std::iter::once(seed), 120);
    }
    holds(1..1001, 120);
}

#[test]
#[ignore = "long: a million operations"]
fn many_pools_are_linearizable() {
    holds(fresh_seed()..fresh_seed() + 2500, 400);
}

#[test]
fn planted_mistakes_are_found() {
    let mistakes = [
        Mistake::OldKeysOpen,
        Mistake::GrantsBeforeClaims,
        Mistake::RecallsGetLost,
        Mistake::ReleasesEndUnseen,
        Mistake::ReleasesBeforeWritten,
        Mistake::TermsNeverEnd,
    ];
    for mistake in mistakes {
        plant(Some(mistake));
        let found = (1..2000).find(|seed| play(*seed, SCENES[(seed % 5) as usize], 120).is_err());
        plant(None);
        println!("{mistake:?}: found by seed {found:?}");
        assert!(found.is_some(), "{mistake:?} is not found");
    }
}
