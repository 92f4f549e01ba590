//! What new members are called. No number is given twice, not in another life of the pool either: a file is called after its maker.

use std::path::PathBuf;

use super::Config;
use crate::home::{Directory, Owner, first_epoch};
use crate::ids::{Client, Node, PLACES, Server};
use crate::register::Floor;

/// Clients of one life. For more another life is taken, whose numbers nobody has had either.
const CLIENTS_OF_A_LIFE: u32 = 1 << 16;

/// Lives of the server at each place in one life of a pool with etcd.
const SERVERS_OF_A_LIFE: u32 = 1 << 8;

/// Where another life comes from.
#[derive(Clone, Debug)]
enum More {
    /// There is none: these numbers end with the pool.
    None,
    Home(PathBuf, Owner),
    /// Whoever rules takes it.
    Ruler,
}

/// There is none.
pub(super) const NO_NUMBER: Given = Given::Never("there is no number for it here");

/// What somebody is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Number(Node),
    /// There will be one in a moment.
    Later,
    /// And why.
    Never(&'static str),
}

/// Numbers of one life.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    clients: u32,
    /// How often the server at each place has been given one.
    servers: Vec<u32>,
    /// Numbers of servers are after this one.
    first_server: u32,
    more: More,
    has_ended: bool,
}

impl Numbers {
    /// Of a pool whose first server rules: that one has the number 1.
    pub fn of_first(config: &Config, birth: u64, life: Option<u64>) -> Numbers {
        let home = config.home.clone();
        let block_bytes = config.block_bytes;
        let owner = Owner { block_bytes, birth };
        let more = home.map_or(More::None, |home| More::Home(home, owner));
        let mut servers = vec![0; PLACES];
        if let Some(first) = servers.first_mut() {
            *first = u32::MAX;
        }
        Numbers {
            // After the last number there is none.
            clients: first_client(life.unwrap_or(0)).unwrap_or(u32::MAX),
            servers,
            first_server: 0,
            more,
            has_ended: false,
        }
    }

    /// Of whoever rules in this life.
    pub fn of_ruler(life: u64) -> Numbers {
        Numbers {
            clients: first_client(life).unwrap_or(u32::MAX),
            servers: vec![0; PLACES],
            first_server: first_server(life).unwrap_or(u32::MAX),
            more: More::Ruler,
            has_ended: false,
        }
    }

    /// Where the numbers of a ruler's life begin, and its epochs.
    pub fn floor(life: u64) -> Floor {
        Floor {
            epoch: first_epoch(life),
            client: first_client(life).unwrap_or(u32::MAX),
            server: first_server(life).map_or(u32::MAX, |first| first.saturating_add(1)),
        }
    }

    /// Whether a ruler should take another life.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub fn client(&mut self) -> Given {
        let Some(next) = self.clients.checked_add(1) else {
            return NO_NUMBER;
        };
        if next.is_multiple_of(CLIENTS_OF_A_LIFE) {
            match &self.more {
                More::None => {}
                More::Home(home, owner) => {
                    let is_there = Directory::check(home, *owner);
                    let life = is_there.and_then(|()| Directory::begin_life(home, *owner));
                    let life = life.ok();
                    let Some(first) = life.and_then(first_client) else {
                        return NO_NUMBER;
                    };
                    self.clients = first + 1;
                    return Given::Number(Node::Client(Client(self.clients)));
                }
                More::Ruler => {
                    self.has_ended = true;
                    return Given::Later;
                }
            }
        }
        self.clients = next;
        Given::Number(Node::Client(Client(next)))
    }

    /// Of the server at this place in the list.
    pub fn server(&mut self, place: u8) -> Given {
        let is_rulers = matches!(self.more, More::Ruler);
        let life = &mut self.servers[usize::from(place)];
        if is_rulers && *life == SERVERS_OF_A_LIFE {
            self.has_ended = true;
            return Given::Later;
        }
        let number = life.checked_mul(PLACES as u32);
        let number = number.and_then(|number| number.checked_add(1 + u32::from(place)));
        let number = number.and_then(|number| number.checked_add(self.first_server));
        let Some(number) = number else {
            return NO_NUMBER;
        };
        *life += 1;
        Given::Number(Node::Server(Server(number)))
    }
}

fn first_client(life: u64) -> Option<u32> {
    u32::try_from(life).ok()?.checked_mul(CLIENTS_OF_A_LIFE)
}

/// The number before the first one of this life.
fn first_server(life: u64) -> Option<u32> {
    let each = u32::try_from(life).ok()?.checked_mul(SERVERS_OF_A_LIFE)?;
    each.checked_mul(PLACES as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_number_of_a_ruler_comes_twice_and_each_servers_says_its_place() {
        let mut seen = BTreeSet::new();
        for life in [1, 2, 60_000] {
            let mut numbers = Numbers::of_ruler(life);
            let floor = Numbers::floor(life);
            for place in [0, 1, 2, u8::MAX] {
                for _ in 0..SERVERS_OF_A_LIFE {
                    let Given::Number(Node::Server(server)) = numbers.server(place) else {
                        panic!("no number");
                    };
                    assert_eq!(server.place(), Some(place));
                    assert!(server.0 >= floor.server && seen.insert(Node::Server(server)));
                }
            }
            assert!(!numbers.has_ended());
            assert_eq!(numbers.server(1), Given::Later);
            assert!(numbers.has_ended());
            let mut numbers = Numbers::of_ruler(life);
            for _ in 1..CLIENTS_OF_A_LIFE {
                let Given::Number(Node::Client(client)) = numbers.client() else {
                    panic!("no number");
                };
                assert!(client.0 > floor.client && seen.insert(Node::Client(client)));
            }
            assert_eq!(
                (numbers.client(), numbers.has_ended()),
                (Given::Later, true)
            );
        }
        assert_eq!(Numbers::of_ruler(1 << 40).client(), NO_NUMBER);
        assert_eq!(Numbers::of_ruler(1 << 40).server(0), NO_NUMBER);
    }
}
