//! What happens to pools: breaks, cuts, deaths, and clocks that jump.

use super::{Scene, any};
use crate::ids::{Client, Node, Server as ServerId};
use crate::server::Server;
use crate::sim::{TERM, World};

/// Perhaps something happens to a pool that its scene has.
pub(super) fn befall(world: &mut World, scene: Scene) {
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
            if world.random.chance(300) {
                world.leave_client(client);
            } else {
                world.kill_client(client);
            }
            world.add_client();
        }
        if world.random.chance(25) {
            let until = now + world.random.below(TERM * 3);
            let peer = peers[world.random.below(2) as usize];
            world.cut(Node::Client(client), peer, until);
        }
        if world.random.chance(8) {
            let until = now + world.random.below(TERM * 3);
            for peer in servers
                .iter()
                .map(|server| Node::Server(*server))
                .chain([Node::Register])
            {
                world.cut(Node::Client(client), peer, until);
            }
        }
        if world.random.chance(8) {
            let by = world.random.below(TERM * 2);
            let node = [Node::Client(client), Node::Server(server)][world.random.below(2) as usize];
            world.jump(node, by);
        }
        if scene != Scene::Rulers && world.random.chance(4) {
            let until = now + world.random.below(TERM * 2);
            world.register_away(until);
        }
    }
    befall_home(world, scene, &servers, server);
    if scene.kills_servers() && is_settled(world) {
        match world.random.below(60) {
            0 if servers.len() > 2 => {
                world.kill_server(server);
                world.add_server();
            }
            1 if servers.len() < scene.servers() as usize + 2 => {
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

/// Now and then a server dies, or the host of the home and of all servers loses power.
fn befall_host(world: &mut World, scene: Scene, server: ServerId) {
    match world.random.below(80) {
        0 => {
            world.kill_server(server);
            world.add_server();
        }
        1 => world.cut_power(scene.servers()),
        _ => {}
    }
}

/// Servers die when they like, and now and then everybody does.
fn befall_home(world: &mut World, scene: Scene, servers: &[ServerId], server: ServerId) {
    if scene.cuts_power() {
        befall_host(world, scene, server);
    }
    if !scene.kills_all() {
        return;
    }
    if scene == Scene::Rulers && world.random.chance(20) {
        if world.random.chance(300) {
            world.kill_ruler();
        } else {
            let until = world.now + world.random.below(TERM * 4);
            world.cut_ruler(until);
        }
    }
    match world.random.below(100) {
        0 => {
            world.kill_server(server);
            world.add_server();
        }
        1 if servers.len() > 1 => world.kill_server(server),
        2 if servers.len() < 4 => {
            world.add_server();
        }
        3 if scene != Scene::Rulers && world.random.chance(300) => world.restart(2),
        _ => {}
    }
}

/// Whether every block has its copies, so that one server may die.
fn is_settled(world: &mut World) -> bool {
    world.servers.retain(|_, server| !server.is_gone());
    let view = world.register().view();
    let alive: Vec<_> = world.servers.keys().copied().collect();
    // A server that leaves may not have told the register yet.
    let none_leaves = !world.servers.values().any(Server::is_leaving);
    view.active && none_leaves && view.servers == alive
}
